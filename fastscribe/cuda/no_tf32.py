"""Products and convolutions in float32 proper, in a process that lets CUDA round float32 factors to TF32.

TF32's ten bits of mantissa leave 66 dB of a signal: enough for the models that such a setting is meant for, too little for
features and resampled audio, and not what --dtype fp32 asks for.

torch (2.9 and later) looks a precision up in three places and takes the first that is set: the operation's own setting
(torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn), the one for all of CUDA (torch.backends.cudnn), and the generic one
(torch.backends). Reading a setting gives what was found, not where. Only the generic one, which comes last, reads as it was
set, so it is changed first; a setting that still reads "tf32" then has that value of its own. Everything that is changed can
therefore be put back exactly. A setting that inherits is left alone, and so is the initial setting of convolutions in torch
2.13, which no call can restore: TF32 unless a place below says otherwise.

The older flags (allow_tf32, set_float32_matmul_precision) are neither read nor written: reading them raises where the process
has used both kinds of settings, and CUDA's operations follow the newer ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_LOCK = threading.Lock()
_blocks_open = 0
_restore: list[Callable[[], None]] = []


@contextmanager
def no_tf32(device: torch.device) -> Iterator[None]:
    """Compute in float32 on `device` inside the block, whatever the process allows; do nothing for a CPU.

    torch has no such setting for one call or thread, so the process's settings change while at least one block is open, and
    the last one to close puts them back. Keep the block short: other threads compute in float32 meanwhile, too.
    """
    if device.type != "cuda":
        yield
        return
    global _blocks_open
    with _LOCK:
        if _blocks_open == 0:
            _forbid_tf32()
        _blocks_open += 1
    try:
        yield
    finally:
        with _LOCK:
            _blocks_open -= 1
            if _blocks_open == 0:
                while _restore:
                    _restore.pop()()


def _forbid_tf32() -> None:
    backends: Any = torch.backends  # torch's annotations lack the settings
    _change(backends, backends.fp32_precision)
    for setting in (backends.cudnn, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        if setting.fp32_precision == "tf32":
            _change(setting, "tf32")


def _change(setting: Any, before: str) -> None:
    setting.fp32_precision = "ieee"
    _restore.append(lambda: setattr(setting, "fp32_precision", before))
