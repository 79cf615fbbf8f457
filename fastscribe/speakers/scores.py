"""Scores of who says what: cpWER (meeteval) and the diarisation error rate (pyannote.metrics), by recording and in total.

cpWER, the concatenated minimum-permutation word error rate (Watanabe et al. 2020, CHiME-6), joins all that a speaker says, and
pairs speakers of result and reference so that the word errors are fewest. The diarisation error rate (DER) is the time that is
missed, a false alarm or given to the wrong speaker, of the time that is spoken; both count overlapping speech. Rates are a
corpus's: all errors over all words, or all speech.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastscribe.errors import ManifestError
from fastscribe.evaluation.scores import Edits, Score
from fastscribe.results.formats.writers import spans_of
from fastscribe.results.rows import ResultRow, read_rows
from fastscribe.results.stored import NotAResult, to_result
from fastscribe.speakers.references import Reference, SpeakerReferences
from fastscribe.text.joining import join_texts
from fastscribe.types import AudioInfo, Failure, Transcript, Turn

if TYPE_CHECKING:
    from pyannote.core import Annotation

MODULES = ("meeteval", "pyannote.metrics")  # of the extra
EXTRA = "eval-speakers"
_NO_EDITS = Edits()


@dataclass(frozen=True)
class SpeakerScore:
    """The scores of a recording.

    Attributes:
        name: Its path, with the offset of a part.
        has_failed: True: it has no result, so all words are deleted and all speech is missed.
        num_reference_speakers: Speakers of the reference.
        num_speakers: Speakers of the result.
        words: Edits of words; None: the reference has none.
        speech: Edits of speech in milliseconds: substitutions are speech of the wrong speaker, insertions false alarms,
            deletions missed speech.
    """

    name: str
    has_failed: bool
    num_reference_speakers: int
    num_speakers: int
    words: Edits | None
    speech: Edits


@dataclass
class SpeakerEvaluation:
    """All scores. `words` and `speech` are totals, with recordings as independent draws; units are words and milliseconds."""

    recordings: list[SpeakerScore] = field(default_factory=list)
    num_failed: int = 0
    words: Score = field(default_factory=Score)
    speech: Score = field(default_factory=Score)

    def add(self, score: SpeakerScore) -> None:
        self.recordings.append(score)
        self.speech.add(score.speech, _NO_EDITS, score.has_failed)
        if score.words is not None:
            self.words.add(score.words, _NO_EDITS, score.has_failed)


def evaluate_speakers(
    inputs: Iterable[str],
    references: SpeakerReferences,
    normalize: Callable[[str], str],
    collar_s: float,
    count_failed: bool = True,
) -> Iterator[SpeakerEvaluation | ManifestError]:
    """Yield the reasons against unusable rows, and at last the scores.

    Args:
        inputs: As in rows.read_rows().
        references: Who says what.
        normalize: Applied to all that a speaker says.
        collar_s: Seconds on either side of each begin and end of a reference's turn that do not count for DER.
        count_failed: True: failed recordings count as silence; False: they are left out.
    """
    found = SpeakerEvaluation()
    for row in read_rows(inputs):
        if isinstance(row, ManifestError):
            yield row
            continue
        try:
            name, result, reference = _pair(row, references)
            found.num_failed += isinstance(result, Failure)
            if count_failed or isinstance(result, Transcript):
                found.add(_scored(name, result, reference, normalize, collar_s))
        except ManifestError as error:
            yield error
    yield found


def _pair(row: ResultRow, references: SpeakerReferences) -> tuple[str, Transcript | Failure, Reference]:
    """Return a recording's name, its result and its reference. Raises ManifestError if one is missing, or the speakers are."""
    try:
        result = to_result(row.fields)
    except NotAResult as error:
        raise row.problem(str(error)) from error
    audio = AudioInfo(result.path, result.id, 1, 1, 0) if isinstance(result, Failure) else result.audio
    offset, duration = row.fields.get("offset"), row.fields.get("duration")
    offset_s = float(offset) if isinstance(offset, (int, float)) else 0.0
    is_part = isinstance(result, Failure) or "pred_text" in row.fields  # a row of a manifest, whose duration is its own
    part_s = float(duration) if is_part and isinstance(duration, (int, float)) else None
    reference = references.of(audio, offset_s, part_s)
    if reference is None:
        raise row.problem(f"no reference has the speakers of {audio.path}")
    if isinstance(result, Transcript) and result.segments and not result.speakers:
        raise row.problem("no speakers: transcribe with --speakers or --rttm")
    return audio.path + (f"@{offset_s:g}" if offset_s else ""), result, reference


def _scored(
    name: str, result: Transcript | Failure, reference: Reference, normalize: Callable[[str], str], collar_s: float
) -> SpeakerScore:
    texts: dict[str, str] = {}
    turns: list[Turn] = []
    duration_s = 0.0
    if isinstance(result, Transcript):
        duration_s = result.audio.duration_s
        for speaker in result.speakers:
            texts[speaker] = join_texts(one.text for one in result.segments if one.speaker == speaker)
        turns = [Turn(one.start_s, one.end_s, one.speaker) for one in spans_of(result) if one.speaker is not None]
    words = None
    if reference.texts is not None:
        said, found = ({key: normalize(text) for key, text in side.items()} for side in (reference.texts, texts))
        words = cp_word_edits(said, found)
    speech = diarization_edits(reference.turns, turns, duration_s, collar_s)
    speakers = {turn.speaker for turn in reference.turns} | set(reference.texts or ())
    return SpeakerScore(name, isinstance(result, Failure), len(speakers), len(texts), words, speech)


def cp_word_edits(reference: Mapping[str, str], hypothesis: Mapping[str, str]) -> Edits:
    """Return the edits of words of the best pairing of speakers.

    Args:
        reference: All that a speaker says, normalised, by speaker; likewise `hypothesis`.
    """
    from meeteval.wer import cp_word_error_rate

    logging.getLogger("meeteval").setLevel(logging.ERROR)  # texts have no times, and it would say so for each
    rate = cp_word_error_rate(dict(reference), dict(hypothesis), reference_sort=False, hypothesis_sort=False)
    return Edits(rate.length, rate.substitutions, rate.insertions, rate.deletions)


def diarization_edits(
    reference: Sequence[Turn], hypothesis: Sequence[Turn], duration_s: float, collar_s: float
) -> Edits:
    """Return the errors of a diarisation in milliseconds, as SpeakerScore.speech.

    Overlapping turns of the same speaker count once.

    Args:
        reference: True turns.
        hypothesis: Turns found.
        duration_s: Length of the recording.
        collar_s: Seconds on either side of each begin and end of a true turn that do not count.
    """
    from pyannote.core import Segment
    from pyannote.metrics.diarization import DiarizationErrorRate

    end_s = max([duration_s, *(turn.end_s for turn in (*reference, *hypothesis))])
    if end_s <= 0:
        return _NO_EDITS
    metric = DiarizationErrorRate(collar=2 * collar_s)  # its collar is that of both sides together
    parts: Mapping[str, Any] = metric(
        _annotation(reference), _annotation(hypothesis), uem=Segment(0, end_s), detailed=True
    )
    names = ("total", "confusion", "false alarm", "missed detection")
    units, wrong, false_alarm, missed = (round(1000 * float(parts[name])) for name in names)
    return Edits(units, wrong, false_alarm, missed)


def _annotation(turns: Iterable[Turn]) -> Annotation:
    from pyannote.core import Annotation, Segment

    made = Annotation()
    for number, turn in enumerate(turns):
        made[Segment(turn.start_s, turn.end_s), number] = turn.speaker
    return made.support()
