"""CUDA graphs of the encoder for small batches.

A forward pass launches hundreds of kernels. In a small batch a kernel takes less time than its launch, so the GPU waits for
the host. A CUDA graph launches all kernels at once, but for a single shape: rows and frames are padded to buckets, which
never changes a row. A bucket is captured at its second use. At the limit all graphs are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fastscribe.cuda.graph_capture import Generation, GraphCache, GraphsUnavailable, StreamOrder
from fastscribe.types import Features, Frames

_MAX_FRAMES = 4096  # encoder frames, rows x longest; larger batches keep a GPU busy without graphs
_FRAME_STEP = 8  # encoder frames
_MAX_GRAPHS = 64  # every length of one row up to 512 frames
_MIN_USES = 2  # before a bucket is captured


@dataclass(frozen=True)
class _CapturedPass:
    """A graph and the memory it reads and writes."""

    features: Features
    frames: Frames
    graph: torch.cuda.CUDAGraph


class EncoderGraphs:
    """A function from Features to Frames that equals the encoder and uses graphs for small batches."""

    def __init__(self, encoder: Any, device: torch.device, give_up: Callable[[GraphsUnavailable], None]) -> None:
        """Wrap an encoder.

        Args:
            encoder: the encoder, which must stay on the device in its dtype. It maps Features to Frames, and has its config and
                num_frames().
            device: a CUDA device.
            give_up: called once if graphs are unavailable; it may raise.
        """
        self._encoder = encoder
        self._give_up = give_up
        self._can_capture = True
        self._seen: Counter[tuple[int, int]] = Counter()
        self._order = StreamOrder()
        new_generation = partial(Generation, device, self._order.synchronize)
        self._captured: GraphCache[tuple[int, int], _CapturedPass] = GraphCache(new_generation, _MAX_GRAPHS)

    def __call__(self, features: Features) -> Frames:
        encode: Callable[[Features], Frames] = self._encoder
        bucket = self._bucket(features)
        if bucket is None or not self._can_capture:
            return encode(features)
        self._seen[bucket] += 1
        if bucket not in self._captured and self._seen[bucket] < _MIN_USES:
            return encode(features)
        try:
            return self._replay(bucket, features)
        except GraphsUnavailable as error:
            self._can_capture = False
            self._give_up(error)
            return encode(features)

    def _bucket(self, features: Features) -> tuple[int, int] | None:
        """Return rows and mel frames, rounded up; None if the batch is too large for graphs."""
        factor = self._encoder.config.subsampling_factor
        rows = 1 << (features.mel_BMT.shape[0] - 1).bit_length()
        step = _FRAME_STEP * factor
        mel_frames = -(-features.mel_BMT.shape[2] // step) * step
        return (rows, mel_frames) if rows * mel_frames <= _MAX_FRAMES * factor else None

    def _replay(self, bucket: tuple[int, int], features: Features) -> Frames:
        with torch.cuda.device_of(features.mel_BMT):  # StreamOrder uses this device's current stream
            self._order.wait()
            try:
                return self._run(self._captured.get(bucket, partial(self._make, features, bucket)), features)
            finally:
                self._order.record()

    def _make(self, features: Features, bucket: tuple[int, int], generation: Generation) -> _CapturedPass:
        mel_BMT = features.mel_BMT
        static = Features(
            mel_BMT.new_zeros(bucket[0], mel_BMT.shape[1], bucket[1]), features.lengths_B.new_zeros(bucket[0])
        )
        outputs: list[Frames] = []

        def work() -> None:
            outputs[:] = [self._encoder(static)]

        graph = generation.capture(work)
        return _CapturedPass(static, outputs[0], graph)

    def _run(self, captured: _CapturedPass, features: Features) -> Frames:
        rows, _, mel_frames = features.mel_BMT.shape
        mel_BMT, lengths_B = captured.features.mel_BMT.zero_(), captured.features.lengths_B.zero_()
        mel_BMT[:rows, :, :mel_frames].copy_(features.mel_BMT)
        lengths_B[:rows].copy_(features.lengths_B)
        captured.graph.replay()
        num_frames: int = self._encoder.num_frames(mel_frames)
        # Copies, because the next replay overwrites tensors that the decoder may still read.
        return Frames(captured.frames.frames_BTD[:rows, :num_frames].clone(), captured.frames.lengths_B[:rows].clone())
