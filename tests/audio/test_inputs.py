"""Every kind of input, and that one bad input does not stop the others."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastscribe.audio.failures import relative_id
from fastscribe.audio.inputs import expand
from fastscribe.audio.probe import probe
from fastscribe.errors import AudioError
from fastscribe.results.paths import Paths
from fastscribe.results.shards import Shard
from fastscribe.types import Failure, Source

posix_names = pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are bytes on Linux only")


def touch(root: Path, *names: str) -> None:
    """Make empty files, which suffice because nothing here opens audio."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def ids(*inputs: object, stdin: bytes = b"") -> list[str]:
    found = list(expand([str(given) for given in inputs], io.BytesIO(stdin)))
    assert all(isinstance(item, Source) for item in found), found
    return [item.id for item in found]


def only_failure(*inputs: object, stdin: bytes = b"") -> Failure:
    (found,) = expand([str(given) for given in inputs], io.BytesIO(stdin))
    assert isinstance(found, Failure) and found.stage == "input"
    return found


def write_manifest(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_any_file_name_accepted(tmp_path):
    """With wildcards too, if there is such a file."""
    touch(tmp_path, "sub/a.strange", "take[1].wav", "take1.wav")
    path = str(tmp_path / "sub" / "a.strange")
    assert list(expand([path])) == [Source(path, path, "a.strange")]
    assert ids(tmp_path / "take[1].wav") == ["take[1].wav"]


def test_folder_order(tmp_path):
    touch(
        tmp_path, "b.wav", "a/z.FLAC", "a/c/x.opus", "a.mp3", "notes.txt", ".hidden.wav", ".git/a.wav", "c.ogg", "d.oga"
    )
    assert ids(tmp_path) == ["a/c/x.opus", "a/z.FLAC", "a.mp3", "b.wav", "c.ogg", "d.oga"]
    assert next(expand([f"{tmp_path}/"])).path == f"{tmp_path}/a/c/x.opus"


def test_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "a/x.wav")
    found = [(item.path, item.id) for given in (".", "a", "*", "a/x.wav") for item in expand([given])]
    assert found == [("./a/x.wav", "a/x.wav"), ("a/x.wav", "x.wav"), ("a/x.wav", "a/x.wav"), ("a/x.wav", "x.wav")]


SOUND = ["wav", "flac", "mp3", "ogg", "oga", "opus", "aiff", "aif", "au", "w64", "caf", "rf64"]
VIDEO = ["m4a", "mp4", "mov", "mkv", "webm", "aac", "wma", "amr"]


@pytest.mark.parametrize("extension", [*SOUND, *VIDEO])
def test_folder_extensions(tmp_path, extension):
    names = [f"a.{extension}", f"b.{extension.upper()}"]
    touch(tmp_path, *names)
    assert ids(tmp_path) == ids(tmp_path / "*") == ids(tmp_path / "**") == names


def test_folder_without_audio(tmp_path):
    touch(tmp_path, "notes.txt", "sub/.x.wav", "raw.raw")
    failure = only_failure(tmp_path)
    assert (failure.path, failure.message) == (str(tmp_path), "no audio in this folder")


def left_out(*inputs: object) -> dict[str, int]:
    counted: Counter[str] = Counter()
    list(expand([str(given) for given in inputs], left_out=counted))
    return dict(counted)


def test_the_files_of_a_run_are_not_left_out(tmp_path):
    for suffix in ("", Shard(0, 2).suffix):
        paths = Paths(tmp_path, suffix)
        touch(tmp_path, *(path.name for path in (paths.rows, paths.journal, paths.report)))
    touch(tmp_path, "a.wav", "old_report.json", "b.jsonl")
    assert left_out(tmp_path) == left_out(tmp_path / "**") == left_out(tmp_path / "*") == {".json": 1, ".jsonl": 1}


def test_files_left_out_are_counted(tmp_path):
    touch(
        tmp_path,
        "a.wav",
        "b.docx",
        "deep/c.DOCX",
        "d.jpg",
        "README",
        ".hidden.jpg",
        "e.001",
        "f.a-b",
        "g.verylongending",
    )
    counts = {".docx": 2, ".jpg": 1, "no extension": 1, "other": 3}
    assert left_out(tmp_path) == left_out(tmp_path / "**") == left_out(tmp_path / "*") == counts
    assert left_out(tmp_path, tmp_path / "deep") == counts | {".docx": 3}
    assert left_out(tmp_path / "*.jpg") == left_out(tmp_path / "d.jpg") == {}


