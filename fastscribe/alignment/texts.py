"""The texts of recordings for forced alignment: of a manifest's rows, of one file, or of a folder with a file for each.

A text becomes the field `text` of the source's row, as a manifest has it; the cues of subtitles become the field `subtitles`.
So results, resuming and exports treat it as a manifest's: a changed text is aligned again.

The words to be spoken are found in the cues of subtitles (SubRip, WebVTT, ASS and SSA), which cue_reader.py reads. Files are
read as players read them: with or without numbers, hours and milliseconds, with any line ends, in UTF-8, UTF-16, or else
Windows-1252. What is shown but not spoken (spoken.py), or what a rolling caption repeats, is left out of the words, not of the
cue. If the names tell who speaks each cue, the cues have them as `speaker`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.text_layout import count_of, first_of
from fastscribe.alignment.spoken import spoken_cues, without_markup
from fastscribe.audio.failures import system_problem, to_failure
from fastscribe.audio.inputs import is_pipe
from fastscribe.errors import AudioError, UsageError
from fastscribe.results.formats.cue_markup import has_times, plain_text
from fastscribe.types import Failure, Source

if TYPE_CHECKING:
    from fastscribe.results.journal import Journal

MAX_TEXT_BYTES = 64 << 20  # a thousand hours of speech take less
_DOCUMENTS = (b"PK\3\4", b"%PDF-", b"\xd0\xcf\x11\xe0", b"{\\rtf", b'{"', b'{\n  "')  # of Word and others, and our rows
SUBTITLE_EXTENSIONS = (".srt", ".vtt", ".ass", ".ssa")
_EXTENSIONS = (".txt", ".md", *SUBTITLE_EXTENSIONS)  # in a folder the first one counts
_MAX_NAMED = 3  # files or recordings, in a message


@dataclass
class Texts:
    """Where the texts are: a file for one recording, or a folder; None: in the manifests.

    Attributes:
        path: The file or the folder.
        encodings: The files so far whose encoding is a guess.
        passed_over: The files so far that lie beside the text of a recording.
        edited: The files so far that count before others, because they were edited since the run whose folder this is.
        edited_too: The files so far that were edited as well, each with the one that counts.
        unnamed: The files of subtitles so far whose names of speakers are not used.
        without: The recordings so far that have no text in the folder.
        num_found: How many have one.
    """

    path: Path | None = None
    encodings: dict[Path, str] = field(default_factory=dict)
    passed_over: list[Path] = field(default_factory=list)
    edited: list[Path] = field(default_factory=list)
    edited_too: list[tuple[Path, Path]] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    num_found: int = 0

    def check(self, has_several: bool = False, output: Path | None = None, overwrite: bool = False) -> None:
        """Check the path before a run.

        Args:
            has_several: There are several recordings.
            output: The folder of the results.
            overwrite: The results there are removed first.

        Raises:
            UsageError: The path is missing, is one text for several recordings, or lies among results that would give way to
                those of the run: of transcribe, or of any run with `overwrite`.
        """
        if self.path is None:
            return
        if not os.path.exists(self.path):  # which is False for a name that is too long, such as the text itself
            raise UsageError(f"--text {self.path}: no such file or folder")
        if has_several and not self.path.is_dir():
            raise self._for_several()
        if output is not None and output.resolve() in (self.path.resolve(), *self.path.resolve().parents):
            from fastscribe.results.journal import read_header  # here, because NumPy would slow down --help
            from fastscribe.results.paths import journals_in

            where = "where --overwrite removes them" if overwrite else ""
            if any("--align" not in read_header(paths.journal) for paths in journals_in(output)):
                where = "among results of transcribe"
            if where:
                raise UsageError(f"--text {self.path}: the texts lie in the output folder, {where}: give another -o")

    def attach(self, source: Source | Failure) -> Source | Failure | None:
        """Return the source with its text, or a Failure; None: the folder has no text of it.

        Raises:
            UsageError: A second recording for one text.
        """
        if isinstance(source, Failure):
            return source
        try:
            row = self._row(source)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            return to_failure(source, "input", error)
        if row is None:
            self.without.append(source.path)
            return None
        self.num_found += 1
        return replace(source, row=row)

    def check_found(self) -> None:
        """Raise UsageError if no recording of a run has a text in the folder."""
        if self.without and not self.num_found:
            raise UsageError(self._without_line)

    @property
    def choices(self) -> list[str]:
        """The lines for the user about which of several texts counts, and is as somebody would expect."""
        found = []
        if self.passed_over:
            first, *rest = self.passed_over
            more = f" and {count_of(len(rest), 'other file')}" if rest else ""
            found.append(f"not read: {first}{more}, because of several texts {', '.join(_EXTENSIONS)} the first counts")
        if self.edited:
            counts = "it counts" if len(self.edited) == 1 else "they count"
            found.append(
                f"{first_of([*map(str, self.edited)], _MAX_NAMED)}: edited since the run, so {counts} before other texts"
            )
        return found

    @property
    def lines(self) -> list[str]:
        """The lines for the user about files that were not read as UTF-8, or not at all."""
        found = []
        if self.encodings:
            (file, encoding), *others = self.encodings.items()
            more = f" (and {count_of(len(others), 'other file')} likewise)" if others else ""
            found.append(f"{file}: not UTF-8: read as {encoding}{more}; save it as UTF-8 if letters are wrong")
        if self.edited_too:
            (other, counts_first), *more_edited = self.edited_too
            more = f" (and {count_of(len(more_edited), 'other file')} likewise)" if more_edited else ""
            found.append(f"{other} was edited too, and is not read: {counts_first} counts{more}")
        found += unused_names_lines(self.unnamed)
        return [*found, self._without_line] if self.without else found

    @property
    def _without_line(self) -> str:
        number, has = count_of(len(self.without), "recording"), "has" if len(self.without) == 1 else "have"
        names = first_of(self.without, _MAX_NAMED)
        return (
            f"{number} left out that {has} no text ({', '.join(_EXTENSIONS)}) in {self.path}, or an empty one: {names}"
        )

    def _row(self, source: Source) -> dict[str, Any] | None:
        row = dict(source.row or {})
        if self.path is None:
            if isinstance(row.get("text"), str):
                return row
            raise AudioError(source.path, "it has no text: --text names its file, or a manifest's row has a field text")
        row.pop("subtitles", None)
        if not self.path.is_dir():
            if source.index:
                raise self._for_several()
            return {**row, **self._read(self.path, source.path)}
        file = self._file(self.path, source)
        fields = {"text": ""} if file is None else self._read(file, source.path)
        return {**row, **fields} if fields["text"].strip() else None

    def _file(self, folder: Path, source: Source) -> Path | None:
        """Return the text of a recording in a folder, by the name of its files in a run, by its place, or by its own name."""
        place = PurePosixPath(source.id).with_suffix("")
        there = list[Path]()
        for name in dict.fromkeys((*self._names_in_run(source), str(place), place.name)):
            files = [folder / f"{name}{extension}" for extension in _EXTENSIONS]
            found = [file for file in files if file.is_file()]
            if there and name == str(place):  # an edited text that --overwrite left, so that its run took another name
                there += [file for file in found if str(file) not in self._written]
            there = there or found
        if len(there) > 1 and (edited := self._edited(there)):
            self.edited.append(edited[0])
            self.edited_too += ((other, edited[0]) for other in edited[1:])
            return edited[0]
        self.passed_over.extend(there[1:])
        return there[0] if there else None

    def _edited(self, files: Sequence[Path]) -> list[Path]:
        """Return which of several texts are not as the run wrote them whose folder this is; none if it wrote none of them."""
        if not any(str(file) in self._written for file in files):
            return []
        return [file for file in files if self._written.get(str(file)) != crc32(safe_read(file, MAX_TEXT_BYTES))]

    @cached_property
    def _written(self) -> dict[str, int]:
        """The CRC-32 of each file of the run whose folder this is."""
        from fastscribe.results.journal import read_entries
        from fastscribe.results.paths import journals_in

        assert self.path is not None
        return {
            str(self.path / f"{entry.name}.{format}"): mark.crc
            for paths in journals_in(self.path)
            for entry in read_entries(paths.journal)
            for format, mark in entry.files.items()
        }

    def _names_in_run(self, source: Source) -> Iterator[str]:
        """Yield the name of a recording's files in the run whose folder this is, if it has any: one that moved keeps its."""
        from fastscribe.results.journal_ledger import key_of

        for journal in self._journals:
            entry_index = journal.find(key_of(source))
            if entry_index is not None and (name := journal.entry(entry_index).name):
                yield name

    @cached_property
    def _journals(self) -> list[Journal]:
        """The journals of the run whose folder this is; of another version they say nothing."""
        from fastscribe.results.journal import read_journal
        from fastscribe.results.paths import journals_in

        assert self.path is not None
        found = []
        for paths in journals_in(self.path):
            with suppress(UsageError):
                found.append(read_journal(paths.journal))
        return found

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
                words, cues, has_unused_names = read_subtitles(text, format, encoding)
                fields = {"text": words, "subtitles": cues}
                if has_unused_names:
                    self.unnamed.append(str(file))
            except NoCues as error:
                if text.removeprefix("WEBVTT").strip() and not (format == "ass" and _is_empty_ass(text)):
                    raise AudioError(path, f"{os.fspath(file)}: {error}: no subtitles to align") from None
                fields = {"text": ""}  # as of music
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
_MAX_REPEATED = 20  # lines of a rolling caption, which has two or three


