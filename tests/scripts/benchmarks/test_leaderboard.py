"""scripts/benchmarks/leaderboard.py follows the Open ASR Leaderboard's protocol, scores and files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from fastscribe.bench.subject import model_name
from fastscribe.checkpoint.location import PACKAGED
from fastscribe.errors import AudioError, UsageError
from fastscribe.evaluation.scores import normalizer
from fastscribe.pipeline import batching
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure
from scripts.benchmarks import leaderboard as command
from scripts.benchmarks import leaderboard_protocol as board
from tests.conftest import AUDIO, MODELS, golden

DEMO = MODELS / "tdt_demo" / "model.nemo"
FILES = ["05_0_00148", "02_0_00025", "03_0_00031"]


def texts() -> dict[str, str]:
    return {Path(name).stem: row["text"] for name, row in golden(MODELS / "tdt_demo")["files"].items()}


def manifest(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def row(name: str, **fields: Any) -> dict[str, Any]:
    return {"audio_filepath": str(AUDIO / f"{name}.flac"), "text": texts()[name], **fields}


# --- scores -----------------------------------------------------------------------------------------------------------


def scored(*pairs: tuple[str, str]) -> board.Score:
    return board.score([{"text": text, "pred_text": found} for text, found in pairs], normalizer("whisper-en"))


@pytest.mark.parametrize(
    ("reference", "found", "insertions", "deletions", "substitutions"),
    [
        ("a white paper", "a whitepaper", 0, 0, 0),
        ("a whitepaper", "a white paper", 0, 0, 0),
        ("the ice cream man can", "the icecream can", 0, 1, 0),
        ("over night flights", "overnight flight", 0, 0, 1),
        ("over night", "over knight", 0, 0, 1),
        ("Mr. Brown won't pay £20!", "mister brown will not pay twenty pounds", 0, 0, 0),
        ("colour", "color um", 0, 0, 0),
        ("one two", "", 0, 1, 0),
    ],
)
def test_compound_spelling_is_no_error(
    reference: str, found: str, insertions: int, deletions: int, substitutions: int
) -> None:
    score = scored((reference, found))
    assert (score.insertions, score.deletions, score.substitutions) == (insertions, deletions, substitutions)


def test_a_rate_is_all_errors_over_all_words() -> None:
    score = scored(("alpha beta gamma", "alpha beta gamma"), ("delta", "omega psi"), ("white paper", "whitepaper"))
    assert (score.reference_words, score.insertions + score.substitutions) == (6, 2)
    assert score.wer_share == pytest.approx(2 / 6) and score.wer_percent == 33.33


def test_chunks_are_scored_as_one_recording() -> None:
    """The word on the cut is split between the pieces, which come in any order."""
    whole = {"text": "we sell whitepaper here", "parent_id": "call"}
    rows = [
        {**whole, "pred_text": " paper here ", "chunk_index": 1},
        {"text": "other", "pred_text": "other"},
        {**whole, "pred_text": "we sell white", "chunk_index": 0},
        {**whole, "pred_text": "  ", "chunk_index": 2},
    ]
    assert {"text": whole["text"], "pred_text": "we sell white paper here"} in board.merge_chunks(rows)
    score = board.score(rows, normalizer("whisper-en"))
    assert (score.reference_words, score.wer_share) == (5, 0.0)


def test_composite_is_the_mean_of_rates() -> None:
    def result(errors: int, words: int, audio_s: float, wall_s: float, failed: int) -> board.Result:
        return board.Result("d", 4, 0, failed, audio_s, wall_s, board.Score(errors, 0, 0, words), "f")

    found = board.composite([result(1, 10, 100.0, 1.0, 2), result(1, 3, 500.0, 2.0, 0)])
    assert found["wer_percent"] == pytest.approx((10.0 + 33.33) / 2) and found["rtfx"] == 200.0
    assert (found["files"], found["failed"], found["audio_s"], found["wall_s"]) == (8, 2, 600.0, 3.0)


# --- names and rows -------------------------------------------------------------------------------------------------------


def test_names_are_the_boards() -> None:
    dataset = board.dataset_id("manifests/librispeech_test.clean.jsonl", "hf-audio/open-asr-leaderboard")
    assert dataset == "hf-audio-open-asr-leaderboard_librispeech_test.clean"
    assert board.file_name("nvidia/parakeet-tdt-0.6b-v3", dataset) == (
        "MODEL_nvidia-parakeet-tdt-0.6b-v3_DATASET_hf-audio-open-asr-leaderboard_librispeech_test.clean.jsonl"
    )
    line = board.result_line("nvidia/x", "ami_test", 9.406, 6098.041)
    assert line == "nvidia/x | ami_test: WER = 9.41 %, RTFx = 6098.04"


def test_model_name_is_the_hubs_or_the_files(tmp_path: Path) -> None:
    (tmp_path / "parakeet.nemo").touch()
    (tmp_path / "folder").mkdir()
    cached = Path("/cache/snapshots/0123abc")
    assert model_name("nvidia/parakeet-tdt-0.6b-v3", cached) == "nvidia/parakeet-tdt-0.6b-v3"
    assert model_name(str(DEMO), DEMO) == "tdt_demo"
    for name in ("parakeet.nemo", "folder"):
        assert model_name(str(tmp_path / name), tmp_path / name) == name.removesuffix(".nemo")
    assert model_name(None, PACKAGED) == model_name("default", PACKAGED) == "fastscribe-default"


def test_rows_are_sorted_and_need_a_reference(tmp_path: Path) -> None:
    rows = [row("02_0_00025"), row("03_0_00031", duration=6.47)]
    rows += [row("01_0_00010", text=""), row("01_0_00010", text="[noise]"), row("01_0_00010", text="Um, uh.")]
    rows += [row("01_0_00010", text="Ignore time segment in scoring.")]
    entries, left_out = board.read(manifest(tmp_path / "d.jsonl", rows), normalizer("whisper-en"))
    assert [Path(entry.file).stem for entry in entries] == ["03_0_00031", "02_0_00025"]
    assert left_out == 4
    assert entries[0].duration_s == pytest.approx(6.4742, abs=1e-4)  # the file's own


@pytest.mark.parametrize(
    ("fields", "error", "problem"),
    [
        ({"offset": 1.0}, UsageError, "a stretch of a file"),
        ({"duration": 2.0}, UsageError, "a stretch of a file"),
        ({"text": None}, UsageError, "no reference"),
        ({"text": "um"}, UsageError, "no row has a reference"),
        ({"audio_filepath": "none.wav"}, AudioError, "no such file"),
        ({"audio_filepath": 3}, UsageError, "no audio_filepath"),
    ],
)
def test_invalid_dataset_manifest(tmp_path: Path, fields: dict[str, Any], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        board.read(manifest(tmp_path / "d.jsonl", [row("01_0_00010") | fields]), normalizer("whisper-en"))


# --- the timed call ---------------------------------------------------------------------------------------------------------


class FakeTranscriber:
    """Returns results in another order and fails the second file."""

    def __init__(self, batch_size: int) -> None:
        self._options = SimpleNamespace(batch_size=batch_size)
        self.calls: list[list[str]] = []

    def transcribe(self, files: Sequence[str]) -> Iterator[Any]:
        self.calls.append(list(files))
        for index in reversed(range(len(files))):
            if index == 1:
                yield Failure(files[1], "id", "load", "AudioError", "damaged", None, 1)
            else:
                yield SimpleNamespace(audio=SimpleNamespace(index=index), text=f"text {index}")


def entry(number: int) -> board.Entry:
    return board.Entry(f"{number}.wav", f"/{number}.wav", 10.0 - number, f"ref {number}", {}, None)  # type: ignore[arg-type]


def test_warm_up_does_not_count() -> None:
    entries, transcriber = [entry(number) for number in range(11)], FakeTranscriber(2)
    found, wall_s = board.measure(transcriber, entries)  # type: ignore[arg-type]
    files = [one.file for one in entries]
    assert transcriber.calls == [files[:8], files]
    assert found == ["text 0", None, *(f"text {index}" for index in range(2, 11))]
    rows = board.result_rows(entries, found, 22.0)
    assert [one["time"] for one in rows] == [2.0] * 11 and wall_s > 0
    assert list(rows[0]) == ["audio_filepath", "duration", "time", "text", "pred_text"]
    assert rows[1] == {"audio_filepath": "1.wav", "duration": 9.0, "time": 2.0, "text": "ref 1", "pred_text": ""}


def test_warm_up_without_a_batch_size(tmp_path: Path) -> None:
    transcriber = Transcriber.load(DEMO, "cpu", "fp32")
    rows = [row(name) for name in FILES * 50]
    entries, _ = board.read(manifest(tmp_path / "d.jsonl", rows), normalizer("none"))
    budget = transcriber._recognizer.choose_budget()
    frames = [transcriber._config.num_frames(one.utterance.duration_s) for one in entries]
    batches = list(batching.plan(frames, int, budget, None))
    assert len(batches) > 1
    assert board.warm_up_files(transcriber, entries) == sum(len(batch) for batch in batches[:4])


# --- the command ------------------------------------------------------------------------------------------------------------


def test_the_command_leaves_the_boards_files_and_a_document(tmp_path: Path) -> None:
    wrong = row("01_0_00010", text="At Rice Stadium a very small crowd greeted the President.", duration=4.9376)
    first = manifest(tmp_path / "one_test.jsonl", [row(name) for name in FILES])
    second = manifest(tmp_path / "two_test.jsonl", [wrong, row("02_0_00025", text="")])
    arguments = [first, second, "--model", str(DEMO), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(
        command.app, [*arguments, "--device", "cpu", "--dataset-path", "my/sets", "--model-id", "me/demo"]
    )
    assert done.exit_code == 0, done.output
    names = {f"MODEL_me-demo_DATASET_my-sets_{name}_test.jsonl" for name in ("one", "two")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    written = (tmp_path / "out" / "MODEL_me-demo_DATASET_my-sets_one_test.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in written.splitlines()]
    assert [one["pred_text"] for one in rows] == [one["text"] for one in rows]  # raw, as the model wrote it
    assert [one["duration"] for one in rows] == sorted((one["duration"] for one in rows), reverse=True)
    document = json.loads(done.stdout.splitlines()[-1])
    ours, theirs, whole = document["rows"]
    assert (ours["dataset"], ours["wer_percent"], ours["dtype"]) == ("my-sets_one_test", 0.0, "bf16")
    assert ours["rtfx"] == pytest.approx(ours["audio_s"] / sum(one["time"] for one in rows), rel=1e-3)
    assert (theirs["files"], theirs["left_out"], theirs["reference_words"]) == (1, 1, 10)
    assert (theirs["substitutions"], theirs["insertions"]) == (1, 1)  # small -> large, enthusiastic
    assert (whole["dataset"], whole["wer_percent"], whole["dtype"]) == ("composite", 10.0, "bf16")
    assert "two_test.jsonl: 1 of 2 rows have no reference to score: left out" in done.stderr
    assert "one_test.jsonl:" not in done.stderr
    assert "me/demo | my-sets_two_test: WER = 20.00 %" in done.output
    assert document["differences"] and document["versions"]["kaldialign"]


def test_unwritable_output_fails_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "measure", lambda *given: pytest.fail("too early"))
    given = manifest(tmp_path / "one_test.jsonl", [row(name) for name in FILES])
    (tmp_path / "file").touch()
    (tmp_path / "taken" / board.file_name("m", board.dataset_id(given, "sets"))).mkdir(parents=True)
    for place, said in (("file", "cannot be made"), ("taken", "there is something that is no file")):
        arguments = ["-m", str(DEMO), "-o", str(tmp_path / place), "--model-id", "m", "--dataset-path", "sets"]
        done = CliRunner().invoke(command.app, [given, *arguments, "--device", "cpu"])
        assert isinstance(done.exception, UsageError) and said in str(done.exception), done.exception


def test_failed_files_do_not_count_as_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = board.measure

    def fails(transcriber: Transcriber, entries: Sequence[board.Entry]) -> tuple[list[str | None], float]:
        texts, wall_s = real(transcriber, entries)
        return [None, *texts[1:]], wall_s

    monkeypatch.setattr(board, "measure", fails)
    given = manifest(tmp_path / "one_test.jsonl", [row(name) for name in FILES])
    arguments = [given, "--model", str(DEMO), "-o", str(tmp_path / "out"), "--device", "cpu"]
    done = CliRunner().invoke(command.app, arguments)
    assert done.exit_code == 1
    ours, whole = json.loads(done.stdout.splitlines()[-1])["rows"]
    kept_s = sorted(entry.duration_s for entry in board.read(given, normalizer("none"))[0])[:-1]
    assert ours["failed"] == whole["failed"] == 1
    assert ours["audio_s"] == whole["audio_s"] == pytest.approx(sum(kept_s), abs=0.01)


def test_two_manifests_of_one_name_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(command.app, ["a/x.jsonl", "b/x.json", "-m", str(DEMO), "-o", str(tmp_path)])
    assert isinstance(done.exception, UsageError) and "two manifests" in str(done.exception)


def test_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="kaldialign: install fastscribe with its extra eval"):
        board.check_packages()
