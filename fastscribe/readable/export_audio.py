"""What `fastscribe export` makes of results together with their recordings: a page to review, and redacted copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe._system.file_kinds import status_of
from fastscribe._system.text_layout import count_of
from fastscribe.cli.terminal import say
from fastscribe.errors import AudioError, FastscribeError, ManifestError, UsageError

if TYPE_CHECKING:
    from fastscribe.readable.passages import Passage
    from fastscribe.readable.stored import Stored
    from fastscribe.report.review_page import ReviewItem
    from fastscribe.results.rows import ResultRow
    from fastscribe.types import AudioInfo, Transcript

_MAX_LINES = 20  # about recordings without a copy


def write_review(results: Iterable[Stored], path: Path, num_passages: int) -> int:
    """Write the page of the least certain passages.

    Args:
        results: Stored results; failed recordings are left out.
        path: Of the page.
        num_passages: How many passages it has at most.

    Returns:
        The number of passages without audio.

    Raises:
        UsageError: There is a file that is no page of ours.
        OutputError: The page cannot be written.
    """
    from fastscribe.readable.passages import least_certain
    from fastscribe.readable.words import with_own_words
    from fastscribe.report.files import check_place, is_page, write_page
    from fastscribe.report.review_page import review_page

    place = check_place("--review", path, is_page, "page of fastscribe's")
    num_words = 0

    def counted() -> Iterator[tuple[Transcript, ResultRow]]:
        nonlocal num_words
        for transcript, row in _transcripts(results):
            num_words += len(transcript.words)
            yield with_own_words(transcript) or transcript, row

    passages = least_certain(counted(), num_passages)
    if not passages:
        raise UsageError(f"--review {path}: there are no words to review in the results")
    opened: dict[tuple[str, int], AudioInfo | FastscribeError] = {}
    items = [_item(passage, opened) for passage in passages]
    write_page(place, review_page(items, num_words))
    without = [item.problem for item in items if item.mp3 is None]
    also = f"; {len(without)} of them without audio: {without[0]}" if without else ""
    say(f"{path}: {count_of(len(items), 'passage')} to review, the least certain first{also}")
    return len(without)


def write_redacted_audio(results: Iterable[Stored], folder: Path) -> int:
    """Write copies of the recordings in which redacted words are silence.

    Args:
        results: Stored results, with what was redacted.
        folder: Where the copies go. One that is there stays, and counts as a problem.

    Returns:
        The number of transcripts without a copy. A line names each of the first.

    Raises:
        OutputError: A copy cannot be written.
    """
    from fastscribe.readable.redacted_audio import MARGIN_S, copy_path, problem_of, write_copy
    from fastscribe.readable.row_audio import open_row

    num_written = num_places = num_failed = 0
    for transcript, row in _transcripts(results):
        try:
            problem = problem_of(transcript.redacted, transcript.audio.path)
            if problem is not None:
                raise problem
            spans = transcript.redacted or ()
            audio = open_row(row)
            path = copy_path(folder, audio)
            if status_of(path) is not None:
                raise AudioError(audio.path, f"{path} is there already: remove it, or name another folder")
            write_copy(path, audio, spans)
        except (AudioError, ManifestError) as error:
            num_failed += 1
            if num_failed <= _MAX_LINES:
                say(f"no copy: {error}")
            continue
        num_written, num_places = num_written + 1, num_places + len(spans)
    places = "1 place is" if num_places == 1 else f"{num_places:,} places are"
    copies = count_of(num_written, "recording")
    also = f"; {num_failed:,} have no copy" if num_failed else ""
    say(f"{folder}: copies of {copies}, in which {places} silent, with {MARGIN_S:g} s around the words{also}")
    return num_failed


def _transcripts(results: Iterable[Stored]) -> Iterator[tuple[Transcript, ResultRow]]:
    from fastscribe.types import Transcript

    for result, row in results:
        if isinstance(result, Transcript):
            yield result, row


def _item(passage: Passage, opened: dict[tuple[str, int], AudioInfo | FastscribeError]) -> ReviewItem:
    """Return what the page shows of a passage. Recordings are opened once."""
    from fastscribe.readable.clips import mp3_clip
    from fastscribe.readable.row_audio import open_row
    from fastscribe.report.review_page import ReviewItem

    key = passage.row.file, passage.row.line
    if key not in opened:
        try:
            opened[key] = open_row(passage.row)
        except (AudioError, ManifestError) as error:
            opened[key] = error
    audio, mp3, problem = opened[key], None, ""
    if isinstance(audio, FastscribeError):
        problem = str(audio)
    else:
        try:
            mp3 = mp3_clip(audio, passage.start_s, passage.end_s, passage.transcript.redacted or ())
        except AudioError as error:
            problem = str(error)
    words = [(word.text, word.confidence) for word in passage.words]
    return ReviewItem(_row(passage, audio), words, _name(passage), mp3, problem)


def _row(passage: Passage, audio: AudioInfo | FastscribeError) -> dict[str, object]:
    """Return the manifest row of a passage, without its text: an absolute path, so that it may lie in any folder."""
    from fastscribe.readable.row_audio import absolute_path

    path = passage.transcript.audio.path if isinstance(audio, FastscribeError) else absolute_path(audio)
    offset_s = (passage.transcript.audio.row or {}).get("offset")
    begin_s = passage.start_s + (float(offset_s) if isinstance(offset_s, (int, float)) else 0.0)
    track = (passage.transcript.audio.row or {}).get("audio_track")
    return {
        "audio_filepath": path,
        "offset": round(begin_s, 3),
        "duration": round(passage.end_s - passage.start_s, 3),
        "text": "",
        "pred_text": " ".join(word.text for word in passage.words),
        **({} if track is None else {"audio_track": track}),
    }


def _name(passage: Passage) -> str:
    minutes, seconds = divmod(passage.words[0].start_s, 60)
    speaker = f", {passage.words[0].speaker}" if passage.words[0].speaker is not None else ""
    return (
        f"{passage.transcript.audio.path}, {minutes:.0f}:{seconds:04.1f}{speaker} (confidence {passage.confidence:.2f})"
    )
