"""The recognizer: batches of waveforms in, hypotheses out, on one device in one dtype. It handles tensors, no files.

Its stages are separate and do not wait for the GPU, so the engine can overlap several batches: upload, features (always
float32), encode, and the decoder's submit and read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fastscribe._system.limits import peak_process_bytes
from fastscribe._system.processors import cpu_name
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import DecoderName, ModelConfig, Options
from fastscribe.cuda.device import full_float32, small_to_device, to_device
from fastscribe.decode.decoder import Decoder, Parts, checked_frames, read_checked, submit_checked
from fastscribe.decode.families import DECODERS, check_nbest, choose_beam, choose_decoder
from fastscribe.errors import UsageError
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.conformer.config import language_prompt_of
from fastscribe.families.model import Model
from fastscribe.languages import check_languages
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.dtype_choice import NARROW_ON_CPU, choose_dtype
from fastscribe.pipeline.interfaces import ModelFacts, lock_of
from fastscribe.pipeline.model_building import build_on_device, choose_device, encoder_of
from fastscribe.pipeline.run_rooms import RunRooms, SpeakerModel, build_rooms, fused_model
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import WORDS, Batch, Features, Frames, Hypothesis, Int32Array

# Encoder frames in a CPU batch. Larger batches gain nothing once matrices are tall (docs/log.md, 2026-11-21). Narrow models
# need larger ones, because the fixed cost of each operator weighs more (2026-11-22), and so do layers in loops, which compute
# no padding: each thread's part of a batch reads all weights (2026-11-25).
_CPU_BATCH_FRAMES, _LARGE_CPU_BATCH_FRAMES = 1600, 3200
_MAX_PADDING_OF_LOOPS = 0.5

Log = Callable[[str], None]


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
    rooms: RunRooms
    facts: ModelFacts  # what runs and reports need to know

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
        """Build the model, its decoder, and what rooms add.

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
        chosen_device = choose_device(device, say)
        chosen_dtype = choose_dtype(dtype, chosen_device, checkpoint.config.encoder, say)
        chosen_decoder = choose_decoder(options, checkpoint.config.decoders)
        prompt = language_prompt_of(checkpoint.config)
        if prompt is not None and options.target_language is not None:
            raise UsageError(f"--target-language {options.target_language}: this model does not translate")
        languages = lock_of(checkpoint, options, DECODERS[chosen_decoder].has_prompt) if keeps_language else None
        if prompt is None and not DECODERS[chosen_decoder].has_prompt:
            check_languages(
                options.language,
                options.target_language,
                checkpoint.languages,
                say,
                is_followed=checkpoint.has_aligner_of_a_language or options.changes_text or not keeps_language,
                num_excluded=None if languages is None else languages.num_excluded,
                num_tokens=len(checkpoint.tokenizer.pieces),
            )
        fused = checkpoint.fused_model
        beam = choose_beam(options, chosen_decoder, None if fused is None else fused.fusion.beam)
        check_nbest(options.nbest, beam, chosen_decoder)
        options = replace(options, beam=beam)
        model = build_on_device(checkpoint, chosen_device, chosen_dtype, options, say)
        encoder = encoder_of(model, chosen_device, options, say)
        parts = Parts(model, checkpoint, chosen_device, options, say, fused_model(checkpoint.fused_model, beam))
        decoder = DECODERS[chosen_decoder].build(parts)
        rooms = build_rooms(checkpoint, chosen_device, chosen_dtype, options, say, languages)
        if rooms.word_timer is not None:
            decoder = rooms.word_timer.decoder(decoder, checkpoint.tokenizer)
        return cls(
            model,
            LogMel(checkpoint.config.features).to(chosen_device),
            encoder,
            decoder,
            chosen_decoder,
            beam,
            chosen_device,
            chosen_dtype,
            rooms,
            _facts(model.config, chosen_decoder, beam, chosen_device, chosen_dtype, rooms, checkpoint.tokenizer),
        )

    def stages(self, batch: Batch) -> Recognizer | SpeakerModel:
        """Return what has the features, encode, submit and read of a batch."""
        return self if batch.purpose == WORDS else self.rooms.others[batch.purpose]

    def peak_bytes(self) -> int:
        """Return the peak memory so far: the device's on a GPU, the process's on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return peak_process_bytes()

    @property
    def sample_rate(self) -> int:
        """The model's rate in Hz."""
        return self.model.config.features.sample_rate

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
        """Return the log-mel features, and those of the word timer."""
        features: Features = self.log_mel(samples_BS, lengths_B)
        if (timer := self.rooms.word_timer) is None:
            return features
        return replace(features, aligner=timer.features(features, samples_BS, lengths_B))

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        """Return the encoder's output, and the word timer's."""
        frames = checked_frames(self._encoded(self.encoder, features), features)
        aligner = None
        if self.rooms.word_timer is not None:
            assert features.aligner is not None
            aligner = self._encoded(self.rooms.word_timer.encoder, features.aligner)
        return replace(frames, mel_lengths_B=features.lengths_B, aligner=aligner)

    def with_constraints(self, frames: Frames, batch: Batch) -> Frames:
        """Return the batch's frames with the phrases to boost and the tokens that are left out, if there are any."""
        if self.rooms.boosts or any(one.audio.boost or one.audio.language for one in batch.utterances):
            return self.rooms.constraints().constrain(frames, batch)
        return frames

    def submit(self, frames: Frames) -> torch.Tensor:
        """Queue the decoding of the frames. Return the packed results on the device; read() unpacks a host copy."""
        with self._precision():
            return submit_checked(self.decoder, frames)

    def read(self, packed: Int32Array, frames: Frames) -> Sequence[Hypothesis]:
        """Return the hypotheses from a host copy of submit()'s result. Decode the batch again if its buffers overflowed."""
        with self._precision():
            return read_checked(self.decoder, packed, frames)

    def _encoded(self, encoder: Callable[[Features], Frames], features: Features) -> Frames:
        with self._precision():
            return encoder(features)

    def _precision(self) -> AbstractContextManager[None]:
        """Return a context that disables TF32 for --dtype fp32. Graphs are captured inside it and keep its precision."""
        return full_float32(self.device) if self.dtype == "fp32" else nullcontext()

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
        from fastscribe.pipeline.cost_model import measured_budget

        decoder_memory = DECODERS[self.decoder_name].decoder_memory(self.model)
        timer = self.rooms.word_timer
        models = [self.model] if timer is None else [self.model, timer.model]
        return measured_budget(models, decoder_memory, self.device)


def _facts(
    config: ModelConfig,
    decoder_name: DecoderName,
    beam: int,
    device: torch.device,
    dtype: str,
    rooms: RunRooms,
    tokenizer: Tokenizer,
) -> ModelFacts:
    decoder, aed = DECODERS[decoder_name], config.aed if decoder_name == "aed" else None
    timer = None if rooms.word_timer is None else rooms.word_timer.model.config
    kept = None if rooms.languages is None else rooms.languages.language
    return ModelFacts(
        torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype,
        decoder_name,
        beam,
        config.attention,
        token_frame_s=(timer or config).frame_s,
        zero_duration_punctuation=timer is None
        and decoder.zero_duration_punctuation,  # a word timer's times are of words
        language=kept or config.language or (None if timer is None else timer.language),
        others={purpose: other.model.config for purpose, other in rooms.others.items()},
        marks=frozenset(one for one in tokenizer.punctuation_ids if tokenizer.roles[one] != "starts word"),
        has_prompt=decoder.has_prompt,
        is_gpu=device.type == "cuda",
        torch_version=str(torch.__version__),
        least_samples=0
        if aed is None or aed.prompt == "cohere"
        else config.features.sample_rate,  # NeMo's for Canary: 1 s
    )
