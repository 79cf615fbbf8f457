"""Recordings in tar archives: NeMo's tarred manifests and Lhotse's Shar folders, and Lhotse's cuts."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from fastscribe.audio import media
from fastscribe.audio.archives import number_of
from fastscribe.audio.media import FilePart
from fastscribe.errors import UsageError
from fastscribe.training import manifest as manifest_module
from fastscribe.training.archives import expand
from fastscribe.training.corpus import Corpus, Examples, ManifestPart
from fastscribe.training.dataloader import AudioDataLoader
from fastscribe.training.manifest import ExampleLimits, read_manifests
from tests.conftest import DATA
from tests.helpers.archives import packed

LHOTSE = DATA / "lhotse"  # made by scripts/goldens/lhotse_cuts.py
LIMITS = ExampleLimits()


def read(path: Path, **options: Any) -> Corpus:
    return read_manifests([ManifestPart(str(path), **options)], LIMITS)


def samples_of(examples: Examples, rate: int = 8000) -> list[np.ndarray]:
    said: list[str] = []
    loader = AudioDataLoader(examples, rate, 0.0, 1, said.append)
    [rows] = loader.batches([np.arange(len(examples))])
    assert not said and len(rows.examples) == len(examples)
    return [row_S[:length].numpy() for row_S, length in zip(rows.samples_BS, rows.lengths_B.tolist(), strict=True)]


def tone(number: int, seconds: float = 1.0) -> np.ndarray:
    return np.full(int(8000 * seconds), 100 * (number + 1), np.int16)


def recording(samples_S: np.ndarray) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, samples_S, 8000, format="FLAC")
    return content.getvalue()


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Two tars of two recordings each, the second of 2 s, which has two rows, as NeMo writes them."""
    rows = []
    for shard in range(2):
        numbers = (2 * shard, 2 * shard + 1)
        members = {f"./{number}.flac": recording(tone(number, 1.0 + number % 2)) for number in numbers}
        packed(members, tmp_path / f"audio_{shard}.tar")
        base = {"shard_id": shard, "duration": 1.0, "text": "one"}
        rows += [{**base, "audio_filepath": f"{2 * shard}.flac"}, {**base, "audio_filepath": f"{2 * shard + 1}.flac"}]
        rows.append({**base, "audio_filepath": f"{2 * shard + 1}-sub1.flac", "offset": 1.0, "text": "two"})
    write(tmp_path / "manifest.json", rows)
    for shard in range(2):
        alone = [{key: row[key] for key in row if key != "shard_id"} for row in rows if row["shard_id"] == shard]
        write(tmp_path / f"manifest_{shard}.json", alone)
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("shown", ["manifest.json", "manifest_{0..1}.json", "manifest__OP_0..1_CL_.json"])
@pytest.mark.parametrize("tar", ["audio_{0..1}.tar", "audio__OP_0..1_CL_.tar"])
def test_nemo_tars(tars: Path, shown: str, tar: str) -> None:
    corpus = read(tars / shown, tar=str(tars / tar))
    assert [example.text for example in corpus.examples] == ["one", "one", "two"] * 2
    waves = samples_of(corpus.examples)
    assert all(len(wave_S) == 8000 for wave_S in waves)
    assert [int(wave_S[0]) for wave_S in waves] == [100, 200, 200, 300, 400, 400]
    shuffled = corpus.examples.take(np.array([4, 0, 3]))
    assert [int(wave_S[0]) for wave_S in samples_of(shuffled)] == [400, 100, 300]


def test_tars_beside_a_manifest_are_found(tars: Path) -> None:
    """Rows with a shard_id need no `tar`; nor does a manifest of a Shar folder. Tables are read too."""
    corpus = read(tars / "manifest.json")
    assert [int(wave_S[0]) for wave_S in samples_of(corpus.examples)] == [100, 200, 200, 300, 400, 400]
    assert len(read(LHOTSE / "shar" / "cuts.000000.jsonl.gz").examples)
    (tars / "a.flac").write_bytes(recording(tone(0)))
    (tars / "t.csv").write_text("path,duration,text\na.flac,1.0,one\n")
    [example] = read(tars / "t.csv").examples
    assert (example.path, example.duration_s, example.text) == (str(tars / "a.flac"), 1.0, "one")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"audio_filepath": "9.flac"}, r"no such recording in .*audio_0\.tar: '9\.flac'"),
        ({"shard_id": 7}, "shard_id 7: no such tar"),
        ({"shard_id": None}, "no shard_id, which says in which tar it is"),
        ({"shard_id": "x"}, "shard_id is 'x', not a number"),
    ],
)
def test_wrong_tar_rows(tars: Path, changed: dict[str, Any], problem: str) -> None:
    row = {"audio_filepath": "0.flac", "shard_id": 0, "duration": 1.0, "text": "one", **changed}
    write(tars / "wrong.json", [row])
    with pytest.raises(UsageError, match=rf"wrong\.json: line 1: {problem}"):
        read(tars / "wrong.json", tar=str(tars / "audio_{0..1}.tar"))


