"""Exports make what a run would have made, in its folder or elsewhere, and touch nothing of the user's."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fastscribe.config import OUTPUT_FORMATS, OutputStyle, SubtitleStyle
from fastscribe.errors import ManifestError, OutputError, UsageError
from fastscribe.results.export import Exported, export_in_place, export_to_folder, stored_results
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.merge import merge
from fastscribe.results.output import open_journaled
from fastscribe.results.rows import ResultRow, read_rows
from fastscribe.results.shards import Shard
from fastscribe.results.storage_folder import FolderStorage
from tests.fakes.killed_disk import EVERY_FORMAT, ROWS_ALONE, run, sources, state_of
from tests.results.test_repair import EDITS, Corpus

NARROW = OutputStyle(("srt", "vtt", "json"), subtitles=SubtitleStyle(max_line_width=9))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Seven inputs: names that collide, one twice, one broken, one missing."""
    return Corpus(tmp_path / "in")


def test_export_makes_the_files_of_a_run(tmp_path: Path, corpus: Corpus) -> None:
    """The journal's order, here the inputs', decides about names that are not given yet."""
    every_narrow = OutputStyle(OUTPUT_FORMATS, subtitles=NARROW.subtitles)
    corpus.go(0, ordered=True)(tmp_path / "run")
    corpus.go(0, style=every_narrow, ordered=True)(tmp_path / "all")
    for folder, style in (("run", ROWS_ALONE), ("rows", ROWS_ALONE)):
        corpus.go(0, style=style, ordered=True)(tmp_path / folder)
        assert export_in_place(tmp_path / folder, every_narrow).results == 7
        assert state_of(tmp_path / folder, True) == state_of(tmp_path / "all", True)
    assert export_in_place(tmp_path / "rows", NARROW) == Exported(7, 0, 2)
    assert corpus.go(1, style=EVERY_FORMAT)(tmp_path / "rows") == []  # a run over the same inputs agrees with the names
    corpus.go(0, style=EVERY_FORMAT)(tmp_path / "every")
    assert state_of(tmp_path / "rows", False) == state_of(tmp_path / "every", False)


def test_rows_keep_their_order(tmp_path: Path, corpus: Corpus) -> None:
    corpus.go(3, style=OutputStyle(("srt",)), ordered=True)(tmp_path)
    before = (tmp_path / "transcripts.jsonl").read_bytes()
    (tmp_path / "a.srt").unlink()
    assert export_in_place(tmp_path, OutputStyle(("srt",))).made == 1
    assert (tmp_path / "transcripts.jsonl").read_bytes() == before


