"""The parts of a store's journal: one object has rows, their lines and the offsets, and none may be missing in between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from fastscribe.errors import UsageError
from fastscribe.results.journal import SYNCED, Entry, header_line, run_line
from fastscribe.results.objects import ObjectFolder
from fastscribe.results.parts import Parts, StoredRuns, find_runs, part_name, run_name, with_last_line
from fastscribe.results.shards import UNSHARDED, Shard

RUN = ".fastscribe/0-of-1/000001-0123abcd"
NEXT = ".fastscribe/0-of-1/000002-0123abcd"


@pytest.fixture
def folder() -> Iterator[ObjectFolder]:
    found = ObjectFolder("memory://parts")
    yield found
    found.delete([name for name, _ in found.list()])
    found.close()


def put_part(folder: ObjectFolder, run: str, number: int, num_rows: int = 2) -> list[bytes]:
    """Write a part with rows of different sizes, and return the rows."""
    rows = [f'{{"n": "{run}/{number}/{"x" * index}"}}\n'.encode() for index in range(num_rows)]
    ends = [len(b"".join(rows[: index + 1])) for index in range(num_rows)]
    first = 1000 * number + (10_000 if run == NEXT else 1)
    lines = [
        Entry("a", first + index, 7, end - len(row), end, index, False).line()
        for index, (row, end) in enumerate(zip(rows, ends, strict=True))
    ]
    folder.put(run_name(run), header_line({"run": run}) + run_line({"of": run}))
    folder.put(part_name(run, number), with_last_line(b"".join(rows), SYNCED + b"".join(lines)))
    return rows


def opened(folder: ObjectFolder) -> Parts:
    [runs] = find_runs(folder.list())
    return Parts(folder, runs)


def test_rows_are_found_in_every_part(folder: ObjectFolder) -> None:
    rows = [row for run in (RUN, NEXT) for number in (1, 2) for row in put_part(folder, run, number)]
    parts = opened(folder)
    entries = parts.journal.entries
    assert [parts.read_rows(int(entry["begin"]), int(entry["end"])) for entry in entries] == rows
    assert parts.journal.header == {"run": NEXT} and parts.journal.facts == {"of": NEXT}
    assert parts.journal.num_synced == 6
    assert parts.join_rows(ordered=False).read_bytes() == b"".join(rows)
    parts.close()


def test_each_part_is_downloaded_once_however_many_rows_are_read(
    folder: ObjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is a request of its own, and none of it stays."""
    rows = [row for number in (1, 2, 3) for row in put_part(folder, RUN, number, num_rows=9)]
    with closing(opened(folder)) as parts, ThreadPoolExecutor(8) as pool:
        asked, read = list[str](), folder.read
        monkeypatch.setattr(folder, "read", lambda name, *span: (asked.append(name), read(name, *span))[1])
        spans = [(int(one["begin"]), int(one["end"])) for one in parts.journal.entries]
        assert parts.read_rows(*spans[0]) == rows[0] and not parts.paths.rows.stat().st_size
        assert list(pool.map(lambda span: parts.read_rows(*span), spans[17::-1])) == rows[17::-1]
        assert sorted(asked) == [part_name(RUN, 1)] * 2 + [part_name(RUN, 2)] * 2
        assert parts.join_rows(ordered=False).read_bytes() == b"".join(rows) and len(asked) == 5


def test_lines_that_are_longer_than_the_first_request_are_read_whole(folder: ObjectFolder) -> None:
    rows = put_part(folder, RUN, 1, num_rows=600)
    parts = opened(folder)
    assert len(parts.journal.entries) == 600 and parts.join_rows(False).read_bytes() == b"".join(rows)
    parts.close()


@pytest.mark.parametrize(("run", "number"), [(RUN, 1), (RUN, 2), (NEXT, 1)])
def test_a_hole_in_the_numbers_is_an_error(folder: ObjectFolder, run: str, number: int) -> None:
    for one in (RUN, NEXT):
        for place in (1, 2, 3):
            put_part(folder, one, place)
    folder.delete([part_name(run, number)])
    with pytest.raises(UsageError, match=f"^{folder.url_of(part_name(run, number))}: is missing"):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"n": 1}\n{"fastscribe_part": [4]}\n'])
def test_only_the_last_part_of_a_run_may_lack_its_end(folder: ObjectFolder, content: bytes) -> None:
    for run in (RUN, NEXT):
        put_part(folder, run, 1)
        folder.put(part_name(run, 2), content)
    parts = opened(folder)
    assert len(parts.journal.entries) == 4
    parts.close()
    put_part(folder, RUN, 3)
    with pytest.raises(UsageError, match=f"^{folder.url_of(part_name(RUN, 2))}: was changed since the last run"):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"no journal\n"])
def test_settings_that_are_none_are_an_error_with_their_url(folder: ObjectFolder, content: bytes) -> None:
    put_part(folder, RUN, 1)
    folder.put(run_name(RUN), content)
    with pytest.raises(UsageError, match=f"^{folder.url_of(run_name(RUN))}: is not a journal of fastscribe's"):
        opened(folder)


def test_rows_that_were_cut_are_an_error(folder: ObjectFolder) -> None:
    put_part(folder, RUN, 1)
    parts = opened(folder)
    folder.put(part_name(RUN, 1), b"{}\n")
    with pytest.raises(UsageError, match=f"^{folder.url_of(part_name(RUN, 1))}: was changed"):
        parts.join_rows(ordered=False)
    parts.close()


def test_objects_of_other_names_are_none_of_ours() -> None:
    names = [part_name(RUN, 1), f"{RUN}/1.part.jsonl", f"{RUN}/run.json", f"{RUN}/alive.json", f"x/{RUN}/run.json"]
    names += [".fastscribe/3-of-9/000001-0123abcd/run.json", ".fastscribe/merged.json", "transcripts.jsonl"]
    found = find_runs((name, 5) for name in names)
    assert found == [
        StoredRuns(UNSHARDED, [RUN], [f"{RUN}/alive.json"], [(part_name(RUN, 1), 5)]),
        StoredRuns(Shard(3, 9), [".fastscribe/3-of-9/000001-0123abcd"]),
    ]
    new = found[0].new_run()
    assert new.startswith(".fastscribe/0-of-1/000002-") and new != found[0].new_run()
