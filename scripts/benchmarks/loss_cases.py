"""Memory and time of the transducer losses by batch, frames, labels and tokens, beside the estimates of loss_memory.py.

Three forms: "logits", the loss and its gradient from given logits, which other libraries have too; "materialised", a plain
joint network whose logits of the whole batch go to such a loss; and "joint", joint_transducer_loss. The latter two start from
the outputs of the encoder and the predictor. The peak includes the inputs and their
gradients: on a GPU it is that of torch's allocator, on a CPU the growth of the process's resident memory (Linux). Times are
those of forward and backward, medians after a warm-up. If the first call exceeds the time limit, it is the only one.

The sizes are those of NVIDIA's article on the Numba FP16 RNN-T loss: 1024 or 28 tokens, joint width 640, 200 frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F

from fastscribe.bench.machine import peak_bytes, release, reset_peak, resident_bytes
from fastscribe.bench.result import describe_error
from fastscribe.bench.roofline import wall_ms
from fastscribe.config import FloatDtypeName, JointConfig
from fastscribe.families.blocks.heads import Joint
from fastscribe.training.loss import TransducerLossConfig, joint_transducer_loss, transducer_loss
from scripts.benchmarks.loss_memory import LossShape, logits_memory, loss_memory, materialised_memory

LossDtypeName = Literal[FloatDtypeName, "fp16"]  # of the logits
DTYPES: dict[LossDtypeName, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FRAMES, JOINT_WIDTH, VOCABULARIES = 200, 640, (28, 1024)
HEADLINE = LossShape(1024, 500, 150, JOINT_WIDTH, 1025, 5, 2)  # 40 s of 80 ms frames; tokens with blank, TDT
_RUNS = 3
_NEMO = "nemo.collections.asr.parts.numba.rnnt_loss.rnnt_pytorch"

Row = dict[str, Any]
Said = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A case of a loss, of a library."""

    form: str  # logits, materialised or joint
    library: str
    dtype: LossDtypeName
    shape: LossShape

    def expected_bytes(self, device: str) -> int:
        if self.form == "joint":
            return sum(loss_memory(self.shape, device).values())
        of_form = (
            logits_memory(self.shape)
            if self.form == "logits"
            else materialised_memory(self.shape, self.shape.item_bytes)
        )
        return sum(of_form.values())


def problem_of_nemo() -> str | None:
    """Return why NeMo's loss cannot be imported; None if it can."""
    try:
        import_module(_NEMO)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # built for another torch, mostly
        return describe_error(error)
    return None


