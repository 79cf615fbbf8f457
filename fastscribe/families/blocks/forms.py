"""What loading does with a module beyond casting it: base classes of modules that have other forms for inference.

families/model.py and families/cpu_form.py look for them in every part of a model.
"""

from __future__ import annotations

import torch
from torch import nn


class Container(nn.Module):
    """A module that has parts and no weights but theirs. Models are loaded part by part."""


class Optimised(nn.Module):
    """A module with an inference form: the same function, computed faster; the names of its weights change."""

    def optimise_(self) -> None:
        """Convert to the inference form, in eval mode and before any cast."""
        raise NotImplementedError


class FusedOnCpu(nn.Module):
    """A module with another form for a CPU, made of its float32 weights."""

    def fuse_for_cpu_(self, dtype: torch.dtype) -> None:
        """Convert to a CPU's form, whose results have this dtype."""
        raise NotImplementedError


class PackedOnCpu(nn.Module):
    """A module with layers that a CPU stores in another layout."""

    def pack_for_cpu_(self, dtype: torch.dtype) -> None:
        """Replace the layers, which have this dtype."""
        raise NotImplementedError
