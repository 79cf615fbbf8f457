"""Runs over short recordings into a folder or a store, and what is there afterwards.

Each command is a process of its own: a fork of one that has the model loaded (forked_runs.py).
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from fastscribe._system import remote
from tests.conftest import AUDIO, MODEL
from tests.helpers.forked_runs import Runs

CLIPS = {
    "one": AUDIO / "e03_one_second_exact.flac",
    "two": AUDIO / "e04_odd_len_20479.flac",
    "three": AUDIO / "e09_float32_22k05.wav",
    "long": AUDIO / "01_0_00010.flac",
}
SETTINGS = ("-m", str(MODEL), "--dtype", "fp32", "--batch-size", "2", "--threads", "2", "--no-progress")
_OWN = re.compile(r"(journal|transcripts|report)[^/]*\.jsonl?|\.lock.*|\.fastscribe/.*")
_CUE_LINE = re.compile(r"\d+|WEBVTT|.* --> .*")

# A process that does what it should not do ends with a traceback, which no run may have.
NO_MODEL = """
from fastscribe.transcriber import Transcriber
def load(*given): raise AssertionError("the model is loaded")
Transcriber.load = load
"""


class Scene:
    """Recordings, and a place for their results."""

    def __init__(self, runs: Runs, folder: Path, place: Path | str) -> None:
        self.inputs, self.place = folder / "in", place
        self._runs = runs

    def recording(self, name: str, clip: str = "one") -> Path:
        """Make a recording, or another one of the same name."""
        path = self.inputs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CLIPS[clip], path)
        return path

    def transcribe(self, *inputs: Path, formats: str = "srt", code: str = "", more: tuple[str, ...] = ()) -> int:
        """Run the command after some code, over all recordings if none are given. Return its exit code."""
        given = [*map(str, inputs or [self.inputs]), "-o", str(self.place), "-f", formats, *more]
        return self.command("transcribe", *given, *SETTINGS, code=code)

    def command(self, *given: str, code: str = "") -> int:
        return self._runs(list(given), code)

    @property
    def said(self) -> str:
        """What the last command printed."""
        return self._runs.said()

    def names(self) -> list[str]:
        """Return the names of all files or objects, also those of the run's own."""
        if isinstance(self.place, Path):
            files = [path for path in self.place.rglob("*") if path.is_file()]
            return sorted(path.relative_to(self.place).as_posix() for path in files)
        return sorted(one.url.removeprefix(f"{self.place}/") for one in list(remote.list_objects(self.place)))

    def files(self) -> dict[str, bytes]:
        """Return the files of results by name, and what else is there that is not the run's own."""
        return {name: self.read(name) for name in self.names() if not _OWN.fullmatch(name)}

    def texts(self, format: str = "srt") -> dict[str, str]:
        """Return the words of all files of a format, by name."""
        words = {}
        for name, content in self.files().items():
            if name.endswith(f".{format}"):
                lines = [line for line in content.decode().splitlines() if not _CUE_LINE.fullmatch(line)]
                words[name] = " ".join(filter(None, lines))
        return words

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read("transcripts.jsonl").splitlines()]

    def row_texts(self) -> dict[str, str]:
        """Return each row's text by the recording's path below the inputs. No recording has two rows."""
        rows = self.rows()
        found = {str(Path(row["audio_filepath"]).relative_to(self.inputs)): row.get("text", "") for row in rows}
        assert len(found) == len(rows)
        return found

    def read(self, name: str) -> bytes:
        if isinstance(self.place, Path):
            return (self.place / name).read_bytes()
        return remote.read_object(f"{self.place}/{name}").data

    def write(self, name: str, content: bytes) -> None:
        if isinstance(self.place, Path):
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_bytes(content)
        else:
            remote.write_object(f"{self.place}/{name}", content)

    def remove(self, name: str) -> None:
        if isinstance(self.place, Path):
            (self.place / name).unlink()
        else:
            remote.delete_object(f"{self.place}/{name}")
