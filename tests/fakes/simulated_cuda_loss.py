"""The transducer loss's CUDA kernels in numba's simulator. No GPU takes part.

The simulator has no warps; they are added here, four threads wide so that rows are longer than a warp. Each case raises where
the kernels are not the definition.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastscribe.config import JointConfig
from fastscribe.families.blocks.heads import Joint
from fastscribe.training.loss import TransducerLossConfig, cuda, joint, joint_transducer_loss, logits, transducer_loss

CONFIGS = {
    "rnnt": TransducerLossConfig(),
    "rnnt_fastemit_clamp": TransducerLossConfig(fastemit=0.3, clamp=0.05),
    "tdt": TransducerLossConfig(durations=(0, 1, 2, 3, 4), sigma=0.05),
    "tdt_fastemit_clamp": TransducerLossConfig(durations=(0, 2), sigma=0.1, fastemit=0.2, clamp=0.3),
    "tdt_without_0": TransducerLossConfig(durations=(1, 2, 4)),
    "tdt_omega": TransducerLossConfig(durations=(0, 1, 2), sigma=0.1, omega=1.0),
}
_ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
_PATIENCE_S = 20.0


class Warps:
    """Adds the attributes that FakeCUDAModule lacks; threadIdx.y is the number of the warp in its block."""

    def syncwarp(self) -> None:
        _warp()[0].wait(_PATIENCE_S)

    def shfl_xor_sync(self, mask: int, value: Any, step: int) -> Any:
        barrier, values = _warp()
        lane = threading.current_thread().threadIdx.x  # type: ignore[attr-defined]
        values[lane] = value
        barrier.wait(_PATIENCE_S)
        other = values[lane ^ step]
        barrier.wait(_PATIENCE_S)
        return other


_MAKING = threading.Lock()


def _warp() -> tuple[threading.Barrier, dict[int, Any]]:
    thread: Any = threading.current_thread()
    with _MAKING:
        warps = thread._manager.__dict__.setdefault("warps", {})
        fresh = (threading.Barrier(thread._manager._block_dim[0]), {})
        return warps.setdefault(thread.threadIdx.y, fresh)


def _is_alive(thread: Any) -> bool:
    """What the simulator asks all threads of a block, again and again; so that they get the processor meanwhile."""
    if not thread.syncthreads_blocked:
        thread.join(1e-3)
    return threading.Thread.is_alive(thread)


def simulate(patch: pytest.MonkeyPatch) -> None:
    """Run the kernels in the simulator, as NUMBA_ENABLE_CUDASIM=1 does for a whole process."""
    import numba.cuda
    from numba.cuda.simulator import api, kernel, kernelapi

    from fastscribe.training.loss import cuda_kernels

    for name in ("syncwarp", "shfl_xor_sync"):
        patch.setattr(kernelapi.FakeCUDAModule, name, getattr(Warps, name), raising=False)
    patch.setattr(kernel.BlockThread, "is_alive", _is_alive)
    patch.setattr(cuda_kernels, "SIMULATED", True)
    patch.setattr(numba.cuda, "jit", api.jit)
    kernels = {dtype: cuda_kernels.kernels(dtype) for dtype in cuda.DTYPES.values()}
    patch.setattr(cuda, "_usable", lambda: cuda_kernels)
    patch.setattr(cuda, "_kernels", kernels.__getitem__)
    for name, number in (("WARP_THREADS", 4), ("WARPS", 2), ("MAX_THREADS", 4)):
        patch.setattr(cuda, name, number)
    for module in (logits, joint):
        patch.setattr(module, "compiled_for", lambda device: cuda)
    # Padded outputs, as in a GPU's aligned rows.
    patch.setattr(joint, "_pad_columns", lambda x: torch.nn.functional.pad(x, (0, 0) * (x.ndim - 1) + (0, 3)))


def problem(config: TransducerLossConfig, draw: random.Random) -> tuple[list[torch.Tensor], int]:
    """Logits with padding, labels, frame lengths and label lengths with zeros among them, and blank's id."""
    num_tokens, batch_size = draw.randint(2, 9), draw.randint(1, 3)
    blank_id = draw.randrange(num_tokens)
    frames_B = [draw.randint(0, 4) for _ in range(batch_size)]
    labels_B = [draw.randint(0, 4) for _ in range(batch_size)]
    generator = torch.Generator().manual_seed(draw.randrange(1000))
    labels_BU = torch.randint(0, num_tokens - 1, (batch_size, max(labels_B) + draw.randint(0, 1)), generator=generator)
    labels_BU += labels_BU >= blank_id
    shape = (batch_size, max(frames_B) + draw.randint(0, 1), max(labels_B) + 1 + draw.randint(0, 2))
    logits_BTUW = 3 * torch.randn(*shape, num_tokens + len(config.durations), generator=generator)
    return [logits_BTUW, labels_BU, torch.tensor(frames_B), torch.tensor(labels_B)], blank_id


