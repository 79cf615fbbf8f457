"""Speeds are of all the audio only, beside a ceiling that is measured first, and no temporary file is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.bench import roofline, speed, synthetic, throughput_passes, work
from fastscribe.bench.throughput import budgets
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.fast_paths import RefusedPath
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.transcriber import Transcriber
from tests.conftest import AUDIO, MODEL
from tests.helpers import random_models
from tests.helpers.benches import run, table
from tests.helpers.processes import fastscribe, with_pipes

CPU = torch.device("cpu")
QUICK = ("--quick", "--passes", 2, "--clips", 4, "--device", "cpu")


def transcriber() -> Transcriber:
    return random_models.transcriber("tiny")


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_COPY_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(roofline, "_MEASURED_S", 0.01)


def recordings(folder: Path, lengths_s: list[float]) -> list[Path]:
    return synthetic.write_files(folder, synthetic.waves(lengths_s, seed=8), "flac", 1)


def subject() -> speed.Subject:
    return speed.Subject("tiny", Path("unused"), CPU, lambda line: None)


def measurement(folder: Path, *lengths_s: float) -> speed.Measurement:
    """Begin to measure recordings of these lengths in a folder; `folder / "out"` is for what is measured."""
    recordings(folder / "audio", list(lengths_s))
    (folder / "out").mkdir()
    return speed.Measurement.of(transcriber(), subject(), speed.Recordings((str(folder / "audio"),)))


CEILING = roofline.Roofline(1.0, 1.0, 1.0, 1.0)


# --- what is measured -------------------------------------------------------------------------------------------------


def test_batches_read_from_files_are_those_of_a_run(tmp_path: Path) -> None:
    recordings(tmp_path, [1.0, 3.0, 2.0, 0.4])
    (tmp_path / "bad.flac").write_bytes(b"no audio")
    batches, failures = throughput_passes.read_batches(transcriber(), [str(tmp_path)])
    assert [failure.path for failure in failures] == [str(tmp_path / "bad.flac")]
    lengths = sorted(int(length) for batch in batches for length in batch.lengths_B)
    assert lengths == [6400, 16000, 32000, 48000]


def test_recordings_are_spread_over_the_inputs(tmp_path: Path) -> None:
    paths = recordings(tmp_path, [1.0, 3.0, 2.0, 1.0, 2.0])
    taken = throughput_passes.spread_over([str(tmp_path)], 2)
    assert [one.path for one in taken] == [str(paths[0]), str(paths[3])]
    assert [len(throughput_passes.spread_over([str(tmp_path)], count)) for count in (1, 3, 5, 9)] == [1, 3, 5, 5]
    batches, _ = throughput_passes.read_batches(transcriber(), taken)
    assert sorted(one.audio.path for batch in batches for one in batch.utterances) == [one.path for one in taken]
    row = throughput_passes.from_files(transcriber(), taken, tmp_path / "out", passes=1)
    assert (row["files"], row["failed"], row["audio_s"]) == (2, 0, pytest.approx(2.0))


def test_rows_cover_all_audio_for_each_budget(tmp_path: Path) -> None:
    found = measurement(tmp_path, 1.0, 2.0, 1.5, 0.5)
    assert found.audio_s == pytest.approx(5.0) and len(found.lengths_s) == 4
    ceilings = [roofline.Roofline(tflop_per_s, 10.0, 0.0146, 0.7) for tflop_per_s in (0.1, 0.01)]
    auto, small = found.rows(list(zip(("auto", 13), ceilings, strict=True)), 2, tmp_path / "out")
    assert (auto["batch_frames"], auto["budget_frames"]) == ("auto", 3200)
    assert (small["batch_frames"], small["budget_frames"]) == (13, 13)
    assert auto["batches"] == 1 and small["batches"] == 4
    for row, ceiling in zip((auto, small), ceilings, strict=True):
        assert row["audio_s"] == pytest.approx(5.0) and row["files"] == 4 and row["failed"] == 0
        assert len(row["rtfx_runs"]) == len(row["memory_rtfx_runs"]) == 2
        # Audio over the median time is the harmonic middle of the runs.
        assert min(row["rtfx_runs"]) <= row["rtfx"] <= max(row["rtfx_runs"])
        assert row["ceiling_rtfx"] == ceiling.ceiling_rtfx
        assert row["ceiling_reached_share"] == pytest.approx(row["memory_rtfx"] / ceiling.ceiling_rtfx)
        stages = [row[f"{name}_share"] for name in ("copy", "features", "encode", "decode", "text")]
        assert 0.1 < sum(stages) <= 1.0001
        assert row["peak_bytes"] > 10e6
    assert small["padding_share"] == 0.0 and auto["padding_share"] > 0.1
    assert not list((tmp_path / "out").iterdir())


def test_out_of_memory_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would continue with smaller batches, but their speed is no measurement of the larger ones."""
    real = Recognizer.upload

    def upload(self: Recognizer, batch):
        if len(batch.utterances) > 1:
            raise torch.OutOfMemoryError("no room")
        return real(self, batch)

    monkeypatch.setattr(Recognizer, "upload", upload)
    found = measurement(tmp_path, 1.0, 1.0, 1.0)
    large, small = found.rows([(1000, CEILING), (13, CEILING)], 1, tmp_path / "out")
    assert "do not fit" in large["error"] and "rtfx" not in large
    assert small["rtfx"] > 0


