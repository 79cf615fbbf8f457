"""The N best hypotheses: by utterance, with distinct texts, and an error for models without a beam."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe import Options, Transcriber, Transcript, UsageError
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import nbest
from fastscribe.types import AudioInfo, Hypothesis, Utterance
from tests.conftest import AUDIO, MODEL, MODELS, waveform
from tests.helpers.processes import fastscribe, refused

CLIPS = sorted(AUDIO.glob("0*.flac"))[:2]
PIECES = Tokenizer(pieces=("▁a", "t", "▁at", "▁on", "▁"), kind="subword")


def hypothesis_of(*ids: int, score: float, nbest: tuple[Hypothesis, ...] = ()) -> Hypothesis:
    count = len(ids)
    return Hypothesis(ids, tuple(range(count)), (1,) * count, (-0.5,) * count, score=score, nbest=nbest)


def test_texts_differ_and_utterances_are_in_order() -> None:
    audio = AudioInfo("a", "a", 1000, 1, 9000)
    others = hypothesis_of(0, 1, score=-2.0), hypothesis_of(2, 4, score=-2.5), hypothesis_of(3, score=-3.0)
    first = (hypothesis_of(2, score=-1.0), *others)
    second = (hypothesis_of(score=-0.1), hypothesis_of(0, score=-4.0), hypothesis_of(3, score=-5.0))
    parts = [
        (Utterance(audio, 4000, 5000), hypothesis_of(score=-0.1, nbest=second)),
        (Utterance(audio, 0, 4000), hypothesis_of(2, score=-1.0, nbest=first)),
    ]
    found = nbest(parts, 2, PIECES, 0.08, False)
    assert [(one.text, one.score, one.start_s, one.end_s) for one in found] == [
        ("at", -1.0, 0.0, 4.0),
        ("on", -3.0, 0.0, 4.0),  # "a" + "t" and "at" + " " are "at" again
        ("", -0.1, 4.0, 9.0),
        ("a", -4.0, 4.0, 9.0),
    ]
    assert [[word.start_s for word in one.words] for one in found] == [[0.0], [0.0], [], [4.0]]


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        (MODEL, Options(nbest=4), "--nbest 4: greedy decoding finds one hypothesis; give --beam 4 or more"),
        (MODEL, Options(nbest=1), "--nbest 1: greedy decoding finds one hypothesis; give --beam 2 or more"),
        (MODEL, Options(nbest=4, beam=3), "--nbest 4: a beam of 3 has 3 hypotheses; give --beam 4 or more"),
        (MODELS / "ctc" / "model.nemo", Options(nbest=2), "--nbest 2: only RNN-T and TDT models search with a beam"),
        (MODELS / "canary" / "model.nemo", Options(nbest=2), "--nbest 2: only RNN-T and TDT .* not aed ones"),
    ],
    ids=str,
)
def test_refused(model: Path, options: Options, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Transcriber.load(model, device="cpu", options=options)


def test_a_cut_recording_has_them_by_utterance(tmp_path: Path) -> None:
    """And the transcript is the same as without."""
    path = tmp_path / "two.wav"
    soundfile.write(path, np.concatenate([waveform(clip) for clip in CLIPS]), 16_000)
    length_s = len(waveform(CLIPS[0])) / 16_000
    results = {}
    for count in (None, 3):
        options = Options(beam=4, nbest=count, max_utterance_s=length_s + 1)
        [results[count]] = Transcriber.load(MODEL, device="cpu", dtype="fp32", options=options).transcribe(path)
    plain, result = results[None], results[3]
    assert isinstance(plain, Transcript) and isinstance(result, Transcript)
    assert (result.text, result.words) == (plain.text, plain.words) and plain.nbest == ()
    starts = sorted({one.start_s for one in result.nbest})
    assert len(starts) > 1 and starts[0] == 0.0
    by_utterance = [[one for one in result.nbest if one.start_s == start_s] for start_s in starts]
    assert " ".join(utterance[0].text for utterance in by_utterance if utterance[0].text) == plain.text
    for utterance in by_utterance:
        assert 1 < len(utterance) <= 3 == len({one.text for one in utterance}) + 3 - len(utterance)
        assert [one.score for one in utterance] == sorted((one.score for one in utterance), reverse=True)
        assert all(" ".join(word.text for word in one.words).replace(" .", ".") == one.text for one in utterance)


def test_command_line(tmp_path: Path) -> None:
    given = ("transcribe", CLIPS[0], "-m", MODEL, "-o", tmp_path, "-q", "-f", "jsonl,txt", "--beam", 4)
    assert fastscribe(*given, "--nbest", 4).returncode == 0
    row = json.loads((tmp_path / "transcripts.jsonl").read_text(encoding="utf-8"))
    assert row["nbest"][0]["text"] == row["text"] == (tmp_path / f"{CLIPS[0].stem}.txt").read_text().strip()
    assert row["nbest"][0]["words"] == row["words"]
    assert row["nbest"][0].keys() == {"text", "score", "start", "end", "words"} and row["nbest"][0]["score"] < 0
    assert "--nbest" in refused(*given)
    assert fastscribe(*given, "--nbest", 5).stderr == (
        "fastscribe: --nbest 5: a beam of 4 has 4 hypotheses; give --beam 5 or more\n"
    )
