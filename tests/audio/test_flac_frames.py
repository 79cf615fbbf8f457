"""The last frame of a FLAC file gives its length, whatever the header says."""

from __future__ import annotations

import io
import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.audio import unusual_header
from fastscribe.audio.flac import (
    _CRC_8,
    _checksum,
    after_blocks,
    ends_at,
    flac_ends_at,
    frame_header,
    plain_header,
)
from fastscribe.audio.probe import probe
from tests.audio.test_probe import held, problem, source

RATE = 16_000


def write(path: Path, num_samples: int, **options) -> bytes:
    noise = np.random.default_rng(num_samples).normal(0, 0.1, num_samples)
    soundfile.write(path, noise, RATE, **options)
    return path.read_bytes()


def with_samples(content: bytes, num_samples: int) -> bytes:
    packed = int.from_bytes(content[18:26], "big")
    return content[:18] + (packed >> 36 << 36 | num_samples).to_bytes(8, "big") + content[26:]


@pytest.mark.parametrize(
    ("subtype", "num_samples"),
    [
        *itertools.product(("PCM_16", "PCM_24", "PCM_S8"), (1, 15, 16, 4095, 4096, 4097, 5000, 8192, 130 * 4096)),
        ("PCM_16", 2_100 * 4096 + 300),  # numbers of frames in three bytes
    ],
)
def test_libsndfile_output_accepted(tmp_path, num_samples, subtype):
    content = write(tmp_path / "a.flac", num_samples, subtype=subtype)
    assert flac_ends_at(content, num_samples)
    assert not any(flac_ends_at(content, num_samples + off) for off in (-4096, -1, 1, 4096))


def to_utf8(value: int) -> bytes:
    """Encode a number as RFC 9639 does; Python's UTF-8 encoder where it can."""
    if value < 0x110000 and not 0xD800 <= value < 0xE000:
        return chr(value).encode()
    length = next(length for length in range(3, 8) if value < 1 << (5 * length + 1))
    following = [0x80 | value >> 6 * place & 0x3F for place in reversed(range(length - 1))]
    return bytes([0xFF & ~(0xFF >> length) | value >> 6 * (length - 1), *following])


@given(st.binary(max_size=40))
def test_random_bytes_accepted(data):
    assert not ends_at(2**50, 4096, data)
    frame = frame_header(data, 4096)
    assert frame is None or frame.end > frame.start


@given(st.integers(0, 2**31 - 1), st.integers(1, 65_536), st.booleans())
def test_frame_and_sample_numbers(number, size, variable):
    header = (
        b"\xff" + (b"\xf9" if variable else b"\xf8") + b"\x75\x08" + to_utf8(number) + (size - 1).to_bytes(2, "big")
    )
    start = number if variable else number * 4096
    assert frame_header(header + bytes(8), 4096) == (start, start + size, len(header))


@pytest.mark.parametrize("num_samples", [1, RATE, 2**33, 2**36 - 1])
@pytest.mark.parametrize("tags", [b"", b"ID3\4\0\0\0\0\0\x0a" + bytes(10)])
def test_wrong_header_length(tmp_path, num_samples, tags):
    content = with_samples(write(tmp_path / "a.flac", 3 * RATE), num_samples)
    said = problem(held(tmp_path / "a.flac", tags + content))
    assert "it does not end after the" in said and said.endswith(": convert it, e.g. with ffmpeg")


def test_joined_files_of_different_lengths(tmp_path):
    path = tmp_path / "a.flac"
    content = write(path, 3 * RATE)
    for joined in (content + write(path, RATE), write(path, RATE) + content):
        assert "several in one" in problem(held(path, joined))


TAG_WITH_MAGIC = b"TXXX\0\0\0\x0a\0\0fLaC 1.4.3"


@pytest.mark.parametrize(
    "changed",
    [
        *(lambda content, behind=behind: content + behind for behind in (b"", bytes(100_000), b"TAG" + bytes(125))),
        lambda content: content + b"APETAGEX" + b"\xff\xf8" * 50_000,
        lambda content: b"ID3\4\0\0\0\0\0" + bytes([len(TAG_WITH_MAGIC)]) + TAG_WITH_MAGIC + content,
        lambda content: content[:10] + b"\xff\xff" + content[12:],  # a larger block than any
    ],
)
def test_what_changes_no_samples(tmp_path, changed):
    path = tmp_path / "a.flac"
    assert probe(source(held(path, changed(write(path, 3 * RATE))))).num_samples == 3 * RATE


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("seconds", [(3, 3), (3, 1), (1, 3), (3, 3, 3), (2,) * 5, (1, 2, 1), (3, 1, 1, 3)])
def test_joined_files_with_one_header(tmp_path, channels, seconds):
    """As ffmpeg joins files: the only header is the first file's, where libsndfile would stop."""
    path, parts = tmp_path / "a.flac", []
    for number, length_s in enumerate(seconds):
        noise = np.random.default_rng(number).normal(0, 0.1, (length_s * RATE, 1))
        soundfile.write(path, np.hstack([noise] * channels), RATE)
        content = path.read_bytes()
        assert plain_header(content, io.BytesIO(content), len(content)) is not None
        parts.append(content if number == 0 else content[after_blocks(content, 4) :])
    assert "several in one" in problem(held(path, b"".join(parts)))


def renumbered(content: bytes, num_blocks: int) -> bytes:
    """Give all frames the first one's number: checksums of samples no longer match, those of headers do."""
    for number in range(1, num_blocks):
        at = next(at for at in range(len(content)) if content[at : at + 2] == b"\xff\xf8" and content[at + 4] == number)
        head = content[at : at + 4] + b"\0" + content[at + 5 : at + 5 + 2 * (content[at + 2] >> 4 == 7)]
        checksum = next(value for value in range(256) if _checksum(head + bytes([value]), _CRC_8) == 0)
        content = content[:at] + head + bytes([checksum]) + content[at + len(head) + 1 :]
    return content


def test_equal_frame_numbers_accepted(tmp_path):
    path = tmp_path / "a.flac"
    content = write(path, 4 * 4096 + 1000)
    changed = renumbered(content, 5)
    assert changed != content and flac_ends_at(changed, 4 * 4096 + 1000)
    endless = with_samples(changed, 2**36 - 1)  # these frames cannot contradict it; the file's size does
    assert flac_ends_at(endless, 2**36 - 1)
    assert "it does not end after the" in problem(held(path, endless))


@pytest.mark.parametrize("junk", [b"\xff", b"\xff\xf8", b"\xff\xf8\x75\x08\0\0"])
def test_long_trailing_data_is_fast(tmp_path, junk):
    content = write(tmp_path / "a.flac", 3 * RATE) + junk * (4_000_000 // len(junk))
    start = time.process_time()
    assert flac_ends_at(content, 3 * RATE)
    assert time.process_time() - start < 1


def test_file_removed_during_check(tmp_path, monkeypatch):
    def gone(path, num_samples):
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(unusual_header, "flac_ends_at", gone)
    content = with_samples(write(tmp_path / "a.flac", RATE), 7)
    assert problem(held(tmp_path / "a.flac", content)) == "no such file or folder"
