"""Values of headers, and one clear line for anything that is no readable recording."""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.audio import probe as probe_module
from fastscribe.audio.formats import AUDIO_EXTENSIONS, FORMATS, UNSUPPORTED_SUBTYPES
from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.audio.mp3_header import RESYNC_BYTES, mp3_length_s
from fastscribe.audio.ogg import checksum, examine
from fastscribe.audio.probe import planned, probe
from fastscribe.audio.read import read
from fastscribe.audio.unusual_header import JOINED
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Source

RATE = 16_000


def write(path: Path, num_samples: int = RATE, rate: int = RATE, channels: int = 1, **options) -> Path:
    noise = np.random.default_rng(0).normal(0, 0.1, (num_samples, channels)).astype(np.float32)
    soundfile.write(path, noise, rate, **options)
    return path


@cache
def ogg(seconds: int, subtype: str) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.1, seconds * RATE).astype(np.float32)
    soundfile.write(file, noise, RATE, format="OGG", subtype=subtype)
    return file.getvalue()


def source(path: Path, **cut) -> Source:
    return Source(str(path), str(path), path.name, **cut)


def held(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def patched(path: Path, *changes: tuple[int | bytes, bytes]) -> Path:
    """Overwrite bytes of a file, each from an offset on, or from the first place behind other bytes."""
    content = bytearray(path.read_bytes())
    for where, new in changes:
        at = where if isinstance(where, int) else content.index(where) + len(where)
        content[at : at + len(new)] = new
    return held(path, bytes(content))


def problem(path: Path, **cut) -> str:
    with pytest.raises(AudioError) as caught:
        probe(source(path, **cut))
    assert str(caught.value) == f"{path}: {caught.value.problem}"
    assert "\n" not in str(caught.value)
    return caught.value.problem


@pytest.mark.parametrize("extension", ["wav", "flac", "mp3", "ogg", "aiff", "w64", "caf", "au"])
@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (44_100, 2)])
def test_headers(tmp_path, extension, rate, channels):
    path = write(tmp_path / f"a.{extension}", 12_345, rate, channels)
    assert probe(source(path)) == AudioInfo(str(path), path.name, rate, channels, 12_345)


@pytest.mark.parametrize(
    ("offset_s", "duration_s", "start", "num_samples"),
    [
        (None, None, 0, RATE),
        (0.0, 5.0, 0, RATE),
        (0.25, None, 4_000, 12_000),
        (0.25, 0.25, 4_000, 4_000),
        (0.25, 1e300, 4_000, 12_000),
        (0.99999, None, 15_999, 1),
        (0.100099, 0.100099, 1_601, 1_601),
    ],
)
def test_offset_and_duration(tmp_path, offset_s, duration_s, start, num_samples):
    audio = probe(source(write(tmp_path / "a.wav"), offset_s=offset_s, duration_s=duration_s))
    assert (audio.start, audio.num_samples) == (start, num_samples)


def test_nothing_to_read(tmp_path):
    path = write(tmp_path / "a.wav")
    assert problem(tmp_path / "gone.wav") == "no such file or folder"
    assert problem(tmp_path) == "is a folder, not a file"
    assert problem(held(tmp_path / "empty.wav", b"")) == "is empty (0 bytes)"
    assert problem(write(tmp_path / "b.wav", 0)) == "holds no samples"
    assert "holds no samples" in problem(path, duration_s=1e-6)
    for offset_s in (1.0, 7.5, 1e308):
        assert f"offset {offset_s} s lies beyond its end (1.00 s)" in problem(path, offset_s=offset_s)


@pytest.mark.posix
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    assert problem(tmp_path / "pipe.wav").startswith("is a pipe or device, not a file; ")


def test_permission_denied_by_the_system(tmp_path, monkeypatch):
    def refuse(head, file, num_bytes):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(probe_module, "plain_header", refuse)
    assert problem(write(tmp_path / "a.wav")) == "permission denied"


