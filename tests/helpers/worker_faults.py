"""Faults in the processes of `--devices`, which a test's own monkeypatches do not reach.

install() puts a sitecustomize module where new interpreters find it. There the names of recordings' files decide by their
beginning:

    poison   decoding it ends the process by SIGKILL
    hang     reading it blocks until release()

A process with the given number of threads cannot load its model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MODULE = """
import importlib.abc, importlib.util, os, signal, sys

FOLDER = os.path.dirname(__file__)

def named(utterance, name):
    return os.path.basename(utterance.audio.path).startswith(name)

def damage_engine(module):
    original = module.Engine.push
    def push(self, batch):
        if any(named(one, "poison") for one in batch.utterances):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, batch)
    module.Engine.push = push

def damage_loader(module):
    original = module.read_into
    def read_into(row, utterance, *rest):
        if named(utterance, "hang"):
            os.close(os.open(os.path.join(FOLDER, "gate"), os.O_RDONLY))  # waits for a writer, without processor time
        return original(row, utterance, *rest)
    module.read_into = read_into

def damage_recognizer(module):
    if os.environ.get("OMP_NUM_THREADS") == "{broken_threads}":
        def build(*given):
            raise MemoryError("no memory left for a model")
        module.Recognizer.build = build

FAULTS = {{
    "fastscribe.pipeline.engine": damage_engine,
    "fastscribe.pipeline.loader": damage_loader,
    "fastscribe.pipeline.recognizer": damage_recognizer,
}}

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        damage = FAULTS.pop(name, None)
        if damage is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            damage(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, broken_threads: int = 0) -> None:
    """Put the module into a folder, and the folder on the path of interpreters that start from now on."""
    os.mkfifo(folder / "gate")
    (folder / "sitecustomize.py").write_text(_MODULE.format(broken_threads=broken_threads), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


@contextmanager
def release(folder: Path) -> Iterator[None]:
    """Let the reads that hang go on, and no read hang during the block."""
    gate = os.open(folder / "gate", os.O_RDWR)
    try:
        yield
    finally:
        os.close(gate)
