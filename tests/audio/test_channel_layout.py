"""What the channels of a file are for, in each format, and which of them is read."""

from __future__ import annotations

import io
import struct
from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from fastscribe.audio.channel_layout import _is_opus_surround, choose
from fastscribe.audio.given import sources as given_sources
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.types import AudioInfo, Channel, Source

RATE = 16_000
FIVE_ONE = ("FL", "FR", "FC", "LFE", "BL", "BR")


def tones(channels: int) -> np.ndarray:
    """Return [S, C]; channel c has a tone of 200 (c + 1) Hz."""
    return 0.2 * np.sin(2 * np.pi * 200 * np.outer(np.arange(RATE) / RATE, np.arange(1, channels + 1)))


def silent_centre(layout: tuple[str, ...]) -> np.ndarray:
    """Return tones [S, C] without the centre's, so that a layout shows in what is mixed."""
    samples_SC = tones(len(layout))
    samples_SC[:, [number for number, name in enumerate(layout) if name == "FC"]] = 0
    return samples_SC


def probed(path: Path, channel: Channel | None = None) -> AudioInfo:
    return probe(Source(str(path), str(path), path.name, channel=channel))


def hertz(audio: AudioInfo) -> set[int]:
    """Return the channels whose tones are heard, from 1."""
    samples_S = read(audio, 0, audio.num_samples, sample_rate=RATE)
    spectrum = np.abs(np.fft.rfft(samples_S.astype(np.float64) / np.abs(samples_S).max(), RATE))
    return {number + 1 for number in range(8) if spectrum[200 * (number + 1)] > 0.02 * spectrum.max()}


def with_mask(path: Path, samples_SC: np.ndarray, mask: int) -> Path:
    """Write WAVE_FORMAT_EXTENSIBLE with this mask."""
    channels = samples_SC.shape[1]
    data = (samples_SC * 32767).astype("<i2").tobytes()
    guid = b"\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    form = struct.pack("<HHIIHHHHI", 0xFFFE, channels, RATE, RATE * 2 * channels, 2 * channels, 16, 22, 16, mask) + guid
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def encoded(path: Path, codec: str, layout: str, samples_SC: np.ndarray, rate: int = 48_000) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.repeat(samples_SC, 3, axis=0).T.astype(np.float32).copy(), "fltp", layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(
            stream.codec_context.format, layout, rate, stream.codec_context.frame_size or None
        )
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            container.mux(stream.encode(part))
    return path


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.mp4", b"chnl\0\0\0\0\1\0\0\1\3", b"chnl\0\0\0\0\1\0\2\0\1"),
        ("a.mov", b"chan\0\0\0\0\0\1\0\0\0\0\0\x0b", b"chan\0\0\0\0\0\x72\0\3\0\0\0\0"),  # MPEG_3_0_B
    ],
)
def test_pcm_whose_container_has_an_order_of_its_own(tmp_path: Path, name: str, before: bytes, after: bytes) -> None:
    """FFmpeg's orders have the centre after the left and the right channel. Each frame of another one was freed twice."""
    path = encoded(tmp_path / name, "pcm_s16le", "2.1", tones(3))
    plain = probed(path)
    assert plain.layout == ("FL", "FR", "LFE") and hertz(plain) == {1, 2}
    assert path.read_bytes().count(before) == 1
    changed = tmp_path / f"changed_{name}"
    changed.write_bytes(path.read_bytes().replace(before, after))
    audio = probed(changed)
    assert audio.notes == ("taken for surround sound (FC FL FR): its centre, channel 0, is read",)
    assert hertz(audio) == {1} and hertz(probed(changed, channel=1)) == {2}


