"""The recognizer: batches of waveforms in, hypotheses out, on one device in one dtype. Knows tensors, never a file.

Its three stages are separate so that the run can time them by name: features (always float32), encode, decode.
"""

from __future__ import annotations

import platform
import resource
import sys
import warnings
from dataclasses import dataclass

import torch

from fastscribe.checkpoint import Checkpoint
from fastscribe.config import DecoderName
from fastscribe.decode import ctc, label_looping
from fastscribe.errors import UsageError
from fastscribe.features import LogMel
from fastscribe.model.model import Model, build_model
from fastscribe.model.packed import pack_linears_
from fastscribe.types import Batch, Features, Frames, Hypothesis

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Narrower models are fast either way on a CPU, and in fp32 they are exact (docs/log.md, 2026-11-21).
_BF16_MIN_WIDTH_ON_CPU = 256


@dataclass(frozen=True)
class Recognizer:
    model: Model
    log_mel: LogMel
    decoder: DecoderName
    device: torch.device
    dtype: str

    @classmethod
    def build(
        cls, checkpoint: Checkpoint, device: str = "auto", dtype: str = "auto", decoder: DecoderName | None = None
    ) -> Recognizer:
        """Raises UsageError for a device, dtype or decoder that cannot be had, WeightsMismatch for a wrong checkpoint."""
        chosen_device = choose_device(device)
        chosen_dtype = choose_dtype(dtype, chosen_device, checkpoint.config.encoder.d_model)
        chosen_decoder = choose_decoder(decoder, checkpoint.config.decoders)
        model = build_model(checkpoint.config, checkpoint.weights, checkpoint.path)
        model.encoder.optimise_()
        model.to(chosen_device, _DTYPES[chosen_dtype])
        if chosen_device.type == "cpu":
            pack_linears_(model, _DTYPES[chosen_dtype])
        log_mel = LogMel(checkpoint.config.features).to(chosen_device)
        return cls(model, log_mel, chosen_decoder, chosen_device, chosen_dtype)

    @property
    def device_name(self) -> str:
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return cpu_name() if self.device.type == "cpu" else self.device.type

    def peak_bytes(self) -> int:
        """The most memory held so far: the device's on a GPU, the process's on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def features(self, batch: Batch) -> Features:
        samples_BS = torch.from_numpy(batch.samples_BS).to(self.device)
        return self.log_mel(samples_BS, torch.from_numpy(batch.lengths_B).to(self.device))

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        return self.model.encoder(features)

    @torch.inference_mode()
    def decode(self, frames: Frames) -> list[Hypothesis]:
        if self.decoder == "ctc":
            assert self.model.ctc is not None
            return ctc.decode(self.model.ctc, frames, self.model.config.blank_id)
        assert self.model.transducer is not None
        return label_looping.decode(self.model.transducer, frames)

    def transcribe(self, batch: Batch) -> list[Hypothesis]:
        """One Hypothesis a row of the batch."""
        return self.decode(self.encode(self.features(batch)))


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--device {name}: not one of auto, cpu, cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--device {name}: cannot be used here ({reason})") from error
    return device


def choose_dtype(name: str, device: torch.device, d_model: int) -> str:
    """auto: bf16 on a GPU and, for models wide enough to gain by it, on CPUs that multiply bf16 natively; else fp32."""
    if name in _DTYPES:
        return name
    if name != "auto":
        raise UsageError(f"--dtype {name}: not one of auto, {', '.join(_DTYPES)}")
    if device.type == "cuda":
        return "bf16"
    return "bf16" if device.type == "cpu" and has_native_bf16() and d_model >= _BF16_MIN_WIDTH_ON_CPU else "fp32"


def has_native_bf16() -> bool:
    flags = _cpuinfo("flags").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def choose_decoder(name: DecoderName | None, available: tuple[DecoderName, ...]) -> DecoderName:
    if name is None:
        return available[0]
    if name not in available:
        raise UsageError(f"--decoder {name}: this checkpoint has {' and '.join(available)}")
    return name


def cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or "CPU"


def _cpuinfo(field: str) -> str:
    """What Linux says of the first processor; empty elsewhere, and for fields that this processor lacks."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(field)), "")
    except OSError:
        return ""