@pytest.fixture
def bucketed(tmp_path: Path) -> Path:
    """Two buckets whose tars and manifests, and their rows, have the same names."""
    for bucket in (1, 2):
        (tmp_path / f"bucket{bucket}").mkdir()
        packed({"0.flac": recording(tone(bucket))}, tmp_path / f"bucket{bucket}/audio_0.tar")
        row = {"audio_filepath": "0.flac", "duration": 1.0, "text": f"bucket {bucket}", "shard_id": 0}
        write(tmp_path / f"bucket{bucket}/manifest_0.json", [row])
    return tmp_path


@pytest.mark.parametrize("shard", ["0..0", "0"])
def test_buckets_have_their_own_tars(bucketed: Path, shard: str) -> None:
    number = f"{{{shard}}}" if ".." in shard else shard
    tar = str(bucketed / f"bucket{{1..2}}/audio_{number}.tar")
    corpus = read(bucketed / f"bucket{{1..2}}/manifest_{number}.json", tar=tar)
    assert [int(wave_S[0]) for wave_S in samples_of(corpus.examples)] == [200, 300]


def test_tars_that_a_number_does_not_tell_apart(bucketed: Path) -> None:
    with pytest.raises(UsageError, match=r"bucket1/audio_0\.tar and .*bucket2/audio_0\.tar both have the number 0"):
        read(bucketed / "bucket1/manifest_0.json", tar=str(bucketed / "bucket{1..2}/audio_{0..0}.tar"))
    row = {"audio_filepath": "0.flac", "duration": 1.0, "text": "one", "shard_id": 7}
    write(bucketed / "bucket2/manifest_0.json", [row])
    with pytest.raises(UsageError, match=r"line 1: shard_id 7: the tar of this manifest is .*bucket2/audio_0\.tar"):
        read(bucketed / "bucket{1..2}/manifest_0.json", tar=str(bucketed / "bucket{1..2}/audio_0.tar"))


def test_fewer_manifests_than_tars(tars: Path) -> None:
    """A manifest without shard_id stands for the tar of its number."""
    (tars / "audio_2.tar").write_bytes((tars / "audio_0.tar").read_bytes())
    corpus = read(tars / "manifest_{0..1}.json", tar=str(tars / "audio_{0..2}.tar"))
    assert [int(wave_S[0]) for wave_S in samples_of(corpus.examples)] == [100, 200, 200, 300, 400, 400]


def test_tar_where_none_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a folder, whose recordings are in it: leave tar out"):
        read(LHOTSE / "shar", tar="audio_0.tar")
    with pytest.raises(UsageError, match=r"a folder, whose recordings are in it: leave tar out"):
        read(tmp_path, tar="audio_0.tar")
    with pytest.raises(UsageError, match=r"line 1, .*: a cut names its recording itself: leave tar out"):
        read(LHOTSE / "cuts.jsonl.gz", tar="audio_0.tar")


def test_empty_member(tmp_path: Path) -> None:
    packed({"empty.flac": b""}, tmp_path / "audio_0.tar")
    write(tmp_path / "m.json", [{"audio_filepath": "empty.flac", "duration": 1.0, "text": "one"}])
    with pytest.raises(UsageError, match=r"m\.json: line 1: 'empty\.flac' in .*audio_0\.tar is empty \(0 bytes\)"):
        read(tmp_path / "m.json", tar=str(tmp_path / "audio_0.tar"))
    (tmp_path / "audio_0.tar").rename(tmp_path / "recording.000000.tar")
    write(tmp_path / "cuts.000000.jsonl", [cut(id="empty", recording=IN_TAR)])
    with pytest.raises(UsageError, match=r"line 1: the recording of cut 'empty' in .* is empty \(0 bytes\)"):
        read(tmp_path)


