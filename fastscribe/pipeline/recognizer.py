"""The recognizer: batches of waveforms in, hypotheses out, on one device in one dtype. It handles tensors, no files.

Its stages are separate and do not wait for the GPU, so the engine can overlap several batches: upload, features (always
float32), encode, and the decoder's submit and read.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import ClassVar, get_args

import torch
from torch import nn

from fastscribe import rooms
from fastscribe._system.malloc_tuning import disable_malloc_trim
from fastscribe._system.memory import peak_process_bytes
from fastscribe._system.processors import cpu_name
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.alignment.aligning_decoder import AligningDecoder
from fastscribe.alignment.script import Speller
from fastscribe.checkpoint.language_choice import has_aligner_of_a_language, language_filter_of
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import (
    ChunkedAttention,
    DecoderName,
    EightBitDtypeName,
    FeaturesConfig,
    ModelConfig,
    Options,
    parse_attention,
)
from fastscribe.context.backoff_model import BackoffModel
from fastscribe.context.booster import Booster
from fastscribe.context.fusion import tables_of
from fastscribe.context.language_filter import LanguageFilter
from fastscribe.context.language_model import LanguageModel
from fastscribe.context.vocabulary_mask import VocabularyMasks
from fastscribe.cuda.device import free_bytes, is_out_of_memory, small_to_device, to_device
from fastscribe.cuda.encoder_graphs import EncoderGraphs
from fastscribe.cuda.graph_capture import GraphsUnavailable
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.decode import checked
from fastscribe.decode.decoder import Decoder, Parts
from fastscribe.decode.families import DECODERS
from fastscribe.decode.prompt import options_for_prompt
from fastscribe.errors import CheckpointError, UsageError, first_line
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.conformer.config import EncoderConfig, language_prompt_of
from fastscribe.families.cpu_form import import_numba_meanwhile, to_cpu_form_, torch_dtype
from fastscribe.families.encoder_family import encoder_family
from fastscribe.families.model import Model, Prepare, build_model, optimise_
from fastscribe.languages import check_languages
from fastscribe.pipeline import cost_model
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.dtype_choice import NARROW_ON_CPU, choose_dtype
from fastscribe.pipeline.interfaces import SideModel
from fastscribe.pipeline.model_facts import ModelFacts
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import WORDS, Batch, Features, Frames, Hypothesis, Int32Array

_8_BIT = get_args(EightBitDtypeName)
# Encoder frames in a CPU batch. Larger batches gain nothing once matrices are tall (docs/log.md, 2026-11-21). Narrow models
# need larger ones, because the fixed cost of each operator weighs more (2026-11-22), and so do layers in loops, which compute
# no padding: each thread's part of a batch reads all weights (2026-11-25).
_CPU_BATCH_FRAMES, _LARGE_CPU_BATCH_FRAMES = 1600, 3200
_MAX_PADDING_OF_LOOPS = 0.5
_MAX_PREPARING = 4  # threads that quantise and pack; each holds a part of the weights in memory

Log = Callable[[str], None]


@dataclass(frozen=True)
class Aligner:
    """A second model that times the decoder's words, on the recognizer's device in its dtype."""

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
        say: Log,
    ) -> Aligner:
        """Build the aligner. `features` are the recognizer's. Raises as Recognizer.build()."""
        model = _build_model(checkpoint, device, dtype, options, say)
        own = checkpoint.config.features
        return cls(model, None if own == features else LogMel(own).to(device), _encoder(model, device, options, say))

    def decoder(
        self, inner: Decoder, checkpoint: Checkpoint, tokenizer: Tokenizer, options: Options, say: Log
    ) -> AligningDecoder:
        """Wrap a decoder so that the aligner times its words.

        Args:
            inner: The decoder.
            checkpoint: The aligner's checkpoint.
            tokenizer: The inner decoder's tokenizer.
            options: Whether the aligner is the checkpoint's own, for which words are spelled as NeMo does.
            say: Called with each line for the user.

        Raises:
            CheckpointError: The aligner's tokenizer cannot encode text.
        """
        assert self.model.ctc is not None
        try:
            encoder = WordEncoder.of(checkpoint.tokenizer)
            encoder = Speller(checkpoint.tokenizer).encoder() if options.align_with else encoder
        except ValueError as error:
            raise CheckpointError(checkpoint.path, f"cannot time words: {error}") from error
        return AligningDecoder(inner, self.model.ctc, self.model.config.blank_id, tokenizer, encoder, say)


