"""Runs with failures in the middle, and the order of results."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import fastscribe
from fastscribe import Aligner, Audio, Failure, Ledger, Options, SubtitleStyle, Transcriber, Transcript, UsageError
from fastscribe.config import OutputStyle
from fastscribe.errors import ModelClosed, OptionError
from fastscribe.pipeline import prefetch, thread_pool, windows
from fastscribe.pipeline.batching import Budget
from fastscribe.results.formats.writers import rendered
from fastscribe.types import AudioInfo, Batch, Phrase, RenderedTranscript, Source, Utterance
from tests.conftest import AUDIO, MODEL, torch_threads

FILES = sorted(AUDIO.glob("0*.flac"))


@pytest.fixture
def transcriber() -> Transcriber:
    return Transcriber.load(MODEL, device="cpu", dtype="fp32")


def texts(results: list[Transcript | Failure]) -> dict[str, str]:
    return {r.path if isinstance(r, Failure) else r.audio.path: getattr(r, "text", "failed") for r in results}


@cache
def reference() -> dict[str, str]:
    """The texts of FILES, which no test may change."""
    with Transcriber.load(MODEL, device="cpu", dtype="fp32") as transcriber:
        return texts(list(transcriber.transcribe(FILES)))


def with_options(transcriber: Transcriber, **options) -> Transcriber:
    transcriber._options = Options(**options)
    return transcriber


def before(monkeypatch: pytest.MonkeyPatch, name: str, look: Callable[[Any], None]) -> None:
    """Call `look` before each call of a function of fastscribe.pipeline, with the batch, source or recording it is about."""
    original = resolve_name(f"fastscribe.pipeline.{name}")

    def looked_at(*arguments: Any) -> Any:
        about = next(one for one in arguments if isinstance(one, (Batch, Source, AudioInfo, Utterance)))
        look(about.audio if isinstance(about, Utterance) else about)
        return original(*arguments)

    monkeypatch.setattr(f"fastscribe.pipeline.{name}", looked_at)


def decoded_lengths(transcriber: Transcriber) -> list[float]:
    """Return a list that the utterances' lengths in seconds come to as they are decoded."""
    lengths_s: list[float] = []
    transcriber.watcher = lambda batch: lengths_s.extend(utterance.duration_s for utterance in batch)
    return lengths_s


def test_results_do_not_depend_on_windows_or_batches(transcriber: Transcriber) -> None:
    assert len(reference()) == len(FILES)
    expected = {str(path): reference()[str(path)] for path in FILES[:6]}
    for options in ({"window": 1}, {"window": 2, "batch_size": 3}, {"batch_frames": 1}, {"threads": 1}):
        assert texts(list(with_options(transcriber, **options).transcribe(FILES[:6]))) == expected


def test_transcripts_leave_before_the_last_input(transcriber: Transcriber) -> None:
    """A window closes after a limit of audio, so a transcript leaves before later files are probed."""
    transcriber = with_options(transcriber, batch_size=1, max_utterance_s=4)
    looked_at: list[Path] = []

    def inputs():
        for _ in range(20):
            for path in FILES:
                looked_at.append(path)
                yield path

    results = transcriber.transcribe(inputs())
    next(results)
    results.close()
    assert 0 < len(looked_at) < 20 * len(FILES)


def test_long_recordings_are_finished_in_turn(transcriber: Transcriber, monkeypatch) -> None:
    """Sixteen batches' worth of long recordings are sorted together; the next ones follow. Clips do not count."""
    monkeypatch.setattr(windows, "_MAX_WAIT_S", 60.0)  # a busy machine is a slow source
    clips, long = FILES[:6], AUDIO / "e10_concat_45s.flac"
    inputs = [*clips[:3], long, long, *clips[3:], long, long]
    transcriber = with_options(transcriber, batch_frames=60, max_utterance_s=5)
    order: list[int] = []
    transcriber.watcher = lambda batch: order.extend(one.audio.index for one in batch)
    results = {result.index: result.text for result in transcriber.transcribe(inputs)}
    assert len(results) == len(inputs) and results[3] == results[9]
    early, late = set(range(5)), set(range(5, 10))
    assert set(order) == early | late and len(order) > len(inputs)
    last_early = max(place for place, index in enumerate(order) if index in early)
    first_late = min(place for place, index in enumerate(order) if index in late)
    assert last_early < first_late


