"""Recordings and lists on stdin are told apart, and a stream of any format is read."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from fastscribe.audio import inputs
from fastscribe.audio.inputs import expand, is_audio, split_head
from fastscribe.audio.media import EncodedBytes
from fastscribe.audio.probe import probe
from fastscribe.errors import AudioError
from fastscribe.results.journal_ledger import key_of
from fastscribe.types import Failure, Source
from tests.conftest import AUDIO
from tests.helpers.containers import encode

CODECS = {
    "mp3": "libmp3lame",
    "m4a": "aac",
    "aac": "aac",
    "mka": "aac",
    "webm": "libopus",
    "ogg": "libopus",
    "wma": "wmav2",
}
LISTS = [b"a.wav\n", b"./a.wav\0./b\nc.wav\0", b"/my/free/mdat.wav\n", b"ID3/x.wav\0b", b"RIFF/a.wav", b"data/ftyp",
         b"\xe9.wav\n", b"FORM.wav\nAIFF", b"wvpk/a.wav\n", b"MP+/a.wav\n", b"C:\\a.wav\r\n", b"", b"\n"]  # fmt: skip


def read(content: bytes, block_bytes: int = 1 << 16) -> Source:
    blocks = (content[at : at + block_bytes] for at in range(0, len(content), block_bytes))
    [found] = expand(["-"], blocks)
    assert isinstance(found, Source) and found.path == "-"
    return found


@pytest.mark.parametrize("content", LISTS)
def test_lists_are_no_recordings(content: bytes) -> None:
    assert not is_audio(content)


@pytest.mark.parametrize("extension", CODECS)
def test_recordings_of_each_format(tmp_path: Path, extension: str) -> None:
    rate = 48_000 if extension == "webm" or extension == "ogg" else 16_000
    content = encode(tmp_path / f"a.{extension}", CODECS[extension], rate).read_bytes()
    assert abs(probe(read(content)).duration_s - 3.0) < 0.2


def test_a_cut_recording_is_called_damaged() -> None:
    """The message is that of a file: the first bytes tell the format."""
    with pytest.raises(AudioError, match="damaged or truncated"):
        probe(read(b"\0\0\0\x1cftypM4A \0\0\2\0" + bytes(500)))


def test_id_and_key_are_of_the_content() -> None:
    first, second = (path.read_bytes() for path in sorted(AUDIO.glob("0[12]*")))
    one, again, two = read(first), read(first, 100), read(second)
    assert one.id.startswith("stdin-") and one.id == again.id != two.id
    assert key_of(one) == key_of(again) != key_of(two)
    assert cast(EncodedBytes, one.file).content == first


def test_too_long_a_stream_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_BYTES", 2000)
    blocks = iter([b"fLaC\0" + bytes(1000)] * 9)
    [failure] = expand(["-"], blocks)
    assert isinstance(failure, Failure) and "the most that stdin may" in failure.message
    assert len(list(blocks)) == 7  # the rest was not read


def test_a_typed_path_is_not_held_back() -> None:
    def typed() -> object:
        yield b"a.wav\n"
        raise AssertionError("read on")

    assert split_head(typed())[0] == b"a.wav\n"  # type: ignore[arg-type]


def test_other_bytes_are_no_list_of_failures() -> None:
    noise = bytes(range(1, 256)) * 40
    assert is_audio(noise)
    with pytest.raises(Exception, match="not audio"):
        probe(read(noise))
