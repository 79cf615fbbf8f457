"""Lists of recordings of other tools: each row is a recording, or a failure that says where it stands."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from fastscribe.audio.inputs import expand
from fastscribe.audio.manifest import row_source
from fastscribe.audio.media import FilePart
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.errors import AudioError
from fastscribe.types import Failure, Source
from tests.conftest import DATA
from tests.helpers.archives import packed

LHOTSE = DATA / "lhotse"
RATE = 8000


def listed(path: Path | str, left_out: Counter[str] | None = None) -> list[Source | Failure]:
    return list(expand([str(path)], left_out=left_out))


def sources(path: Path | str) -> list[Source]:
    found = listed(path)
    assert all(isinstance(item, Source) for item in found), found
    return [item for item in found if isinstance(item, Source)]


def problem(path: Path | str) -> str:
    [found] = listed(path)
    assert isinstance(found, Failure) and found.stage == "input" and found.path == str(path)
    return found.message


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def touch(folder: Path, *names: str) -> None:
    for name in names:
        write(folder / name, b"")


def check_failures(found: list[Source | Failure], where: str, said: dict[int, str]) -> None:
    """Check that these are failures, of these lines of a list, with these words."""
    for one, (line, text) in zip(found, said.items(), strict=True):
        assert isinstance(one, Failure) and f"{where}: line {line}: {text}" in one.message


def recording(level: int, seconds: float = 1.0) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, np.full(int(RATE * seconds), level, np.int16), RATE, format="FLAC")
    return content.getvalue()


def level(source: Source) -> int:
    """Return the value of a recording's samples."""
    audio = probe(source)
    return int(read(audio, 0, audio.num_samples, sample_rate=RATE)[0])


@pytest.mark.parametrize("name", ["m.jsonl.gz", "m.jsonl", "m.txt.gz"])
def test_gzip_is_told_by_its_bytes(tmp_path: Path, name: str) -> None:
    row = {"audio_filepath": "a.flac", "speaker": "x"}
    write(tmp_path / name, gzip.compress(json.dumps(row).encode() + b"\n"))
    [source] = sources(tmp_path / name)
    assert (source.row, source.file) == (row, f"{tmp_path}/a.flac")
    write(tmp_path / name, json.dumps(row))  # a browser may have unpacked it
    assert sources(tmp_path / name) == [source]