def test_an_export_that_stops_at_any_file_goes_on(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.go(0, style=OutputStyle(("srt",)))(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    export_in_place(tmp_path / "whole", NARROW)
    write, num_left = FolderStorage.write, 0

    def write_some(*given: Any, **options: Any) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise OSError(None, "stopped")
        write(*given, **options)

    for number in range(0, 24, 4):
        out, num_left = tmp_path / str(number), number
        shutil.copytree(tmp_path / "run", out)
        with monkeypatch.context() as patch:
            patch.setattr(FolderStorage, "write", write_some)
            with suppress(OutputError):
                export_in_place(out, NARROW)
        export_in_place(out, NARROW)
        assert state_of(out, False) == state_of(tmp_path / "whole", False)
    assert num_left > 0  # the last one ran to its end


def test_users_files_and_edits_stay(tmp_path: Path, corpus: Corpus) -> None:
    out = tmp_path / "out"
    corpus.go(0, style=OutputStyle(("txt",)))(out)
    (out / "a.txt").write_text("One\n")  # an edit of the same size
    (out / "a.srt").write_text("mine")
    said = list[str]()
    assert export_in_place(out, OutputStyle(("txt", "srt")), said.append).kept == 1
    assert (out / "a.txt").read_text() == "One\n"  # it is there, and export does not read what it would not write
    assert (out / "a.srt").read_text() == "mine"
    assert len(said) == 1 and said[0].startswith(f"{out / 'a.srt'}: edited")
    (out / "b.srt").write_text((out / "b.srt").read_text().replace("two", "Two"))
    edited = (out / "b.srt").read_text()
    assert export_in_place(out, NARROW, said.append).kept == 2
    assert (out / "b.srt").read_text() == edited and "Two" in edited
    assert len(said) == 2 and f"{out / 'a.srt'} (and 1 more): edited" in said[1]


def test_names_of_rows_alone_are_given_in_the_journals_order(tmp_path: Path, corpus: Corpus) -> None:
    out = tmp_path / "out"
    corpus.go(0, style=ROWS_ALONE, ordered=True)(out)
    (out / "b.txt").write_text("mine")
    said = list[str]()
    assert export_in_place(out, OutputStyle(("txt",)), said.append).made == 5
    texts = {path.name.partition("-")[0]: path.read_text() for path in sorted(out.glob("a*.txt"))}
    assert texts == {"a.txt": "one\n", "a": "four\n"} and (out / "b.txt").read_text() == "mine"
    assert len(said) == 1 and said[0].startswith(f"{out / 'b.txt'}: no run of fastscribe wrote this file")


@pytest.mark.parametrize("kind", [*EDITS, "in the middle", "no result"])
def test_edited_rows_are_left_alone(tmp_path: Path, corpus: Corpus, kind: str) -> None:
    """Whatever the edit, nothing is changed, and the message names the command that reads the rows as they are."""
    corpus.go(0, style=OutputStyle(("txt",)))(tmp_path)
    path = tmp_path / "transcripts.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    same_size = {
        "in the middle": [rows[0][:-2] + b" }\n", *rows[1:-1], rows[-1].replace(b": ", b":", 1)],
        "no result": [rows[0].replace(b'"words"', b'"wordy"').replace(b'"error"', b'"errer"'), *rows[1:]],
    }
    path.write_bytes(b"".join(EDITS[kind](rows) if kind in EDITS else same_size[kind]))
    before = {found.name: found.read_bytes() for found in tmp_path.glob("[!.]*") if found.is_file()}
    with pytest.raises(UsageError, match=r"transcripts\.jsonl -o FOLDER` makes files of the rows as they are now"):
        export_in_place(tmp_path, NARROW)
    assert {found.name: found.read_bytes() for found in tmp_path.glob("[!.]*") if found.is_file()} == before


def test_a_row_with_a_number_of_absurd_length_is_left_alone(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python refuses to read it, and JSON's own error is another one."""
    corpus.go(0, style=OutputStyle(("txt",)))(tmp_path)
    real = json.loads

    def loads(content: Any, **settings: Any) -> Any:
        if b'"segments"' in (content.encode() if isinstance(content, str) else bytes(content)):
            raise ValueError("Exceeds the limit (4300 digits) for integer string conversion")
        return real(content, **settings)

    monkeypatch.setattr(json, "loads", loads)
    with pytest.raises(UsageError, match="was changed since"):
        export_in_place(tmp_path, NARROW)


def test_lock_and_folders_without_rows(tmp_path: Path, corpus: Corpus) -> None:
    out = tmp_path / "out"
    corpus.go(0)(out)
    with (
        open_journaled(out, OutputRun(ROWS_ALONE, {"model": "m"})),
        pytest.raises(UsageError, match="another run is writing"),
    ):
        export_in_place(out, NARROW)


def test_shards_and_merged_folders(tmp_path: Path, corpus: Corpus) -> None:
    out, inputs = tmp_path / "out", sources(*(corpus.folder / name for name in corpus.names))
    for index in range(2):
        run(out, inputs, random.Random(index), shard=Shard(index, 2), style=ROWS_ALONE)
        Path(out / f"report.shard-{index}-of-2.json").write_text('{"files": 1}')
    merge([out], out, True)
    kept = {path.name: path.read_bytes() for path in out.glob("*") if path.name.startswith(("report", "transcripts.j"))}
    assert export_in_place(out, EVERY_FORMAT) == Exported(7, 7, 2)
    corpus.go(0, style=EVERY_FORMAT)(tmp_path / "unsharded")
    made, expected = (
        sorted((path.suffix, path.read_bytes()) for path in folder.glob("[abc]*"))
        for folder in (out, tmp_path / "unsharded")
    )
    assert made == expected
    assert kept == {name: (out / name).read_bytes() for name in kept}
    merge([out], out, True)


def test_the_same_rows_make_the_same_results_wherever_export_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = {"segments": [], "words": []}
    error = {"stage": "load", "type": "AudioError", "message": "broken"}
    rows = [
        {"audio_filepath": "a.wav", "duration": 2.0, "text": "", **empty},
        {"audio_filepath": "b.wav", "error": error},
        {"audio_filepath": "c.wav", "offset": 1, "pred_text": "", **empty},
    ]

    def go() -> Exported:
        given = [ResultRow("rows", number, row) for number, row in enumerate(rows)]
        return export_to_folder(list(stored_results(given)), OutputStyle(("json",)), tmp_path / "out")

    assert go().made == 3
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert go().made == 0
    rows[0]["duration"] = 3.0
    rows[1] = {"audio_filepath": "b.wav", "text": "", **empty}
    assert go().made == 2
    assert len((tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()) == 3


def test_rows_into_a_folder_of_their_own(tmp_path: Path, corpus: Corpus) -> None:
    corpus.go(0, style=ROWS_ALONE)(tmp_path / "run")
    rows = tmp_path / "run" / "transcripts.jsonl"

    def results() -> list:
        return list(stored_results(read_rows([str(rows)])))

    out = tmp_path / "out"
    assert export_to_folder(results(), NARROW, out) == Exported(7, 7, 2)
    assert sorted((out / "transcripts.jsonl").read_text().splitlines()) == sorted(rows.read_text().splitlines())
    assert export_to_folder(results(), NARROW, out) == Exported(7, 0, 2)
    assert export_to_folder(results(), OutputStyle(("srt",)), out) == Exported(7, 5, 2)
    assert export_in_place(out, OutputStyle(("txt",))) == Exported(7, 5, 2)
    with pytest.raises(UsageError, match="holds the results of a run: fastscribe export"):
        export_to_folder(results(), NARROW, tmp_path / "run")
    lines = sorted(rows.read_text().splitlines(keepends=True), key=lambda line: '"error"' not in line)
    rows.write_text("".join(lines))  # the failures first
    export_to_folder(results(), NARROW, tmp_path / "other")
    assert (tmp_path / "other" / "transcripts.jsonl").read_text() == rows.read_text()  # without tokens, as it was
    rows.write_text('{"audio_filepath": "a"}\n' + rows.read_text())
    broken, *rest = stored_results(read_rows([str(rows)]))
    assert isinstance(broken, ManifestError) and len(rest) == 7 and "no words" in str(broken)
    assert json.loads((out / "journal.jsonl").read_text().splitlines()[0])["fingerprint"]["export"] is True