def test_flac_in_mp4_with_an_order_of_its_own(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tones(3), RATE)
    with av.open(str(tmp_path / "a.flac")) as given, av.open(str(tmp_path / "a.mp4"), "w") as made:
        stream = made.add_stream_from_template(given.streams.audio[0])
        for packet in given.demux():
            if packet.dts is not None:
                packet.stream = stream
                made.mux(packet)
    content = (tmp_path / "a.mp4").read_bytes()
    index = content.index(b"moov") - 4  # behind the samples, whose places stay as they are
    atom = struct.pack(">I4sIIII", 24, b"chan", 0, 114 << 16 | 3, 0, 0)  # MPEG_3_0_B
    tail = content[index:].replace(b"\0\0\0\x32dfLa", atom + b"\0\0\0\x32dfLa")
    assert len(tail) == len(content) - index + len(atom)
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"fLaC"):
        at = tail.index(name)
        tail = tail[: at - 4] + struct.pack(">I", int.from_bytes(tail[at - 4 : at], "big") + len(atom)) + tail[at:]
    (tmp_path / "b.mp4").write_bytes(content[:index] + tail)
    plain, audio = probed(tmp_path / "a.mp4"), probed(tmp_path / "b.mp4")
    assert plain.notes == ("taken for surround sound (FL FR FC): its centre, channel 2, is read",)
    assert audio.notes == ("taken for surround sound (FC FL FR): its centre, channel 0, is read",)
    assert (hertz(plain), hertz(audio)) == ({3}, {1})


@pytest.mark.parametrize(
    ("mask", "layout"),
    [
        (0x7, "FL FR FC"),
        (0xB, "FL FR LFE"),
        (0x107, "FL FR FC BC"),
        (0x33, "FL FR BL BR"),
        (0x3F, "FL FR FC LFE BL BR"),
        (0x60F, "FL FR FC LFE SL SR"),
        (0x70F, "FL FR FC LFE BC SL SR"),
        (0x63F, "FL FR FC LFE BL BR SL SR"),
    ],
)
def test_wav_by_its_mask(tmp_path, mask, layout):
    names = tuple(layout.split())
    audio = probed(with_mask(tmp_path / "a.wav", silent_centre(names), mask))
    assert audio.layout == names
    without_centre = {number for number, name in enumerate(names, 1) if name != "LFE"}
    assert hertz(audio) == ({1, 2} if "FC" in names else without_centre)
    full = probed(with_mask(tmp_path / "b.wav", tones(len(names)), mask))
    assert hertz(full) == ({names.index("FC") + 1} if "FC" in names else without_centre)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("a.wav", FIVE_ONE),  # as players take six channels without a mask
        ("a.aiff", FIVE_ONE),
        ("a.flac", FIVE_ONE),
        ("a.ogg", ("FL", "FC", "FR", "BL", "BR", "LFE")),
        ("3.flac", ("FL", "FR", "FC")),
        ("4.flac", ("FL", "FR", "BL", "BR")),
        ("8.flac", ("FL", "FR", "FC", "LFE", "BL", "BR", "SL", "SR")),
        ("3.ogg", ("FL", "FC", "FR")),
    ],
)
def test_by_the_order_of_the_format(tmp_path, name, layout):
    soundfile.write(tmp_path / name, silent_centre(layout), RATE)
    audio = probed(tmp_path / name)
    assert audio.layout == layout and audio.channel is None and not audio.is_int16
    soundfile.write(tmp_path / name, tones(len(layout)), RATE)
    audio = probed(tmp_path / name)
    assert audio.channel == (layout.index("FC") if "FC" in layout else None)


@pytest.mark.parametrize(
    ("name", "codec", "layout", "rate"),
    [
        ("a.m4a", "aac", "5.1", 48_000),
        ("a.ac3", "ac3", "5.1", 48_000),
        ("b.m4a", "aac", "4.0", 48_000),
        ("a.flac", "flac", "2.1", 48_000),  # its comment has a mask
        ("b.flac", "flac", "4.0", 48_000),
        ("5.caf", "pcm_s16be", "5.0", 48_000),
    ],
)
def test_by_what_ffmpeg_says(tmp_path, name, codec, layout, rate):
    names = tuple(channel.name for channel in av.AudioLayout(layout).channels)
    audio = probed(encoded(tmp_path / name, codec, layout, silent_centre(names)))
    assert [one.translate(str.maketrans("BS", "XX")) for one in audio.layout] == [
        one.translate(str.maketrans("BS", "XX")) for one in names
    ]
    assert hertz(audio) == {1, 2}


@pytest.mark.parametrize(
    ("number", "layout"),
    [(113, "FL FR FC"), (115, "FL FR FC BC"), (117, "FL FR FC SL SR"), (133, "FL FR LFE")],
)
def test_aiff_by_the_number_of_its_layout(tmp_path, number, layout):
    path, names = tmp_path / "a.aiff", tuple(layout.split())
    soundfile.write(path, tones(len(names)), RATE)
    content = path.read_bytes()
    chunk, at = b"CHAN" + struct.pack(">IIII", 12, number << 16 | len(names), 0, 0), content.index(b"SSND")
    path.write_bytes(b"FORM" + struct.pack(">I", len(content) + 12) + content[8:at] + chunk + content[at:])
    assert hertz(probed(path)) == ({3} if "FC" in names else {1, 2})
    assert probed(path, "center").channel == (2 if "FC" in names else None)