def test_unusable_archives(tars: Path) -> None:
    write(tars / "one.json", [{"audio_filepath": "0.flac", "duration": 1.0, "text": "one"}])
    whole = (tars / "audio_0.tar").read_bytes()
    for name, size in (("half.tar", 600), ("start.tar", 100)):
        (tars / name).write_bytes(whole[:size])
    (tars / "other.tar").write_bytes(b"no tar" * 1000)
    problems = {"none": "no such file", "half": "cut off: it", "start": "cut off: it", "other": "no tar archive"}
    for name, problem in problems.items():
        with pytest.raises(UsageError, match=rf"{name}\.tar: .*{problem}"):
            read(tars / "one.json", tar=str(tars / f"{name}.tar"))


def test_archive_that_is_cut_off_later(tars: Path) -> None:
    """The recording is left out while training, as others that cannot be read."""
    corpus = read(tars / "manifest.json", tar=str(tars / "audio_{0..1}.tar"))
    (tars / "audio_1.tar").write_bytes((tars / "audio_1.tar").read_bytes()[:600])
    said: list[str] = []
    [rows] = AudioDataLoader(corpus.examples, 8000, 0.0, 1, said.append).batches([np.arange(6)])
    assert rows.examples.tolist() == [0, 1, 2] and len(said) == 3
    starts = [example.start for example in corpus.examples]
    assert f"audio_1.tar at byte {starts[3]}: " in said[0] and f"audio_1.tar at byte {starts[4]}: " in said[1]
    assert "it has changed or is cut off" in said[0]


def test_sparse_member(tars: Path) -> None:
    """Its bytes do not lie one after another."""
    with tarfile.open(tars / "audio_0.tar", "w") as archive:
        member = tarfile.TarInfo("0.flac")
        member.type, member.size = tarfile.GNUTYPE_SPARSE, 0
        archive.addfile(member)
    with pytest.raises(UsageError, match=r"audio_0\.tar: its member '0\.flac' is sparse: write the tar without"):
        read(tars / "manifest_0.json", tar=str(tars / "audio_0.tar"))


