"""joint_transducer_loss allocates what the formula of scripts/benchmarks/loss_memory.py says, also where a GPU would run it.

Tensors on torch's device "meta" have sizes but no memory, so the headline's groups run in a moment. The kernels, which
allocate nothing, are left out. What torch's own operations allocate within themselves is not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastscribe.training import TransducerLossConfig
from fastscribe.training.loss import cuda, joint
from scripts.benchmarks.loss_cases import DTYPES, HEADLINE, LossDtypeName, joint_call
from scripts.benchmarks.loss_memory import loss_memory

META = torch.device("meta")
MB = 1_000_000


class Allocations(TorchDispatchMode):
    """Follows the bytes of all tensors on the device "meta" that exist at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and x.is_meta:
                storage = x.untyped_storage()
                self._alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        # A reference keeps the place of a storage in memory, so that no other gets its key.
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._alive.values()))
        return found


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors on "meta" take the way of those on a GPU."""
    limits = joint.group_limits
    monkeypatch.setattr(joint, "group_limits", lambda device, *sizes: limits("cuda", *sizes))
    monkeypatch.setattr(joint, "_pad_columns", pad_columns)
    monkeypatch.setattr(joint, "ROWS_WIDENED", 10**9)
    monkeypatch.setattr(joint, "compiled_for", lambda device: cuda)
    monkeypatch.setattr(cuda, "_usable", lambda: SimpleNamespace(SIMULATED=True, DeviceBatch=lambda *x: x))
    monkeypatch.setattr(
        cuda, "_kernels", lambda dtype: dict.fromkeys(("read_arcs", "fill_lattices", "write_gradient"), Nothing())
    )
    monkeypatch.setattr(cuda, "as_array", lambda x, num_rows=None: x)
    monkeypatch.setattr(cuda, "small_to_device", lambda x, device: torch.as_tensor(x).to(device))
    monkeypatch.setattr(torch, "autocast", lambda *given, **options: contextlib.nullcontext())


def pad_columns(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, -len(x) % joint.ALIGNED_COLUMNS)) if x.itemsize == 2 else x


class Nothing:
    def __getitem__(self, configuration: object) -> Callable[..., None]:
        return lambda *arguments: None


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "num_durations"), [(1025, 5), (8193, 0)])
def test_the_headline_allocates_what_the_formula_says(
    num_tokens: int, num_durations: int, dtype: LossDtypeName
) -> None:
    """Seven of its utterances are three groups; the rest of the 1,024 adds its inputs and their gradients alone."""
    item_bytes = DTYPES[dtype].itemsize
    shape = replace(HEADLINE, batch_size=7, num_tokens=num_tokens, num_durations=num_durations, item_bytes=item_bytes)
    said = (torch.ones(7, 150, dtype=torch.int64), torch.full((7,), 500), torch.full((7,), 150))
    config = TransducerLossConfig(durations=tuple(range(num_durations)))
    with Allocations() as found:
        joint_call(shape, DTYPES[dtype], META, said, config)()
    by_formula = sum(loss_memory(shape).values())
    assert by_formula <= found.peak_bytes < by_formula + 2 * MB
    whole = sum(loss_memory(replace(shape, batch_size=1024)).values())
    assert whole - by_formula == 1017 * 2 * (500 + 151) * 640 * item_bytes
    if item_bytes == 2:
        assert whole < 3e9