def test_another_error_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measurement(tmp_path, 1.0)
    monkeypatch.setattr(Recognizer, "upload", lambda self, batch: [][1])
    with pytest.raises(IndexError):
        list(found.rows([(100, CEILING)], 1, tmp_path / "out"))


def test_no_audio_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.flac").write_bytes(b"no audio")
    for given_inputs, what in (((str(tmp_path),), "bad.flac"), ((str(tmp_path / "none.wav"),), "none.wav")):
        with pytest.raises(UsageError, match=what):
            speed.Measurement.of(transcriber(), subject(), speed.Recordings(given_inputs))


def test_each_budget_has_its_own_ceiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller batches read the weights more often and multiply smaller matrices."""
    rows_measured: list[int] = []
    monkeypatch.setattr(roofline, "matrix_rate", lambda encoder, device, dtype, rows: rows_measured.append(rows) or 0.1)
    found = measurement(tmp_path, 1.0, 2.0, 1.5, 0.5)
    auto, small = (found.ceiling(batch_frames, 10.0) for batch_frames in ("auto", 13))
    frames = [7, 13, 19, 25]  # four batches of a recording each, or one of all
    assert rows_measured == [sum(frames), round(sum(count**2 for count in frames) / sum(frames))]
    assert auto.gflop_per_audio_s == small.gflop_per_audio_s
    weights_mb = 4e-6 * work.encoder_parameters(transcriber()._config)
    assert small.mb_per_audio_s - auto.mb_per_audio_s == pytest.approx(3 * weights_mb / 5.0)


def test_int8_bytes_follow_the_processors_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "matrix_rate", lambda *given: 0.1)
    one = Transcriber.__new__(Transcriber)
    vars(one).update(vars(transcriber()))
    one._executor = LocalExecutor(replace(one._recognizer, dtype="int8"))
    found = {}
    for native in (True, False):
        monkeypatch.setattr("fastscribe.families.model.has_native_bf16", lambda native=native: native)
        found[native] = speed.find_roofline(one, [2.0], Budget(100), 10.0)
    activations_mb = work.per_audio_s(one._config, [2.0], "int8", 2).mb
    assert found[False].mb_per_audio_s - found[True].mb_per_audio_s == pytest.approx(activations_mb)


AMOUNTS = (8, 32, 128, 512, 2048, 8192)


@given(st.floats(0.1, 1e6), st.floats(1, 1000), st.integers(1, 100))
def test_amount_of_audio_fits_in_the_time(rtfx: float, seconds: float, passes: int) -> None:
    found = speed.amount(rtfx, seconds, passes)
    assert found in AMOUNTS
    taken_s = passes * found * speed.MEAN_S / rtfx
    assert found == min(AMOUNTS) or taken_s < 2.01 * seconds
    assert found == max(AMOUNTS) or taken_s > 0.49 * seconds


def test_a_quick_measurement_of_a_slow_model_takes_two_recordings() -> None:
    assert speed.amount(1.0, 10.0, 8, speed.QUICK_FEWEST) == 2
    assert speed.amount(100.0, 10.0, 8, speed.QUICK_FEWEST) == speed.amount(100.0, 10.0, 8)


def test_copies_are_names_of_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_MAX_RECORDINGS", 3)
    made = speed.make_recordings(tmp_path, 6, rtfx=1.0)
    assert (made.clips, made.copies) == (3, 2)
    once, copies = (sorted(Path(folder).iterdir()) for (folder,) in (made.once, made.inputs))
    assert len(once) == 3 and len(copies) == 6
    assert {path.stat().st_ino for path in once} == {path.stat().st_ino for path in copies}
    for number, rtfx in ((3, 1.0), (6, None)):  # all recordings differ
        alone = speed.make_recordings(tmp_path / f"{number}", number, rtfx)
        assert (alone.clips, alone.copies) == (number, 1) and len(list(Path(alone.inputs[0]).iterdir())) == number


def test_guess_ignores_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass of each size includes two seconds of compilation."""
    counts: list[int] = []

    def stream(one: Transcriber, batches: list):
        counts.append(sum(len(batch.utterances) for batch in batches))
        cold_s = 2.0 if counts.count(counts[-1]) == 1 else 0.0
        return {"audio_s": 10.0 * counts[-1], "wall_s": 0.1 * counts[-1] + cold_s}

    monkeypatch.setattr(throughput_passes, "stream", stream)
    assert speed.guessed_rtfx(transcriber()) == pytest.approx(100.0)
    assert counts == [2, 2, 4, 4, 8, 8, 16, 16]
    counts.clear()
    monkeypatch.setattr(speed, "_MAX_RECORDINGS", 4)
    assert speed.guessed_rtfx(transcriber()) == pytest.approx(100.0)
    assert counts == [2, 2, 4, 4]


