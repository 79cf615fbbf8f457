"""A folder's files of unknown names are recordings by their content."""

from __future__ import annotations

import os
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.audio import containers, folders
from fastscribe.audio.folders import why_left_out
from fastscribe.audio.formats import UNKNOWN_CONTENT
from fastscribe.audio.inputs import expand
from fastscribe.types import Failure
from tests.helpers.containers import encode

# name: encoder, rate, container
RECORDINGS = {
    "memo.xqta": ("aac", 16_000, "mov"),
    "fragments.xm4s": ("aac", 16_000, "mp4"),
    "no_extension": ("pcm_s16le", 16_000, "wav"),
    "call.wav.bak": ("pcm_s16le", 16_000, "wav"),
    "talk.mp3.001": ("libmp3lame", 16_000, "mp3"),
    "camera.mod": ("ac3", 48_000, "vob"),
    "stream.dump": ("aac", 16_000, "adts"),
    "tv.rec": ("mp2", 48_000, "mpegts"),
    "disc.xec3": ("eac3", 48_000, "eac3"),
    "studio.x": ("pcm_s24le", 48_000, "mxf_opatom"),
    "page.xogg": ("libopus", 48_000, "ogg"),
    "clip.xmkv": ("libopus", 48_000, "matroska"),
}
OTHERS = {
    "text": b"a list of words\n" * 9,
    "latin1.corpus": "Größe und Maß\r\n".encode("latin-1") * 9,
    "utf16.notes": "\ufeffa list of words\n".encode("utf-16-le") * 9,
    "picture.x": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(99),
    "picture.y": b"\x89PNG\r\n\x1a\n" + bytes(99),
    "phone.x": b"\0\0\0\x24ftypheic\0\0\0\0mif1heic" + bytes(99),
    "program": b"\x7fELF\2\1\1" + bytes(99),
    "letter.x": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99),
    "font.x": b"\0\1\0\0\0\x0f\0\x80" + bytes(99),
    "base.x": b"SQLite format 3\0" + bytes(99),
    "array.x": b"\x93NUMPY\1\0v\0{'descr'" + bytes(99),
    "weights.x": (99).to_bytes(8, "little") + b'{"a":{}}' + bytes(99),
    "notes.x": b"MThd\0\0\0\6\0\1" + bytes(99),
    "features.ark": b"utt1 \0BFM \4" + bytes(99),
    "empty.x": b"",
}


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, held in files.items():
        (folder / name).write_bytes(held)


def listed(*inputs: object) -> tuple[list[str], dict[str, int]]:
    left_out: Counter[str] = Counter()
    found = list(expand([str(one) for one in inputs], left_out=left_out))
    return [item.message if isinstance(item, Failure) else item.id for item in found], dict(left_out)


def test_recordings_of_any_name_are_taken(tmp_path: Path) -> None:
    for name, (codec, rate, container) in RECORDINGS.items():
        encode(tmp_path / name, codec, rate, seconds=1.5, format=container)
    expected = sorted(RECORDINGS)
    assert listed(tmp_path) == listed(tmp_path / "**") == listed(tmp_path / "*") == (expected, {})


def test_what_else_lies_in_a_folder_is_not(tmp_path: Path) -> None:
    put(tmp_path, OTHERS)
    with zipfile.ZipFile(tmp_path / "slides.key", "w") as archive:
        archive.writestr("a.wav", b"RIFF")
    soundfile.write(tmp_path / "a.wav", np.zeros(99), 16_000)
    found, left_out = listed(tmp_path)
    assert found == ["a.wav"] and sum(left_out.values()) == len(OTHERS) + 1
    assert not any(UNKNOWN_CONTENT in kind for kind in left_out)


def test_what_may_be_audio_is_said(tmp_path: Path) -> None:
    put(tmp_path, {"a.raw": np.random.default_rng(0).bytes(9_000), "b.xyz": np.random.default_rng(1).bytes(9_000)})
    found, left_out = listed(tmp_path)
    assert found == ["no audio in this folder"]
    assert left_out == {".raw (unknown content)": 1, ".xyz (unknown content)": 1}


def test_archives_of_a_folder_are_named_with_what_reads_them(tmp_path: Path) -> None:
    put(tmp_path, {"a.tar": bytes(512)})
    assert listed(tmp_path)[0] == [f"no audio in this folder; of tar archives name each: '{tmp_path}/*.tar'"]


def test_telephone_samples_are_errors_of_their_own(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"a.ulaw": b"\xff\xfe" * 900, "b.alaw": b"\xd5\x55" * 900, "c.sln": bytes(900), "d.sln": b"Microsoft\n" * 9},
    )
    assert listed(tmp_path) == (["a.ulaw", "b.alaw", "c.sln"], {".sln": 1})


def test_known_names_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(
        tmp_path,
        dict.fromkeys(("a.wav", "b.MP3", "c.qta", "d.txt", "e.TextGrid", "f.json", "g.jpg", "h.docx"), b"x" * 99),
    )
    monkeypatch.setattr(folders, "why_left_out", None)
    assert listed(tmp_path)[0] == ["a.wav", "b.MP3", "c.qta"]


def test_a_strange_binary_is_read_a_little_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.x").write_bytes(np.random.default_rng(0).bytes(9_000))
    seen: list[object] = []
    monkeypatch.setattr(
        containers, "_open", lambda path, file, options: seen.append(options) or original(path, file, options)
    )
    assert why_left_out(str(tmp_path / "a.x")) == UNKNOWN_CONTENT and seen == [{"formatprobesize": "32768"}]


original = containers._open


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
def test_pipes_and_broken_links_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.x").symlink_to("nowhere")
    assert listed(tmp_path) == (["no audio in this folder"], {"no extension": 1, ".x (unknown content)": 1})
