"""A run's folder: what is cleared, what is refused, and who may read the files."""

from __future__ import annotations

import errno
import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import OutputError, UsageError
from fastscribe.training.batch_search import cached_batch_sizes
from fastscribe.training.state import RunFolder
from tests.conftest import MODELS

WRITTEN = ["state.pt", ".state.pt.fastscribe.part", "train.jsonl", ".train.jsonl.fastscribe.part", "train.png"]
WRITTEN += ["batch_sizes.json", "batch_sizes-3.json", ".batch_sizes.json.fastscribe.part"]
WRITTEN += ["best/config.json", "last/config.json", ".best.fastscribe.part/x", ".last.fastscribe.old/x"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_clear(folder: RunFolder) -> None:
    for name in (*WRITTEN, "mine.txt", "mine/x"):
        path = folder.path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    folder.clear()
    assert sorted(path.name for path in folder.path.iterdir()) == ["mine", "mine.txt"]


def test_clear_keeps_copies(folder: RunFolder) -> None:
    checkpoint = read_checkpoint(MODELS / "tdt_demo" / "model.nemo")
    theirs = [folder.path / f"{name}.{end}" / "note.txt" for name in ("best", "last") for end in ("old", "part")]
    for path in theirs:
        path.parent.mkdir()
        path.write_text("mine")
    for model in (folder.best, folder.last, folder.best):
        folder.save_model(model, checkpoint, torch.bfloat16)
    folder.clear()
    assert [path.read_text() for path in theirs] == ["mine"] * 4 and not folder.best.exists()


def test_clear_fails(folder: RunFolder) -> None:
    (folder.best / "deep.json").mkdir(parents=True)
    (folder.best / "config.json").touch()
    with pytest.raises(OutputError):
        folder.clear()


THEIRS = {
    "train.jsonl": b'{"audio_filepath": "a.wav", "text": "a manifest"}\n',
    "state.pt": b"PK\3\4 of another program",
    "train.png": b"\x89PNG\r\n\x1a\n a photograph",
    "batch_sizes.json": b'{"mine": 1}',
    "best/config.json": b'{"model_type": "of somebody else\'s"}',
    "last/notes": b"mine",
}


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("is_link", [False, True])
def test_foreign_files_refused(
    folder: RunFolder, tmp_path_factory: pytest.TempPathFactory, name: str, is_link: bool
) -> None:
    path = folder.path / name
    top = folder.path / name.split("/")[0]
    if is_link:
        target = tmp_path_factory.mktemp("elsewhere") / top.name
        target.mkdir() if top != path else target.touch()
        top.symlink_to(target)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(THEIRS[name])
    for refused in (folder.check, folder.clear):
        with pytest.raises(UsageError, match=re.escape(str(top))):
            refused()
    assert top.is_symlink() if is_link else path.read_bytes() == THEIRS[name]


def test_own_files_accepted(folder: RunFolder) -> None:
    folder.save_state({"step": 1})
    folder.append({"step": 1, "loss": 1.0})
    folder.save_model(folder.best, read_checkpoint(MODELS / "tdt_demo" / "model.nemo"), torch.bfloat16)
    (folder.best / "notes.txt").write_text("mine")
    cached_batch_sizes(folder.batch_sizes, {}, [], lambda bucket, rows: True)
    folder.check()
    folder.save_model(folder.best, read_checkpoint(MODELS / "tdt_demo" / "model.nemo"), torch.bfloat16)
    assert (folder.best / "notes.txt").read_text() == "mine"
    folder.clear()
    assert [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*")] == ["best", "best/notes.txt"]


def test_lock(folder: RunFolder, tmp_path: Path) -> None:
    """A new folder that gets nothing but the lock is removed."""
    with folder.locked(), pytest.raises(UsageError, match="another run is writing here"), folder.locked():
        pass
    new = RunFolder(tmp_path / "new" / "deeper")
    with new.locked():
        assert new.path.exists()
    assert not new.path.exists()
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match="file/run: cannot be written: "),
        RunFolder(tmp_path / "file" / "run").locked(),
    ):
        pass


def test_a_state_of_another_version(folder: RunFolder) -> None:
    torch.save({"format_version": 5}, folder.state)
    said = (
        f"{folder.state}: of another version, whose runs do not go on; use another folder, or --overwrite to start over"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        folder.load_state()
    folder.last.mkdir()
    said += f"; --init {folder.last} in another folder trains its model further"
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        folder.load_state()


@pytest.mark.parametrize(
    "room", [800, 4000, 40_000]
)  # torch's error hides the disk's, unless closing the file fails too
def test_full_disk(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    class FullDisk(io.BytesIO):
        def write(self, content: Any) -> int:
            if self.tell() + memoryview(content).nbytes > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    monkeypatch.setattr("fastscribe._system.safe_files.open_temp", lambda path: FullDisk())
    with pytest.raises(OutputError, match=f"{re.escape(str(folder.state))}.*{os.strerror(errno.ENOSPC)}"):
        folder.save_state({"weights": [torch.zeros(20_000), torch.zeros(10)]})


def test_log_is_json(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.append({"loss": float("nan")})


@pytest.mark.linux
def test_model_permissions(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = read_checkpoint(MODELS / "tdt_demo" / "model.nemo")
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    before = os.umask(0o022)
    try:
        folder.save_model(folder.best, checkpoint, torch.bfloat16)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.best.iterdir()} == {0o644}
    written = {path.name for path in folder.best.iterdir()} | {".model.safetensors.fastscribe.part"}
    assert written | {".best.fastscribe.part", folder.path.name} == set(synced)