@pytest.mark.parametrize(("audio_s", "count", "found"), [(0.5, 2, 1), (3.0, 2, 2), (100.0, 4, 80), (9.0, 1, 9)])
def test_number_of_recordings_with_enough_audio(tmp_path: Path, audio_s: float, count: int, found: int) -> None:
    """A recording that cannot be read counts as one without audio."""
    first, *_ = recordings(tmp_path, [1.0, 2.0, 2.0])
    (tmp_path / "00000a.flac").write_bytes(b"no audio")
    assert sorted(tmp_path.iterdir())[:2] == [first, tmp_path / "00000a.flac"]
    assert throughput_passes.with_audio(transcriber(), [str(tmp_path)], count, audio_s) == found


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process can be reset on Linux alone")
def test_peak_memory_is_that_of_the_run_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audio held in memory for the other speed grows with the amount measured."""
    real = throughput_passes.from_batches
    held: list[int] = []

    def from_batches(*given):
        block = torch.ones(50_000_000)
        held.append(speed.peak(transcriber()))
        del block
        return real(*given)

    monkeypatch.setattr(throughput_passes, "from_batches", from_batches)
    [row] = measurement(tmp_path, 1.0).rows([(100, CEILING)], 1, tmp_path / "out")
    assert row["peak_bytes"] < held[0] - 100_000_000


# --- the command ------------------------------------------------------------------------------------------------------


def test_command_without_recordings(capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few_bytes: None) -> None:
    model = random_models.folder("tiny", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(synthetic, "_MEAN_S", 4.0)
    load, loaded = Transcriber.load, list[weakref.ref[Transcriber]]()

    def load_alone(*given: Any) -> Transcriber:
        assert all(one() is None for one in loaded), "one model is in memory at a time"
        loaded.append(weakref.ref(made := load(*given)))
        return made

    monkeypatch.setattr(Transcriber, "load", load_alone)
    dtypes = ("--dtype", "fp32", "--dtype", "auto", "--dtype", "bf16")  # auto is fp32 here
    arguments = ("--batch-frames", "auto,100", *dtypes, "--price-per-hour", "2")
    found, said = run(capsys, "--model", model, *arguments, *QUICK, "--json", tmp_path / "out.json")
    assert found == json.loads((tmp_path / "out.json").read_text())
    assert found["benchmark"] == "throughput" and found["audio"] == "synthetic"
    cases = [(row["model"], row["dtype"], row["batch_frames"]) for row in found["rows"]]
    assert cases == [("tiny", dtype, frames) for dtype in ("fp32", "bf16") for frames in ("auto", 100)]
    assert [(one["dtype"], one["batch_frames"]) for one in found["ceilings"]] == [case[1:] for case in cases]
    assert [row["ceiling_rtfx"] for row in found["rows"]] == [one["ceiling_rtfx"] for one in found["ceilings"]]
    assert (found["clips"], found["copies"], found["refused"]) == (4, 1, {})
    for row in found["rows"]:
        assert row["files"] == 4 and row["audio_s"] == pytest.approx(4 * 4.0, rel=0.01)
        assert row["usd_per_1000_audio_hours"] == pytest.approx(2000 / row["rtfx"])
        assert (row["usd_per_hour"], row["price_source"]) == (2.0, "--price-per-hour")
        assert row["padding_share"] < 0.9 and 1 < row["labels_per_audio_s"] < 8
    lines = said.splitlines()
    first_row = next(number for number, line in enumerate(lines) if line.startswith("fp32 "))
    assert "so at best" in "\n".join(lines[:first_row]), "the ceiling comes before the measurement"
    assert [line[1] for line in table(said, "dtype")[:2]] == ["auto=3200", "100"]
    assert not list((tmp_path / "temporary").iterdir())


def test_users_recordings_and_trained_model(capsys, few_bytes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fast path that is refused."""
    build = Recognizer.build

    def refuse(checkpoint: Any, device: str, dtype: str, options: Any, say: Any) -> Recognizer:
        say(RefusedPath("triton", "no compiler", "Triton is unavailable"))
        return build(checkpoint, device, dtype, options, say)

    monkeypatch.setattr(Recognizer, "build", refuse)
    paths = sorted(AUDIO.glob("0[1-3]*.flac"))
    assert len(paths) == 3
    found, said = run(capsys, *paths, "--model", MODEL, *QUICK[:-4], "--device", "cpu", "--clips", "2")
    assert found["refused"] == {"triton": "no compiler"}
    assert said.splitlines()[-1] == "fastscribe: without triton: no compiler"
    [row] = found["rows"]
    assert (row["files"], row["failed"], row["batch_frames"]) == (2, 0, "auto")
    assert found["audio"] == "given" and found["model"] == "tdt_demo"
    assert row["usd_per_hour"] is None or row["price_source"]
    assert "beam" not in found


