"""The steps from NeMo's first way to run a transducer or CTC model to ours, each a rung with one change.

NVIDIA got NeMo's models ten times as fast by weights in bf16 without autocast, label looping (Xu et al. 2024), and CUDA
graphs that loop by themselves (Galvez et al. 2024). Here is the same ladder for one model and the same audio from memory: NeMo
as it was and as it is, then this engine without any of the steps, then with one more on each rung, up to the engine as
shipped. All have the same weights.

NeMo's rungs are its forward pass and its decoding of padded batches, as its transcribe() has them, without reading files. Ours
run in the engine, which overlaps batches, also where decoding waits at every step.

Shapes: B batch, T frames, S samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch

from fastscribe import Transcriber
from fastscribe.bench import throughput_passes
from fastscribe.bench.roofline import synchronize
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import GraphMode, ModelConfig
from fastscribe.decode import ctc
from fastscribe.decode.decoder import Decoder, Parts
from fastscribe.decode.families import DECODERS
from fastscribe.decode.greedy import greedy
from fastscribe.families.model import Model, build_model
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Batch, Features, Frames, Hypothesis, Int16Array, Int32Array

_NEMO_BATCH = 32  # the default of its transcribe_speech.py
Row = dict[str, Any]


@dataclass(frozen=True)
class Rung:
    """A way to transcribe.

    Attributes:
        name: In the rows.
        side: Whose code.
        changes: What is new, against the rung below of the same side.
        order: Of the recordings: as they arrive, or by length. "planned": by length in batches of the run's budget.
        numbers: bf16 weights, or float32 weights with torch's autocast to bf16.
        decoding: One row at a time, frame by frame; or all rows of a batch.
        graphs: CUDA graphs of the decoder.
        has_fused_layers: The layers as shipped; False: as the checkpoint has them.
    """

    name: str
    side: Literal["nemo", "fastscribe"]
    changes: str
    order: Literal["arrival", "length", "planned"] = "arrival"
    numbers: Literal["autocast", "bf16"] = "bf16"
    decoding: Literal["rows", "batch"] = "batch"
    graphs: GraphMode = "off"
    has_fused_layers: bool = True

    @property
    def is_slow(self) -> bool:
        return self.decoding == "rows"

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        is_on = self.numbers == "autocast"
        return torch.autocast(device.type, torch.bfloat16) if is_on else nullcontext()

    def about(self) -> Row:
        """Return the fields of a row that say what was run."""
        return {
            "changes": self.changes,
            "order": self.order,
            "numbers": "float32 weights, autocast to bf16" if self.numbers == "autocast" else "bf16 weights",
            "decoding": "one row at a time" if self.is_slow else "a batch at once",
            "graphs_of_decoder": self.graphs,
            "fused_layers": self.has_fused_layers,
        }


def rungs(config: ModelConfig) -> tuple[Rung, ...]:
    """Return the rungs of a family, NeMo's two first; CTC has no labels to loop over, and no graphs."""
    looped = config.joint is not None
    today: GraphMode = "full" if looped else "off"
    found = [
        Rung("nemo, first", "nemo", "greedy decoding, autocast", "arrival", "autocast", "rows", "off", False),
        Rung("nemo, now", "nemo", "all of NeMo's steps", "length", "bf16", "batch", today, False),
        Rung("greedy", "fastscribe", "this engine, without any step", "arrival", "autocast", "rows", "off", False),
        Rung("bf16", "fastscribe", "weights in bf16, no autocast", "arrival", "bf16", "rows", "off", False),
        Rung("fused", "fastscribe", "fused layers", decoding="rows"),
    ]
    if looped:
        found += [
            Rung("label looping", "fastscribe", "all rows of a batch in one loop"),
            Rung("graph chunks", "fastscribe", "graphs of a few steps", graphs="chunked"),
            Rung("graph loops", "fastscribe", "a graph with the loop inside", graphs="full"),
        ]
    else:
        found.append(Rung("batched", "fastscribe", "all rows of a batch at once"))
    shipped = replace(
        found[-1], name="planned", changes="batches by length, as shipped", order="planned", graphs="auto"
    )
    return (*found, shipped)


