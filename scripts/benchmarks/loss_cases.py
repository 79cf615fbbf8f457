"""Memory and time of the transducer losses by batch, frames, labels and tokens, beside the estimates of loss_memory.py.

Three forms: "logits", the loss and its gradient from given logits, which other libraries have too; "materialised", a plain
joint network whose logits of the whole batch go to such a loss; and "joint", joint_transducer_loss. The latter two start from
the outputs of the encoder and the predictor. The peak includes the inputs and their
gradients: on a GPU it is that of torch's allocator, on a CPU the growth of the process's resident memory (Linux). Times are
those of forward and backward, medians after a warm-up. If the first call exceeds the time limit, it is the only one, and
larger batches of its kind are skipped.

The sizes are those of NVIDIA's article on the Numba FP16 RNN-T loss: 1024 or 28 tokens, joint width 640, 200 frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch
import torch.nn.functional as F

from fastscribe.bench.document import describe_error
from fastscribe.bench.memory import free_bytes, peak_bytes, release, reset_peak, resident_bytes
from fastscribe.bench.timing import synchronize
from fastscribe.config import FloatDtypeName, JointConfig
from fastscribe.cuda.device import is_out_of_memory
from fastscribe.families.blocks.transducer import Joint
from fastscribe.training.loss import TransducerLossConfig, joint_transducer_loss, transducer_loss
from fastscribe.training.plot import write_plot
from scripts.benchmarks.loss_memory import (
    LossShape,
    largest_batch,
    logits_memory,
    loss_memory,
    materialised_memory,
)

LossDtypeName = Literal[FloatDtypeName, "fp16"]  # of the logits
DTYPES: dict[LossDtypeName, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FRAMES, JOINT_WIDTH, LABELS, VOCABULARIES = 200, 640, (100, 150, 200), (28, 1024)
TINY = LossShape(2, 20, 8, JOINT_WIDTH, 28)
HEADLINE = LossShape(1024, 500, 150, JOINT_WIDTH, 1025, 5, 2)  # 40 s of 80 ms frames; tokens with blank, TDT
_LIMITS = {"6 GB": 6 * 10**9, "3 GB": 3 * 10**9}
_SHARE_TO_USE = 0.8  # of the memory that is free
_RUNS = 3
_OTHERS = {"torchaudio": "torchaudio.functional", "nemo": "nemo.collections.asr.parts.numba.rnnt_loss.rnnt_pytorch"}

Row = dict[str, Any]
Said = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A case. library: the loss's library; backend: fastscribe's backend."""

    form: str  # logits, materialised or joint
    library: str
    backend: str
    dtype: LossDtypeName
    shape: LossShape
    max_nodes: int | None = None  # of joint_transducer_loss

    def expected_bytes(self, device: str) -> int:
        if self.form == "joint":
            return sum(loss_memory(self.shape, device, self.max_nodes).values())
        of_form = (
            logits_memory(self.shape)
            if self.form == "logits"
            else materialised_memory(self.shape, self.shape.item_bytes)
        )
        return sum(of_form.values())


def libraries() -> dict[str, str | None]:
    """Return the libraries with such a loss: None if it can be imported, else the reason."""
    found: dict[str, str | None] = {}
    for name, module in _OTHERS.items():
        try:
            import_module(module)
            found[name] = None
        except (ImportError, OSError, RuntimeError, AttributeError) as error:  # built for another torch, mostly
            found[name] = describe_error(error)
    return found


def table(device: torch.device, some: Sequence[Case], most_s: float) -> Iterator[Row]:
    """Yield a row per case; those of one kind from the smallest to the largest, until one takes longer than most_s."""
    warm_up(device, some)
    too_slow: dict[tuple[Any, ...], int] = {}
    for case in some:
        row = key(case) | {"formula_bytes": case.expected_bytes(device.type)}
        kind = (case.form, case.library, case.dtype, case.shape.num_tokens)
        if kind in too_slow and case.shape.batch_size * case.shape.nodes > too_slow[kind]:
            yield row | {"error": f"left out: a smaller one took more than {most_s:g} s"}
            continue
        row |= measured(case, device, most_s)
        if row.get("ms", 0) > 1000 * most_s:
            too_slow[kind] = case.shape.batch_size * case.shape.nodes
        yield row