@pytest.mark.parametrize("content", [b"R", b"RIFF", b"hello world\n" * 100, b"RIFF\0\0\0\0WAVEfmt ", b"\0" * 5000])
@pytest.mark.parametrize("extension", ["wav", "mp3"])
def test_not_audio(tmp_path, content, extension):
    found = problem(held(tmp_path / f"a.{extension}", content))
    assert "not audio" in found or "cannot be opened" in found


@pytest.mark.parametrize("extension", ["m4a", "MP4", "webm", "aac", "mkv", "mov"])
def test_containers_that_are_none(tmp_path, extension):
    assert problem(held(tmp_path / f"a.{extension}", b"\0\0\0\x20ftypM4A " + b"x" * 100)) == (
        "damaged or truncated, or in a format that FFmpeg does not read: check that a player opens it"
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.ulaw", "-f mulaw -ar 8000"),
        ("a.ALAW", "-f alaw -ar 8000"),
        ("a.sln", "-f s16le -ar 8000"),
        ("a.sln44", "-f s16le -ar 44100"),
        ("a.g722", "-f g722"),
        ("a.sbc", "-f sbc"),
        ("a.vox", "-f u8 -ar 8000 -c:a adpcm_ima_oki"),
        ("a.raw", "-f s16le -ar 16000"),
    ],
)
def test_samples_without_a_header(tmp_path, name, options):
    """The bytes begin like MPEG audio, as silence in A-law or µ-law may."""
    path = held(tmp_path / name, b"\xff\xfb" * 5_000)
    line = f"samples without a header are not read: make a WAV file of it: ffmpeg {options} -i {path} a.wav"
    assert problem(path).removesuffix(" (with its own sample type and rate)") == line
    with pytest.raises(AudioError, match=re.escape(line)):  # a list's row names it from the list
        probe(Source(name, str(path), name))
    assert problem(held(path, b"Microsoft Visual Studio Solution File\n" * 100)) == "is text, not audio"


def test_a_name_without_a_header_and_a_content_with_one(tmp_path):
    for name, kind in {"a.raw": "WAV", "b.raw": "AIFF", "c.ulaw": "AU"}.items():
        assert probe(source(write(tmp_path / name, format=kind, subtype="PCM_24"))).num_samples > 0


def behind_a_tag(content: bytes) -> bytes:
    return b"ID3\4\0\0" + bytes([0, 0, 2, 3]) + bytes(2 * 128 + 3) + content


def behind_an_odd_chunk(content: bytes) -> bytes:
    """The file with a chunk of three bytes, and the one that makes them even, before the others."""
    return content[:12] + b"JUNK\3\0\0\0abc\0" + content[12:]


