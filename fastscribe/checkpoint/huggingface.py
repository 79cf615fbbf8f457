"""Reader of Hugging Face folders of transformers' Parakeet (ForCTC, ForRNNT, ForTDT), NemotronAsrStreaming, Nemotron3_5Asr,
Canary, CohereAsr and GraniteSpeech5ForCTC classes.

Canary's decoder is in hf_canary.py, Cohere's in hf_cohere.py, Granite in hf_granite.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from fastscribe.checkpoint import names
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import Checkpoint, Section, read_json, read_tokenizer, report_invalid_config
from fastscribe.checkpoint.weights import load_safetensors
from fastscribe.config import (
    SUBSAMPLING_FACTORS,
    ChunkedAttention,
    EncoderConfig,
    FeaturesConfig,
    GraniteConfig,
    JointActivation,
    JointConfig,
    LanguagePromptConfig,
    ModelConfig,
    PredictorConfig,
)
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.families.canary import huggingface as hf_canary
from fastscribe.families.cohere import huggingface as hf_cohere
from fastscribe.families.granite import huggingface as hf_granite
from fastscribe.families.nemotron.languages import language_prompt

SPEAKER_MODEL_TYPE = "nemotron3_diarization"  # of config.json; no model for transcription
_STREAMING = ("nemotron_asr_streaming", "nemotron3_5_asr")
FAMILIES = (
    "parakeet_ctc",
    "parakeet_rnnt",
    "parakeet_tdt",
    *_STREAMING,
    "canary",
    hf_cohere.MODEL_TYPE,
    hf_granite.MODEL_TYPE,
)
# Keys for training, generation and bookkeeping, which do not change the encoder's output.
HARMLESS = tuple(
    """
    activation_dropout architectures attention_dropout auto_map chunk_size_feed_forward diversity_penalty dropout
    dropout_positions dtype encoder_no_repeat_ngram_size id2label initializer_range label2id layerdrop length_penalty
    max_length max_position_embeddings min_length model_type no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences problem_type repetition_penalty return_dict temperature tie_word_embeddings top_k top_p
    torch_dtype transformers_version typical_p use_cache
""".split()  # noqa: SIM905
)


def read(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """Read a folder.

    Args:
        folder: the folder.
        config: content of its config.json.

    Returns:
        The checkpoint, with lazy weights.

    Raises:
        CheckpointError: the folder is damaged, or its model or a setting is not supported.
    """
    section = Section(config, "config", folder)
    model = read_config(folder, config, folder)
    if isinstance(model.encoder, GraniteConfig):
        weights = hf_granite.add_missing_weights(names.from_huggingface(read_weights(folder), model.encoder))
        tokenizer = read_tokenizer(folder, model, hf_granite.read_tokenizer)
        return Checkpoint(folder, "huggingface", model, tokenizer, LazyWeights(weights))
    tokenizer = read_tokenizer(folder, model)
    assert isinstance(model.encoder, EncoderConfig)
    weights = names.from_huggingface(read_weights(folder), model.encoder)
    if model.aed is not None and model.aed.prompt == "cohere":
        hf_cohere.check_tokens(section, tokenizer.pieces)
    elif model.aed is not None:
        hf_canary.check_tokens(section, tokenizer.pieces)
        weights = hf_canary.add_missing_weights(weights, model.aed)
    return Checkpoint(folder, "huggingface", model, tokenizer, LazyWeights(weights))


def read_config(folder: Path, config: Mapping[str, Any], where: object) -> ModelConfig:
    """Read the configuration alone; `where` names the folder in messages. Raises CheckpointError."""
    with report_invalid_config(f"{where}: config.json"):
        processor = read_processor(folder, where)
        model = model_config(Section(config, "config", where), processor, where)
        validate(model, where)
    return model


def read_weights(folder: Path) -> dict[str, TensorSource]:
    """Read one file, or the shards listed in the index."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_safetensors(folder / "model.safetensors")
    return {name: tensor for shard in shard_names(index) for name, tensor in load_safetensors(folder / shard).items()}


def shard_names(index: Path) -> list[str]:
    """Return the file names of the shards in an index, all in its folder. Raises CheckpointError."""
    values = read_json(index)
    shards = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(index, "cannot be read: its weight_map does not name a file for each weight")
    names = sorted(set(shards.values()))
    if any(Path(name).name != name for name in names):
        raise CheckpointError(index, "refused: a shard's name leaves the folder")
    return names


