"""Containers give a player's times and lengths, cuts equal the same span of the whole, and damage is an error."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.audio import containers, data_size
from fastscribe.audio.frame_samples import FrameSamples
from fastscribe.audio.probe import probe
from fastscribe.audio.read import blocks, read, read_native_into
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Utterance
from tests.audio.test_probe import held, patched, source
from tests.helpers.containers import CLICK_S, encode

# name: encoder, rate, channels, seconds by which the click may be late: the format does not store the encoder's delay.
KINDS = {
    "aac.m4a": ("aac", 44_100, 2, 0.0),
    "aac.mp4": ("aac", 48_000, 1, 0.0),
    "aac.mov": ("aac", 44_100, 1, 0.0),
    "aac.mkv": ("aac", 44_100, 2, 0.0),
    "aac.aac": ("aac", 44_100, 1, 0.05),
    "aac.ts": ("aac", 48_000, 1, 0.05),
    "aac.flv": ("aac", 44_100, 1, 0.05),
    "alac.m4a": ("alac", 44_100, 2, 0.0),
    "opus.webm": ("libopus", 48_000, 1, 0.0),
    "opus.mka": ("libopus", 48_000, 2, 0.0),
    "opus.mp4": ("libopus", 48_000, 1, 0.0),
    "mp3.mkv": ("libmp3lame", 44_100, 1, 0.05),
    "mp3.avi": ("libmp3lame", 44_100, 2, 0.05),
    "flac.mkv": ("flac", 16_000, 1, 0.0),
    "pcm.mov": ("pcm_s16le", 16_000, 1, 0.0),
    "wma.wma": ("wmav2", 44_100, 2, 0.05),
    "amr.amr": ("libopencore_amrnb", 8_000, 1, 0.02),
    "amr.3gp": ("libopencore_amrnb", 8_000, 1, 0.02),
    "ac3.ac3": ("ac3", 48_000, 2, 0.02),
}
# A file that ends early holds only what was written: these formats have no header with a length.
WITHOUT_LENGTH = ("aac.aac", "aac.ts", "amr.amr", "ac3.ac3")


def can_encode(codec: str) -> bool:
    """False for AMR from PyAV 19 on, which only reads it."""
    try:
        av.Codec(codec, "w")
    except ValueError:
        return False
    return True


@pytest.fixture(autouse=True)
def skip_without_encoder(request: pytest.FixtureRequest) -> None:
    callspec = getattr(request.node, "callspec", None)
    kind = KINDS.get(callspec.params.get("name")) if callspec is not None else None
    if kind is not None and not can_encode(kind[0]):
        pytest.skip(f"this PyAV has no encoder {kind[0]}")


@pytest.fixture(scope="session")
def media(tmp_path_factory) -> Path:
    """A folder with a file of each kind."""
    folder = tmp_path_factory.mktemp("containers")
    for name, (codec, rate, channels, _) in KINDS.items():
        if can_encode(codec):
            encode(folder / name, codec, rate, channels)
    return folder


def whole(audio: AudioInfo, sample_rate: int | None = None, channel: int | None = None) -> np.ndarray:
    return read(replace(audio, channel=channel), 0, audio.num_samples, sample_rate=sample_rate or audio.sample_rate)


def problem(path: Path, **fields) -> str:
    with pytest.raises(AudioError) as caught:
        whole(probe(source(path, **fields)))
    assert "\n" not in caught.value.problem
    return caught.value.problem


@pytest.mark.parametrize("name", KINDS)
def test_header_and_times(media, name):
    _, rate, channels, delay_s = KINDS[name]
    audio = probe(source(media / name))
    assert (audio.sample_rate, audio.channels, audio.track, audio.num_tracks) == (rate, channels, 0, 1)
    assert audio.duration_s == pytest.approx(3.0, abs=0.06)
    samples = whole(audio)
    assert samples.dtype == np.float32 and len(samples) == pytest.approx(audio.num_samples, abs=0.06 * rate)
    click_s = np.argmax(np.abs(samples) > 0.3) / rate
    assert CLICK_S - 0.003 <= click_s <= CLICK_S + delay_s + 0.003


@pytest.mark.parametrize("name", KINDS)
def test_cut_equals_span_of_whole(media, name):
    samples = whole(probe(source(media / name)))
    tolerance = 5e-3 if name.startswith(("amr", "ac3")) else 1e-4  # ac3 has dither, amr a long memory
    for offset_s in (0.1, 0.9, 1.2001, 2.3, 2.8):
        cut = probe(source(media / name, offset_s=offset_s, duration_s=0.15))
        span, found = samples[cut.start : cut.start + cut.num_samples], whole(cut)
        np.testing.assert_allclose(found, span, atol=tolerance)
        shifted = np.linalg.norm(np.roll(span, 1) - span)  # what a shift by one sample would make
        assert np.linalg.norm(found - span) < 0.1 * shifted


def test_utterances_of_a_recording(media):
    """Resampled parts join, and native rows for a GPU hold the same samples."""
    audio = probe(source(media / "aac.m4a"))
    samples = whole(audio, 16_000)
    step = 44_100
    parts = [read(audio, at, step, sample_rate=16_000) for at in range(0, 3 * step, step)]
    np.testing.assert_allclose(np.concatenate(parts), samples, atol=1e-4)
    rows_SC = np.empty((step + 8_000, 2), np.float32)
    assert read_native_into(rows_SC, 4_000, Utterance(audio, step, step), 16_000) == 16_000
    np.testing.assert_allclose(rows_SC[4_000 : 4_000 + step].mean(axis=1), whole(audio)[step : 2 * step], atol=1e-4)
    joined = np.concatenate(list(blocks(replace(audio, channel=1), 9_999)))
    np.testing.assert_allclose(joined, whole(audio, channel=1), atol=1e-6)


def test_several_tracks(tmp_path):
    path = encode(tmp_path / "a.mkv", "aac", 48_000, gains=(1.0, 0.25), starts_s=(0.0, 0.0))
    first, second = (probe(source(path, track=track)) for track in (None, 1))
    assert (first.track, second.track, first.num_tracks) == (0, 1, 2)
    assert np.abs(whole(second)).max() == pytest.approx(np.abs(whole(first)).max() / 4, rel=0.1)
    assert problem(path, track=2) == "track 2 was asked for, but it has 2 audio tracks (counted from 0)"
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 16_000)
    assert problem(tmp_path / "a.wav", track=1) == "track 1 was asked for, but it has 1 audio track (counted from 0)"


@pytest.mark.parametrize("extension", ["mkv", "mp4"])
def test_track_that_starts_late_begins_with_silence(tmp_path, extension):
    path = encode(tmp_path / f"a.{extension}", "aac", 48_000, gains=(1.0, 1.0), starts_s=(0.0, 0.5))
    audio = probe(source(path, track=1))
    samples = whole(audio)
    assert audio.duration_s == pytest.approx(3.5, abs=0.06)
    assert not samples[: int(0.45 * 48_000)].any()
    assert np.argmax(np.abs(samples) > 0.3) / 48_000 == pytest.approx(CLICK_S + 0.5, abs=0.005)


def test_gap_in_timestamps_is_silence(tmp_path):
    path = encode(tmp_path / "a.mkv", "libopus", 48_000, gap_s=1.5)
    audio = probe(source(path))
    samples = whole(audio)
    assert audio.duration_s == pytest.approx(4.5, abs=0.06) and len(samples) == pytest.approx(audio.num_samples, abs=48)
    assert not samples[int(2.1 * 48_000) : int(3.4 * 48_000)].any()
    assert samples[int(3.6 * 48_000) : int(3.7 * 48_000)].any()
    cut = probe(source(path, offset_s=3.7, duration_s=0.2))
    np.testing.assert_allclose(whole(cut), samples[cut.start : cut.start + cut.num_samples], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {"movflags": "frag_keyframe+delay_moov"}),
        ("a.mkv", {"live": "1"}),
        ("a.mp4", {"movflags": "faststart"}),
    ],
)
def test_other_layouts(tmp_path, name, options):
    audio = probe(source(encode(tmp_path / name, "aac", 44_100, options=options)))
    assert audio.duration_s == pytest.approx(3.0, abs=0.06)
    assert np.argmax(np.abs(whole(audio)) > 0.3) / 44_100 == pytest.approx(CLICK_S, abs=0.003)


@pytest.mark.parametrize("name", ["aac.mkv", "opus.webm", "aac.m4a", "aac.mov", "wma.wma"])
def test_joined_files_are_refused(media, tmp_path, name):
    """Their second part would be lost: its times start again."""
    assert "several recordings in one" in problem(held(tmp_path / name, 2 * (media / name).read_bytes()))


@pytest.mark.parametrize(("box", "forged"), [(b"stsz", b"\0\0\0\4\7\0\0\0"), (b"trun", b"\7\0\0\0")])
def test_forged_sample_counts_take_no_memory(media, tmp_path, monkeypatch, box, forged):
    """FFmpeg would make an entry for each of 117 million samples. It is not called."""
    path = encode(tmp_path / "a.mp4", "aac", 16_000, options={"movflags": "empty_moov"} if box == b"trun" else {})
    at = path.read_bytes().rindex(box) + 8
    no_fields = ((at - 4, bytes(4)),) if box == b"trun" else ()  # for each sample
    monkeypatch.setattr(containers, "_open", None)
    assert "damaged: its tables count 117440512 samples, which" in problem(patched(path, *no_fields, (at, forged)))


def test_boxes_without_end_are_damage(tmp_path, monkeypatch):
    path = tmp_path / "a.mp4"
    assert problem(held(path, b"".join(struct.pack(">I4s", 8 * (2000 - level), b"moov") for level in range(2000))))
    assert data_size._MAX_BOXES == 2_000_000
    monkeypatch.setattr(data_size, "_MAX_BOXES", 20_000)
    assert "more than 20,000 boxes" in problem(held(path, struct.pack(">I4s", 8, b"free") * 20_001))


@pytest.mark.parametrize(
    ("name", "codec", "rate", "late_s"),
    [
        ("a.wav", "g722", 16_000, 0.01),
        ("a.wav", "g726", 8_000, 0.0),
        ("a.wav", "g723_1", 8_000, 0.02),
        ("a.wav", "ac3", 48_000, 0.02),
        ("a.wav", "eac3", 48_000, 0.02),
        ("a.wav", "mp2", 48_000, 0.02),
        ("a.wav", "wmav2", 44_100, 0.05),
        ("a.wav", "aac", 16_000, 0.07),
        ("a.wav", "flac", 16_000, 0.0),
        ("a.wav", "adpcm_swf", 22_050, 0.0),
        ("a.wav", "adpcm_yamaha", 16_000, 0.0),
        ("a.wav", "pcm_s64le", 16_000, 0.0),
        ("a.w64", "ac3", 48_000, 0.02),
        ("a.au", "g722", 16_000, 0.01),
        ("a.mxf", "pcm_s16le", 48_000, 0.0),
        ("a.nut", "aac", 44_100, 0.05),
        ("a.ast", "pcm_s16be_planar", 16_000, 0.0),
    ],
)
def test_what_libsndfile_refuses_is_for_ffmpeg(tmp_path, name, codec, rate, late_s):
    path = encode(tmp_path / name, codec, rate, format="mxf_opatom" if name == "a.mxf" else None)
    audio = probe(source(path))
    samples = read(audio, 0, audio.num_samples, sample_rate=rate)
    assert audio.track == 0 and 2.95 <= len(samples) / rate < 3.2
    click_s = np.argmax(np.abs(samples)) / rate
    assert CLICK_S - (0.05 if codec == "wmav2" else 0.01) <= click_s <= CLICK_S + 0.006 + late_s
    middle = audio.num_samples // 2
    np.testing.assert_allclose(read(audio, middle, rate, sample_rate=rate), samples[middle : middle + rate], atol=2e-3)
    if codec in ("g722", "wmav2", "pcm_s16le", "pcm_s16be_planar") and name != "a.nut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
        assert "truncated" in problem(path)


def test_wav_of_pcm_that_is_ac3(tmp_path):
    """As a recorder of a digital output writes it: its header says 16-bit stereo."""
    frames = encode(tmp_path / "a.spdif", "ac3", 48_000, channels=2, format="spdif").read_bytes()
    soundfile.write(tmp_path / "a.wav", np.frombuffer(frames, np.int16).reshape(-1, 2), 48_000)
    audio = probe(source(tmp_path / "a.wav"))
    samples = read(audio, 0, audio.num_samples, sample_rate=48_000)
    assert audio.track == 0 and CLICK_S - 0.01 <= np.argmax(np.abs(samples)) / 48_000 <= CLICK_S + 0.03


def test_too_much_aac_without_its_frames_lengths(tmp_path, monkeypatch):
    """The decoder finds each frame's end as it decodes, so it gets all in one packet."""
    path = encode(tmp_path / "a.wav", "aac", 16_000)
    monkeypatch.setattr(containers, "_MAX_UNFRAMED_BYTES", 1 << 10)
    assert "of AAC without the lengths of its frames, which no tool divides: make it" in problem(path)


