"""The inputs to do depend on path, stretch and state, never on order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.audio.failures import input_failure
from fastscribe.config import OutputStyle
from fastscribe.results import journal_ledger
from fastscribe.results.interfaces import Moved, OutputRun
from fastscribe.results.journal import ENTRY, Entry, Journal, Layouts, digest_of
from fastscribe.results.journal_ledger import JournalLedger, state_of
from fastscribe.results.shards import Shard
from fastscribe.types import Failure, Source

RUN = OutputRun(OutputStyle(), {})


def source(path: Path | str, index: int = 0, **fields: object) -> Source:
    return Source(path=str(path), file=str(path), id=Path(path).name, index=index, **fields)  # type: ignore[arg-type]


def after(*items: tuple[Source | Failure, bool]) -> Journal:
    """Return the journal of these (input, failed)."""
    ledger, entries = JournalLedger(RUN, Journal()), []
    for index, (item, failed) in enumerate(items):
        numbered = replace(item, index=index)
        assert ledger.expect(numbered)
        assert not ledger.is_done(numbered)
        expected = ledger[index]
        entries.append(Entry("", expected.key, expected.state, 0, 0, index, failed).values(Layouts()))
        ledger.forget(index)
    return Journal(entries=np.array(entries, ENTRY))


def is_done(ledger: JournalLedger, item: Source | Failure) -> bool:
    assert ledger.expect(item)
    return ledger.skip(item)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    path.write_bytes(b"content")
    return path


def test_same_input_is_done_under_any_spelling(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    previous = after((source(clip), False))
    monkeypatch.chdir(clip.parent)
    for number, name in enumerate((clip, "a.wav", "./a.wav", f"../{clip.parent.name}/a.wav")):
        assert is_done(JournalLedger(RUN, previous), source(name, number)), name


def test_each_track_of_a_file_is_an_input_of_its_own(clip: Path) -> None:
    previous = after((source(clip), False), (source(clip, track=1), True))
    for tracks, done in (((2,), [False]), ((1, 0), [True, True]), ((None,), [True])):
        ledger = JournalLedger(RUN, previous)
        sources = [source(clip, index, track=track) for index, track in enumerate(tracks)]
        assert [ledger.expect(one) for one in sources] == [True] * len(sources)
        assert [ledger.skip(one) for one in sources] == done


def test_a_changed_input_is_not_done(clip: Path) -> None:
    row = {"audio_filepath": "a.wav", "text": "one"}
    previous = after((source(clip, row=row), False))
    assert is_done(JournalLedger(RUN, previous), source(clip, row=dict(reversed(row.items()))))
    ledger = JournalLedger(RUN, previous)
    assert not is_done(ledger, source(clip, row={**row, "lang": "de"}))
    assert ledger[0].entry_index == 0
    assert not is_done(JournalLedger(RUN, previous), source(clip, row=row, offset_s=1.0))
    os.utime(clip, ns=(0, 12345))
    assert not is_done(JournalLedger(RUN, previous), source(clip, row=row))


def test_a_result_stays_while_its_recording_is_out_of_reach(clip: Path) -> None:
    row = {"audio_filepath": "a.wav", "text": "one"}
    given = [source(clip), source(clip, 1, row=row), source(clip, 2, row=row, offset_s=1.0, duration_s=2.0)]
    previous, failed = (after(*((one, has_failed) for one in given)) for has_failed in (False, True))
    gone = clip.rename(clip.with_suffix(".gone"))
    unlisted = input_failure(str(clip), "permission denied")
    for first in (given[0], unlisted):
        ledger = JournalLedger(replace(RUN, retry_failed=True), previous)
        others = (given[1], replace(given[2], id="x", row={**row, "text": "two"}))
        assert all(is_done(ledger, one) for one in (first, *others))
        assert (ledger.num_done, ledger.num_out_of_reach, ledger.num_renewed) == (3, 3, 0)
        ledger = JournalLedger(RUN, failed)  # the reason of an earlier failure stays, too
        assert is_done(ledger, first) and (ledger.failed_before, ledger.num_out_of_reach) == (1, 1)
    assert not is_done(JournalLedger(RUN, previous), source(clip, offset_s=3.0))
    moved = replace(RUN, moved=Moved(str(clip.parent), str(clip.parent / "new")))
    assert not is_done(JournalLedger(moved, previous), source(clip.parent / "new" / "b.wav"))
    ledger = JournalLedger(moved, previous)
    assert is_done(ledger, source(clip.parent / "new" / "a.wav")) and ledger.num_out_of_reach == 1
    failed_so = after((given[0], True))  # of being out of reach
    assert is_done(again := JournalLedger(RUN, failed_so), given[0]) and not again.num_out_of_reach
    failed_so.entries["state"] ^= np.uint64(1 << 63)  # and that may pass
    assert not is_done(JournalLedger(RUN, failed_so), given[0])
    gone.rename(clip)
    ledger = JournalLedger(RUN, previous)
    assert is_done(ledger, given[0]) and not ledger.num_out_of_reach


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({"audio_filepath": "/elsewhere/a.wav", "duration": 3, "pred_text": "earlier", "part": [{"at": 2}]}, True),
        ({"duration": 3.5}, None),
        ({"text": "two"}, False),
        ({"speaker": "ann"}, False),
        *(({name: "x"}, None) for name in ("boost", "language", "lang", "source_lang", "audio_channel")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_fields_that_do_not_decide_the_text_need_no_decoding(clip: Path, changed: dict, is_same: bool | None) -> None:
    """None: the input is another one."""
    row = {"audio_filepath": "a.wav", "duration": 3.0, "text": "one", "part": [{"at": 2.0}]}
    previous = after((source(clip, row=row), False))
    ledger = JournalLedger(RUN, previous)
    assert is_done(ledger, source(clip, row=row | changed)) == (is_same is not None)
    assert ledger.num_renewed == (is_same is False)


def test_a_text_to_align_decides_the_result(clip: Path) -> None:
    run, row = replace(RUN, fingerprint={"--align": True}), {"audio_filepath": "a.wav", "text": "one"}
    states = [state_of(source(clip, row={**row, **more}), run)[0] >> 32 for more in ({}, {"text": "two"}, {"id": 1})]
    assert states[0] != states[1] and states[0] == states[2]


def test_a_list_in_place_of_a_manifest_gives_new_fields(clip: Path) -> None:
    ledger = JournalLedger(RUN, after((source(clip, row={"audio_filepath": "a.wav"}), False)))
    assert is_done(ledger, source(clip)) and ledger.num_renewed == 1


def test_missing_input_keeps_its_key_when_it_appears(tmp_path: Path) -> None:
    clip = tmp_path / "late.wav"
    previous = after((input_failure(str(clip), "no such file or folder"), True))
    assert is_done(JournalLedger(RUN, previous), input_failure(str(clip), "no such file or folder"))
    clip.write_bytes(b"now")
    ledger = JournalLedger(RUN, previous)
    assert not is_done(ledger, source(clip))
    assert ledger[0].entry_index == 0


def test_the_same_input_twice_is_two(clip: Path) -> None:
    ledger = JournalLedger(RUN, after((source(clip), False)))
    assert is_done(ledger, source(clip, 0))
    assert not is_done(ledger, source(clip, 1))
    ledger = JournalLedger(RUN, after((source(clip), False), (source(clip), True)))
    assert is_done(ledger, source(clip, 0))
    assert ledger.failed_before == 0
    assert is_done(ledger, source(clip, 1))
    assert ledger.failed_before == 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
def test_each_input_is_in_one_shard(numbers: list[int], count: int) -> None:
    items = [source(f"/nowhere/{number}.wav", index) for index, number in enumerate(numbers)]
    ledgers = [JournalLedger(replace(RUN, shard=Shard(index, count)), Journal()) for index in range(count)]
    held = [[ledger.expect(item) for ledger in ledgers] for item in items]
    assert all(sum(row) == 1 for row in held)
    keys = {ledgers[row.index(True)][item.index].key for row, item in zip(held, items, strict=True)}
    assert len(keys) == len(items)


def test_rows_of_one_file_are_told_apart_by_their_channels(clip: Path) -> None:
    left, right = (source(clip, row={"audio_channel": channel}, channel=channel) for channel in range(2))
    previous = after((left, False), (right, False))
    for listed in ((left, right), (right, left), (right,)):
        ledger = JournalLedger(RUN, previous)
        assert all(is_done(ledger, replace(one, index=index)) for index, one in enumerate(listed))
    third = source(clip, row={"audio_channel": 2}, channel=2)
    ledger = JournalLedger(RUN, previous)
    assert [is_done(ledger, replace(one, index=index)) for index, one in enumerate((third, left))] == [False, True]


def test_fields_that_say_nothing_change_nothing(clip: Path) -> None:
    """As a table fills columns, or NeMo's manifests have an offset of 0."""
    rows: Sequence[dict[str, Any]] = (
        {},
        {"offset": None, "audio_channel": None, "boost": None, "lang": None},
        {"offset": 0.0},
        {"offset": 0},
    )
    for before in rows:
        previous = after((source(clip, row=before, offset_s=before.get("offset")), False))
        for now in rows:
            assert is_done(JournalLedger(RUN, previous), source(clip, row=now, offset_s=now.get("offset")))


def test_results_of_older_versions_stay(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys had no channels, an offset of 0 was one, and a field without a value was one."""
    rows: list[dict[str, Any]] = [
        {"audio_channel": 0, "offset": 0.0},
        {"audio_channel": 1, "offset": 0.0},
        {"offset": 0.0, "lang": None},
    ]
    old = [source(clip, row=row, channel=row.get("audio_channel"), offset_s=0.0) for row in rows]
    with monkeypatch.context() as patch:
        key = digest_of(f"{clip}\0{0.0}\0{None}")
        patch.setattr(journal_ledger, "key_of", lambda source: key)
        patch.setattr(journal_ledger, "says_nothing", lambda name, value: False)
        previous = after(*((one, False) for one in old))
    monkeypatch.setattr(JournalLedger, "_row", lambda self, entry_index: rows[entry_index])
    for listed in (old, old[::-1], old[1:]):
        ledger = JournalLedger(RUN, previous)
        assert all(is_done(ledger, replace(one, index=index)) for index, one in enumerate(listed))
