"""Each case of no_tf32 in a copy of a fresh process: python float32_settings.py. tests/cuda/test_no_tf32.py runs this file.

Settings belong to the process, and the initial setting of convolutions cannot be put back by any call. No GPU takes part: the
name of a device is enough, and torch keeps CUDA's settings in every build.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.pipeline.recognizer import Recognizer

BACKENDS: Any = torch.backends
OPERATIONS = {"matmul": BACKENDS.cuda.matmul, "conv": BACKENDS.cudnn.conv, "rnn": BACKENDS.cudnn.rnn}
SETTINGS = (BACKENDS, BACKENDS.cudnn, *OPERATIONS.values())  # from the most general setting to the most specific
GPU = torch.device("cuda")

# What a process may do before, with the settings of torch 2.9 and later, the older flags, or both.
STARTS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "generic tf32": lambda: put(BACKENDS, "tf32"),
    "all of CUDA tf32": lambda: put(BACKENDS.cudnn, "tf32"),
    "conv tf32": lambda: put(BACKENDS.cudnn.conv, "tf32"),  # the initial state of torch 2.11
    "old matmul": lambda: setattr(BACKENDS.cuda.matmul, "allow_tf32", True),
    "old matmul off, generic tf32": lambda: (setattr(BACKENDS.cuda.matmul, "allow_tf32", False), put(BACKENDS, "tf32")),
    "old matmul precision": lambda: torch.set_float32_matmul_precision("high"),
    "old medium precision": lambda: torch.set_float32_matmul_precision("medium"),
    "old cudnn on": lambda: setattr(BACKENDS.cudnn, "allow_tf32", True),
    "old cudnn off": lambda: setattr(BACKENDS.cudnn, "allow_tf32", False),
    "old cudnn off, generic tf32": lambda: (setattr(BACKENDS.cudnn, "allow_tf32", False), put(BACKENDS, "tf32")),
    "old cudnn on, generic ieee": lambda: (setattr(BACKENDS.cudnn, "allow_tf32", True), put(BACKENDS, "ieee")),
}


def put(setting: Any, precision: str) -> None:
    setting.fp32_precision = precision


def read() -> tuple[str, ...]:
    return tuple(setting.fp32_precision for setting in SETTINGS)


def answers() -> list[object]:
    """Values that distinguish two states; they show whether a precision is set or inherited."""
    found: list[object] = [read()]
    for old in (lambda: BACKENDS.cuda.matmul.allow_tf32, lambda: BACKENDS.cudnn.allow_tf32):
        try:
            found.append(old())
        except RuntimeError:
            found.append("raises")
    for setting in (BACKENDS, BACKENDS.cudnn):
        for precision in ("none", "tf32", "ieee"):
            put(setting, precision)
            found.append(read())
    return found


def in_a_copy(case: Callable[[], Any]) -> Any:
    """Run the case in a process forked from this one, and return its result as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, repr(case()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return said


def is_true_float32() -> bool:
    return all(operation.fp32_precision == "ieee" for operation in OPERATIONS.values())


def with_blocks(start: Callable[[], Any]) -> list[object]:
    start()
    before = read()
    with no_tf32(torch.device("cpu")):
        assert read() == before
    with no_tf32(GPU):
        assert is_true_float32(), read()
        with no_tf32(GPU):
            assert is_true_float32(), read()
        assert is_true_float32(), "the inner block put back too early"
    assert read() == before, (before, read())
    try:
        with no_tf32(GPU):
            raise KeyError
    except KeyError:
        pass
    assert read() == before, (before, read())
    return answers()


def untouched(start: Callable[[], Any]) -> list[object]:
    start()
    return answers()


def every_setting() -> None:
    """All values that the five settings can have."""
    values = ("none", "ieee", "tf32")
    for precisions in product(("none", "ieee", "tf32", "bf16"), values, values, values, values):

        def start(precisions: tuple[str, ...] = precisions) -> None:
            for setting, precision in zip(SETTINGS, precisions, strict=True):
                put(setting, precision)

        assert with_blocks(start) == untouched(start), precisions


def two_threads() -> None:
    """The first block to open closes first, while the other thread computes."""
    opened, closed = threading.Event(), threading.Event()
    seen = []

    def work() -> None:
        with no_tf32(GPU):
            opened.set()
            assert closed.wait(20)
            seen.append(is_true_float32())

    before = read()
    other = threading.Thread(target=work)
    with no_tf32(GPU):
        other.start()
        assert opened.wait(20)
    closed.set()
    other.join(20)
    assert seen == [True] and read() == before


def model_in_fp32() -> None:
    """--dtype fp32 in a process that mixes both kinds of settings; other dtypes leave the settings alone."""
    STARTS["old cudnn on, generic ieee"]()
    put(BACKENDS, "tf32")
    seen = []
    for dtype in ("fp32", "bf16"):
        recognizer: Any = SimpleNamespace(device=GPU, dtype=dtype)
        recognizer._precision = partial(Recognizer._precision, recognizer)
        recognizer.decoder = SimpleNamespace(
            submit=lambda frames: seen.append(is_true_float32()),
            read=lambda packed, frames: seen.append(is_true_float32()) or [],
        )
        frames: Any = SimpleNamespace(is_finite_B=None)
        Recognizer._encoded(recognizer, lambda features: seen.append(is_true_float32()), None)
        Recognizer.submit(recognizer, frames)
        Recognizer.read(recognizer, np.zeros(0, np.int32), frames)
    assert seen == [True] * 3 + [False] * 3


if __name__ == "__main__":
    for name, start in STARTS.items():
        expected = in_a_copy(lambda start=start: untouched(start))
        assert in_a_copy(lambda start=start: with_blocks(start)) == expected, name
    in_a_copy(every_setting)
    in_a_copy(two_threads)
    in_a_copy(model_in_fp32)
    print(f"{len(STARTS)} starts")
