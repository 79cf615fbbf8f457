"""Which recordings count as cut off."""

from __future__ import annotations

import pytest

from fastscribe.cli.short_files import ShortFiles
from fastscribe.types import AudioInfo, Failure, Transcript


@pytest.mark.parametrize("row", [None, {}, {"duration": None}, {"duration": 0}, {"duration": 9.5}, {"duration": 10.4}])
def test_whole(row: dict | None) -> None:
    found = ShortFiles()
    found.count(Transcript(AudioInfo("a.mp3", "a", 100, 1, 1000, row=row), "", (), ()))
    found.count(Failure("a.mp3", "a", "probe", "OSError", "gone"))
    assert found.lines == []


def test_short() -> None:
    found = ShortFiles()
    for name in ("a.mp3", "b.mp3"):
        found.count(Transcript(AudioInfo(name, name, 100, 1, 1000, row={"duration": 12}), "", (), ()))
        one = "1 recording ends before its manifest's duration: a.mp3: 10.00 s of 12.00 s"
        many = "2 recordings end before their manifest's durations; the first is a.mp3: 10.00 s of 12.00 s"
        assert found.lines == [one if name == "a.mp3" else many]