def test_damage_in_what_has_no_times(tmp_path):
    path = encode(tmp_path / "a.wav", "mp2", 48_000)
    half = path.stat().st_size // 2
    found = problem(patched(path, (half, np.random.default_rng(0).bytes(path.stat().st_size - half))))
    assert "cannot be decoded" in found or "truncated" in found


def test_a_recording_is_measured_once(media, tmp_path, monkeypatch):
    path = held(tmp_path / "a.mkv", (media / "aac.mkv").read_bytes())
    measured, original = [], containers.Track.measure
    monkeypatch.setattr(containers.Track, "measure", lambda self: measured.append(1) or original(self))
    lengths = {probe(source(path, offset_s=0.1 * row, duration_s=0.5)).num_samples for row in range(5)}
    assert len(measured) == 1 and lengths == {22_050}
    assert probe(source(held(path, (media / "opus.mka").read_bytes()))).sample_rate == 48_000 and len(measured) == 2


def test_playlists_open_no_other_file(media, tmp_path):
    other = media / "aac.aac"
    for text in (f"#EXTM3U\n#EXTINF:3,\n{other}\n#EXT-X-ENDLIST\n", f"ffconcat version 1.0\nfile '{other}'\n"):
        assert problem(held(tmp_path / "a.mp4", text.encode())) == "is text, not audio"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("keep", [0.02, 0.3, 0.6, 0.9])
