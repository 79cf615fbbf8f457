"""Full float32 precision in a process that allows TF32 on CUDA.

TF32's ten bits of mantissa keep 66 dB of a signal. That is too little for features and resampled audio, and --dtype fp32
promises more.

torch (2.9 and later) uses the first precision that is set of: the operation's setting (torch.backends.cuda.matmul, cudnn.conv,
cudnn.rnn), the setting for CUDA (torch.backends.cudnn), and the generic one (torch.backends). Reading a setting returns the
effective value, not its level. Only the generic setting, the last one, reads as it was set, so it is changed first; a setting
that still reads "tf32" is then set explicitly. Thus every change can be restored exactly. Inherited settings are not changed,
nor is the initial setting of convolutions in torch 2.13, which no call can restore: TF32 unless a lower level forbids it.

The older flags (allow_tf32, set_float32_matmul_precision) are neither read nor written. Reading them raises if the process
mixes both APIs, and CUDA's operations follow the newer settings.
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
    """Disable TF32 on `device` inside the block; do nothing for a CPU.

    torch has no setting per call or thread, so the process's settings change while at least one block is open, and the last
    block restores them. Keep the block short, because other threads compute without TF32 meanwhile.
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
