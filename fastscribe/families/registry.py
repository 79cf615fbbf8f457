"""The table of the model families, and the only place that imports a family's modules by name.

A family with an encoder of its own is a folder beside this file, any other one a module, and a run imports those that its
checkpoint names and no others. To add a family, add it, its row in FAMILIES if it has an encoder, and its row in READERS if
Hugging Face has its models. A folder has these modules:

- config.py: its settings, a frozen dataclass that satisfies EncoderSettings (fastscribe/config.py) and whose annotations say
  which values they may have (checkpoint/validate.py); encoder_shapes(settings), the shape of each weight, for
  `fastscribe inspect`;
- encoder.py: its network, which is built from its settings, maps Features to Frames, and has `num_frames`;
- fused_layers.py, if it has another form on a GPU: for_gpu_(encoder, adds_products), which gives an optimised encoder that
  form and returns a warning about unavailable optimisations, or None;
- nemo.py, if NeMo has its encoder: encoder_config(section) reads the settings, and NEMO and nemo_layers(settings) are NeMo's
  names of its weights.

A reader of Hugging Face folders has read_config(), our_names() and read_model(), which checkpoint/huggingface.py describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True)
class Family:
    """A row of the table of encoders.

    Attributes:
        name: The folder, and `kind` of the encoder in stored configs.
        config: Class of its encoder's settings.
        encoder: Class of its encoder.
        has_fused_layers: Its encoder has another form on a GPU.
        nemo_encoder: NeMo's class of its encoder; None: NeMo has none.
    """

    name: str
    config: str
    encoder: str
    has_fused_layers: bool
    nemo_encoder: str | None = None


FAMILIES = (
    Family("conformer", "EncoderConfig", "Encoder", True, "ConformerEncoder"),
    Family("jasper", "JasperConfig", "JasperEncoder", False, "ConvASREncoder"),
    Family("granite", "GraniteConfig", "GraniteEncoder", True),
)
# The module that reads Hugging Face folders of each `model_type`.
READERS = {
    "parakeet_ctc": "conformer.huggingface",
    "parakeet_rnnt": "conformer.huggingface",
    "parakeet_tdt": "conformer.huggingface",
    "nemotron_asr_streaming": "nemotron",
    "nemotron3_5_asr": "nemotron",
    "canary": "canary.huggingface",
    "cohere_asr": "cohere",
    "granite_speech5_ctc": "granite.huggingface",
}
ENCODER_KINDS = tuple(family.name for family in FAMILIES)
FUSED_KINDS = tuple(family.name for family in FAMILIES if family.has_fused_layers)
MODEL_TYPES = tuple(READERS)
NEMO_ENCODERS = {family.nemo_encoder: family.name for family in FAMILIES if family.nemo_encoder is not None}


def module_of(family: str, name: str) -> Any:
    """Import a module of a family's folder."""
    return import_module(f"fastscribe.families.{family}.{name}")


def class_of(kind: str, module: Literal["config", "encoder"]) -> type[Any]:
    """Return the class of the settings, or of the encoder, of one of ENCODER_KINDS."""
    name = next(getattr(family, module) for family in FAMILIES if family.name == kind)
    found: type[Any] = getattr(module_of(kind, module), name)
    return found


def reader_of(model_type: str) -> Any:
    """Import the module that reads Hugging Face folders of one of MODEL_TYPES."""
    return import_module(f"fastscribe.families.{READERS[model_type]}")
