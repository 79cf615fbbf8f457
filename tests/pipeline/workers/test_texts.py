"""Texts that helpers make come back, and those for which no helper is left are made here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fastscribe import Options, Transcriber
from fastscribe.errors import DeviceFailed
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.text_stage import TextStage
from fastscribe.pipeline.workers.helpers import Job
from fastscribe.pipeline.workers.stages import MakeTextStage
from fastscribe.pipeline.workers.texts import HelperTexts
from fastscribe.types import AudioInfo, Failure, Hypothesis, Transcript, Utterance
from tests.conftest import MODELS


@pytest.mark.parametrize(("seconds", "num_calls"), [(1, 0), (8, 3)], ids=["without audio", "with a look for gaps"])
def test_texts_do_not_fail_for_want_of_helpers(seconds: int, num_calls: int) -> None:
    model = Transcriber.load(MODELS / "tdt_demo" / "model.nemo", "cpu", "fp32")
    refused = DeviceFailed("a helper process", OSError("refused"))

    def submit(job: Job) -> None:
        for number in [*job.items]:
            job.done(number, refused)

    helpers: Any = SimpleNamespace(submit=submit, homes={})
    calls: list[Callable[[], None]] = []
    pool: Any = SimpleNamespace(submit=lambda call: (calls.append(call), call()))
    stage = MakeTextStage(TextStage(Options(), model._model.tokenizer, model.facts), None, None)
    texts = HelperTexts(stage, helpers, lambda: None, pool, Stopwatch())
    for index in range(3):
        audio = AudioInfo(f"{index}.flac", f"{index}", 16_000, 1, 16_000 * seconds, index=index)
        assert not texts.first([(Utterance(audio, 0, audio.num_samples), Hypothesis())])
    texts.flush()
    found: list[Transcript | Failure] = []
    while made := texts.collect(wait=True):
        found += made
    assert sorted(one.index for one in found) == [0, 1, 2]
    assert all(isinstance(one, Transcript) for one in found) and len(calls) == num_calls