def cases(
    batch_sizes: Sequence[int],
    dtypes: Sequence[LossDtypeName],
    others: Sequence[str] = (),
    labels: Sequence[int] = LABELS,
    joint_dtypes: Sequence[LossDtypeName] | None = None,
) -> Iterator[Case]:
    """Return small cases with reference and compiled form, then the article's table, other libraries in fp32.

    joint_dtypes: the dtypes of the joint, if they are fewer.
    """
    for dtype in dtypes:
        tiny = replace(TINY, item_bytes=DTYPES[dtype].itemsize)
        yield Case("logits", "fastscribe", "oracle", dtype, tiny)
        yield Case("logits", "fastscribe", "numba", dtype, tiny)
    for num_tokens in VOCABULARIES:
        for batch_size in batch_sizes:
            for num_labels in labels:
                shape = LossShape(batch_size, FRAMES, num_labels, JOINT_WIDTH, num_tokens)
                for dtype in dtypes:
                    shaped = replace(shape, item_bytes=DTYPES[dtype].itemsize)
                    yield Case("logits", "fastscribe", "numba", dtype, shaped)
                    if joint_dtypes is None or dtype in joint_dtypes:
                        yield Case("joint", "fastscribe", "numba", dtype, shaped)
                for library in others:
                    yield Case("logits", library, "", "fp32", replace(shape, item_bytes=4))