def losses_and_gradient(logits_BTUW: torch.Tensor, *said: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    logits_BTUW = logits_BTUW.clone().requires_grad_()
    losses_B = transducer_loss(logits_BTUW, *said, reduction="none", **options)
    weight_B = torch.linspace(-1, 2, len(losses_B))
    return losses_B.detach(), torch.autograd.grad(losses_B, logits_BTUW, weight_B)[0]


def check(config: TransducerLossConfig, dtype: torch.dtype, tensors: list[torch.Tensor], blank_id: int) -> None:
    rounded, said = tensors[0].to(dtype), tensors[1:]
    options: dict[str, Any] = {"blank_id": blank_id, "config": config}
    expected_B, expected = losses_and_gradient(rounded.float(), *said, backend="oracle", **options)
    losses_B, gradient = losses_and_gradient(rounded, *said, **options)
    assert gradient.dtype == dtype
    torch.testing.assert_close(losses_B, expected_B, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gradient.float(), expected, rtol=max(2e-5, _ROUNDING[dtype]), atol=2e-6)


def random_case(name: str, dtype: torch.dtype) -> None:
    draw = random.Random(f"{name} {dtype}")
    for _ in range(2 if dtype == torch.float32 else 1):
        check(CONFIGS[name], dtype, *problem(CONFIGS[name], draw))


def long_labels() -> None:
    """More labels than a block has threads for an anti-diagonal; more frames than any block."""
    labels_BU = torch.arange(11).remainder(4)[None] + 1
    tensors = [torch.randn(1, 5, 12, 6), labels_BU, torch.tensor([5]), torch.tensor([11])]
    check(TransducerLossConfig(), torch.float32, tensors, 0)


def no_labels() -> None:
    """A batch of recordings without speech, with and without a column for labels."""
    for config, width in itertools.product((CONFIGS["rnnt"], CONFIGS["tdt"]), (0, 1)):
        said = [torch.zeros(3, width, dtype=torch.long), torch.tensor([4, 1, 0]), torch.tensor([0, 0, 0])]
        logits_BTUW = torch.randn(3, 4, width + 1, 6 + len(config.durations))
        check(config, torch.float32, [logits_BTUW, *said], 2)


def no_path() -> None:
    config = TransducerLossConfig(durations=(2, 4))
    said = (torch.tensor([[1], [1], [1]]), torch.tensor([3, 4, 0]), torch.tensor([0, 0, 1]))
    losses_B, gradient = losses_and_gradient(torch.randn(3, 4, 2, 5), *said, blank_id=0, config=config)
    assert losses_B.isposinf().tolist() == [True, False, True]
    assert gradient.flatten(1).abs().amax(dim=1).gt(0).tolist() == [False, True, False]
    tensors = [torch.randn(2, 3, 3, 4), torch.tensor([[1, 2], [2, 1]]), torch.tensor([3, 3]), torch.tensor([2, 1])]
    tensors[0][0, :, 1, 2] = tensors[0][1, 1, :, 1] = -np.inf
    check(CONFIGS["rnnt_fastemit_clamp"], torch.float32, tensors, 0)


def not_a_number() -> None:
    for token in range(5):
        logits_BTUW = torch.randn(1, 3, 2, 5)
        logits_BTUW[0, 1, 1, token] = np.nan
        said = (torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1]))
        assert transducer_loss(logits_BTUW, *said, blank_id=0).isnan()
    logits_BTUW = torch.randn(1, 3, 2, 5)
    expected = losses_and_gradient(logits_BTUW[..., :4], *said, blank_id=0)
    logits_BTUW[..., 4] = -np.inf
    losses_B, gradient = losses_and_gradient(logits_BTUW, *said, blank_id=0)
    torch.testing.assert_close((losses_B, gradient[..., :4]), expected)
    assert gradient[..., 4].count_nonzero() == 0


def whole_batch_empty() -> None:
    said = (torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    loss, gradient = losses_and_gradient(torch.randn(0, 4, 4, 5), *said, blank_id=0)
    assert loss.shape == (0,) and gradient.shape == (0, 4, 4, 5)


def joint_case() -> None:
    """Packed groups, blocks of frames, an utterance without frames, and padded outputs."""
    encoded, predicted = torch.randn(4, 5, 4, requires_grad=True), torch.randn(4, 4, 4, requires_grad=True)
    said = (torch.randint(0, 4, (4, 3)), torch.tensor([5, 3, 0, 2]), torch.tensor([3, 0, 2, 1]))
    for config in (CONFIGS["tdt"], CONFIGS["rnnt"]):
        num_outputs = 5 + len(config.durations)
        module = Joint(JointConfig(hidden=4, activation="relu", max_symbols=10), 4, 4, num_outputs)
        leaves = [encoded, predicted, module.output.weight, module.output.bias]
        found = []
        for max_nodes in (None, 23, 8):  # the definition; groups of utterances; blocks of 2, 2 and 1 frames
            row = [0, 1, 2, 3] if max_nodes else [0, 1, 3]
            options: dict[str, Any] = {"blank_id": 4, "config": config, "reduction": "sum", "max_nodes": max_nodes}
            options |= {} if max_nodes else {"backend": "oracle"}
            loss = joint_transducer_loss(module, encoded[row], predicted[row], *(x[row] for x in said), **options)
            found.append(torch.autograd.grad(loss, leaves))
        for gradients in found[1:]:
            torch.testing.assert_close(gradients, found[0], rtol=1e-4, atol=2e-6)


CASES: dict[str, Callable[[], None]] = {
    **{
        f"{name}-{str(dtype).removeprefix('torch.')}": lambda name=name, dtype=dtype: random_case(name, dtype)
        for dtype in _ROUNDING
        for name in (CONFIGS if dtype == torch.float32 else ("rnnt_fastemit_clamp", "tdt", "tdt_omega"))
    },
    **{case.__name__: case for case in (long_labels, no_labels, no_path, not_a_number, whole_batch_empty, joint_case)},
}
