"""Exports make what a run would have made, in its folder or elsewhere, and touch nothing of the user's."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fastscribe.results.output_run import OutputRun

from fastscribe.config import OUTPUT_FORMATS, OutputStyle, SubtitleStyle
from fastscribe.errors import ManifestError, UsageError
from fastscribe.results.export import Exported, export_in_place, export_to_folder, stored_results
from fastscribe.results.merge import merge
from fastscribe.results.output import open_journaled
from fastscribe.results.rows import ResultRow, read_rows
from fastscribe.results.shards import Shard
from tests.fakes.killed_disk import EVERY_FORMAT, ROWS_ALONE, run, sources, state_of
from tests.helpers.power_cut import Disk, blocks_of_three, remake, watched
from tests.results.test_journal import EDITS, Corpus

NARROW = OutputStyle(("srt", "vtt", "json"), subtitles=SubtitleStyle(max_line_width=9))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Seven inputs: names that collide, one twice, one broken, one missing."""
    return Corpus(tmp_path / "in")


def test_export_makes_the_files_of_a_run(tmp_path: Path, corpus: Corpus) -> None:
    corpus.go(0)(tmp_path / "run")
    corpus.go(0, style=OutputStyle(OUTPUT_FORMATS, subtitles=NARROW.subtitles))(tmp_path / "all")
    for folder, style in (("run", ROWS_ALONE), ("rows", ROWS_ALONE)):
        corpus.go(0, style=style)(tmp_path / folder)
        assert export_in_place(tmp_path / folder, OutputStyle(OUTPUT_FORMATS, subtitles=NARROW.subtitles)).results == 7
        assert state_of(tmp_path / folder, False) == state_of(tmp_path / "all", False)
    assert export_in_place(tmp_path / "rows", NARROW) == Exported(7, 0, 2)
    assert corpus.go(1, style=EVERY_FORMAT)(tmp_path / "rows") == []  # a run over the same inputs agrees with the names
    corpus.go(0, style=EVERY_FORMAT)(tmp_path / "every")
    assert state_of(tmp_path / "rows", False) == state_of(tmp_path / "every", False)


def test_rows_keep_their_order(tmp_path: Path, corpus: Corpus) -> None:
    corpus.go(3, style=OutputStyle(("srt",)), ordered=True)(tmp_path)
    before = (tmp_path / "transcripts.jsonl").read_bytes()
    (tmp_path / "a.wav.srt").unlink()
    assert export_in_place(tmp_path, OutputStyle(("srt",))).made == 1
    assert (tmp_path / "transcripts.jsonl").read_bytes() == before


def test_kill_or_power_cut_during_an_export(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    corpus.go(0, style=OutputStyle(("srt",)))(tmp_path / "whole")
    disk = Disk(tmp_path / "whole", seed=1)
    with blocks_of_three(), watched(disk):
        export_in_place(tmp_path / "whole", NARROW)
    assert disk.durable_state == disk.visible_state and len(disk.states) > 30
    for state in random.Random(3).sample(disk.states, 15):
        export_in_place(remake(tmp_path / "out", state), NARROW)
        assert state_of(tmp_path / "out", False) == state_of(tmp_path / "whole", False)


def test_users_files_are_in_the_way_and_edits_are_kept(tmp_path: Path, corpus: Corpus) -> None:
    out = tmp_path / "out"
    corpus.go(0, style=OutputStyle(("txt",)))(out)
    (out / "a.wav.txt").write_text("One\n")  # an edit of the same size
    (out / "a.mp3.srt").write_text("mine")
    before = state_of(out, False)
    with pytest.raises(UsageError, match=r"a\.mp3\.srt: no journal says"):
        export_in_place(out, NARROW)
    assert state_of(out, False) == before
    (out / "a.mp3.srt").unlink()
    export_in_place(out, OutputStyle(("txt", "srt")))
    assert (out / "a.wav.txt").read_text() == "One\n"  # it is there, and export does not read what it would not write
    (out / "a.wav.srt").write_text((out / "a.wav.srt").read_text().replace("one", "One"))
    edited, said = (out / "a.wav.srt").read_text(), list[str]()
    export_in_place(out, NARROW, said.append)
    assert (out / "a.wav.srt").read_text() == edited and not list(out.glob("*.previous.*"))
    assert len(said) == 1 and said[0].startswith(f"{out / 'a.wav.srt'}: edited")


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
    made = {path.name: path.read_bytes() for path in out.glob("[abc]*")}
    assert made == {path.name: path.read_bytes() for path in (tmp_path / "unsharded").glob("[abc]*")}
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
