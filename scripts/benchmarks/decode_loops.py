"""Rows of `python -m scripts.benchmarks.decoder`: each way to drive a transducer's decoding, by batch size.

    greedy      frame by frame, one row after another: the reference
    one_frame   label-looping over one frame per turn, all rows at once
    windowed    label-looping over several frames per turn, driven by the host
    chunked     the same in a CUDA graph of a few turns, replayed
    full        the same in one CUDA graph that contains the loop

A random model decodes its encoder's output of synthetic audio; it is tuned to 3 to 4 labels per second. Another model would
emit nothing there, so its predictor and joint are replaced by random ones of the same shape, with random frames
(decoding_speed.py). Every mode must equal greedy, up to rounding in bf16.

A step is one evaluation of the predictor and joint for all rows; in greedy, one evaluation of the joint for one row. The
encoder is timed from features on, for a batch of the same lengths; `decoder_share` is decoding's share of both times, which
exclude copies, features and texts.

The recordings of a batch are between nine tenths of the requested length and that length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastscribe.bench import synthetic
from fastscribe.bench.document import describe_error
from fastscribe.bench.memory import release
from fastscribe.bench.throughput_passes import batches_of
from fastscribe.bench.timing import synchronize
from fastscribe.config import GraphMode
from fastscribe.cuda.device import is_out_of_memory
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.greedy import greedy
from fastscribe.decode.label_looping import LabelLooping, Network
from fastscribe.errors import UsageError
from fastscribe.families.blocks.packed import pack_linears_
from fastscribe.families.blocks.transducer import Transducer
from fastscribe.families.cpu_form import torch_dtype
from fastscribe.pipeline.batching import Budget
from fastscribe.transcriber import Transcriber
from fastscribe.types import Frames, Hypothesis
from scripts.benchmarks import decoding_speed, encoder_speed

CASE = ("model", "mode", "batch_size")
_GRAPH_MODES: dict[str, GraphMode] = {"windowed": "off", "chunked": "chunked", "full": "full"}
_SEED = 2

Row = dict[str, Any]


def modes(device: torch.device) -> tuple[str, ...]:
    """Return the device's modes, slowest first."""
    return ("greedy", "one_frame", "windowed", *(("chunked", "full") if device.type == "cuda" else ()))


def recording_lengths_s(batch_size: int, duration_s: float) -> list[float]:
    return [float(length_s) for length_s in np.linspace(duration_s, 0.9 * duration_s, batch_size)]


