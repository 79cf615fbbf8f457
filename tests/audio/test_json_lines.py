"""What is no JSON lines at all is one problem that says what it is, wherever rows are read; broken rows are their own."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastscribe.audio.inputs import expand
from fastscribe.audio.json_lines import NotJsonLines, numbered_rows
from fastscribe.errors import UsageError
from fastscribe.results.rows import read_rows
from fastscribe.training.manifest import ExampleLimits, ManifestPart, read_manifests
from fastscribe.types import Failure, Source

ROWS = [
    {"audio_filepath": "a.wav", "duration": 1, "text": "ä"},
    {"audio_filepath": "b.wav", "duration": 1, "text": "b"},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
OTHER = {
    **{f"{name} {mark}": (mark + LINES).encode(name) for name in ("utf-16-le", "utf-16-be") for mark in ("", "\ufeff")},
    **{f"{name} {mark}": (mark + LINES).encode(name) for name in ("utf-32-le", "utf-32-be") for mark in ("", "\ufeff")},
    "array": json.dumps(ROWS).encode(),
    "array over lines": json.dumps(ROWS, indent=2).encode(),
    "document": json.dumps(ROWS[0], indent=2).encode(),
    "compact document": b'{"audio_filepath": "a.wav",\n "duration": 1}\n',
    "documents": b"".join(json.dumps(row, indent=1).encode() + b"\n" for row in ROWS),
}


def expected(kind: str) -> str:
    if kind.startswith("utf"):
        return f"is {kind[:6].upper()}: save it as UTF-8"
    return (
        "is one JSON array; one JSON object per line" if "array" in kind else "is one JSON document over several lines"
    )


@pytest.mark.parametrize("kind", OTHER, ids=lambda kind: kind.replace("\ufeff", "with mark"))
def test_another_kind_of_file_is_one_problem(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(OTHER[kind])
    for found in (list(expand([str(path)])), list(expand(["-"], [OTHER[kind]]))):
        assert len(found) == 1 and isinstance(found[0], Failure) and found[0].message.startswith(expected(kind))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(OTHER[kind])))
    for given in (str(path), "-"):
        with pytest.raises(UsageError, match=expected(kind)):
            list(read_rows([given]))
    with pytest.raises(UsageError, match=expected(kind)):
        read_manifests([ManifestPart(str(path))], ExampleLimits())


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ("\ufeff\n" + LINES, [2, 3]),
        ('{"audio_filepath": "cut",\n' + LINES, [1, 2, 3]),
        ('{"audio_filepath": "cut",\n', [1]),
        ('{"audio_filepath": "cu\n' + LINES, [1, 2, 3]),
        ("", []),
    ],
    ids=["mark", "cut at a comma", "cut at a comma and alone", "cut in a word", "empty"],
)
def test_rows_are_numbered_and_broken_ones_are_theirs_alone(lines: str, numbers: list[int]) -> None:
    rows = list(numbered_rows(lines.encode().splitlines(keepends=True)))
    assert [number for number, _ in rows] == numbers and not any(line.startswith(b"\xef") for _, line in rows)


def test_the_first_row_does_not_wait_for_the_second() -> None:
    def stream():
        yield LINES.splitlines()[0].encode()
        raise AssertionError("a second line was asked for")

    assert next(numbered_rows(stream())) == (1, LINES.splitlines()[0].encode())


def test_binary_data_is_named() -> None:
    with pytest.raises(NotJsonLines, match="is a recording or other binary data"):
        list(numbered_rows([b"RIFF\x24\0\0\0WAVEfmt "]))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("report.json", '{\n  "files": 1\n}', "is the report of a run: give its folder"),
        ("talk.md", "# talk.mp3 (10:00)\n", "holds no rows: give its run's folder or transcripts.jsonl"),
        (
            "talk.srt",
            "1\n00:00:00,000 --> 00:00:01,080\nIt.\n",
            "of a corrected text, fastscribe align --text makes other formats",
        ),
    ],
)
def test_other_files_of_a_run_lead_to_its_rows(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        list(read_rows([str(tmp_path / name)]))


def test_a_path_list_in_utf_16_is_named() -> None:
    [found] = expand(["-"], ["/a/b.wav\r\n/a/c.wav\r\n".encode("utf-16")])
    assert isinstance(found, Failure) and found.message == "is UTF-16: save it as UTF-8"
    assert all(isinstance(one, Source | Failure) for one in expand(["-"], [b"a\0b\0c\0d\0e\0f\0g\0h\0i\0"]))