def _is_empty_ass(text: str) -> bool:
    return "[events]" in text.lower() and re.search(r"(?im)^\s*dialogue\s*:", text) is None


class NoCues(ValueError):
    """A file of subtitles without a cue; the message says what is wrong."""


def decode(content: bytes) -> tuple[str, str | None]:
    """Return a file's text, and its encoding if that is a guess: without a mark at its begin, it is not UTF-8."""
    for mark, encoding in ((b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if content.startswith(mark):
            return content.decode(encoding, "replace"), None
    if zeros := content[:4096].count(b"\0"):
        is_little = content[1:4096:2].count(b"\0") * 2 > zeros
        guess = "utf-16-le" if is_little else "utf-16-be"
    else:
        with suppress(UnicodeDecodeError):
            return content.decode("utf-8-sig"), None
        guess = "windows-1252"
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


def read_subtitles(text: str, format: str, encoding: str | None = None) -> tuple[str, dict[str, Any], bool]:
    """Return the words to be spoken, a line for each cue, and the subtitles as a row has them (results/formats/given_cues.py).

    Then True if they have names of speakers that do not tell who speaks the cues.

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
    names = [[plain_text(name, format) for name in cue.pop("names", ()) if name] for cue in cues]
    words, speakers = spoken_cues(_without_repeats(shown), names)
    begins_with_name = bool(next((name for text, name in zip(words, speakers, strict=True) if text), ""))
    is_told = None not in speakers and (begins_with_name or len(set(filter(None, speakers))) > 1)
    speaker = ""
    for cue, text, name in zip(cues, words, speakers, strict=True) if is_told else ():
        speaker = name or speaker
        cue["speaker"] = speaker if name or text else ""  # a sound has none
    given = {"format": format, "encoding": encoding, "header": header, "cues": cues}
    has_unused_names = not is_told and any(name != "" for name in speakers)
    return "\n".join(words), {name: value for name, value in given.items() if value}, has_unused_names


def unused_names_lines(where: Sequence[str]) -> list[str]:
    """Return a line about texts with names of speakers that do not tell who speaks; none without such texts."""
    why = "other words come before the only one, or two are in a cue"
    return [f"{first_of(where, _MAX_NAMED)}: names of speakers are not used: {why}"] if where else []


def _without_repeats(cues: Sequence[list[str]]) -> list[list[str]]:
    """Return the lines of each cue without those that rolling captions, such as YouTube's, repeat from the cue before."""
    repeated = [0, *(_num_repeated(before, after) for before, after in pairwise(cues))]
    is_rolling = sum(map(bool, repeated)) >= max(2, (len(cues) - 1) / 2)
    return [lines[count:] for lines, count in zip(cues, repeated, strict=True)] if is_rolling else list(cues)


def _num_repeated(before: Sequence[str], after: Sequence[str]) -> int:
    counts = range(min(len(before), len(after), _MAX_REPEATED), 0, -1)
    return next((count for count in counts if any(after[:count]) and before[-count:] == after[:count]), 0)
