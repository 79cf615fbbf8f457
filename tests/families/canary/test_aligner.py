"""Canary checkpoints with an aligner: words and times of NeMo in any batches, and damaged archives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.cli.describe import describe
from fastscribe.config import Options
from fastscribe.errors import CheckpointError
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.results.fingerprint import model_digest
from fastscribe.text.transcript import assemble
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Hypothesis, Transcript
from tests.conftest import AUDIO, MODELS, golden, refusal, waveform
from tests.helpers import quick_yaml
from tests.helpers.aligned_canary import CONFIG, WEIGHTS, aligner_members, contents
from tests.helpers.archives import packed
from tests.helpers.collate import batch_of

NAMES = ("canary_aligned", "canary_aligned_letters")
TIMED = Options(timestamps=True)
INNER_MARKS = tuple(",.!?")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("aligned")
    return {name: packed(contents(name), folder / f"{name}.nemo") for name in NAMES}


@pytest.fixture(scope="module")
def aligned(archives: dict[str, Path]) -> dict[str, Checkpoint]:
    return {name: read_checkpoint(path) for name, path in archives.items()}


def transcripts(checkpoint: Checkpoint, batches: list[list[str]]) -> dict[str, Transcript]:
    recognizer = Recognizer.build(checkpoint, "cpu", "fp32", TIMED, lambda line: None)
    found = {}
    for chunk in batches:
        batch = batch_of([waveform(AUDIO / file) for file in chunk])
        for file, place, hypothesis in zip(chunk, batch.utterances, recognizer.transcribe(batch), strict=True):
            audio = replace(place.audio, num_samples=1 << 40)  # no time is cut at its end, as in NeMo
            parts = [(replace(place, audio=audio, num_samples=audio.num_samples), hypothesis)]
            found[file] = assemble(audio, parts, checkpoint.tokenizer, recognizer.facts.token_frame_s, False)
    return found


def rows(words) -> list[list]:
    return [[word.text, round(word.start_s, 3), round(word.end_s, 3)] for word in words]


@pytest.mark.parametrize("name", NAMES)
def test_words_and_times_equal_nemo(aligned: dict[str, Checkpoint], name: str) -> None:
    """A fourth of the recordings alone, and the others in three batches; of the model of letters every second."""
    files, compared = golden(MODELS / name)["files"], 0
    if name == "canary_aligned_letters":
        files = dict(list(files.items())[::2])
    others = [file for number, file in enumerate(files) if number % 4]
    batches = [*([file] for file in list(files)[::4]), *(others[first::3] for first in range(3))]
    for file, found in transcripts(aligned[name], batches).items():
        expected = files[file]
        assert found.text.split() == expected["text"].split(), file
        if not expected["words"]:  # NeMo returns no words without an alignment; here they are spread evenly
            assert rows(found.words)[0][1] == 0.0 and "".join(word.text for word in found.words)
            continue
        assert [row for row in rows(found.words) if row[0]] == expected["words"], file
        for segment, (text, start_s, end_s) in zip(found.segments, expected["segments"], strict=True):
            assert (segment.text, round(segment.start_s, 3)) == (text, start_s), file
            # NeMo also ends a segment at a mark inside its last word.
            if not any(mark in text.split()[-1][:-1] for mark in INNER_MARKS):
                assert round(segment.end_s, 3) == end_s, file
        compared += len(expected["words"])
    assert compared > 50


@pytest.mark.parametrize("name", NAMES)
def test_text_without_alignment(aligned, name: str) -> None:
    files = [file for file, found in golden(MODELS / name)["files"].items() if not found["words"]]
    assert files
    lines: list[str] = []
    recognizer = Recognizer.build(aligned[name], "cpu", "fp32", TIMED, lines.append)
    for _ in range(2):
        for hypothesis in recognizer.transcribe(batch_of([waveform(AUDIO / file) for file in files])):
            assert hypothesis.token_ids and not hypothesis.is_timed
            assert sum(hypothesis.token_durations) > 0 and hypothesis.token_frames[0] == 0
    assert len(lines) == 1 and "too long for its audio" in lines[0]


def test_nan_aligner_fails_one_recording(archives: dict[str, Path]) -> None:
    transcriber = Transcriber.load(archives["canary_aligned"], options=TIMED, say=lambda line: None)
    aligner = transcriber._recognizer.rooms.word_timer
    assert aligner is not None and aligner.model.ctc is not None
    aligner.model.ctc.output.bias.fill_(float("nan"))
    files = [str(AUDIO / file) for file in ("05_0_00148.flac", "09_1_00056.flac")]
    for result in transcriber.transcribe(files):
        assert isinstance(result, Failure) and (result.error_type, result.message) == (
            "ModelOutputError",
            "the aligner's output is not finite",
        )


@pytest.mark.parametrize("name", NAMES)
def test_empty_and_tiny_recordings(aligned: dict[str, Checkpoint], name: str) -> None:
    waves = [np.zeros(length, np.float32) for length in (1, 159, 160, 161, 1279, 1280, 8000)] + [
        waveform(AUDIO / "e02_0p3s.flac")
    ]
    recognizer = Recognizer.build(aligned[name], "cpu", "fp32", TIMED, lambda line: None)
    found = recognizer.transcribe(batch_of(waves))
    assert found[0] == Hypothesis()
    for hypothesis in found:
        borders = list(zip(hypothesis.token_frames, hypothesis.token_durations, strict=True))
        assert all(duration >= 0 for _, duration in borders) and [a for a, _ in borders] == sorted(
            a for a, _ in borders
        )


@pytest.mark.parametrize("name", NAMES)
def test_no_aligner_without_timestamps(aligned: dict[str, Checkpoint], name: str) -> None:
    lines: list[str] = []
    recognizer = Recognizer.build(aligned[name], "cpu", "fp32", Options(), lines.append)
    assert recognizer.rooms.word_timer is None
    assert "--timestamps takes them from the aligner" in lines[0]


@pytest.mark.parametrize("name", NAMES)
def test_convert_keeps_aligner(archives, aligned: dict[str, Checkpoint], name: str, tmp_path: Path) -> None:
    native_writer.write(aligned[name], tmp_path / "model", torch.float32)
    stored = read_checkpoint(tmp_path / "model")
    file = "05_0_00148.flac"
    assert stored.aligner is not None and stored.tokenizer == aligned[name].tokenizer
    assert stored.aligner.config == aligned[name].aligner.config  # type: ignore[union-attr]
    before, after = (transcripts(each, [[file]])[file] for each in (aligned[name], stored))
    assert rows(before.words) == rows(after.words)
    facts = describe(stored)
    assert facts["aligner_parameters"] == describe(aligned[name])["aligner_parameters"] > 0
    assert facts["aligner_frame_s"] == {"canary_aligned": 0.08, "canary_aligned_letters": 0.04}[name]
    digest = model_digest(tmp_path / "model")
    weights = tmp_path / "model" / "aligner" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert model_digest(tmp_path / "model") != digest


def test_config_ignores_aligner(tmp_path: Path) -> None:
    files = contents("canary_aligned")
    config = quick_yaml.load(files["model_config.yaml"]) | {"restore_timestamps_model": False}
    path = packed(files | {"model_config.yaml": quick_yaml.dump(config).encode()}, tmp_path / "model.nemo")
    assert read_checkpoint(path).aligner is None


def test_long_recording(archives: dict[str, Path]) -> None:
    options = Options(max_utterance_s=12.0, timestamps=True)
    lines: list[str] = []
    transcriber = Transcriber.load(archives["canary_aligned"], options=options, say=lines.append)
    (result,) = transcriber.transcribe([str(AUDIO / "e10_concat_45s.flac")])
    assert isinstance(result, Transcript)
    starts = [word.start_s for word in result.words]
    assert starts == sorted(starts) and starts[-1] > 30
    assert max(word.end_s for word in result.words) <= result.audio.duration_s + 0.08


def broken(files: dict[str, bytes], case: str) -> dict[str, bytes]:
    config = quick_yaml.load(files[CONFIG])
    if case == "no weights":
        return {name: content for name, content in files.items() if name != WEIGHTS}
    if case == "no config":
        return {name: content for name, content in files.items() if name != CONFIG}
    if case == "not a ctc model":
        other = aligner_members(MODELS / "rnnt" / "model.nemo")
        return other | files | {CONFIG: other[CONFIG]}
    if case == "another rate":
        config["preprocessor"]["sample_rate"] = 8000
    if case == "unknown encoder":
        config["encoder"]["_target_"] = "nemo.collections.asr.modules.Dance"
    if case == "aggregate":
        config["tokenizer"] = {"type": "agg", "langs": {"en": config["tokenizer"]}}
    return files | {CONFIG: quick_yaml.dump(config).encode()}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("no weights", f"model.nemo: holds no {WEIGHTS}"),
        ("no config", f"model.nemo: holds no {CONFIG}"),
        ("not a ctc model", f"{CONFIG}: unsupported decoders of the timestamps aligner"),
        ("another rate", f"{CONFIG}: unsupported sample rate of the timestamps aligner: 8000"),
        ("unknown encoder", f"{CONFIG}: unsupported encoder._target_"),
        ("aggregate", f"{CONFIG}: unsupported tokenizer.type: 'agg'"),
    ],
)
def test_broken_aligner(tmp_path: Path, case: str, message: str) -> None:
    path = packed(broken(contents("canary_aligned"), case), tmp_path / "model.nemo")
    with refusal(CheckpointError, message):
        read_checkpoint(path)


def test_weights_of_another_shape(tmp_path: Path) -> None:
    files = contents("canary_aligned") | {WEIGHTS: aligner_members(MODELS / "rnnt" / "model.nemo")[WEIGHTS]}
    checkpoint = read_checkpoint(packed(files, tmp_path / "model.nemo"))
    with pytest.raises(CheckpointError, match=r"weights do not match.*ctc\.output"):
        Recognizer.build(checkpoint, "cpu", "fp32", TIMED)


@pytest.mark.parametrize("case", ["no config.json", "another format", "nested"])
def test_broken_folder(aligned: dict[str, Checkpoint], tmp_path: Path, case: str) -> None:
    native_writer.write(aligned["canary_aligned"], tmp_path / "model", torch.float32)
    folder = tmp_path / "model" / "aligner"
    if case == "no config.json":
        (folder / "config.json").unlink()
    if case == "another format":
        (folder / "config.json").write_text("{}")
    if case == "nested":
        (folder / "aligner").mkdir()
    with pytest.raises(CheckpointError, match="aligner"):
        read_checkpoint(tmp_path / "model")
