"""What travels between the processes arrives, and a message that a death cut off is the end."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from fastscribe._system.remote import RemoteObject
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.messages import Channel
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Source


def arrived(message: object) -> Any:
    """Return a message as another process gets it."""
    return Channel(io.BytesIO(sent(message)), io.BytesIO()).receive()


def sent(message: object) -> bytes:
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(message)
    return pipe.getvalue()


def job(item: object) -> messages.Job:
    return messages.Job(0, "read", None, [item], "/")


def columns() -> HypothesisColumns:
    ints = [np.array(values, np.int32) for values in ([2, 0, 1], [5, 6, 7], [0, 3, 1], [1, 1, 2])]
    return HypothesisColumns(*ints, np.array([-0.5, -0.25, 0.0], np.float32), {1: "too many tokens"})


def test_a_message_that_death_cut_off_is_the_end() -> None:
    whole = sent(messages.Say("a" * 100))
    for length in (0, 1, 30, len(whole) - 1):
        assert Channel(io.BytesIO(whole[:length]), io.BytesIO()).receive() is None
    assert Channel(io.BytesIO(whole), io.BytesIO()).receive() == messages.Say("a" * 100)


def test_columns_stay_columns() -> None:
    results = messages.Results(1, 0, [0, 1, 2], columns(), {}, 0.0, 0, 1.0)
    there = arrived(results).results
    assert isinstance(there, HypothesisColumns)
    assert list(there) == list(columns())
    assert [one.problem for one in there] == ["", "too many tokens", ""]


def test_a_recording_in_a_store_travels_by_its_url_and_its_version() -> None:
    listed = RemoteObject("s3://bucket/a.flac", 12, "etag")
    file = RemoteFile(listed.url, listed)
    [there] = arrived(job(Source("a", file, "a"))).items
    assert isinstance(there.file, RemoteFile) and there.file is not file
    assert (there.file.identity, there.file.stated_bytes, there.file.version()) == (listed.url, 12, "12 etag")
