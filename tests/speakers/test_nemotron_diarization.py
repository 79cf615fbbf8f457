"""Nemotron 3 Diarization against transformers' probabilities of the same folders and recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastscribe.checkpoint.reader import check_config, read_checkpoint
from fastscribe.errors import CheckpointError, SideModelGiven
from fastscribe.speakers.readers import read_speaker_model
from tests.conftest import MODELS, refusal
from tests.helpers import nemotron_diarization, sortformer
from tests.speakers.test_sortformer import probabilities

GOLDENS = json.loads((MODELS / "nemotron_diarization.json").read_text())
STEP = 211  # of the stored probabilities
ROUNDING = 2e-5  # of the stored numbers, and of another order of sums
RECORDINGS = tuple(map(sortformer.recording, nemotron_diarization.LENGTHS_S))


def as_a_whole(name: str) -> dict[str, Any]:
    """Return the settings with which a whole recording is read as transformers reads a stream."""
    settings = nemotron_diarization.config(name)
    if name == "streamed":
        stream = settings["streaming_config"]
        settings |= {key: stream[key] for key in ("fifo_length", "speaker_cache_update_period")}
    return settings


@pytest.fixture(params=nemotron_diarization.MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_probabilities_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = nemotron_diarization.write_folder(tmp_path, as_a_whole(name))
    for samples, expected in zip(RECORDINGS, GOLDENS[name], strict=True):
        [found] = probabilities(model, [samples])
        assert found.shape == (len(samples) // 160, nemotron_diarization.MODELS[name][3])
        shown = found.ravel()[::STEP]
        if name == "streamed":  # where transformers' own two ways differ: a stream ends without a frame of zeros
            shown = found[:-8].ravel()[::STEP]
        assert len(shown) >= len(expected) - 1
        np.testing.assert_allclose(shown, expected[: len(shown)], atol=ROUNDING)


def test_neighbours_in_a_batch_change_nothing(name: str, tmp_path: Path) -> None:
    """transformers' last 80 ms of a recording depend on whether a longer one is beside it; here they do not."""
    model = nemotron_diarization.write_folder(tmp_path, as_a_whole(name))
    recordings = [RECORDINGS[2][:100], *RECORDINGS, RECORDINGS[2][: 97 * 1280], RECORDINGS[2][: 8 * 1280 + 160]]
    together = probabilities(model, recordings)
    assert len(together[0]) == 0
    for samples, found in zip(recordings[1:], together[1:], strict=True):
        [alone] = probabilities(model, [samples])
        np.testing.assert_allclose(found, alone, atol=ROUNDING)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("audio_config", "hidden_act", "silu", "config.audio_config.hidden_act: 'silu' (supported: relu, gelu)"),
        ("audio_config", "num_key_value_heads", 2, "config.audio_config.num_key_value_heads: 2 (supported: 4, null)"),
        ("audio_config", "num_hidden_layers", 10**9, "encoder.num_layers"),
        ("audio_config", "rope_parameters", {"rope_type": "yarn"}, "rope_parameters.rope_type: 'yarn'"),
        ("audio_config", "qk_norm", True, "config.audio_config.qk_norm: True"),
        ("audio_config", "num_mel_bins", 80, "feature_extractor.feature_size: 128 (supported: 80)"),
        ("head_config", "audio_hidden_size", 64, "config.head_config.audio_hidden_size: 64 (supported: 32)"),
        ("streaming_config", "num_speakers", 4, "config.streaming_config.num_speakers: 4 (supported: 8)"),
        ("streaming_config", "speaker_cache_length", 15, "speaker_cache_length: 15 (supported: 16 to"),
        ("streaming_config", "weak_boost_rate", "much", "config.streaming_config.weak_boost_rate"),
    ],
)
def test_an_unsupported_setting_is_named(section: str, key: str, value: object, message: str, tmp_path: Path) -> None:
    settings = nemotron_diarization.config("cache")
    stated = settings | {section: settings[section] | {key: value}}
    nemotron_diarization.write_folder(tmp_path, settings, stated)
    with refusal(CheckpointError, message):
        read_speaker_model(tmp_path)


def test_the_right_context_is_shorter_than_a_chunk(tmp_path: Path) -> None:
    settings = nemotron_diarization.config("cache")
    nemotron_diarization.write_folder(tmp_path, settings, settings | {"chunk_right_context": 10})
    with pytest.raises(CheckpointError, match=r"config\.chunk_right_context: 10 \(supported: 0 to 9\)"):
        read_speaker_model(tmp_path)


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_weights_must_be_those_of_the_model(change: str, tmp_path: Path) -> None:
    nemotron_diarization.write_folder(tmp_path, nemotron_diarization.config("cache"))
    stored = load_file(str(tmp_path / "model.safetensors"))
    if change == "more":
        stored["model.audio_tower.layers.0.self_attn.q_proj.bias"] = torch.ones(32)
    else:
        del stored["silence_embeds"]
    save_file(stored, str(tmp_path / "model.safetensors"))
    with pytest.raises(CheckpointError, match=r"silence\.frame_D|q_proj\.bias"):
        probabilities(tmp_path, [RECORDINGS[0]])


def test_a_folder_given_as_the_model_is_named(tmp_path: Path) -> None:
    nemotron_diarization.write_folder(tmp_path, nemotron_diarization.config("cache"))
    with pytest.raises(SideModelGiven, match="give it to --speakers, beside a --model"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError):
        check_config(tmp_path, "org/name")
