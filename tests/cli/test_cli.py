"""The program as a process with arguments, pipes, signals and exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe import cli
from fastscribe.audio.failures import relative_id
from fastscribe.cli.job import is_one_short_file
from fastscribe.cli.run_options import make_style
from fastscribe.config import SubtitleStyle
from fastscribe.errors import is_out_of_memory
from fastscribe.results.shards import shard_of
from tests.conftest import AUDIO, DATA, FIRST, MODELS, SENTENCE
from tests.helpers.containers import encode, encode_video
from tests.helpers.processes import command, fastscribe, on_terminal, refused, with_pipes
from tests.helpers.schemas import check_schema
from tests.helpers.warm_process import LIBRARIES_ALONE

MODEL = str(MODELS / "tdt_demo" / "model.nemo")


def transcribe(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return fastscribe("transcribe", *arguments, "--model", MODEL, "--quiet", **options)


def rows(text: str) -> list[dict]:
    """Return the results, which must be as the published schema says."""
    found = [json.loads(line) for line in text.splitlines()]
    check_schema("result", found)
    return found


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    lines = (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return {Path(row["audio_filepath"]).name: row["text"] for row in map(json.loads, lines) if row["text"]}


def test_packaged_model() -> None:
    done = fastscribe("transcribe", FIRST, AUDIO / "e02_0p3s.flac", "--no-progress")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no --model") == 1 and done.stderr.count("RTFx") == 1
    [first] = [row["text"] for row in rows(done.stdout) if Path(row["audio_filepath"]).name == FIRST.name]
    assert SequenceMatcher(None, SENTENCE, first, autojunk=False).ratio() > 0.7


def test_one_short_file_has_one_line_and_quiet_none(tmp_path: Path) -> None:
    """The line says which model ran, or that the recording is beyond it; that is a warning, which --quiet keeps."""
    alone, quiet = fastscribe("transcribe", FIRST), fastscribe("transcribe", FIRST, AUDIO / "e02_0p3s.flac", "-q")
    assert (alone.returncode, quiet.returncode, quiet.stderr) == (0, 0, "")
    assert alone.stderr.startswith("fastscribe: the small English model") and alone.stderr.count("\n") == 1
    assert alone.stdout in quiet.stdout
    samples, rate = soundfile.read(FIRST, dtype="int16")
    backwards = tmp_path / "back wards.flac"
    soundfile.write(backwards, samples[::-1], rate)
    for arguments in ((), ("-q",), ("-m", "default")):
        [line] = fastscribe("transcribe", backwards, *arguments).stderr.splitlines()
        assert f"{backwards} is beyond the small English model" in line
        assert line.endswith(f"fastscribe transcribe '{backwards}' --model nvidia/parakeet-tdt-0.6b-v3")
    greedy = fastscribe("transcribe", backwards, "--beam", 1)  # the limit is not of its confidences
    assert greedy.stderr == alone.stderr and transcribe(backwards).stderr == ""
    soundfile.write(tmp_path / "long.flac", np.tile(samples, 1 + 301 * rate // len(samples)), rate)
    (tmp_path / "list.jsonl").write_text(json.dumps({"audio_filepath": str(FIRST)}))
    for inputs in ([tmp_path / "long.flac"], [tmp_path / "list.jsonl"], [FIRST, FIRST], [tmp_path / "gone.wav"]):
        assert not is_one_short_file([str(path) for path in inputs])


@pytest.mark.posix
def test_a_terminal_gets_text() -> None:
    """Of several files with their paths; -f jsonl and a pipe give rows."""
    short = AUDIO / "e02_0p3s.flac"
    code, seen = on_terminal("transcribe", FIRST, short, "-m", MODEL, "-q", stream="stdout")
    assert code == 0 and seen.decode().splitlines()[0] == f"{FIRST}\t{SENTENCE}"
    code, seen = on_terminal("transcribe", FIRST, "-m", MODEL, "--dry-run", stream="stdout")
    assert (code, seen) == (0, b"")


@pytest.mark.parametrize(
    ("options", "format"),
    [
        ((None, False, None), "txt"),
        ((["json"], False, None), "json"),
        ((None, True, None), "jsonl"),
        ((None, False, "out"), ""),  # the folder's
    ],
)
def test_text_is_for_a_terminal_alone(options: tuple, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, tokens, folder = options
    unseen = "jsonl" if format == "txt" else format
    assert make_style(given, tokens, SubtitleStyle(), folder, "txt").formats == ((unseen,) if unseen else ())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert make_style(given, tokens, SubtitleStyle(), folder, "txt").formats == ((format,) if format else ())


def test_the_line_about_the_model_waits_for_the_end_of_a_stream(tmp_path: Path) -> None:
    """One path on stdin may be short, and nothing but its text and the line is shown then. Two get the report behind it."""
    short = fastscribe("transcribe", "-", stdin=f"{FIRST}\n")
    assert (short.returncode, short.stderr.count("\n")) == (0, 1) and short.stdout
    two = fastscribe(
        "transcribe", "-", stdin="".join(f"{AUDIO / name}\n" for name in ("e01_50ms.flac", "e02_0p3s.flac"))
    )
    assert two.stderr.startswith("fastscribe: the small English") and two.stderr.count("RTFx") == 1
    kept = fastscribe("transcribe", "-", "-o", tmp_path / "out", stdin=f"{AUDIO / 'e02_0p3s.flac'}\n")
    assert kept.stderr.startswith("fastscribe: no --model") and kept.stdout == ""
    for quiet, number in (((), 1), (("-q",), 0)):
        assert fastscribe("transcribe", FIRST, "--dry-run", *quiet).stderr.count("no --model") == number


def test_every_format(tmp_path: Path, texts: dict[str, str]) -> None:
    folder, formats = tmp_path / "out", "jsonl,json,srt,vtt,txt,tsv,ctm"
    given = ("-o", folder, "-f", formats, "--tokens", "--price-per-hour", 2)
    done = fastscribe("transcribe", AUDIO, "-m", MODEL, *given)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = {Path(row["audio_filepath"]).name: row for row in rows((folder / "transcripts.jsonl").read_text())}
    assert found.keys() == {path.name for path in AUDIO.iterdir()}
    for name, text in texts.items():
        if name.startswith(("0", "1")):
            assert found[name]["text"] == text
    assert all(row["tokens"] and row["words"][0]["word"] in row["text"] for row in found.values() if row["text"])
    for extension in ("json", "srt", "vtt", "txt", "tsv", "ctm"):
        assert len([p for p in folder.glob(f"*.{extension}") if p.name != "report.json"]) == len(found)
    assert (folder / FIRST.with_suffix(".txt").name).read_text() == SENTENCE + "\n"
    report = json.loads((folder / "report.json").read_text())
    assert report["files"] == len(found)
    assert report["failed"] == 0
    assert report["rtfx"] > 0
    assert report["usd_per_1000_audio_hours"] == pytest.approx(2000 / report["rtfx"], rel=1e-2)
    assert {"features", "encode", "decode", "write"} <= report["stage_s"].keys()
    assert "RTFx" in done.stderr


def test_folder_of_many_kinds(tmp_path: Path, texts: dict[str, str]) -> None:
    """Containers give the text of the recording that they were made from; the rest is counted or fails by itself."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    samples, rate = soundfile.read(FIRST, dtype="float32")
    for name, codec in (
        ("a.m4a", "aac"),
        ("b.webm", "libopus"),
        ("c.mkv", "flac"),
        ("d.wav", "flac"),
        ("e.qta", "aac"),
    ):
        encode(folder / name, codec, rate, samples=samples, format="mov" if name == "e.qta" else None)
    encode(folder / "two.mkv", "flac", rate, samples=samples, gains=(1.0, 0.0), starts_s=(0.0, 0.0))
    encode_video(folder / "silent.mp4")
    (folder / "cut.m4a").write_bytes((folder / "a.m4a").read_bytes()[:-2_000])
    for name in ("notes.docx", "p.jpg", "q.jpg", ".hidden.jpg"):
        (folder / name).write_bytes(b"x")
    done = fastscribe("transcribe", folder, "-m", MODEL, "-o", out, "--no-progress")
    assert done.returncode == 1
    found = {Path(row["audio_filepath"]).name: row for row in rows((out / "transcripts.jsonl").read_text())}
    assert [found[name]["text"] for name in ("a.m4a", "c.mkv", "two.mkv", "d.wav", "e.qta")] == [texts[FIRST.name]] * 5
    assert SequenceMatcher(None, texts[FIRST.name], found["b.webm"]["text"], autojunk=False).ratio() > 0.8
    assert found["silent.mp4"]["error"]["message"] == "is a video without an audio track"
    assert found["cut.m4a"]["error"]["stage"] == "probe" and len(found) == 8
    assert done.stderr.count("3 files left out: .jpg 2, .docx 1") == 1
    assert done.stderr.count("two.mkv has 2 audio tracks: the first is transcribed") == 1
    assert json.loads((out / "report.json").read_text())["left_out"] == {".docx": 1, ".jpg": 2}
    second = transcribe(folder / "two.mkv", "--track", 1)
    assert second.returncode == 0 and rows(second.stdout)[0]["text"] == "" and second.stderr == ""
    done = fastscribe("transcribe", folder, "-m", MODEL, "--dry-run")
    assert json.loads(done.stdout)["left_out"] == {".docx": 1, ".jpg": 2} and "3 files left out" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["transcribe", "--model", MODEL], "INPUTS"),
        (["transcribe", FIRST, "--model", "nowhere.nemo"], "nowhere.nemo"),
        (["transcribe", FIRST, "--model", "large-v3"], "a Whisper model; fastscribe runs Parakeet"),
        (["transcribe", FIRST, "--model", "parakeet-tdt-0.6b-v3"], "did you mean nvidia/parakeet-tdt-0.6b-v3?"),
        (["transcribe", FIRST, "--model", "mlx-community/parakeet-tdt-0.6b-v3"], "--model nvidia/parakeet-tdt-0.6b-v3"),
        (["transcribe", FIRST, "--device", "mps"], "--device mps"),
        (["transcribe", FIRST, "--dtype", "float16"], "Invalid value for '--dtype': 'float16' is not one of 'auto', "),
        (["transcribe", FIRST, "-o", ""], "--output-dir is empty (a variable that is not set?)"),
        (["transcribe", FIRST, "--model="], "--model is empty"),
        (["transcribe", FIRST, ""], "an argument is empty"),
        (["transcribe", FIRST, "--", ""], "an argument is empty"),
        (["transcibe", "a.wav"], "Did you mean 'transcribe'?"),
        (["a.wav"], "fastscribe transcribe a.wav"),
        ([str(FIRST), "-f", "txt"], f"fastscribe transcribe {FIRST} -f txt"),
        (["--model", "x.nemo", "a.wav"], "fastscribe transcribe --model x.nemo a.wav"),
        (["help", "transcrib"], "Did you mean 'transcribe'?"),
        (
            ["transcribe", "-file.ogg"],
            "-file.ogg: begins with a dash, as options do: for a file of this name give ./-file.ogg",
        ),
        (["transcribe", FIRST, "--speakers", "foo"], "--speakers foo: no such file or folder"),
        (
            ["transcribe", FIRST, "--speakers", "2"],
            "--speakers 2: no such file or folder: give channels if each speaker has",
        ),
        (["transcribe", FIRST, "--speakers", "Anna,Ben"], "names go to --speaker-names"),
        (
            ["transcribe", FIRST, "--speakers", "x.nemo", "--voices", "parakeet"],
            "a model on the Hugging Face hub is named organisation/name",
        ),
        (
            ["transcribe", FIRST, "--speakers", "-o", "out"],
            "--speakers lacks its value: -o, which follows, is an option (as a value: --speakers=-o)",
        ),
        (["transcribe", FIRST, "--boost", "--format=txt"], "--boost lacks its value: --format=txt, which follows"),
        (["transcribe", FIRST, "--boost=-f", "--model", "nowhere.nemo"], "nowhere.nemo: no such file"),
        (["transcribe", FIRST, "--beam", "-1"], "Invalid value for '--beam': "),
        (["transcribe", FIRST, "--model", MODEL, "-f", "docx"], "pandoc makes a document of what -f md writes"),
        (["transcribe", FIRST, "--model", MODEL, "-f", "word"], "pandoc makes a document of what -f md writes"),
        (["transcribe", FIRST, "--diarize"], "No such option: --diarize (Possible options: --speakers)"),
        (["transcribe", FIRST, "--hotwords", "x"], "--boost"),
        (["transcribe", FIRST, "--model", MODEL, "-f", "srt,vtt"], "--output-dir"),
        (["transcribe", FIRST, "--model", MODEL, "--decoder", "ctc"], "tdt"),
        (["transcribe", FIRST, "--model", MODEL, "--beam", "2", "--cuda-graphs", "full"], "--cuda-graphs full"),
        (["transcribe", FIRST, "--model", str(MODELS / "ctc" / "model.nemo"), "--beam", "2"], "--beam 2: only RNN-T"),
        (["transcribe", "-", "--model", MODEL], "no input"),
        (["inspect", "nowhere"], "nowhere"),
        (
            ["transcribe", FIRST, "-m", "/no/such/model", "--devices", "cpu:x"],
            "--devices cpu:x: not all, numbers of GPUs",
        ),
        (["transcribe", FIRST, "--devices", "cpu:1", "--device", "cpu"], "--device and --devices exclude each other"),
        (["convert", MODEL, str(AUDIO)], str(AUDIO)),
        (["transcribe", FIRST, "--beam", "100000"], "Invalid value for '--beam': "),
        (["transcribe", FIRST, "--price-per-hour", "inf"], "--price-per-hour"),
        (["transcribe", FIRST, "--min-cue-s", "9"], "--min-cue-s 9.0: not a number of seconds from 0 to --max-cue-s"),
        (["transcribe", FIRST, "--device", "cuda:x"], "cuda:N with a number"),
        (["transcribe", FIRST, "-o", "out.srt", "-f", "srt"], "-f FORMAT > out.srt"),
        (["transcribe", FIRST, "-o", FIRST], "is a file: name a folder"),
        (["transcribe", FIRST, "-o", "-"], "--output-dir -: leave it out for stdout"),
        (["export", FIRST, "-f", "srt"], "is a recording or other binary data, not JSON lines"),
        (["train", FIRST, "-o", "run"], "is a recording; give a recipe"),
        (["train", "nowhere.yaml", "-o", "run"], "nowhere.yaml: cannot be read: No such file or directory"),
        (["merge", "nowhere"], "nowhere: no such folder"),
        (["merge", FIRST], f"is a file: name its folder, {FIRST.parent}"),
    ],
    ids=str,
)
def test_wrong_usage(arguments: list, named: str) -> None:
    assert named in refused(*arguments)


