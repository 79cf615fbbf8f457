"""Speech with far fewer words than the recording's pace is listed; pauses and slow words are not."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe import Options, Transcriber, Transcript
from fastscribe.segmentation.gap_search import SparseSpeech, Surroundings, find_sparse_speech, merge
from fastscribe.segmentation.spans import MIN_SPAN_S, SLOWEST, find_sparse_spans, find_untranscribed_spans, stretches
from fastscribe.types import Gap, Hypothesis, Utterance, Word
from tests.conftest import MODELS
from tests.segmentation.test_gaps import CLIPS, RATE, noise, recording, silence, with_words

PACE_S = 0.4
TIMES = st.lists(st.floats(0.05, 4.0), min_size=1, max_size=9)


@given(TIMES, st.floats(0.1, 0.8), st.floats(0.1, 3.0))
def test_every_sparse_stretch_is_met(steps_s: list[float], share: float, word_s: float) -> None:
    """Against all pairs of places: what is yielded is sparse, in order and as long as can be; what is left is not sparse."""
    starts = np.cumsum(steps_s).tolist()
    begins = [0.0, *(start_s + share * 0.05 for start_s in starts)]
    ends = [*starts, starts[-1] + 1.0]
    places = range(len(begins))
    excess = {
        (i, j): ends[j] - begins[i] - (j - i) * word_s for i, j in itertools.combinations_with_replacement(places, 2)
    }
    found = list(stretches(begins, ends, word_s))
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
    for first, last in found:
        assert excess[first, last] >= MIN_SPAN_S - 1e-9
    for (i, j), more in excess.items():
        assert more < MIN_SPAN_S + 1e-9 or any(i <= last and first <= j for first, last in found)


def words_at(*times_s: float) -> list[tuple[float, float]]:
    return [(time_s, time_s + 0.2) for time_s in times_s]


def test_sparse_words(tmp_path: Path) -> None:
    """Half skipped speech has no span without words, and is listed from its first to its last sound."""
    audio = recording(tmp_path, *CLIPS)
    end_s = audio.duration_s - 0.2
    before, after = np.arange(0, 6, PACE_S), np.arange(14, end_s, PACE_S)
    transcript = with_words(audio, *words_at(*before, 7.7, 9.4, 11.1, 12.8, *after))
    assert find_untranscribed_spans(transcript) == []
    [span] = find_sparse_spans(transcript)
    [found] = find_sparse_speech(transcript, [span], Surroundings(transcript, [span], Options()))
    assert 5.8 <= found.start_s < 7 and 12 < found.end_s <= 14 and found.word_s == pytest.approx(SLOWEST * PACE_S)
    assert found.is_sparse(transcript.words)
    dense = with_words(audio, *words_at(*np.arange(0, end_s, PACE_S)))
    assert not found.is_sparse(dense.words) and find_sparse_spans(dense) == []


@pytest.mark.parametrize("between", [silence(8), noise(8, 1e-3)], ids=["silence", "noise"])
def test_pauses_between_words_are_no_speech(tmp_path: Path, between: np.ndarray) -> None:
    first_s = len(CLIPS[0]) / RATE
    audio = recording(tmp_path, CLIPS[0], between, CLIPS[1])
    dense = [*np.arange(0, first_s, PACE_S), *np.arange(first_s + 8, audio.duration_s - 0.2, PACE_S)]
    transcript = with_words(
        audio, *words_at(*sorted([*dense, first_s + 1.8, first_s + 3.6, first_s + 5.4, first_s + 7]))
    )
    spans = find_sparse_spans(transcript)
    assert find_sparse_speech(transcript, spans, Surroundings(transcript, spans, Options())) == []


def test_no_pace(tmp_path: Path) -> None:
    """A slow recording is measured against itself; two words at one time have no pace."""
    audio = recording(tmp_path, *CLIPS)
    assert find_sparse_spans(with_words(audio, *words_at(*np.arange(0, audio.duration_s - 1, 1.9)))) == []
    assert find_sparse_spans(with_words(audio, *words_at(4.0))) == find_sparse_spans(with_words(audio)) == []
    assert find_sparse_spans(with_words(audio, *words_at(4.0, 4.0))) == []


def test_gaps_merge() -> None:
    assert merge([Gap(5, 6), Gap(0, 3), Gap(2, 2.5), Gap(6, 7)]) == (Gap(0, 3), Gap(5, 7))
    found = SparseSpeech(10.0, 14.0, 4.0, 1.2)
    words = [Word("w", time_s, time_s + 0.2, 1.0) for time_s in (9.0, 11.0, 13.0, 14.5)]
    assert not found.is_sparse(words) and found.is_sparse(words[:2])


def test_a_run_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model leaves out most words of a part."""
    transcriber = Transcriber.load(MODELS / "tdt_demo" / "model.nemo", device="cpu", dtype="fp32")
    audio = recording(tmp_path, *CLIPS)
    [whole] = transcriber.transcribe(audio.path)
    assert isinstance(whole, Transcript) and whole.gaps == ()
    original = transcriber._engine._read

    def thinned(utterance: Utterance, hypothesis: Hypothesis) -> Hypothesis:
        kept, last_s = [], 0.0
        for i, frame in enumerate(hypothesis.token_frames):
            time_s = utterance.start_s + 0.08 * frame
            starts_word = transcriber._model.tokenizer.roles[hypothesis.token_ids[i]] == "starts word"
            if not 2 < time_s < 12 or (starts_word and time_s - last_s > 1.7):
                kept.append(i)
                last_s = time_s
        columns = (hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations, hypothesis.logprobs)
        return Hypothesis(*(tuple(values[i] for i in kept) for values in columns))

    def read(decoded):
        for batch, hypotheses in original(decoded):
            yield batch, [thinned(*pair) for pair in zip(batch.utterances, hypotheses, strict=True)]

    monkeypatch.setattr(transcriber._engine, "_read", read)
    [result] = transcriber.transcribe(audio.path)
    assert isinstance(result, Transcript)
    inside = [word.start_s for word in result.words if 2 < word.start_s < 12]
    assert len(inside) >= 4, "the case needs words in the part"
    assert [gap for gap in result.gaps if sum(gap.start_s < start_s < gap.end_s for start_s in inside) >= 2]
    assert transcriber.progress.gaps == len(result.gaps)
