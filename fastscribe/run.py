"""The straight path over many files: inputs to transcripts, in windows, batches and order of completion.

    inputs -> probe -> split -> plan -> load -> features -> encode -> decode -> assemble

One window of inputs is probed and sorted at a time; audio loads in threads ahead of the model; a file's transcript leaves
as soon as its last utterance is decoded, and nothing of it stays behind. Whatever fails becomes that file's Failure.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from fastscribe import batching, transcript
from fastscribe.audio.inputs import expand
from fastscribe.audio.loader import load_batches
from fastscribe.audio.probe import probe_all
from fastscribe.audio.source import to_failure
from fastscribe.checkpoint import Checkpoint, read_checkpoint
from fastscribe.config import Options
from fastscribe.recognizer import Recognizer
from fastscribe.segment import split
from fastscribe.stats import RunStats, Stopwatch, list_price
from fastscribe.types import AudioInfo, Batch, Failure, Hypothesis, Transcript, Utterance

Outcome = tuple[Utterance, "Hypothesis | Failure"]

_BATCHES_AHEAD = 2
# Encoder frames a batch, rows x longest. On a CPU bigger batches stop paying once matrices are tall (docs/log.md).
_CPU_BATCH_FRAMES = 1600
_GPU_BATCH_FRAMES = 32_768
_BATCHES_PER_WINDOW = 64
_DEFAULTS = Options()


@dataclass
class Progress:
    """What a run has done so far; read by progress bars and reports while the run writes it."""

    files: int = 0
    failed: int = 0
    audio_s: float = 0.0  # of files transcribed
    planned_s: float = 0.0  # of files probed
    padded_frames: int = 0
    real_frames: int = 0
    stopwatch: Stopwatch = field(default_factory=Stopwatch)


class Transcriber:
    """A loaded model and the options of its runs. `transcribe` may be called any number of times, one run at a time."""

    def __init__(self, checkpoint: Checkpoint, recognizer: Recognizer, options: Options, load_s: float) -> None:
        self.config = checkpoint.config
        self.tokenizer = checkpoint.tokenizer
        self.recognizer = recognizer
        self.options = options
        self.load_s = load_s
        self.progress = Progress()

    @classmethod
    def load(
        cls, model: str | Path, device: str = "auto", dtype: str = "auto", options: Options = _DEFAULTS
    ) -> Transcriber:
        """Loads a checkpoint: a .nemo file, a Hugging Face folder or a fastscribe folder.

        Raises CheckpointError or UsageError (both ValueError) for a model, device, dtype or decoder that cannot be had.
        """
        start = perf_counter()
        checkpoint = read_checkpoint(model)
        recognizer = Recognizer.build(checkpoint, device, dtype, options.decoder)
        checkpoint = replace(checkpoint, weights={})  # the model owns them now
        return cls(checkpoint, recognizer, options, perf_counter() - start)

    def transcribe(
        self, inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    ) -> Generator[Transcript | Failure]:
        """Files, folders, globs, NeMo manifests or "-" (paths on stdin) -> results in order of completion."""
        self.progress = Progress()
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
        probed = probe_all(expand(os.fspath(path) for path in given), self.options.threads)
        with closing(probed):
            while window := self._take_window(probed):
                yield from self._count(self._transcribe_window(window))

    def _take_window(self, probed: Iterator[AudioInfo | Failure]) -> list[AudioInfo | Failure]:
        """The next inputs to sort together. Hours of audio close a window early: sorting spreads a long recording's
        parts over the whole window, so its transcript leaves near the window's end."""
        window: list[AudioInfo | Failure] = []
        audio_s, most_s = 0.0, self._window_s()
        while len(window) < self.options.window and audio_s < most_s:
            item = next(probed, None)
            if item is None:
                break
            window.append(item)
            audio_s += item.duration_s if isinstance(item, AudioInfo) else 0.0
        return window

    def _window_s(self) -> float:
        batch_frames = self._batch_frames()
        if batch_frames is None:
            longest_s = self.options.max_utterance_s or Options.max_utterance_s
            batch_frames = (self.options.batch_size or 1) * self.config.num_frames(longest_s)
        return _BATCHES_PER_WINDOW * batch_frames * self.config.frame_s

    def _count(self, results: Iterable[Transcript | Failure]) -> Iterator[Transcript | Failure]:
        for result in results:
            self.progress.files += 1
            if isinstance(result, Failure):
                self.progress.failed += 1
            else:
                self.progress.audio_s += result.audio.duration_s
            yield result  # a caller that cannot write it says so with `not_written`

    def not_written(self, transcript: Transcript) -> None:
        """Counts a transcript that was made and could not be kept as failed."""
        self.progress.failed += 1
        self.progress.audio_s -= transcript.audio.duration_s

    def _transcribe_window(self, window: list[AudioInfo | Failure]) -> Iterator[Transcript | Failure]:
        pending = _Pending()
        for item in self._split_all(window):
            if isinstance(item, Failure):
                yield item
            else:
                pending.expect(item)
        for utterance, outcome in self._outcomes(pending.utterances):
            parts = pending.add(utterance, outcome)
            if isinstance(parts, Failure):
                yield parts
            elif parts is not None:
                yield self._assemble(utterance.audio, parts)

    def _outcomes(self, utterances: list[Utterance]) -> Iterator[Outcome]:
        """Each utterance with what became of it, batch by batch."""
        loaded = load_batches(
            self._plan(utterances),
            sample_rate=self.config.features.sample_rate,
            channel=self.options.channel,
            threads=self.options.threads,
            ahead=_BATCHES_AHEAD,
        )
        with closing(loaded):
            while True:
                with self.progress.stopwatch.time("wait_for_audio"):
                    item = next(loaded, None)
                if item is None:
                    return
                batch, failures = item
                yield from failures
                if batch is not None:
                    yield from self._recognize(batch)

    def _split_all(self, window: list[AudioInfo | Failure]) -> Iterator[tuple[Utterance, ...] | Failure]:
        """Only recordings that must be cut are read here, in threads; everything else is one utterance as it is."""

        def split_one(item: AudioInfo | Failure) -> tuple[Utterance, ...] | Failure:
            if isinstance(item, Failure):
                return item
            try:
                return split(item, self.options.max_utterance_s, self.options.channel)
            except Exception as error:  # one bad file becomes a Failure and the run goes on
                return to_failure(item, "split", error)

        with self.progress.stopwatch.time("split"), ThreadPoolExecutor(self.options.threads) as pool:
            for item, parts in zip(window, pool.map(split_one, window), strict=True):
                if isinstance(item, AudioInfo):
                    self.progress.planned_s += item.duration_s
                yield parts

    def _plan(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, ...]]:
        return batching.plan(utterances, self._num_frames, self._batch_frames(), self.options.batch_size)

    def _batch_frames(self) -> int | None:
        """The frame budget; None where only the number of rows is limited."""
        asked = self.options.batch_frames
        if isinstance(asked, int):
            return asked
        if asked is None and self.options.batch_size is not None:
            return None
        return _CPU_BATCH_FRAMES if self.recognizer.device.type == "cpu" else _GPU_BATCH_FRAMES

    def _num_frames(self, utterance: Utterance) -> int:
        return self.config.num_frames(utterance.duration_s)

    def _recognize(self, batch: Batch) -> Iterator[Outcome]:
        """A batch that fails is halved and tried again, so that one recording cannot take its neighbours with it."""
        try:
            hypotheses: list[Hypothesis] | None = self._decode(batch)
        except Exception as error:  # see _split_all
            if len(batch.utterances) == 1:
                yield batch.utterances[0], to_failure(batch.utterances[0].audio, "model", error)
                return
            hypotheses = None  # and leave this block: the exception holds on to the failed batch's memory
        if hypotheses is not None:
            yield from zip(batch.utterances, hypotheses, strict=True)
            return
        middle = len(batch.utterances) // 2
        for rows in (slice(None, middle), slice(middle, None)):
            lengths_B = batch.lengths_B[rows]
            yield from self._recognize(
                Batch(batch.utterances[rows], batch.samples_BS[rows, : int(lengths_B.max())], lengths_B)
            )

    def _decode(self, batch: Batch) -> list[Hypothesis]:
        watch, recognizer = self.progress.stopwatch, self.recognizer
        with watch.time("features"):
            features = recognizer.features(batch)
        with watch.time("encode"):
            frames = recognizer.encode(features)
        with watch.time("decode"):
            hypotheses = recognizer.decode(frames)
        lengths = [self._num_frames(utterance) for utterance in batch.utterances]
        self.progress.real_frames += sum(lengths)
        self.progress.padded_frames += len(lengths) * max(lengths)
        return hypotheses

    def _assemble(self, audio: AudioInfo, parts: list[tuple[Utterance, Hypothesis]]) -> Transcript | Failure:
        is_tdt = self.recognizer.decoder == "tdt"
        try:
            with self.progress.stopwatch.time("assemble"):
                return transcript.assemble(audio, parts, self.tokenizer, self.config.frame_s, is_tdt)
        except Exception as error:  # see _split_all
            return to_failure(audio, "assemble", error)


