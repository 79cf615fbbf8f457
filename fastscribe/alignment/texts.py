"""The texts of recordings for forced alignment: of a manifest's rows, of one file, or of a folder with a file for each.

A text becomes the field `text` of the source's row, as a manifest has it; the cues of subtitles become the field `subtitles`.
So results, resuming and exports treat it as a manifest's: a changed text is aligned again.

The words to be spoken are found in the cues of subtitles (SubRip, WebVTT, ASS and SSA), which cue_reader.py reads. Files are
read as players read them: with or without numbers, hours and milliseconds, with any line ends, in UTF-8, UTF-16, or else
Windows-1252. What is shown but not spoken is left out of the words, not of the cue: markup, the dash and the name before a
speaker's line, sounds in brackets, music signs, and the lines that a rolling caption repeats.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.text_layout import count_of
from fastscribe.audio.failures import system_problem, to_failure
from fastscribe.audio.inputs import is_pipe
from fastscribe.errors import AudioError, UsageError
from fastscribe.results.formats.cue_markup import has_times, plain_text
from fastscribe.types import Failure, Source

MAX_TEXT_BYTES = 64 << 20  # a thousand hours of speech take less
_DOCUMENTS = (b"PK\3\4", b"%PDF-", b"\xd0\xcf\x11\xe0", b"{\\rtf")  # of Word, LibreOffice and others
SUBTITLE_EXTENSIONS = (".srt", ".vtt", ".ass", ".ssa")
_EXTENSIONS = (".txt", ".md", *SUBTITLE_EXTENSIONS)  # in a folder the first one counts


@dataclass(frozen=True)
class Texts:
    """Where the texts are: a file for one recording, or a folder; None: in the manifests.

    Attributes:
        path: The file or the folder.
        encodings: The files so far whose encoding is a guess.
        passed_over: The files so far that lie beside the text of a recording.
    """

    path: Path | None = None
    encodings: dict[Path, str] = field(default_factory=dict, compare=False)
    passed_over: list[Path] = field(default_factory=list, compare=False)

    def check(self, has_several: bool = False) -> None:
        """Raise UsageError if the path is missing, or one text is given and `has_several` recordings are."""
        if self.path is None:
            return
        if not os.path.exists(self.path):  # which is False for a name that is too long, such as the text itself
            raise UsageError(f"--text {self.path}: no such file or folder")
        if has_several and not self.path.is_dir():
            raise self._for_several()

    def attach(self, source: Source | Failure) -> Source | Failure:
        """Return the source with its text, or the Failure of one without.

        Raises:
            UsageError: A second recording for one text.
        """
        if isinstance(source, Failure):
            return source
        try:
            return replace(source, row=self._row(source))
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            return to_failure(source, "input", error)

    @property
    def lines(self) -> list[str]:
        """The lines for the user about files that were not read as UTF-8, or not at all."""
        found = []
        if self.encodings:
            (file, encoding), *others = self.encodings.items()
            more = f" (and {count_of(len(others), 'other file')} likewise)" if others else ""
            found.append(f"{file}: not UTF-8: read as {encoding}{more}; save it as UTF-8 if letters are wrong")
        if self.passed_over:
            first, *rest = self.passed_over
            more = f" and {count_of(len(rest), 'other file')}" if rest else ""
            found.append(f"not read: {first}{more}, because of several texts {', '.join(_EXTENSIONS)} the first counts")
        return found

    def _row(self, source: Source) -> dict[str, Any]:
        row = dict(source.row or {})
        if self.path is None:
            if isinstance(row.get("text"), str):
                return row
            raise AudioError(source.path, "it has no text: --text names its file, or a manifest's row has a field text")
        row.pop("subtitles", None)
        if not self.path.is_dir() and source.index:
            raise self._for_several()
        return {**row, **self._read(self._file(self.path, source) if self.path.is_dir() else self.path, source.path)}

    def _file(self, folder: Path, source: Source) -> Path:
        """Return the text of a recording in a folder: beside its place among the inputs, or by its own name."""
        place = PurePosixPath(source.id)
        for at in dict.fromkeys((place, PurePosixPath(place.name))):
            files = [folder / at.with_suffix(extension) for extension in _EXTENSIONS]
            if there := [file for file in files if file.is_file()]:
                self.passed_over.extend(there[1:])
                return there[0]
        names = " or ".join(dict.fromkeys((str(place.with_suffix(".txt")), place.with_suffix(".txt").name)))
        others = ", ".join(_EXTENSIONS[1:])
        raise AudioError(source.path, f"it has no text: {names} is not in {folder}, nor one with {others}")

    def _read(self, file: Path, path: str) -> dict[str, Any]:
        """Return the fields of a file's text.

        Raises:
            AudioError: The recording `path` has a file that cannot be read, or is of another kind.
        """
        if file.suffix.lower() in OTHER_SUBTITLES:
            convert = shlex.join(("ffmpeg", "-i", str(file), f"{file.stem}.srt"))
            raise AudioError(
                path, f"{file}: subtitles of this kind are not read: make SubRip of them, such as by {convert}"
            )
        try:
            content = file.read_bytes() if is_pipe(str(file)) else safe_read(file, MAX_TEXT_BYTES)
        except OSError as error:
            raise AudioError(path, f"{os.fspath(file)}: {system_problem(error)}") from None
        text, encoding = decode(content)
        format = format_of(text, file.suffix.lower())
        if format is None:
            if content.startswith(_DOCUMENTS):
                raise AudioError(path, f"{os.fspath(file)}: a document, not text: save it as text in UTF-8")
            if encoding is not None and (found := _NO_TEXT.search(text)):
                raise AudioError(path, f"{os.fspath(file)}: not text at character {found.start()}: save it as UTF-8")
            fields: dict[str, Any] = {"text": without_markup(text) if file.suffix.lower() == ".md" else text}
        else:
            try:
                words, cues = read_subtitles(text, format, encoding)
            except NoCues as error:
                raise AudioError(path, f"{os.fspath(file)}: {error}: no subtitles to align") from None
            fields = {"text": words, "subtitles": cues}
        if encoding is not None:
            self.encodings[file] = encoding
        return fields

    def _for_several(self) -> UsageError:
        return UsageError(
            f"--text {self.path}: is one text, and there are several recordings: give a folder with a text for each"
        )


OTHER_SUBTITLES = frozenset((".dfxp", ".itt", ".lrc", ".sami", ".sbv", ".scc", ".smi", ".stl", ".sub", ".ttml", ".usf"))
_NO_TEXT = re.compile("[\0-\b\x0e-\x1f\ufffd]")
_SNIFFED_LINES = 20  # without a timing line among them, a file is a text
_SOUNDS = re.compile(
    r"\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}|（[^（）]*）|【[^【】]*】|［[^［］]*］|〔[^〔〕]*〕|\*[^*\n]+\*"
)
_DASHES, _MUSIC = "‐‑‒–—―−-", "♩♪♫♬#"
_MARKS = frozenset(_DASHES + _MUSIC + "*~_•…<>|/\\.,:;!?\"'")
_LEADING = re.compile(f"[{re.escape(f'>*•{_DASHES}{_MUSIC}')}\\s]+")
_LABEL = re.compile(r"([^:\n]{1,40}?)\s*:(?=\s|$)")
_MAX_LABEL_WORDS = 4
# Of a paragraph in our Markdown: its time and its speaker, and characters that are no markup.
_TIME_AND_SPEAKER = re.compile(r"(?:\[[\d:]+\]\s*)?(?:\*\*(.+?)\*\*(?=:))?")
_HEADING = re.compile(r"#{1,6}\s")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_OWN_NAME = re.compile(r"(?:channel|speaker) \d+")  # of a speaker without a name (--speakers)


class NoCues(ValueError):
    """A file of subtitles without a cue; the message says what is wrong."""


def decode(content: bytes) -> tuple[str, str | None]:
    """Return a file's text, and its encoding if that is a guess: without a mark at its begin, it is not UTF-8."""
    for mark, encoding in ((b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if content.startswith(mark):
            return content.decode(encoding, "replace"), None
    guess = "windows-1252"
    if zeros := content[:4096].count(b"\0"):
        is_little = content[1:4096:2].count(b"\0") * 2 > zeros
        guess = "utf-16-le" if is_little else "utf-16-be"
    else:
        try:
            return content.decode("utf-8-sig"), None
        except UnicodeDecodeError:
            pass
    return content.decode(guess, "replace"), guess


def format_of(text: str, extension: str) -> str | None:
    """Return "srt", "vtt" or "ass", by a file's content and then by its extension; None: a text without cues."""
    head = text.lstrip()[:10_000]
    if re.match(r"WEBVTT(\s|$)", head):
        return "vtt"
    if re.match(r"(?i)\[script info\]|\[v4\+? styles\]|\[events\]", head):
        return "ass"
    if extension in SUBTITLE_EXTENSIONS:
        return "ass" if extension == ".ssa" else extension[1:]
    lines = [line for line in head.splitlines() if line.strip()][:_SNIFFED_LINES]
    return "srt" if any(map(has_times, lines)) else None


def read_subtitles(text: str, format: str, encoding: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the words to be spoken, a line for each cue, and the subtitles as a row has them (results/formats/given_cues.py).

    Args:
        text: A file's content.
        format: From format_of().
        encoding: From decode().

    Raises:
        NoCues: It has no cue.
    """
    from fastscribe.alignment.cue_reader import read_cues

    header, cues = read_cues(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", ""), format)
    if not cues:
        raise NoCues("it has no cue with a time")
    cues = sorted(cues, key=lambda cue: float(cue["start"]))
    shown = [plain_text(cue["text"], format).split("\n") for cue in cues]
    given = {
        "format": format,
        **({"encoding": encoding} if encoding else {}),
        **({"header": header} if header else {}),
        "cues": cues,
    }
    return "\n".join(_spoken(_without_repeats(shown))), given


def _without_repeats(cues: Sequence[list[str]]) -> list[list[str]]:
    """Return the lines of each cue without those that rolling captions, such as YouTube's, repeat from the cue before."""
    repeated = [0, *(_num_repeated(before, after) for before, after in pairwise(cues))]
    is_rolling = sum(map(bool, repeated)) >= max(2, (len(cues) - 1) / 2)
    return [lines[count:] for lines, count in zip(cues, repeated, strict=True)] if is_rolling else list(cues)


def _num_repeated(before: Sequence[str], after: Sequence[str]) -> int:
    counts = range(min(len(before), len(after)), 0, -1)
    return next((count for count in counts if any(after[:count]) and before[-count:] == after[:count]), 0)


def _spoken(cues: Sequence[Sequence[str]]) -> list[str]:
    """Return the words of each cue, separated by single spaces; of a cue without words an empty text."""
    texts = [_SOUNDS.sub(" ", _SOUNDS.sub(" ", "\n".join(lines))) for lines in cues]  # twice: ([music])
    lines = [
        [_LEADING.sub("", line, count=1) if _LEADING.match(line) else line for line in one.split("\n")] for one in texts
    ]
    labels = _labels((line for one in lines for line in one), len(cues))
    return [" ".join(word for line in one for word in _words(line, labels)) for one in lines]


def without_markup(text: str) -> str:
    """Return Markdown, as `-f md` writes it, as `-f txt` writes it: without headings and times. Lines keep their numbers."""
    lines = ("" if _HEADING.match(line) else _TIME_AND_SPEAKER.sub(r"\1", line, count=1) for line in text.splitlines())
    return _ESCAPED.sub(r"\1", "\n".join(lines))


def without_names(text: str) -> tuple[str, list[str | None]]:
    """Return a text without the speakers' names before its lines, as `-f txt` writes them, and who speaks each line.

    A line without a name is of the speaker before. None: before the first name.
    """
    lines = [line.lstrip() for line in text.splitlines()]
    labels = _labels(lines, max(2, sum(map(bool, lines))))
    speaker, speakers = None, []
    for number, line in enumerate(lines):
        if (label := _LABEL.match(line)) and label[1] in labels:
            speaker, lines[number] = label[1], line[label.end() :].lstrip()
        speakers.append(speaker)
    return "\n".join(lines), speakers


def _labels(lines: Iterable[str], num_lines: int) -> set[str]:
    """Return the speakers' names among what stands before a colon at the begin of a line."""
    counts = Counter(label[1] for line in lines if (label := _LABEL.match(line)))
    is_named = counts.total() * 2 > num_lines  # the minutes of a call, say, with a name before each line
    if counts.total() == num_lines > 1:  # as our own texts of dialogues are
        return {label for label in counts if _may_be_label(label)}
    return {label for label, count in counts.items() if _is_label(label, count > 1, is_named)}


def _may_be_label(label: str) -> bool:
    return len(label.split()) <= _MAX_LABEL_WORDS and any(map(str.isalpha, label))


def _is_label(label: str, is_repeated: bool, is_named: bool) -> bool:
    """Return True for a speaker's name: one of our own, in capitals, without small initials, or one of a text full of names."""
    if not _may_be_label(label):
        return False
    if label.isupper() or _OWN_NAME.fullmatch(label) or (is_repeated and is_named):
        return True
    return (is_repeated or is_named) and not any(word[0].islower() for word in label.split())


def _words(line: str, labels: set[str]) -> Iterator[str]:
    label = _LABEL.match(line)
    if label and label[1] in labels:
        line = line[label.end() :]
    for word in line.split():
        if not _MARKS.issuperset(word):
            yield word.strip(_MUSIC[:-1])
