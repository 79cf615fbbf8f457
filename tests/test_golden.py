"""Features, encoder frames, tokens, times and text equal those of NeMo 3.0.0 and transformers 5.23.0, in fp32.

tests/data holds the published set. A larger one on real recordings may lie beside the checkout; it is tested where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import LocalAttention, Options
from fastscribe.decode.cpu_looping import CpuLooping
from fastscribe.errors import UsageError
from fastscribe.families.blocks.int8 import int8_problem
from fastscribe.families.conformer.cpu_layers import CpuLayers
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.pipeline.model_building import with_attention
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.text.transcript import assemble, segments_of, words_of
from fastscribe.types import AudioInfo, Frames, Hypothesis, Transcript, Utterance
from tests.conftest import (
    AUDIO,
    CONVOLUTIONAL_NAMES,
    DATA,
    MODEL_NAMES,
    MODELS,
    PUBLISHED_NAMES,
    SHARED,
    checkpoint,
    golden,
    recognizer,
    waveform,
)
from tests.helpers.collate import batch_of
from tests.helpers.streaming_folder import write_folder

REAL = SHARED / "golden" / "real"
REAL_NAMES = ("tdt", "rnnt", "ctc", "hybrid_tdt_ctc", "hf_tdt", "hf_rnnt", "hf_ctc")
# All zeros: its features are rounding noise over the floor of the deviation.
EXEMPT = {"16_silence_3s.wav"}

PUBLISHED = [MODELS / "published" / name for name in PUBLISHED_NAMES]
FOLDERS = [*(MODELS / name for name in MODEL_NAMES), *PUBLISHED] + [
    pytest.param(REAL / name, marks=pytest.mark.skipif(not REAL.exists(), reason="no goldens beside the checkout"))
    for name in REAL_NAMES
]


def folder_of(param: Any) -> Path:
    return param if isinstance(param, Path) else param.values[0]


golden_folders = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def audio_folder(folder: Path) -> Path:
    return AUDIO if folder.is_relative_to(DATA) else REAL / "audio"


@cache
def names_of(folder: Path) -> list[str]:
    """The shortest recording first."""
    names = [name for name in golden(folder)["files"] if name not in EXEMPT]
    return sorted(names, key=lambda name: len(waveform(audio_folder(folder) / name)))


def is_small(folder: Path) -> bool:
    return len(names_of(folder)) < 8


def names_alone(folder: Path) -> list[str]:
    """All recordings of a small set; else some of all lengths."""
    names = names_of(folder)
    return names if is_small(folder) else [*names[:-1:5], *names[-1:] * has_longest_alone(folder)]


def batches_of(folder: Path) -> list[list[str]]:
    """All recordings of a small set; else those that are not alone, and longer ones apart, so that little is padding."""
    names = names_of(folder)
    if is_small(folder):
        return [names]
    others = [name for name in names[:-1] if name not in names_alone(folder)]
    return [others[:-4], [others[0], *others[-4:]]]


def has_longest_alone(folder: Path) -> bool:
    """Else the layers of wide encoders have it: it takes as long as all others together, whatever the weights are."""
    return folder.parent == MODELS and folder.name in ("tdt_demo", "hybrid", *CONVOLUTIONAL_NAMES)


def encoded(model: Recognizer, folder: Path, names: list[str]) -> Frames:
    batch = batch_of([waveform(audio_folder(folder) / name) for name in names])
    return model.encode(model.features(*model.upload(batch)))


@cache
def encoded_once(folder: Path, *names: str) -> Frames:
    return encoded(recognizer(folder, checkpoint(folder).config.decoders[0]), folder, list(names))


def frames_of(folder: Path, name: str) -> torch.Tensor:
    """Those of the recording alone, or of its batch."""
    names = [name] if name in names_alone(folder) else next(batch for batch in batches_of(folder) if name in batch)
    frames, row = encoded_once(folder, *names), names.index(name)
    return frames.frames_BTD[row, : frames.lengths_B[row]]


def check_every_decoder(
    folder: Path, names: list[str], frames: Frames | None = None, build: Callable[[Path, str], Any] = recognizer
) -> None:
    """Compare what each decoder of the checkpoint makes of the same frames."""
    for decoder in checkpoint(folder).config.decoders:
        model = build(folder, decoder)
        frames = frames or encoded(model, folder, names)
        hypotheses = model.read(model.submit(frames).cpu().numpy(), frames)
        for name, hypothesis in zip(names, hypotheses, strict=True):
            compare(folder, name, hypothesis, decoder)


def transcript_of(folder: Path, hypothesis: Hypothesis, decoder: str) -> Transcript:
    loaded = checkpoint(folder)
    audio = AudioInfo("a.wav", "a.wav", 16000, 1, 1 << 40)  # so long that no time is cut at its end: NeMo's are not
    whole = Utterance(audio, 0, audio.num_samples)
    parts = [(whole, hypothesis)]
    return assemble(whole.audio, parts, loaded.tokenizer, loaded.config.frame_s, decoder == "tdt")


def merged(argmax: list[int], blank: int) -> list[int]:
    return [label for i, label in enumerate(argmax) if label != blank and (i == 0 or argmax[i - 1] != label)]


def expected_ids(reference: dict, blank: int, is_ctc: bool) -> list[int]:
    if "sequences_with_blanks" in reference:
        return [label for label in reference["sequences_with_blanks"] if label != blank]
    if "argmax" in reference:
        return merged(reference["argmax"], blank)
    return merged(reference["tokens"], blank) if is_ctc else reference["tokens"]


def without_outer_spaces(reference: dict) -> dict:
    """Strip NeMo's texts of an aggregate tokenizer, which keep a leading space; segments have one more per word."""
    words = [word | {"word": word["word"].removeprefix(" ")} for word in reference["word"]]
    segments = [segment | {"segment": " ".join(segment["segment"].split())} for segment in reference["segment"]]
    return reference | {"text": reference["text"].lstrip(" "), "word": words, "segment": segments}


