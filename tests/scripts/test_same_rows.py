"""What the comparison of two checkouts leaves out, and with which Python the other one runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fastscribe.config import OUTPUT_FORMATS
from fastscribe.results.journal import SYNCED
from scripts import same_rows

ENTRIES = [b'{"key": 1, "row": [0, 9]}\n', b'{"key": 2, "row": [9, 7]}\n']


def test_order_places_and_when_a_disk_has_synced_do_not_count() -> None:
    plain = same_rows._comparable("journal.jsonl", b"".join(ENTRIES))
    assert same_rows._comparable("journal.jsonl", ENTRIES[1] + SYNCED + ENTRIES[0] + SYNCED) == plain
    assert same_rows._comparable("journal.jsonl", ENTRIES[1]) != plain


def test_the_other_side_runs_with_the_python_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[Path, str]] = []

    def run(checkout: Path, python: str, arguments: list[str], folder: Path) -> tuple[int, bytes, dict[str, bytes]]:
        ran.append((checkout, python))
        return 0, b"text", {}

    monkeypatch.setattr(same_rows, "run", run)
    monkeypatch.setattr(sys, "argv", ["same_rows", str(tmp_path), "--python", "/other/python", "text to stdout"])
    with pytest.raises(SystemExit, match=r"^0$"):
        same_rows.main()
    assert sorted(ran) == sorted([(tmp_path, "/other/python"), (same_rows.ROOT, sys.executable)])
    assert capsys.readouterr().out == "text to stdout: the same\n"


def test_the_packaged_model_writes_every_format() -> None:
    assert same_rows.CASES["packaged model, all formats"][-1].split(",") == list(OUTPUT_FORMATS)
