"""CUDA graph modes of the decoders, and the captured states that all graphed decoders keep.

full      one graph that loops on the device (cuda/loops.py): the host launches it once per batch
chunked   a graph of a few steps, replayed until a flag on the device turns false; the host reads the flag one replay late,
          so that the device never waits for the host
off       no graphs: the host launches every step
auto      the first of these that is available

Only runs on a GPU import this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

import torch

from fastscribe.config import GraphMode
from fastscribe.cuda import while_loop
from fastscribe.cuda.graph_capture import Generation, GraphCache, GraphsUnavailable, StreamOrder
from fastscribe.cuda.loops import ChunkedLoop, DelayedFlag, LoopMaker, WhileLoop
from fastscribe.decode.decoder import Decoder
from fastscribe.errors import UsageError
from fastscribe.fast_paths import RefusedPath
from fastscribe.types import Frames, Hypothesis, Int32Array

Key = TypeVar("Key")
Buffers = TypeVar("Buffers")
Captured = TypeVar("Captured")


def decoder_for_mode(
    mode: GraphMode,
    device: torch.device,
    say: Callable[[str], None],
    without: Callable[[], Decoder],
    graphed: Callable[[LoopMaker], Decoder],
) -> Decoder:
    """Build a decoder for a CUDA graph mode, which decoder.check_graph_mode() allows.

    Args:
        mode: the `--cuda-graphs` option.
        device: the model's CUDA device.
        say: with `auto`, gets one line for each better mode that is unavailable, here or at the first batch.
        without: builds the decoder without graphs.
        graphed: builds the decoder whose steps run in the loops of the given LoopMaker.

    Raises:
        UsageError: the requested mode is unavailable. A FallbackDecoder may also raise it at the first batch.
    """
    builders: dict[GraphMode, Callable[[], Decoder]] = {
        "full": lambda: graphed(partial(WhileLoop, while_loop.toolkit(device))),
        "chunked": lambda: graphed(partial(ChunkedLoop, DelayedFlag)),
        "off": without,
    }
    modes: tuple[GraphMode, ...] = ("full", "chunked", "off") if mode == "auto" else (mode,)
    return FallbackDecoder([(name, builders[name]) for name in modes], say)


class FallbackDecoder:
    """A Decoder that uses the first available mode and falls back to the next one when CUDA graphs turn out unavailable.

    Unavailability shows when the decoder is built or when it gets its first batches.
    """

    def __init__(self, choices: Sequence[tuple[GraphMode, Callable[[], Decoder]]], say: Callable[[str], None]) -> None:
        self._choices = list(choices)
        self._say = say
        self._decoder = self._build()

    def submit(self, frames: Frames) -> torch.Tensor:
        while True:
            try:
                return self._decoder.submit(frames)
            except GraphsUnavailable as error:
                self._decoder.close()
                self._drop_first(error)
                self._decoder = self._build()

    def read(self, packed: Int32Array, frames: Frames) -> Sequence[Hypothesis]:
        return self._decoder.read(packed, frames)

    def close(self) -> None:
        self._decoder.close()

    def _build(self) -> Decoder:
        while True:
            try:
                return self._choices[0][1]()
            except GraphsUnavailable as error:
                self._drop_first(error)

    def _drop_first(self, reason: GraphsUnavailable) -> None:
        mode, _ = self._choices[0]
        if len(self._choices) == 1:
            raise UsageError(f"--cuda-graphs {mode}: unavailable: {reason}") from reason
        self._choices.pop(0)
        line = f"CUDA graphs: {mode} is unavailable ({reason}); using {self._choices[0][0]}"
        self._say(RefusedPath("graphs", f"{mode}: {reason}", line))


class DecoderGraphs(Generic[Key, Buffers, Captured]):
    """Captured decoder states by size, all in the same buffers, because only one batch is decoded at a time.

    The buffers grow to the largest batch so far. Graphs contain addresses, so growing drops all graphs.
    """

    def __init__(self, device: torch.device, new_buffers: Callable[[int], Buffers], max_captures: int) -> None:
        """Create an empty cache of at most `max_captures` states; `new_buffers` allocates buffers of a size, in any unit."""
        self._new_buffers = new_buffers
        self._order = StreamOrder()
        # A replayed graph runs at the priority of the stream it was captured on; decoding is short and others wait for it.
        new_generation = partial(Generation, device, self._order.synchronize, priority=-1)
        self._captured: GraphCache[Key, Captured] = GraphCache(new_generation, max_captures)
        self.buffers: Buffers | None = None
        self.size = 0

    @contextmanager
    def exclusive_use(self, frames: Frames) -> Iterator[None]:
        """Use the buffers for one batch, on the current stream of the frames' device, after the previous batch."""
        with torch.cuda.device_of(frames.frames_BTD):  # StreamOrder uses this device's current stream
            self._order.wait()
            try:
                yield
            finally:
                self._order.record()

    def get(self, key: Key, needed: int, make: Callable[[Buffers, Generation], Captured]) -> Captured:
        """Return the captured state for `key`, in buffers of at least `needed`; call `make` on a miss."""
        if self.buffers is None or self.size < needed:
            self.close()
            self.buffers, self.size = self._new_buffers(needed), needed
        if key not in self._captured:
            self._order.record()  # this batch may still be using the state that is evicted
        return self._captured.get(key, partial(make, self.buffers))

    def close(self) -> None:
        """Wait for the last use and free all graphs and buffers. Garbage collection of the object does the same."""
        self._captured.drop()
        self.buffers, self.size = None, 0