def test_truncated(media, tmp_path, name, keep):
    content = (media / name).read_bytes()
    path = held(tmp_path / name, content[: int(keep * len(content))])
    if name not in WITHOUT_LENGTH:
        assert problem(path)
    else:
        try:
            audio = probe(source(path))
        except AudioError:
            assert keep == 0.02
        else:
            assert audio.duration_s == pytest.approx(3 * keep, abs=0.4)
            assert len(whole(audio)) == pytest.approx(audio.num_samples, abs=0.1 * audio.sample_rate)


@pytest.mark.parametrize("options", [{"movflags": "faststart"}, {"movflags": "frag_keyframe+empty_moov"}])
def test_truncated_mp4_with_index_in_front(tmp_path, options):
    path = encode(tmp_path / "a.mp4", "aac", 44_100, options=options)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    if "faststart" in options["movflags"]:
        assert problem(path).startswith("truncated: header promises 3.00 s, file holds ")
    else:
        assert problem(path)


def test_damaged_in_the_middle(media, tmp_path):
    content = (media / "alac.m4a").read_bytes()
    assert "damaged" in problem(patched(held(tmp_path / "a.m4a", content), (len(content) // 2, bytes(60_000))))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(name for name, kind in KINDS.items() if can_encode(kind[0]))),
    cut=st.floats(0, 1),
    flip=st.floats(0, 1),
    value=st.integers(0, 255),
)
def test_any_damage_is_an_error_or_samples(media, tmp_path_factory, name, cut, flip, value):
    content = bytearray((media / name).read_bytes())
    content[int(flip * (len(content) - 1))] = value
    path = tmp_path_factory.getbasetemp() / f"damaged.{name.split('.')[1]}"
    path.write_bytes(content[: max(1, int(cut * len(content)))])
    try:
        samples = whole(probe(source(path)))
    except AudioError:
        return
    assert np.isfinite(samples).all()


def test_tags_that_are_not_utf8(media, tmp_path):
    path = tmp_path / "a.mka"
    with av.open(str(media / "flac.mkv")) as given, av.open(str(path), "w") as made:
        made.metadata["title"] = "Zürich"
        stream = made.add_stream_from_template(given.streams.audio[0])
        for packet in given.demux(given.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                made.mux(packet)
    content = path.read_bytes()
    assert content != held(path, content.replace("Zürich".encode(), b"Z\xfcrich ")).read_bytes()
    assert probe(source(path)).duration_s == pytest.approx(probe(source(media / "flac.mkv")).duration_s, abs=1e-3)


def test_changed_after_probe(media, tmp_path):
    path = held(tmp_path / "a.m4a", (media / "aac.m4a").read_bytes())
    audio = probe(source(path))
    held(path, (media / "aac.mov").read_bytes())
    with pytest.raises(AudioError, match="changed since the run began"):
        whole(audio)
    path.unlink()
    with pytest.raises(AudioError, match="no such file"):
        whole(audio)
    with pytest.raises(AudioError, match="no such file"):
        whole(replace(audio, file="gone.m4a"))


@pytest.mark.parametrize("name", ["a.m4a", "a.webm", "a.aac"])
def test_cut_at_the_end_of_a_long_file_decodes_little(tmp_path, monkeypatch, name):
    codec, rate = ("libopus", 48_000) if name == "a.webm" else ("aac", 44_100)
    path = encode(tmp_path / name, codec, rate, seconds=15.0)
    decoded = []
    convert = FrameSamples.of
    monkeypatch.setattr(FrameSamples, "of", lambda self, frame: decoded.append(frame.samples) or convert(self, frame))
    cut = probe(source(path, offset_s=13.0, duration_s=1.0))
    assert sum(decoded) < rate
    assert len(whole(cut)) == rate
    assert sum(decoded) < 8 * rate  # a cluster of a WebM file has five seconds


def test_open_file_is_used_again(media, monkeypatch):
    monkeypatch.setattr("fastscribe.audio.read.MIN_CACHED_S", 0.5)
    audio = probe(source(media / "aac.m4a"))
    samples = whole(audio)
    opened = []
    open_file = containers._open
    monkeypatch.setattr(containers, "_open", lambda *given: opened.append(1) or open_file(*given))
    for at in (60_000, 100_000, 30_000, 31_000, 90_000):
        part = read(audio, at, 5_000, sample_rate=44_100)
        np.testing.assert_allclose(part, samples[at : at + 5_000], atol=1e-4)
    assert len(opened) == 1


def test_open_track_at_exit(media):
    """An idle file in the cache is closed by the interpreter, without a message."""
    code = (
        "import sys; from fastscribe.audio.containers import Track; from fastscribe.audio.media import LocalFile;"
        " track = Track(LocalFile(sys.argv[1]), 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(media / "aac.m4a")], check=True, capture_output=True)
    assert done.stderr == b""


PLAIN = "failures first_bytes flac folders formats header input_names media probe read sound wav"


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_plain_files_import_no_reader_of_others(tmp_path, name):
    """Neither of other formats, nor of lists, stores and containers."""
    soundfile.write(tmp_path / name, np.zeros(1_000), 16_000)
    code = (
        "import sys; from fastscribe.audio.probe import probe; from fastscribe.audio.read import read;"
        "from fastscribe.audio.inputs import expand; [source] = expand([sys.argv[1]]); audio = probe(source);"
        "read(audio, 0, 9, sample_rate=16_000); assert 'av' not in sys.modules;"
        "print(*[name[17:] for name in sys.modules if name.startswith('fastscribe.audio.')]);"
        "import fastscribe.cli.transcribe; assert 'av' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / name)], check=True, capture_output=True, text=True
    )
    assert set(done.stdout.split()) <= {*PLAIN.split(), "inputs"}


@pytest.mark.parametrize(
    ("entry", "protection"), [(b"enca", "Common Encryption"), (b"drms", "Apple's FairPlay"), (b"aavd", "Audible")]
)
def test_encrypted_tracks_are_named(media, tmp_path, entry, protection):
    content = (media / "aac.m4a").read_bytes()
    assert content.count(b"mp4a") == 1
    path = tmp_path / "a.m4b"
    path.write_bytes(content.replace(b"mp4a", entry))
    assert problem(path).startswith(f"is encrypted ({protection}): ")


def test_common_encryption_is_named(tmp_path):
    key = {"encryption_key": "00112233445566778899aabbccddeeff", "encryption_kid": "ffeeddccbbaa99887766554433221100"}
    encode(tmp_path / "a.mp4", "aac", 44_100, 1, options={"encryption_scheme": "cenc-aes-ctr", **key})
    assert "is encrypted (Common Encryption)" in problem(tmp_path / "a.mp4")


@pytest.mark.parametrize("head", [b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"RIFF\x20\0\0\0WEBPVP8 ", b"GIF89a\x10\0\x10\0"])
def test_pictures_are_named(tmp_path, head):
    (tmp_path / "cover.jpg").write_bytes(head + bytes(500))
    assert problem(tmp_path / "cover.jpg") == "is a picture, not audio"


@pytest.mark.parametrize("name", ["index.ts", "index.mts", "notes.au"])
def test_texts_with_names_of_recordings_are_texts(tmp_path, name):
    (tmp_path / name).write_text("export const x: number = 1;\n" * 30)
    assert problem(tmp_path / name) == "is text, not audio"