def offsets(items, frame_s: float) -> list[tuple[str, int, int]]:
    return [(item.text, round(item.start_s / frame_s), round(item.end_s / frame_s)) for item in items]


def compare(folder: Path, name: str, hypothesis: Hypothesis, decoder: str) -> None:
    entry = golden(folder)["files"][name]
    is_aux_ctc = decoder == "ctc" and checkpoint(folder).config.decoders != ("ctc",)
    reference = (entry.get("ctc") or entry.get("ctc_greedy")) if is_aux_ctc else entry.get("greedy", entry)
    if checkpoint(folder).tokenizer.kind == "aggregate":
        reference = without_outer_spaces(reference)
    config = checkpoint(folder).config
    assert list(hypothesis.token_ids) == expected_ids(reference, config.blank_id, decoder == "ctc")
    result = transcript_of(folder, hypothesis, decoder)
    assert result.text == reference["text"]
    if decoder == "ctc":
        if folder in PUBLISHED:  # the times differ on purpose (decode/ctc.py)
            assert [word.text for word in result.words] == [word["word"] for word in reference["word"]]
        elif folder.name in CONVOLUTIONAL_NAMES:
            assert list(hypothesis.token_frames) == reference["token_frames"]
        return
    stamps = reference.get("timestamp") or {}
    if frames := reference.get("token_frames") or (stamps.get("timestep") if isinstance(stamps, dict) else stamps):
        assert list(hypothesis.token_frames) == frames
    if decoder == "tdt" and (durations := reference.get("token_durations") or reference.get("token_duration")):
        assert list(hypothesis.token_durations) == durations
    words = reference.get("word") or (stamps.get("word") if isinstance(stamps, dict) else None)
    if words:
        segments = reference.get("segment") or stamps["segment"]
        key = ("start_offset", "end_offset")
        spoken = words_of(result.tokens, checkpoint(folder).tokenizer)  # the transcript leaves out words without text
        assert offsets(spoken, config.frame_s) == [(w["word"], *(w[k] for k in key)) for w in words]
        assert offsets(segments_of(spoken), config.frame_s) == [(s["segment"], *(s[k] for k in key)) for s in segments]


