"""Terminals, logs and closed streams get no escape sequences, no forged lines, and nothing from C libraries."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from fastscribe._system.text_layout import escaped
from fastscribe.cli import run, terminal
from fastscribe.cli.job import is_one_short_file
from fastscribe.cli.terminal import filter_mpg123_messages, say, show_table
from tests.cli.test_cli import FIRST, MODEL, SENTENCE, rows, transcribe
from tests.helpers.processes import command, fastscribe, on_terminal

pytestmark = pytest.mark.posix

HOSTILE = "a\x1b[31m\x9b2J\nfastscribe: all well\r\u202egnp\u2028\x07.wav"
SHOWN = r"a\x1b[31m\x9b2J\nfastscribe: all well\r\u202egnp\u2028\x07.wav"


def test_escaped() -> None:
    assert escaped(HOSTILE) == SHOWN and escaped(SHOWN) == SHOWN
    assert escaped("Größe 北京 é\u0301\udcff") == "Größe 北京 é\u0301\\udcff"
    assert escaped("a\u200d\x1b", keep="\u200d") == "a\u200d\\x1b"


def test_message_is_one_line(capsys: pytest.CaptureFixture) -> None:
    say(f"{HOSTILE}: failed")
    show_table(f"one\n  {HOSTILE.replace(chr(10), '')}")
    lines = capsys.readouterr().err.split("\n")
    assert lines == [f"fastscribe: {SHOWN}: failed", "one", f"  {SHOWN.replace(chr(92) + 'n', '')}", ""]


@pytest.mark.parametrize("progress", ["--no-progress", None])
def test_file_names_escaped(tmp_path: Path, progress: str | None) -> None:
    """stderr is a pseudo-terminal, with the progress bar and without."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / HOSTILE.replace("/", "")).write_bytes(b"no audio")
    shutil.copy(FIRST, folder / "good.flac")
    arguments = ("transcribe", folder, "-m", MODEL, "-o", tmp_path / "out", "--log-file", tmp_path / "log")
    code, seen = on_terminal(*arguments, *([progress] if progress else []), is_fresh=progress is None)
    assert code == 1
    assert (progress is None) == (b"loading the model" in seen)
    for sent in (b"\x1b[31m", b"\x9b", "\u202e".encode(), "\u2028".encode(), b"\x07", b"\nfastscribe: all well"):
        assert sent not in seen
    assert SHOWN.encode() in seen
    log = (tmp_path / "log").read_text(encoding="utf-8")
    [line] = [line for line in log.splitlines() if "all well" in line]
    assert SHOWN in line and re.match(r"[0-9-]{10} [0-9:,]{12}[+-][0-9]{4} [0-9]+ ", line)
    assert log.replace("\n", "").isprintable()


def test_model_name_escaped(tmp_path: Path) -> None:
    path = tmp_path / "m\x1b[31m\n.nemo"
    shutil.copy(MODEL, path)
    shown = fastscribe("inspect", path).stdout
    assert "\x1b" not in shown and r"m\x1b[31m\n.nemo" in shown.splitlines()[0]


def test_closed_streams(tmp_path: Path) -> None:
    """Nor do a library's prints go into a file that got a closed stream's number."""

    def close() -> None:
        for number in (0, 1, 2):
            os.close(number)

    arguments = command("transcribe", FIRST, tmp_path / "gone.wav", "-m", MODEL, "-o", tmp_path / "out", "-f", "txt")
    assert subprocess.run(arguments, preexec_fn=close, timeout=100).returncode == 1
    assert (tmp_path / "out" / FIRST.with_suffix(".txt").name).read_text() == f"{SENTENCE}\n"
    assert json.loads((tmp_path / "out" / "report.json").read_text())["failed"] == 1


def test_wrong_usage_without_stderr() -> None:
    done = subprocess.run(command("transcribe", "--no-such-option"), preexec_fn=lambda: os.close(2), timeout=100)
    assert done.returncode == 2


