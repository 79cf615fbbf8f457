"""The Open ASR Leaderboard's protocol (github.com/huggingface/open_asr_leaderboard), with a manifest per dataset.

Files are sorted by length, longest first. Those of the first four batches are transcribed to warm up; then one call
transcribes all files. RTFx is their length divided by the time of that call, from paths to texts, including opening and
decoding of files, without writing. References and texts are normalised alike. The word error rate is all errors over all
words of a dataset; words that one side writes together and the other apart are no error. The composite is the mean of the
datasets' rates, and all audio over all time.

Each dataset gets a file with the board's name and fields and raw texts, which the board's scripts read.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from fastscribe._system.file_kinds import starts_with
from fastscribe.audio.list_sources import read_list
from fastscribe.audio.media import local_path
from fastscribe.audio.probe import probe
from fastscribe.errors import MissingExtra, UsageError
from fastscribe.evaluation.scores import check_installed
from fastscribe.pipeline import batching
from fastscribe.report.files import check_place, write_page
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Source, Utterance

CASE_KEYS = ("dataset", "dtype", "batch_size")
COMPOSITE = "composite"
_WARM_UP_BATCHES = 4
_LEFT_OUT = "ignore time segment in scoring"  # a reference that the board leaves out, as it does empty ones
_CHUNK_KEYS = ("parent_id", "chunk_index")  # of a recording that is given in pieces and scored as a whole
_SAME_LENGTH_S = 0.1
_RESULT_START = re.compile(rb'\{"audio_filepath": .*"time": .*"pred_text": ', re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A file of a dataset."""

    audio_filepath: str  # as its manifest has it
    file: str  # what is opened
    duration_s: float  # the file's own
    text: str  # the reference, raw
    chunk: Mapping[str, Any]  # its _CHUNK_KEYS, or nothing
    utterance: Utterance


@dataclass(frozen=True)
class Score:
    insertions: int
    deletions: int
    substitutions: int
    reference_words: int

    @property
    def wer_share(self) -> float:
        return (self.insertions + self.deletions + self.substitutions) / self.reference_words

    @property
    def wer_percent(self) -> float:
        """Return the rate, rounded as the board rounds it before the mean."""
        return round(100 * self.wer_share, 2)


@dataclass(frozen=True)
class Result:
    """The scores of a dataset."""

    dataset: str
    files: int
    left_out: int  # rows without a reference to score
    failed: int
    audio_s: float  # of those that did not fail
    wall_s: float
    score: Score
    file: str

    @property
    def rtfx(self) -> float:
        return self.audio_s / self.wall_s

    def row(self) -> dict[str, Any]:
        score = self.score
        return {
            "dataset": self.dataset,
            "files": self.files,
            "left_out": self.left_out,
            "failed": self.failed,
            "audio_s": round(self.audio_s, 3),
            "wall_s": round(self.wall_s, 4),
            "rtfx": round(self.rtfx, 2),
            "wer_percent": score.wer_percent,
            "wer_share": round(score.wer_share, 6),
            "insertions": score.insertions,
            "deletions": score.deletions,
            "substitutions": score.substitutions,
            "reference_words": score.reference_words,
            "result_file": self.file,
        }


def check_packages() -> None:
    """Raise UsageError if a package is missing."""
    check_installed("whisper-en", command="scripts.benchmarks.leaderboard")
    if find_spec("kaldialign") is None:
        raise MissingExtra("scripts.benchmarks.leaderboard", "kaldialign", "eval")


def read(manifest: str, normalize: Callable[[str], str]) -> tuple[list[Entry], int]:
    """Return the entries, longest first, and the number of skipped rows. Raise UsageError or AudioError for invalid ones."""
    entries, left_out = [], 0
    for source in read_list(manifest):
        if isinstance(source, Failure):
            raise UsageError(f"{manifest}: {source.path}: {source.message}")
        entry = _entry(manifest, source)
        if normalize(entry.text) in ("", _LEFT_OUT):
            left_out += 1
        else:
            entries.append(entry)
    if not entries:
        raise UsageError(f"{manifest}: no row has a reference to score")
    return sorted(entries, key=lambda entry: -entry.duration_s), left_out


def _entry(manifest: str, source: Source) -> Entry:
    row = source.row or {}
    text = row.get("text")
    if not isinstance(text, str):
        raise UsageError(f"{manifest}: {source.path}: no reference: there is no text")
    whole = probe(Source(source.path, source.file, source.id))
    asked_s = whole.duration_s if source.duration_s is None else source.duration_s
    if source.offset_s or abs(asked_s - whole.duration_s) > _SAME_LENGTH_S:
        raise UsageError(f"{manifest}: {source.path}: a stretch of a file; the board's datasets are whole files")
    chunk = {key: row[key] for key in _CHUNK_KEYS if key in row}
    utterance = Utterance(whole, 0, whole.num_samples)
    return Entry(source.path, os.path.abspath(local_path(source)), whole.duration_s, text, chunk, utterance)