@golden_folders
def test_tokens_times_and_text_equal_reference(folder: Path) -> None:
    for name in names_alone(folder):
        check_every_decoder(folder, [name], encoded_once(folder, name))


@golden_folders
def test_beside_recordings_of_other_lengths(folder: Path) -> None:
    """With the recordings that are compared alone, and perhaps without the longest, these are all."""
    compared = {*names_alone(folder), *(name for batch in batches_of(folder) for name in batch)}
    assert compared >= set(names_of(folder)[: None if has_longest_alone(folder) else -1])
    for batch in batches_of(folder):
        check_every_decoder(folder, batch, encoded_once(folder, *batch))


@pytest.mark.parametrize(
    "folder",
    [param for param in FOLDERS if folder_of(param).name not in CONVOLUTIONAL_NAMES],
    ids=lambda folder: folder.name,
)
def test_the_layers_of_wide_encoders_equal_reference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stored checkpoint is wide enough for the CPU's layers and decoding loops, so the limit is lifted."""
    monkeypatch.setattr("fastscribe.families.conformer.config.MIN_WIDTH_OF_LOOPS", 1)

    @cache
    def build(folder: Path, decoder: str) -> Any:
        model = recognizer.__wrapped__(folder, decoder)  # the cached one has the plain layers
        assert isinstance(model.model.encoder, Encoder)
        assert isinstance(model.model.encoder.layers, CpuLayers)
        assert decoder in ("ctc", "aed") or isinstance(model.decoder, CpuLooping)
        return model

    names = names_of(folder)
    short = names if is_small(folder) else names[:-2:3]
    for batch in [short] if is_small(folder) or has_longest_alone(folder) else [short, [names[0], names[-1]]]:
        check_every_decoder(folder, batch, build=build)


@golden_folders
def test_encoder_frames(folder: Path) -> None:
    compared = {*names_alone(folder), *(name for batch in batches_of(folder) for name in batch)}
    [tensors_path] = folder.glob("*tensors.safetensors")
    checked = 0
    for key, reference in load_file(tensors_path).items():
        name = key.removeprefix("encoder/").removeprefix("enc/")
        if name not in compared or reference.squeeze(0).dim() != 2:
            continue
        ours = frames_of(folder, name)
        theirs = reference.float().squeeze(0)
        theirs = theirs if theirs.shape[1] == ours.shape[1] else theirs.T
        assert_close_frames(ours, theirs[: len(ours)])
        checked += 1
    assert checked


def assert_close_frames(ours_TD: torch.Tensor, theirs_TD: torch.Tensor) -> None:
    """Allow what is left after the layers of the features' rounding on another processor."""
    differences_TD = (ours_TD - theirs_TD).abs()
    assert differences_TD.mean() <= 2e-3
    assert differences_TD.max() <= 0.1


def assert_close_features(ours_MT: torch.Tensor, theirs_MT: torch.Tensor, name: str) -> None:
    """Allow the rounding of FFTs on another processor, which the logarithm enlarges in bands without energy."""
    differences_MT = (ours_MT - theirs_MT).abs()
    assert differences_MT.mean() <= 5e-5, name
    assert (differences_MT > 1e-4).float().mean() <= 0.02, name
    assert differences_MT.max() <= 0.5, name