def test_budgets_that_make_the_same_batches_are_named(capsys, tmp_path: Path, few_bytes: None) -> None:
    recordings(tmp_path / "audio", [1.0, 2.0])
    budgets = ("--batch-frames", "2000,8000,13", "--passes", "1", "--clips", "2", "--device", "cpu")
    found, said = run(capsys, tmp_path / "audio", "--model", MODEL, "--dtype", "fp32", *budgets)
    [line] = [one for one in found["doubts"] if "same batches" in one]
    assert line.startswith("fp32: budgets of 2000, 8000 frames make the same batches") and line in said


def test_a_beam_of_the_model_is_reported(capsys, few_bytes: None) -> None:
    """One of an option too: tests/bench/test_latency.py."""
    [path] = AUDIO.glob("01*.flac")
    found, _ = run(capsys, path, "--quick", "--passes", "1", "--clips", "1", "--device", "cpu")
    assert found["beam"] == 24 and len(found["rows"]) == 1


def test_default_budgets() -> None:
    assert budgets(None, quick=True) == ("auto",) and budgets(None, quick=False) is None
    assert budgets("200, auto,200", quick=False) == (200, "auto")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--batch-frames", "0"), "--batch-frames 0: not numbers"),
        (("--batch-frames", "many"), "--batch-frames many: not numbers"),
        (("--dtype", "fp64"), "fp64"),
        (("--device", "tpu"), "tpu"),
        (("--device", "cpu", "--dtype", "fp8"), "fp8"),
        (("--json", "no/folder/x.json"), "no/folder"),
        (("--model", "nowhere.nemo"), "nowhere"),
        (("--price-per-hour", "-1"), "-1|greater than or equal to 0"),
    ],
)
def test_wrong_usage(capsys, arguments: tuple[str, ...], what: str) -> None:
    with pytest.raises((UsageError, CheckpointError, typer.BadParameter), match=what):
        run(capsys, *arguments)


