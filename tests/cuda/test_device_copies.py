"""Copies from the host to a GPU: small ones go first and are pinned, and no stage waits for the device.

No GPU is needed. A simulated CUDA device (tests/fakes/cuda.py) records the copies. Tensors on torch's meta device have no
values, so a stage that reads one back fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastscribe.audio import resample
from fastscribe.cuda import device
from fastscribe.cuda.device import UNPINNED, host_array, small_to_device, to_device, to_host
from fastscribe.decode import aed, label_looping
from fastscribe.decode.ctc import CtcDecoder
from fastscribe.decode.decoder import checked_frames
from fastscribe.decode.label_looping import Network
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.blocks.heads import CtcHead
from fastscribe.families.conformer import operations
from fastscribe.families.conformer.fused_layers import fuse_
from fastscribe.families.model import optimise_
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Batch, Features, Frames, NativeRows
from tests.decode.test_aed import CONFIG, PROMPT, WIDTH, optimised, tiny_decoder
from tests.decode.test_label_looping import tiny_transducer
from tests.fakes.cuda import Copy, record_copies
from tests.families.blocks.test_features import CONFIG as FEATURES
from tests.families.conformer.test_encoder import random_encoder, small_config
from tests.pipeline.test_engine import FakeRecognizer
from tests.pipeline.test_engine import batch as one_batch

GPU, META = torch.device("cuda", 0), torch.device("meta")
SAMPLES, NATIVE_SAMPLES = 32_000, 5_000


class Uploader(Recognizer):
    """A recognizer with a device and without a model."""

    sample_rate = 16_000  # type: ignore[assignment]

    def __init__(self, device: torch.device) -> None:
        object.__setattr__(self, "device", device)


def batch_for(device: torch.device) -> Batch:
    """Three rows at 16 kHz in the loader's memory; the last one is resampled from 8 kHz."""
    samples_BS = host_array((3, SAMPLES), np.dtype(np.int16), device)
    native_RSC = host_array((1, NATIVE_SAMPLES, 1), np.dtype(np.int16), device)
    samples_BS[:], native_RSC[:] = 0, 0
    return Batch((), samples_BS, np.array([SAMPLES, 9_000, 8_000]), (NativeRows(8_000, (2,), 500, native_RSC),))


