"""A program imports torch without the garbage collector, and without what only torch's compiler needs."""

from __future__ import annotations

import builtins
import gc
import importlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from fastscribe._system.late_module import import_late
from fastscribe._system.quick_start import quick_start


def test_only_the_import_of_torch_is_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.setitem(sys.modules, "torch", object())
    with quick_start():
        assert gc.isenabled()
    assert frozen == []
    monkeypatch.delitem(sys.modules, "torch")
    with quick_start():
        assert not gc.isenabled()
    assert gc.isenabled() and frozen == [False]


TORCH = """
import sys
from fastscribe._system.quick_start import quick_start
with quick_start():
    import torch
late = sys.modules["torch._meta_registrations"]
print(late is torch._meta_registrations, "torch._refs" in sys.modules)
print(late.meta_index_Tensor.__name__, "torch._refs" in sys.modules, late.__class__.__name__)
"""


def test_torch_without_what_its_compiler_needs() -> None:
    """It is there as soon as something asks for it."""
    done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False", "meta_index_Tensor True module"]


def test_a_late_module_is_run_once_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("late_a", "late_b", "user_of_b", "early"):
        (tmp_path / f"{name}.py").write_text(f"import builtins; builtins.ran.append({name!r}); value = {name!r}")
        monkeypatch.delitem(sys.modules, name, raising=False)
    ran: list[str] = []
    monkeypatch.setattr(builtins, "ran", ran, raising=False)
    early = importlib.import_module("early")
    import_late("late_a")
    import_late("late_b", before=["user_of_b"])
    import_late("early")  # has been imported: nothing to do
    late = importlib.import_module("late_a")
    importlib.import_module("late_b")
    assert not hasattr(late, "__wrapped__") and ran == ["early"]
    assert late.value == "late_a" and late.value == "late_a" and ran == ["early", "late_a"]
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        late.other  # noqa: B018
    importlib.import_module("user_of_b")
    assert ran == ["early", "late_a", "late_b", "user_of_b"] and importlib.import_module("early") is early


def test_a_late_module_that_fails_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "late_c", raising=False)
    (tmp_path / "late_c.py").write_text("import builtins; builtins.ran.append(1); first = 1 / (len(builtins.ran) - 1)")
    ran: list[int] = []
    monkeypatch.setattr(builtins, "ran", ran, raising=False)
    import_late("late_c")
    late = importlib.import_module("late_c")
    with pytest.raises(ZeroDivisionError):
        late.first  # noqa: B018
    assert late.first == 1 and len(ran) == 2


def test_a_thread_waits_for_a_late_module_that_another_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "late_d", raising=False)
    (tmp_path / "late_d.py").write_text("import builtins\nbuiltins.begins.wait(20)\nvalue = 4\n")
    begins = threading.Event()
    monkeypatch.setattr(builtins, "begins", begins, raising=False)
    import_late("late_d")
    late = importlib.import_module("late_d")
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(lambda: late.value) for _ in range(3)]
        wait(asked, timeout=0.05)
        begins.set()
        assert [one.result() for one in asked] == [4, 4, 4]


END = """
import sys
import torch, triton
from fastscribe.__main__ import main
sys.argv[1:] = ["--version"]
main()
"""


def test_triton_reports_no_leaks_at_the_end() -> None:
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fastscribe ") and done.stderr == ""