def test_failed_batch_is_halved_until_one_row_fails(transcriber: Transcriber, monkeypatch) -> None:
    poison = str(FILES[3])
    rows: list[int] = []

    def look(batch: Batch) -> None:
        rows.append(len(batch.utterances))
        if any(utterance.audio.path == poison for utterance in batch.utterances):
            raise RuntimeError("damaged\nwith a long story")

    before(monkeypatch, "engine.Engine._encode", look)
    with torch_threads(1):  # one part
        results = list(with_options(transcriber, batch_size=100).transcribe(FILES))
    assert rows[0] == len(FILES)
    assert texts(results) == reference() | {poison: "failed"}
    [failure] = [result for result in results if isinstance(result, Failure)]
    assert (failure.stage, failure.error_type) == ("model", "RuntimeError")
    assert "\n" not in failure.message
    assert transcriber.progress.failed == 1


def test_failed_part_fails_its_recording_once(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    long = tmp_path / "long.wav"
    soundfile.write(long, 0.1 * np.random.default_rng(0).standard_normal(16000 * 20), 16000)
    fails = iter([False, True, True])

    def look(batch: Batch) -> None:
        if batch.utterances[0].audio.path == str(long) and next(fails, False):
            raise RuntimeError("no")

    before(monkeypatch, "engine.Engine._encode", look)
    results = list(with_options(transcriber, max_utterance_s=4, batch_size=1).transcribe([long, FILES[0]]))
    assert sorted(type(result).__name__ for result in results) == ["Failure", "Transcript"]


def test_padding_and_audio_are_counted(transcriber: Transcriber) -> None:
    results = list(transcriber.transcribe([*FILES, "nowhere.wav"]))
    progress = transcriber.progress
    assert progress.files == len(results) == len(FILES) + 1
    assert progress.failed == 1
    assert progress.audio_s == pytest.approx(sum(r.audio.duration_s for r in results if isinstance(r, Transcript)))
    assert 0 < progress.real_frames <= progress.padded_frames


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"threads": -1},
        {"batch_size": 0},
        {"batch_frames": -1},
        {"batch_frames": "many"},
        {"channel": -1},
        {"channel": "left"},
        {"channel": True},
        {"decoder": "beam"},
        {"pnc": "no"},
        {"max_utterance_s": -1.0},
        {"max_utterance_s": 0.01},
        {"beam": 1025},
        {"beam": 2.0},
        {"batch_size": 100_000},
        {"threads": 99_999},
        {"max_utterance_s": float("nan")},
    ],
    ids=str,
)
def test_options_are_checked(options: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Options(**options)


class PathOf:
    def __init__(self, path: str | bytes) -> None:
        self.path = path

    def __fspath__(self) -> str | bytes:
        return self.path


ODD = (Path("a"), PathOf("/a"), PathOf(b"/a"), b"a", "", 1, 1.5, True, [], ["a"], ("a",), (None,), [1], {"a"}, {"a": 1})
ODD += (
    {"chunk_len": np.int64(340)},
    [("fifo_len", 1.0)],
    [(["chunk_len"], 3)],
    (("chunk_len", "3"),),
    np.int64(3),
    np.float32(3),
    np.zeros((99, 99)),
    "3",
    10**400,
    object(),
)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, field.name) for kind in (Options, SubtitleStyle) for field in dataclasses.fields(kind)]
)
def test_options_of_any_type(kind: type[Options | SubtitleStyle], name: str) -> None:
    """A value is refused in one line, or becomes one of the types that the field states, which can be compared and hashed."""
    needs: dict[str, dict[str, Any]] = {"voices": {"rttm": "r"}}
    needs |= {"speaker_names": {"speakers": "channels"}, "speaker_streaming": {"speakers": "model.nemo"}}
    for value in ODD:
        refused, options = "", kind()
        try:
            options = kind(**{name: value}, **needs.get(name, {}))
        except OptionError as error:
            refused = str(error)
        assert "\n" not in refused and len(refused) < 400
        if refused:
            continue
        kept = getattr(options, name)
        assert type(kept) in (str, int, float, bool, tuple), (value, kept)
        assert type(kept) is not tuple or all(type(one) in (str, Phrase, tuple) for one in kept), (value, kept)
        hash(options)


