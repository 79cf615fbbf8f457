"""The model: the encoder and the heads of a checkpoint. Reads no files.

On a CPU it has a form of its own: its dtype, and its matrices quantised and packed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fastscribe._system.processors import has_native_bf16
from fastscribe.checkpoint.lazy_weights import COUNTER_SUFFIX, check_shapes
from fastscribe.config import ModelConfig
from fastscribe.families.blocks.forms import Container, FusedOnCpu, Optimised, pack_linears_
from fastscribe.families.blocks.heads import CtcHead, Transducer
from fastscribe.families.blocks.time_conv import pack_time_convs_
from fastscribe.families.registry import class_of

if TYPE_CHECKING:
    from fastscribe.families.canary.attention_decoder import AttentionDecoder

Prepare = Callable[[str, nn.Module], None]
M = TypeVar("M", bound=nn.Module)


class Model(Container):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert not config.language_heads, "indic.of_language() makes a model of one language"
        self.config = config
        self.encoder: Any = class_of(config.encoder.family, "encoder")(config.encoder)
        width, factor = config.encoder.d_model, config.encoder.subsampling_factor
        self.transducer: Transducer | None = None
        if config.joint is not None:
            assert config.predictor is not None
            self.transducer = Transducer(config.predictor, config.joint, config.durations, width, config.blank_id)
        self.ctc = CtcHead(width, config.blank_id + 1) if config.has_ctc else None
        self.aed: AttentionDecoder | None = None
        if config.aed is not None:
            from fastscribe.families.canary.attention_decoder import AttentionDecoder

            self.aed = AttentionDecoder(config.aed, width, config.num_labels, factor)


class _Uninitialised(TorchFunctionMode):
    """Skips torch.nn.init. On meta tensors some of it imports torch's compiler, which takes a second and writes a folder."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def build_model(
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    where: object,
    prepare_: Prepare | None = None,
    threads: int = 1,
) -> Model:
    """Build a model in eval mode and load it part by part (a layer, a block, a head).

    Args:
        config: config of the model.
        weights: tensors by names of the model's state dict. Only `threads` parts of lazy weights, and the next, are in memory
            at a time.
        where: the checkpoint's path, for messages.
        prepare_: called after loading a part, with its path ("encoder.layers.3") and a module whose only child is the part.
            Weights have their stored dtype, so it must cast the part. It may also move or replace the part. Without it,
            the model is in float32 on the CPU.
        threads: that prepare parts, each on one core, while the next ones are read.

    Returns:
        The model.

    Raises:
        WeightsMismatch: lists every wrong name or shape, before any weight is read.
        CheckpointError: a weight cannot be read or is not finite.
    """
    model = empty(Model, config)
    load_(model, weights, where, prepare_, threads)
    return model


def empty(kind: Callable[[Any], M], config: object) -> M:
    """Build a network without values, for load_()."""
    with torch.device("meta"), _Uninitialised():
        return kind(config)


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight, by its name."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def load_(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    where: object,
    prepare_: Prepare | None = None,
    threads: int = 1,
    containers: tuple[type[nn.Module], ...] = (),
) -> None:
    """Load a network without values part by part, and put it into eval mode. See build_model().

    Args:
        model: From empty().
        weights: As build_model().
        where: As build_model().
        prepare_: As build_model().
        threads: As build_model().
        containers: Types of modules that have no weights but those of their parts, beside Container.
    """
    containers += (Container, nn.ModuleList)
    model.eval().requires_grad_(False)
    check_shapes(shapes(model), weights, where)

    def read() -> Iterator[_Part]:
        for owner, name, path in list(_parts(model, containers)):
            holder = nn.Module()
            holder.add_module(name, owner.get_submodule(name))
            _load_(holder.get_submodule(name), weights, path)
            yield owner, name, path, holder

    def finish(part: _Part) -> None:
        owner, name, path, holder = part
        if prepare_ is None:
            holder.float()
        else:
            prepare_(path, holder)
        _keep_no_file_(holder)
        setattr(owner, name, holder.get_submodule(name))

    if threads == 1:
        for part in read():
            finish(part)
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, "prepare", lambda: torch.set_num_threads(1)) as pool:
            torch.set_num_threads(1)  # else the check of what is read waits for cores that prepare parts
            running: deque[Future[None]] = deque()
            for part in read():
                if len(running) == threads:
                    running.popleft().result()
                running.append(pool.submit(finish, part))
            for future in running:
                future.result()
    finally:
        torch.set_num_threads(before)  # a thread's setting is also the default of threads to come


_Part = tuple[nn.Module, str, str, nn.Module]  # its owner, its name there, its path, and a module that has nothing else


def _parts(
    module: nn.Module, containers: tuple[type[nn.Module], ...], path: str = ""
) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield owner, name in the owner and path of every part; together the parts have all weights."""
    assert isinstance(module, containers) and not list(module.parameters(recurse=False))
    for name, child in module.named_children():
        if isinstance(child, containers):
            yield from _parts(child, containers, f"{path}{name}.")
        else:
            yield module, name, f"{path}{name}"


def _load_(part: nn.Module, weights: Mapping[str, torch.Tensor], path: str) -> None:
    tensors = {}
    for name in part.state_dict():
        full_name = f"{path}.{name}"
        is_omitted = name.endswith(COUNTER_SUFFIX) and full_name not in weights
        tensors[name] = torch.zeros((), dtype=torch.long) if is_omitted else weights[full_name]
    part.load_state_dict(tensors, assign=True)


def _keep_no_file_(module: nn.Module) -> None:
    """Copy tensors whose memory is a file's: a model may live long, and the file may change."""
    for child in module.modules():
        for parameter in child.parameters(recurse=False):
            if _is_borrowed(parameter):
                parameter.data = parameter.data.clone()
        for name, value in [*child.named_buffers(recurse=False, remove_duplicate=False), *vars(child).items()]:
            if _is_borrowed(value):
                setattr(child, name, value.clone())


def _is_borrowed(value: object) -> TypeGuard[torch.Tensor]:
    """Return True for a tensor on the CPU whose memory torch has not allocated."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        return False
    return not value.untyped_storage().resizable()


@torch.no_grad()
def optimise_(module: nn.Module) -> None:
    """Convert everything below `module` to its inference form: the same function; weight names change.

    Call it in eval mode, before casting; the module cannot be trained afterwards.
    """
    for child in list(module.modules()):
        if isinstance(child, Optimised):
            child.optimise_()


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of everything that is not quantised."""
    if name == "int8":
        return torch.bfloat16 if has_native_bf16() else torch.float32
    return torch.float32 if name == "fp32" else torch.bfloat16


def to_cpu_form_(part: nn.Module, dtype: str, *, quantises: bool) -> None:
    """Convert a part of a model, which is in float32 on the CPU, in place.

    Args:
        part: The part, in its inference form (`optimise_`).
        dtype: The name of the model's dtype.
        quantises: int8 is for this part too: it is the encoder's.
    """
    if dtype == "int8" and quantises:
        from fastscribe.families.blocks.int8 import quantise_int8_

        quantise_int8_(part)
    rest = torch_dtype(dtype)
    for module in list(part.modules()):
        if isinstance(module, FusedOnCpu):
            module.fuse_for_cpu_(rest)
    part.to(rest)
    pack_linears_(part, rest)
    pack_time_convs_(part, rest)