class Loops:
    """A model's shape in a recognizer's dtype, on its device."""

    def __init__(self, name: str, transcriber: Transcriber, is_random: bool) -> None:
        """Prepare the model; a minute for a large model that is not random. Raise UsageError without a transducer."""
        recognizer = transcriber._recognizer
        self.name, self._transcriber, self._recognizer = name, transcriber, recognizer
        self._config, self._device = recognizer.model.config, recognizer.device
        self._dtype = torch_dtype(recognizer.dtype)
        self._is_random = is_random
        if recognizer.model.transducer is None:
            raise UsageError(f"{name}: has no transducer, whose loops are what is measured here")
        self._transducer = recognizer.model.transducer if is_random else self._stand_in()

    def rows(self, batch_sizes: Sequence[int], duration_s: float, max_s: float) -> Iterator[Row]:
        """Yield a row per batch size and mode; `max_s` limits greedy decoding."""
        for batch_size in batch_sizes:
            try:
                lengths_s = recording_lengths_s(batch_size, duration_s)
                encoder_ms = encoder_speed.measure(self._recognizer.encode, self._config, lengths_s, self._device)["ms"]
                frames = self._frames(lengths_s)
                found, row = greedy_rows(self._transducer, frames, self._device, max_s)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                release(self._device)
                yield from (
                    self._key(mode, batch_size) | {"error": describe_error(error)} for mode in modes(self._device)
                )
                continue
            for mode in modes(self._device):
                if mode != "greedy":
                    row = self._looping(mode, frames, found)
                yield self._key(mode, batch_size) | _beside(row, encoder_ms, sum(lengths_s))

    def _key(self, mode: str, batch_size: int) -> Row:
        return {"model": self.name, "mode": mode, "batch_size": batch_size}

    def _stand_in(self) -> Transducer:
        transducer = decoding_speed.random_transducer(self._config, self._device, self._dtype)
        if self._device.type == "cpu":
            with torch.inference_mode():
                pack_linears_(transducer, self._dtype)  # as in a run
        return transducer

    def _frames(self, lengths_s: Sequence[float]) -> Frames:
        if self._is_random:
            waves = synthetic.waves(lengths_s, seed=_SEED)
            [batch] = batches_of(waves, self._transcriber, Budget(math.inf))
            return self._recognizer.encode(self._recognizer.features(*self._recognizer.upload(batch)))
        lengths, width = [self._config.num_frames(length_s) for length_s in lengths_s], self._config.encoder.d_model
        return decoding_speed.random_frames(lengths, width, self._device, _SEED, self._dtype)

    def _looping(self, mode: str, frames: Frames, wanted: Sequence[Hypothesis]) -> Row:
        built: Decoder | None = None
        try:
            built = self._build(mode)
            row = decoding_speed.measure(built, frames, self._device)
            steps = decoding_speed.num_turns(self._transducer, frames, 1 if mode == "one_frame" else None)
            same = decoding_speed.equal_share(decoding_speed.decode(built, frames)[: len(wanted)], wanted)
        except (UsageError, RuntimeError, MemoryError) as error:
            if not (isinstance(error, UsageError) or is_out_of_memory(error)):
                raise
            return {"error": describe_error(error)}
        finally:
            if built is not None:
                built.close()
            release(self._device)
        keys = ("ms", "min_ms", "max_ms", "device_ms", "labels")
        return {**{key: row[key] for key in keys}, "steps": steps, "us_per_step": 1000 * row["ms"] / steps} | {
            "equal_to_greedy_share": same,
            "rows_compared": len(wanted),
        }

    def _build(self, mode: str) -> Decoder:
        if mode == "one_frame":
            return LabelLooping(Network.prepare(self._transducer, window=1))
        return decoding_speed.build(self._transducer, self._device, _GRAPH_MODES[mode])


def greedy_rows(
    transducer: Transducer, frames: Frames, device: torch.device, max_s: float
) -> tuple[list[Hypothesis], Row]:
    """Decode the first rows within `max_s`, at least one; `ms` is None if that is not the whole batch."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    lengths = frames.lengths_B.tolist()
    greedy_of = _in(device, lambda row: greedy(transducer, frames.frames_BTD[row, : lengths[row]]))
    greedy_of(0)  # what is made once
    hook = transducer.joint.register_forward_hook(count)
    found: list[Hypothesis] = []
    synchronize(device)
    start = perf_counter()
    while len(found) < len(lengths) and (not found or perf_counter() - start < max_s):
        found.append(greedy_of(len(found)))
    wall_ms = 1000 * (perf_counter() - start)
    hook.remove()
    return found, {
        "ms": wall_ms if len(found) == len(lengths) else None,
        "labels": sum(len(one.token_ids) for one in found) if len(found) == len(lengths) else None,
        "steps": steps if len(found) == len(lengths) else None,
        "us_per_step": 1000 * wall_ms / steps,
        "equal_to_greedy_share": 1.0,
        "rows_compared": len(found),
    }


def _in(device: torch.device, call: Callable[[int], Hypothesis]) -> Callable[[int], Hypothesis]:
    def inside(row: int) -> Hypothesis:
        with device:
            return call(row)

    return inside


def _beside(row: Row, encoder_ms: float, audio_s: float) -> Row:
    """Return the row with the encoder's time for the batch and decoding's share of both."""
    if "error" in row:
        return row
    ms, labels = row["ms"], row["labels"]
    return row | {
        "encoder_ms": encoder_ms,
        "decoder_share": None if ms is None else ms / (ms + encoder_ms),
        "labels_per_audio_s": None if labels is None else labels / audio_s,
    }