def test_what_would_be_lost_is_refused() -> None:
    """Weights of a dict, a path that is empty; formats of an iterator are kept."""
    with pytest.raises(OptionError, match="not a tuple of phrases"):
        Options(boost={"koń": 2.0})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="an empty path"):
        Options(lm=b"")  # type: ignore[arg-type]
    assert OutputStyle(iter(["srt", "vtt"])).formats == ("srt", "vtt")  # type: ignore[arg-type]
    for formats in ("srt", None, ["doc"], [["srt"]]):
        with pytest.raises(OptionError, match="formats"):
            OutputStyle(formats)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("tokens", "no"), ("subtitles", {"max_line_width": 30}), ("speaker_names", ("Ann", "Bob"))]
)
def test_a_style_of_other_types_is_refused(transcriber: Transcriber, name: str, value: object) -> None:
    """Before a recording is read."""
    with pytest.raises(OptionError, match=f"^{name} "):
        OutputStyle(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"^style .*not a fastscribe.OutputStyle"):
        next(transcriber.results(FILES[0], style=value))  # type: ignore[arg-type]


def test_a_ledger_of_another_type_is_refused(transcriber: Transcriber) -> None:
    with pytest.raises(OptionError, match=r"^ledger .*not a fastscribe.Ledger"):
        next(transcriber.results(FILES[0], ledger=set()))  # type: ignore[call-overload]


def test_a_closed_transcriber_cannot_be_used_any_more() -> None:
    with Transcriber.load(MODEL, "cpu") as transcriber:
        assert len(list(transcriber.transcribe(FILES[0]))) == 1
    with pytest.raises(UsageError, match=r"^this model is closed: load it again$"):
        next(transcriber.transcribe(FILES[0]))


@pytest.mark.parametrize("waits", ["for a batch", "for an input"])
def test_close_from_another_thread_ends_a_run(transcriber: Transcriber, monkeypatch, waits: str) -> None:
    """A run whose next batch is not read yet, and one whose iterator of inputs has no other."""
    waiting, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        waiting.set()
        go_on.wait(60)

    def inputs():
        yield FILES[0]
        if waits == "for an input":
            hang()
        yield from FILES[1:]

    if waits == "for a batch":
        before(monkeypatch, "batch_layout.read_into", lambda path, *_: hang())

    def run() -> None:
        try:
            list(transcriber.transcribe(inputs()))
        except ModelClosed as error:
            ended.append(str(error))

    ended: list[str] = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert waiting.wait(30)
        transcriber.close()
        thread.join(30)
        assert ended == ["this model is closed: load it again"]
    finally:
        go_on.set()


def test_paths_in_options_are_no_names_of_the_hub() -> None:
    for name in ("lm", "align_with", "speakers", "rttm"):
        assert getattr(Options(**{name: Path("organisation/name")}), name) == os.path.abspath("organisation/name")
        assert getattr(Options(**{name: "organisation/name"}), name) == "organisation/name"
    with pytest.raises(UsageError, match=r"--lm .*nowhere.arpa: No such file"):
        Transcriber.load(MODEL, "cpu", options=Options(lm=Path("nowhere.arpa")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, one.name) for kind in (Options, SubtitleStyle) for one in fields(kind)]
)
def test_every_number_of_the_options_has_limits(kind: type, name: str) -> None:
    """Also one that is not whole. Fields of other kinds refuse a number."""
    for value in (-1_000_000, float("nan"), float("inf"), -float("inf")):
        with pytest.raises(UsageError):
            kind(**{name: value})


