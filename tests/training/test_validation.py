"""Error rates of the readable recordings, by the saved weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import UsageError
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.training import validation
from fastscribe.training.corpus import Example
from fastscribe.training.dataloader import AudioDataLoader
from fastscribe.training.validation import validate, with_weights
from fastscribe.types import Batch, Hypothesis
from tests.conftest import AUDIO, MODELS

DEMO = MODELS / "tdt_demo" / "model.nemo"


def test_unreadable_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_MAX_S", 0.0)  # one recording per batch
    checkpoint, good = read_checkpoint(DEMO), sorted(AUDIO.glob("0*.flac"))[0]
    (tmp_path / "bad.wav").write_bytes(b"not audio")
    bad = Example(str(tmp_path / "bad.wav"), "nothing", 100.0)
    examples = [bad, Example(str(good), "wholly different words", soundfile.info(good).duration)]

    def rates_of(examples: list[Example]) -> validation.ValidationResult:
        loader = AudioDataLoader(examples, 16_000, 0.0, 1, lambda line: None)
        return validate(checkpoint, examples, loader, "cpu", "fp32")

    assert rates_of(examples).rates["wer"] >= 1 and rates_of(examples).counts.keys() == {1}
    with pytest.raises(UsageError, match="none of the 2 recordings to validate with can be read"):
        rates_of([bad, bad])


def test_digital_silence_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does `transcribe`. Beside it in a batch, speech is decoded as alone."""
    good = sorted(AUDIO.glob("0*.flac"))[0]
    soundfile.write(tmp_path / "zero.wav", np.zeros(40_000), 16_000)
    examples = [Example(str(good), "a", soundfile.info(good).duration), Example(str(tmp_path / "zero.wav"), "b", 2.5)]
    given: list[int] = []
    decode = Recognizer.transcribe

    def counted(self: Recognizer, batch: Batch) -> list[Hypothesis]:
        given.append(len(batch.lengths_B))
        return decode(self, batch)

    monkeypatch.setattr(Recognizer, "transcribe", counted)
    loader = AudioDataLoader(examples, 16_000, 0.0, 1, lambda line: None)
    found = validate(read_checkpoint(DEMO), examples, loader, "cpu", "fp32")
    assert given == [1] and found.counts.keys() == {0, 1}


def test_weights_rounded_as_saved() -> None:
    checkpoint = read_checkpoint(DEMO)
    weights = {"a": torch.tensor([1.0001, 3.0]), "count": torch.tensor(1 << 20)}
    kept = with_weights(checkpoint, weights, torch.bfloat16).weights
    assert kept["a"].dtype == torch.bfloat16 and kept["a"].tolist() == [1.0, 3.0] and kept["count"] == 1 << 20
