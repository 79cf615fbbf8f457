"""Names of inputs that arrive one by one, and the effect of each rename on existing files."""

from __future__ import annotations

from fastscribe.results.file_names import FileNames, NameChange, file_formats

from fastscribe.results.names import Rename, name_key

FORMATS = ("txt", "json")
RENAME = Rename("a", "a.wav")


def test_a_pending_input_gets_a_longer_name() -> None:
    names = FileNames(FORMATS)
    assert names.reserve("a.wav", 0) == []
    assert names.reserve("a.mp3", 1) == [NameChange(RENAME, (), is_pending=True)]
    assert (names[0], names[1]) == ("a.wav", "a.mp3")


def test_a_finished_input_has_its_files_renamed() -> None:
    for has_failed, formats in ((False, FORMATS), (True, ("json",))):
        names = FileNames(FORMATS)
        names.reserve("a.wav", 0)
        names.finish(0, has_failed)
        assert names[0] == ""
        assert names.reserve("a.mp3", 1) == [NameChange(RENAME, formats, is_pending=False)]


def test_a_shard_renames_its_own_files_only() -> None:
    own, other = FileNames(FORMATS, is_sharded=True), FileNames(FORMATS, is_sharded=True)
    own.reserve("a.wav", 0)
    own.finish(0, False)
    other.reserve("a.wav", None)
    assert own.reserve("a.mp3", None) == [NameChange(RENAME, FORMATS, is_pending=False)]
    assert other.reserve("a.mp3", 1) == [NameChange(RENAME, (), is_pending=False)]
    assert other[1] == "a.mp3"


def test_earlier_files_are_found_under_each_name() -> None:
    names = FileNames(FORMATS)
    names.reserve("a.wav", 0)
    assert names.find("a.wav", 0, name_key("a")) == "a"
    assert names.find("a.wav", 0, name_key("a.wav")) == "a.wav"  # another input shared the name then
    assert names.find("a.wav", 0, name_key("b")) is None
    names.reserve("a.mp3", 1)
    assert names.find("a.wav", 0, name_key("a")) == "a"


def test_restored_files_are_renamed_at_most_once() -> None:
    names = FileNames(FORMATS)
    names.reserve("a.wav", 0)
    assert names.restore(0, name_key("a.wav"), False) is None
    assert names.reserve("a.mp3", 1) == []  # the files have the longer name already
    names = FileNames(FORMATS)
    names.reserve("a.wav", 0)
    names.reserve("a.mp3", 1)
    assert names.restore(0, name_key("a"), False) == RENAME
    assert names.restore(1, name_key("a.mp3"), False) is None


def test_the_report_keeps_its_name() -> None:
    assert file_formats(("jsonl", *FORMATS)) == FORMATS
    for formats, name in ((FORMATS, "report.wav"), (("txt",), "report")):
        names = FileNames(formats)
        names.reserve("report.wav", 0)
        assert names[0] == name