@pytest.mark.parametrize(
    ("stored", "model", "audio"),
    [
        (DATA / "features_80mel.safetensors", MODELS / "rnnt", AUDIO),
        (DATA / "features_128mel.safetensors", MODELS / "tdt_demo", AUDIO),
        (REAL / "features_80mel.safetensors", REAL / "rnnt", REAL / "audio"),
        (REAL / "features_128mel.safetensors", REAL / "tdt", REAL / "audio"),
    ],
    ids=["80 mels", "128 mels", "80 mels, real", "128 mels, real"],
)
def test_features(stored: Path, model: Path, audio: Path) -> None:
    if not stored.exists():
        pytest.skip("no goldens beside the checkout")
    for key, reference in load_file(stored).items():
        name, _, part = key.partition("|")
        if name in EXEMPT:
            continue
        name = name.removeprefix("features/")
        path = audio / name if (audio / name).exists() else next(audio.glob(name + "*"))
        mel_MT = recognizer(model).features(*recognizer(model).upload(batch_of([waveform(path)]))).mel_BMT[0]
        if part.startswith("last"):
            mel_MT, reference = mel_MT[:, -199:], reference[:, -200:-1]  # the reference has one masked frame more
        length = min(mel_MT.shape[1], reference.shape[1])
        assert_close_features(mel_MT[:, :length], reference[:, :length], name)


def test_silence_is_independent_of_batch_and_padding() -> None:
    """Digital silence amplifies rounding: alone and beside a long neighbour, results are equal to the bit."""
    folder = MODELS / "tdt_demo"
    silence, speech = np.zeros(32000, np.int16), waveform(AUDIO / "e10_concat_45s.flac")
    model = recognizer(folder)
    alone, beside = (
        model.features(*model.upload(batch_of(waves))).mel_BMT[0] for waves in ([silence], [silence, speech])
    )
    assert torch.equal(alone, beside[:, : alone.shape[1]])


@pytest.mark.skipif(not REAL.exists(), reason="no goldens beside the checkout")
@pytest.mark.parametrize("context", ["16_16_g0", "12_4_g0", "32_32_g1"])
@pytest.mark.parametrize("model_name", ["rnnt", "tdt"])
def test_local_attention(model_name: str, context: str) -> None:
    """Frames, tokens, times and text equal NeMo's rel_pos_local_attn, with a global token or none, alone and beside another."""
    folder, key = REAL / model_name, f"local_attn_{context}"
    left, right, num_global = context.replace("g", "").split("_")
    option = f"local:{left},{right}" + (",1" if num_global == "1" else "")
    model = Recognizer.build(checkpoint(folder), "cpu", "fp32", Options(attention=option))
    expected, tensors = golden(folder)[key], load_file(folder / "tensors.safetensors")
    *others, longest = expected
    for names in (others, [longest] if model_name == "tdt" else others[:1]):
        frames = encoded(model, folder, names)
        hypotheses = model.read(model.submit(frames).cpu().numpy(), frames)
        for row, (name, hypothesis) in enumerate(zip(names, hypotheses, strict=True)):
            if f"{key}/{name}" in tensors:
                ours = frames.frames_BTD[row, : frames.lengths_B[row]]
                torch.testing.assert_close(ours, tensors[f"{key}/{name}"].T[: len(ours)], atol=1e-3, rtol=0)
            assert list(hypothesis.token_ids) == expected[name]["tokens"]
            assert list(hypothesis.token_frames) == expected[name]["timestep"]
            assert transcript_of(folder, hypothesis, model.decoder_name).text == expected[name]["text"]


STREAMING = [
    MODELS / "published" / name for name in PUBLISHED_NAMES if "streaming" in name and not name.startswith("hf_")
]


@pytest.mark.parametrize("folder", STREAMING, ids=lambda folder: folder.name)
def test_contexts_of_streaming_models(folder: Path) -> None:
    """Every context that the checkpoint offers gives NeMo's tokens, times and text, alone and in a batch."""
    contexts = checkpoint(folder).config.encoder.contexts
    assert len(contexts) == 4
    for context in map(str, contexts[1:]):
        entries = golden(folder)["files"].items()
        expected = {name: entry["contexts"][context] for name, entry in entries}
        check_options(
            folder, Options(attention=context), expected, [*([name] for name in list(expected)[::2]), list(expected)]
        )