def odd_mp3s(folder: Path) -> None:
    """Every kind of damage that makes mpg123 print something."""
    samples = soundfile.read(FIRST)[0]
    soundfile.write(folder / "sound.mp3", samples, 16_000)
    content = (folder / "sound.mp3").read_bytes()
    soundfile.write(folder / "other.mp3", np.stack([samples] * 2, 1), 44_100)
    other = (folder / "other.mp3").read_bytes()
    tag = b"ID3\4\0\0\0\0\1\0" + b"TIT2\xff\xff\xff\xff\0\0" + b"x" * 118
    odd = {
        "cut": content[:-50],
        "longer": content + bytes(2000),
        "joined": content + other,
        "bad tag": tag + content,
        "bad size": b"ID3\4\0\0\xff\xff\xff\xff" + content,
        "junk": b"junk" * 100 + content,
        "holes": content[:4000] + bytes(900) + content[4900:],
        "swapped": content[:3000] + content[6000:9000] + content[3000:6000] + content[9000:],
        "twice": content + content,
    }
    for name, damaged in odd.items():
        (folder / f"{name}.mp3").write_bytes(damaged)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_mpg123_messages_dropped(tmp_path: Path, dry_run: tuple[str, ...]) -> None:
    odd_mp3s(tmp_path)
    done = transcribe(tmp_path, *dry_run)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if not line.startswith(f"fastscribe: {tmp_path}")] == []
    if not dry_run:
        assert {Path(row["audio_filepath"]).name for row in rows(done.stdout) if "text" in row} >= {
            "sound.mp3",
            "cut.mp3",
        }


def test_one_odd_mp3_prints_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """A single file is probed before the run. Where that fails, the run's line about it is all there is to say."""
    odd_mp3s(tmp_path)
    (tmp_path / "no sound.wav").write_bytes(b"no sound")
    assert all(is_one_short_file([str(path)]) for path in tmp_path.iterdir())
    assert capfd.readouterr().err == ""


def test_other_messages_pass(capfd: pytest.CaptureFixture) -> None:
    with filter_mpg123_messages():
        os.write(2, b"\nWarning: Big change (MPEG version, layer, rate). Frankenstein stream?\n")
        os.write(
            2, b"Warning: Xing stream size off by more than 1%, fuzzy seeking may be even more fuzzy than by design!\n"
        )
        os.write(2, b"[src/libmpg123/id3.c:process():1] error: bad tag\nNote: Trying to resync...\n")
        os.write(2, b"OMP: Warning #96\nterminate called\n")
        sys.stderr.write("ours\n")  # in one write, because the relay writes at the same time
    assert sorted(capfd.readouterr().err.splitlines()) == ["OMP: Warning #96", "ours", "terminate called"]


def test_child_process_not_awaited(capfd: pytest.CaptureFixture) -> None:
    with filter_mpg123_messages():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    assert child.poll() is None
    child.kill()
    child.wait()


def test_closed_stderr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = (tmp_path / "x").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    terminal.say("without a reader")


def test_secrets_of_urls_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("https://me:word@host/a.wav?sig=0f: read failed")
    assert capsys.readouterr().err == "fastscribe: https://me:***@host/a.wav?sig=***: read failed\n"


@pytest.mark.parametrize(("inputs", "files", "audio_s", "is_brief"), [
    (["-"], 1, 300.0, True), (["https://host/a.wav"], 1, 3.0, True), (["-"], 2, 3.0, False), (["-"], 1, 301.0, False),
    (["a"], 1, 3.0, False),
])  # fmt: skip
def test_a_short_stream_has_no_report(inputs: list[str], files: int, audio_s: float, is_brief: bool) -> None:
    job: Any = SimpleNamespace(output=SimpleNamespace(inputs=inputs))
    stats: Any = SimpleNamespace(files=files, skipped=0, audio_s=audio_s)
    assert run._is_one_short_stream(job, stats) == is_brief