def grid(batch_sizes: Sequence[int], labels: Sequence[int], others: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the article's table for a GPU: each library's loss in fp32 and fp16, and the joint sample by sample.

    A library's loss has two forms: of given logits, and behind a materialised joint. bf16 is of the joint alone.
    """
    for num_tokens, num_labels, batch_size in product(reversed(VOCABULARIES), labels, batch_sizes):
        shape = LossShape(batch_size, FRAMES, num_labels, JOINT_WIDTH, num_tokens)
        for dtype in DTYPES:
            shaped = replace(shape, item_bytes=DTYPES[dtype].itemsize)
            yield Case("joint", "fastscribe", "numba", dtype, shaped)
            for library, form in product(("fastscribe", *others), ("materialised", "logits")):
                if dtype != "bf16":
                    yield Case(form, library, "numba" if library == "fastscribe" else "", dtype, shaped)


def headline(device: torch.device, dtype: LossDtypeName, batch_size: int, most_s: float) -> Row:
    """Return the large case by the formula, and measured with fewer utterances."""
    shape = replace(HEADLINE, item_bytes=DTYPES[dtype].itemsize)
    limits = _LIMITS | {"memory free here": free_bytes(device)}
    small = Case("joint", "fastscribe", "numba", dtype, replace(shape, batch_size=batch_size))
    warm_up(device, [small])
    return {
        "shape": asdict(HEADLINE),
        "formula_bytes_by_part": loss_memory(HEADLINE, device.type),
        "formula_bytes": sum(loss_memory(HEADLINE, device.type).values()),
        "formula_bytes_on_a_gpu": sum(loss_memory(HEADLINE, "cuda").values()),
        "materialised_fp32_bytes": sum(materialised_memory(HEADLINE).values()),
        "limits_bytes": limits,
        "largest_batch_by_formula": {
            name: largest_batch(HEADLINE, limit, device.type) for name, limit in limits.items()
        },
        "measured": key(small) | {"formula_bytes": small.expected_bytes(device.type)} | measured(small, device, most_s),
    }


def key(case: Case) -> Row:
    shape = case.shape
    return {
        "form": case.form,
        "library": case.library,
        "backend": case.backend,
        "dtype": case.dtype,
        "batch_size": shape.batch_size,
        "num_frames": shape.num_frames,
        "num_labels": shape.num_labels,
        "num_tokens": shape.num_tokens,
        "joint_width": shape.joint_width,
        "materialised_fp32_bytes": sum(materialised_memory(shape).values()),
    }


def measured(case: Case, device: torch.device, most_s: float) -> Row:
    """Return peak and time, or the error."""
    free = free_bytes(device)
    if case.expected_bytes(device.type) > _SHARE_TO_USE * free:
        return {"error": f"left out: {free / 1e9:.1f} GB of memory are free"}
    try:
        return peak_and_time(case, device, most_s)
    except Exception as error:  # whatever another library can raise on an unknown machine is a result too
        return {"error": "out of memory" if is_out_of_memory(error) else describe_error(error)}


def peak_and_time(case: Case, device: torch.device, most_s: float) -> Row:
    """Return the peak of the first call and the median of the others; raises what the case raises."""
    release(device)
    before = resident_bytes(device)
    call = prepared(case, device)
    reset_peak(device)
    times = [_seconds(call, device)]
    peak = peak_bytes(device)
    peaks = {} if peak is None or before is None else {"peak_bytes": peak - before}
    if device.type == "cuda":  # the allocator's pages, with what lies free in them
        peaks["peak_reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    while len(times) < (_RUNS + 1 if times[0] <= most_s / _RUNS else 2 if times[0] <= most_s else 1):
        times.append(_seconds(call, device))
    counted = times[1:] or times
    return {"ms": round(1000 * median(counted), 2), "runs": len(counted), **peaks}


def _seconds(call: Callable[[], None], device: torch.device) -> float:
    synchronize(device)
    start = perf_counter()
    call()
    synchronize(device)
    return perf_counter() - start


def prepared(case: Case, device: torch.device) -> Callable[[], None]:
    """Return a call that runs forward and backward over tensors that exist already."""
    torch.manual_seed(0)
    shape, dtype = case.shape, DTYPES[case.dtype]
    labels_BU = torch.randint(1, shape.num_tokens, (shape.batch_size, shape.num_labels))
    frames_B, labels_B = (torch.full((shape.batch_size,), n) for n in (shape.num_frames, shape.num_labels))
    said = (labels_BU, frames_B, labels_B)
    config = TransducerLossConfig(durations=tuple(range(shape.num_durations)))
    if case.form == "joint":
        return joint_call(shape, dtype, device, said, config, case.max_nodes)
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
    shape: LossShape,
    dtype: torch.dtype,
    device: torch.device,
    said: Said,
    config: TransducerLossConfig,
    max_nodes: int | None = None,
) -> Callable[[], None]:
    """Return a call of joint_transducer_loss and its backward; max_nodes as there."""
    joint, inputs = _joint_and_inputs(shape, dtype, device)

    def call() -> None:
        joint.zero_grad()
        inputs[0].grad = inputs[1].grad = None
        options: dict[str, Any] = {"blank_id": 0, "config": config, "max_nodes": max_nodes}
        joint_transducer_loss(joint, inputs[0], inputs[1], *said, **options).backward()

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
        return lambda x: transducer_loss(x, *said, blank_id=0, config=config, backend=case.backend)
    if case.library == "torchaudio":
        from torchaudio.functional import rnnt_loss

        as_wanted = [x.to(device, torch.int32) for x in said]
        return lambda x: rnnt_loss(x, *as_wanted, blank=0)
    from nemo.collections.asr.parts.numba.rnnt_loss.rnnt_pytorch import RNNTLossNumba

    theirs, on_device = RNNTLossNumba(0, "mean"), [x.to(device) for x in said]
    return lambda x: theirs(x, *on_device)


def warm_up(device: torch.device, some: Sequence[Case]) -> None:
    """Compile what these cases need, by form, library, dtype and kind of loss, and start the threads, unmeasured."""
    kinds = {(case.form, case.library, case.backend, case.dtype, case.shape.num_durations): case for case in some}
    for case in kinds.values():
        if case.backend == "oracle":
            continue
        sizes = {"batch_size": 2, "num_frames": 40, "num_labels": 10, "num_tokens": 28}
        with nullcontext() if case.library == "fastscribe" else suppress(Exception):  # its cases say what it cannot do
            prepared(replace(case, shape=replace(case.shape, **sizes), max_nodes=None), device)()


# The picture.


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: memory and time of the largest batch by labels, for each vocabulary. Raise ImportError or OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    good = [row for row in rows if "ms" in row and row["num_frames"] == FRAMES]
    colours = {name: f"C{number}" for number, name in enumerate(_lines(good))}
    figure = Figure(figsize=(12, 7), layout="constrained")
    grid = figure.subplots(2, len(VOCABULARIES), squeeze=False)
    for (memory, time), num_tokens in zip(grid.T, VOCABULARIES, strict=True):
        some = [row for row in good if row["num_tokens"] == num_tokens]
        batch_size = max((row["batch_size"] for row in some if row["library"] == "fastscribe"), default=0)
        some = [row for row in some if row["batch_size"] == batch_size]
        for name, line in _lines(some).items():
            labels, style = [row["num_labels"] for row in line], {"color": colours[name]}
            time.plot(labels, [row["ms"] for row in line], marker=".", **style)
            memory.plot(labels, [max(1, row.get("peak_bytes", 0)) / 1e6 for row in line], ".", **style)
            if line[0]["library"] == "fastscribe":
                memory.plot(labels, [row["formula_bytes"] / 1e6 for row in line], ":", **style)
        whole = sorted({(row["num_labels"], row["materialised_fp32_bytes"] / 1e6) for row in some})
        memory.plot([labels for labels, _ in whole], [size for _, size in whole], "k--")
        memory.set(title=f"{num_tokens} tokens, batch of {batch_size}", ylabel="peak, MB (dotted: formula)")
        time.set(xlabel="labels", ylabel="forward and backward, ms")
        for axes in (memory, time) if some else ():  # a logarithm of nothing is an error
            axes.set(xticks=LABELS, yscale="log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    for name, colour in colours.items():
        grid[0, 0].plot([], [], color=colour, marker=".", label=name)
    grid[0, 0].plot([], [], "k--", label="whole joint, fp32")
    figure.legend(loc="outside right upper")
    write_plot(FigureCanvasAgg(figure), path)


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        whose = row["form"] if row["library"] == "fastscribe" else row["library"]
        found.setdefault(f"{whose}, {row['dtype']}", []).append(row)
    return {name: sorted(line, key=lambda row: row["num_labels"]) for name, line in found.items()}
