"""Files that a player plays to their end are read to their end, at the times that the player shows.

Their sizes were never filled in, their clock does not begin at 0, has gaps or starts again, or their sample rate changes.
Parts of them equal the same span of the whole.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
import soxr

from fastscribe.audio.flac import HEADER_BYTES, after_blocks, frame_header
from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.audio.ogg import PAGE_HEADER, checksum, has_opus_gaps
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.errors import AudioError
from fastscribe.results.formats.writers import to_object
from fastscribe.results.stored import to_result
from fastscribe.types import AudioInfo, Source, Transcript
from tests.audio.test_probe import OGG_DAMAGE, held, patched
from tests.audio.test_probe import source as given
from tests.helpers.containers import CLICK_S, encode, signal

RATE = 16_000
UNSTATED = "its header leaves its length out: it was read to the end of the file"


def whole(audio: AudioInfo) -> np.ndarray:
    samples = read(audio, 0, audio.num_samples, sample_rate=audio.sample_rate)
    assert len(samples) == audio.num_samples
    return samples


def problem(path: Path) -> str:
    with pytest.raises(AudioError) as caught:
        whole(probe(given(path)))
    return caught.value.problem


def clicks_s(samples: np.ndarray, rate: int) -> list[float]:
    """Return the times of the clicks of signal()."""
    loud = np.flatnonzero(np.abs(samples) > 0.3) / rate
    return [float(at) for at, before in zip(loud, [-1.0, *loud], strict=False) if at - before > 0.5]


def check_parts(path: Path, samples: np.ndarray, atol: float = 2e-3, jitter: int = 0) -> None:
    """Each part of a file is that of the whole, at most `jitter` samples away."""
    audio = probe(given(path))
    length = int(0.2 * audio.sample_rate)
    for at_s in np.linspace(0.05, audio.duration_s - 0.3, 12):
        at = int(at_s * audio.sample_rate)
        part = read(audio, at, length, sample_rate=audio.sample_rate)
        spans = [samples[at + by : at + by + length] for by in range(-min(jitter, at), jitter + 1)]
        assert min(np.abs(part - span).max() for span in spans if len(span) == length) < atol, f"at {at_s:.2f} s"


# Sizes


def int16() -> np.ndarray:
    return (signal(2.0, RATE) * 32_767).astype(np.int16)


def wav(size: int, samples: np.ndarray | None = None, behind: bytes = b"", order: str = "<") -> bytes:
    magic, data = (b"RIFF", int16() if samples is None else samples) if order == "<" else (b"RIFX", int16().byteswap())
    head = magic + bytes(4) + b"WAVEfmt " + struct.pack(order + "IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return head + b"data" + struct.pack(order + "I", size) + data.tobytes() + behind


def rf64(size: int) -> bytes:
    ds64 = b"ds64" + struct.pack("<IQQQI", 28, 0, size, 0, 0)
    return b"RF64\xff\xff\xff\xffWAVE" + ds64 + wav(0xFFFFFFFF)[12:]


def au(size: int, order: str = ">") -> bytes:
    magic, samples = (b".snd", int16().byteswap()) if order == ">" else (b"dns.", int16())
    return magic + struct.pack(order + "IIIII", 24, size, 3, RATE, 1) + samples.tobytes()


@pytest.mark.parametrize("make", [wav, lambda size: wav(size, order=">"), rf64, au, lambda size: au(size, "<")])
@pytest.mark.parametrize("size", [0, 20_000])
def test_sizes_that_were_never_filled_in(tmp_path, make, size):
    path = held(tmp_path / "a.sound", make(size))
    audio = probe(given(path))
    samples = whole(audio)
    np.testing.assert_array_equal(samples, int16() if audio.is_int16 else int16() / np.float32(32_768))
    assert (audio.is_int16, audio.track) == (True, None)
    note = UNSTATED if size == 0 else UNSTATED.replace("leaves its length out", "gives 0.62 s")
    assert audio.notes == (note,)
    check_parts(path, samples, 1e-9)


@pytest.mark.parametrize("subtype", ["PCM_24", "FLOAT", "ULAW", "IMA_ADPCM", "MS_ADPCM"])
def test_unfinished_wavs_of_other_samples(tmp_path, subtype):
    path = tmp_path / "a.wav"
    soundfile.write(path, signal(2.0, RATE), RATE, subtype=subtype)
    expected, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_allclose(whole(probe(given(patched(path, (b"data", bytes(4)))))), expected, atol=1e-6)


@pytest.mark.parametrize(
    "behind",
    [
        b"LIST" + struct.pack("<I", 40_000) + b"INFO" * 10_000,
        b"id3 " + struct.pack("<I", 40_001) + b"T" * 40_001,
        b"\0bext" + struct.pack("<I", 9_000) + b"T" * 9_000 + b"LIST" + struct.pack("<I", 4) + b"INFO",
        b"cut " + struct.pack("<I", 30_000) + b"T" * 40_000,
        b"LIST" + struct.pack("<I", 90_000) + b"INFO" * 10_000,  # the file ends within it
        bytes(200_000) + b"LIST" + struct.pack("<I", 4) + b"INFO",
        bytes(200_000),
    ],
)
def test_what_follows_the_samples_is_no_sound(tmp_path, behind):
    audio = probe(given(held(tmp_path / "a.wav", wav(2 * len(int16()), behind=behind))))
    assert (audio.num_samples, audio.notes) == (len(int16()), ())


@pytest.mark.parametrize("pause", [0, 40_000])
def test_samples_that_look_like_a_chunk_or_like_padding(tmp_path, pause):
    """The size is that of a moment of long silence, or of loud samples whose bytes are letters."""
    letters = np.frombuffer(b"ABCDwxyz", np.int16)
    samples = np.concatenate([int16()[:8_000], np.zeros(pause, np.int16), letters if pause == 0 else int16(), int16()])
    audio = probe(given(held(tmp_path / "a.wav", wav(16_000, samples))))
    assert audio.num_samples == len(samples) and "gives 0.50 s" in audio.notes[0]


def test_notes_are_in_the_row(tmp_path):
    path = tmp_path / "a.wav"
    stream = probe(given(held(path, wav(0xFFFFFFFF))))
    assert (stream.num_samples, stream.notes, stream.track) == (len(int16()), (UNSTATED,), None)
    row = to_object(Transcript(probe(given(held(path, wav(0)))), "", (), ()))
    assert row["audio_notes"] == [UNSTATED]
    assert to_object(to_result(row)) == row
    whole = probe(given(held(path, wav(2 * len(int16())))))
    assert "audio_notes" not in to_object(Transcript(whole, "", (), ()))


# Clocks that do not begin at 0, and lengths


@pytest.mark.parametrize("name", ["a.mkv", "a.webm", "a.mka", "a.flv", "a.ts", "a.mov"])
@pytest.mark.parametrize("start_s", [0.3, 5.0])
def test_clock_that_does_not_begin_at_0(tmp_path, name, start_s):
    """A player shows its first moment as 0."""
    codec, rate = ("libopus", 48_000) if name == "a.webm" else ("aac", 44_100)
    path = encode(tmp_path / name, codec, rate, starts_s=(start_s,))
    audio = probe(given(path))
    samples = whole(audio)
    assert audio.duration_s == pytest.approx(3.0, abs=0.08) and audio.notes == ()
    assert clicks_s(samples, rate) == [pytest.approx(CLICK_S, abs=0.055)]
    check_parts(path, samples, jitter=rate // 500)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    if name != "a.ts":  # which states no length
        assert problem(path)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_wrong_duration_is_noted_if_no_byte_is_missing(tmp_path, is_known):
    path = encode(tmp_path / "a.webm", "libopus", 48_000)
    content = bytearray(path.read_bytes())
    at = content.index(b"\x44\x89\x88") + 3  # Duration, a float of 8 bytes
    content[at : at + 8] = struct.pack(">d", 2 * struct.unpack(">d", content[at : at + 8])[0])
    segment = content.index(b"\x18\x53\x80\x67") + 4
    if not is_known:
        content[segment : segment + 8] = b"\x01" + b"\xff" * 7
    path.write_bytes(content)
    if is_known:
        audio = probe(given(path))
        assert audio.duration_s == pytest.approx(3.0, abs=0.06)
        assert audio.notes == ("header promises 6.02 s, file holds 3.00 s",)
        path.write_bytes(content[:-10])
    assert problem(path).startswith("truncated: header promises 6.0")


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [("a.caf", "alac", 16_000), ("a.mkv", "alac", 8_000), ("a.mkv", "flac", 8_000)],
)
def test_long_packets_of_which_the_last_is_shorter(tmp_path, name, codec, rate):
    path = encode(tmp_path / name, codec, rate, seconds=2.9)
    if name == "a.caf":  # as older versions of FFmpeg write it, with full packets only
        content = bytearray(path.read_bytes())
        at = content.index(b"pakt") + 12
        struct.pack_into(">QII", content, at + 8, 4096 * int.from_bytes(content[at : at + 8], "big"), 0, 0)
        path.write_bytes(content)
    audio = probe(given(path))
    assert audio.num_samples == int(2.9 * rate) and audio.notes == ()
    np.testing.assert_allclose(whole(audio), signal(2.9, rate), atol=1e-4)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    assert problem(path)


def test_flv_whose_sound_begins_late(tmp_path):
    """FFmpeg cannot seek to the start of it."""
    path, rate = tmp_path / "a.flv", 44_100
    with av.open(str(path), "w") as container:
        picture = container.add_stream("flv1", rate=10)
        sound = container.add_stream("libmp3lame", rate=rate, layout="mono")
        picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
        packets = []
        for number in range(80):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            packets += picture.encode(frame)
        mono = signal(3.0, rate)[None]
        for at in range(0, mono.shape[1], 1152):
            block = av.AudioFrame.from_ndarray(np.ascontiguousarray(mono[:, at : at + 1152]), "fltp", "mono")
            block.sample_rate, block.pts, block.time_base = rate, at + 4 * rate, Fraction(1, rate)
            packets += sound.encode(block)
        packets += [*picture.encode(None), *sound.encode(None)]
        container.mux(sorted(packets, key=lambda one: one.pts * one.time_base))
    audio = probe(given(path))
    samples = whole(audio)
    assert clicks_s(samples, rate) == [pytest.approx(4 + CLICK_S, abs=0.055)]
    check_parts(path, samples, jitter=rate // 500)


# Gaps in Ogg


def opus_packets() -> list[bytes]:
    """Return those of signal(), 20 ms each."""
    codec = av.CodecContext.create("libopus", "w")
    codec.sample_rate, codec.layout, codec.format, codec.time_base = 48_000, "mono", "s16", Fraction(1, 48_000)
    samples = (signal(3.0, 48_000) * 32_767).astype(np.int16)[None]
    packets = []
    for at in range(0, samples.shape[1] - 959, 960):
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[:, at : at + 960]), "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 48_000, at, Fraction(1, 48_000)
        packets += [bytes(packet) for packet in codec.encode(frame)]
    return packets


def ogg_page(packets: list[bytes], position: int, flags: int, number: int) -> bytes:
    table = b"".join(bytes([255] * (len(one) // 255) + [len(one) % 255]) for one in packets)
    page = PAGE_HEADER.pack(b"OggS", 0, flags, position, 7, len(table)) + table + b"".join(packets)
    page = page[:18] + struct.pack("<I", number) + page[22:]
    return page[:22] + struct.pack("<I", checksum(page)) + page[26:]


def webrtc(path: Path, gaps_s: dict[int, float], a_page: int = 1, lost: int = -1) -> Path:
    """Write Opus as recorders of calls do: positions from the sender's clock, nothing for what was muted.

    Args:
        gaps_s: the gap before a packet, by its number.
        a_page: packets in a page.
        lost: this page is left out.
    """
    head = b"OpusHead" + struct.pack("<BBHIhB", 1, 1, 312, 48_000, 0, 0)
    pages = [ogg_page([head], 0, 2, 0), ogg_page([b"OpusTags" + bytes(8)], 0, 0, 1)]
    position, packets = 0, opus_packets()
    for begin in range(0, len(packets), a_page):
        page = packets[begin : begin + a_page]
        position += round(gaps_s.get(begin, 0.0) * 48_000) + 960 * len(page)
        pages.append(ogg_page(page, position, 4 if begin + a_page >= len(packets) else 0, len(pages)))
    path.write_bytes(b"".join(page for number, page in enumerate(pages) if number != lost))
    return path


@pytest.mark.parametrize(
    ("gaps_s", "a_page"),
    [
        ({50: 3.0}, 1),
        ({50: 0.2}, 1),
        ({40: 0.02, 60: 1.0, 100: 2.0}, 1),
        ({50: 3.0}, 50),
        ({0: 0.5}, 50),
        ({30: 0.06}, 10),
    ],
)
def test_gaps_in_ogg_are_silence(tmp_path, gaps_s, a_page):
    path = webrtc(tmp_path / "a.ogg", gaps_s, a_page)
    audio = probe(given(path))
    samples = whole(audio)
    gaps = {at: gap for at, gap in gaps_s.items() if at > 0}  # the clock may begin anywhere
    assert audio.duration_s == pytest.approx(3.0 + sum(gaps.values()), abs=0.03)
    before_click_s = sum(gap for at, gap in gaps.items() if 0.02 * at < CLICK_S)
    assert clicks_s(samples, 48_000) == [pytest.approx(CLICK_S + before_click_s, abs=0.01)]
    begin_s = -0.0065  # what a decoder leaves out of the start
    for at, gap in gaps.items():
        silence = samples[int(48_000 * (begin_s + 0.02 * at + 0.001)) :][: int(48_000 * (gap - 0.002))]
        assert not silence.any()
        begin_s += gap
    check_parts(path, samples, 0.015)  # a decoder's memory


def test_whole_and_cut_ogg_files_have_no_gaps(tmp_path):
    assert not has_opus_gaps(webrtc(tmp_path / "a.ogg", {}).read_bytes())
    assert probe(given(tmp_path / "a.ogg")).track is None
    assert not has_opus_gaps(Path("tests/data/audio/e12_speech.opus.ogg").resolve().read_bytes())
    assert problem(webrtc(tmp_path / "b.ogg", {}, 50, lost=3)).startswith("truncated or damaged")


def test_ogg_pages_after_a_seek_have_their_own_times(tmp_path):
    """FFmpeg gives the first page of FLAC and Speex the time that was asked for."""
    path = encode(tmp_path / "a.oga", "flac", RATE, seconds=6.0)
    samples = whole(probe(given(path)))
    np.testing.assert_allclose(samples, signal(6.0, RATE), atol=1e-4)
    check_parts(path, samples)


# Clocks that start again, and sample rates that change


def test_gaps_behind_a_clock_that_starts_again(tmp_path):
    first = encode(tmp_path / "a.ts", "aac", 44_100)
    second = encode(tmp_path / "b.ts", "aac", 44_100, gap_s=1.5, seconds=4.0)
    path = held(tmp_path / "joined.ts", first.read_bytes() + second.read_bytes() + first.read_bytes())
    samples = whole(probe(given(path)))
    assert clicks_s(samples, 44_100) == [pytest.approx(at + CLICK_S, abs=0.25) for at in (0, 3, 8.5)]
    check_parts(path, samples)


def ogg(path: Path, subtype: str, seconds: float, rate: int = RATE, channels: int = 1, seed: int = 0) -> bytes:
    samples = signal(seconds, rate) + np.random.default_rng(seed).normal(0, 0.02, int(seconds * rate))
    soundfile.write(path, np.stack([samples] * channels, 1), rate, format="OGG", subtype=subtype)
    return path.read_bytes()


@pytest.mark.parametrize(
    "links",
    [
        [("VORBIS", RATE, 1), ("VORBIS", RATE, 1)],
        [("OPUS", RATE, 1), ("OPUS", 48_000, 2), ("OPUS", 8000, 1)],
        [("VORBIS", 22_050, 2), ("OPUS", 48_000, 1), ("VORBIS", 44_100, 1)],
    ],
)
def test_chained_ogg_is_read_to_its_end(tmp_path, links):
    """It was refused, and of two recordings with the same serial number the second was left out without a word."""
    path, alone = tmp_path / "a.ogg", []
    contents = [ogg(path, *link[:1], 2.0, *link[1:], seed=number) for number, link in enumerate(links)]
    rate, channels = max(link[1] for link in links), max(link[2] for link in links)
    for content in contents:
        audio = probe(given(held(path, content)))
        alone.append(soxr.resample(whole(audio), audio.sample_rate, rate, quality="HQ"))
    headers_alone = contents[0][: contents[0].index(b"OggS", contents[0].index(b"OggS", 1) + 1)]
    audio = probe(given(held(path, b"".join(contents) + headers_alone)))
    samples = whole(audio)
    assert (audio.sample_rate, audio.channels) == (rate, channels)
    np.testing.assert_allclose(samples, np.concatenate(alone), atol=1e-3)
    assert audio.notes[0] == f"holds {len(links)} recordings one after another, which were read as one"
    assert len(audio.notes) == 1 + (len(set(links)) > 1)
    assert audio.notes[-1].endswith(f"converted to {rate} Hz {channels} ch") == (len(set(links)) > 1)
    check_parts(path, samples)


@pytest.mark.parametrize("is_file", [True, False])
def test_chained_ogg_in_memory(tmp_path, is_file):
    """Another file object of the same name and size is another recording."""
    contents = [ogg(tmp_path / "a.ogg", "VORBIS", 1.5, seed=seed) * 2 for seed in (1, 2)]
    for content in contents:
        medium = FileObject(io.BytesIO(content), "a") if is_file else EncodedBytes(content, "a")
        audio = probe(Source("a", medium, "a"))
        assert audio.num_samples == 3 * RATE
        samples = whole(audio)
        first, second = np.split(samples, 2)
        np.testing.assert_allclose(second, first, atol=1e-3)
        np.testing.assert_allclose(first, soundfile.read(io.BytesIO(content))[0], atol=1e-3)


def test_damage_in_one_of_several_recordings(tmp_path):
    path = tmp_path / "a.ogg"
    content = ogg(path, "VORBIS", 2.0)
    second = "recording 2 of 3 in it: truncated: ends in the middle of an Ogg page; get the whole file"
    assert problem(held(path, content + content[:-50] + content)).startswith(second)
    assert problem(held(path, content[:40] + b"x" + content[41:] + content)) == OGG_DAMAGE
    held(path, content + content)
    with pytest.raises(AudioError, match="track 1 was asked for, but it has 1 audio track"):
        probe(given(path, track=1))
    audio = probe(given(path))
    path.write_bytes(content + content[:-50])
    with pytest.raises(AudioError, match=r"truncated or damaged: 4\.00 s expected"):
        whole(audio)


@pytest.mark.parametrize(("first", "last"), [(2, 14), (0, 6)])
def test_flac_that_was_cut_out_of_a_longer_file(tmp_path, first, last):
    """`ffmpeg -c copy` keeps the frames' numbers and the length of the whole."""
    path, block = tmp_path / "a.flac", 4096
    samples = (signal(4.0, RATE)[: 14 * block - 7] * 32_767).astype(np.int16)
    soundfile.write(path, samples, RATE, subtype="PCM_16")
    content = path.read_bytes()
    original = soundfile.read(path, dtype="int16")[0]
    begin, starts = after_blocks(content, 4), dict[int, int]()
    for at in (found.start() for found in re.finditer(re.escape(content[begin : begin + 4]), content)):
        found = frame_header(content[at : at + HEADER_BYTES], block)
        starts.setdefault(found.start // block if found else -1, at)
    end = starts.get(last, len(content))
    cut = content[:begin] + content[starts[first] : end]
    audio = probe(given(held(path, cut)))
    samples = whole(audio)
    np.testing.assert_array_equal(samples, original[first * block : last * block] / np.float32(32_768))
    assert "file holds" in audio.notes[0]
    check_parts(path, samples)
    assert "damaged" in problem(held(path, cut[:-20]))
    twice = problem(held(path, cut + cut[begin:]))
    assert "several" in twice or "damaged" in twice


def two_rates(folder: Path, extension: str, codec: str, rates: tuple[int, ...]) -> Path:
    parts = [encode(folder / f"{number}.{extension}", codec, rate) for number, rate in enumerate(rates)]
    return held(folder / f"joined.{extension}", b"".join(part.read_bytes() for part in parts))


@pytest.mark.parametrize(
    ("extension", "codec", "rates"),
    [
        ("mp3", "libmp3lame", (16_000, 44_100, 16_000)),
        ("aac", "aac", (48_000, 22_050, 44_100)),
        ("mp2", "mp2", (44_100, 48_000)),
        ("ac3", "ac3", (48_000, 44_100)),
        ("ts", "aac", (44_100, 48_000)),
        ("ts", "aac", (44_100, 44_100)),
    ],
)
def test_sample_rate_changes(tmp_path, extension, codec, rates):
    path = two_rates(tmp_path, extension, codec, rates)
    audio = probe(given(path))
    samples = whole(audio)
    assert audio.sample_rate == rates[0]
    assert audio.duration_s == pytest.approx(3 * len(rates), abs=0.1 * len(rates))
    times_s = clicks_s(samples, rates[0])
    assert times_s == [pytest.approx(3 * number + CLICK_S, abs=0.1 + 0.1 * number) for number in range(len(rates))]
    late = samples[int(rates[0] * (times_s[1] - 0.5)) :][: rates[0] // 4]
    early = samples[int(rates[0] * (times_s[0] - 0.5)) :][: rates[0] // 4]
    spectra = [np.abs(np.fft.rfft(one * np.hanning(len(one)))) for one in (early, late)]
    assert np.corrcoef(*spectra)[0, 1] > 0.95  # the tones keep their pitch
    check_parts(path, samples)


def spoken(path: Path, codec: str, rate: int, layout: str, sound: Mapping[str, np.ndarray]) -> Path:
    """Encode sounds on channels of a layout, and silence on the others."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        names = [channel.name for channel in av.AudioLayout(layout).channels]
        length = len(next(iter(sound.values())))
        samples_SC = np.stack([sound.get(name, np.zeros(length, np.float32)) for name in names], axis=1)
        for at in range(0, length, 1000):
            block_SC = np.ascontiguousarray(samples_SC[at : at + 1000])
            frame = av.AudioFrame.from_ndarray(block_SC.reshape(1, -1), "flt", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_eight_channels(tmp_path):
    """PyAV ends the process when it takes the samples of eight channels that are apart."""
    rate = 48_000
    path = spoken(tmp_path / "a.m4a", "aac", rate, "7.1", {"FC": signal(3.0, rate)})
    samples = whole(probe(given(path)))
    assert clicks_s(samples, rate) == [pytest.approx(CLICK_S, abs=0.03)]


def test_surround_sound_that_follows_stereo_is_mixed_by_its_layout(tmp_path):
    rate, sound = 48_000, signal(3.0, 48_000)
    stereo = spoken(tmp_path / "a.ac3", "ac3", rate, "stereo", {"FL": sound, "FR": sound})
    film = spoken(
        tmp_path / "b.ac3", "ac3", rate, "5.1", {"FC": sound, "LFE": sound * 0 + 0.3, "BL": sound, "BR": sound}
    )
    samples = whole(probe(given(held(tmp_path / "both.ac3", stereo.read_bytes() + film.read_bytes()))))
    first, second = samples[: 3 * rate], samples[3 * rate :]
    assert np.abs(second[rate:]).max() == pytest.approx(np.abs(first[rate:]).max() / 2.4142, rel=0.1)


@pytest.mark.parametrize("behind", [bytes(200_000), np.random.default_rng(0).bytes(200_000)])
def test_mpeg_ts_with_room_in_it(tmp_path, behind):
    path = encode(tmp_path / "a.ts", "aac", 48_000)
    content = path.read_bytes()
    half = len(content) // 2 // 188 * 188
    samples = whole(probe(given(path)))
    for changed in (content + behind, content[:half] + bytes(188 * 1000) + content[half:]):
        assert len(whole(probe(given(held(path, changed))))) == len(samples)


def test_a_clock_that_stands_still(tmp_path):
    """FFmpeg's own writer of RealMedia gives all packets the time 0."""
    samples = whole(probe(given(encode(tmp_path / "a.rm", "real_144", 8_000))))
    assert len(samples) == pytest.approx(3.0 * 8_000, abs=400)
    check_parts(tmp_path / "a.rm", samples)


def moved(content: bytes, samples: int) -> bytes:
    """Return an Ogg file whose positions are this much later."""
    pages, at = [], 0
    while at < len(content):
        position, num_segments = PAGE_HEADER.unpack_from(content, at)[3], content[at + 26]
        end = at + PAGE_HEADER.size + num_segments
        end += sum(content[at + PAGE_HEADER.size : end])
        page = bytearray(content[at:end])
        page[6:14] = struct.pack("<q", position + samples if position > 0 else position)
        page[22:26] = checksum(bytes(page)).to_bytes(4, "little")
        pages.append(bytes(page))
        at = end
    return b"".join(pages)


@pytest.mark.parametrize("samples", [-6000, 0, 500_000])
def test_vorbis_that_was_cut_out_of_a_longer_file(tmp_path, samples):
    path = tmp_path / "a.ogg"
    soundfile.write(path, signal(12.0, RATE), RATE, format="OGG", subtype="VORBIS")
    found = probe(given(held(path, moved(path.read_bytes(), samples))))
    assert len(whole(found)) == pytest.approx(12 * RATE, abs=600)
    assert (found.track is None) == (samples >= 0)


@pytest.mark.parametrize("name", ["a.wav", "a.aiff"])
def test_gsm_is_read_in_parts(tmp_path, name):
    """libsndfile cannot seek in it."""
    path = tmp_path / name
    soundfile.write(path, signal(3.0, 8_000), 8_000, subtype="GSM610")
    samples = whole(probe(given(path)))
    assert clicks_s(samples, 8_000) == [pytest.approx(CLICK_S, abs=0.03)]
    check_parts(path, samples)