def batches_of(transcriber: Transcriber, waves: Sequence[Int16Array], rung: Rung, batch_size: int) -> list[Batch]:
    """Return the batches of a rung; `batch_size` is that of fixed ones, but for NeMo's first rung."""
    if rung.order == "planned":
        return throughput_passes.batches_of(waves, transcriber, transcriber._recognizer.choose_budget())
    if rung.order == "length":
        waves = sorted(waves, key=len, reverse=True)
    rows = min(batch_size, _NEMO_BATCH) if rung.side == "nemo" and rung.is_slow else batch_size
    found = []
    for first in range(0, len(waves), rows):
        found += throughput_passes.batches_of(waves[first : first + rows], transcriber, Budget(math.inf))
    return found


# --- ours ---------------------------------------------------------------------------------------------------------


class RowByRow:
    """A Decoder (decoder.py) of one row after another, by the reference loop of its family."""

    def __init__(self, model: Model, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        self._model, self._autocast = model, autocast

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Decode; waits for the device at every frame."""
        device = frames.frames_BTD.device
        with device, self._autocast():
            found = [self._row(frames, row, length) for row, length in enumerate(frames.lengths_B.tolist())]
        counts = [len(one.token_ids) for one in found]
        columns = [[number for one in found for number in column(one)] for column in _COLUMNS]
        logprobs_N = torch.tensor([value for one in found for value in one.logprobs], dtype=torch.float32)
        parts = [torch.tensor(values, dtype=torch.int32) for values in (counts, *columns)]
        return torch.cat([*parts, logprobs_N.view(torch.int32)]).to(device)

    def _row(self, frames: Frames, row: int, length: int) -> Hypothesis:
        frames_TD = frames.frames_BTD[row, :length]
        if self._model.transducer is not None:
            return greedy(self._model.transducer, frames_TD)
        assert self._model.ctc is not None
        alone = Frames(frames_TD[None], frames.lengths_B[row : row + 1])
        return ctc.decode(self._model.ctc, alone, self._model.config.blank_id)[0]

    def read(self, packed: Int32Array, frames: Frames) -> HypothesisColumns:
        counts_B = packed[: len(frames.lengths_B)]
        ids_N, frames_N, durations_N, bits_N = packed[len(counts_B) :].reshape(4, -1)
        return HypothesisColumns(counts_B, ids_N, frames_N, durations_N, bits_N.view(np.float32))

    def close(self) -> None:
        """Do nothing: `submit` keeps no memory."""


_COLUMNS: tuple[Callable[[Hypothesis], Sequence[int]], ...] = (
    lambda one: one.token_ids,
    lambda one: one.token_frames,
    lambda one: one.token_durations,
)


def build(shipped: Transcriber, checkpoint: Checkpoint, rung: Rung) -> Transcriber:
    """Return the engine of a rung of ours.

    Args:
        shipped: The model as shipped.
        checkpoint: Of the same model, with its weights.
        rung: What to build.
    """
    if rung.order == "planned":
        return shipped
    recognizer = shipped._recognizer
    device, model, encoder = recognizer.device, recognizer.model, recognizer.encoder

    def encode(features: Features) -> Frames:
        with rung.autocast(device):
            frames: Frames = model.encoder(features)
            return frames

    if not rung.has_fused_layers:  # as the checkpoint has it: nothing folded, nothing fused
        model, encoder = build_model(checkpoint.config, checkpoint.weights, checkpoint.path), encode
        model = model.to(device, torch.float32 if rung.numbers == "autocast" else torch.bfloat16)
    options = replace(shipped.options, beam=recognizer.beam, cuda_graphs=rung.graphs)
    decoder: Decoder = RowByRow(model, partial(rung.autocast, device))
    if not rung.is_slow:
        decoder = DECODERS[recognizer.decoder_name].build(Parts(model, checkpoint, device, options, print))
    changed = replace(recognizer, model=model, encoder=encoder, decoder=decoder)
    return Transcriber(checkpoint, LocalExecutor(changed), options, 0.0)


def measure(transcriber: Transcriber, batches: list[Batch], rung: Rung, passes: int) -> Row:
    """Measure warm passes; of a slow rung one, after its batches were encoded and one row was decoded."""
    if not rung.is_slow:
        return throughput_passes.from_batches(transcriber, batches, passes, 1)
    recognizer = transcriber._recognizer
    for batch in batches:
        frames = recognizer.encode(recognizer.features(*recognizer.upload(batch)))
    recognizer.submit(Frames(frames.frames_BTD[-1:], frames.lengths_B[-1:]))
    synchronize(recognizer.device)
    found = throughput_passes.stream(transcriber, batches)
    return throughput_passes.summary([found]) | throughput_passes.padding(batches) | {"batches": len(batches)}


# --- NeMo's -------------------------------------------------------------------------------------------------------


class Nemo:
    """NeMo's model of an archive, on a device; float32 until a rung wants bf16."""

    def __init__(self, archive: Path, config: ModelConfig, device: torch.device) -> None:
        """Raise ImportError without NeMo."""
        import nemo

        from scripts.gpu.turns import nemo_model

        self._model = nemo_model(archive).to(device)
        self._device, self._is_ctc, self.version = device, config.joint is None, nemo.__version__
        self._blank_id = config.blank_id

    def prepare(self, rung: Rung) -> None:
        from omegaconf import open_dict

        config = self._model.cfg.decoding
        with open_dict(config):
            config.strategy = "greedy" if rung.is_slow else "greedy_batch"
        self._model.change_decoding_strategy(config, verbose=False)
        if rung.is_slow and not self._is_ctc:
            # It starts from zeros, all others from the blank's row, which training keeps at zero and a random model does not.
            self._model.decoding.decoding._SOS = torch.tensor([[self._blank_id]], device=self._device)
        if rung.numbers == "bf16":
            self._model.to(torch.bfloat16)

    def measure(self, batches: list[Batch], rung: Rung, passes: int) -> Row:
        """Measure as measure() does."""
        from scripts.gpu.turns import graphs_of

        self.prepare(rung)
        for batch in batches:  # a slow rung's are decoded once, and their encoder is warm then
            encoded = self._encode(batch, rung)
            if not rung.is_slow:
                self._decode(*encoded, rung)
        if rung.is_slow:
            self._decode(encoded[0][-1:], encoded[1][-1:], rung)
        found = [self._pass(batches, rung) for _ in range(1 if rung.is_slow else passes)]
        walls, audio_s = [wall_s for wall_s, _ in found], sum(batch.audio_s for batch in batches)
        row = {"rtfx": audio_s / median(walls), "audio_s": audio_s, "walls_s": walls, "batches": len(batches)}
        row["labels_per_audio_s"] = None if self._is_ctc else found[-1][1] / audio_s
        return row | throughput_passes.padding(batches) | {"version": self.version, "decoder": graphs_of(self._model)}

    def _pass(self, batches: list[Batch], rung: Rung) -> tuple[float, int]:
        """Return the seconds of a pass, and the number of labels, of CTC those of frames."""
        synchronize(self._device)
        start, found = perf_counter(), []
        for batch in batches:
            found += self._decode(*self._encode(batch, rung), rung)
        synchronize(self._device)
        return perf_counter() - start, sum(len(hypothesis.y_sequence) for hypothesis in found)

    @torch.inference_mode()
    def _encode(self, batch: Batch, rung: Rung) -> tuple[torch.Tensor, torch.Tensor]:
        samples_BS = torch.from_numpy(batch.samples_BS).to(self._device, non_blocking=True).float() / 32768.0
        lengths_B = torch.from_numpy(batch.lengths_B).to(self._device)
        with rung.autocast(self._device):
            found = self._model.forward(input_signal=samples_BS, input_signal_length=lengths_B)
        return found[0], found[1]

    @torch.inference_mode()
    def _decode(self, encoded: torch.Tensor, lengths_B: torch.Tensor, rung: Rung) -> Any:
        decoding = self._model.decoding
        with rung.autocast(self._device):
            if self._is_ctc:
                return decoding.ctc_decoder_predictions_tensor(encoded, decoder_lengths=lengths_B)
            return decoding.rnnt_decoder_predictions_tensor(encoded, lengths_B)
