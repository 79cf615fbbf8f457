"""Granite Speech 5.0 TurboCTC: equal to transformers 5.23.0 in any batch, in every form, and through the whole program."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fastscribe.checkpoint import huggingface, native_writer
from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.config import Options
from fastscribe.errors import UnsupportedCheckpoint, UsageError
from fastscribe.families.blocks.int8 import int8_problem
from fastscribe.families.conformer.gpu_operations import find_wrong_operation
from fastscribe.families.conformer.operations import TORCH
from fastscribe.families.granite import huggingface as hf_granite
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.families.granite.encoder import GraniteEncoder
from fastscribe.families.granite.fused_layers import fuse_
from fastscribe.families.model import optimise_
from fastscribe.families.parameter_shapes import parameter_shapes
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.text.tokenizer import piece_of_bytes
from fastscribe.transcriber import Transcriber
from fastscribe.types import Features, Hypothesis
from scripts.shapes import SHAPES
from tests.conftest import AUDIO, MODELS, golden, refusal, waveform
from tests.families.conformer.test_fused_layers import difference
from tests.helpers.collate import batch_of
from tests.helpers.granite_folder import (
    PROCESSOR_CONFIG,
    PUBLISHED_CONFIG,
    TOKENIZERS,
    byte_level,
    num_parameters,
    shapes,
    write_folder,
)

FRAME = 1280  # samples of an output frame
KINDS = tuple(TOKENIZERS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("granite")
    for kind in KINDS:
        write_folder(root / kind, kind)
    return {kind: root / kind for kind in KINDS}


@cache
def reference(kind: str) -> dict[str, dict]:
    return golden(MODELS / "granite")["models"][kind]


def wave_of(name: str) -> np.ndarray:
    """A recording, or the beginning of one that the golden's name describes."""
    if (AUDIO / name).exists():
        return waveform(AUDIO / name)
    longest = waveform(AUDIO / "e10_concat_45s.flac")
    if name == "odd mels":
        return longest[: 333 * 160]
    return longest[: int(name.split()[0]) * FRAME - name.endswith("less a sample")]


def runs(argmax: list[int]) -> list[tuple[int, int, int]]:
    """Return token (the blank, 0, moves to the end), first frame and number of frames of each run of a label."""
    found, frame = [], 0
    for label, run in itertools.groupby(argmax):
        length = len(list(run))
        if label:
            found.append((label - 1, frame, length))
        frame += length
    return found


def check(loaded: Checkpoint, hypothesis: Hypothesis, expected: dict) -> None:
    found = zip(hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations, strict=True)
    assert list(found) == runs(expected["argmax"])
    assert loaded.tokenizer.sentence(hypothesis.token_ids) == expected["text"].lstrip(" ")


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "beside others"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_times_and_text_equal_transformers(folders: dict[str, Path], kind: str, together: bool) -> None:
    """Lengths around the borders of blocks, odd numbers of frames, silence and noise, alone and padded, some to 45 s."""
    loaded, names = read_checkpoint(folders[kind]), list(reference(kind))
    model = Recognizer.build(loaded, "cpu", "fp32")
    others = [name for name in names if name != "e10_concat_45s.flac"]
    padded = ["e10_concat_45s.flac", *others[::5]]
    for chunk in [padded, [name for name in names if name not in padded]] if together else [[name] for name in names]:
        for name, hypothesis in zip(chunk, model.transcribe(batch_of([wave_of(name) for name in chunk])), strict=True):
            check(loaded, hypothesis, reference(kind)[name])


def test_recordings_shorter_than_a_frame(folders: dict[str, Path]) -> None:
    """transformers fails for some of them; here they have no text and change no neighbour."""
    loaded = read_checkpoint(folders["turboctc"])
    model = Recognizer.build(loaded, "cpu", "fp32")
    speech = wave_of("33 frames").astype(np.float32) / 32768
    for num_samples in (1, 159, 160, 161, 256, 257, 1119, FRAME - 161):
        short = np.ones(num_samples, np.float32)
        [alone] = model.transcribe(batch_of([short]))
        beside, neighbour = model.transcribe(batch_of([short, speech]))
        assert alone.token_ids == beside.token_ids == (), num_samples
        check(loaded, neighbour, reference("turboctc")["33 frames"])


def test_long_recording_through_the_program(folders: dict[str, Path]) -> None:
    path, options = str(AUDIO / "e10_concat_45s.flac"), Options(max_utterance_s=0)
    [whole] = Transcriber.load(folders["turboctc"], device="cpu", dtype="fp32", options=options).transcribe([path])
    expected, tokenizer = reference("turboctc")["e10_concat_45s.flac"], read_checkpoint(folders["turboctc"]).tokenizer
    assert whole.text == expected["text"].strip()
    assert [word.text for word in whole.words] == expected["text"].split()
    letters = (frame for token, frame, _ in runs(expected["argmax"]) if tokenizer.text([token]).isalpha())
    assert whole.words[0].start_s == pytest.approx(0.08 * (next(letters) - 1))  # a frame before its first letter


