"""Canary checkpoints against NeMo's results: prompts, tokens, text and word times."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli.describe import describe
from fastscribe.config import Options
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint, UsageError
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.text.transcript import Clock, timed_tokens, words_of
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Hypothesis
from tests.checkpoint.test_checkpoint import with_yaml
from tests.conftest import AUDIO, MODELS, checkpoint, golden, waveform
from tests.helpers.collate import batch_of
from tests.helpers.processes import fastscribe, refused

NAMES = ("canary", "canary2", "canary_unified", "canary_transf")
OPTIONS = {
    "default": Options(),
    "nopnc": Options(pnc=False),
    "translate": Options(target_language="de"),
    "timestamps": Options(timestamps=True),
}
CASES = [(name, setting) for name in NAMES for setting in OPTIONS if setting in golden(MODELS / name)["prompts"]]
every_case = pytest.mark.parametrize(("name", "setting"), CASES)


@cache
def canary(name: str, setting: str = "default") -> Recognizer:
    return Recognizer.build(checkpoint(MODELS / name), "cpu", "fp32", OPTIONS[setting], lambda line: None)


def batches_of(name: str, setting: str) -> list[list[str]]:
    """With the default prompt, all files, some of all lengths alone; with others half of them in batches."""
    names = list(golden(MODELS / name)["files"])
    if setting != "default":
        return [names[0::4], names[2::4]]
    alone = [*names[::14], "e01_50ms.flac", "e10_concat_45s.flac"]
    others = [file for file in names if file not in alone]
    return [*([file] for file in alone), *(others[first::3] for first in range(3))]


@cache
def found(name: str, setting: str) -> dict:
    """Return the hypothesis of each file."""
    rows = {}
    for chunk in batches_of(name, setting):
        batch = batch_of([waveform(AUDIO / file) for file in chunk])
        rows.update(zip(chunk, canary(name, setting).transcribe(batch), strict=True))
    return rows


@every_case
def test_prompts_equal_nemo(name: str, setting: str) -> None:
    expected = golden(MODELS / name)["prompts"][setting]["ids"]
    assert list(canary(name, setting).decoder.prompt.ids) == expected  # type: ignore[attr-defined]


@every_case
def test_tokens_and_text_equal_nemo(name: str, setting: str) -> None:
    """Every prompt in batches of mixed lengths; also one recording at a time with the default prompt."""
    tokenizer, times = checkpoint(MODELS / name).tokenizer, canary(name, setting).decoder.prompt.frames_by_id  # type: ignore[attr-defined]
    for file, hypothesis in found(name, setting).items():
        expected = golden(MODELS / name)["files"][file][setting]
        if times and expected["words"]:
            words = words_of(timed_tokens(hypothesis, tokenizer, Clock(0.0, float("inf"), 1.0), frozenset()), tokenizer)
            spoken = [word for entry in expected["words"] for word in entry["word"].split()]
            assert [word.text for word in words] == spoken, file
        else:
            assert list(hypothesis.token_ids) == expected["tokens"], file
            assert tokenizer.sentence(hypothesis.token_ids) == expected["text"].lstrip(" "), file


def test_word_times_equal_nemo() -> None:
    tokenizer, compared = checkpoint(MODELS / "canary2").tokenizer, 0
    for file, hypothesis in found("canary2", "timestamps").items():
        expected = golden(MODELS / "canary2")["files"][file]["timestamps"]["words"]
        if not expected or any(" " in entry["word"] for entry in expected):
            continue
        words = words_of(timed_tokens(hypothesis, tokenizer, Clock(0.0, float("inf"), 1.0), frozenset()), tokenizer)
        pairs = [(entry["start_offset"], max(entry["start_offset"], entry["end_offset"])) for entry in expected]
        assert [(word.start_s, word.end_s) for word in words] == pairs, file
        compared += len(words)
    assert compared > 100


def test_times_that_a_model_could_write_are_named() -> None:
    lines: list[str] = []
    Recognizer.build(checkpoint(MODELS / "canary2"), "cpu", "fp32", Options(), lines.append)
    assert "--timestamps has it write them" in lines[0]


@pytest.mark.parametrize("name", NAMES)
def test_facts(name: str) -> None:
    facts = describe(checkpoint(MODELS / name))
    assert facts["family"] == "aed" and facts["decoders"] == ["aed"]
    assert facts["prompt"] in ("canary", "canary2") and facts["max_tokens"] > 1
    assert facts["decoder"].endswith("Transformer")


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("prompt_format", "gemma", "prompt_format"),
        ("transf_decoder__config_dict__hidden_act", "tanh", "hidden_act"),
        ("transf_decoder__config_dict__num_attention_heads", 5, "transformer width"),
        ("transf_decoder__config_dict__num_layers", 10**9, "transformer.num_layers"),
        ("transf_decoder__config_dict__max_sequence_length", 0, "max_sequence_length"),
        ("transf_decoder__config_dict__a_new_switch", True, "a_new_switch"),
        ("head__num_layers", 2, "head.num_layers"),
        ("decoding__strategy", "dance", "decoding.strategy"),
        ("decoding__beam__max_generation_delta", "many", "max_generation_delta"),
        ("tokenizer__langs__en__type", "wpe", "tokenizer.langs.en.type"),
    ],
)
def test_unsupported_settings(tmp_path: Path, key: str, value: object, named: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=named):
        read_checkpoint(with_yaml(tmp_path, MODELS / "canary" / "model.nemo", **{key: value}))


def test_command_line(tmp_path: Path) -> None:
    given = ("transcribe", AUDIO / "01_0_00010.flac", "--dtype", "fp32", "--model")
    done = fastscribe(*given, MODELS / "canary2" / "model.nemo", "--no-pnc", "--language", "en")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"].startswith("at rice stadium a very large")
    assert "--timestamps has it write them" in done.stderr
    assert "--target-language de: this model does not translate; Canary models do" in refused(
        *given, MODELS / "tdt_demo" / "model.nemo", "--target-language", "de"
    )


@pytest.mark.parametrize("number", [0, 65, 2_000])
def test_max_languages(tmp_path: Path, number: int) -> None:
    langs = {str(index): {"type": "bpe", "model_path": "none"} for index in range(number)}
    with pytest.raises(CheckpointError):
        read_checkpoint(with_yaml(tmp_path, MODELS / "canary" / "model.nemo", tokenizer__langs=langs))


def test_prompt_too_long(tmp_path: Path) -> None:
    found = checkpoint(MODELS / "canary2")
    assert found.config.aed is not None
    weights = {**found.weights, "aed.positions.weight": found.weights["aed.positions.weight"][:8]}
    config = replace(found.config, aed=replace(found.config.aed, max_tokens=8))
    with pytest.raises(UsageError, match="prompt has 9 tokens, but its decoder 8 places"):
        Recognizer.build(replace(found, config=config, weights=weights))


@pytest.mark.parametrize("name", NAMES)
def test_short_recordings_equal_nemo(name: str, tmp_path: Path) -> None:
    """Below a second they lie in the middle of silence, as in NeMo's loader, and their words keep the recording's times."""
    expected = golden(MODELS / "canary_short")
    wave, paths = waveform(AUDIO / expected["recording"])[expected["start"] :], []
    for length in expected["texts"][name]:
        paths.append(tmp_path / f"{length}.wav")
        sf.write(paths[-1], wave[: int(length)], 16000)
    transcriber = Transcriber.load(MODELS / name / "model.nemo", "cpu", "fp32", say=lambda line: None)
    for result in transcriber.transcribe(map(str, paths)):
        assert not isinstance(result, Failure)
        length = Path(result.audio.path).stem
        assert result.text == expected["texts"][name][length].strip(), length
        assert result.audio.duration_s == int(length) / 16000
        assert all(0 <= word.start_s <= word.end_s < int(length) / 16000 + 0.08 for word in result.words)


def test_empty_recording() -> None:
    for name in NAMES:
        waves = [np.zeros(1, np.float32), waveform(AUDIO / "01_0_00010.flac")]
        found = canary(name).transcribe(batch_of(waves))
        assert found[0] == Hypothesis() and found[1].token_ids