def test_symlinks_and_loops(tmp_path):
    touch(tmp_path, "root/a/x.wav", "root/b/y.wav", "elsewhere/far/z.wav", "outside.wav")
    root = tmp_path / "root"
    (root / "a" / "to_b").symlink_to(root / "b")
    (root / "b" / "to_a").symlink_to(root / "a")
    (root / "itself").symlink_to(".")
    (root / "up").symlink_to("..")
    (root / "data").symlink_to(tmp_path / "elsewhere")
    (root / "knot").symlink_to("knot")
    assert ids(root) == ["a/to_b/y.wav", "a/x.wav", "data/far/z.wav"]
    assert ids(root / "**" / "*.wav") == ["a/to_b/y.wav", "a/x.wav", "data/far/z.wav"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folder(tmp_path):
    touch(tmp_path, "a.wav", "locked/b.wav", "z.wav")
    (tmp_path / "locked").chmod(0)
    try:
        found = list(expand([str(tmp_path)]))
    finally:
        (tmp_path / "locked").chmod(0o700)
    assert [item.id for item in found if isinstance(item, Source)] == ["a.wav", "z.wav"]
    assert [item.message for item in found if isinstance(item, Failure)] == ["permission denied"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.wav", ["b.wav"]),
        ("?.wav", ["b.wav"]),
        ("[bc].wav", ["b.wav"]),
        ("sub/*.wav", ["a.wav"]),
        ("s*", ["sub/a.wav", "sub/deep/c.flac"]),
        ("*", ["b.wav", "sub/a.wav", "sub/deep/c.flac"]),
        ("*/*", ["sub/a.wav", "sub/deep/c.flac"]),
        ("*.docx", ["notes.docx"]),
        ("**", ["b.wav", "sub/a.wav", "sub/deep/c.flac"]),
        ("**/*", ["b.wav", "sub/a.wav", "sub/deep/c.flac"]),
        ("**/*.wav", ["b.wav", "sub/a.wav"]),
        ("**/deep", ["sub/deep/c.flac"]),
        ("s*/**/*.flac", ["sub/deep/c.flac"]),
    ],
)
def test_patterns(tmp_path, pattern, expected):
    touch(tmp_path, "b.wav", "sub/a.wav", "sub/deep/c.flac", "notes.docx")
    assert ids(tmp_path / pattern) == expected


@pytest.mark.parametrize("given", ["*.wav", "nowhere/**/*.wav", "[x"])
def test_pattern_without_matches(tmp_path, given):
    assert "nothing matches" in only_failure(tmp_path / given).message


def test_a_pattern_that_matches_no_audio(tmp_path):
    touch(tmp_path, "tars/a.tar", "notes/a.docx")
    for given in ("tars/*", "tars/**"):
        said = f"no audio in what matches this pattern; of tar archives name each: '{tmp_path}/tars/*.tar'"
        assert only_failure(tmp_path / given).message == said
    assert only_failure(tmp_path / "notes/*").message == "no audio in what matches this pattern"


@pytest.mark.parametrize("given", ["", "nowhere.wav", "nowhere", "bad\0name", "file/below"])
def test_missing_path(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "file")
    failure = only_failure(given)
    assert failure.path == given
    assert "no such file" in failure.message or "null" in failure.message  # Python's words differ by version


def test_paths_on_stdin(tmp_path):
    touch(tmp_path, "a.wav", " spaced .wav", "folder/c.wav", "[b].wav")
    write_manifest(tmp_path / "m.jsonl", {"audio_filepath": "folder/c.wav"})
    lines = (
        f"{tmp_path}/a.wav\r\n\n  \n{tmp_path}/ spaced .wav\n{tmp_path}/folder\n{tmp_path}/m.jsonl\n{tmp_path}/[b].wav"
    )
    assert ids("-", stdin=lines.encode()) == ["a.wav", " spaced .wav", "folder", "folder/c.wav", "[b].wav"]