@dataclass(frozen=True)
class Recognizer:
    """A model's stages on one device. build() makes it from a checkpoint."""

    runs_in_parts: ClassVar[bool] = True  # on a CPU, the rows of a batch
    model: Model
    log_mel: LogMel
    encoder: Callable[[Features], Frames]  # the model's, or the same captured in graphs
    decoder: Decoder
    decoder_name: DecoderName
    beam: int
    device: torch.device
    dtype: str
    booster: Booster
    masks: VocabularyMasks | None = None  # None: the model has one language, or a prompt for it
    aligner: Aligner | None = None  # if the options ask for its times
    others: Mapping[str, SideModel] = field(default_factory=dict)  # by purpose: models that rooms run beside it
    marks: frozenset[int] = frozenset()  # tokens of punctuation

    @classmethod
    def build(
        cls,
        checkpoint: Checkpoint,
        device: str = "auto",
        dtype: str = "auto",
        options: Options = Options(),  # noqa: B008 - frozen
        say: Log = log_to_stderr,
        keeps_language: bool = True,
    ) -> Recognizer:
        """Build the model, its decoder and its aligner.

        Args:
            checkpoint: Config, tokenizer and weights.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fastest or the name of a dtype.
            options: Decoder, beam, attention, graph mode and timestamps count here.
            say: Called with one line for each fast path that is unavailable, unless the options name it.
            keeps_language: Leave out tokens that the language of the options, or of a row, does not have.

        Raises:
            UsageError: A device, dtype, decoder, language or graph mode is unavailable.
            WeightsMismatch: The weights do not fit the config.
        """
        chosen_device = choose_device(device)
        chosen_dtype = choose_dtype(dtype, chosen_device, checkpoint.config.encoder, say)
        chosen_decoder = choose_decoder(options, checkpoint.config.decoders)
        prompt = language_prompt_of(checkpoint.config)
        if prompt is not None and options.target_language is not None:
            raise UsageError(f"--target-language {options.target_language}: this model does not translate")
        languages = (
            language_filter_of(checkpoint, options, DECODERS[chosen_decoder].has_prompt) if keeps_language else None
        )
        if prompt is None and not DECODERS[chosen_decoder].has_prompt:
            check_languages(
                options.language,
                options.target_language,
                checkpoint.languages,
                say,
                is_followed=has_aligner_of_a_language(checkpoint) or options.changes_text or not keeps_language,
                num_excluded=None if languages is None else languages.num_excluded,
                num_tokens=len(checkpoint.tokenizer.pieces),
            )
        beam = choose_beam(options, chosen_decoder, checkpoint.fused_model)
        check_nbest(options.nbest, beam, chosen_decoder)
        options = replace(options, beam=beam)
        model = _build_model(checkpoint, chosen_device, chosen_dtype, options, say)
        encoder = _encoder(model, chosen_device, options, say)
        fused = tables_of(checkpoint.fused_model) if beam > 1 else None
        decoder = DECODERS[chosen_decoder].build(Parts(model, checkpoint, chosen_device, options, say, fused))
        aligner = None
        if (options.timestamps or options.align_with) and checkpoint.aligner is not None:
            features = checkpoint.config.features
            aligner = Aligner.build(checkpoint.aligner, features, chosen_device, chosen_dtype, options, say)
            decoder = aligner.decoder(decoder, checkpoint.aligner, checkpoint.tokenizer, options, say)
        others: dict[str, SideModel] = {}
        for build_models in rooms.offered("build_models", options):
            others |= build_models(checkpoint.others, chosen_device, prepare, chosen_dtype)
        return cls(
            model,
            LogMel(checkpoint.config.features).to(chosen_device),
            encoder,
            decoder,
            chosen_decoder,
            beam,
            chosen_device,
            chosen_dtype,
            Booster(options.boost, checkpoint.tokenizer, checkpoint.path, chosen_device, say, languages),
            None if languages is None else VocabularyMasks(languages, checkpoint.config.blank_id, chosen_device),
            aligner,
            others,
            _marks(checkpoint.tokenizer),
        )

    def stages(self, batch: Batch) -> Recognizer | SideModel:
        """Return what has the features, encode, submit and read of a batch."""
        return self if batch.purpose == WORDS else self.others[batch.purpose]

    @property
    def languages(self) -> LanguageFilter | None:
        """What keeps recordings to a language; None: nothing does."""
        return self.masks.languages if self.masks else None

    @property
    def device_name(self) -> str:
        """Name of the GPU or CPU."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return cpu_name() if self.device.type == "cpu" else self.device.type

    def peak_bytes(self) -> int:
        """Return the peak memory so far: the device's on a GPU, the process's on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return peak_process_bytes()

    @property
    def sample_rate(self) -> int:
        """The model's rate in Hz."""
        return self.model.config.features.sample_rate

    @property
    def zero_duration_punctuation(self) -> bool:
        """True if the decoder's timestamps give punctuation no time (transcript.assemble). An aligner's are of words."""
        return self.aligner is None and DECODERS[self.decoder_name].zero_duration_punctuation

    @property
    def facts(self) -> ModelFacts:
        """What runs and reports need to know."""
        return ModelFacts(
            self.device_name,
            self.dtype,
            self.decoder_name,
            self.beam,
            self.model.config.attention,
            self.token_frame_s,
            self.zero_duration_punctuation,
            DECODERS[self.decoder_name].recovers_gaps,
            self._language,
            {purpose: model.config for purpose, model in self.others.items()},
            self.marks,
            DECODERS[self.decoder_name].has_prompt,
            is_gpu=self.device.type == "cuda",
            torch_version=str(torch.__version__),
        )

    @property
    def _language(self) -> str | None:
        """Tag of the one language that is written; None: not known. The filter's counts first, the aligner's last."""
        kept, aligner = self.languages, self.aligner
        found = (kept.language if kept else None) or self.model.config.language
        return found or (aligner.model.config.language if aligner else None)

    @property
    def token_frame_s(self) -> float:
        """Length in seconds of a frame of Hypothesis.token_frames."""
        return (self.aligner.model if self.aligner else self.model).config.frame_s

    def num_frames(self, batch: Batch) -> int:
        """Return the encoder frames of the longest row."""
        return self.model.config.num_frames(int(batch.lengths_B.max()) / self.sample_rate)

    def upload(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return samples [B, S] at the model's rate and lengths [B] on the device. Keep `batch` until the copy is done."""
        lengths_B = small_to_device(batch.lengths_B, self.device)
        samples_BS = to_device(batch.samples_BS, self.device)
        if batch.native:  # rows that the device resamples
            from fastscribe.audio.resample import fill

            samples_BS = fill(batch, samples_BS, self.sample_rate)
        return samples_BS, lengths_B

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the log-mel features, and the aligner's if it has its own."""
        features: Features = self.log_mel(samples_BS, lengths_B)
        if self.aligner is None:
            return features
        own = self.aligner.log_mel
        return replace(features, aligner=features if own is None else own(samples_BS, lengths_B))

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        """Return the encoder's output, and the aligner's."""
        frames = checked.checked_frames(self._encoded(self.encoder, features), features)
        aligner = None
        if self.aligner is not None:
            assert features.aligner is not None
            aligner = self._encoded(self.aligner.encoder, features.aligner)
        return replace(frames, mel_lengths_B=features.lengths_B, aligner=aligner)

    def with_constraints(self, frames: Frames, batch: Batch) -> Frames:
        """Return the batch's frames with the phrases to boost and the tokens that are left out, if there are any."""
        boost, mask = self.booster.boost(batch), self.masks and self.masks.mask(batch)
        return frames if boost is None and mask is None else replace(frames, boost=boost, mask=mask)

    def submit(self, frames: Frames) -> torch.Tensor:
        """Queue the decoding of the frames. Return the packed results on the device; read() unpacks a host copy."""
        with self._precision():
            return checked.submit(self.decoder, frames)

    def read(self, packed: Int32Array, frames: Frames) -> Sequence[Hypothesis]:
        """Return the hypotheses from a host copy of submit()'s result. Decode the batch again if its buffers overflowed."""
        with self._precision():
            return checked.read(self.decoder, packed, frames)

    def _encoded(self, encoder: Callable[[Features], Frames], features: Features) -> Frames:
        with self._precision():
            return encoder(features)

    def _precision(self) -> AbstractContextManager[None]:
        """Return a context that disables TF32 for --dtype fp32. Graphs are captured inside it and keep its precision."""
        return no_tf32(self.device) if self.dtype == "fp32" else nullcontext()

    def transcribe(self, batch: Batch) -> Sequence[Hypothesis]:
        """Run all stages in sequence and wait for the device. Return one Hypothesis per row."""
        frames = self.with_constraints(self.encode(self.features(*self.upload(batch))), batch)
        return self.read(self.submit(frames).cpu().numpy(), frames)

    def choose_budget(self) -> Budget:
        """Return the batch budget: measured with a few encoder passes on a GPU, a constant on a CPU."""
        if self.device.type == "cpu":
            encoder = self.model.config.encoder
            if encoder.has_loops:
                return Budget(_LARGE_CPU_BATCH_FRAMES, max_padding=_MAX_PADDING_OF_LOOPS)
            return Budget(_LARGE_CPU_BATCH_FRAMES if encoder.d_model < NARROW_ON_CPU else _CPU_BATCH_FRAMES)
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
        """Measure an encoder pass over noise: the second of two, so that one-time work is not counted."""
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
        """Return random features of as much audio as `num_frames` frames of the recognizer's own encoder."""
        mel_frames = round(num_frames * self.model.config.frame_s * config.features.sample_rate)
        mel_frames //= config.features.hop_length
        mel_BMT = torch.randn(rows, config.features.num_mels, mel_frames, device=self.device)
        return Features(mel_BMT, torch.full((rows,), mel_frames, device=self.device))


def _build_model(checkpoint: Checkpoint, device: torch.device, dtype: str, options: Options, say: Log) -> Model:
    """Return the checkpoint's model in its inference form, on its device in its dtype."""
    if dtype in _8_BIT and not checkpoint.config.encoder.has_matrices:
        raise UsageError(f"--dtype {dtype}: this encoder has no matrices that multiply in 8 bits: bf16 or fp32")
    config = with_language(with_attention(checkpoint.config, options.attention), options.language)
    threads = 1
    if device.type != "cuda" and config.encoder.has_loops:
        import_numba_meanwhile()
        threads = min(_MAX_PREPARING, torch.get_num_threads())
    model = build_model(config, checkpoint.weights, checkpoint.path, prepare(device, dtype), threads)
    if device.type == "cuda":
        _prepare_for_gpu_(model, dtype, say)
    else:
        encoder_family(config.encoder).prepare_for_cpu_(model.encoder)
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
    prepare_ = encoder_family(model.config.encoder).prepare_for_gpu_
    if (remark := prepare_(model.encoder, dtype == "fp8")) is not None:
        say(remark)
    if dtype == "fp8":
        from fastscribe.families.blocks.fp8 import quantise_fp8_

        quantise_fp8_(model.encoder)


def _encoder(
    model: Model, device: torch.device, options: Options, say: Callable[[str], None]
) -> Callable[[Features], Frames]:
    mode = options.cuda_graphs
    encoder: Callable[[Features], Frames] = model.encoder
    if device.type != "cuda" or mode == "off":
        return encoder

    def give_up(reason: GraphsUnavailable) -> None:
        if mode != "auto":
            raise UsageError(f"--cuda-graphs {mode}: unavailable: {reason}") from reason
        say(f"CUDA graphs: none for the encoder ({reason}); small batches will be slower")

    return EncoderGraphs(model.encoder, device, give_up)


def choose_device(name: str) -> torch.device:
    """Return the device; auto: a GPU if there is one. Raise UsageError if it cannot be used."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch("cpu|cuda(:[0-9]+)?", name):
        raise UsageError(f"--device {name}: not auto, cpu, cuda or cuda:N with a number")
    if name != "cpu" and not torch.backends.cuda.is_built():
        cure = "use --device cpu, or install a torch with CUDA; fastscribe doctor shows what is here"
        raise UsageError(f"--device {name}: this torch has no CUDA: {cure}")
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: cannot be used here ({first_line(error)})") from error
    return device


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
    from fastscribe.families.nemotron.languages import choose_language

    told = replace(prompt, index=choose_language(prompt, language))
    return replace(config, encoder=replace(encoder, language_prompt=told))


def choose_decoder(options: Options, available: tuple[DecoderName, ...]) -> DecoderName:
    """Return the decoder; by default the checkpoint's first.

    Raises UsageError if the checkpoint lacks it or it does not support the prompt or beam options.
    """
    name = options.decoder or available[0]
    if name not in available:
        raise UsageError(f"--decoder {name}: this checkpoint has {' and '.join(available)}")
    prompt_option = options_for_prompt(options)
    if prompt_option is not None and not DECODERS[name].has_prompt:
        rest = f"{name} models always write times" if prompt_option == "--timestamps" else f"this is a {name} model"
        raise UsageError(f"{prompt_option} is for Canary models; {rest}")
    if (options.beam or 1) > 1 and not DECODERS[name].has_beam:
        raise UsageError(f"--beam {options.beam}: only RNN-T and TDT models search with a beam, not {name} ones")
    return name


def choose_beam(options: Options, decoder: DecoderName, language_model: LanguageModel | BackoffModel | None) -> int:
    """Return the beam size: the option, else the language model's, else 1.

    Raises UsageError if the options are about a language model and the search uses none.
    """
    named = "--lm" if options.lm is not None else None if options.lm_weight is None else "--lm-weight"
    if named and not DECODERS[decoder].has_beam:
        raise UsageError(f"{named}: only RNN-T and TDT models search with a beam, not {decoder} ones")
    if named and options.beam == 1:
        raise UsageError(f"{named}: greedy decoding uses no language model: give --beam 2 or more, or leave --beam out")
    if options.beam is not None:
        return options.beam
    return language_model.fusion.beam if language_model and DECODERS[decoder].has_beam else 1


def check_nbest(nbest: int | None, beam: int, decoder: DecoderName) -> None:
    """Raise UsageError if a search with this beam cannot return `nbest` hypotheses."""
    if nbest is None:
        return
    if not DECODERS[decoder].has_beam:
        raise UsageError(f"--nbest {nbest}: only RNN-T and TDT models search with a beam, not {decoder} ones")
    if beam < max(nbest, 2):
        has = "greedy decoding finds one hypothesis" if beam == 1 else f"a beam of {beam} has {beam} hypotheses"
        raise UsageError(f"--nbest {nbest}: {has}; give --beam {max(nbest, 2)} or more")


def _marks(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens of punctuation that begin no word."""
    return frozenset(number for number in tokenizer.punctuation_ids if tokenizer.roles[number] != "starts word")