def test_a_large_batch_makes_its_logits_in_parts(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.families.blocks.heads.MAX_LOGITS", 1000)
    loaded, name = read_checkpoint(folders["turboctc"]), "e10_concat_45s.flac"
    waves = [wave_of("33 frames"), wave_of(name)]
    _, hypothesis = Recognizer.build(loaded, "cpu", "fp32").transcribe(batch_of(waves))
    check(loaded, hypothesis, reference("turboctc")[name])


def test_own_format_keeps_everything(folders: dict[str, Path], tmp_path: Path) -> None:
    for kind in KINDS:
        loaded = read_checkpoint(folders[kind])
        native_writer.write(loaded, tmp_path / kind, torch.float32)
        again = read_checkpoint(tmp_path / kind)
        assert (again.config, again.tokenizer) == (loaded.config, loaded.tokenizer)
        [hypothesis] = Recognizer.build(again, "cpu", "fp32").transcribe(batch_of([wave_of("e10_concat_45s.flac")]))
        check(again, hypothesis, reference(kind)["e10_concat_45s.flac"])


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_other_dtypes_are_near(folders: dict[str, Path], dtype: str) -> None:
    """Labels of a random model are nearer to each other than those of a trained one."""
    if dtype == "int8" and (problem := int8_problem()):
        pytest.skip(problem)
    loaded, wave = read_checkpoint(folders["turboctc"]), wave_of("e10_concat_45s.flac")
    exact, other = (Recognizer.build(loaded, "cpu", name) for name in ("fp32", dtype))
    frames, near = (
        model.encode(model.features(*model.upload(batch_of([wave])))).frames_BTD for model in (exact, other)
    )
    assert float((near.float() - frames).abs().mean()) < 0.15 * float(frames.abs().mean())
    assert not torch.equal(near.float(), frames)


# --- forms ----------------------------------------------------------------------------------------------------------

VARIANTS = (
    {},
    {"block": 5, "max_distance": 5},
    {"block": 16, "max_distance": 40, "strided_layers": ()},
    {"block": 7, "max_distance": 9, "strided_layers": (1, 3), "use_bias": False},
    {"num_layers": 1, "strided_layers": (0,), "block": 4, "max_distance": 4},
    {"num_layers": 5, "strided_layers": (0, 2, 4), "conv_kernel": 3, "conv_width": 20},
    {"block": 130, "max_distance": 200, "strided_layers": (), "num_heads": 4},
)


def small(**changes) -> GraniteConfig:
    config = SHAPES["tiny-granite"].encoder
    assert isinstance(config, GraniteConfig)
    sizes = {"num_mels": 12, "d_model": 32, "ff_hidden": 40, "conv_width": 24, "num_tokens": 9}
    return replace(config, **(sizes | changes))


def random_encoder(config: GraniteConfig) -> GraniteEncoder:
    torch.manual_seed(3)
    encoder = GraniteEncoder(config).eval().requires_grad_(False)
    for module in encoder.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(std=0.3)
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2.0)
    encoder.body.conditioning.outer.weight.mul_(8)
    return encoder


def ragged(num_mels: int = 12) -> Features:
    """Lengths that end in a block's first, last and middle frame."""
    torch.manual_seed(1)
    lengths_B = torch.tensor([602, 601, 512, 514, 41, 2, 0])
    mel_BMT = torch.randn(7, num_mels, 602)
    return Features(mel_BMT.masked_fill(torch.arange(602) >= lengths_B[:, None, None], 0.0), lengths_B)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_inference_forms_equal_the_plain_one(changes: dict) -> None:
    plain = random_encoder(small(**changes))
    optimised = copy.deepcopy(plain)
    optimise_(optimised)
    assert difference(plain, optimised, ragged()) < 2e-5
    for_gpu = copy.deepcopy(optimised)
    fuse_(for_gpu, TORCH)
    assert difference(plain, for_gpu, ragged()) < 2e-5
    for form in (plain, for_gpu):
        short = form(Features(torch.randn(2, 12, 1), torch.tensor([1, 0])))
        assert short.lengths_B.tolist() == [form.config.num_frames(1), 0] and short.frames_BTD.isfinite().all()
    for_gpu.to("meta")  # its tensors have no values, so code that runs on them never waits for one
    num_frames = 602 if changes.get("block", 128) > 100 else 82  # blocks that are full and not
    features = Features(torch.empty(3, 12, num_frames, device="meta"), torch.empty(3, dtype=torch.int64, device="meta"))
    assert for_gpu(features).frames_BTD.shape == (3, for_gpu.num_frames(num_frames), 32)


def test_the_cases_that_choose_kernels_fit_the_model() -> None:
    assert find_wrong_operation(TORCH, small(), torch.float32, torch.device("cpu"), adds_products=True) is None


