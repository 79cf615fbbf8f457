"""A file that is reached twice is one input; links, and rows of manifests, are inputs of their own."""

from __future__ import annotations

from pathlib import Path

from fastscribe.audio.input_names import Repeats, repeats_line
from fastscribe.audio.inputs import expand
from tests.audio.test_inputs import touch, write_manifest


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
