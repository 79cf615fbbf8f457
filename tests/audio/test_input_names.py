"""Paths as players, people and other systems write them; the ones that are there as they stand are taken as they stand.

A file that is reached twice is one input; links, and rows of manifests, are inputs of their own.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from unicodedata import normalize

import pytest

from fastscribe.audio.failures import NOT_THERE
from fastscribe.audio.formats import left_out_line
from fastscribe.audio.input_names import Repeats, hint, meant, repeats_line
from fastscribe.audio.inputs import expand
from fastscribe.audio.probe import probe
from fastscribe.errors import AudioError
from fastscribe.types import Failure, Source
from tests.audio.test_inputs import ids, only_failure, touch, write_manifest
from tests.conftest import AUDIO

NFC = "Größe.flac"
NFD = normalize("NFD", NFC)


@pytest.mark.parametrize(
    ("given", "there", "expected"),
    [
        ("file:///x/a%20b.flac", "/x/a b.flac", "/x/a b.flac"),
        ("file:///x/a%20b.flac", "/x/a%20b.flac", "/x/a%20b.flac"),  # a download may have such a name
        ("FILE://localhost/x/a.flac", "/x/a.flac", "/x/a.flac"),
        ("file:/x/a.flac", "/x/a.flac", "/x/a.flac"),
        ("file:///C:/x/a%20b.flac", "C:/x/a b.flac", "C:/x/a b.flac"),
        ("file:///gone%20b.flac", "", "/gone b.flac"),
        ("~/a.flac", "/home/me/a.flac", "/home/me/a.flac"),
        ("~/a.flac", "~/a.flac", "~/a.flac"),
        ("sub\\a.flac", "sub/a.flac", "sub/a.flac"),
        ("sub\\a.flac", "sub\\a.flac", "sub\\a.flac"),
        (NFC, NFD, NFD),
        (NFD, NFC, NFC),
        ("gone.flac", "", "gone.flac"),
    ],
)
def test_the_spelling_that_is_there_is_meant(
    given: str, there: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert meant(given, {there}.__contains__) == expected


@pytest.mark.posix
@pytest.mark.parametrize("name", ["list.m3u", "list.m3u8", "list.txt"])
def test_lists_and_command_lines_have_other_spellings(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "a b.flac", "sub/c.flac", NFC)
    listed = ["#EXTM3U", f"file://{tmp_path}/a%20b.flac", "sub\\c.flac", NFD]
    (tmp_path / name).write_text("\n".join(listed), encoding="utf-8")
    found = list(expand([str(tmp_path / name), f"file://{tmp_path}/a%20b.flac"]))
    assert [os.path.isfile(str(one.file)) for one in found if isinstance(one, Source)] == [True] * 4
    assert [one.path for one in found][1:3] == ["sub/c.flac", NFC]
    row = tmp_path / "m.jsonl"
    row.write_text(f'{{"audio_filepath": "file://{tmp_path}/a%20b.flac", "text": "x"}}\n')
    [of_row] = expand([str(row)])
    assert isinstance(of_row, Source) and of_row.file == f"{tmp_path}/a b.flac" and of_row.id.endswith("/a b.flac")
    assert hint("sub\\gone.flac").endswith("nothing has the name sub/gone.flac either") and hint("gone.flac") == ""


@pytest.mark.posix
def test_a_pattern_begins_in_a_folder_of_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    composed, folder = "Größe", normalize("NFD", "Größe")
    touch(tmp_path, f"{folder}/a.flac")
    for given in (f"{composed}/*.flac", "~/*/?.flac", f"~/{composed}/**/*.flac", rf"{composed}\*.flac"):
        assert [found.path.removeprefix(f"{tmp_path}/") for found in expand([given])] == [f"{folder}/a.flac"]
    assert only_failure("~/none/*.flac").path == "~/none/*.flac"


@pytest.mark.posix
def test_quotes_around_a_path_of_a_list_are_none_of_it(tmp_path: Path) -> None:
    touch(tmp_path, "a b.flac", '"c.flac"')
    (tmp_path / "list.txt").write_bytes(b'\xef\xbb\xbf"a b.flac"\r\n\'a b.flac\' \r\n"c.flac"\r\n')
    assert [found.path for found in expand([str(tmp_path / "list.txt")])] == ["a b.flac", "a b.flac", '"c.flac"']


def test_a_table_of_excels_states_its_delimiter(tmp_path: Path) -> None:
    touch(tmp_path, "a b.flac")
    path = tmp_path / "excel.csv"
    path.write_bytes(b'\xef\xbb\xbfsep=;\r\npath;text\r\na b.flac;"Rice; Stadium"\r\n')
    [found] = expand([str(path)])
    assert isinstance(found, Source) and found.row is not None
    assert (found.path, found.row["text"]) == ("a b.flac", "Rice; Stadium")


def test_a_stream_of_parts_is_no_list(tmp_path: Path) -> None:
    path = tmp_path / "live show.m3u8"
    path.write_text("#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:3,\nseg0.ts\n")
    failure = only_failure(path)
    assert failure.message.endswith(f"make a file of it: ffmpeg -i '{path}' -vn -c:a copy 'live show.m4a'")


@pytest.mark.parametrize("name", ["shard-{000000..000003}.tar", "shard-_OP_0..3_CL_.tar"], ids=["WebDataset", "NeMo"])
def test_ranges_are_named(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "shard-000000.tar")
    said = f"no such file or folder; ranges are not expanded, but a pattern is: '{tmp_path}/shard-*.tar'"
    assert only_failure(tmp_path / name).message == said


def test_an_input_with_a_name_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo's scripts take inputs so."""
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "man.jsonl", "a=b.wav")
    said = "no such file or folder; an input is given without a name: man.jsonl"
    assert only_failure("dataset_manifest=man.jsonl").message == said
    assert ids("a=b.wav") == ["a=b.wav"] and only_failure("a=c.wav").message == "no such file or folder"