# --- what is published ----------------------------------------------------------------------------------------------


def read_published(changes: dict | None = None, extractor: dict | None = None, tmp_path: Path | None = None):
    assert tmp_path is not None
    whole = json.loads(json.dumps(PUBLISHED_CONFIG | (changes or {}).get("", {})))
    whole["encoder_config"] |= {key: value for key, value in (changes or {}).items() if key}
    processor = json.loads(json.dumps(PROCESSOR_CONFIG))
    processor["feature_extractor"] |= extractor or {}
    (tmp_path / "processor_config.json").write_text(json.dumps(processor))
    # The published folders hold another file of an older packaging beside it.
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"stack_factor": 2, "deltas": True}))
    return huggingface.read_config(tmp_path, whole, tmp_path)


def test_published_configuration(tmp_path: Path) -> None:
    """550 tensors in 473 million parameters, as published, have the names and shapes of the model here."""
    found = read_published(tmp_path=tmp_path)
    assert found == SHAPES["granite-speech-5.0-470m-turboctc"]
    assert (found.decoders, found.frame_s, found.num_labels) == (("ctc",), 0.08, 16383)
    stored = shapes(PUBLISHED_CONFIG)
    assert len(stored) == 550 and round(num_parameters(PUBLISHED_CONFIG) / 1e6) == 473
    sources = {name: TensorSource("bfloat16", shape, lambda: torch.empty(0)) for name, shape in stored.items()}
    ours = hf_granite.add_missing_weights(hf_granite.our_names(sources, found))
    prefixed = {f"model.{name}": source for name, source in sources.items()}
    assert hf_granite.our_names(prefixed, found).keys() == hf_granite.our_names(sources, found).keys()
    assert {name: source.shape for name, source in ours.items()} == parameter_shapes(found)


@pytest.mark.parametrize(
    ("changes", "extractor", "named"),
    [
        ({"": {"pad_token_id": 5}}, {}, "config.pad_token_id: 5"),
        ({"vocab_size": 100}, {}, "encoder_config.vocab_size: 100"),
        ({"hidden_act": "relu"}, {}, "encoder_config.hidden_act: 'relu'"),
        ({"num_key_value_heads": 2}, {}, "encoder_config.num_key_value_heads: 2"),
        ({"head_dim": 64}, {}, "encoder_config.head_dim: 64"),
        ({"subsample_layers": [16]}, {}, "encoder_config.subsample_layers: [16]"),
        ({"subsample_layers": list(range(16))}, {}, "encoder.stride: 131072"),
        ({"context_size": 513}, {}, "encoder.block: 513 (supported: up to 512"),
        ({"conv_kernel_size": 8}, {}, "encoder.conv_kernel: 8"),
        ({"rotary": True}, {}, "encoder_config.rotary: True"),
        ({}, {"delta_win_length": 5}, "feature_extractor.delta_win_length: 5"),
        ({}, {"feature_size": 160}, "feature_extractor.feature_size: 160"),
        ({}, {"feature_extractor_type": "Whisper"}, "feature_extractor.feature_extractor_type: 'Whisper'"),
        ({}, {"logmel_floor_db": None}, "feature_extractor.logmel_floor_db: None"),
    ],
)
def test_unsupported_settings(changes: dict, extractor: dict, named: str, tmp_path: Path) -> None:
    with refusal(UnsupportedCheckpoint, named):
        read_published(changes, extractor, tmp_path)


def test_head_that_is_not_tied(tmp_path: Path) -> None:
    """A folder may store the head; then it, and not the conditioning's layer, decides the labels."""
    from safetensors.torch import load_file, save_file

    write_folder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights |= {"ctc_head.weight": -weights["encoder.out.weight"], "ctc_head.bias": weights["encoder.out.bias"].flip(0)}
    save_file(weights, tmp_path / "model.safetensors")
    model = Recognizer.build(read_checkpoint(tmp_path), "cpu", "fp32").model
    assert torch.equal(model.ctc.output.bias, weights["ctc_head.bias"].roll(-1))


@pytest.mark.parametrize(
    ("content", "piece"),
    [(b" dog", "▁dog"), (b"  ", "▁▁"), ("é".encode(), "é"), (b"\xc3", "<0xC3>"), (b" \xe6\xbc", "▁<0xE6><0xBC>")],
)
def test_pieces_of_bytes(content: bytes, piece: str) -> None:
    assert piece_of_bytes(byte_level(content)) == piece


def test_options(folders: dict[str, Path]) -> None:
    loaded = read_checkpoint(folders["turboctc"])
    for options, message in (
        (Options(attention="full"), "attends in blocks:128, which is fixed"),
        (Options(beam=4), "not ctc ones"),
        (Options(decoder="tdt"), "this checkpoint has ctc"),
    ):
        with pytest.raises(UsageError, match=message):
            Recognizer.build(loaded, "cpu", "fp32", options)
