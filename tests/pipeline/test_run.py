"""A run whose executor fails goes on with another one, with all that has no result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from fastscribe import Options, Transcriber
from fastscribe.errors import DeviceFailed
from fastscribe.pipeline.executor import Outcome, Plan
from fastscribe.pipeline.interfaces import IDLE, Additions, Idle
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.pipeline.recordings import RecordingsInFlight
from fastscribe.pipeline.run import Run
from fastscribe.pipeline.stats import Progress
from fastscribe.types import AudioInfo, Hypothesis, Utterance
from tests.conftest import MODELS, RATE

NUM_RECORDINGS = 4


class FailsSoon(LocalExecutor):
    """Decodes some batches. Then its device is lost."""

    num_decoded = 2

    def execute(self, plans: Iterable[Plan | Idle]) -> Iterator[Outcome | Idle]:  # type: ignore[override]
        for number, outcome in enumerate(one for one in super().execute(plans) if one is not IDLE):
            yield outcome
            if number == self.num_decoded:
                raise DeviceFailed("the device", RuntimeError("lost"))


def test_what_is_planned_and_what_waits_in_a_window_is_decoded_by_the_other_executor() -> None:
    """A window of long recordings is planned in parts. One of them is decoded in part when the device is lost."""
    options = Options(max_utterance_s=2.0, batch_frames=10, threads=2)
    transcriber = Transcriber.load(MODELS / "tdt_demo" / "model.nemo", "cpu", "fp32", options)
    local: Any = transcriber._executor
    failing, progress = FailsSoon(transcriber._recognizer), Progress()
    failing.begin(options, transcriber._budget(), progress.stopwatch)
    run = Run(transcriber._model, failing, options, Additions(), progress)
    noise = np.random.default_rng(0).integers(-900, 900, (NUM_RECORDINGS, 10 * RATE), np.int16)
    found = []
    with pytest.raises(DeviceFailed):
        found += run.results([(one, RATE) for one in noise], None)
    assert not found and len(run._parts) == 1 and progress.done_s > 0
    failing.end()
    local.begin(options, transcriber._budget(), progress.stopwatch)
    found += [*run.decoded(), *run.rest(local, {0})]
    run.close()
    assert sorted(one.index for one in found) == list(range(NUM_RECORDINGS)) and found[-1].index == 0
    assert progress.done_s == pytest.approx(progress.planned_s) == pytest.approx(10 * NUM_RECORDINGS)


def test_what_is_decoded_of_a_recording_that_is_decoded_again_counts_once() -> None:
    progress, texts = Progress(), Any
    recordings = RecordingsInFlight(texts, progress, None)
    audio = AudioInfo("a.wav", "a", RATE, 1, 3 * RATE, index=5)
    item = tuple(Utterance(audio, number * RATE, RATE) for number in range(3))
    for expected_s in (1.0, 2.0):
        assert recordings.begin([item]) == [*item]
        texts.kept = lambda result: result
        for utterance in item[: int(expected_s)]:
            recordings.add(utterance, Hypothesis())
        assert progress.done_s == expected_s
        assert recordings.take_undecoded() == [item] and progress.done_s == 0.0
    assert not recordings.take_undecoded()