@pytest.mark.posix
def test_a_link_to_nothing_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.flac").symlink_to(tmp_path / "gone.flac")
    (tmp_path / "list.jsonl").write_text('{"audio_filepath": "a.flac"}')
    for given in ("a.flac", "list.jsonl"):
        [found] = expand([str(tmp_path / given)])
        assert isinstance(found, Source)
        with pytest.raises(AudioError, match=rf": is a link to {tmp_path}/gone.flac, which is not there$") as caught:
            probe(found)
        assert caught.value.problem.startswith(NOT_THERE)


@pytest.mark.parametrize("folder", ["Show [2024]", "Show [2024] {x}", "a[1]/b[2]"])
def test_a_folder_that_is_there_is_no_pattern(tmp_path: Path, folder: str) -> None:
    touch(tmp_path, f"{folder}/a.flac", f"{folder}/b.txt", "Show 2/a.flac")
    assert ids(tmp_path / folder / "*.flac") == ids(tmp_path / folder / "**/*.flac") == ["a.flac"]
    assert ids(tmp_path / "Show [0-9]" / "*") == ["Show 2/a.flac"]
    assert "nothing matches it" in only_failure(tmp_path / folder / "gone*.flac").message


def test_what_is_no_recording_yet_or_by_its_text_is_left_out(tmp_path: Path) -> None:
    recording = next(AUDIO.glob("01_*.flac")).read_bytes()
    for name in ("a.flac", "b.mp3.PART", "c.crdownload", "d.flac.!qB", "e.ytdl", "f.webm.part-Frag3"):
        (tmp_path / name).write_bytes(recording)
    touch(tmp_path, "Show.mp3.download/Show.mp3")  # of Safari
    for name in ("index.ts", "x.mts", "notes.au"):
        (tmp_path / name).write_text("export const x: number = 1;\n" * 9)
    left_out = Counter[str]()
    assert [found.id for found in expand([str(tmp_path)], left_out=left_out)] == ["a.flac"]
    for is_quiet in (True, False):
        assert left_out_line(left_out, is_quiet) == "9 files left out: unfinished downloads 6, .au 1, .mts 1, .ts 1"
    assert left_out_line(Counter({".ts": 1}), is_quiet=True) == ""
    assert ids(tmp_path / "b.mp3.PART") == ["b.mp3.PART"]


@pytest.mark.posix
def test_a_pipe_with_a_name_is_read_as_stdin(tmp_path: Path) -> None:
    content = next(AUDIO.glob("01_*.flac")).read_bytes()
    for number, sent in enumerate((content, f"{tmp_path}/a.flac\n".encode())):
        pipe = tmp_path / f"pipe{number}"
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_bytes, args=(sent,), daemon=True).start()
        touch(tmp_path, "a.flac")
        [found] = expand([str(pipe)])
        assert not isinstance(found, Failure)
        assert found.path == (str(pipe) if sent is content else f"{tmp_path}/a.flac")


def listed(*inputs: object) -> tuple[list[str], int]:
    repeats = Repeats()
    return [found.path for found in expand(map(str, inputs), repeats=repeats)], repeats.num


def test_files_come_once(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav", "in/b.wav")
    a, b = (str(tmp_path / "in" / name) for name in ("a.wav", "b.wav"))
    assert listed(b, tmp_path / "in", f"{tmp_path}/in/./a.wav", f"{tmp_path}/*/b.wav", tmp_path / "in") == ([b, a], 5)
    assert listed(tmp_path / "gone", tmp_path / "gone") == ([str(tmp_path / "gone")], 1)


def test_links_are_inputs_of_their_own(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav", "other/deep/x.wav", "a.wav")
    (tmp_path / "in" / "b.wav").symlink_to("a.wav")
    assert listed(tmp_path / "in")[1] == 0
    (tmp_path / "in" / "link").symlink_to(tmp_path / "other" / "deep")
    through_link = f"{tmp_path}/in/link/../../a.wav"  # another file than in/../a.wav
    assert listed(tmp_path / "a.wav", through_link) == ([str(tmp_path / "a.wav")], 1)
    touch(tmp_path, "other/a.wav")
    assert listed(tmp_path / "in" / "a.wav", f"{tmp_path}/in/link/../a.wav")[1] == 0


def test_rows_of_manifests_stay(tmp_path: Path) -> None:
    touch(tmp_path, "a.wav")
    row = {"audio_filepath": "a.wav"}
    manifest = write_manifest(tmp_path / "m.jsonl", row, row, {**row, "offset": 1}, "broken", "broken")
    paths, num = listed(manifest, tmp_path / "a.wav", manifest)
    assert (len(paths), num) == (6, 1)  # the manifest itself came twice


def test_a_manifest_comes_once_however_it_is_named(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "m.jsonl", {"audio_filepath": "a.wav"})
    pattern, repeats = f"{tmp_path}/*.jsonl", Repeats()
    lines = f"{manifest}\n{tmp_path}/./m.jsonl\n".encode()
    assert len(list(expand([pattern, "-", str(manifest), pattern, "-"], [lines], repeats=repeats))) == 1
    assert repeats.num == 6
    assert len(list(expand(["-"], [lines]))) == 2


def test_line() -> None:
    assert repeats_line(1) == "1 file was given more than once; each is transcribed once"
