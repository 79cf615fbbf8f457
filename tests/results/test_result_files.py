"""Files of earlier results: which are made again of their rows, which go, and which stay because somebody edited them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastscribe.config import OutputStyle, SubtitleStyle
from fastscribe.errors import OutputError
from fastscribe.results.committer import Committer
from fastscribe.results.interfaces import Moved, OutputRun
from fastscribe.results.journal import SYNCED
from fastscribe.results.output import JournaledOutput, open_journaled, read_ledger
from fastscribe.results.storage_folder import FolderStorage
from fastscribe.results.storage_object import ObjectStorage
from fastscribe.types import Segment, Source, Transcript, Word
from tests.results.test_output import Place, failed, place, put, spoken, stopped, within_reach

__all__ = ["place"]  # a fixture

IDS = ("a.wav", "b.wav")
CUES = Segment("very curious", 0.0, 1.0, 1.0, (Word("very", 0.0, 0.4, 1.0), Word("curious", 0.4, 1.0, 1.0)))
WIDE, NARROW = SubtitleStyle(max_line_width=20), SubtitleStyle(max_line_width=9)


def heard(id: str, index: int) -> Transcript:
    return replace(spoken(id, CUES.text, index), segments=(CUES,))


def run(
    place: Place, said: list[str], layout: SubtitleStyle = WIDE, formats: Sequence[str] = ("srt",), quiet: bool = False
) -> JournaledOutput:
    """Run over two recordings. Return the output, closed."""
    style = OutputStyle(tuple(formats), subtitles=layout)
    with open_journaled(place.where, OutputRun(style, {}, quiet=quiet), said.append) as output:
        for index, id in enumerate(IDS):
            put(output, heard(id, index))
    return output


def test_a_run_that_names_no_format_has_those_of_the_results(place: Place) -> None:
    """All else is as if it named them, also the layout that is the default. A folder of rows alone stays one, and a run that
    names formats has these. Results that start over have the formats of those that go.
    """
    assert place.run(IDS[:1]) == ["a.wav"] and place.contents() == {}
    run(place, [], NARROW)
    assert set(place.contents()) == {"a.srt", "b.srt"}
    place.run(["b.wav"], "txt", "jsonl")
    before = place.contents()
    assert place.run(["c.wav"], "jsonl") == ["c.wav"] and place.contents() == before
    with read_ledger(place.where, OutputRun(OutputStyle(()), {})) as ledger:
        assert ledger.earlier_formats == ("srt", "txt")
    output = run(place, [], NARROW, ())
    assert output.ledger.earlier_formats == ("srt", "txt") and not output.files.laid_out_again
    assert run(place, [], SubtitleStyle(), ()).files.laid_out_again == {"layout": {"srt"}}
    assert place.run(["c.wav", "d.wav"]) == ["d.wav"]
    files = place.contents()
    assert set(files) == {f"{name}.{format}" for name in "abcd" for format in ("txt", "srt")}
    assert len(before["b.srt"].splitlines()) == 4 and len(files["b.srt"].splitlines()) == 3
    place.remove("b.txt")
    given = OutputRun(OutputStyle(()), {}, inputs=[str(Path(__file__))], overwrite=True)
    with open_journaled(place.where, given, [].append) as output:
        put(output, heard("b.wav", 0))
    assert output.ledger.earlier_formats == ("srt", "txt") and set(place.contents()) == {"b.srt", "b.txt"}


def test_a_missing_file_is_made_again(place: Place) -> None:
    """Also where a file is rightly empty."""
    place.run(IDS, "txt", "srt")
    files = place.contents()
    assert files["a.srt"] == ""
    for name in ("a.srt", "b.txt"):
        place.remove(name)
    assert place.run(IDS, "txt", "srt") == [] and place.contents() == files


@pytest.mark.parametrize("layout", [WIDE, NARROW], ids=["same layout", "another layout"])
@pytest.mark.parametrize("word", ["most curious", "a rather curious", "VERY"])
def test_an_edited_file_stays_and_is_named(place: Place, layout: SubtitleStyle, word: str) -> None:
    """Ours are laid out again. An edit of the same length needs no naming where nobody reads it. A quiet run names no file in
    which it has nothing to change.
    """
    run(place, [])
    place.edit("a.srt", "very", word)
    edited = place.contents()["a.srt"]
    for quiet in (False, True):
        output = run(place, said := [], layout, quiet=quiet)
        is_noticed = layout is NARROW or (word != "VERY" and not quiet)
        assert [line.startswith(f"{place.where}/a.srt: edited since the run") for line in said] == [True] * is_noticed
        assert output.files.laid_out_again == ({"layout": {"srt"}} if layout is NARROW and not quiet else {})
        files = place.contents()
        assert files["a.srt"] == edited and ("very\ncurious" in files["b.srt"]) == (layout is NARROW)
    place.remove("a.srt")
    run(place, said := [], layout)
    assert place.contents()["a.srt"] == place.contents()["b.srt"] and said == []


def test_a_layout_again_and_back(place: Place) -> None:
    """A format that this run does not write keeps its layout in the journal."""
    run(place, [], WIDE, ("srt", "vtt"))
    wide = place.contents()
    run(place, [], NARROW, ("srt",))
    assert run(place, [], WIDE, ("srt", "vtt")).files.laid_out_again == {"layout": {"srt"}}
    assert place.contents() == wide


def test_a_new_row_replaces_its_own_files_alone(place: Place) -> None:
    """Files of a format that is not asked for now go; an edited one stays, and is named."""
    place.run(IDS, "txt", "srt", "json")
    place.write("b.srt", "by hand")
    said: list[str] = []
    with place.opened("txt", say=said.append) as output:
        for index, id in enumerate(IDS):
            assert put(output, spoken(id, "new", index), changed=True)
    assert place.contents() == {"a.txt": "new", "b.txt": "new", "b.srt": "by hand"}
    [line] = said
    assert line.startswith(
        f"{place.where}/b.srt: edited since the run: it stays as it is; for the machine's text, delete"
    )
    assert place.rows() == ["/in/a.wav", "/in/b.wav"]


def listed(output: JournaledOutput, id: str, index: int, **fields: Any) -> bool:
    """Announce an input of a manifest, and write its result if an earlier run has not done it."""
    result = heard(id, index)
    source = Source(f"/in/{id}", within_reach(f"/in/{id}"), id, {"audio_filepath": f"/in/{id}", **fields}, index=index)
    if output.ledger.expect(source) and output.ledger.skip(source):
        return False
    output.write(replace(result, audio=replace(result.audio, row=source.row)))
    return True


def test_new_fields_of_a_manifest_reach_rows_and_files_without_decoding(place: Place) -> None:
    """Files of other formats stay, and so does the text; the next run has nothing to do."""
    with place.opened("srt", "json") as output:
        assert all(listed(output, id, index) for index, id in enumerate(IDS))
    before = place.contents()
    for fields, number in (({"speaker": "ann"}, 2), ({"speaker": "ann"}, 0), ({"speaker": "bob", "lang": ""}, None)):
        with place.opened("json") as output:
            is_new = [listed(output, id, index, **fields) for index, id in enumerate(IDS)]
            assert is_new == [number is None] * 2 and output.ledger.num_renewed == (number or 0)
            assert output.totals() == (2, 0, 2.0, 0) and output.files.num_made_again == 0
        files = place.contents()
        row = json.loads(files["a.json"])
        assert (row["speaker"], row["pred_text"]) == (fields["speaker"], CUES.text)
        assert {**row, "speaker": None} == {**json.loads(before["a.json"]), **fields, "speaker": None}
        assert files.get("a.srt") == (None if number is None else before["a.srt"])
        assert place.rows() == ["/in/a.wav", "/in/b.wav"]


def test_new_fields_leave_files_that_do_not_have_them(place: Place) -> None:
    """Files of other formats keep their layout, and those of this run are made. It is no new result of this run."""
    with open_journaled(place.where, OutputRun(OutputStyle(("srt", "json"), subtitles=NARROW), {}), print) as output:
        assert all(listed(output, id, index) for index, id in enumerate(IDS))
    before = place.contents()
    with place.opened("txt") as output:
        assert not any(listed(output, id, index, speaker="ann") for index, id in enumerate(IDS))
        output.flush()
        assert (output.ledger.num_renewed, output.num_durable) == (2, 0)
    after = place.contents()
    assert "very\ncurious" in before["a.srt"] and after["a.srt"] == before["a.srt"] and after["a.txt"] == CUES.text
    assert json.loads(after["a.json"]) == {**json.loads(before["a.json"]), "speaker": "ann"}
    with open_journaled(place.where, OutputRun(OutputStyle(("srt",), subtitles=NARROW), {}), print) as output:
        assert not listed(output, "a.wav", 0, speaker="ann") and not output.files.laid_out_again


def test_new_fields_of_a_row_that_cannot_be_read_come_with_the_next_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.opened("json") as output:
        assert listed(output, "a.wav", 0)
    kind = FolderStorage if isinstance(place.where, Path) else ObjectStorage
    with place.opened("json") as output:
        with monkeypatch.context() as patch:
            patch.setattr(kind, "read", stopped)
            assert not listed(output, "a.wav", 0, speaker="ann")
        assert output.ledger.num_renewed == 0 and len(output.not_made) == 1
    with place.opened("json") as output:
        assert not listed(output, "a.wav", 0, speaker="ann") and output.ledger.num_renewed == 1
    assert json.loads(place.contents()["a.json"])["speaker"] == "ann"


def test_new_fields_of_a_recording_that_moved_come_in_the_same_run(place: Place, tmp_path: Path) -> None:
    old, new = tmp_path / "before" / "a.wav", tmp_path / "behind" / "a.wav"
    old.parent.mkdir()
    old.write_bytes(b"sound")

    def given(path: Path, moved: Moved | None = None, **fields: Any) -> tuple[int, int]:
        run = OutputRun(OutputStyle(("json",)), {}, moved=moved)
        source = Source(str(path), str(path), "a.wav", {"audio_filepath": str(path), **fields})
        with open_journaled(place.where, run, print) as output:
            if not (output.ledger.expect(source) and output.ledger.skip(source)):
                result = heard("a.wav", 0)
                output.write(replace(result, audio=replace(result.audio, row=source.row)))
            return output.ledger.num_done, output.ledger.num_renewed

    assert given(old) == (0, 0)
    old.parent.rename(new.parent)
    moved = Moved(str(old.parent), str(new.parent))
    for options, number in (((moved,), 1), ((moved,), 0), ((), 0)):
        assert given(new, *options, speaker="ann") == (1, number)
        assert json.loads(place.contents()["a.json"])["speaker"] == "ann" and place.rows() == [str(new)]


def cut(output: JournaledOutput, *lengths: float | None, path: Path = Path("/in/a.wav"), **fields: Any) -> list[bool]:
    """Announce rows of one recording from its begin on, and then write the results that are not there."""
    given = []
    for index, length in enumerate(lengths):
        row = {"audio_filepath": path.name, **fields} | ({} if length is None else {"duration": length})
        given.append(Source(path.name, within_reach(str(path)), path.name, row, None, length and float(length), index))
        output.ledger.expect(given[-1])
    is_new = [not output.ledger.skip(source) for source in given]
    for source in (one for one, new in zip(given, is_new, strict=True) if new):
        result = heard(source.id, source.index)
        output.write(replace(result, audio=replace(result.audio, row=source.row)))
    return is_new


def test_a_corrected_duration_of_a_list_replaces_the_result(place: Place) -> None:
    """Also one that the list did not have, and after a kill. The file keeps its name."""
    for length in (3.0, None, 5.0):
        output = place.opened("json")
        assert cut(output, length) == [True]
        output.close(finished=False)
        with place.opened("json") as output:
            assert cut(output, length) == [False] and output.totals() == (1, 0, 1.0, 0)
        assert place.rows("duration") == [length or 1.0] and set(place.contents()) == {"a.json"}
        assert json.loads(place.contents()["a.json"])["duration"] == place.rows("duration")[0]


def test_rows_of_other_recordings_and_other_rows_keep_their_results(place: Place) -> None:
    """A list may have two rows of one begin, and lists in other folders may have the same paths."""
    with place.opened("json") as output:
        assert cut(output, 3, 5, text="one") == [True, True]
    for path, fields in ((Path("/in/a.wav"), {"text": "two"}), (Path("/elsewhere/a.wav"), {"text": "one"})):
        with place.opened("json") as output:
            assert cut(output, 4, path=path, **fields) == [True]
    assert sorted(place.rows("duration")) == [3, 4, 4, 5]
    with place.opened("json") as output:
        assert cut(output, 6, 3, text="one") == [True, False]
    assert sorted(place.rows("duration")) == [3, 4, 4, 6] and len(place.contents()) == 4


def test_a_row_that_comes_behind_the_one_that_took_its_place_is_another_input(place: Place) -> None:
    with place.opened("json") as output:
        assert cut(output, 3) == [True]
    with place.opened("json") as output:
        assert cut(output, 4) == [True]
        assert cut(output, 3) == [True]
    with place.opened("json") as output:
        assert cut(output, 4, 3) == [False, False]
    files = [json.loads(content)["duration"] for content in place.contents().values()]
    assert sorted(place.rows("duration")) == sorted(files) == [3, 4]


def test_a_kill_amid_new_fields_is_made_good(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the commit, the next run renews; between journal and files, it makes the files."""
    with place.opened("json") as output:
        assert listed(output, "a.wav", 0)
    kind = FolderStorage if isinstance(place.where, Path) else ObjectStorage
    for broken, method, number in ((kind, "commit", 1), (Committer, "_place", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(broken, method, stopped)
            with pytest.raises(OutputError), place.opened("json") as output:
                assert not listed(output, "a.wav", 0, speaker=method)
        with place.opened("json") as output:
            assert not listed(output, "a.wav", 0, speaker=method)
            assert output.ledger.num_renewed == number
        assert json.loads(place.contents()["a.json"])["speaker"] == method and place.rows() == ["/in/a.wav"]


def test_a_run_that_goes_on_gives_new_fields_once(place: Place) -> None:
    """The first inputs are done, and a later one is not."""
    with place.opened("json") as output:
        listed(output, "a.wav", 0)
    with place.opened("json", say=(said := []).append) as output:
        assert not listed(output, "a.wav", 0, speaker="ann")
        output.go_on(OutputRun(OutputStyle(("json",)), {}), said.append)
        assert not listed(output, "a.wav", 0, speaker="ann") and listed(output, "b.wav", 1, speaker="ann")
        assert output.ledger.num_renewed == 1 and output.totals() == (2, 0, 2.0, 0)
    assert json.loads(place.contents()["a.json"])["speaker"] == "ann" and said == []


def test_a_row_that_someone_broke_gets_no_new_fields_but_is_done_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.opened() as output:
        assert all(listed(output, id, index) for index, id in enumerate(IDS))
    rows = tmp_path / "transcripts.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"words"', b'"wordy"', 1))
    with place.opened() as output:
        assert [listed(output, id, index, speaker="ann") for index, id in enumerate(IDS)] == [True, False]
    found = [json.loads(line) for line in rows.read_bytes().splitlines()]
    assert [(row["speaker"], "words" in row) for row in found] == [("ann", True)] * 2


def test_a_failure_leaves_its_json_alone(place: Place) -> None:
    place.run(IDS, "txt", "json")
    with place.opened("txt", "json") as output:
        assert put(output, failed("a.wav"), changed=True)
        assert not put(output, spoken("b.wav", index=1))
    assert set(place.contents()) == {"a.json", "b.txt", "b.json"}
    with place.opened("txt", "json", retry_failed=True) as output:
        assert put(output, spoken("a.wav", "back"), changed=True)
    assert set(place.contents()) == {"a.json", "a.txt", "b.txt", "b.json"} and place.contents()["a.txt"] == "back"


@pytest.mark.parametrize("found", [None, "", "\0" * 5, "a", "by hand"])
def test_a_file_that_a_power_cut_took_is_made_again(place: Place, found: str | None) -> None:
    """Even if its input is not given. An edit stays."""
    output = place.opened("txt")
    put(output, spoken("a.wav"))
    output.close(finished=False)
    place.remove("a.txt") if found is None else place.write("a.txt", found)
    said: list[str] = []
    place.run([], "txt", say=said.append)
    is_edit = found == "by hand"
    assert place.contents() == {"a.txt": found if is_edit else "a.wav"}
    assert ["a.txt: edited" in line for line in said] == [True] * is_edit


def test_a_file_of_a_clean_end_is_nobodys_damage(place: Place) -> None:
    place.run(IDS, "txt")
    place.write("a.txt", "")
    said: list[str] = []
    place.run(IDS, "txt", say=said.append)
    assert place.contents()["a.txt"] == "" and len(said) == 1 and "a.txt: edited" in said[0]


def test_an_end_between_journal_and_files_is_made_good(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are those of the replaced row then; they are our own, though the journal has other checksums by now."""
    place.run(IDS, "txt", "srt")
    with monkeypatch.context() as patch:
        patch.setattr("fastscribe.results.committer.Committer._place", stopped)
        output = place.opened("txt")
        assert put(output, spoken("a.wav", "new"), changed=True)
        with pytest.raises(OutputError):
            output.close()
    assert place.contents() == {"a.srt": "", "a.txt": "a.wav", "b.srt": "", "b.txt": "b.wav"}
    place.run([], "txt")
    assert place.contents() == {"a.txt": "new", "b.srt": "", "b.txt": "b.wav"}


def test_a_file_that_was_made_good_can_be_replaced_in_the_same_run(place: Place) -> None:
    output = place.opened("txt")
    put(output, spoken("a.wav"))
    output.close(finished=False)
    place.remove("a.txt")
    with place.opened("txt") as output:
        assert put(output, spoken("a.wav", "new"), changed=True)
        output.flush()
        assert output.not_made == []
    assert place.contents() == {"a.txt": "new"}


def test_a_row_that_is_no_result_is_done_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(IDS, "txt")
    rows = tmp_path / "transcripts.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"words"', b'"wordy"', 1))
    assert place.run(IDS, "txt", "json") == ["a.wav"]


def test_what_cannot_be_read_is_told_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    place.run(IDS, "txt")
    with place.opened("json") as output, monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "read", stopped)
        assert not any(put(output, failed(id, index)) for index, id in enumerate(IDS))
        assert [error.strerror for error in output.not_made] == ["stopped"] * 2


def refuse(place: Place, refused: str, patch: pytest.MonkeyPatch) -> None:
    """Make a place refuse one file, as one without permission does."""

    def written(storage: Any, name: str, content: bytes, replaces: bool) -> None:
        if name == refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        write(storage, name, content, replaces)

    kind = FolderStorage if isinstance(place.where, Path) else ObjectStorage
    write = kind.write
    patch.setattr(kind, "write", written)


@pytest.mark.parametrize("finished", [True, False])
def test_the_next_run_looks_into_what_could_not_be_written_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    output = place.opened("txt")
    with monkeypatch.context() as patch:
        refuse(place, "a.txt", patch)
        for index, id in enumerate(IDS):
            put(output, spoken(id, index=index))
            output.flush()
        output.close(finished)
    for name in ("a.txt", "b.txt"):
        place.write(name, "")
    with place.opened("txt", say=(said := []).append) as output:
        behind = output.journal.entries[output.journal.num_synced :]
        assert {output.journal.entry(output.journal.find(key) or 0).id for key in behind["key"].tolist()} == {"a.wav"}
        assert not any(put(output, spoken(id, index=index)) for index, id in enumerate(IDS))
    assert place.contents() == {"a.txt": "a.wav", "b.txt": ""} and len(said) == 1


def test_the_journal_says_which_files_are_durable(tmp_path: Path) -> None:
    """So that a run need not look into the files of all runs before."""
    place = Place(tmp_path)
    with place.opened("txt") as output:
        for index, id in enumerate(IDS):
            put(output, spoken(id, index=index))
            output.flush()
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert [line == SYNCED for line in lines] == [False, False, False, True, False, True]
    assert place.opened("txt").journal.num_synced == 2


def test_a_file_over_the_limits_that_could_not_be_replaced_is_no_edit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(IDS, "txt")
    monkeypatch.setattr("fastscribe.results.committer._MAX_LACKING_BYTES", 0)
    with monkeypatch.context() as patch, place.opened("txt") as output:
        refuse(place, "a.txt", patch)
        for index, id in enumerate(IDS):
            assert put(output, spoken(id, "newer", index), changed=True)
            output.flush()
    with place.opened("txt", say=(said := []).append) as output:
        assert not any(put(output, spoken(id, index=index), changed=True) for index, id in enumerate(IDS))
    assert place.contents() == {"a.txt": "newer", "b.txt": "newer"} and not said


def test_a_damaged_file_that_cannot_be_read_once_is_made_by_the_next_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(storage: Any, name: str, *place: int) -> bytes:
        if name == "a.txt":
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return read(storage, name, *place)

    kind = FolderStorage if isinstance(place.where, Path) else ObjectStorage
    read = kind.read
    output = place.opened("txt")
    put(output, spoken("a.wav"))
    output.flush()
    written = read(output._storage, "a.txt")
    output.close(finished=False)
    place.write("a.txt", "\0" * len(written))
    with monkeypatch.context() as patch:
        patch.setattr(kind, "read", refuse)
        with place.opened("txt") as output:
            assert len(output.not_made) == 1 and put(output, spoken("b.wav", index=1))
    assert place.run(IDS, "txt") == [] and place.contents()["a.txt"] == "a.wav"