def grid(batch_sizes: Sequence[int], labels: Sequence[int], others: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the article's table for a GPU: each library's loss in fp32 and fp16, and the joint sample by sample.

    A library's loss has two forms: of given logits, and behind a materialised joint. bf16 is of the joint alone.
    """
    for num_tokens, num_labels, batch_size in product(reversed(VOCABULARIES), labels, batch_sizes):
        shape = LossShape(batch_size, FRAMES, num_labels, JOINT_WIDTH, num_tokens)
        for dtype in DTYPES:
            shaped = replace(shape, item_bytes=DTYPES[dtype].itemsize)
            yield Case("joint", "fastscribe", dtype, shaped)
            for library, form in product(("fastscribe", *others), ("materialised", "logits")):
                if dtype != "bf16":
                    yield Case(form, library, dtype, shaped)


def key(case: Case) -> Row:
    shape = case.shape
    return {
        "form": case.form,
        "library": case.library,
        "dtype": case.dtype,
        "batch_size": shape.batch_size,
        "num_frames": shape.num_frames,
        "num_labels": shape.num_labels,
        "num_tokens": shape.num_tokens,
        "joint_width": shape.joint_width,
        "materialised_fp32_bytes": sum(materialised_memory(shape).values()),
    }


def peak_and_time(case: Case, device: torch.device, most_s: float) -> Row:
    """Return the peak of the first call and the median of the others; raises what the case raises."""
    release(device)
    before = resident_bytes(device)
    call = prepared(case, device)
    reset_peak(device)
    times_ms = [wall_ms(call, device)]
    peak = peak_bytes(device)
    peaks = {} if peak is None or before is None else {"peak_bytes": peak - before}
    if device.type == "cuda":  # the allocator's pages, with what lies free in them
        peaks["peak_reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    first_s = times_ms[0] / 1000
    for _ in range(_RUNS if first_s <= most_s / _RUNS else 1 if first_s <= most_s else 0):
        times_ms.append(wall_ms(call, device))
    counted = times_ms[1:] or times_ms
    return {"ms": round(median(counted), 2), "runs": len(counted), **peaks}


def prepared(case: Case, device: torch.device) -> Callable[[], None]:
    """Return a call that runs forward and backward over tensors that exist already."""
    torch.manual_seed(0)
    shape, dtype = case.shape, DTYPES[case.dtype]
    labels_BU = torch.randint(1, shape.num_tokens, (shape.batch_size, shape.num_labels))
    frames_B, labels_B = (torch.full((shape.batch_size,), n) for n in (shape.num_frames, shape.num_labels))
    said = (labels_BU, frames_B, labels_B)
    config = TransducerLossConfig(durations=tuple(range(shape.num_durations)))
    if case.form == "joint":
        return joint_call(shape, dtype, device, said, config)
    if case.form == "materialised":
        return _materialised_call(shape, dtype, device, _loss(case, said, config, device))
    size = (shape.batch_size, shape.num_frames, shape.num_labels + 1, shape.num_outputs)
    logits_BTUV = torch.empty(size, dtype=dtype, device=device).normal_().requires_grad_()
    loss = _loss(case, said, config, device)

    def call() -> None:
        logits_BTUV.grad = None
        loss(logits_BTUV).backward()

    return call


def joint_call(
    shape: LossShape, dtype: torch.dtype, device: torch.device, said: Said, config: TransducerLossConfig
) -> Callable[[], None]:
    """Return a call of joint_transducer_loss and its backward."""
    joint, inputs = _joint_and_inputs(shape, dtype, device)

    def call() -> None:
        joint.zero_grad()
        inputs[0].grad = inputs[1].grad = None
        joint_transducer_loss(joint, *inputs, *said, blank_id=0, config=config).backward()

    return call


def _materialised_call(
    shape: LossShape, dtype: torch.dtype, device: torch.device, loss: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[], None]:
    """Return a call of a plain joint network in this dtype, of the loss of its logits, and of their backward."""
    joint, (encoded_BTJ, predicted_BUJ) = _joint_and_inputs(shape, dtype, device)

    def call() -> None:
        joint.zero_grad()
        encoded_BTJ.grad = predicted_BUJ.grad = None
        hidden_BTUJ = torch.relu(encoded_BTJ[:, :, None] + predicted_BUJ[:, None])
        loss(F.linear(hidden_BTUJ, joint.output.weight.to(dtype), joint.output.bias.to(dtype))).backward()

    return call


def _joint_and_inputs(
    shape: LossShape, dtype: torch.dtype, device: torch.device
) -> tuple[Joint, tuple[torch.Tensor, torch.Tensor]]:
    """Return a joint network with weights in float32, and its random inputs [B, T, J] and [B, U+1, J]."""
    config = JointConfig(hidden=shape.joint_width, activation="relu", max_symbols=10)
    encoded_BTJ, predicted_BUJ = (
        torch.empty(shape.batch_size, n, shape.joint_width, dtype=dtype, device=device).normal_().requires_grad_()
        for n in (shape.num_frames, shape.num_labels + 1)
    )
    return Joint(config, 1, 1, shape.num_outputs).to(device), (encoded_BTJ, predicted_BUJ)


def _loss(
    case: Case, said: Said, config: TransducerLossConfig, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the library's loss of logits, with blank as the first token."""
    if case.library == "fastscribe":
        return lambda x: transducer_loss(x, *said, blank_id=0, config=config, backend="numba")
    from nemo.collections.asr.parts.numba.rnnt_loss.rnnt_pytorch import RNNTLossNumba

    theirs, on_device = RNNTLossNumba(0, "mean"), [x.to(device) for x in said]
    return lambda x: theirs(x, *on_device)


def warm_up(device: torch.device, some: Sequence[Case]) -> None:
    """Compile what these cases need, by form, library, dtype and kind of loss, and start the threads, unmeasured."""
    kinds = {(case.form, case.library, case.dtype, case.shape.num_durations): case for case in some}
    for case in kinds.values():
        sizes = {"batch_size": 2, "num_frames": 40, "num_labels": 10, "num_tokens": 28}
        with nullcontext() if case.library == "fastscribe" else suppress(Exception):  # its cases say what it cannot do
            prepared(replace(case, shape=replace(case.shape, **sizes)), device)()
