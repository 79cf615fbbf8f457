"""What the core does with the encoder of a family: build it, and prepare it for a GPU or a CPU.

Every encoder maps Features to Frames, has `num_frames` and `optimise_`, and is built from its config.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fastscribe.config import EncoderSettings
from fastscribe.families.registry import module_of


@dataclass(frozen=True)
class EncoderFamily:
    """FAMILY of a family's family.py.

    Attributes:
        build: Makes the encoder of a config, without weights.
        prepare_for_gpu_: Gives an optimised encoder its form on a GPU. Takes whether fp8 follows; returns a warning about
            unavailable optimisations, or None.
        prepare_for_cpu_: Gives an optimised encoder whose parts have a CPU's form (cpu_form.py) its form on a CPU.
    """

    build: Callable[[Any], nn.Module]
    prepare_for_gpu_: Callable[[Any, bool], str | None] = lambda encoder, is_fp8: None
    prepare_for_cpu_: Callable[[Any], None] = lambda encoder: None


def encoder_family(config: EncoderSettings) -> EncoderFamily:
    """Import and return the family of an encoder."""
    family: EncoderFamily = module_of(config.family, "family").FAMILY
    return family