@pytest.mark.parametrize("channels", [3, 4, 5, 7, 8, 9])
def test_channels_without_places_are_averaged(tmp_path, channels):
    """Such as the microphones of a meeting."""
    soundfile.write(tmp_path / "a.wav", tones(channels), RATE)
    audio = probed(tmp_path / "a.wav")
    assert audio.layout == () and audio.channel is None
    mean_S = soundfile.read(tmp_path / "a.wav", dtype="float32")[0].mean(axis=1)
    np.testing.assert_array_equal(read(audio, 0, audio.num_samples, sample_rate=RATE), mean_S)


def test_a_mask_of_zero_says_that_channels_have_no_places(tmp_path):
    assert probed(with_mask(tmp_path / "a.wav", tones(6), 0)).layout == ()
    head = io.BytesIO(b"OggS" + bytes(24) + b"OpusHead" + bytes((1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 255)))
    assert not _is_opus_surround(head)
    assert not _is_opus_surround(io.BytesIO(head.getvalue()[:-1] + b"\x02"))  # ambisonics
    assert _is_opus_surround(io.BytesIO(head.getvalue()[:-1] + b"\x01"))


def test_samples_in_memory_are_read_as_a_file_of_them(tmp_path):
    samples_SC = tones(6).astype(np.float32)
    [source] = given_sources([(samples_SC, RATE)], Counter())
    assert isinstance(source, Source) and probe(source).channel == 2


def test_the_channel_that_is_asked_for():
    assert choose("center", 6, FIVE_ONE) == (2, None, ())
    assert choose("center", 1, None) == (0, None, ())
    assert choose("center", 2, None) == (None, "center", ())
    assert choose("center", 4, ("FL", "FR", "BL", "BR")) == (None, "center", ("FL", "FR", "BL", "BR"))
    assert choose(5, 6, FIVE_ONE) == (5, None, ())
    assert choose(6, 6, FIVE_ONE) == (None, 6, FIVE_ONE)
    assert choose(None, 4, ("AMBI0", "AMBI1", "AMBI2", "AMBI3")) == (None, None, ())


@pytest.mark.parametrize(("centre_db", "is_read_alone"), [(0, True), (-5, True), (-15, False), (None, False)])
def test_a_soft_centre_has_no_dialogue(tmp_path, centre_db, is_read_alone):
    """It is judged by the whole file, also by what a row's part leaves out."""
    samples_SC = np.tile(tones(6), (30, 1))
    samples_SC[:, 2] *= 0 if centre_db is None else 10 ** (centre_db / 20)
    samples_SC[: 5 * RATE] = 0
    soundfile.write(tmp_path / "a.wav", samples_SC, RATE)
    path = str(tmp_path / "a.wav")
    for offset_s in (None, 2.0, 20.0):
        audio = probe(Source(path, path, "a", offset_s=offset_s, duration_s=3.0))
        assert (audio.channel == 2) == is_read_alone
        assert audio.is_int16 == is_read_alone


def test_speech_behind_a_silent_front_is_heard(tmp_path):
    samples_SC = tones(6)
    samples_SC[:, :3] = 0
    soundfile.write(tmp_path / "a.wav", samples_SC, RATE)
    audio = probed(tmp_path / "a.wav")
    assert hertz(audio) == {5, 6}
    assert audio.notes == ("taken for surround sound (FL FR FC LFE BL BR): all channels but the subwoofer are mixed",)


def test_a_note_says_what_is_read_of_surround_sound(tmp_path):
    soundfile.write(tmp_path / "a.wav", tones(6), RATE)
    assert probed(tmp_path / "a.wav").notes == (
        "taken for surround sound (FL FR FC LFE BL BR): its centre, channel 2, is read",
    )
    soundfile.write(tmp_path / "b.wav", silent_centre(FIVE_ONE), RATE)
    assert probed(tmp_path / "b.wav").notes == (
        "taken for surround sound (FL FR FC LFE BL BR): its front channels are mixed",
    )
    assert probed(tmp_path / "a.wav", 2).notes == probed(tmp_path / "a.wav", "center").notes == ()