def test_model_too_large_is_one_line(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(Transcriber, "load", load)
    with pytest.raises(UsageError, match="fp32 does not fit"):
        run(capsys, "--model", MODEL, "--dtype", "fp32", "--device", "cpu")


@pytest.mark.posix
def test_exit_codes_and_ctrl_c(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    wrong = fastscribe("bench", "-m", "nowhere.nemo", env=environment)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    given_model = ("bench", "-m", MODEL, "--device", "cpu", "--clips", "8", "--passes", "100")
    with with_pipes(*given_model, env=environment) as (process, _, stdout, stderr):
        assert any("so at best" in line for line in stderr)  # what it does next is measure
        process.send_signal(signal.SIGINT)
        said = stderr.read()
        assert process.wait(60) == 130, said
        assert stdout.read() == "" and "interrupted" in said and "Traceback" not in said
    assert not list((tmp_path / "temporary").iterdir())


def test_number_of_recordings_is_limited_by_time(
    capsys, tmp_path: Path, few_bytes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings(tmp_path / "audio", [1.0] * 5)
    monkeypatch.setattr(speed, "guessed_rtfx", lambda one: 10.0)
    monkeypatch.setattr(speed, "MEAN_S", 0.4)
    monkeypatch.setattr(speed, "amount", lambda rtfx, seconds, passes, fewest: 8)
    arguments = ("--model", MODEL, "--quick", "--passes", "1", "--device", "cpu")
    found, said = run(capsys, tmp_path / "audio", *arguments)
    assert found["rows"][0]["files"] == found["clips"] == 4
    assert "4 of these recordings are taken, spread over all" in said and "--clips" in said
    assert "4 passes over that, warm-ups included, take about 2 s" in said  # 4 s of audio at 10 times
    found, said = run(capsys, tmp_path / "audio", *arguments, "--clips", "5")
    assert found["rows"][0]["files"] == 5 and "are taken" not in said


@pytest.mark.parametrize("more", [(), ("--clips", "3")])
def test_recordings_that_stdin_names_are_listed_once(
    capsys, tmp_path: Path, few_bytes: None, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    paths = recordings(tmp_path / "audio", [1.0] * 5)
    (tmp_path / "list").write_text("".join(f"{path}\n" for path in paths))
    monkeypatch.setattr(speed, "guessed_rtfx", lambda one: 100.0)
    with open(tmp_path / "list") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        found, _ = run(capsys, "-", "--model", MODEL, "--quick", "--passes", "1", "--device", "cpu", *more)
    [row] = found["rows"]
    assert (row["files"], row["failed"]) == (3 if more else 5, 0)


def test_failed_recordings_are_reported_and_skipped(
    capsys, tmp_path: Path, few_bytes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings(tmp_path / "audio", [1.0, 2.0])
    (tmp_path / "audio" / "bad.flac").write_bytes(b"no audio")
    monkeypatch.setattr(speed, "guessed_rtfx", lambda one: 100.0)
    found, said = run(capsys, tmp_path / "audio", "--model", MODEL, "--quick", "--passes", "1", "--device", "cpu")
    [row] = found["rows"]
    assert (row["files"], row["failed"], row["audio_s"]) == (3, 1, pytest.approx(3.0))
    assert "bad.flac: left out" in said
