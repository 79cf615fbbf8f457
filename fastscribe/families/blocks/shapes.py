"""Shapes of the weights of common layers, by their names."""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    """Return the shapes of a linear layer's weights."""
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int) -> Shapes:
    """Return the shapes of a LayerNorm's weights."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def batch_norm(name: str, width: int) -> Shapes:
    """Return the shapes of a BatchNorm's weights and buffers."""
    buffers: Shapes = {f"{name}.running_mean": (width,), f"{name}.running_var": (width,)}
    return norm(name, width) | buffers | {f"{name}.num_batches_tracked": ()}


def prefixed(name: str, shapes: Shapes) -> Shapes:
    """Return the shapes of a module's weights by their names in its owner."""
    return {f"{name}.{key}": shape for key, shape in shapes.items()}


def joined(*parts: Shapes) -> Shapes:
    """Return the shapes of several modules in one mapping."""
    return {name: shape for part in parts for name, shape in part.items()}