def test_a_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSCRIBE_BEAM", "x")
    assert "FASTSCRIBE_BEAM in the environment (--beam): 'x' " in refused("transcribe", FIRST)
    assert "'--beam': 'y' " in fastscribe("transcribe", FIRST, "--beam", "y").stderr


def test_nothing_usable_has_no_report(tmp_path: Path) -> None:
    (tmp_path / "text.mp3").write_text("hello world this is text\n")
    for path in (tmp_path / "text.mp3", tmp_path / "gone.wav"):
        done = fastscribe("transcribe", path, "-m", MODEL)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and f"{path}: " in done.stderr
    empty = next(index for index in range(9) if shard_of(relative_id(str(FIRST)), 9) != index)
    done = fastscribe("transcribe", FIRST, "-m", MODEL, "--shard", f"{empty}/9")
    assert done.returncode == 0 and f"none of the 1 inputs is in shard {empty}/9" in done.stderr


@pytest.mark.parametrize("arguments", [["transcribe", FIRST, "-m", MODEL, "-q"], ["inspect", MODEL]], ids=str)
def test_closed_pipe(arguments: list) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command(*arguments), stdout=pipe, stderr=pipe, env=environment)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert errors == b""


@pytest.mark.posix
def test_closed_stdout() -> None:
    done = subprocess.run(["sh", "-c", '"$0" "$@" >&-', *command("models")], timeout=60)
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("buffered", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_full_stdout_is_one_line(buffered: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | buffered
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("inspect", MODEL), stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert (done.returncode, done.stderr) == (1, "fastscribe: stdout: No space left on device\n")


def test_a_library_that_cannot_be_imported_costs_the_recordings_that_need_it(tmp_path: Path) -> None:
    """As where a part of PyAV is missing."""
    (tmp_path / "av.py").write_text("raise ImportError('libavformat.so.62: cannot open shared object file')\n")
    encode_video(tmp_path / "film.mkv")
    done = subprocess.run(
        command("transcribe", FIRST, tmp_path / "film.mkv", "-m", MODEL, "-f", "txt", "--quiet"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, f"{FIRST}\t{SENTENCE}\n")
    assert done.stderr == (
        f"fastscribe: {tmp_path}/film.mkv: probe failed: the installation is incomplete (libavformat.so.62: cannot open shared "
        "object file): `fastscribe doctor` shows what is missing\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 2.83 MiB"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("can't start new thread"),
        RuntimeError("could not create a primitive"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
        ImportError("/numpy/fft/_pocketfft_umath.so: failed to map segment from shared object"),
    ],
    ids=["numpy", "mmap", "thread", "oneDNN", "torch", "C++", "library"],
)
def test_refused_memory_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """As under `ulimit -v 1200000`, where a table of the language model is refused, or on a full machine."""
    code = cli._report_error(error)
    lines = capsys.readouterr().err.splitlines()
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"fastscribe: the system refuses more memory or threads ({error}): raise the limits")


def test_what_onednn_cannot_do_is_no_lack_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("could not create a primitive descriptor for a matmul primitive"))


@pytest.mark.posix
def test_open_stdin() -> None:
    with with_pipes("transcribe", "-", "-m", MODEL, "-f", "txt", "--quiet") as (process, stdin, stdout, stderr):
        stdin.write(f"{FIRST}\n")
        stdin.flush()
        assert stdout.readline() == f"{FIRST}\t{SENTENCE}\n"  # while its thread still waits for more names
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert stderr.read().count("\n") == 1


@pytest.mark.posix
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    out = tmp_path / "out"
    many = linked(tmp_path, [path for path in sorted(AUDIO.glob("0*")) for _ in range(40)])
    with with_pipes("transcribe", *many, "-m", MODEL, "-o", out, "--window", 5) as (process, _, _, stderr):
        deadline = time.monotonic() + 60
        while not ((out / "transcripts.jsonl").exists() and (out / "transcripts.jsonl").stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(sent)
        errors = stderr.read()
        assert process.wait(timeout=60) == code
    said = re.search(r"; ([1-9][0-9]*) of ([0-9]+) files are done and kept, and the same command goes on", errors)
    assert said is not None and int(said[1]) < int(said[2]) == len(many)
    assert "Traceback" not in errors
    kept = rows((out / "transcripts.jsonl").read_text())
    assert 0 < len(kept) < len(many)
    assert SENTENCE in [row["text"] for row in kept]


def linked(folder: Path, files: list[Path]) -> list[Path]:
    """A link to each file: inputs of their own, while a file given twice is done once."""
    links = [folder / f"{number:04d}.flac" for number in range(len(files))]
    for link, file in zip(links, files, strict=True):
        link.symlink_to(file)
    return links


def test_inspect() -> None:
    facts = json.loads(fastscribe("inspect", MODEL, "--json").stdout)
    assert facts["family"] == "tdt"
    assert facts["vocabulary"] == 256
    assert facts["durations"] == [0, 1, 2, 3, 4]
    assert facts["frame_s"] == 0.08
    assert "tdt" in fastscribe("inspect", MODEL).stdout


def test_given_arguments_count_before_those_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "transcribe"])
    cli.app(["schema"], standalone_mode=False)
    cli.app(args=["schema"], standalone_mode=False)
    assert capsys.readouterr().out.count('"$id": "urn:fastscribe:result"') == 2


def test_help_without_torch() -> None:
    script = (
        "import sys; from fastscribe.cli import app\n"
        "app(['transcribe', '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'soundfile', 'rich', 'yaml'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--output-dir" in done.stdout
    assert fastscribe("--version").stdout.startswith("fastscribe ")


def test_plain_run_without_what_it_does_not_use() -> None:
    """Those that compile, show and read other things take up to half a second each to import."""
    script = (
        "import sys; from fastscribe.cli import app\n"
        f"app(['transcribe', {str(FIRST)!r}, '-q', '-f', 'txt', '--device', 'cpu'], standalone_mode=False)\n"
        "unused = {'av', 'numba', 'onnxruntime', 'rich', 'torch._dynamo', 'yaml'}\n"
        "assert not unused & set(sys.modules), unused & set(sys.modules)\n"
        "import fastscribe.transcriber, fastscribe.training.loss; assert 'numba' not in sys.modules"
    )
    done = LIBRARIES_ALONE.python(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
