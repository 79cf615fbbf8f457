"""Folders with random weights: their texts have the length that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import Options
from fastscribe.pipeline.recognizer import Recognizer
from scripts.benchmarks.random_folder import write_cohere
from tests.conftest import AUDIO, waveform
from tests.families.granite.test_granite import batch_of
from tests.helpers import cohere_folder


@pytest.mark.parametrize("num_tokens", [1, 12])
def test_cohere_ends_where_it_is_told(num_tokens: int, tmp_path: Path) -> None:
    wide = {"vocab_size": 64, "hidden_size": 256, "head_dim": 64}
    write_cohere(tmp_path, cohere_folder.small_config() | wide, torch.float32, num_tokens)
    model = Recognizer.build(read_checkpoint(tmp_path), "cpu", "fp32", Options(), lambda line: None)
    batch = batch_of([waveform(path) for path in sorted(AUDIO.glob("0*.flac"))[:3]])
    assert [len(found.token_ids) for found in model.transcribe(batch)] == [num_tokens] * 3