def test_numbers_of_numpy_are_numbers(transcriber: Transcriber) -> None:
    """Also small ones, a thousand times which would be beyond their type."""
    assert Options(max_utterance_s=30) == Options(max_utterance_s=np.float32(30))  # type: ignore[arg-type]
    style = SubtitleStyle(max_line_width=np.uint8(30), max_cue_s=np.float16(3))  # type: ignore[arg-type]
    assert style == SubtitleStyle(max_line_width=30, max_cue_s=3.0)
    part = Audio(FILES[0], offset_s=np.int8(1), duration_s=np.float16(0.5), track=np.int64(0))  # type: ignore[arg-type]
    [result] = transcriber.transcribe(part)
    assert isinstance(result, Transcript) and result.audio.duration_s == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": None}, "model None: not a model"),
        ({"model": ["a"]}, "model .*: not a model"),
        ({"device": 0}, "device 0: not a str"),
        ({"devices": [0]}, "devices .0.: not a str"),
        ({"dtype": torch.bfloat16}, "dtype torch.bfloat16: not a str"),
        ({"options": {"beam": 2}}, "options {'beam': 2}: not a fastscribe.Options"),
        ({"say": "x"}, "say 'x': not a function that takes a line"),
    ],
    ids=str,
)
def test_what_a_model_is_loaded_with(given: dict[str, Any], message: str) -> None:
    loaders = (Transcriber.load, Aligner.load, partial(fastscribe.transcribe, FILES[0]))
    [name] = given
    for load in loaders[: {"devices": 1, "say": 2}.get(name, 3)]:
        with pytest.raises(UsageError, match=message):
            load(**given)


