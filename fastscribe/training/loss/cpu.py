"""The recursion compiled by numba for the CPU, and the threads that share a batch.

Threads split rows of logits by frames, and recursions by utterances.
Importing this file imports no numba; the first loss does, and compiles (or loads the cache of an earlier process, if a
folder for it is writable).

Shapes as in recursion.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fastscribe._system.float_bits import as_numpy
from fastscribe._system.jit import compile_cached, compile_helper, loop_options
from fastscribe._system.thread_shares import equal_parts, share
from fastscribe.training.loss import layout, recursion
from fastscribe.training.loss.layout import steps_of
from fastscribe.training.loss.recursion import Arcs, Batch
from fastscribe.types import Float64Array

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Lattice(layout.Lattice):
    """A lattice whose loops run in threads."""

    def read_arcs(self, logits_CW: torch.Tensor) -> None:
        loop = _loops(DTYPES[self.dtype])["read_arcs"]
        fixed = (as_numpy(logits_CW), self.batch, self.rules, self._arcs)
        _by_line(self.batch, lambda start, stop: loop(*fixed, start, stop))

    def sum_paths(self) -> None:
        loops, batch, arcs = _loops("float32"), self.batch, self._arcs  # sums read no logits: those of any dtype
        alpha_C, *beta = self._sums
        _by_utterance(batch, lambda first, stride: loops["fill_beta"](batch, arcs, *beta, first, stride))
        if len(alpha_C):
            _by_utterance(batch, lambda first, stride: loops["fill_alpha"](batch, arcs, alpha_C, first, stride))

    def write_gradient(self, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
        loop = _loops(DTYPES[self.dtype])["write_gradient"]
        ways = (*self._sums, scale_B.float().contiguous().numpy())
        fixed = (as_numpy(logits_CW), self.batch, self.rules, self._arcs, *ways)
        _by_line(self.batch, lambda start, stop: loop(*fixed, start, stop))

    @property
    def _arcs(self) -> Arcs:
        return Arcs._make((*(x.numpy() for x in self.arcs), *steps_of(self.config)))

    @property
    def _sums(self) -> tuple[Float64Array, ...]:
        return tuple(x.numpy() for x in (self.alpha_C, self.beta_C, self.log_likelihood_B))


@cache
def _loops(dtype: str) -> dict[str, Any]:
    return recursion.compiled_loops(
        compile_helper(**loop_options()), lambda function: compile_cached(function, **loop_options()), dtype
    )


def _by_line(batch: Batch, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) for a share of the lines in each thread."""
    share(equal_parts(len(batch.line_utterance_L), torch.get_num_threads()), work)


def _by_utterance(batch: Batch, work: Callable[[int, int], None]) -> None:
    """Call work(first, stride) in each thread; together they cover all utterances."""
    num_threads = min(torch.get_num_threads(), len(batch.num_frames_B))
    share([(first, num_threads) for first in range(num_threads)], work)