def without_byte_rate(content: bytes) -> bytes:
    """As FFmpeg writes it for MP3 samples."""
    return content[:28] + bytes(4) + content[32:]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"endian": "BIG"}, bytes),
        ({}, behind_a_tag),
        ({"subtype": "ULAW"}, without_byte_rate),
        ({}, behind_an_odd_chunk),
    ],
)
def test_truncated_wav(tmp_path, options, changed):
    """Plain ones of every sample type are in test_truncated_file_of_every_format."""
    path = tmp_path / "a.wav"
    content = changed(write(path, 2 * RATE, **options).read_bytes())
    assert probe(source(held(path, content))).duration_s == pytest.approx(2, abs=0.05)
    lengths = r"2\.0. s, file holds (?:1\.0|0\.9)|32,000 bytes of samples, "
    found = problem(held(path, content[: len(content) // 2]))
    assert re.match(rf"truncated: header promises (?:{lengths})", found) is not None


TAGS = struct.pack("<4sI4s4sI6s", b"LIST", 18, b"INFO", b"ISFT", 6, b"Editor") + b"cue \x05\0\0\0abcde\0"
LONG_TAGS = TAGS + b"LIST" + struct.pack("<I", 200) + b"INFO" * 50
PACKET_TABLE = b"pakt" + (24).to_bytes(8, "big") + bytes(24)


@pytest.mark.parametrize(
    ("name", "options", "behind"),
    [
        *(("a.wav", options, b"") for options in ({}, {"format": "RF64"}, {"endian": "BIG"})),
        *(("a.wav", {"subtype": subtype}, LONG_TAGS) for subtype in ("PCM_16", "PCM_U8", "FLOAT")),
        *(("a.caf", {}, behind) for behind in (b"", PACKET_TABLE)),
        ("a.au", {}, b""),
    ],
)
def test_joined_files(tmp_path, name, options, behind):
    """Chunks may stand behind the samples, and a reader may see the first recording alone."""
    path = write(tmp_path / name, 999, **options)
    content = path.read_bytes()
    content += bytes(len(content) % 2) + behind
    assert probe(source(held(path, content))).num_samples == 999
    assert problem(held(path, content * 2)) == JOINED


def with_data_size(path: Path, size: int) -> Path:
    return patched(path, (b"data", struct.pack("<I", size)))


@pytest.mark.parametrize(
    "behind",
    [
        *(b"", b"LIST" + bytes(9000), b"\0LIST" + bytes(9000), bytes(9000), b"TAG" + bytes(125)),
        *(b"\xff" * 9000, b"\x80" * 9000, bytes(5000) + b"LIST" + bytes(9000), b"ID3\3" + b"\1" * 9000),
        *(pad + struct.pack("<4sI", b"\0\1\0\0", 9000) + b"x" * 9000 for pad in (b"", b"\0", b"\x80")),
    ],
)
def test_data_after_wav_samples(tmp_path, behind):
    content = write(tmp_path / "a.wav").read_bytes()
    assert probe(source(held(tmp_path / "a.wav", content + behind))).num_samples == RATE


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFFF, 2 * RATE + 44])
def test_wav_streamed_size(tmp_path, size):
    assert probe(source(with_data_size(write(tmp_path / "a.wav"), size))).num_samples == RATE


@pytest.mark.parametrize("less", [0, 8])
def test_wav_size_of_the_whole_file_behind_a_long_header(tmp_path, less):
    """Some writers store the file's size, or that less 8, as the samples'."""
    path = write(tmp_path / "a.wav")
    content = path.read_bytes()
    path.write_bytes(content[:12] + b"LIST" + struct.pack("<I", 9000) + bytes(9000) + content[12:])
    assert probe(source(with_data_size(path, path.stat().st_size - less))).num_samples == RATE


def loud_after(path: Path, silent_s: float, loud_s: float, silent_after_s: float = 0.0) -> bytes:
    """Write a variable-bit-rate MP3 with a Xing frame that counts its frames; return its content."""
    parts_s = [(silent_s, 0.0), (loud_s, 0.3), (silent_after_s, 0.0)]
    rng = np.random.default_rng(0)
    noise = np.concatenate([rng.normal(0, 1, int(length_s * RATE)) * gain for length_s, gain in parts_s])
    soundfile.write(path, noise, RATE, bitrate_mode="VARIABLE", compression_level=0.2)
    return path.read_bytes()


def without_xing(content: bytes) -> bytes:
    assert b"Xing" in content[:200] or b"Info" in content[:200]
    return content[content.index(content[:2], 3) :]


def constant_rate(path: Path, num_samples: int) -> bytes:
    return write(path, num_samples, bitrate_mode="CONSTANT", compression_level=0.5).read_bytes()


def test_ordinary_mp3_not_walked(tmp_path):
    content = loud_after(tmp_path / "a.mp3", 1, 1)
    assert mp3_length_s(content) is None
    assert probe(source(tmp_path / "a.mp3")).num_samples == 2 * RATE


@pytest.mark.parametrize("is_without_xing", [True, False])
def test_mp3_guess_too_long(tmp_path, is_without_xing):
    """Without a Xing frame, or with one whose counts were never filled in."""
    path = tmp_path / "a.mp3"
    content = loud_after(path, 2, 2)
    if is_without_xing:
        held(path, without_xing(content))
    else:
        patched(path, (b"Xing\0\0\0\x0f", bytes(8)))
    with soundfile.SoundFile(path) as sound:
        assert sound.frames > 6 * RATE
    assert probe(source(path)).duration_s == pytest.approx(4.05, abs=0.06)


def test_mp3_guess_too_short(tmp_path):
    path = tmp_path / "a.mp3"
    audio = probe(source(held(path, without_xing(loud_after(path, 0, 2, 4)))))
    assert audio.duration_s == pytest.approx(6.05, abs=0.06) and audio.track == 0
    samples = read(audio, 0, audio.num_samples, sample_rate=RATE)
    assert np.abs(samples[RATE // 2 : RATE]).max() > 0.1 > np.abs(samples[3 * RATE :]).max()


@pytest.mark.parametrize(
    "between", [b"", b"ID3\4\0\0\0\1\0\0" + b"\xff" * 128 * 128, b"TAG" + b"\xff" * 125, b"\0" * 999]
)
def test_joined_mp3s(tmp_path, between):
    path = tmp_path / "a.mp3"
    second = loud_after(tmp_path / "b.mp3", 2, 1)
    audio = probe(source(held(path, constant_rate(path, 2 * RATE) + between + second)))
    assert audio.duration_s == pytest.approx(5.1, abs=0.11)
    samples = read(audio, 0, audio.num_samples, sample_rate=RATE)
    quiet, loud = samples[int(2.3 * RATE) : int(3.9 * RATE)], samples[int(4.3 * RATE) : int(4.9 * RATE)]
    assert np.abs(quiet).max() < 0.01 and np.abs(loud).max() > 0.5
    cut = probe(source(path, offset_s=4.3, duration_s=0.6))
    np.testing.assert_allclose(read(cut, 0, cut.num_samples, sample_rate=RATE), loud, atol=1e-4)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3_frame_count(tmp_path, rate, channels):
    content = write(tmp_path / "a.mp3", 2 * rate, rate, channels).read_bytes()
    content += b"TAG" + bytes(200)  # longer than stated, so that the frames are walked
    held_s, is_stated = mp3_length_s(content)
    assert is_stated and held_s == pytest.approx(2.0, abs=1e-9)
    held_s, is_stated = mp3_length_s(without_xing(content))
    assert not is_stated and 2.0 < held_s < 2.5


def test_what_is_between_and_behind_the_frames_of_an_mp3(tmp_path):
    path = tmp_path / "a.mp3"
    before = b"ID3\4\0\0\0\7\0\0" + b"\xff\xf3" * (7 * 128 * 64)
    after = b"APETAGEX" + struct.pack("<IIII8x", 2000, 100_000, 1, 0) + b"\xff" * 100_000 + b"TAG" + bytes(125)
    content = constant_rate(path, 4 * RATE)
    assert probe(source(held(path, before + content + after))).num_samples == 4 * RATE
    assert mp3_length_s(content + bytes(2 * RESYNC_BYTES)) is None
    assert probe(source(held(path, content + bytes(2 * RESYNC_BYTES)))).num_samples == 4 * RATE


OGG_SUBTYPES = [name for name in ("VORBIS", "OPUS") if name in soundfile.available_subtypes("OGG")]
OGG_DAMAGE = "damaged: its first or last Ogg pages are not whole"


def with_last_page(content: bytes, at: int, new: bytes) -> bytes:
    """Change bytes in the last page of an Ogg file, and its checksum."""
    page = bytearray(content[content.rindex(b"OggS") :])
    page[at : at + len(new)] = new
    page[22:26] = checksum(bytes(page)).to_bytes(4, "little")
    return content[: content.rindex(b"OggS")] + page


@pytest.mark.parametrize("subtype", OGG_SUBTYPES)
def test_damaged_ogg(tmp_path, subtype):
    path, content = tmp_path / "a.ogg", ogg(9, subtype)
    second = content.replace(content[14:18], b"next")
    one = "damaged: several recordings in one, of which the first page of one is not whole: "
    assert problem(held(path, content + second)).startswith(one)
    cut_off = (
        "truncated: ends in the middle of an Ogg page; get the whole file, or save what is there: ffmpeg -i IN OUT.wav"
    )
    for missing in (1, 100, 5000):
        assert problem(held(path, content[:-missing])) == cut_off
    starts = [found.start() for found in re.finditer(b"OggS", content)]
    for end in (*starts[1:4], starts[-1], len(content)):  # libsndfile skips the page and reports a length without it
        assert problem(held(path, content[: end - 1] + bytes([content[end - 1] ^ 1]) + content[end:])) == OGG_DAMAGE
    assert "header promises" in problem(held(path, with_last_page(content, 6, struct.pack("<q", 1 << 50))))


def test_ogg_page_at_which_libsndfile_stops(tmp_path):
    """A page that claims to be longer than the rest of the file. libsndfile takes the length from those before it."""
    content = ogg(9, "VORBIS")
    starts = [found.start() for found in re.finditer(b"OggS", content)]
    path = patched(held(tmp_path / "a.ogg", content), (starts[-4] + 26, b"\xff"))  # segments
    assert soundfile.info(path).duration < 7
    assert problem(path).startswith("truncated: header promises ")


@pytest.mark.parametrize("num_bytes", [90_000, 98_000, 131_000, 600_000])
def test_ogg_long_comments(tmp_path, num_bytes):
    path = tmp_path / "a.ogg"
    with soundfile.SoundFile(path, "w", RATE, 1) as sound:
        sound.comment = "x" * num_bytes
        sound.write(np.random.default_rng(0).normal(0, 0.1, 2 * RATE))
    assert path.stat().st_size > num_bytes
    assert probe(source(path)).num_samples == 2 * RATE
    assert problem(patched(path, (num_bytes // 2, b"y"))) == OGG_DAMAGE


@pytest.mark.parametrize("subtype", OGG_SUBTYPES)
@pytest.mark.parametrize(
    ("behind", "is_no_audio"),
    [
        (b"\n", True),
        (b"O", False),
        (b"Ogg", False),
        (b"\xff" * 9000, True),
        (b"LYRICSBEGIN" + b"x" * 90, True),
        (b"1 2 3" * 10, False),
    ],
)
def test_data_after_last_ogg_page(tmp_path, subtype, behind, is_no_audio):
    """Anything may follow a page with the end-of-stream flag; else it may be the rest of another page."""
    path, content = tmp_path / "a.ogg", ogg(2, subtype)
    assert probe(source(held(path, content + behind))).num_samples == 2 * RATE
    assert problem(held(path, content + behind + b"OggS\1")) == OGG_DAMAGE
    held(path, with_last_page(content, 5, b"\0") + behind)
    if is_no_audio:
        assert probe(source(path)).num_samples == 2 * RATE
    else:
        assert problem(path) == OGG_DAMAGE


def page(flags: int, serial: int, payload: bytes = b"x" * 200) -> bytes:
    return struct.pack("<4sBBQIIIBB", b"OggS", 0, flags, 0, serial, 0, 0, 1, len(payload)) + payload


def test_ogg_pages():
    def problem_of(content: bytes) -> str | None:
        found = examine(content)
        return found and found.problem

    one = page(2, 7) + 1000 * page(0, 7)
    for whole in (
        one + page(4, 7),
        one,  # as Android writes it
        one + page(4, 7) + b"TAG" + bytes(125),
        page(2, 8) + one + page(4, 8),  # interleaved
        one + page(4, 7, b"OggS\1" * 40),
    ):
        assert problem_of(whole) == OGG_DAMAGE  # they have no checksums
    assert "several recordings in one" in problem_of(one + page(2, 8) + page(4, 8))
    for cut in (one + page(4, 7)[:20], one + page(4, 7)[:100]):
        assert problem_of(cut) == "truncated: ends in the middle of an Ogg page"
    assert examine(b"RIFF" * 10) is None


# The header has no length; the file's structure is examined instead (flac.py, ogg.py ..).
WITHOUT_DATA_SIZE = {"FLAC", "MP3", "OGG"}


def kinds(formats: set[str]) -> list[tuple[str, str]]:
    every = ((name, subtype) for name in sorted(formats) for subtype in soundfile.available_subtypes(name))
    return [(name, subtype) for name, subtype in every if not subtype.startswith(UNSUPPORTED_SUBTYPES)]


def written(path: Path, sound_format: str, subtype: str) -> bytes:
    """The content of a healthy file; skip the test for kinds that libsndfile cannot write."""
    rate = 8_000 if subtype.startswith(("G72", "NMS")) else RATE
    try:
        return write(path, 2 * rate, rate, format=sound_format, subtype=subtype).read_bytes()
    except soundfile.SoundFileError as error:
        pytest.skip(f"not written by this libsndfile: {error}")


@pytest.mark.parametrize(("sound_format", "subtype"), kinds(FORMATS - WITHOUT_DATA_SIZE))
def test_truncated_file_of_every_format(tmp_path, sound_format, subtype):
    path = tmp_path / "a.sound"
    content = written(path, sound_format, subtype)
    audio = probe(source(path))
    samples = read(audio, 0, audio.num_samples, sample_rate=audio.sample_rate)
    assert len(samples) == audio.num_samples and 2.0 <= audio.duration_s < 2.1
    for num_bytes in (len(content) // 3, len(content) // 2, len(content) * 9 // 10):
        assert problem(held(path, content[:num_bytes])).startswith("truncated: header promises ")
    held(path, content[:-1])  # some writers' headers are slightly wrong
    assert 1.9 <= probe(source(path)).duration_s <= audio.duration_s
    for num_bytes in (1, 4, 11, 20, 30, 39):  # in the header
        assert problem(held(path, content[:num_bytes]))


# libsndfile reads these too, but their headers do not reveal truncation, to FFmpeg neither.
READ_BY_FFMPEG = {"AVR", "IRCAM", "PAF", "PVF", "SVX", "VOC"}


@pytest.mark.parametrize("sound_format", sorted(READ_BY_FFMPEG))
def test_rare_formats_are_for_ffmpeg(tmp_path, sound_format):
    audio = probe(source(write(tmp_path / "a.sound", format=sound_format)))
    assert audio.track == 0
    expected = read(probe(source(write(tmp_path / "a.wav"))), 0, RATE, sample_rate=RATE) / np.float32(32_768)
    np.testing.assert_allclose(read(audio, 0, RATE, sample_rate=RATE), expected, atol=0.008)  # SVX has 8 bits


@pytest.mark.parametrize(
    "sound_format", sorted(set(soundfile.available_formats()) - FORMATS - READ_BY_FFMPEG - {"RAW", "SD2"})
)
def test_unsupported_formats(tmp_path, sound_format):
    """Formats whose headers do not reveal truncation, or that are rare; and rare samples of others."""
    path = write(tmp_path / f"a.{sound_format.lower()}", format=sound_format)
    assert path.suffix[1:] not in AUDIO_EXTENSIONS
    expected = f"{sound_format} files are not read: convert it to wav or flac, e.g. with ffmpeg or sox"
    assert problem(path) in (expected, "not audio, or in a format that neither libsndfile nor FFmpeg reads")
    path = write(tmp_path / "a.sound", format="AIFF", subtype="DWVW_16")
    assert problem(path) == expected.replace(sound_format, "AIFF").replace("files", "files of DWVW_16 samples")


def test_planned_from_manifest():
    given = Source("a", "b/a", "a@500", {"duration": 1.5}, offset_s=0.5, duration_s=1.5, index=7)
    assert planned(given, RATE) == AudioInfo(
        "a", "a@500", RATE, 1, 24_000, row={"duration": 1.5}, index=7, unread=given
    )
    assert planned(Source("a", "a", "a", duration_s=1e-9), RATE).num_samples == 1


def test_text_is_named_and_a_list_has_a_hint(tmp_path):
    hint = (
        "; a list of paths, one a line, goes to stdin (fastscribe transcribe - < LIST), or has a name that ends in .txt"
    )
    assert problem(held(tmp_path / "list", b"/a/b.wav\n")) == "is text, not audio" + hint
    assert problem(held(tmp_path / "page.wav", b"<html></html>")) == "is text, not audio"
    for medium in (EncodedBytes(b"/a/b.wav", "input 0"), FileObject(io.BytesIO(b"/a/b.wav"), "input 0")):
        with pytest.raises(AudioError, match=r"is text, not audio; bytes and file objects .*: give a path as a str$"):
            probe(Source("input 0", medium, "input 0"))  # which a program gave


def compressed_sphere(path: Path) -> Path:
    content = write(path, format="NIST").read_bytes()
    shorten = content.replace(b"sample_coding -s3 pcm", b"sample_coding -s26 pcm,embedded-shorten-v2.00")
    return held(path, shorten[:9000])


def with_mp3_count(path: Path, factor: int) -> Path:
    content = constant_rate(path, 4 * RATE)
    at = content.index(b"Info") + 8
    return patched(path, (at, (factor * int.from_bytes(content[at : at + 4], "big")).to_bytes(4, "big")))


PROBLEMS: dict[str, tuple[Callable[[Path], Path], str]] = {
    **{
        f"zeros in front of {name}": (
            lambda path, name=name: held(path, bytes(3000) + write(path, format=name).read_bytes()),
            "3,000 bytes of something else stand before its recording: cut them off, e.g. tail -c [+]3001 ",
        )
        for name in ("FLAC", "OGG")
    },
    "WAV of samples that no library decodes": (
        lambda path: patched(write(path, format="WAV", subtype="ULAW"), (20, struct.pack("<H", 0x1234))),
        "its audio is in a format that FFmpeg does not decode: convert it with the program that made it$",
    ),
    **{
        f"WAV of {rate} Hz": (
            lambda path, rate=rate: patched(
                write(path, format="WAV"), (24, struct.pack("<II", rate, min(2 * rate, 2**32 - 1)))
            ),
            f"damaged: its header gives a sample rate of {rate} Hz$",
        )
        for rate in (1, 999, 1_000_001, 2**31 - 1)
    },
    "WAV without samples or size": (
        lambda path: held(path, with_data_size(write(path, format="WAV"), 0).read_bytes()[:44] + b"LIST" + bytes(9000)),
        "holds no samples$",
    ),
    "CAF of an impossible size": (
        lambda path: patched(write(path, format="CAF"), (b"data", ((1 << 62) - 1).to_bytes(8, "big"))),
        "truncated: header promises ",
    ),
    "compressed SPHERE": (compressed_sphere, "(?!.*truncated)"),
    "truncated MP3": (
        lambda path: held(path, constant_rate(path, 4 * RATE)[:-4000]),
        "truncated: header promises 4.00 s, file holds ",
    ),
    **{
        f"MP3 of {factor} times the frames": (lambda path, factor=factor: with_mp3_count(path, factor), ".*header")
        for factor in (2, 1000)
    },
}


@pytest.mark.parametrize(("make", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(tmp_path, make, expected):
    assert re.match(expected, problem(make(tmp_path / "a.mp3")))


def without_flac_length(path: Path) -> Path:
    content = write(path, format="FLAC").read_bytes()
    return patched(path, (21, bytes([content[21] & 0xF0]) + bytes(4)))  # 36 bits for the number of samples


def test_sizes_that_streams_leave_out(tmp_path):
    for size in (0, 0x7FFFFFFF, 0xFFFFFFFF):
        unknown = struct.pack(">I", size)
        path = patched(write(tmp_path / "a.aiff"), (4, unknown), (b"SSND", unknown))
        assert probe(source(path)).num_samples == RATE
    found = probe(source(without_flac_length(tmp_path / "a.flac")))
    assert (found.num_samples, found.track) == (RATE, 0)  # FFmpeg's libraries count its frames
