"""--align-with: word times from a second model's forced alignment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastscribe import Options, Transcriber, Transcript
from fastscribe.alignment.aligner import Aligner
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.checkpoint.value import with_aligner
from fastscribe.errors import CheckpointError
from fastscribe.pipeline.recognizer import Recognizer
from tests.conftest import AUDIO, MODELS, waveform
from tests.helpers.collate import batch_of
from tests.helpers.processes import fastscribe

ALIGNER = str(MODELS / "ctc" / "model.nemo")
FILES = sorted(AUDIO.glob("0*.flac"))[:3]


def times(transcript: Transcript) -> list[tuple[str, float, float]]:
    last_s = transcript.audio.duration_s  # which a transcript's last word may exceed by a frame
    return [(word.text, round(word.start_s, 3), round(min(word.end_s, last_s), 3)) for word in transcript.words]


@pytest.mark.parametrize("name", ["canary2", "tdt_demo"])
def test_words_have_the_times_of_align(name: str, tmp_path: Path) -> None:
    """Words with capitals and punctuation are spelled for a vocabulary without them, as fastscribe align does."""
    transcriber = Transcriber.load(MODELS / name / "model.nemo", "cpu", "fp32", Options(align_with=ALIGNER))
    aligner = Aligner.load(ALIGNER, "cpu", "fp32")
    for found in transcriber.transcribe(FILES):
        assert isinstance(found, Transcript)
        text = tmp_path / "text.txt"
        text.write_text(found.text, encoding="utf-8")
        [aligned] = aligner.align(found.audio.path, text)
        assert isinstance(aligned, Transcript) and not any(word.missing for word in aligned.words)
        assert times(found) == times(aligned)


def test_unfit_models_are_refused() -> None:
    transducer = str(MODELS / "tdt_demo" / "model.nemo")
    with pytest.raises(CheckpointError, match="--align-with"):
        Transcriber.load(ALIGNER, "cpu", "fp32", Options(align_with=transducer))


def test_a_text_that_the_aligner_does_not_write_is_said() -> None:
    """Canary's letters here are small ones; a vocabulary of other letters has none of them."""
    lines: list[str] = []
    checkpoint = read_checkpoint(Path(ALIGNER))
    other = replace(checkpoint, tokenizer=replace(checkpoint.tokenizer, silent_ids=frozenset(range(2000))))
    both = with_aligner(read_checkpoint(MODELS / "canary2" / "model.nemo"), other)
    recognizer = Recognizer.build(both, "cpu", "fp32", Options(align_with=ALIGNER), lines.append)
    for _ in range(2):
        [found] = recognizer.transcribe(batch_of([waveform(FILES[0])]))
        assert found.token_ids and not found.is_timed
    assert len(lines) == 1 and "does not write is not aligned; its words are spread evenly" in lines[0]


def test_command_line_resumes_with_the_same_aligner(tmp_path: Path) -> None:
    command = ("transcribe", FILES[0], "--model", MODELS / "canary2" / "model.nemo", "-o", tmp_path / "out")
    first = fastscribe(*command, "--align-with", ALIGNER, "--quiet")
    assert (first.returncode, first.stderr) == (0, "")
    report = (tmp_path / "out" / "report.json").read_bytes()
    again = fastscribe(*command, "--align-with", ALIGNER, "--quiet")
    assert again.returncode == 0 and (tmp_path / "out" / "report.json").read_bytes() == report  # nothing was done again
    other = fastscribe(*command, "--quiet")
    assert other.returncode == 2 and "--align-with" in other.stderr
