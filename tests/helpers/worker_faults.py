"""Faults in the processes of `--devices`, which a test's own monkeypatches do not reach.

install() puts a sitecustomize module where new interpreters find it. There the names of recordings' files decide by their
beginning:

    hang       reading it blocks for ever
    stall      preparing it blocks for ever
    crashread  reading it ends the helper by SIGKILL
    crashtext  making its text ends the helper by SIGKILL

A device's process knows no names: it ends by SIGKILL when it decodes samples that begin with POISON. A device's process with
the given number of threads cannot load its model.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from fastscribe.types import Utterance

POISON = (12345, -12345, 12345, -12345)  # int16

_SITECUSTOMIZE = """
import sys
sys.path.append({root!r})
from tests.helpers import worker_faults
worker_faults.arm({folder!r}, {broken_threads!r})
sys.path.remove({root!r})
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, broken_threads: int = 0) -> None:
    """Put the module into a folder, and the folder on the path of interpreters that start from now on."""
    os.mkfifo(folder / "gate")
    root = str(Path(__file__).parents[2])
    content = _SITECUSTOMIZE.format(root=root, folder=str(folder), broken_threads=broken_threads)
    (folder / "sitecustomize.py").write_text(content, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


def arm(folder: str, broken_threads: int) -> None:
    """Damage this interpreter's modules: at once, or when they are imported."""
    faults = _faults(Path(folder), broken_threads)
    for name in faults.keys() & sys.modules.keys():
        faults.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, Finder(faults))


def _faults(folder: Path, broken_threads: int) -> dict[str, Callable[[Any], None]]:
    def hang() -> None:
        os.close(os.open(folder / "gate", os.O_RDONLY))  # waits for a writer, without processor time

    def damage_reading(module: Any) -> None:
        original = module.read_into

        def read_into(row: Any, utterance: Utterance, *rest: Any) -> Any:
            name = _name(utterance.audio)
            if name.startswith("hang"):
                hang()
            if name.startswith("crashread"):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(row, utterance, *rest)

        module.read_into = read_into

    def damage_preparation(module: Any) -> None:
        original = module.probe

        def probe(source: Any) -> Any:
            if _name(source).startswith("stall"):
                hang()
            return original(source)

        module.probe = probe

    def damage_texts(module: Any) -> None:
        original = module.TextStage.first

        def first(self: Any, parts: Any) -> Any:
            if _name(parts[0][0].audio).startswith("crashtext"):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, parts)

        module.TextStage.first = first

    def damage_engine(module: Any) -> None:
        original = module.Engine.push

        def push(self: Any, batch: Any) -> Any:
            begins = batch.samples_BS[:, : len(POISON)]
            if begins.dtype != "int16":
                begins = begins * 32768
            if (begins == POISON).all(1).any():
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, batch)

        module.Engine.push = push

    def damage_recognizer(module: Any) -> None:
        def build(*_: Any) -> None:
            raise MemoryError("no memory left for a model")

        if os.environ.get("OMP_NUM_THREADS") == str(broken_threads):
            module.Recognizer.build = build

    return {
        "fastscribe.pipeline.batch_layout": damage_reading,
        "fastscribe.pipeline.preparation": damage_preparation,
        "fastscribe.pipeline.text_stage": damage_texts,
        "fastscribe.pipeline.engine": damage_engine,
        "fastscribe.pipeline.recognizer": damage_recognizer,
    }


class Finder(importlib.abc.MetaPathFinder):
    """Calls a function with each damaged module after its import."""

    def __init__(self, faults: dict[str, Callable[[Any], None]]) -> None:
        self._faults = faults

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        damage = self._faults.pop(name, None)
        if damage is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            damage(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _name(recording: Any) -> str:
    return os.path.basename(recording.path)
