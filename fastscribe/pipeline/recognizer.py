"""The recognizer: batches of waveforms in, hypotheses out, on one device in one dtype. Knows tensors, never a file.

Its stages are separate, and wait for nothing on a GPU, so that the engine can lay several batches over each other:
upload, features (always float32), encode, and the decoder's submit and read.
"""

from __future__ import annotations

import platform
import resource
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import get_args

import torch
from torch import nn

from fastscribe._system.malloc_tuning import disable_malloc_trim
from fastscribe._system.text_layout import escaped
from fastscribe.audio import resample
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import (
    DecoderName,
    DtypeChoice,
    EightBitDtypeName,
    EncoderConfig,
    FeaturesConfig,
    ModelConfig,
    Options,
    parse_attention,
)
from fastscribe.cuda.device import free_bytes, is_out_of_memory, small_to_device, to_device
from fastscribe.cuda.encoder_graphs import EncoderGraphs
from fastscribe.cuda.fp8 import fp8_problem, quantise_fp8_
from fastscribe.cuda.graph_capture import GraphsUnavailable
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.decode import checked
from fastscribe.decode.aligning import AligningDecoder
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.families import DECODERS
from fastscribe.decode.prompt import options_for_prompt
from fastscribe.errors import CheckpointError, UsageError, first_line
from fastscribe.model.families import ENCODER_FAMILIES
from fastscribe.model.features import LogMel
from fastscribe.model.int8 import quantise_int8_, why_no_int8
from fastscribe.model.model import Model, Prepare, build_model, optimise_
from fastscribe.model.packed import pack_linears_
from fastscribe.model.time_conv import pack_time_convs_
from fastscribe.pipeline import cost_model
from fastscribe.pipeline.batching import Budget
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.language_model import LanguageModel
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Batch, Features, Frames, Hypothesis, Int32Array

_8_BIT = get_args(EightBitDtypeName)
# Models narrower than this are fast in either dtype on a CPU, and in fp32 they are exact (docs/log.md, 2026-11-21).
_NARROW_ON_CPU = 256
# Encoder frames a batch on a CPU, where bigger ones stop paying once matrices are tall (docs/log.md, 2026-11-21); in narrow
# models, what an operator costs however small it is counts for more (2026-11-22).
_CPU_BATCH_FRAMES, _CPU_BATCH_FRAMES_NARROW = 1600, 3200


Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    print(f"fastscribe: {escaped(line)}", file=sys.stderr)


@dataclass(frozen=True)
class Aligner:
    """A second model, on the recognizer's device in its dtype, that hears each batch too and times the decoder's words."""

    model: Model
    log_mel: LogMel | None  # None: the recognizer's features are the aligner's too
    encoder: Callable[[Features], Frames]

    @classmethod
    def build(
        cls,
        checkpoint: Checkpoint,
        features: FeaturesConfig,
        device: torch.device,
        dtype: str,
        options: Options,
        say: Say,
    ) -> Aligner:
        """`features` are the recognizer's. Raises as Recognizer.build."""
        model = _build_model(checkpoint, device, dtype, options, say)
        own = checkpoint.config.features
        return cls(model, None if own == features else LogMel(own).to(device), _encoder(model, device, options, say))

    def decoder(self, inner: Decoder, checkpoint: Checkpoint, tokenizer: Tokenizer, say: Say) -> AligningDecoder:
        """`checkpoint` is the aligner's, `tokenizer` the inner decoder's.

        Raises CheckpointError where the aligner's tokenizer cannot encode text.
        """
        assert self.model.ctc is not None
        try:
            encoder = WordEncoder.of(checkpoint.tokenizer)
        except ValueError as error:
            raise CheckpointError(checkpoint.path, f"timestamps aligner: {error}") from error
        return AligningDecoder(inner, self.model.ctc, self.model.config.blank_id, tokenizer, encoder, say)


