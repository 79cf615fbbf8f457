"""Memory of a GPU, and host memory that is registered with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fastscribe.errors import first_line
from fastscribe.fast_paths import RefusedPath


def free_bytes(device: torch.device) -> int:
    """Bytes available for new tensors on a GPU, including memory that torch's allocator has cached."""
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    allowed = int(torch.cuda.get_per_process_memory_fraction(index) * total)  # less if processes share the GPU
    return max(0, min(free, allowed - own)) + own - torch.cuda.memory_allocated(device)


def register(memory: memoryview, say: Callable[[str], None]) -> int:
    """Pin memory that other processes share, for good, so that copies from it to a GPU are asynchronous.

    Args:
        memory: A segment of it. A copy must not reach into another one.
        say: Called with a line for the user if the driver refuses: copies are correct then but block the host.

    Returns:
        Bytes that are pinned now.
    """
    address = np.frombuffer(memory, np.uint8).ctypes.data
    try:
        runtime = torch.cuda.cudart()
        error = runtime.cudaHostRegister(address, len(memory), 0)
        if error == runtime.cudaError.success:
            return len(memory)
        reason = f"{runtime.cudaGetErrorString(error)}, CUDA error {int(error)}"
    except (RuntimeError, AssertionError) as raised:  # torch has no CUDA, or cannot begin to use it
        reason = first_line(raised)
    say_unpinned(reason, say)
    return 0


def say_unpinned(reason: str, say: Callable[[str], None]) -> None:
    """Say why memory that processes share is not pinned."""
    line = f"the memory that holds the samples cannot be pinned ({reason}): copies to the GPU are slower"
    say(RefusedPath("pinning", reason, line))
