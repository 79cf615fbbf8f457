"""The gaps of a transcript: speech without words (gaps.py), and speech with few (sparse.py), in spans that spans.py names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastscribe.config import Options
from fastscribe.errors import AudioError
from fastscribe.segmentation import gaps, sparse
from fastscribe.segmentation.spans import Span
from fastscribe.types import Gap, Transcript


def with_gaps(
    transcript: Transcript, wordless: Sequence[Span], few_words: Sequence[Span], options: Options
) -> Transcript:
    """Read the audio of some spans. Return the transcript with the speech in them as its gaps.

    Args:
        transcript: The transcript.
        wordless: Its spans without words.
        few_words: Those with few.
        options: The run's options.
    """
    try:
        surroundings = gaps.Surroundings(transcript, [*wordless, *few_words], options)
        found = gaps.find_clear_speech(transcript, wordless, surroundings)
        parts = sparse.find_sparse_speech(transcript, few_words, surroundings)
        found += [Gap(one.start_s, one.end_s) for one in parts if one.is_sparse(transcript.words)]
    except AudioError:  # the file has changed or gone, but its words are still right
        found = [Gap(*span) for span in wordless]
    return replace(transcript, gaps=gaps.merge(found))
