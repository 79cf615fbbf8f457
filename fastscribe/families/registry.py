"""The table of the model families, and the only place that imports a family's modules by name.

A family is a folder beside this file, and a run imports the folders that its checkpoint names and no others. To add a family,
add a folder and a row here. A family with an encoder of its own has these modules:

- config.py: its settings, a frozen dataclass that satisfies EncoderSettings (fastscribe/config.py) and whose annotations say
  which values they may have (checkpoint/validate.py); encoder_shapes(settings), the shape of each weight, for
  `fastscribe inspect`;
- encoder.py: its network, which is built from its settings, maps Features to Frames, and has `num_frames` and `optimise_`;
- fused_layers.py, if it has another form on a GPU: for_gpu_(encoder, adds_products), which gives an optimised encoder that
  form and returns a warning about unavailable optimisations, or None.

If NeMo has its encoder: nemo.py, whose encoder_config(section) reads the settings, and whose NEMO and nemo_layers(settings)
are NeMo's names of its weights. If Hugging Face has its models: huggingface.py, whose read_config(), our_names() and
read_model() checkpoint/huggingface.py describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Family:
    """A row of the table.

    Attributes:
        name: The folder, and `kind` of the encoder in stored configs.
        config: Class of its encoder's settings; None: its encoder is of another family.
        encoder: Class of its encoder.
        has_fused_layers: Its encoder has another form on a GPU.
        nemo_encoder: NeMo's class of its encoder; None: NeMo has none.
        model_types: The `model_type` of each Hugging Face folder that it reads.
    """

    name: str
    config: str | None = None
    encoder: str | None = None
    has_fused_layers: bool = False
    nemo_encoder: str | None = None
    model_types: tuple[str, ...] = ()


_PARAKEETS = ("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt")
FAMILIES = (
    Family("conformer", "EncoderConfig", "Encoder", True, "ConformerEncoder", _PARAKEETS),
    Family("jasper", "JasperConfig", "JasperEncoder", False, "ConvASREncoder"),
    Family("nemotron", model_types=("nemotron_asr_streaming", "nemotron3_5_asr")),
    Family("canary", model_types=("canary",)),
    Family("cohere", model_types=("cohere_asr",)),
    Family("granite", "GraniteConfig", "GraniteEncoder", True, model_types=("granite_speech5_ctc",)),
    Family("indic"),
)
ENCODER_KINDS = tuple(family.name for family in FAMILIES if family.config is not None)
FUSED_KINDS = tuple(family.name for family in FAMILIES if family.has_fused_layers)
MODEL_TYPES = tuple(name for family in FAMILIES for name in family.model_types)
NEMO_ENCODERS = {family.nemo_encoder: family.name for family in FAMILIES if family.nemo_encoder is not None}


def module_of(family: str, name: str) -> Any:
    """Import a module of a family's folder."""
    return import_module(f"fastscribe.families.{family}.{name}")


def config_class(kind: str) -> type[Any]:
    """Return the class of the settings of one of ENCODER_KINDS."""
    return _class_of(kind, "config")


def encoder_class(kind: str) -> type[Any]:
    """Return the class of the encoder of one of ENCODER_KINDS."""
    return _class_of(kind, "encoder")


def _class_of(kind: str, module: str) -> type[Any]:
    name = next(getattr(family, module) for family in FAMILIES if family.name == kind)
    found: type[Any] = getattr(module_of(kind, module), name)
    return found


def family_of_model_type(model_type: str) -> str:
    """Return the family that reads Hugging Face folders of one of MODEL_TYPES."""
    return next(family.name for family in FAMILIES if model_type in family.model_types)
