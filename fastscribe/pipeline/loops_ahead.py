"""Loops for a CPU that numba compiles, or loads from its cache, while the weights are read: of wide conformer models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from threading import Thread, main_thread

import torch

from fastscribe.checkpoint.lazy_weights import float_sources
from fastscribe.config import ModelConfig, Options
from fastscribe.decode import looping_kernels
from fastscribe.families.blocks import packed, row_kernels
from fastscribe.families.blocks.int8 import quantise_and_pack
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.model import torch_dtype


def compile_meanwhile(config: ModelConfig, dtype: str, weights: Mapping[str, torch.Tensor], options: Options) -> None:
    """Start a thread that compiles what a first batch needs, in that order. What it has not reached is compiled when called.

    Args:
        config: The model's.
        dtype: The name of the model's dtype.
        weights: The model's; reads no values.
        options: `beam` and `decoder` count here.
    """

    def work() -> None:
        with suppress(ImportError, OSError):  # the first call of a loop meets them again
            for _ in _compiled(config, dtype, weights, options):
                if not main_thread().is_alive():  # the process ends, and waits for this thread
                    return

    Thread(target=work, name="compile-loops").start()


def _compiled(config: ModelConfig, dtype: str, weights: Mapping[str, torch.Tensor], options: Options) -> Iterator[None]:
    import_module("numba")  # a third of a second
    yield
    encoder, name = config.encoder, str(torch_dtype(dtype)).removeprefix("torch.")
    if dtype == "int8":
        stored = getattr(torch, float_sources(weights)[0].dtype)
        quantise_and_pack(torch.zeros(*encoder.largest_matrix, dtype=stored))  # the layers wait for this loop first
        yield

    if isinstance(encoder, EncoderConfig) and encoder.attention is None and encoder.conv_norm == "batch_norm":
        is_packed = dtype != "int8" and packed.packs(encoder.largest_matrix, getattr(torch, name))
        yield from row_kernels.compile_ahead(name, "levels" if dtype == "int8" else "plain", is_packed)
    if config.joint is not None and (options.beam or 1) == 1 and options.decoder != "ctc":
        yield from looping_kernels.compile_ahead(name, config.joint.activation)