def test_a_list_is_read_alike_in_a_file_and_on_stdin(tmp_path, monkeypatch):
    """Comments, quotes and spaces around a path, and a folder, which is no recording: a stray /etc is not walked."""
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "a.wav", "b.wav", "folder/c.wav")
    content = b"\xef\xbb\xbf# recordings\n\"a.wav\"\n  'b.wav' \nfolder\n# end\n"
    (tmp_path / "list.txt").write_bytes(content)
    for given in ("-", "list.txt"):
        found = list(expand([given], [content[:9], content[9:]]))
        assert [(item.path, item.file) for item in found] == [(name, name) for name in ("a.wav", "b.wav", "folder")]
    with pytest.raises(AudioError, match="is a folder, not a file"):
        probe(found[2])
    assert "is text, and no list" in only_failure("-", stdin=b"Dear all,\n").message


def test_manifest_rows_on_stdin(tmp_path, monkeypatch):
    """They are read as a manifest's, with paths relative to the current folder. A file may be named .manifest too."""
    monkeypatch.chdir(tmp_path)
    rows = b'\xef\xbb\xbf{"audio_filepath": "a.wav", "offset": 1.5}\r\n\n{"audio_filepath": "b.wav"}\n{'
    (tmp_path / "list.manifest").write_bytes(rows)
    for given in ("-", "list.manifest"):
        first, second, broken = expand([given], [rows[:5], rows[5:30], rows[30:]])
        assert (first.file, first.id, first.offset_s, second.file) == ("a.wav", "a.wav@1500", 1.5, "b.wav")
        assert broken.message.startswith(f"{given}: line 4: not JSON")


def test_stdin_line_by_line(tmp_path):
    def endless() -> Iterator[bytes]:
        for number in itertools.count():
            touch(tmp_path, f"{number}.wav")
            yield os.fsencode(tmp_path / f"{number}.wav\n")

    stream = expand(["-"], endless())
    assert [next(stream).id, next(stream).id] == ["0.wav", "1.wav"]


@posix_names
def test_list_of_find_print0(tmp_path):
    """Names may hold line breaks then, and paths may be cut anywhere between reads."""
    touch(tmp_path, "two\nlines.wav", " spaced .wav ", "b\r.wav", "c.wav")
    names = sorted(os.listdir(os.fsencode(tmp_path)))
    listed = b"\0".join(os.path.join(os.fsencode(tmp_path), name) for name in names) + b"\0"
    for end in (listed, listed[:-1]):
        blocks = (end[: len(end) - 7], end[len(end) - 7 :])
        assert [item.path for item in expand(["-"], blocks)] == [
            os.fsdecode(tmp_path / os.fsdecode(one)) for one in names
        ]
    assert only_failure("-", stdin=b"a.wav\0").message == "no such file or folder"