class _Pending:
    """A window's recordings that still wait for utterances. One that fails leaves at once; its other parts are dropped."""

    def __init__(self) -> None:
        self.utterances: list[Utterance] = []
        # By identity: two inputs may be equal, and the utterances above keep every key's object alive.
        self._missing: dict[int, int] = {}
        self._parts: dict[int, list[tuple[Utterance, Hypothesis]]] = {}

    def expect(self, utterances: tuple[Utterance, ...]) -> None:
        self.utterances += utterances
        self._missing[id(utterances[0].audio)] = len(utterances)

    def add(
        self, utterance: Utterance, outcome: Hypothesis | Failure
    ) -> list[tuple[Utterance, Hypothesis]] | Failure | None:
        """All parts when this was the last one missing, the Failure when it is the file's first, else None."""
        key = id(utterance.audio)
        if key not in self._missing:
            return None
        if isinstance(outcome, Failure):
            del self._missing[key]
            self._parts.pop(key, None)
            return outcome
        self._missing[key] -= 1
        parts = self._parts.setdefault(key, [])
        parts.append((utterance, outcome))
        if self._missing[key] > 0:
            return None
        del self._missing[key]
        return self._parts.pop(key)


def run_stats(transcriber: Transcriber, wall_s: float, price_per_hour: float | None) -> RunStats:
    """The report of the transcriber's last run."""
    import torch

    from fastscribe import __version__

    progress, recognizer = transcriber.progress, transcriber.recognizer
    price = None if price_per_hour is not None else list_price(recognizer.device_name)
    return RunStats(
        files=progress.files,
        failed=progress.failed,
        audio_s=progress.audio_s,
        load_s=transcriber.load_s,
        wall_s=wall_s,
        stage_s=dict(progress.stopwatch.seconds),
        padded_frames=progress.padded_frames,
        real_frames=progress.real_frames,
        peak_bytes=recognizer.peak_bytes(),
        device=recognizer.device_name,
        dtype=recognizer.dtype,
        usd_per_hour=price.usd_per_hour if price else price_per_hour,
        price_source=price.cited if price else "--price-per-hour" if price_per_hour is not None else None,
        versions={"fastscribe": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
