"""The garbage collector is off while a program imports torch, and on behind it."""

from __future__ import annotations

import gc
import sys

import pytest

from fastscribe._system.collector import without_collector


def test_only_the_import_of_torch_is_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.setitem(sys.modules, "torch", object())
    with without_collector():
        assert gc.isenabled()
    assert frozen == []
    monkeypatch.delitem(sys.modules, "torch")
    with without_collector():
        assert not gc.isenabled()
    assert gc.isenabled() and frozen == [False]
