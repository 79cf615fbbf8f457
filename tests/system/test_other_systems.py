"""What macOS and Windows do otherwise, imitated here as far as possible. Their CI jobs run the whole suite on the real ones."""

from __future__ import annotations

import io
import ntpath
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastscribe._system import positioned_read, safe_files, signals
from fastscribe._system.standard_streams import write_utf8
from fastscribe.audio.failures import relative_id
from fastscribe.audio.folders import split_pattern
from fastscribe.audio.path_lists import _decoded
from fastscribe.results.names import base_name
from tests.conftest import AUDIO, MODELS, ROOT


@pytest.mark.skipif(sys.platform != "linux", reason="removes what Linux has and Windows lacks")
def test_the_program_runs_without_what_only_posix_has(tmp_path: Path) -> None:
    """Every module is imported, and two recordings are transcribed into a folder, twice."""
    arguments = [
        "transcribe",
        AUDIO / "e03_one_second_exact.flac",
        AUDIO / "e09_float32_22k05.wav",
        "-q",
        "-f",
        "jsonl,srt",
    ]
    command = [sys.executable, "-m", "tests.helpers.without_posix", *map(str, arguments)]
    command += ["--model", str(MODELS / "tdt_demo" / "model.nemo"), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "e03_one_second_exact.srt").is_file()
    assert len((tmp_path / "out" / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.fixture
def _windows_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sep", "\\")
    monkeypatch.setattr(os.path, "splitdrive", ntpath.splitdrive)


@pytest.mark.usefixtures("_windows_paths")
def test_ids_have_neither_backslashes_nor_drive_letters() -> None:
    assert relative_id(r"C:\corpus\en\a.wav") == "corpus/en/a.wav"
    assert relative_id(r"\\server\share\a.wav") == "a.wav"
    assert relative_id(r"..\corpus/a.wav") == "corpus/a.wav"


@pytest.mark.usefixtures("_windows_paths")
@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [(r"C:\*.wav", "C:/"), (r"C:\a\*.wav", "C:/a"), ("*.wav", ""), (r"\*.wav", "/"), (r"a\*.wav", "a")],
)
def test_patterns_with_backslashes(pattern: str, prefix: str) -> None:
    assert split_pattern(pattern) == (prefix, ["*.wav"])


@pytest.mark.parametrize(
    ("id", "short"),
    [("aux.wav", "_aux"), ("d./Nul/a.wav", "d_/_Nul/a"), ('a:b"?.wav', "a_b__"), ("auxiliary.wav", "auxiliary")],
)
def test_output_names_that_windows_accepts(id: str, short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "nt")
    assert base_name(id) == short


def test_a_rename_waits_for_another_program_to_close_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = 2

    def replace(old: str, new: str) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise PermissionError(13, "open in another program", old)
        os.rename(old, new)

    monkeypatch.setattr(safe_files, "_RETRY_DELAYS_S", (0, 0, 0))
    monkeypatch.setattr(os, "replace", replace)
    (tmp_path / "old").write_text("x")
    with monkeypatch.context() as on_windows:
        on_windows.setattr(os, "name", "nt")
        safe_files.replace(f"{tmp_path}/old", f"{tmp_path}/new")
    assert (tmp_path / "new").read_text() == "x"
    refusals = 1
    with pytest.raises(PermissionError):  # elsewhere it is a question of rights
        safe_files.replace(tmp_path / "new", tmp_path / "old")


def test_positioned_reads_without_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    for name in ("pread", "preadv"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(positioned_read, "_BLOCK_BYTES", 64)
    with (tmp_path / "file").open("rb") as file:
        buffer = bytearray(80)
        assert positioned_read.pread_into(file.fileno(), memoryview(buffer), 10) == 64
        assert buffer == bytes(range(10, 74)) + bytes(16)
        assert positioned_read.pread(file.fileno(), 9, 195) == bytes(range(195, 200))


def test_stdout_is_utf8_whatever_the_code_page(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252", newline="\r\n"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="cp1252", errors="strict"))
    write_utf8()
    print("Łódź \udc80")
    print("Łódź", file=sys.stderr, flush=True)
    sys.stdout.flush()
    assert written.getvalue() == "Łódź \\udc80\n".encode()


def test_names_on_stdin_may_be_in_the_systems_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsdecode", lambda name: name.decode("utf-8", "surrogatepass"))  # as on Windows
    monkeypatch.setattr("locale.getpreferredencoding", lambda _: "cp1252")
    assert _decoded("Café.wav".encode()) == _decoded("Café.wav".encode("cp1252")) == "Café.wav"


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="needs a signal that stands for Ctrl-Break")
def test_ctrl_break_interrupts_like_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)]
    monkeypatch.setattr(signals, "_INTERRUPTS", [signal.SIGINT, signal.SIGUSR2])
    handler = signals.SignalHandler(test_ctrl_break_interrupts_like_ctrl_c)
    handler.install()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGUSR2)
    finally:
        handler.restore()
        for each, action in zip((signal.SIGINT, signal.SIGTERM, signal.SIGUSR2), before, strict=True):
            signal.signal(each, action)
    assert handler.exit_code == signals.INTERRUPTED
