"""The table of the model families, and the only place that imports a family's modules by name.

A family is a folder beside this file, and a run imports the folders that its checkpoint names and no others. To add a family,
add a folder and a row here. A family with an encoder of its own has these modules:

- config.py: its settings, a frozen dataclass that satisfies EncoderSettings (fastscribe/config.py);
- family.py: FAMILY, an EncoderFamily (encoder_family.py), which builds its network and prepares it for a CPU or a GPU;
- limits.py: LIMITS, the values that its settings may have (checkpoint/validate.py);
- shapes.py: encoder_shapes(settings), the shape of each weight, for `fastscribe inspect`.

If NeMo has its encoder: nemo.py, whose encoder_config(section) reads the settings, and names.py, whose NEMO and
nemo_layers(settings) are NeMo's names of its weights. If Hugging Face has its models: huggingface.py, whose read_config(),
our_names() and read_model() checkpoint/huggingface.py describes.
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
        nemo_encoder: NeMo's class of its encoder; None: NeMo has none.
        model_types: The `model_type` of each Hugging Face folder that it reads.
    """

    name: str
    config: str | None = None
    nemo_encoder: str | None = None
    model_types: tuple[str, ...] = ()


FAMILIES = (
    Family("conformer", "EncoderConfig", "ConformerEncoder", ("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt")),
    Family("jasper", "JasperConfig", "ConvASREncoder"),
    Family("nemotron", model_types=("nemotron_asr_streaming", "nemotron3_5_asr")),
    Family("canary", model_types=("canary",)),
    Family("cohere", model_types=("cohere_asr",)),
    Family("granite", "GraniteConfig", model_types=("granite_speech5_ctc",)),
    Family("indic"),
)
ENCODER_KINDS = tuple(family.name for family in FAMILIES if family.config is not None)
MODEL_TYPES = tuple(name for family in FAMILIES for name in family.model_types)
NEMO_ENCODERS = {family.nemo_encoder: family.name for family in FAMILIES if family.nemo_encoder is not None}


def module_of(family: str, name: str) -> Any:
    """Import a module of a family's folder."""
    return import_module(f"fastscribe.families.{family}.{name}")


def config_class(kind: str) -> type[Any]:
    """Return the class of the settings of one of ENCODER_KINDS."""
    name = next(family.config for family in FAMILIES if family.name == kind and family.config is not None)
    found: type[Any] = getattr(module_of(kind, "config"), name)
    return found


def family_of_model_type(model_type: str) -> str:
    """Return the family that reads Hugging Face folders of one of MODEL_TYPES."""
    return next(family.name for family in FAMILIES if model_type in family.model_types)
