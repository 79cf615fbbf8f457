"""Inputs are shared out among helpers, and a call for which no helper is left is made here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastscribe.audio.remote_file import RemoteFile
from fastscribe.errors import DeviceFailed
from fastscribe.pipeline.workers.groups import InputGroup
from fastscribe.pipeline.workers.helpers import Job
from fastscribe.types import Failure, Source

NUM_HELPERS = 20


def group_of(sources: list[Source], submit: Any) -> InputGroup:
    """A group of inputs which this process would prepare by counting the letters of their names."""
    helpers: Any = SimpleNamespace(number=NUM_HELPERS, submit=submit, homes={})
    preparation: Any = SimpleNamespace(prepare=lambda source: len(source.path))
    return InputGroup(preparation, helpers, sources)


@pytest.mark.parametrize(("num_remote", "expected"), [(5, [1] * 5), (25, [2] * 12 + [1]), (45, [3] * 15)])
def test_remote_recordings_are_shared_out_once_among_any_number_of_helpers(
    num_remote: int, expected: list[int]
) -> None:
    urls = [f"s3://bucket/{number}.flac" for number in range(num_remote)]
    sources = [Source(url, RemoteFile(url), url, index=index) for index, url in enumerate(urls)]
    local = Source("here.flac", "here.flac", "here", index=100)
    jobs: list[Job] = []
    finished: list[int] = []
    group = group_of([*sources, local], jobs.append)
    group.start(None, finished.append)  # type: ignore[arg-type]
    for job in jobs:
        assert job.is_remote is not any(isinstance(source.file, str) for source in job.items.values())
        for number, source in job.items.items():
            job.done(number, Failure(source.path, source.id, "probe", "AudioError", "gone"))
    assert [len(job.items) for job in jobs if job.is_remote] == expected
    assert sorted(finished) == list(range(len(sources) + 1)) and group.items.keys() == set(finished)


def test_inputs_do_not_fail_for_want_of_helpers() -> None:
    """Threads of this process prepare them: each has its own result."""
    refused = DeviceFailed("a helper process", OSError("refused"))
    group = group_of([Source("a.wav", "a.wav", "a")], lambda job: job.done(0, refused))
    finished: list[int] = []
    group.start(SimpleNamespace(submit=lambda call: call()), finished.append)  # type: ignore[arg-type]
    assert finished == [0] and group.items == {0: 5} and not group.errors
