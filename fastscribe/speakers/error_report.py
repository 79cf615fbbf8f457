"""Format a SpeakerEvaluation: a table for people, in percent and seconds, and a JSON object with fractions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastscribe._system.text_layout import clean_text
from fastscribe.evaluation.report import aligned_table, edits_object, percent, share
from fastscribe.evaluation.scores import Edits
from fastscribe.speakers.scores import SpeakerEvaluation, SpeakerScore

_WORDS = ("words", "cpWER %", "± SE", "sub", "ins", "del")
_SPEECH = ("speech s", "DER %", "± SE", "missed %", "false %", "wrong %")


def to_table(evaluation: SpeakerEvaluation) -> str:
    """Format the scores as an aligned table: the total, then each recording with its speakers of result and reference."""
    has_words = bool(evaluation.words.utterances)
    header = ("", "speakers", *(_WORDS if has_words else ()), *_SPEECH)
    words, speech = evaluation.words, evaluation.speech
    rows: list[Sequence[str]] = [header]
    rows.append(
        (
            "all",
            "",
            *_cells(words.words, words.standard_error, has_words),
            *_speech(speech.words, speech.standard_error),
        )
    )
    for one in evaluation.recordings:
        name = f"  {clean_text(one.name)}{' (failed)' if one.has_failed else ''}"
        rows.append(
            (
                name,
                f"{one.num_speakers}/{one.num_reference_speakers}",
                *_cells(one.words, None, has_words),
                *_speech(one.speech),
            )
        )
    return aligned_table(rows)


def to_object(evaluation: SpeakerEvaluation) -> dict[str, Any]:
    """Return the total and the `recordings` as JSON values."""
    words, speech = evaluation.words, evaluation.speech
    return {
        "recordings": len(evaluation.recordings),
        "failed": evaluation.num_failed,
        "cp_wer": share(words.words.rate),
        "cp_wer_standard_error": share(words.standard_error),
        "words": edits_object(words.words, "reference_words") if words.utterances else None,
        "der": share(speech.words.rate),
        "der_standard_error": share(speech.standard_error),
        "speech": _speech_object(speech.words),
        "by_recording": [_recording(one) for one in evaluation.recordings],
    }


def _recording(score: SpeakerScore) -> dict[str, Any]:
    return {
        "recording": score.name,
        "failed": score.has_failed,
        "reference_speakers": score.num_reference_speakers,
        "speakers": score.num_speakers,
        "cp_wer": None if score.words is None else share(score.words.rate),
        "words": None if score.words is None else edits_object(score.words, "reference_words"),
        "der": share(score.speech.rate),
        "speech": _speech_object(score.speech),
    }


def _speech_object(speech: Edits) -> dict[str, float]:
    parts = {"missed_s": speech.deletions, "false_alarm_s": speech.insertions, "wrong_speaker_s": speech.substitutions}
    return {"reference_s": speech.units / 1000, **{name: ms / 1000 for name, ms in parts.items()}}


def _cells(words: Edits | None, standard_error: float | None, has_words: bool) -> tuple[str, ...]:
    if not has_words:
        return ()
    if words is None:
        return ("-",) * len(_WORDS)
    counts = (words.substitutions, words.insertions, words.deletions)
    return (f"{words.units:,}", percent(words.rate), percent(standard_error), *(f"{one:,}" for one in counts))


def _speech(speech: Edits, standard_error: float | None = None) -> tuple[str, ...]:
    parts = (speech.deletions, speech.insertions, speech.substitutions)
    shares = [percent(part / speech.units if speech.units else None) for part in parts]
    return (f"{speech.units / 1000:,.1f}", percent(speech.rate), percent(standard_error), *shares)