def test_stdin_of_the_process(tmp_path, monkeypatch):
    names = [f"{number}.wav" for number in range(3000)]  # more than a pipe and a read buffer hold
    touch(tmp_path, *names)
    read_end, write_end = os.pipe()

    def write() -> None:
        with open(write_end, "wb", buffering=0) as file:
            file.write("\n".join(str(tmp_path / name) for name in names).encode())

    writer = threading.Thread(target=write)
    writer.start()
    with open(read_end, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert [item.id for item in expand(["-"])] == names
    writer.join()
    monkeypatch.setattr(sys, "stdin", None)
    [failure] = expand(["-"])
    assert (failure.path, failure.message) == ("-", "stdin is closed")


@posix_names
def test_name_not_utf8(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.wav"
    try:
        with open(name, "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    for failure in (only_failure(tmp_path), only_failure("-", stdin=name), only_failure(os.fsdecode(name))):
        assert failure.path == f"{tmp_path}/caf\\xe9.wav".replace("\\xe9", "\\udce9")
        assert failure.message == "path is not valid UTF-8; rename the file"
        json.dumps(failure.path, ensure_ascii=False).encode("utf-8")


def test_list_not_utf8(tmp_path: Path) -> None:
    """Windows' players write .m3u in the code page of the machine."""
    (tmp_path / "old.m3u").write_bytes(b"caf\xe9.wav\n")
    message = only_failure(tmp_path / "old.m3u").message
    assert message.endswith("line 1: a path that is not valid UTF-8; save the list as UTF-8")


def test_manifest_rows(tmp_path):
    rows = [
        {"audio_filepath": "clips/a.wav", "duration": 1.5, "text": "hello", "lang": "en"},
        {"audio_filepath": "clips/a.wav", "offset": 1.2345, "duration": None},
        {"audio_filepath": "/abs/b.wav", "offset": 0, "duration": 0},
        {"audio_filepath": "../up/c.wav", "offset": 2},
        {"audio_filepath": "d.mp4", "audio_track": 1},
        {"audio_filepath": "d.mp4", "track": "a song"},
    ]
    found = list(expand([str(write_manifest(tmp_path / "m.json", *rows))]))
    assert [item.row for item in found] == rows
    assert [item.path for item in found] == [row["audio_filepath"] for row in rows]
    assert [item.id for item in found[:4]] == ["clips/a.wav", "clips/a.wav@1234", "abs/b.wav", "up/c.wav@2000"]
    assert [item.file for item in found][:3] == [f"{tmp_path}/clips/a.wav"] * 2 + ["/abs/b.wav"]
    spans = [(item.offset_s, item.duration_s) for item in found[:4]]
    assert spans == [(None, 1.5), (1.2345, None), (0, None), (2, None)]
    assert [item.track for item in found[4:]] == [1, None]


BROKEN_ROWS = {
    "{": "not JSON",
    "[1, 2]": "not a JSON object",
    "[" * 100_000: "not JSON",
    **{f'{{"x": {"[" * depth}{"]" * depth}}}': "nested deeper than 100" for depth in (101, 500)},
    "{}": "no audio_filepath",
    '{"audio_filepath": ""}': "no audio_filepath",
    '{"audio_filepath": ["a.wav", "b.wav"]}': "audio_filepath is ['a.wav', 'b.wav'], not a text",
    '{"audio_filepath": 7}': "audio_filepath is 7, not a text",
    '{"audio_filepath": "a.wav", "offset": -1}': "offset is -1",
    '{"audio_filepath": "a.wav", "offset": NaN}': "offset is nan",
    '{"audio_filepath": "a.wav", "offset": "1.0 s"}': "offset is '1.0 s'",
    '{"audio_filepath": "a.wav", "duration": -0.5}': "duration is -0.5",
    '{"audio_filepath": "a.wav", "duration": Infinity}': "duration is inf",
    '{"audio_filepath": "a.wav", "duration": true}': "duration is True",
    '{"audio_filepath": "a.wav", "duration": 1' + "0" * 400 + "}": "duration is inf",
    '{"audio_filepath": "a.wav", "audio_track": -1}': "audio_track is -1",
    '{"audio_filepath": "a.wav", "audio_track": "1st"}': "audio_track is '1st'",
    '{"audio_filepath": "a.wav", "text": "\\ud800"}': "surrogate",
}


@pytest.mark.parametrize(("row", "problem"), BROKEN_ROWS.items(), ids=[str(n) for n in range(len(BROKEN_ROWS))])
def test_broken_manifest_row(tmp_path, row, problem):
    path = write_manifest(tmp_path / "m.jsonl", {"audio_filepath": "x.wav"}, row, {"audio_filepath": "y.wav"})
    first, failure, last = expand([str(path)])
    assert (first.id, last.id) == ("x.wav", "y.wav")
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.error_type) == ("input", "ManifestError")
    assert f"{path}: line 2: " in failure.message and problem in failure.message
    assert failure.path == ("a.wav" if failure.row and failure.row.get("audio_filepath") == "a.wav" else str(path))
    assert failure.id.endswith("m.jsonl:2")


@pytest.mark.parametrize("held", ["[" * 99 + "]" * 99, f'"{"[" * 200}"'], ids=["lists", "text"])
def test_rows_that_are_not_nested_too_deep(tmp_path, held):
    path = write_manifest(tmp_path / "m.jsonl", f'{{"audio_filepath": "x.wav", "x": {held}}}')
    assert [one.id for one in expand([str(path)])] == ["x.wav"]


def test_manifest_row_not_utf8(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"audio_filepath": "caf\xe9.wav"}\n{"audio_filepath": "b.wav"}\n')
    failure, good = expand([str(path)])
    assert "line 1: not valid UTF-8 at byte 23" in failure.message
    assert good.id == "b.wav"


def test_manifest_is_lazy(tmp_path):
    path = write_manifest(tmp_path / "m.jsonl", *[{"audio_filepath": "a.wav"}] * 1000)
    stream = expand([str(path)])
    assert next(stream).id == "a.wav"
    path.write_text("")  # removes the rest
    assert sum(1 for _ in stream) < 1000


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b.wav", "a/b.wav"),
        ("../../b.wav", "b.wav"),
        ("a/../b.wav", "b.wav"),
        ("./a//b.wav", "a/b.wav"),
        ("/", "input"),
    ],
)
def test_relative_id(path, expected):
    assert relative_id(path) == expected
