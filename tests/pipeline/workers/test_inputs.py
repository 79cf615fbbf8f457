"""Inputs are shared out among helpers, and what a helper has of a remote recording is found again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fastscribe.audio.remote_file import RemoteFile
from fastscribe.errors import DeviceFailed
from fastscribe.pipeline.workers.helpers import Job
from fastscribe.pipeline.workers.inputs import HelperInputs
from fastscribe.types import Failure, Source

NUM_HELPERS = 20


def test_the_home_of_a_remote_recording_is_known_with_any_number_of_helpers() -> None:
    """Each job may have a single recording."""
    urls = [f"s3://bucket/{number}.flac" for number in range(NUM_HELPERS + 5)]
    sources = [Source(url, RemoteFile(url), url, index=index) for index, url in enumerate(urls)]
    local = Source("here.flac", "here.flac", "here", index=100)
    jobs: list[Job] = []
    homes: dict[int, int] = {}
    finished: list[int] = []
    preparation: Any = SimpleNamespace(prepare=None)
    helpers: Any = SimpleNamespace(number=NUM_HELPERS, submit=jobs.append)
    group = HelperInputs(preparation, helpers, lambda: None, homes).group([*sources, local])
    group.start(None, finished.append)  # type: ignore[arg-type]
    assert [job.is_remote for job in jobs] == [not isinstance(job.items[0].file, str) for job in jobs]
    expected: dict[int, int] = {}
    for helper, job in enumerate(jobs):
        for position, source in enumerate(job.items):
            job.done(position, Failure(source.path, source.id, "probe", "AudioError", "gone"), helper)
            if job.is_remote:
                expected[source.index] = helper
    assert homes == expected and len(homes) == len(sources)
    assert sorted(finished) == list(range(len(sources) + 1)) and group.items.keys() == set(finished)


def test_inputs_do_not_fail_for_want_of_helpers() -> None:
    """The run stops, or goes on without helpers, and each input has its own result."""

    def submit(job: Job) -> None:
        job.done(0, DeviceFailed("a helper process", OSError("refused")), -1)

    helpers: Any = SimpleNamespace(number=1, submit=submit)
    preparation: Any = SimpleNamespace(prepare=None)
    group = HelperInputs(preparation, helpers, lambda: None, {}).group([Source("a.wav", "a.wav", "a")])
    finished: list[int] = []
    group.start(None, finished.append)  # type: ignore[arg-type]
    assert finished == [0] and not group.items
    assert isinstance(group.errors[0], DeviceFailed)