@dataclass(frozen=True)
class Recognizer:
    model: Model
    log_mel: LogMel
    encoder: Callable[[Features], Frames]  # the model's, or the same captured in graphs
    decoder: Decoder
    decoder_name: DecoderName
    beam: int  # hypotheses that the decoder keeps in view
    device: torch.device
    dtype: str
    aligner: Aligner | None = None  # where times are asked for and the checkpoint has one

    @classmethod
    def build(
        cls,
        checkpoint: Checkpoint,
        device: str = "auto",
        dtype: str = "auto",
        options: Options = Options(),  # noqa: B008 - frozen
        say: Say = to_stderr,
    ) -> Recognizer:
        """`say` gets a line for each fast path that cannot be had and was not asked for by name.

        Raises UsageError for a device, dtype, decoder or graph mode that cannot be had, WeightsMismatch for a wrong
        checkpoint.
        """
        chosen_device = choose_device(device)
        chosen_dtype = choose_dtype(dtype, chosen_device, checkpoint.config.encoder.d_model)
        chosen_decoder = choose_decoder(options, checkpoint.config.decoders)
        beam = choose_beam(options, chosen_decoder, checkpoint.language_model)
        options = replace(options, beam=beam)
        model = _build_model(checkpoint, chosen_device, chosen_dtype, options, say)
        encoder = _encoder(model, chosen_device, options, say)
        decoder = DECODERS[chosen_decoder].build(model, checkpoint, chosen_device, options, say)
        aligner = None
        if options.timestamps and checkpoint.aligner is not None:
            features = checkpoint.config.features
            aligner = Aligner.build(checkpoint.aligner, features, chosen_device, chosen_dtype, options, say)
            decoder = aligner.decoder(decoder, checkpoint.aligner, checkpoint.tokenizer, say)
        return cls(
            model,
            LogMel(checkpoint.config.features).to(chosen_device),
            encoder,
            decoder,
            chosen_decoder,
            beam,
            chosen_device,
            chosen_dtype,
            aligner,
        )

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

    @property
    def sample_rate(self) -> int:
        return self.model.config.features.sample_rate

    @property
    def zero_duration_punctuation(self) -> bool:
        """As the decoder's words are timed (transcript.assemble)."""
        return DECODERS[self.decoder_name].zero_duration_punctuation

    @property
    def recovers_gaps(self) -> bool:
        """Options.recover_gaps where the user leaves it open."""
        return DECODERS[self.decoder_name].recovers_gaps

    @property
    def token_frame_s(self) -> float:
        """Seconds that a frame of Hypothesis.token_frames stands for."""
        return (self.aligner.model if self.aligner else self.model).config.frame_s

    def num_frames(self, batch: Batch) -> int:
        """Encoder frames of the longest row."""
        return self.model.config.num_frames(int(batch.lengths_B.max()) / self.sample_rate)

    def upload(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples [B, S] at the model's rate and lengths [B], on the device; `batch` must live until they are there."""
        lengths_B = small_to_device(batch.lengths_B, self.device)
        samples_BS = to_device(batch.samples_BS, self.device)
        return resample.fill(batch, samples_BS, self.sample_rate), lengths_B

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        features: Features = self.log_mel(samples_BS, lengths_B)
        if self.aligner is None:
            return features
        own = self.aligner.log_mel
        return replace(features, aligner=features if own is None else own(samples_BS, lengths_B))

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        frames = checked.checked_frames(self._encoded(self.encoder, features), features)
        aligner = None
        if self.aligner is not None:
            assert features.aligner is not None
            aligner = self._encoded(self.aligner.encoder, features.aligner)
        return replace(frames, mel_lengths_B=features.lengths_B, aligner=aligner)

    def submit(self, frames: Frames) -> torch.Tensor:
        """Queue the decoding of these frames. Returns what `read` needs, on the device."""
        with self._precision():
            return checked.submit(self.decoder, frames)

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        """Hypotheses from a host copy of what `submit` returned. A batch that ran out of room is decoded again."""
        with self._precision():
            return checked.read(self.decoder, packed, frames)

    def _encoded(self, encoder: Callable[[Features], Frames], features: Features) -> Frames:
        with self._precision():
            return encoder(features)

    def _precision(self) -> AbstractContextManager[None]:
        """The block in which --dtype fp32 computes. Graphs are captured within it too, and keep its precision."""
        return no_tf32(self.device) if self.dtype == "fp32" else nullcontext()

    def transcribe(self, batch: Batch) -> list[Hypothesis]:
        """One Hypothesis a row, all stages one after another; waits for the device."""
        frames = self.encode(self.features(*self.upload(batch)))
        return self.read(self.submit(frames).cpu().numpy(), frames)

    def choose_budget(self) -> Budget:
        """How large a batch should be: found by a few passes on a GPU, known on a CPU."""
        if self.device.type == "cpu":
            is_narrow = self.model.config.encoder.d_model < _NARROW_ON_CPU
            return Budget(_CPU_BATCH_FRAMES_NARROW if is_narrow else _CPU_BATCH_FRAMES)
        decoder_memory = DECODERS[self.decoder_name].decoder_memory(self.model)
        passes: list[cost_model.Pass] = []
        try:
            for rows, frames in cost_model.SHAPES:
                passes.append(self._measure(rows, frames))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # the measurement used none of the shared streams
        if len(passes) < len(cost_model.SHAPES):
            return cost_model.budget_after_out_of_memory(passes, decoder_memory)
        return cost_model.budget(cost_model.fit(passes), free_bytes(self.device), decoder_memory)

    def _measure(self, rows: int, num_frames: int) -> cost_model.Pass:
        """One pass over noise, the second of two, so that what is made once is not counted."""
        models = [self.model] if self.aligner is None else [self.model, self.aligner.model]
        work = [(model.encoder, self._noise(model.config, rows, num_frames)) for model in models]
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.synchronize(self.device)
            start = perf_counter()
            with torch.inference_mode():
                _ = [encoder(features) for encoder, features in work]  # all outputs are kept until a batch is decoded
            torch.cuda.synchronize(self.device)
            seconds = perf_counter() - start
        return cost_model.Pass(rows, num_frames, seconds, torch.cuda.max_memory_allocated(self.device) - before)

    def _noise(self, config: ModelConfig, rows: int, num_frames: int) -> Features:
        """Features of as much audio as `num_frames` of the recognizer's own encoder stand for."""
        mel_frames = round(num_frames * self.model.config.frame_s * config.features.sample_rate)
        mel_frames //= config.features.hop_length
        mel_BMT = torch.randn(rows, config.features.num_mels, mel_frames, device=self.device)
        return Features(mel_BMT, torch.full((rows,), mel_frames, device=self.device))


def _build_model(checkpoint: Checkpoint, device: torch.device, dtype: str, options: Options, say: Say) -> Model:
    """The checkpoint's model in its inference form, on its device in its dtype."""
    if dtype in _8_BIT and not ENCODER_FAMILIES[type(checkpoint.config.encoder)].has_matrices:
        raise UsageError(f"--dtype {dtype}: this encoder has no matrices that multiply in 8 bits: bf16 or fp32")
    config = with_attention(checkpoint.config, options.attention)
    model = build_model(config, checkpoint.weights, checkpoint.path, _prepare(device, dtype))
    if device.type == "cuda":
        _prepare_for_gpu_(model, dtype, say)
    return model


def _prepare(device: torch.device, dtype: str) -> Prepare:
    """What turns each part of a model, as soon as it is loaded, into its final form."""
    if device.type == "cuda":
        return partial(_move_to_gpu_, device=device, dtype=torch_dtype(dtype))
    disable_malloc_trim()
    return partial(_pack_for_cpu_, dtype=dtype)


def _pack_for_cpu_(path: str, part: nn.Module, dtype: str) -> None:
    optimise_(part)
    if dtype == "int8" and path.startswith("encoder."):
        quantise_int8_(part)
    rest = torch_dtype(dtype)
    part.to(rest)
    pack_linears_(part, rest)
    pack_time_convs_(part, rest)


def _move_to_gpu_(path: str, part: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    optimise_(part)
    part.to(device, dtype)


def _prepare_for_gpu_(model: Model, dtype: str, say: Callable[[str], None]) -> None:
    prepare_ = ENCODER_FAMILIES[type(model.config.encoder)].prepare_for_gpu_
    if (remark := prepare_(model.encoder, dtype == "fp8")) is not None:
        say(remark)
    if dtype == "fp8":
        quantise_fp8_(model.encoder)


def _encoder(
    model: Model, device: torch.device, options: Options, say: Callable[[str], None]
) -> Callable[[Features], Frames]:
    mode = options.cuda_graphs
    if device.type != "cuda" or mode == "off":
        return model.encoder

    def give_up(reason: GraphsUnavailable) -> None:
        if mode != "auto":
            raise UsageError(f"--cuda-graphs {mode}: cannot be had here: {reason}") from reason
        say(f"CUDA graphs: none for the encoder ({reason}); small batches will be slower")

    return EncoderGraphs(model.encoder, device, give_up)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--device {name}: not one of auto, cpu, cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: cannot be used here ({first_line(error)})") from error
    return device


def choose_dtype(name: str, device: torch.device, d_model: int) -> str:
    """auto: bf16 on a GPU and, for models wide enough to gain by it, on CPUs that multiply bf16 natively; else fp32."""
    if name not in get_args(DtypeChoice):
        raise UsageError(f"--dtype {name}: not one of {', '.join(get_args(DtypeChoice))}")
    if name == "auto":
        gains = device.type == "cuda" or (has_native_bf16() and d_model >= _NARROW_ON_CPU)
        return "bf16" if gains else "fp32"
    problem = None
    if name == "int8":
        problem = why_no_int8() if device.type == "cpu" else "int8 is for CPUs; GPUs have fp8"
    elif name == "fp8":
        problem = fp8_problem(device)
    if problem is not None:
        raise UsageError(f"--dtype {name}: cannot be had here: {problem}")
    return name


def torch_dtype(name: str) -> torch.dtype:
    """What everything is in that is not quantised."""
    if name == "int8":
        return torch.bfloat16 if has_native_bf16() else torch.float32
    return torch.float32 if name == "fp32" else torch.bfloat16


def has_native_bf16() -> bool:
    flags = _cpuinfo("flags").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def with_attention(config: ModelConfig, text: str | None) -> ModelConfig:
    """The checkpoint's config with the attention that the user asks for, if any. Raises UsageError."""
    if text is None:
        return config
    if not isinstance(config.encoder, EncoderConfig):
        raise UsageError(f"--attention {text}: this model has none")
    return replace(config, encoder=replace(config.encoder, attention=parse_attention(text)))


def choose_decoder(options: Options, available: tuple[DecoderName, ...]) -> DecoderName:
    """Raises UsageError for one that the checkpoint lacks, and for options that the chosen one cannot follow."""
    name = options.decoder or available[0]
    if name not in available:
        raise UsageError(f"--decoder {name}: this checkpoint has {' and '.join(available)}")
    asked = options_for_prompt(options)
    if asked is not None and not DECODERS[name].has_prompt:
        raise UsageError(f"{asked}: only models of the Canary family can be told so, not {name} ones")
    if (options.beam or 1) > 1 and not DECODERS[name].has_beam:
        raise UsageError(f"--beam {options.beam}: only RNN-T and TDT models search with a beam, not {name} ones")
    return name


def choose_beam(options: Options, decoder: DecoderName, language_model: LanguageModel | None) -> int:
    if options.beam is not None:
        return options.beam
    return language_model.fusion.beam if language_model and DECODERS[decoder].has_beam else 1


def cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or "CPU"


def _cpuinfo(field: str) -> str:
    """What Linux says of the first processor; empty elsewhere, and for fields that this processor lacks."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(field)), "")
    except OSError:
        return ""
