"""Cohere Transcribe: tokens and text equal transformers 5.24.0 in any batch, and its folder is read in every form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastscribe.checkpoint import huggingface, native_writer
from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import ModelConfig, Options
from fastscribe.decode.prompt import make_prompt
from fastscribe.errors import UnsupportedCheckpoint, UsageError
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.parameter_shapes import parameter_shapes
from fastscribe.families.registry import reader_of
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.text.transcript import assemble
from fastscribe.transcriber import Transcriber
from scripts.shapes import SHAPES
from tests.conftest import AUDIO, MODELS, golden, waveform
from tests.helpers.cohere_folder import (
    FORMS,
    FRONT_END,
    PROCESSOR_CONFIG,
    PUBLISHED_CONFIG,
    SAVED_CONFIG,
    Form,
    saved_name,
    shapes,
    small_config,
    write_folder,
)
from tests.helpers.collate import batch_of

PROMPTS = {"en": Options(), "de": Options(language="de"), "en without punctuation": Options(pnc=False)}
GOLDEN = golden(MODELS / "cohere")
EXPECTED = GOLDEN["prompts"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cohere") / "model"
    write_folder(path)
    return path


@pytest.mark.parametrize("prompt", PROMPTS)
def test_tokens_and_text_equal_transformers(folder: Path, prompt: str) -> None:
    """All at once; half of them also one by one, the other half with another prompt."""
    loaded, expected = read_checkpoint(folder), EXPECTED[prompt]
    model = Recognizer.build(loaded, "cpu", "fp32", PROMPTS[prompt], lambda line: None)
    for chunk in [list(expected), *([name] for name in list(expected)[prompt == "de" :: 2])]:
        batch = batch_of([waveform(AUDIO / name) for name in chunk])
        for name, utterance, hypothesis in zip(chunk, batch.utterances, model.transcribe(batch), strict=True):
            assert (name, list(hypothesis.token_ids)) == (name, expected[name]["ids"])
            transcript = assemble(utterance.audio, [(utterance, hypothesis)], loaded.tokenizer, 0.08, False)
            assert transcript.text == expected[name]["text"].strip()


def test_prompts(folder: Path) -> None:
    loaded = read_checkpoint(folder)
    for prompt, options in PROMPTS.items():
        expected = next(iter(EXPECTED[prompt].values()))["prompt"]
        assert list(make_prompt("cohere", loaded.tokenizer, options, 48).ids) == expected
    with pytest.raises(UsageError, match="--target-language en: this model does not translate"):
        make_prompt("cohere", loaded.tokenizer, Options(language="de", target_language="en"), 48)
    with pytest.raises(UsageError, match="--timestamps: this checkpoint does not write times"):
        make_prompt("cohere", loaded.tokenizer, Options(timestamps=True), 48)


def test_dither_depends_on_the_length_alone(folder: Path) -> None:
    config = read_checkpoint(folder).config.features
    samples_BS, lengths_B = torch.zeros(3, 9000), torch.tensor([9000, 4000, 4000])
    mel_BMT = LogMel(config)(samples_BS, lengths_B).mel_BMT
    alone_MT = LogMel(config)(samples_BS[1:2, :4000], lengths_B[1:2]).mel_BMT[0]
    assert torch.equal(mel_BMT[1], mel_BMT[2]) and torch.equal(mel_BMT[1, :, : alone_MT.shape[1]], alone_MT)
    without_BMT = LogMel(replace(config, dither=0.0))(samples_BS, lengths_B).mel_BMT
    assert float((mel_BMT - without_BMT).abs().max()) > 1 and not samples_BS.any()


def test_own_format_and_the_whole_program(folder: Path, tmp_path: Path) -> None:
    native_writer.write(read_checkpoint(folder), tmp_path, torch.float32)
    name, entry = "16_1_00308.flac", EXPECTED["de"]["16_1_00308.flac"]
    for path in (folder, tmp_path):
        transcriber = Transcriber.load(path, "cpu", "fp32", Options(language="de"), lambda line: None)
        [result] = transcriber.transcribe([str(AUDIO / name)])
        assert result.text == entry["text"].strip()


# --- the forms of a folder ------------------------------------------------------------------------------------------


def test_names_that_transformers_saves() -> None:
    assert sorted(map(saved_name, shapes(small_config()))) == GOLDEN["saved_names"]


@pytest.mark.parametrize("form", FORMS[1:])
def test_forms_are_the_same_model(folder: Path, form: Form, tmp_path: Path) -> None:
    write_folder(tmp_path, form=form)
    found, expected = read_checkpoint(tmp_path), read_checkpoint(folder)
    assert (found.config, found.tokenizer.pieces) == (expected.config, expected.tokenizer.pieces)
    assert set(found.weights) == set(expected.weights)
    assert all(torch.equal(found.weights[name], tensor) for name, tensor in expected.weights.items())


def test_published_form_may_store_its_tied_weights_once(tmp_path: Path) -> None:
    write_folder(tmp_path, form="published")
    stored = load_file(tmp_path / "model.safetensors")
    embedding = stored["transf_decoder._embedding.token_embedding.weight"]
    del stored["log_softmax.mlp.layer0.weight"]
    save_file(stored, tmp_path / "model.safetensors")
    assert torch.equal(read_checkpoint(tmp_path).weights["aed.head.weight"], embedding)


def test_keys_of_other_programs_front_ends_change_nothing(tmp_path: Path) -> None:
    """transformers keeps the keys of the published config.json beside its own when it saves that model."""
    others = PUBLISHED_CONFIG | {"head": {"other": 1}, "encoder": {"other": 1}}
    assert read_config(tmp_path, others | SAVED_CONFIG, {}, {}) == read_config(tmp_path, {}, {}, {})
    assert read_config(tmp_path, FRONT_END | {"max_audio_clip_s": 20}, {}, {}).max_utterance_s == 35.0


def test_a_clip_s_length_is_the_config_s_if_the_extractor_states_none(tmp_path: Path) -> None:
    write_folder(tmp_path, form="published")
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_audio_clip_s": 20}
    assert huggingface.read_config(tmp_path, config, tmp_path).max_utterance_s == 20.0


@pytest.mark.parametrize(
    ("section", "changes", "named"),
    [
        ("encoder", {"self_attention_model": "other"}, r"config\.encoder\.self_attention_model: 'other'"),
        ("transf_decoder", {"config_dict": {"num_layers": 0}}, r"config\.transf_decoder\.config_dict\.num_layers: 0"),
        ("transf_encoder", {"num_layers": 2}, r"config\.transf_encoder\.num_layers: 2"),
        ("head", {"num_classes": "None"}, r"config\.head\.num_classes: 'None'"),
    ],
)
def test_unsupported_settings_of_the_published_form(section: str, changes: dict, named: str, tmp_path: Path) -> None:
    config = write_folder(tmp_path, form="published")
    with pytest.raises(UnsupportedCheckpoint, match=named):
        huggingface.read_config(tmp_path, config | {section: config[section] | changes}, tmp_path)


# --- what is published ----------------------------------------------------------------------------------------------


def read_config(folder: Path, changes: dict, encoder: dict, extractor: dict) -> ModelConfig:
    whole = json.loads(json.dumps(SAVED_CONFIG)) | changes
    whole["encoder_config"] |= encoder
    processor = {"feature_extractor": PROCESSOR_CONFIG["feature_extractor"] | extractor}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return huggingface.read_config(folder, whole, folder)


def test_published_configuration(tmp_path: Path) -> None:
    found = read_config(tmp_path, {}, {}, {})
    sources = {
        name: TensorSource("bfloat16", shape, lambda: torch.empty(0)) for name, shape in shapes(SAVED_CONFIG).items()
    }
    assert {n: s.shape for n, s in reader_of("cohere_asr").our_names(sources, found).items()} == parameter_shapes(found)
    assert (found.decoders, found.max_utterance_s, found.features.dither) == (("aed",), 35.0, 1e-5)
    assert found.encoder == SHAPES["cohere-transcribe-03-2026"].encoder
    assert found.aed.decoder == SHAPES["cohere-transcribe-03-2026"].aed.decoder
    without_sizes = json.loads(json.dumps(SAVED_CONFIG))
    without_sizes["encoder_config"] = {"model_type": "parakeet_encoder"}
    assert huggingface.read_config(tmp_path, without_sizes, tmp_path) == found


@pytest.mark.parametrize(
    ("changes", "encoder", "extractor", "named"),
    [
        ({"tie_word_embeddings": True}, {}, {}, r"config\.tie_word_embeddings: True"),
        ({"hidden_size": 1280, "head_dim": 160}, {}, {}, r"config\.hidden_size: 1280"),
        ({"hidden_act": "gelu"}, {}, {}, r"config\.hidden_act: 'gelu'"),
        ({"vocabulary": "other"}, {}, {}, r"config\.vocabulary: 'other'"),
        ({}, {"hidden_act": "relu"}, {}, r"encoder_config\.hidden_act: 'relu'"),
        ({}, {}, {"dither": 2.0}, r"features\.dither: 2\.0"),
        ({}, {}, {"feature_size": 80}, r"feature_extractor\.feature_size: 80"),
    ],
)
def test_unsupported_settings(changes: dict, encoder: dict, extractor: dict, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=named):
        read_config(tmp_path, changes, encoder, extractor)


def test_end_token_of_another_vocabulary(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": 5}
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.eos_token_id: 5.*endoftext"):
        huggingface.read(folder, config)


def test_silence_of_no_samples(folder: Path) -> None:
    model = Recognizer.build(read_checkpoint(folder), "cpu", "fp32", Options(), lambda line: None)
    assert model.transcribe(batch_of([np.zeros(100, np.int16)]))[0].token_ids == ()