def test_part_of_a_file_that_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may give fewer bytes than were asked for."""

    class Slow(io.FileIO):
        def readinto(self, buffer: Any, /) -> int:
            return super().readinto(memoryview(buffer)[:7]) or 0

    (tmp_path / "file").write_bytes(bytes(range(100)))
    monkeypatch.setattr(media, "open", lambda path, mode: io.BufferedReader(Slow(path)), raising=False)
    with FilePart(str(tmp_path / "file"), 20, 30).open() as file:
        assert file.read() == bytes(range(20, 50))


@pytest.mark.parametrize("small_bytes", [1 << 20, 10])
def test_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int) -> None:
    """A large part is read as it is asked for."""
    monkeypatch.setattr("fastscribe.audio.media._SMALL_BYTES", small_bytes)
    (tmp_path / "file").write_bytes(bytes(range(100)))
    part = FilePart(str(tmp_path / "file"), 20, 30)
    with part.open() as file:
        assert (file.read(5), file.tell()) == (bytes(range(20, 25)), 5)
        assert file.seek(-2, 2) == 28 and file.read() == bytes([48, 49])
        assert file.seek(10) == 10 and file.read(3) == bytes([30, 31, 32]) and file.seek(40) == 40 and not file.read()
    assert part.num_bytes() == 30


def test_shar() -> None:
    corpus = read(LHOTSE / "shar")
    assert [(e.text, e.duration_s) for e in corpus.examples] == [
        ("At Rice", 0.8),
        ("Such instructions", 0.8),
        ("Lord William", 0.8),
    ]
    first, second, third = samples_of(corpus.examples)
    assert np.array_equal(first, soundfile.read(LHOTSE / "0.flac", dtype="int16")[0])
    assert np.array_equal(third, soundfile.read(LHOTSE / "stereo.flac", dtype="int16")[0][:, 1])
    assert not np.array_equal(second, third)


def cut(**changes: Any) -> dict[str, Any]:
    source = {"type": "file", "channels": [0], "source": "0.flac"}
    made = {"id": "c", "type": "MonoCut", "start": 0, "duration": 0.8, "channel": 0}
    words = [{"text": "one", "start": 0}]
    return {
        **made,
        "supervisions": words,
        "recording": {"sources": [source], **changes.pop("recording", {})},
        **changes,
    }


MIXED = {"id": "m", "tracks": [{"cut": cut(), "type": "MonoCut", "offset": 0.0}], "type": "MixedCut"}
IN_TAR = {"sources": [{"type": "shar", "channels": [0], "source": ""}]}
STEREO = {"sources": [{"type": "file", "channels": [0, 1], "source": "stereo.flac"}]}


@pytest.mark.parametrize(("wanted", "channel"), [([0], 0), ([1], 1), ([1, 0], None), (0, 0), (None, None)])
def test_channels_of_cuts(tmp_path: Path, wanted: Any, channel: int | None) -> None:
    (tmp_path / "stereo.flac").touch()
    row = cut(type="MultiCut", channel=wanted, recording=STEREO)
    [example] = read(write(tmp_path / "cuts.jsonl", [row])).examples
    assert example.channel == channel


WRONG_CUTS = {
    "mixed": (MIXED, "a MixedCut: export it with CutSet.to_shar"),
    "transforms": (cut(recording={"transforms": [{"name": "Speed"}]}), "transforms that are still to be computed"),
    "command": (
        cut(recording={"sources": [{"type": "command", "channels": [0], "source": "x"}]}),
        "a source of type 'command'",
    ),
    "url": (
        cut(recording={"sources": [{"type": "url", "channels": [0], "source": "s3://x"}]}),
        "files, not addresses",
    ),
    "sources": (cut(recording={"sources": [{}, {}]}), "several sources"),
    "recording": (cut(recording={"sources": None}), "not a cut as Lhotse writes it"),
    "text": (cut(supervisions=[]), "no text"),
    "duration": (cut(duration=0), "not seconds"),
    "custom": (cut(custom="x"), "custom is 'x', not an object"),
    "supervision": (
        cut(supervisions=[{"text": "one", "start": 0, "custom": ["x"]}]),
        r"custom is \['x'\], not an object",
    ),
    "channels": (cut(channel=[0, 2], recording=STEREO), r"channel \[0, 2\] of a file with \[0, 1\]"),
    "channel": (cut(channel=[2], recording=STEREO), r"channel \[2\] of a file with \[0, 1\]"),
    "no channel": (cut(channel=[], recording=STEREO), r"channel \[\] of a file with \[0, 1\]"),
}


@pytest.mark.parametrize("kind", WRONG_CUTS)
def test_wrong_cuts(tmp_path: Path, kind: str) -> None:
    (tmp_path / "0.flac").touch()
    row, problem = WRONG_CUTS[kind]
    with pytest.raises(UsageError, match=rf"cuts\.jsonl: line 1: .*{problem}"):
        read(write(tmp_path / "cuts.jsonl", [row]))


def test_wrong_shar_folders(tmp_path: Path) -> None:
    write(tmp_path / "cuts.000003.jsonl", [cut(id="gone", recording=IN_TAR)])
    with pytest.raises(UsageError, match=r"cuts\.000003\.jsonl: no recording\.\*\.tar beside it"):
        read(tmp_path)
    packed({"other.flac": b"x"}, tmp_path / "recording.000003.tar")
    with pytest.raises(UsageError, match=r"line 1: no recording of cut 'gone' in the tar"):
        read(tmp_path)


def test_expand() -> None:
    assert expand("a/b_{08..10}.tar") == [("a/b_08.tar", 8), ("a/b_09.tar", 9), ("a/b_10.tar", 10)]
    assert expand("{0..1}/x__OP_5..6_CL_a.json") == [
        ("0/x_5a.json", 5),
        ("0/x_6a.json", 6),
        ("1/x_5a.json", 5),
        ("1/x_6a.json", 6),
    ]
    assert expand("x_{0..1}_16k.tar") == [("x_0_16k.tar", 0), ("x_1_16k.tar", 1)]
    assert expand("plain{}.tar") == [("plain{}.tar", None)]
    for pattern in ("a_{2..1}.tar", "{0..1}/a__OP_2..1_CL_.tar"):
        with pytest.raises(UsageError, match=rf"^{re.escape(pattern)}: the range (\{{|_OP_)2\.\.1.* descends"):
            expand(pattern)
    assert [number_of(path) for path in ("b9/audio_012.tar", "cuts.000003.jsonl.gz", "x.tar")] == [12, 3, None]


def test_existence_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long manifest few rows are looked up, over all of it."""
    looked: list[str] = []
    monkeypatch.setattr(manifest_module.os.path, "isfile", lambda path: not looked.append(path))
    write(tmp_path / "long.jsonl", [{"audio_filepath": f"{n}", "duration": 1, "text": "a"} for n in range(1, 20_001)])
    assert len(read(tmp_path / "long.jsonl").examples) == 20_000
    numbers = [int(Path(path).name) for path in looked]
    assert numbers[:100] == list(range(1, 101)) and 550 < len(numbers) < 650 and numbers[-1] > 19_700
