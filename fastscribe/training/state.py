"""Where a run stands, on disk: written whole or not at all, and read back so that the run goes on as if never stopped.

`state.pt` has everything that decides the steps to come; randomness is none of it, because each step draws from
generators seeded by its own number. `train.jsonl` is the log: a line every few steps and one a validation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastscribe.checkpoint import Checkpoint, native
from fastscribe.errors import OutputError, UsageError
from fastscribe.resume.folder_lock import FolderLock
from fastscribe.unfinished import part_of

FORMAT_VERSION = 3


class RunFolder:
    """What a run leaves: `best` and `last` (models that transcribe reads), the state, the log, a plot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state, self.log, self.plot = path / "state.pt", path / "train.jsonl", path / "train.png"
        self.best, self.last = path / "best", path / "last"
        self.batch_sizes = path / "batch_sizes.json"

    def lock(self) -> FolderLock:
        """Makes the folder where it is missing. Raises UsageError where another run writes here; OutputError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return FolderLock(self.path / "train.lock")
        except OSError as error:
            raise OutputError(str(self.path), error) from error

    def clear(self) -> None:
        """Removes what a run wrote, and nothing else. Raises OutputError."""
        try:
            for folder in (self.best, self.last):
                for each in (folder, part_of(folder), _former(folder)):
                    _remove(each)
            written = (self.state, part_of(self.state), self.log, part_of(self.log), self.plot)
            for path in (*written, *self.path.glob("batch_sizes*.json"), *self.path.glob("batch_sizes*.json.*.part")):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(str(self.path), error) from error

    def refuse_models(self) -> None:
        """Of a run whose state is gone, or of none: a run that starts here would replace them. Raises UsageError."""
        if self.best.exists() or self.last.exists():
            raise UsageError(
                f"{self.path}: holds models but no state to go on from; use another folder, or --overwrite to replace them"
            )

    def save_state(self, values: Mapping[str, Any]) -> None:
        part = part_of(self.state)
        try:
            with part.open("wb") as file:
                torch.save({"format_version": FORMAT_VERSION, **values}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.state)
        except (OSError, RuntimeError) as error:  # torch makes RuntimeErrors of a full disk
            part.unlink(missing_ok=True)
            problem = error if isinstance(error, OSError) else OSError(str(error).splitlines()[0])
            raise OutputError(str(self.state), problem) from error

    def load_state(self, device: torch.device) -> dict[str, Any] | None:
        """None where no run has got so far. Raises UsageError for a file that is none of ours."""
        if not self.state.exists():
            return None
        try:
            values = torch.load(self.state, map_location=device, weights_only=True)
            right = values["format_version"] == FORMAT_VERSION
        except Exception as error:  # whatever torch and pickle make of damaged bytes
            raise UsageError(f"{self.state}: cannot be read ({type(error).__name__}); use another folder") from error
        if not right:
            raise UsageError(f"{self.state}: of another version; use another folder")
        return dict(values)

    def save_model(self, folder: Path, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        """A folder that replaces the former one in one step, or nearly: what is there is always a whole one."""
        new, old = part_of(folder), _former(folder)
        _remove(new)
        try:
            native.write(checkpoint, new, dtype)
            _settle(new)
            _remove(old)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
            _remove(old)
        except OSError as error:
            raise OutputError(str(folder), error) from error

    def append(self, row: Mapping[str, Any]) -> None:
        try:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise OutputError(str(self.log), error) from error

    def rows(self) -> list[dict[str, Any]]:
        """The log's lines; a half-written last one is none."""
        if not self.log.exists():
            return []
        rows = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def start_log(self) -> None:
        """Without the lines of a run that ended before its first state. Raises OutputError."""
        try:
            self.log.unlink(missing_ok=True)
            self.plot.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(str(self.log), error) from error

    def forget_after(self, step: int, keep_validation: bool = True) -> None:
        """Drops the log's lines of steps that are to come again, and that step's validation unless it is to be kept."""
        kept = [
            row
            for row in self.rows()
            if row.get("step", 0) < step or (row.get("step") == step and (keep_validation or "validation" not in row))
        ]
        part = part_of(self.log)
        try:
            part.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            os.replace(part, self.log)
        except OSError as error:
            raise OutputError(str(self.log), error) from error


def _former(folder: Path) -> Path:
    """Where a model is while the next takes its name."""
    return folder.with_name(f".{folder.name}.fastscribe.old")


def _settle(folder: Path) -> None:
    """On disk before the folder gets its name; and readable by whom the umask lets: safetensors keeps its file private."""
    mode = (folder / "config.json").stat().st_mode
    for path in (*folder.iterdir(), folder):
        if path != folder:
            path.chmod(mode)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
