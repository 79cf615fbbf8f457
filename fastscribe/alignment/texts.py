"""The texts of recordings for forced alignment: of a manifest's rows, of one file, or of a folder with a .txt for each.

A text becomes the field `text` of the source's row, as a manifest has it. So results, resuming and exports treat it as a
manifest's: a changed text is aligned again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from fastscribe._system.safe_open import safe_read
from fastscribe.audio.failures import system_problem, to_failure
from fastscribe.errors import AudioError, UsageError
from fastscribe.types import Failure, Source

MAX_TEXT_BYTES = 64 << 20  # a thousand hours of speech take less


@dataclass(frozen=True)
class Texts:
    """Where the texts are: a file for one recording, or a folder; None: in the manifests."""

    path: Path | None = None

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
            return replace(source, row={**(source.row or {}), "text": self._text(source)})
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            return to_failure(source, "input", error)

    def _text(self, source: Source) -> str:
        if self.path is None:
            text = (source.row or {}).get("text")
            if isinstance(text, str):
                return text
            raise AudioError(source.path, "it has no text: --text names its file, or a manifest's row has a field text")
        if not self.path.is_dir():
            if source.index:
                raise self._for_several()
            return read_text(self.path, source.path)
        names = _names(source.id)
        for name in names:
            if (self.path / name).is_file():
                return read_text(self.path / name, source.path)
        raise AudioError(source.path, f"it has no text: {' or '.join(names)} is not in {self.path}")

    def _for_several(self) -> UsageError:
        return UsageError(
            f"--text {self.path}: is one text, and there are several recordings: give a folder with a .txt for each"
        )


def _names(source_id: str) -> list[str]:
    """Return where a recording's text may be: beside its place among the inputs, or by its own name."""
    place = PurePosixPath(source_id)
    return list(dict.fromkeys((str(place.with_suffix(".txt")), place.with_suffix(".txt").name)))


def read_text(file: Path, path: str) -> str:
    """Return the content of a UTF-8 file. Raises AudioError, of the recording `path`, if it is none."""
    try:
        return safe_read(file, MAX_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AudioError(path, f"{os.fspath(file)}: not valid UTF-8 at byte {error.start}: save it as UTF-8") from None
    except OSError as error:
        raise AudioError(path, f"{os.fspath(file)}: {system_problem(error)}") from None
