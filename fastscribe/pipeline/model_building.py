"""Models of checkpoints on a device in a dtype: the recogniser's own, and those that rooms run beside it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from threading import Thread, main_thread
from typing import get_args

import torch
from torch import nn

from fastscribe._system.process_settings import disable_malloc_trim
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.checkpoint.lazy_weights import float_sources
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import ChunkedAttention, EightBitDtypeName, ModelConfig, Options, parse_attention
from fastscribe.errors import DeviceUnusable, UsageError, first_line
from fastscribe.families.conformer.config import EncoderConfig, language_prompt_of
from fastscribe.families.model import Model, Prepare, build_model, optimise_, to_cpu_form_, torch_dtype
from fastscribe.families.registry import FUSED_KINDS, module_of
from fastscribe.fast_paths import RefusedPath
from fastscribe.types import Features, Frames

_8_BIT = get_args(EightBitDtypeName)
_SENTENCE_END = re.compile(r"\. |\n")  # of a library's advice
_MAX_PREPARING = 4  # threads that quantise and pack; each holds a part of the weights in memory

Log = Callable[[str], None]


def build_on_device(checkpoint: Checkpoint, device: torch.device, dtype: str, options: Options, say: Log) -> Model:
    """Return a checkpoint's model in its inference form, on its device in its dtype.

    Args:
        checkpoint: Config and weights.
        device: The device.
        dtype: The dtype.
        options: `attention` and `language` count here.
        say: Called with one line for each fast path that is unavailable.

    Raises:
        UsageError: The model does not have this attention, language or dtype.
        WeightsMismatch: The weights do not fit the config.
    """
    if dtype in _8_BIT and not checkpoint.config.encoder.has_matrices:
        raise UsageError(f"--dtype {dtype}: this encoder has no matrices that multiply in 8 bits: bf16 or fp32")
    config = with_language(with_attention(checkpoint.config, options.attention), options.language)
    threads = 1
    if device.type != "cuda" and config.encoder.has_loops:
        compile_meanwhile(config, dtype, checkpoint.weights, options)
        threads = min(_MAX_PREPARING, torch.get_num_threads())
    model = build_model(config, checkpoint.weights, checkpoint.path, prepare(device, dtype), threads)
    if device.type == "cuda":
        _prepare_for_gpu_(model, dtype, say)
        return model
    if config.encoder.has_loops:
        from fastscribe.families.conformer.cpu_layers import conformer_for_cpu_

        conformer_for_cpu_(model.encoder)
    if dtype == "int8":
        _say_slow_packing(say)
    return model


def prepare(device: torch.device, dtype: str) -> Prepare:
    """Return the function that converts each part of a model to its form on a device in a dtype as soon as it is loaded."""
    if device.type == "cuda":
        return partial(_move_to_gpu_, device=device, dtype=torch_dtype(dtype))
    disable_malloc_trim()
    return partial(_pack_for_cpu_, dtype=dtype)


def _pack_for_cpu_(path: str, part: nn.Module, dtype: str) -> None:
    optimise_(part)
    to_cpu_form_(part, dtype, quantises=path.startswith("encoder."))


def _move_to_gpu_(path: str, part: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    optimise_(part)
    part.to(device, dtype)


def _prepare_for_gpu_(model: Model, dtype: str, say: Callable[[str], None]) -> None:
    kind = model.config.encoder.family
    if kind in FUSED_KINDS:
        remark = module_of(kind, "fused_layers").for_gpu_(model.encoder, dtype == "fp8")
        if remark is not None:
            say(remark)
    if dtype == "fp8":
        from fastscribe.families.blocks.fp8 import quantise_fp8_

        quantise_fp8_(model.encoder)


def _say_slow_packing(say: Log) -> None:
    from fastscribe.families.blocks.int8_packing import PROBLEMS

    for reason in PROBLEMS[:1]:
        say(RefusedPath("int8", reason, f"int8: oneDNN packs the matrices itself ({reason}); loading takes longer"))


def encoder_of(model: Model, device: torch.device, options: Options, say: Log) -> Callable[[Features], Frames]:
    """Return a model's encoder, on a GPU with graphs for small batches.

    Args:
        model: The model, on its device in its dtype.
        device: The device.
        options: `cuda_graphs` counts here.
        say: Called with one line if graphs are unavailable and the mode is `auto`; another mode raises UsageError then.
    """
    mode = options.cuda_graphs
    encoder: Callable[[Features], Frames] = model.encoder
    if device.type != "cuda" or mode == "off":
        return encoder
    from fastscribe.cuda.encoder_graphs import EncoderGraphs
    from fastscribe.cuda.graph_capture import GraphsUnavailable

    def give_up(reason: GraphsUnavailable) -> None:
        if mode != "auto":
            raise UsageError(f"--cuda-graphs {mode}: unavailable: {reason}") from reason
        line = f"CUDA graphs: none for the encoder ({reason}); small batches will be slower"
        say(RefusedPath("graphs", f"encoder: {reason}", line))

    return EncoderGraphs(model.encoder, device, give_up)


def choose_device(name: str, say: Callable[[str], None] = log_to_stderr) -> torch.device:
    """Return the device; auto: a GPU if torch can use one.

    Args:
        name: auto, cpu, cuda or cuda:N.
        say: Called with one line if there is a GPU that cannot be used, and auto takes the CPU.

    Raises:
        UsageError: It is no name of a device, or the device that it names cannot be used.
    """
    if name == "auto":
        try:
            return choose_device("cuda" if _has_usable_gpu(say) else "cpu")
        except DeviceUnusable as error:
            say(f"the CPU is used, because the GPU {error.problem}")
            return torch.device("cpu")
    if not re.fullmatch("cpu|cuda(:[0-9]+)?", name):
        raise UsageError(f"--device {name}: not auto, cpu, cuda or cuda:N with a number")
    if name != "cpu" and not torch.backends.cuda.is_built():
        cure = "use --device cpu, or install a torch with CUDA; fastscribe doctor shows what is here"
        raise DeviceUnusable(f"--device {name}", f"this torch has no CUDA: {cure}")
    try:
        device = torch.device(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if device.type == "cuda" and device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
            torch.empty(1, device=device).fill_(0)  # a kernel, which torch may not have for this GPU
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DeviceUnusable(f"--device {name}", f"cannot be used here ({first_line(error)})") from error
    return device


def _has_usable_gpu(say: Log) -> bool:
    """Return True if torch can use a GPU here. This makes no CUDA context. `say` is as for choose_device()."""
    reason = ""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            is_usable = torch.cuda.is_available()
        except RuntimeError as error:
            is_usable, reason = False, str(error)
    if found and not is_usable:  # torch warns once of a driver that is too old for it
        reason = str(found[-1].message)
    if reason:
        say(f"the CPU is used, because torch cannot use the GPU: {_SENTENCE_END.split(reason)[0]}")
    return is_usable


def with_attention(config: ModelConfig, text: str | None) -> ModelConfig:
    """Return the config with the attention of --attention, if set.

    Raises:
        UsageError: The model has no attention, or it is a streaming model without this context, or no streaming model.
    """
    if text is None:
        return config
    encoder = config.encoder
    if not isinstance(encoder, EncoderConfig):
        has = "has none" if encoder.attends == "none" else f"attends in {encoder.attends}, which is fixed"
        raise UsageError(f"--attention {text}: this model {has}")
    attention = parse_attention(text)
    if encoder.contexts and attention not in encoder.contexts:
        contexts = " or ".join(map(str, encoder.contexts))
        raise UsageError(f"--attention {text}: not a context of this streaming model, which learnt with {contexts}")
    if isinstance(attention, ChunkedAttention) and not encoder.contexts:
        raise UsageError(f"--attention {text}: this is no streaming model; full or local:LEFT,RIGHT")
    return replace(config, encoder=replace(encoder, attention=attention))


def with_language(config: ModelConfig, language: str | None) -> ModelConfig:
    """Return the config with the language that the model is told. Raises UsageError if the model does not know it."""
    prompt, encoder = language_prompt_of(config), config.encoder
    if prompt is None or not isinstance(encoder, EncoderConfig):
        return config
    from fastscribe.families.nemotron import choose_language

    told = replace(prompt, index=choose_language(prompt, language))
    return replace(config, encoder=replace(encoder, language_prompt=told))


# Loops for a CPU that numba compiles, or loads from its cache, while the weights are read: of wide conformer models.


def compile_meanwhile(config: ModelConfig, dtype: str, weights: Mapping[str, torch.Tensor], options: Options) -> None:
    """Start a thread that compiles what a first batch needs, in that order. What it has not reached is compiled when called.

    Args:
        config: The model's.
        dtype: The name of the model's dtype.
        weights: The model's; reads no values.
        options: `beam` and `decoder` count here.
    """

    def work() -> None:
        with suppress(ImportError, OSError):  # the first call of a loop meets them again
            for _ in _compiled(config, dtype, weights, options):
                if not main_thread().is_alive():  # the process ends, and waits for this thread
                    return

    Thread(target=work, name="compile-loops").start()


def _compiled(config: ModelConfig, dtype: str, weights: Mapping[str, torch.Tensor], options: Options) -> Iterator[None]:
    import_module("numba")  # a third of a second
    yield
    encoder, name = config.encoder, str(torch_dtype(dtype)).removeprefix("torch.")
    if dtype == "int8":
        from fastscribe.families.blocks.int8 import quantise_and_pack

        stored = getattr(torch, float_sources(weights)[0].dtype)
        quantise_and_pack(torch.zeros(*encoder.largest_matrix, dtype=stored))  # the layers wait for this loop first
        yield
    from fastscribe.families.blocks import forms, row_kernels

    if isinstance(encoder, EncoderConfig) and encoder.attention is None and encoder.conv_norm == "batch_norm":
        is_packed = dtype != "int8" and forms.packs(encoder.largest_matrix, getattr(torch, name))
        yield from row_kernels.compile_ahead(name, "levels" if dtype == "int8" else "plain", is_packed)
    if config.joint is not None and (options.beam or 1) == 1 and options.decoder != "ctc":
        from fastscribe.decode import looping_kernels

        yield from looping_kernels.compile_ahead(name, config.joint.activation)