def test_a_compressed_list_that_is_cut_off(tmp_path: Path) -> None:
    rows = [{"audio_filepath": f"{number}.flac", "noise": os.urandom(400).hex()} for number in range(50)]
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    *first, last = listed(write(tmp_path / "m.jsonl.gz", whole[: len(whole) // 2]))
    assert len(first) > 10 and isinstance(last, Failure)
    assert last.message == "damaged or cut off: not all of it can be unpacked"


def test_numbers_as_text_and_other_names_of_the_path(tmp_path: Path) -> None:
    rows = [
        {"audio_filepath": "a.flac", "duration": "4.9", "offset": " 1e0 ", "audio_track": "2", "audio_channel": "1"},
        {"audio_filename": "b.flac"},
        {"key": "u", "wav": "c.flac", "txt": "hello"},
    ]
    first, second, third = sources(write(tmp_path / "m.jsonl", "\n".join(map(json.dumps, rows))))
    assert (first.duration_s, first.offset_s, first.track, first.channel) == (4.9, 1.0, 2, 1)
    assert first.row == {**rows[0], "duration": 4.9, "offset": 1.0, "audio_track": 2, "audio_channel": 1}
    assert second.row == {"audio_filepath": "b.flac", "audio_filename": "b.flac"}
    assert (third.path, third.row) == ("c.flac", {"audio_filepath": "c.flac", **rows[2]})


def test_cuts() -> None:
    whole, part, right = sources(LHOTSE / "cuts.jsonl.gz")
    spans = [(one.offset_s, one.duration_s, one.channel) for one in (whole, part, right)]
    assert spans == [(None, 0.8, None), (0.25, 0.5, None), (None, 0.8, 1)]
    assert part.row is not None and part.row["id"] == part.id and part.row["text"] == "At Rice"
    assert right.row is not None and right.row["supervisions"][0]["text"] == "on the right"
    stereo_SC = soundfile.read(LHOTSE / "stereo.flac", dtype="int16")[0]
    assert np.array_equal(read(probe(right), 0, len(stereo_SC), sample_rate=RATE), stereo_SC[:, 1])


def test_a_cut_is_reopened_as_its_row_in_the_results_says() -> None:
    """The row has the channel beside offset and duration."""
    [*_, right] = sources(LHOTSE / "cuts.jsonl.gz")
    row = {**(right.row or {}), "pred_text": ""}
    assert probe(row_source(str(LHOTSE / "transcripts.jsonl"), 1, row)).channel == 1


CUT: dict[str, Any] = {
    "id": "c",
    "start": 0,
    "duration": 0.8,
    "channel": 0,
    "supervisions": [{"start": 0, "text": "hello", "language": "de", "custom": {"snr": 3}}],
    "recording": {"sources": [{"type": "file", "channels": [0], "source": "0.flac"}]},
    "custom": {"offset": 9, "domain": "news"},
    "type": "MonoCut",
}
RECORDING = {"id": "r", "sampling_rate": RATE, "num_samples": 6400, "duration": 0.8, **CUT["recording"]}


def test_fields_of_lhotse(tmp_path: Path) -> None:
    """Custom fields are fields, and none of them moves the part. A RecordingSet is read too."""
    cut, whole = sources(write(tmp_path / "cuts.jsonl", json.dumps(CUT) + "\n" + json.dumps(RECORDING)))
    named = {"audio_filepath": "0.flac", "text": "hello", "language": "de", "snr": 3, "domain": "news"}
    assert cut.row == {**CUT, **named} and cut.offset_s is None
    assert (whole.id, whole.row) == ("r", {"audio_filepath": "0.flac", **RECORDING})


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": "p", "duration": 1.0, "type": "PaddingCut"}, "a PaddingCut: export it with CutSet.to_shar"),
        ({key: CUT[key] for key in CUT if key != "recording"}, "a cut without a recording"),
        ({"id": "s", "recording_id": "r", "start": 0, "text": "x"}, "supervisions, which names no file"),
        ({**RECORDING, "sources": RECORDING["sources"] * 2}, "several sources"),
        ({**CUT, "recording": {"sources": [{"type": "shar", "channels": [0], "source": ""}]}}, ""),
    ],
    ids=["padding", "features", "supervision", "sources", "shar"],
)
def test_rows_of_lhotse_that_name_no_file(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    last = json.dumps({**CUT, "id": "last"})
    found = listed(write(tmp_path / "cuts.jsonl", json.dumps(row) + "\n" + last))
    assert isinstance(found[0], Failure)
    if not problem:  # of the whole list
        assert found[0].message == "no recording.*.tar beside it with the same number" and len(found) == 1
    else:
        assert f"{tmp_path}/cuts.jsonl: line 1: " in found[0].message and problem in found[0].message
        assert found[1].id == "last"


def test_cuts_of_a_shar_folder_are_read_where_they_lie() -> None:
    found = sources(LHOTSE / "shar" / "cuts.000000.jsonl.gz")
    assert found and all(isinstance(one.file, FilePart) and one.id == (one.row or {})["id"] for one in found)
    assert probe(found[0]).num_samples == 6400


def test_common_voice(tmp_path: Path) -> None:
    """Paths count from clips/, and a quote is a part of the sentence."""
    touch(tmp_path, "clips/a.mp3", "clips/b.mp3")
    rows = 'client_id\tpath\tsentence\nx\ta.mp3\t"Hi," he said\ny\tb.mp3\t"unclosed\nz\tgone.mp3\t\n'
    found = sources(write(tmp_path / "validated.tsv", rows))
    assert [one.file for one in found] == [f"{tmp_path}/clips/{name}.mp3" for name in ("a", "b", "gone")]
    assert [(one.row or {})["sentence"] for one in found] == ['"Hi," he said', '"unclosed', ""]
    assert found[0].row == {"audio_filepath": "a.mp3", "client_id": "x", "path": "a.mp3", "sentence": '"Hi," he said'}


def test_tables(tmp_path: Path) -> None:
    """A header in another case, quotes with line breaks in them, a byte order mark, and other delimiters."""
    rows = b'\xef\xbb\xbfFile_Name , Duration,Note\r\n"a, 1.flac",1.5,"two\r\nlines"\r\n\r\nb.flac,,\r\n'
    first, second = sources(write(tmp_path / "metadata.csv", rows))
    names = dict.fromkeys(("audio_filepath", "File_Name"), "a, 1.flac")
    assert first.row == {**names, "duration": 1.5, "Note": "two\r\nlines"}
    assert (first.duration_s, second.duration_s, second.file) == (1.5, None, f"{tmp_path}/b.flac")
    for delimiter, name in ((";", "a.csv"), ("|", "b.csv"), ("\t", "c.csv"), (",", "d.tsv")):
        rows = delimiter.join(("id", "audio")) + "\n" + delimiter.join(("1", "a.flac"))
        assert [one.path for one in sources(write(tmp_path / name, rows))] == ["a.flac"]


def test_decimal_commas(tmp_path: Path) -> None:
    """They are a German Excel's, which separates cells by semicolons; what may be thousands or a clock's time is refused."""
    given = ("12,5", " 0,25", "12.5", "7", "1.234,5", "1,234.5", "1,2,3", "-1,5", ",5", "1:02:03")
    rows = "path;offset;duration\n" + "".join(f"a.flac;0,5;{one}\n" for one in given)
    found = listed(write(tmp_path / "t.csv", rows))
    durations = [(one.offset_s, one.duration_s) for one in found if isinstance(one, Source)]
    assert durations == [(0.5, 12.5), (0.5, 0.25), (0.5, 12.5), (0.5, 7.0)]
    said = {line: f"duration is '{one}', not a number of seconds" for line, one in enumerate(given[4:], start=6)}
    check_failures([one for one in found if isinstance(one, Failure)], f"{tmp_path}/t.csv", said)
    (other,) = listed(write(tmp_path / "t.tsv", "path\tduration\na.flac\t12,5\n"))
    check_failures([other], f"{tmp_path}/t.tsv", {2: "duration is '12,5', not a number of seconds"})


def test_wrong_rows_of_a_table(tmp_path: Path) -> None:
    rows = b'path,duration\na.flac,1.5 s\n,1\nb.flac,1,x\ncaf\xe9.flac,1\n"c".flac,1\nd.flac,1\n"e.flac,1\n'
    found = listed(write(tmp_path / "t.csv", rows))
    assert [one.path for one in found if isinstance(one, Source)] == ["d.flac"]
    said = {2: "duration is '1.5 s'", 3: "no audio_filepath", 4: "3 columns, and the", 5: "not valid UTF-8"}
    wrong = [one for one in found if isinstance(one, Failure)]
    check_failures(wrong, f"{tmp_path}/t.csv", {**said, 6: "not a row", 8: "not a row"})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", "a.flac,hello\n", "write a line with the columns' names above its rows"),
        ("t.csv", "LJ001|hello\n", "names no column of recordings (audio_filepath, file_name, path ..)"),
        ("t.tsv", "path\ttext\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        ("t.csv", "", "this list holds no rows"),
        ("t.csv", "path\n", "this list holds no rows"),
        ("t.csv", b"PAR1abc", "is a Parquet table, not audio: in Python"),
        ("t.txt", b"PK\3\4abc", "is a zip archive, not audio: unpack it"),
        ("t.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a picture, not audio"),
        ("t.txt", b"RIFF\4\0\0\0WAVEfmt ", "is a recording with the name of a list: rename it"),
        ("t.txt", "Good morning.\na.flac\n", "its first line, 'Good morning.', is no path of one"),
        ("t.txt", "\n \n", "this list holds no rows"),
        ("t.tar", b"x" * 2000, "no tar archive"),
        ("t.jsonl", "", "this manifest holds no rows"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 9 else "",
)
def test_what_is_no_list(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    assert said in problem(write(tmp_path / name, content))


def test_wav_scp(tmp_path: Path) -> None:
    rows = "utt1 a b.flac\nutt2\tsph2pipe -f wav x.sph |\nutt3\nutt4 raw.ark:12\nu/5 /x/c.flac\n"
    first, *wrong, last = listed(write(tmp_path / "wav.scp", rows))
    assert isinstance(first, Source) and isinstance(last, Source)
    assert (first.path, first.id, first.row) == ("a b.flac", "utt1", {"audio_filepath": "a b.flac", "id": "utt1"})
    assert (last.file, last.id) == ("/x/c.flac", "u/5")
    said = {2: "a command writes this recording", 3: "no path after the id 'utt3'", 4: "a place in a Kaldi"}
    check_failures(wrong, f"{tmp_path}/wav.scp", said)


def test_segments_of_kaldi(tmp_path: Path) -> None:
    rows = write(tmp_path / "wav.scp", "rec a.flac\npiped cat b |\n")
    write(tmp_path / "segments", "a rec 0.5 2.25\nb rec 3 -1 1\nc none 0 1\nd rec 2 1\ne rec x\n")
    piped, first, second, *wrong = listed(rows)
    assert isinstance(piped, Failure) and isinstance(first, Source) and isinstance(second, Source)
    assert (first.id, first.offset_s, first.duration_s, first.file) == ("a", 0.5, 1.75, f"{tmp_path}/a.flac")
    assert (second.id, second.offset_s, second.duration_s, second.channel) == ("b", 3, None, 1)
    said = {3: "its recording 'none' has no", 4: "start 2, end 1: not", 5: "not id, recording, start and end"}
    check_failures(wrong, f"{tmp_path}/segments", said)


def test_lists_of_paths(tmp_path: Path) -> None:
    """Names with tabs and spaces, comments, other line ends, and NULs."""
    touch(tmp_path, "tab\there.flac", "#1.flac", "#2 call", "no extension", "b.flac")
    rows = "# mine\n#2 call\nno extension\r\n\ntab\there.flac\n#1.flac\n b.flac \ngone.wav\ns3://x/y.flac"
    found = sources(write(tmp_path / "list.txt", rows))
    names = ["#2 call", "no extension", "tab\there.flac", "#1.flac", "b.flac", "gone.wav"]
    assert [one.path for one in found] == [*names, "s3://x/y.flac"]
    assert [one.file for one in found[:-1]] == [f"{tmp_path}/{name}" for name in names]
    assert all(one.row is None for one in found)
    ended = sources(write(tmp_path / "nul.lst", "./a.flac\0b\nc.flac\0#3 call\0#EXT-X-files/d.flac\0"))
    assert [one.path for one in ended] == ["./a.flac", "b\nc.flac", "#3 call", "#EXT-X-files/d.flac"]
    playlist = write(tmp_path / "p.m3u", "#EXTM3U\n#EXTINF:4,x.flac\nb.flac\n")
    assert [one.path for one in sources(playlist)] == ["b.flac"]
    assert sources(write(tmp_path / "rows.list", '{"audio_filepath": "b.flac"}'))[0].row == {"audio_filepath": "b.flac"}


def test_the_folder_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first recording that is there decides: in the list's folder, or else in the current one."""
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "data/b.flac", "lists/own/b.flac")
    given = write(tmp_path / "lists/list.txt", "data/a.flac\ndata/b.flac\ndata/c.flac\n")
    assert [one.file for one in sources(given)] == [f"{tmp_path}/lists/data/a.flac", "data/b.flac", "data/c.flac"]
    given = write(tmp_path / "lists/list.csv", "path\nown/b.flac\ndata/b.flac\n")
    assert [one.file for one in sources(given)] == [f"{tmp_path}/lists/own/b.flac", f"{tmp_path}/lists/data/b.flac"]


def test_lists_in_a_folder_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.flac", "list.txt", "wav.scp", "t.csv", "m.jsonl.gz", "s.tar")
    counted: Counter[str] = Counter()
    assert [one.id for one in listed(tmp_path, counted)] == ["a.flac"]
    assert counted == {".txt": 1, ".scp": 1, ".csv": 1, ".gz": 1, ".tar": 1}


def test_tar_of_recordings(tmp_path: Path) -> None:
    """They are read where they lie, also as paths into the archive. Other files are counted."""
    members = {
        "./x/1.flac": recording(1),
        "x/._1.flac": b"x",
        "x/2.flac": recording(2),
        "x/cover.jpg": b"x",
        "odd.q": b"x",
        "e.flac": b"",
    }
    counted: Counter[str] = Counter()
    found = listed(packed(members, tmp_path / "s.tar"), counted)
    assert [one.id for one in found] == ["s.tar/x/1.flac", "s.tar/x/2.flac", "s.tar/e.flac"]
    assert counted == {".jpg": 1, ".q (not opened)": 1}
    first, second, empty = (one for one in found if isinstance(one, Source))
    assert (level(first), level(second), first.row, first.path) == (1, 2, None, f"{tmp_path}/s.tar/x/1.flac")
    assert isinstance(second.file, FilePart) and second.file.identity.startswith(f"{tmp_path}/s.tar@")
    with pytest.raises(AudioError, match="is empty"):
        probe(empty)
    [again] = sources(write(tmp_path / "m.jsonl", json.dumps({"audio_filepath": "s.tar/x/2.flac"})))
    assert again.file == second.file
    assert row_source(str(tmp_path / "out" / "transcripts.jsonl"), 1, {"audio_filepath": first.path}).file == first.file


def test_webdataset(tmp_path: Path) -> None:
    """Fields come from the files beside a recording, wherever they stand; where it came from is not where it lies."""
    members = {
        "2.txt": b"two words\n",
        "1.flac": recording(1),
        "2.flac": recording(2),
        "1.json": json.dumps({"text": "one", "offset": 33.1, "audio_filepath": "long.wav", "duration": "0.5"}).encode(),
        "3.flac": recording(3),
        "3.json": b"[1]",
        "4.left.flac": recording(4),
        "4.json": b'{"speaker": "x"}',
        "lone.txt": b"x",
    }
    counted: Counter[str] = Counter()
    first, second, wrong, last = listed(packed(members, tmp_path / "s.tar"), counted)
    assert isinstance(first, Source) and isinstance(second, Source) and isinstance(last, Source)
    place = {"audio_filepath": f"{tmp_path}/s.tar/1.flac", "text": "one", "duration": 0.5}
    assert first.row == {**place, "original_offset": 33.1, "original_audio_filepath": "long.wav"}
    assert (first.offset_s, first.duration_s, probe(first).num_samples) == (None, None, RATE)
    assert (second.row or {})["text"] == "two words" and (last.row or {})["speaker"] == "x"
    assert isinstance(wrong, Failure) and wrong.message == f"{tmp_path}/s.tar: 3.json: not a JSON object of text"
    assert counted == {".txt": 1}


def test_damaged_tars(tmp_path: Path) -> None:
    """What stands before the damage is read."""
    members = {"1.flac": recording(1), "2.flac": recording(2), "3.flac": os.urandom(30000)}
    whole = packed(members, tmp_path / "s.tar").read_bytes()
    *found, last = listed(write(tmp_path / "cut.tar", whole[:-25000]))
    assert [level(one) for one in found[:2] if isinstance(one, Source)] == [1, 2]
    assert isinstance(last, Failure) and last.message == "cut off: it ends in the middle of a member"
    with tarfile.open(tmp_path / "s.tar") as archive:
        third = archive.getmember("3.flac").offset
    for content, message in {
        whole[:third] + b"\xff" * 20 + whole[third + 20 :]: "damaged: what stands behind",
        whole[: third + 200]: "cut off: it ends in the middle of a member",
    }.items():
        *found, last = listed(write(tmp_path / "damaged.tar", content))
        assert len(found) == 2 and isinstance(last, Failure) and last.message.startswith(message)
    for end, counted in ((third, 1), (third + 511, 1), (third + 512, 0)):
        left_out = Counter[str]()
        assert len(listed(write(tmp_path / "end.tar", whole[:third] + bytes(end - third)), left_out)) == 2
        assert [*left_out.values()] == [1] * counted
    for name in ("c.tar.gz", "d.tar"):
        assert problem(packed({"a.flac": b"x"}, tmp_path / name, "w:gz")).startswith("compressed: only a tar without")
    assert problem(packed({"a.jpg": b"x"}, tmp_path / "e.tar")) == "no audio in this archive"
    assert problem("s3://bucket/a.tar").startswith("a tar archive in a store is not read: download it")


@pytest.mark.parametrize("folder", ["", "sharded_manifests"])
def test_tars_beside_a_manifest(tmp_path: Path, folder: str) -> None:
    """A row with shard_id lies in the tar of that number, unless it is a file."""
    packed({"a.flac": recording(1)}, tmp_path / "audio_0.tar")
    cut = packed({"b.flac": recording(2), "c.flac": os.urandom(30000)}, tmp_path / "audio_1.tar")
    cut.write_bytes(cut.read_bytes()[:-25000])
    touch(tmp_path / folder, "file.flac")
    rows = [
        {"audio_filepath": "a.flac", "shard_id": 0},
        {"audio_filepath": "a-sub1.flac", "shard_id": 0, "offset": 0.25, "duration": 0.5},
        {"audio_filepath": "b.flac", "shard_id": "1"},
        {"audio_filepath": "file.flac", "shard_id": 1},
        {"audio_filepath": "a.flac", "shard_id": 7},
        {"audio_filepath": "d.flac", "shard_id": 1},
        {"audio_filepath": "d.flac", "shard_id": 0},
    ]
    manifest = write(tmp_path / folder / "manifest.json", "".join(json.dumps(row) + "\n" for row in rows))
    found = listed(manifest)
    good = [one for one in found if isinstance(one, Source)]
    assert [one.id for one in good] == ["a.flac", "a-sub1.flac@250", "b.flac", "file.flac"]
    assert [level(one) for one in good[:3]] == [1, 1, 2] and good[3].file == str(tmp_path / folder / "file.flac")
    said = (
        "shard_id 7: no tar of this number",
        "audio_1.tar: cut off: it ends in",
        "no such recording in .*audio_0.tar",
    )
    for line, (one, text) in enumerate(zip(found[4:], said, strict=True), start=5):
        assert isinstance(one, Failure) and f"manifest.json: line {line}: " in one.message
        assert text.rpartition(".*")[2] in one.message


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.parquet", "a Parquet table"), ("a.zip", "a zip archive"), ("a.wav.gz", "with gzip"), ("a", "a tar archive")],
)
def test_archives_are_named(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / name
    if name == "a.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.flac", b"x")
    elif name == "a":
        packed({"a.flac": b"x"}, path)
    else:
        write(path, b"PAR1" + bytes(99) if name == "a.parquet" else gzip.compress(recording(1)))
    [source] = sources(path)
    with pytest.raises(AudioError, match=f"is .*{said}"):
        probe(source)