def test_auto_budget_is_the_devices_but_for_the_rows(transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = with_options(transcriber)._budget()
    assert auto.frames < math.inf == auto.max_rows
    device = Budget(400, quadratic_at_frames=900, overhead_frames_per_row=3, max_padding=0.5, max_rows=64)
    monkeypatch.setattr(transcriber._engine, "choose_budget", lambda: device)
    for batch_size, batch_frames, expected in (
        (8, None, Budget(math.inf, max_rows=8)),
        (8, 400, Budget(400, max_rows=8)),
        (None, "auto", device),
        (100, "auto", device),
        (8, "auto", replace(device, max_rows=8)),
    ):
        transcriber._auto_budget = None  # which is of a run without these options
        assert with_options(transcriber, batch_size=batch_size, batch_frames=batch_frames)._budget() == expected


def test_shrunk_budget_lasts_for_later_runs(transcriber: Transcriber, monkeypatch) -> None:
    def look(batch: Batch) -> None:
        if len(batch.utterances) > 2:
            raise torch.OutOfMemoryError("no")

    before(monkeypatch, "engine.Engine._encode", look)
    assert texts(list(transcriber.transcribe(FILES))) == reference()
    budget = transcriber._budget()
    assert budget.frames < 1600
    frames = budget.frames
    assert texts(list(transcriber.transcribe(FILES))) == reference()
    assert budget.frames <= frames


def manifest(path: Path, rows: Iterable[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def index_of(result: Transcript | Failure) -> int:
    return result.index if isinstance(result, Failure) else result.audio.index


def timed(result: Transcript) -> list[tuple[str, float, float]]:
    return [(word.text, word.start_s, word.end_s) for word in result.words]


def summarize(results: Iterable[Transcript | Failure]) -> dict[int, tuple]:
    """Return the result of each input by its index."""
    return {
        index_of(result): (result.id, result.stage, result.error_type, result.message)
        if isinstance(result, Failure)
        else (result.audio.id, result.text, result.audio.duration_s, result.audio.start, timed(result))
        for result in results
    }


def test_rows_with_duration_are_not_probed_early(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    """Right durations, too long ones, cuts and missing files; only recordings too long for one utterance are probed early."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.wav").write_text("hello")
    files = FILES[:4]
    rows = [{"audio_filepath": str(path), "offset": offset_s} for path in files for offset_s in (0, 0.25)]
    rows += [{"audio_filepath": "gone.wav"}, {"audio_filepath": "text.wav"}]
    rows += [{"audio_filepath": str(FILES[0]), "offset": 1000}]
    lengths_s = [soundfile.info(row["audio_filepath"]).duration if index < 2 * len(files) else 1.0
                 for index, row in enumerate(rows)]  # fmt: skip
    for_once: list[Source] = []
    before(monkeypatch, "preparation.probe", for_once.append)
    with_options(transcriber, batch_size=4)
    reference = summarize(transcriber.transcribe(manifest(tmp_path / "plain.jsonl", rows)))
    assert len(for_once) == len(reference) == len(rows) and transcriber.progress.failed == 3
    for longer_s in (0.0, 3.0):
        timed = [{**row, "duration": length_s + longer_s} for row, length_s in zip(rows, lengths_s, strict=True)]
        for_once.clear()
        assert summarize(transcriber.transcribe(manifest(tmp_path / "timed.jsonl", timed))) == reference
        assert for_once == []
    with_options(transcriber, max_utterance_s=1.0)
    list(transcriber.transcribe(manifest(tmp_path / "timed.jsonl", timed)))
    assert len(for_once) == len(rows)


def test_report_counts_real_durations(transcriber: Transcriber, tmp_path: Path) -> None:
    rows = [{"audio_filepath": str(FILES[0]), "duration": 30}]
    [result] = transcriber.transcribe(manifest(tmp_path / "a.jsonl", rows))
    length_s = soundfile.info(FILES[0]).duration
    assert result.audio.duration_s == transcriber.progress.audio_s == length_s
    assert transcriber.progress.real_frames == transcriber._config.num_frames(length_s)


class EveryOtherInput(Ledger):
    """A ledger that selects every second input; each sixth is done."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[int] = []
        self.expecting: set[str] = set()
        self.requests: list[int] = []

    def expect(self, source: Source | Failure) -> bool:
        self.expected.append(source.index)
        self.expecting.add(threading.current_thread().name)
        return source.index % 2 == 0

    def is_done(self, source: Source | Failure) -> bool:
        self.requests.append(source.index)
        return source.index % 6 == 0


def test_ledger_selects_inputs(transcriber: Transcriber, monkeypatch) -> None:
    opened: list[int] = []
    before(monkeypatch, "preparation.probe", lambda source: opened.append(source.index))
    inputs = [*FILES[:5], "gone1.wav", "gone2.wav", FILES[0], *FILES[5:9], "gone3.wav", "gone4.wav"]  # one comes twice
    ledger = EveryOtherInput()
    results = list(transcriber.results(inputs, ledger=ledger))
    assert ledger.expected == list(range(13)) and len(ledger.expecting) == 1
    assert sorted(ledger.requests) == [0, 2, 4, 6, 8, 10, 12]
    assert sorted(map(index_of, results)) == [2, 4, 8, 10]
    assert sorted(opened) == [2, 4, 8, 10] and transcriber.progress.skipped == ledger.num_done == 3
    assert (transcriber.progress.files, transcriber.progress.failed) == (4, 0)


def test_a_ledger_gets_each_part_and_each_key_of_a_file(transcriber: Transcriber) -> None:
    """A path that is given twice is one input, but not with another key or another part."""
    inputs = [
        FILES[0],
        FILES[0],
        *(Audio(FILES[0], **one) for one in ({"key": "a"}, {"key": "b"}, {"duration_s": 1.0})),
    ]
    results = list(transcriber.results(inputs, ledger=Ledger()))
    assert sorted(str(result.key) for result in results) == sorted([str(FILES[0])] * 2 + ["a", "b"])
    assert transcriber.progress.repeats.num == 1


@pytest.mark.parametrize("method", ["expect", "skip", "is_done", "settle"])
def test_an_error_of_the_ledger_comes_after_the_results_before_it(transcriber: Transcriber, method: str) -> None:
    class Broken(Ledger):
        def is_done(self, source: Source | Failure) -> bool:
            return source.index == 4

    def refuse(source: Source | Failure) -> bool:
        if source.index == 4:
            raise RuntimeError("the database broke")
        return original(source)

    ledger = Broken()
    original = getattr(ledger, method)
    setattr(ledger, method, refuse)
    results = transcriber.results(FILES[:6], ledger=ledger)
    assert sorted(next(results).index for _ in range(4)) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="the database broke"):
        next(results)


@pytest.mark.parametrize(
    ("where", "stage", "error"),
    [
        ("preparation.probe", "probe", SystemExit(1)),
        ("preparation.Preparation._split", "split", KeyError("odd")),
        ("batch_layout.read_into", "load", MemoryError()),
    ],
)
def test_dead_thread_costs_one_file(transcriber: Transcriber, monkeypatch, error, where, stage) -> None:
    poison, expected = str(FILES[3]), reference()

    def look(audio: Source | AudioInfo) -> None:
        if audio.path == poison:
            raise error

    before(monkeypatch, where, look)
    results = list(with_options(transcriber, threads=1).transcribe(FILES[:5]))
    assert texts(results) == {str(path): expected[str(path)] for path in FILES[:5]} | {poison: "failed"}
    [failure] = [result for result in results if isinstance(result, Failure)]
    assert (failure.stage, failure.error_type, failure.index) == (stage, type(error).__name__, 3)


def test_a_row_that_cannot_be_written_costs_one_file(transcriber: Transcriber, monkeypatch) -> None:
    """As in helpers: a defect in a format ends no run."""

    def poisoned(result: Transcript, style: OutputStyle) -> RenderedTranscript:
        return rendered(result if result.audio.path != str(FILES[2]) else None, style)

    monkeypatch.setattr("fastscribe.pipeline.text_stage.rendered", poisoned)
    results = list(transcriber.results(FILES[:4], style=OutputStyle(("srt",))))
    assert texts(results).keys() == set(map(str, FILES[:4]))
    [failure] = [result for result in results if isinstance(result, Failure)]
    assert (failure.path, failure.stage, failure.error_type) == (str(FILES[2]), "assemble", "AttributeError")
    assert failure.message.startswith("a defect of fastscribe, AttributeError 'NoneType' object has no attribute")
    assert re.search(r" in fastscribe/results/formats/[a-z]+\.py, line \d+$", failure.message)
    assert (transcriber.progress.files, transcriber.progress.failed) == (4, 1)


@pytest.mark.parametrize("where", ["preparation.probe", "batch_layout.read_into"])
def test_hung_files_do_not_delay_the_others(transcriber: Transcriber, monkeypatch, where: str) -> None:
    """More files hang than there are threads, at the beginning; they come at the end, with the same texts."""
    monkeypatch.setattr(thread_pool, "STUCK_S", 0.1)
    monkeypatch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 0.05)
    monkeypatch.setattr(windows, "_MAX_WAIT_S", 0.1)
    hung, released, expected = {str(path) for path in FILES[:3]}, threading.Event(), reference()

    def look(audio: Source | AudioInfo) -> None:
        assert audio.path not in hung or released.wait(20)

    before(monkeypatch, where, look)
    stream = with_options(transcriber, threads=2, batch_size=2).transcribe(FILES)
    first = [next(stream) for _ in range(len(FILES) - 3)]
    assert not hung & set(texts(first))
    released.set()
    assert texts([*first, *stream]) == expected


def test_inputs_that_hang_do_not_hold_up_probed_ones(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    """All threads that may probe hang; recordings probed before them are read, decoded and yielded all the same."""
    monkeypatch.setattr(thread_pool, "STUCK_S", 0.1)
    monkeypatch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(thread_pool, "_MAX_SPARE", 2)
    release, hung = threading.Event(), [tmp_path / f"{number}.flac" for number in range(12)]
    for path in hung:
        path.symlink_to(FILES[0])

    def look(source: Source) -> None:
        assert source.path == str(FILES[0]) or release.wait(60)

    before(monkeypatch, "preparation.probe", look)
    results = with_options(transcriber, threads=2).transcribe([FILES[0], *hung])
    assert next(results).audio.path == str(FILES[0]) and not release.is_set()
    release.set()
    assert len(list(results)) == len(hung)


def test_memory_does_not_grow_with_inputs(transcriber: Transcriber, tmp_path: Path) -> None:
    """Only a few windows' rows of a manifest are alive at once, and the first result needs only the first few."""
    wav = tmp_path / "a.wav"
    soundfile.write(wav, 0.01 * np.random.default_rng(0).standard_normal(1600), 16000)
    rows = ({"audio_filepath": "a.wav", "duration": 0.05, "number": number} for number in range(300))
    path = manifest(tmp_path / "a.jsonl", rows)
    transcriber = with_options(transcriber, window=25, batch_size=25, threads=2)
    most, alive = 0, 0
    for number, _ in enumerate(transcriber.transcribe(path)):
        if number % 125 == 20:
            gc.collect()
            alive = sum(type(item) in (Source, AudioInfo, Utterance) for item in gc.get_objects())
            most = max(most, alive)
    assert number == 299 and 0 < most < 3 * 125


def learn_on(transcriber: Transcriber, trained_s: float | None) -> None:
    """Let the model state that it learnt on utterances of this length."""
    config = replace(transcriber._model.config, trained_utterance_s=trained_s)
    transcriber._model = replace(transcriber._model, config=config)


def test_silence_is_not_decoded(transcriber: Transcriber, tmp_path: Path) -> None:
    """A model that learnt on short utterances gets no long silence. A recording of silence alone has no words."""
    speech = soundfile.read(FILES[0])[0]
    soundfile.write(tmp_path / "a.wav", np.concatenate([np.zeros(20 * 16_000), speech]), 16_000)
    soundfile.write(tmp_path / "b.wav", np.zeros(20 * 16_000), 16_000)
    paths = [tmp_path / "a.wav", tmp_path / "b.wav"]
    learn_on(transcriber, 12.0)
    late, silent = sorted(with_options(transcriber).transcribe(paths), key=lambda result: result.index)
    assert late.words and late.words[0].start_s >= 19.7 and (silent.text, silent.gaps) == ("", ())


def test_a_manifest_with_durations_gives_the_texts_of_its_files(transcriber: Transcriber, tmp_path: Path) -> None:
    """Its rows are not opened to plan them, except for such a model, which gets no silence of 2 s at either end."""
    speech, silence = soundfile.read(FILES[0])[0], np.zeros(4 * 16_000)
    path = tmp_path / "a.wav"
    soundfile.write(path, np.concatenate([silence, speech, silence]), 16_000)
    row = {"audio_filepath": "a.wav", "duration": soundfile.info(path).duration}
    learn_on(transcriber, 20.0)
    lengths_s, rows = decoded_lengths(transcriber), manifest(tmp_path / "rows.jsonl", [row])
    [named], [listed] = (list(with_options(transcriber).transcribe(given)) for given in (path, rows))
    assert named.words == listed.words and named.words[0].start_s >= 3.7
    assert named.row is None and listed.row == row
    assert lengths_s[0] == lengths_s[1] <= len(speech) / 16_000 + 1.0


def test_the_limit_follows_the_model(transcriber: Transcriber, tmp_path: Path) -> None:
    """A model that learnt on short utterances gets short ones, unless the user gives a limit; else nothing changes."""
    speech = [np.pad(soundfile.read(path)[0], (0, 16_000)) for path in FILES[:2]] * 4
    soundfile.write(tmp_path / "long.wav", np.concatenate(speech), 16_000)
    lengths_s = decoded_lengths(transcriber)

    def decoded(trained_s: float | None, **options) -> tuple[str, float]:
        lengths_s.clear()
        learn_on(transcriber, trained_s)
        [result] = with_options(transcriber, **options).transcribe(tmp_path / "long.wav")
        return result.text, max(lengths_s)

    assert decoded(5.0)[1] <= 5.0
    longer = decoded(None, max_utterance_s=12.0)
    assert decoded(5.0, max_utterance_s=12.0) == longer and 5.0 < longer[1] <= 12.0
    assert decoded(None) == decoded(60.0) == decoded(None, max_utterance_s=40.0)
