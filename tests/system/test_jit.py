"""Machine code is kept, renewed with its sources, and not needed on disk; threads share work to the interpreter's end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest

from fastscribe._system import jit
from fastscribe._system.jit import LAST_NUMBA_TRIED, compile_cached, digest_of, made_once
from fastscribe._system.thread_shares import equal_parts, share, together
from fastscribe.families.blocks import row_kernels
from tests.conftest import ROOT
from tests.helpers.warm_process import LIBRARIES_ALONE


def _twice(x):
    return 2 * x


def test_code_that_cannot_be_kept_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: numba raises at the first call, after compiling."""
    from numba.core.caching import FunctionCache

    asked = []

    def full(*arguments: object) -> None:
        asked.append(arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FunctionCache, "save_overload", full)
    assert compile_cached(_twice)(np.float32(21.5)) == 43
    assert asked


@contextmanager
def forks(tmp_path: Path, function: str) -> Iterator[Callable[[str], str]]:
    """Yield what calls a module's function with words, in a new fork of a process that has imported numba and compiled nothing.

    The machine code is kept in the folder.
    """
    (tmp_path / "module.py").write_text(MODULE)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", f"import module; module.serve(module.{function})"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes) as process:  # type: ignore[call-overload]

        def run(words: str) -> str:
            print(words, file=process.stdin)
            return process.stdout.readline().strip()

        yield run


MODULE = """
import os, sys
import numba, numpy as np
from fastscribe._system.jit import compile_cached
from fastscribe.families.blocks.row_kernels import kernels

def serve(function):
    for line in sys.stdin:
        if not os.fork():
            print(function(*line.split()), flush=True)
            os._exit(0)
        if os.wait()[1]:
            sys.exit("a fork has failed")

def halved(x_N):
    for i in range(len(x_N)):
        x_N[i] /= 2

def halves(*dtypes):
    loop, found = compile_cached(halved, nogil=True), []
    for dtype in dtypes:
        x_N = np.arange(3, dtype=dtype)
        loop(x_N)
        found += [x_N.tolist(), 'numba.cpython.charseq' in sys.modules]
    return found

def sums(dtype):
    random, zero_1 = np.random.default_rng(0), np.zeros(1, np.int64)
    shapes = (2, 1, 59, 59), (2, 59, 1, 118)
    scores_HBTT, positions_HTBP = (random.standard_normal(shape, np.float32) for shape in shapes)
    row = np.zeros((1, 59), np.float32)
    kernels(dtype, "plain")["softmax"](
        scores_HBTT, positions_HTBP, 59, np.zeros(59, np.int64), zero_1, zero_1 + 59, row, 0, 118
    )
    return scores_HBTT.tobytes().hex()
"""


@pytest.mark.posix
def test_kept_code_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    """Getting all of numba ready takes longer than to load every loop."""
    halves = [0.0, 0.5, 1.0]
    with forks(tmp_path, "halves") as run:
        assert run("float32") == f"{[halves, True]}"
        assert run("float32 float64") == f"{[halves, False, halves, True]}"
        assert run("float64 float32") == f"{[halves, False, halves, True]}"  # the second one by numba's own way
        for ending in ("nbi", "nbc"):
            for kept in tmp_path.rglob(f"*.{ending}"):
                kept.write_bytes(b"damaged")
            assert run("float32") == f"{[halves, True]}"
        assert run("float32") == f"{[halves, False]}"


@pytest.mark.posix
def test_kept_code_adds_as_the_code_does_that_was_just_compiled(tmp_path: Path) -> None:
    with forks(tmp_path, "sums") as run:
        first, second = run("float32"), run("float32")
    assert first == second and len(first) == 2 * 4 * 2 * 59 * 59


def test_the_way_to_load_has_been_tried_with_this_numba() -> None:
    assert numba.version_info.short <= LAST_NUMBA_TRIED, "try this version, or starts of large models take 0.4 s more"


def test_the_digest_is_that_of_the_sources(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = row_kernels.kernels("float32", "plain")["norm"].__wrapped__.__qualname__
    assert name == f"norm_float32_plain_{digest_of(row_kernels.float_bits, row_kernels)}"
    module = ModuleType("module")
    module.__file__ = str(tmp_path / "module.py")
    found = set()
    for text in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "module.py").write_text(text)
        found.add(digest_of(module))
    assert len(found) == 2
    monkeypatch.setattr(jit, "__file__", module.__file__)  # the compiler's options count too
    assert digest_of(module) not in found


def test_shares_cover_all_in_few_threads() -> None:
    threads = threading.active_count()
    for parts in range(1, 40):
        seen = np.zeros(100, int)

        def work(start: int, stop: int, seen: np.ndarray = seen) -> None:
            seen[start:stop] += 1

        share(equal_parts(100, parts), work)
        assert (seen == 1).all()
    assert threading.active_count() - threads <= (os.cpu_count() or 1)
    assert equal_parts(2, 5) == [(0, 1), (1, 2)] and equal_parts(0, 3) == []


def test_a_share_that_fails_is_raised() -> None:
    def work(start: int, stop: int) -> None:
        if start:
            raise ValueError("in a share")

    with pytest.raises(ValueError, match="in a share"):
        share([(0, 1), (1, 2)], work)


def test_threads_meet_at_a_barrier() -> None:
    """More of them than a pool of shares has, and in several calls at the same time."""
    count, counts = 2 * (os.cpu_count() or 1) + 1, []

    def work(number: int, barrier: threading.Barrier) -> None:
        barrier.wait(timeout=60)
        counts.append(number)
        if number == 0:
            assert together(3, lambda inner, barrier: barrier.wait(timeout=60) and None)

    assert together(count, work)
    assert sorted(counts) == list(range(count))


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_thread_that_fails_ends_the_others(failing: int) -> None:
    def work(number: int, barrier: threading.Barrier) -> None:
        if number == failing:
            raise ValueError("one of three")
        barrier.wait(timeout=60)

    with pytest.raises(ValueError, match="one of three"):
        together(3, work)


def test_threads_that_outlive_the_main_one_go_on() -> None:
    """The interpreter starts no threads of a pool then."""
    code = """
import threading, time
from fastscribe._system.thread_shares import share, together
def late():
    time.sleep(0.5)
    done = []
    share([(0, 1), (1, 2), (2, 3)], lambda start, stop: done.append(start))
    print(sorted(done), together(2, lambda number, barrier: done.append("called")), len(done), flush=True)
threading.Thread(target=late).start()
"""
    ran = LIBRARIES_ALONE.python(code)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "[0, 1, 2] False 3", "")


def test_threads_that_ask_for_the_same_get_one() -> None:
    made: list[int] = []

    @made_once
    def make(number: int) -> int:
        started.wait(timeout=0.2)  # time for the others to ask
        made.append(number)
        return number

    started = threading.Event()
    found: list[int] = []
    assert together(4, lambda number, barrier: found.append(make(7)))
    assert found == [7] * 4 and made == [7]
    make.cache_clear()
    assert make(7) == 7 and made == [7, 7]
