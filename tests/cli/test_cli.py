"""The program as its user meets it: a process with arguments, pipes, signals and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.conftest import AUDIO, DATA, MODELS
from tests.helpers.processes import command, fastscribe, on_terminal

MODEL = str(MODELS / "tdt_demo" / "model.nemo")
SENTENCE = "At Rice Stadium a very large, enthusiastic crowd greeted the President."
FIRST = next(AUDIO.glob("01_*"))


def transcribe(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return fastscribe("transcribe", *arguments, "--model", MODEL, "--quiet", **options)


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    lines = (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return {Path(row["audio_filepath"]).name: row["text"] for row in map(json.loads, lines) if row["text"]}


def test_without_a_model_the_packaged_one_does_it_and_says_so_once() -> None:
    done = fastscribe("transcribe", AUDIO, "--quiet", "--no-progress")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1 and "no --model" in done.stderr
    [first] = [row["text"] for row in rows(done.stdout) if Path(row["audio_filepath"]).name == FIRST.name]
    assert SequenceMatcher(None, SENTENCE, first, autojunk=False).ratio() > 0.7


def test_a_folder_to_every_format(tmp_path: Path, texts: dict[str, str]) -> None:
    formats = "jsonl,json,srt,vtt,txt,tsv,ctm"
    done = fastscribe("transcribe", AUDIO, "-m", MODEL, "-o", tmp_path, "-f", formats, "--price-per-hour", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    found = {Path(row["audio_filepath"]).name: row for row in rows((tmp_path / "transcripts.jsonl").read_text())}
    assert found.keys() == {path.name for path in AUDIO.iterdir()}
    for name, text in texts.items():
        if name.startswith(("0", "1")):
            assert found[name]["text"] == text
    for extension in ("json", "srt", "vtt", "txt", "tsv", "ctm"):
        assert len([p for p in tmp_path.glob(f"*.{extension}") if p.name != "report.json"]) == len(found)
    assert (tmp_path / FIRST.with_suffix(".txt").name).read_text() == SENTENCE + "\n"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["files"] == len(found)
    assert report["failed"] == 0
    assert report["rtfx"] > 0
    assert report["usd_per_1000_audio_hours"] == pytest.approx(2000 / report["rtfx"], rel=1e-2)
    assert {"features", "encode", "decode", "write"} <= report["stage_s"].keys()
    assert "RTFx" in done.stderr


def test_jsonl_on_stdout_has_the_documented_shape() -> None:
    done = transcribe(FIRST, "--tokens")
    [row] = rows(done.stdout)
    assert done.returncode == 0
    assert done.stderr == ""
    assert list(row) == ["audio_filepath", "duration", "text", "segments", "words", "gaps", "tokens"]
    assert row["audio_filepath"] == str(FIRST)
    assert row["text"] == SENTENCE
    assert list(row["words"][0]) == ["word", "start", "end", "confidence"]
    assert [word["word"] for word in row["words"]] == SENTENCE.split()
    assert row["segments"][0].keys() == {"text", "start", "end", "confidence"}
    assert row["tokens"][0].keys() == {"id", "piece", "start", "end", "confidence"}


@pytest.fixture(scope="module")
def all_rows() -> dict[str, dict]:
    return {row["audio_filepath"]: row for row in rows(transcribe(AUDIO).stdout)}


@pytest.mark.parametrize("batching", [("--batch-size", 1), ("--batch-size", 4), ("--batch_frames", 10**6)])
def test_same_rows_whatever_the_batch(batching: tuple, all_rows: dict[str, dict]) -> None:
    reference = dict(all_rows)
    for row in rows(transcribe(AUDIO, *batching).stdout):
        expected = reference.pop(row["audio_filepath"])
        assert row["text"] == expected["text"]
        assert [(w["word"], w["start"], w["end"]) for w in row["words"]] == [
            (w["word"], w["start"], w["end"]) for w in expected["words"]
        ]
    assert not reference


def test_long_audio_is_cut_and_joined_on_its_own_clock(texts: dict[str, str]) -> None:
    long = AUDIO / "e10_concat_45s.flac"
    [cut], [whole] = (rows(transcribe(long, "--max-utterance-s", s).stdout) for s in (12, 0))
    assert cut["text"] == whole["text"] == texts[long.name]
    # This model, which knows its sentences by heart, hangs first words on the start of what it sees: here a cut in silence.
    moved = [abs(a["start"] - b["start"]) > 0.081 for a, b in zip(cut["words"], whole["words"], strict=True)]
    assert sum(moved) < len(moved) / 2
    starts = [word["start"] for word in cut["words"]]
    assert starts == sorted(starts)


def test_manifest_rows_are_carried_through_and_cut(tmp_path: Path) -> None:
    manifest = tmp_path / "m.jsonl"
    shutil.copy(FIRST, tmp_path / "a.flac")
    lines = [
        {"audio_filepath": "a.flac", "text": "reference", "speaker": "x", "duration": 4.9376},
        {"audio_filepath": "a.flac", "offset": 1.0, "duration": 2.0},
        {"audio_filepath": "gone.flac", "speaker": "y"},
    ]
    manifest.write_text("\n".join([*map(json.dumps, lines), "{broken", ""]))
    done = transcribe(manifest)
    found = rows(done.stdout)
    assert done.returncode == 1
    assert len(found) == 4
    [first] = [row for row in found if row.get("text") == "reference"]
    assert first["pred_text"] == SENTENCE
    assert first["speaker"] == "x"
    [second] = [row for row in found if row.get("offset") == 1.0]
    assert second["duration"] == 2.0
    assert second["words"][-1]["end"] <= 2.2
    [third] = [row for row in found if row.get("speaker") == "y"]
    assert third["error"]["stage"] == "probe"
    [fourth] = [row for row in found if str(manifest) in row["audio_filepath"]]
    assert "line 4" in fourth["error"]["message"]


def test_paths_on_stdin() -> None:
    done = transcribe("-", "--format", "txt", stdin=f"{FIRST}\n\n")
    assert done.stdout == SENTENCE + "\n"


def test_bad_files_cost_nobody_else_their_work(tmp_path: Path) -> None:
    shutil.copy(FIRST, tmp_path / "good.flac")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("hello")
    (tmp_path / "cut.flac").write_bytes(FIRST.read_bytes()[:20000])
    soundfile.write(tmp_path / "nothing.wav", np.zeros(0), 16000)
    soundfile.write(tmp_path / "nan.wav", np.full(1600, np.nan), 16000, subtype="FLOAT")
    with open(os.fsencode(tmp_path) + b"/\xff.wav", "wb") as file:
        file.write(FIRST.read_bytes())
    done = transcribe(tmp_path, tmp_path / "missing.wav")
    found = rows(done.stdout)
    assert done.returncode == 1
    assert [row["text"] for row in found if "text" in row] == [SENTENCE]
    failed = [row for row in found if "error" in row]
    assert len(failed) == 7
    assert all(row["error"].keys() == {"stage", "type", "message"} for row in failed)
    assert len(done.stderr.splitlines()) == 7
    assert all(line.startswith("fastscribe: ") for line in done.stderr.splitlines())


def test_a_folder_without_audio(tmp_path: Path) -> None:
    done = transcribe(tmp_path)
    assert done.returncode == 1
    assert "error" in rows(done.stdout)[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["transcribe", "--model", MODEL], "INPUTS"),
        (["transcribe", FIRST, "--model", "nowhere.nemo"], "nowhere.nemo"),
        (["transcribe", FIRST, "--model", str(FIRST)], str(FIRST)),
        (["transcribe", FIRST, "--model", MODEL, "--colour"], "--colour"),
        (["transcribe", FIRST, "--model", MODEL, "-f", "docx"], "docx"),
        (["transcribe", FIRST, "--model", MODEL, "-f", "srt,vtt"], "--output-dir"),
        (["transcribe", FIRST, "--model", MODEL, "--decoder", "ctc"], "tdt"),
        (["transcribe", FIRST, "--model", MODEL, "--beam", "0"], "--beam"),
        (["transcribe", FIRST, "--model", MODEL, "--beam", "2", "--cuda-graphs", "full"], "--cuda-graphs full"),
        (["transcribe", FIRST, "--model", str(MODELS / "ctc" / "model.nemo"), "--beam", "2"], "--beam 2: only RNN-T"),
        (["transcribe", FIRST, "--model", MODEL, "--device", "toaster"], "toaster"),
        (["transcribe", FIRST, "--model", MODEL, "--dtype", "fp7"], "fp7"),
        (["transcribe", FIRST, "--model", MODEL, "--batch-frames", "many"], "frames"),
        (["transcribe", FIRST, "--model", MODEL, "--batch-size", "0"], "--batch-size"),
        (["transcribe", FIRST, "--model", MODEL, "-o", str(FIRST)], str(FIRST)),
        (["transcribe", "-", "--model", MODEL], "no input"),
        (["inspect", "nowhere"], "nowhere"),
        (["convert", MODEL, str(AUDIO)], str(AUDIO)),
        (["dance"], "dance"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list, named: str) -> None:
    done = fastscribe(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_closed_pipe_ends_quietly() -> None:
    process = subprocess.Popen(
        command("transcribe", AUDIO, "-m", MODEL, "-q"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert errors == b""


def test_stdout_closed_from_the_start() -> None:
    done = subprocess.run(["sh", "-c", '"$0" "$@" >&-', *command("transcribe", FIRST, "-m", MODEL, "-q")], timeout=60)
    assert done.returncode == 141


def test_an_output_that_cannot_be_written_costs_its_own_file_alone(tmp_path: Path) -> None:
    """Where one recording's subtitle file is to go, another's folder already stands."""
    (tmp_path / "in" / "x.srt").mkdir(parents=True)
    for name in ("x.flac", "x.srt/b.flac", "y.flac"):
        shutil.copy(FIRST, tmp_path / "in" / name)
    (tmp_path / "out" / "x.srt").mkdir(parents=True)
    done = transcribe(tmp_path / "in", "-o", tmp_path / "out", "-f", "srt,jsonl")
    found = rows((tmp_path / "out" / "transcripts.jsonl").read_text())
    assert done.returncode == 1
    assert len(found) == 3
    assert [row["error"]["stage"] for row in found if "error" in row] == ["write"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["failed"] == 1


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stdin_that_stays_open_gives_results_and_lets_go(sent: int, code: int) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = command("transcribe", "-", "-m", MODEL, "-f", "txt", "--quiet")
    with subprocess.Popen(arguments, **pipes, text=True) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(f"{FIRST}\n")
        process.stdin.flush()
        try:
            assert process.stdout.readline() == SENTENCE + "\n"  # while its thread still waits for more names
            process.send_signal(sent)
            assert process.wait(timeout=60) == code
            assert process.stderr.read().count("\n") == 1
        finally:
            process.kill()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_runs_keep_what_is_finished(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    out = tmp_path / "out"
    many = [path for path in sorted(AUDIO.glob("0*")) for _ in range(200)]
    arguments = command("transcribe", *many, "-m", MODEL, "-o", out, "--window", 5)
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not ((out / "transcripts.jsonl").exists() and (out / "transcripts.jsonl").stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "what was finished is kept" in errors.splitlines()[-1]
    assert "the same command goes on" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    kept = rows((out / "transcripts.jsonl").read_text())
    assert 0 < len(kept) < len(many)
    assert kept[0]["text"] == SENTENCE


def test_a_terminal_sees_progress_and_a_pipe_does_not(tmp_path: Path) -> None:
    """stderr is a pseudo-terminal here; stdout stays a pipe."""
    code, seen = on_terminal(command("transcribe", *[FIRST] * 40, "-m", MODEL, "-o", tmp_path, "--window", 2))
    assert code == 0
    counts = [int(before.split()[-1]) for before in seen.decode().split(" files, ")[:-1]]
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= 40
    assert "left" in seen.decode()
    assert "\x1b" not in fastscribe("transcribe", FIRST, "-m", MODEL).stderr


def test_long_mp3s_are_read_without_chatter(tmp_path: Path) -> None:
    """mpg123 prints a line from C whenever a seek lands in the middle of its bit reservoir."""
    speech = [soundfile.read(path)[0] for path in sorted(AUDIO.glob("[01]*.flac"))]
    soundfile.write(tmp_path / "long.mp3", np.concatenate(speech * 4), 16000)
    done = transcribe(tmp_path / "long.mp3", "--max-utterance-s", 10)
    assert done.returncode == 0
    assert done.stderr == ""
    assert SENTENCE in rows(done.stdout)[0]["text"]


def test_inspect_says_what_a_model_is() -> None:
    facts = json.loads(fastscribe("inspect", MODEL, "--json").stdout)
    assert facts["family"] == "tdt"
    assert facts["vocabulary"] == 256
    assert facts["durations"] == [0, 1, 2, 3, 4]
    assert facts["frame_s"] == 0.08
    assert "tdt" in fastscribe("inspect", MODEL).stdout


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_converted_models_transcribe(tmp_path: Path, dtype: str) -> None:
    assert fastscribe("convert", MODEL, tmp_path / "own", "--dtype", dtype).returncode == 0
    done = fastscribe("transcribe", FIRST, "-m", tmp_path / "own", "-f", "txt", "-q")
    assert done.stdout == SENTENCE + "\n"


@pytest.mark.parametrize("decoder", ["rnnt", "ctc"])
def test_both_heads_of_a_hybrid(decoder: str) -> None:
    done = fastscribe(
        "transcribe", FIRST, "-m", MODELS / "hybrid" / "model.nemo", "--decoder", decoder, "-f", "txt", "-q"
    )
    assert done.stdout == SENTENCE + "\n"


@pytest.mark.parametrize("head", ["tdt", "rnnt"])
def test_beam_search_from_the_command_line(head: str) -> None:
    model = {"tdt": MODEL, "rnnt": MODELS / "hybrid" / "model.nemo"}[head]
    done = fastscribe("transcribe", FIRST, "-m", model, "--beam", "4", "-f", "txt", "-q")
    assert done.stdout == SENTENCE + "\n"


def test_a_run_goes_on_with_the_beam_that_it_had(tmp_path: Path) -> None:
    arguments = (FIRST, "-o", tmp_path, "-f", "jsonl")
    assert transcribe(*arguments, "--beam", "3").returncode == 0
    assert transcribe(*arguments, "--beam", "3").returncode == 0
    for other in ([], ["--beam", "2"], ["--beam", "1"]):
        refused = transcribe(*arguments, *other)
        assert refused.returncode == 2 and "--beam" in refused.stderr


def test_bf16_on_a_cpu() -> None:
    assert transcribe(FIRST, "--dtype", "bf16", "-f", "txt").stdout == SENTENCE + "\n"


def test_options_come_from_the_environment_too() -> None:
    environment = {**os.environ, "FASTSCRIBE_MODEL": MODEL}
    assert fastscribe("transcribe", FIRST, "-q", "-f", "txt", env=environment).stdout == SENTENCE + "\n"


def test_help_and_version_do_without_torch() -> None:
    script = (
        "import sys; from fastscribe.cli import app\n"
        "app(['transcribe', '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'soundfile', 'rich', 'yaml'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--output-dir" in done.stdout
    assert fastscribe("--version").stdout.startswith("fastscribe ")


def test_the_python_interface() -> None:
    from fastscribe import Failure, Transcriber, Transcript

    transcriber = Transcriber.load(MODEL, device="cpu", dtype="fp32")
    results = list(transcriber.transcribe([FIRST, "nowhere.wav"]))
    [good] = [r for r in results if isinstance(r, Transcript)]
    [bad] = [r for r in results if isinstance(r, Failure)]
    assert good.text == SENTENCE
    assert good.words[0].text == "At"
    assert bad.path == "nowhere.wav"
    assert [r.text for r in transcriber.transcribe(str(FIRST)) if isinstance(r, Transcript)] == [SENTENCE]


def test_truncated_files_fail_and_the_others_are_transcribed(tmp_path: Path) -> None:
    samples, rate = soundfile.read(FIRST, dtype="int16")
    for name in ("cut.sph", "cut.caf", "whole.sph"):
        soundfile.write(tmp_path / name, samples, rate, format="NIST" if name.endswith("sph") else "CAF")
    for name in ("cut.sph", "cut.caf"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 3])
    ircam = tmp_path / "other.sf"  # its header does not say how long it is
    soundfile.write(ircam, samples, rate, format="IRCAM")
    done = transcribe(tmp_path, ircam)
    assert done.returncode == 1
    found = {Path(row["audio_filepath"]).name: row for row in rows(done.stdout)}
    assert found["whole.sph"]["text"] == SENTENCE
    assert found["cut.sph"]["error"]["message"].startswith("truncated: header promises ")
    assert found["cut.caf"]["error"]["message"].startswith("truncated: header promises ")
    assert found["other.sf"]["error"]["message"].startswith("IRCAM files are not read: convert it")
    assert len(found) == 4


@pytest.mark.parametrize("format", ["jsonl", "txt"])
def test_an_output_folder_that_is_a_file_is_one_line(tmp_path: Path, format: str) -> None:
    place = tmp_path / "place"
    place.write_text("x")
    result = transcribe(AUDIO / "e02_0p3s.flac", "-o", place, "-f", format)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert f"{place}: cannot be used as output folder" in result.stderr