def read_processor(folder: Path, where: object) -> Section:
    """Return the processor's config, with the feature extractor's under its key."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        path = folder / name
        if path.is_file():
            values = read_json(path)
            is_older = name == "processor_config.json" and (folder / "preprocessor_config.json").is_file()
            if isinstance(values, dict) and ("feature_extractor" in values or not is_older):
                whole = values if "feature_extractor" in values else {"feature_extractor": values}
                return Section(whole, "", where)
    raise CheckpointError(where, "holds no processor_config.json or preprocessor_config.json")


def model_config(section: Section, processor: Section, where: object) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    family = section.choose("model_type", None, FAMILIES)
    extractor = processor.part("feature_extractor")
    extractor.name = "feature_extractor"
    if family == hf_granite.MODEL_TYPE:
        return hf_granite.model_config(section, extractor, HARMLESS)
    encoder_section = section.part("encoder_config")
    if family == hf_cohere.MODEL_TYPE:
        encoder_section.values = hf_cohere.ENCODER_DEFAULTS | encoder_section.values
        return _cohere(section, extractor, _encoder(encoder_section))
    encoder = _encoder(encoder_section, is_streaming=family in _STREAMING)
    if family == "nemotron3_5_asr":
        encoder = replace(encoder, language_prompt=_language_prompt(section, processor))
    if family == "canary":
        return _canary(section, extractor, encoder)
    vocab_size = section.positive("vocab_size")
    predictor = joint = None
    durations: tuple[int, ...] = ()
    if family != "parakeet_ctc":
        hidden = section.positive("decoder_hidden_size", 640)
        predictor = PredictorConfig(hidden=hidden, num_layers=section.positive("num_decoder_layers", 2))
        joint = JointConfig(
            hidden=hidden,
            activation=section.choose("hidden_act", "relu", get_args(JointActivation)),
            max_symbols=section.positive("max_symbols_per_step", 10),
        )
    if family == "parakeet_tdt":
        durations = tuple(section.take("durations", list))
        if not durations:
            raise UnsupportedCheckpoint(where, "config.durations", [], "at least one")
    blank_key = "pad_token_id" if family == "parakeet_ctc" else "blank_token_id"
    if section.get(blank_key, vocab_size - 1) != vocab_size - 1:
        raise UnsupportedCheckpoint(
            where, f"config.{blank_key}", section.values[blank_key], f"the last id, {vocab_size - 1}"
        )
    return ModelConfig(
        features=read_features(extractor, encoder.num_mels, is_streaming=family in _STREAMING),
        encoder=encoder,
        predictor=predictor,
        joint=joint,
        durations=durations,
        has_ctc=family == "parakeet_ctc",
        num_labels=vocab_size - 1,
    )


def _canary(section: Section, extractor: Section, encoder: EncoderConfig) -> ModelConfig:
    decoder = section.part("decoder_config")
    aed = hf_canary.aed(section, decoder, encoder.d_model)
    decoder.ignore(*HARMLESS, "bos_token_id", "eos_token_id", "is_encoder_decoder", "pad_token_id")
    decoder.finish()
    return ModelConfig(
        features=read_features(extractor, encoder.num_mels),
        encoder=encoder,
        predictor=None,
        joint=None,
        durations=(),
        has_ctc=False,
        num_labels=aed.num_classes,
        aed=aed,
    )


def _cohere(section: Section, extractor: Section, encoder: EncoderConfig) -> ModelConfig:
    aed = hf_cohere.aed(section, encoder.d_model)
    section.ignore(*HARMLESS, *hf_cohere.TOKENS, "is_encoder_decoder")
    section.finish()
    extractor.ignore("min_energy_window_samples", "overlap_chunk_second")
    longest_s, dither = extractor.number("max_audio_clip_s", 35.0), extractor.number("dither", 1e-5)
    features = read_features(extractor, encoder.num_mels, kind="CohereAsrFeatureExtractor")
    return ModelConfig(
        features=replace(features, dither=dither or 0.0),
        encoder=encoder,
        predictor=None,
        joint=None,
        durations=(),
        has_ctc=False,
        num_labels=aed.num_classes,
        aed=aed,
        trained_utterance_s=longest_s,
    )


def _language_prompt(section: Section, processor: Section) -> LanguagePromptConfig:
    languages = processor.part("prompt_dictionary").values
    num_prompts, hidden = section.positive("num_prompts", 128), section.positive("prompt_intermediate_size", 2048)
    processor.choose("num_prompts", num_prompts, (num_prompts,))
    default = section.get("default_prompt_id", 101)
    return language_prompt(processor, num_prompts, hidden, languages, default)


def read_features(
    section: Section, num_mels: int, is_streaming: bool = False, kind: str = "ParakeetFeatureExtractor"
) -> FeaturesConfig:
    """Convert the feature extractor's config. Normalisation, window and log guard are constants: NeMo's defaults."""
    kind = "NemotronAsrStreamingFeatureExtractor" if is_streaming else kind
    section.choose("feature_extractor_type", kind, (kind,))
    if is_streaming:
        section.choose("mel_filters_dtype", "float32", ("float32",))
    section.choose("feature_size", num_mels, (num_mels,))
    sample_rate = section.positive("sampling_rate", 16000)
    config = FeaturesConfig(
        sample_rate=sample_rate,
        num_mels=num_mels,
        n_fft=section.positive("n_fft", 512),
        win_length=section.positive("win_length", 400),
        hop_length=section.positive("hop_length", 160),
        window="hann",
        preemphasis=section.number("preemphasis", 0.97, nullable=True),
        mag_power=2.0,
        low_hz=0.0,
        high_hz=sample_rate / 2,
        mel_norm="slaney",
        log=True,
        log_guard="add",
        log_guard_value=2**-24,
        normalize="none" if is_streaming else "per_feature",
    )
    section.ignore("padding_side", "padding_value", "return_attention_mask", "return_tensors", "processor_class")
    section.ignore(*HARMLESS, "blank_token", "decoder_type")
    section.finish()
    return config


def _encoder(section: Section, is_streaming: bool = False) -> EncoderConfig:
    heads = section.positive("num_attention_heads", 8)
    section.choose("num_key_value_heads", heads, (heads,))
    section.choose("hidden_act", "silu", ("silu",))
    section.choose("subsampling_conv_kernel_size", 3, (3,))
    section.choose("subsampling_conv_stride", 2, (2,))
    bias = section.choose("attention_bias", True, (True, False))
    section.choose("convolution_bias", bias, (bias,))
    contexts = _contexts(section) if is_streaming else ()
    config = EncoderConfig(
        num_mels=section.positive("num_mel_bins", 80),
        num_layers=section.positive("num_hidden_layers", 24),
        d_model=section.positive("hidden_size", 1024),
        num_heads=heads,
        ff_hidden=section.positive("intermediate_size", 4096),
        conv_kernel=section.positive("conv_kernel_size", 9),
        conv_norm="layer_norm" if is_streaming else "batch_norm",
        use_bias=bias,
        xscaling=section.choose("scale_input", True, (True, False)),
        subsampling="dw_striding",
        subsampling_factor=section.choose("subsampling_factor", 8, SUBSAMPLING_FACTORS),
        subsampling_channels=section.positive("subsampling_conv_channels", 256),
        attention=contexts[0] if contexts else None,
        contexts=contexts,
        causal_subsampling=is_streaming,
        causal_conv=is_streaming,
    )
    section.ignore(*HARMLESS)
    section.finish()
    return config


def _contexts(section: Section) -> tuple[ChunkedAttention, ...]:
    """Return the contexts of a streaming encoder: one left side, and the default and other numbers of frames ahead."""
    left = section.positive("sliding_window", 71) - 1  # the frame itself counts here
    default = section.get("default_num_lookahead_tokens", 13)
    supported = section.get("supported_num_lookahead_tokens", None) or [default]
    try:
        rights = dict.fromkeys((default, *supported))
        return tuple(ChunkedAttention(left, right) for right in rights)
    except (ValueError, TypeError) as error:
        key = section.path("supported_num_lookahead_tokens")
        allowed = f"numbers from 0 of which, plus 1, {left} is a multiple"
        raise UnsupportedCheckpoint(section.where, key, supported, allowed) from error