def measure(transcriber: Transcriber, entries: Sequence[Entry]) -> tuple[list[str | None], float]:
    """Return the texts (None: failed) in the order of `entries`, and the seconds of the one call that made them."""
    files = [entry.file for entry in entries]
    for _ in transcriber.transcribe(files[: warm_up_files(transcriber, entries)]):
        pass
    start = perf_counter()
    results = list(transcriber.transcribe(files))
    wall_s = perf_counter() - start
    texts: list[str | None] = [None] * len(files)
    for result in results:
        if not isinstance(result, Failure):
            texts[result.audio.index] = result.text
    return texts, wall_s


def warm_up_files(transcriber: Transcriber, entries: Sequence[Entry]) -> int:
    """Number of files that fill four batches of a run."""
    batch_size = transcriber._options.batch_size
    if batch_size is not None:
        return _WARM_UP_BATCHES * batch_size
    budget = transcriber._recognizer.choose_budget()
    frames = [transcriber._config.num_frames(entry.utterance.duration_s) for entry in entries]
    plans = batching.plan(frames, int, budget, None)
    return sum(len(plan) for plan in islice(plans, _WARM_UP_BATCHES))


def result_rows(entries: Sequence[Entry], texts: Sequence[str | None], wall_s: float) -> list[dict[str, Any]]:
    """Return rows with the board's fields. `time` is the same for all: their share of the call."""
    return [
        {
            "audio_filepath": entry.audio_filepath,
            "duration": entry.duration_s,
            "time": wall_s / len(entries),
            "text": entry.text,
            "pred_text": text or "",
            **entry.chunk,
        }
        for entry, text in zip(entries, texts, strict=True)
    ]


def dataset_id(manifest: str, dataset_path: str) -> str:
    """Return the dataset's id, from the manifest's name: dataset and split.

    >>> dataset_id("manifests/librispeech_test.clean.jsonl", "hf-audio/open-asr-leaderboard")
    'hf-audio-open-asr-leaderboard_librispeech_test.clean'
    """
    return f"{_slug(dataset_path)}_{_slug(Path(manifest).stem)}"


def file_name(model_id: str, dataset: str) -> str:
    """
    >>> file_name("nvidia/parakeet-tdt-0.6b-v3", "hf-audio-open-asr-leaderboard_ami_cleaned_test")
    'MODEL_nvidia-parakeet-tdt-0.6b-v3_DATASET_hf-audio-open-asr-leaderboard_ami_cleaned_test.jsonl'
    """
    return f"MODEL_{_slug(model_id)}_DATASET_{dataset}.jsonl"


def _slug(name: str) -> str:
    return name.replace("/", "-")


def check_file(path: Path) -> None:
    """Make the folder. Raise UsageError if the file could not be written later; an older result may be replaced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output-dir {path.parent}: cannot be made: {error.strerror or error}") from error
    check_place("--output-dir", path, is_result, "result of this command")


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a result file. Raise OutputError."""
    write_page(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), is_result)


def is_result(path: Path) -> bool:
    """Return True if the file is an earlier result of this command, or empty."""
    return starts_with(path, _RESULT_START)


def score(rows: Sequence[Mapping[str, Any]], normalize: Callable[[str], str]) -> Score:
    """Score the rows of a result file."""
    from kaldialign import batch_error_rate

    merged = merge_chunks(rows)
    references, texts = ([tuple(normalize(row[key]).split()) for row in merged] for key in ("text", "pred_text"))
    found = batch_error_rate(references, texts, merge_compounds=True)
    return Score(found["ins"], found["del"], found["sub"], found["ref_len"])


def merge_chunks(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Merge chunks of a recording into one row: their texts in order, and the reference, which all of them have."""
    whole = [row for row in rows if "parent_id" not in row]
    pieces: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if "parent_id" in row:
            pieces[row["parent_id"]].append(row)
    for some in pieces.values():
        in_order = sorted(some, key=lambda row: row.get("chunk_index", 0))
        texts = [row["pred_text"].strip() for row in in_order]
        whole.append({"text": in_order[0]["text"], "pred_text": " ".join(text for text in texts if text)})
    return whole


def result_line(model_id: str, dataset: str, wer_percent: float, rtfx: float) -> str:
    """Return the line that the board's scripts print."""
    return f"{model_id} | {dataset}: WER = {wer_percent:.2f} %, RTFx = {rtfx:.2f}"


def composite(results: Sequence[Result]) -> dict[str, Any]:
    """Return a row beside the datasets': the mean of their rounded rates, and all audio over all time."""
    rate = sum(result.score.wer_percent for result in results) / len(results)
    audio_s, wall_s = (sum(getattr(result, name) for result in results) for name in ("audio_s", "wall_s"))
    return {
        "dataset": COMPOSITE,
        "files": sum(result.files for result in results),
        "failed": sum(result.failed for result in results),
        "audio_s": round(audio_s, 3),
        "wall_s": round(wall_s, 4),
        "rtfx": round(audio_s / wall_s, 2),
        "wer_percent": round(rate, 4),
    }
