"""The texts of recordings for forced alignment: of a manifest's rows, of one file, or of a folder with a file for each.

A text becomes the field `text` of the source's row, as a manifest has it; the cues of subtitles become the field `subtitles`.
So results, resuming and exports treat it as a manifest's: a changed text is aligned again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fastscribe._system.safe_open import safe_read
from fastscribe._system.text_layout import count_of
from fastscribe.alignment.subtitle_files import (
    OTHER_SUBTITLES,
    SUBTITLE_EXTENSIONS,
    NoCues,
    decode,
    format_of,
    read_subtitles,
)
from fastscribe.audio.failures import system_problem, to_failure
from fastscribe.errors import AudioError, UsageError
from fastscribe.types import Failure, Source

MAX_TEXT_BYTES = 64 << 20  # a thousand hours of speech take less
_DOCUMENTS = (b"PK\3\4", b"%PDF-", b"\xd0\xcf\x11\xe0", b"{\\rtf")  # of Word, LibreOffice and others
_EXTENSIONS = (".txt", *SUBTITLE_EXTENSIONS)  # in a folder the first one counts


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
        others = ", ".join(SUBTITLE_EXTENSIONS)
        raise AudioError(source.path, f"it has no text: {names} is not in {folder}, nor one with {others}")

    def _read(self, file: Path, path: str) -> dict[str, Any]:
        """Return the fields of a file's text.

        Raises:
            AudioError: The recording `path` has a file that cannot be read, or is of another kind.
        """
        if file.suffix.lower() in OTHER_SUBTITLES:
            convert = f"ffmpeg -i {file.name} {file.stem}.srt"
            raise AudioError(
                path, f"{file}: subtitles of this kind are not read: make SubRip of them, such as by {convert}"
            )
        try:
            content = safe_read(file, MAX_TEXT_BYTES)
        except OSError as error:
            raise AudioError(path, f"{os.fspath(file)}: {system_problem(error)}") from None
        text, encoding = decode(content)
        format = format_of(text, file.suffix.lower())
        if format is None:
            return {"text": _utf_8(content, file, path)}
        try:
            words, cues = read_subtitles(text, format, encoding)
        except NoCues as error:
            raise AudioError(path, f"{os.fspath(file)}: {error}: no subtitles to align") from None
        if encoding is not None:
            self.encodings[file] = encoding
        return {"text": words, "subtitles": cues}

    def _for_several(self) -> UsageError:
        return UsageError(
            f"--text {self.path}: is one text, and there are several recordings: give a folder with a text for each"
        )


def _utf_8(content: bytes, file: Path, path: str) -> str:
    if content.startswith(_DOCUMENTS):
        raise AudioError(path, f"{os.fspath(file)}: a document, not text: save it as text in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AudioError(path, f"{os.fspath(file)}: not valid UTF-8 at byte {error.start}: save it as UTF-8") from None