def test_transformers_streaming_folder(tmp_path: Path) -> None:
    """The folder that transformers reads gives what transformers and NeMo make of these weights."""
    folder = MODELS / "published" / "nemotron-3.5-asr-streaming-0.6b"
    write_folder(folder / "model.nemo", tmp_path)
    loaded = read_checkpoint(tmp_path)
    assert (loaded.source, loaded.config) == ("huggingface", checkpoint(folder).config)
    expected = golden(folder)["files"]
    batch = batch_of([waveform(AUDIO / name) for name in expected])
    hypotheses = Recognizer.build(loaded, "cpu", "fp32").transcribe(batch)
    for hypothesis, entry in zip(hypotheses, expected.values(), strict=True):
        assert list(hypothesis.token_ids) == entry["tokens"]
        assert list(hypothesis.token_frames) == entry["token_frames"]


@pytest.mark.parametrize("language", ["en-GB", "no"])
def test_language_that_a_model_is_told(language: str) -> None:
    folder = MODELS / "published" / "nemotron-3.5-asr-streaming-0.6b"
    expected = {name: entry["languages"][language] for name, entry in golden(folder)["files"].items()}
    check_options(folder, Options(language=language), expected, [list(expected)])
    default = {name: entry["tokens"] for name, entry in golden(folder)["files"].items()}
    assert {name: entry["tokens"] for name, entry in expected.items()} != default


def check_options(folder: Path, options: Options, expected: dict[str, dict], batches: list[list[str]]) -> None:
    """Compare tokens, times and text with these options."""
    model = Recognizer.build(checkpoint(folder), "cpu", "fp32", options)
    for names in batches:
        batch = batch_of([waveform(AUDIO / name) for name in names])
        for name, hypothesis in zip(names, model.transcribe(batch), strict=True):
            assert list(hypothesis.token_ids) == expected[name]["tokens"]
            assert list(hypothesis.token_frames) == expected[name]["token_frames"]
            assert transcript_of(folder, hypothesis, model.decoder_name).text == expected[name]["text"]


@cache
def frames_with(dtype: str, attention: str) -> torch.Tensor:
    """The encoder's frames of a recording longer than any window, beside a shorter one."""
    waves = [waveform(AUDIO / "e10_concat_45s.flac")[: 12 * 16000], waveform(AUDIO / "07_0_00193.flac")]
    model = Recognizer.build(checkpoint(MODELS / "tdt_demo"), "cpu", dtype, Options(attention=attention))
    return model.encode(model.features(*model.upload(batch_of(waves)))).frames_BTD[:1].float()


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("attention", ["local:20,20", "local:20,20,1"])
def test_local_attention_in_every_dtype(dtype: str, attention: str) -> None:
    """Results are near float32's with that window and differ from full attention."""
    if dtype == "int8" and int8_problem() is not None:
        pytest.skip(str(int8_problem()))
    exact_BTD, full_BTD, ours_BTD = (
        frames_with(*given) for given in (("fp32", attention), ("fp32", "full"), (dtype, attention))
    )
    error, effect = (ours_BTD - exact_BTD).norm(), (full_BTD - exact_BTD).norm()
    assert error < (0.1 if dtype == "int8" else 0.03) * exact_BTD.norm()
    assert effect > 0.1 * exact_BTD.norm()


def test_attention_option_overrides_checkpoint() -> None:
    plain = checkpoint(MODELS / "tdt_demo").config
    local = with_attention(plain, "local:128,64")
    assert local.encoder.attention == LocalAttention(128, 64)
    assert with_attention(local, None) == local
    assert with_attention(local, "full") == plain
    with pytest.raises(UsageError, match="no streaming model"):
        with_attention(plain, "70,1")


@pytest.mark.parametrize("attention", ["full", "local:70,1", "69,2", "56,1"])
def test_other_attention_of_streaming_models(attention: str) -> None:
    """It is an error that names the checkpoint's contexts."""
    folder = MODELS / "published" / "stt_en_fastconformer_hybrid_large_streaming_multi"
    with pytest.raises(UsageError, match=r"learnt with 70,13 or 70,6 or 70,1 or 70,0$"):
        Recognizer.build(checkpoint(folder), "cpu", "fp32", Options(attention=attention))