def test_copies_are_pinned_lengths_first(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = record_copies(monkeypatch)
    batch = batch_for(GPU)
    for call in (small_to_device, to_device):  # the samples are on a CPU
        monkeypatch.setattr(resample, call.__name__, lambda values, device, call=call: call(values, GPU))
    samples_BS, lengths_B = Uploader(GPU).upload(batch)
    assert (samples_BS.shape, lengths_B.tolist()) == ((3, SAMPLES), batch.lengths_B.tolist())
    shapes = [(3,), (3, SAMPLES), (2, 1), (1, NATIVE_SAMPLES, 1)]
    assert copies == [Copy(shape, is_pinned=True, non_blocking=True) for shape in shapes]


def test_copies_without_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are right and counted, and the engine says so once, with the reason."""
    copies = record_copies(monkeypatch, too_little_to_pin=True)
    heard = RefusedPaths(lambda line: None)
    engine = Engine(FakeRecognizer(), heard)  # type: ignore[arg-type]
    list(engine.stream([one_batch([1])]))
    assert heard.reasons == {}
    count = UNPINNED.count
    assert small_to_device(np.array([3, 4]), GPU).tolist() == [3, 4]
    assert copies == [Copy((2,), is_pinned=False, non_blocking=True)]
    assert host_array((2, 3), np.dtype(np.int16), GPU).shape == (2, 3)
    on_gpu = SimpleNamespace(device=GPU, shape=(2,), dtype=torch.int32, cpu=lambda: torch.tensor([5, 6]))
    assert to_host(on_gpu).tolist() == [5, 6]  # type: ignore[arg-type]
    assert UNPINNED.count == count + 3
    said: list[str] = []
    heard._say = said.append
    list(engine.stream([one_batch([1]), one_batch([2])]))
    assert heard.reasons == {"pinning": "CUDA error: out of memory"} and len(said) == 1


def test_memory_that_cannot_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def register_or_not(address: int, size: int, flags: int) -> int:
        return 0 if size < 9 else 2

    runtime = SimpleNamespace(
        cudaHostRegister=register_or_not,
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=["no error", "", "out of memory"].__getitem__,
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    heard = RefusedPaths(lambda line: None)
    assert device.register(memoryview(bytearray(8)), heard) == 8
    assert heard.reasons == {}
    assert device.register(memoryview(bytearray(9)), heard) == 0
    assert heard.reasons == {"pinning": "out of memory, CUDA error 2"}


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch has CUDA")
def test_memory_is_not_registered_without_cuda() -> None:
    heard = RefusedPaths(lambda line: None)
    device.register(memoryview(bytearray(8)), heard)
    assert heard.reasons == {"pinning": "Torch not compiled with CUDA enabled"}


def test_pinning_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    record_copies(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        small_to_device(np.array([3, 4]), GPU)


class CopyCheck(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        is_copy = func._schema.name in ("aten::to", "aten::_to_copy")
        if is_copy and args[0].device.type == "cpu" and result.device.type != "cpu":
            assert kwargs.get("non_blocking"), "a copy from ordinary memory"
        return result


@contextmanager
def no_waiting() -> Iterator[None]:
    """Fail on copies to the meta device that do not have the arguments of small_to_device or to_device."""
    tensor = torch.tensor

    def checked_tensor(*arguments: Any, **options: Any) -> torch.Tensor:
        assert torch.device(options.get("device") or "cpu").type == "cpu", "a copy from ordinary memory"
        return tensor(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch, CopyCheck(), torch.inference_mode():
        patch.setattr(torch, "tensor", checked_tensor)
        yield


def on_meta(rows: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(rows, *shape, device=META), torch.empty(rows, dtype=torch.long, device=META)


def test_features_do_not_sync() -> None:
    resample._filters(8_000, 16_000, META)  # copied once per rate
    log_mel = LogMel(FEATURES).to(META)
    with no_waiting():
        features = log_mel(*Uploader(META).upload(batch_for(META)))
    assert features.mel_BMT.device == META


@pytest.mark.parametrize("is_fused", [False, True])
def test_encoder_does_not_sync(is_fused: bool) -> None:
    encoder = random_encoder(small_config())
    optimise_(encoder)
    if is_fused:
        fuse_(encoder, operations.TORCH)
    encoder.to(META)
    features = Features(*on_meta(3, 20, 80))
    with no_waiting():
        frames = checked_frames(encoder(features), features)
    assert frames.frames_BTD.shape == (3, 20, 32)


def test_ctc_does_not_sync() -> None:
    decoder = CtcDecoder(CtcHead(7, 11).to(META), 10)
    with no_waiting():
        packed = decoder.submit(Frames(*on_meta(3, 20, 7)))
    assert packed.shape == (3 + 2 * 3 * 20,)


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_transducer_steps_do_not_sync(durations: tuple[int, ...]) -> None:
    """Includes loading and packing, as CUDA graphs run them."""
    network = Network.prepare(tiny_transducer(0, durations, 10, 0.0).to(META))
    frames = Frames(*on_meta(3, 20, 7))
    with no_waiting():
        slots = label_looping.Slots.allocate(network, label_looping.slots_needed(frames))
        state = label_looping.LoopState.allocate(network, 4, slots)
        label_looping.load_batch_(network, state, frames)
        label_looping.step(network, state)
        packed = label_looping.pack(state, 3, 21)
    assert packed.shape == (2 * 3 + (4 if durations else 3) * 3 * 21,)


def test_aed_steps_do_not_sync() -> None:
    model = optimised(tiny_decoder(CONFIG, 0)).to(META)
    frames = Frames(*on_meta(3, 20, WIDTH))
    num_positions = aed.positions_needed(model, PROMPT, 20)
    with no_waiting():
        state = aed.AedState.allocate(model, PROMPT, model.new_cache(3, 20, num_positions), num_positions)
        aed.load_batch_(model, PROMPT, state, frames)
        aed.step(model, PROMPT, state, num_positions)
        packed = aed.pack(state, frames, len(PROMPT.ids))
    assert len(packed) > 3
