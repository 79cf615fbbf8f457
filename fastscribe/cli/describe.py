"""Describe a checkpoint in numbers that help to choose a machine: sizes, vocabulary, frame length, work and bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from fastscribe.config import EightBitDtypeName
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.families.jasper.config import JasperConfig

if TYPE_CHECKING:
    from fastscribe.checkpoint.value import Checkpoint

_UTTERANCE_S = 8.0  # the mean length of the Open ASR Leaderboard's recordings is near this


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return plain values under flat keys with units, as `fastscribe inspect --json` prints them."""
    from fastscribe.bench.work import encoder_gflop_per_audio_s

    config, encoder = checkpoint.config, checkpoint.config.encoder
    facts: dict[str, Any] = {
        "path": str(checkpoint.path),
        "source": checkpoint.source,
        "family": config.family,
        "decoders": list(config.decoders),
        "parameters": checkpoint.num_parameters,
        "stored_dtype": ", ".join(checkpoint.stored_dtypes),
        "computes_in": ["fp32", "bf16", *(() if isinstance(encoder, JasperConfig) else get_args(EightBitDtypeName))],
        "languages": list(checkpoint.languages),
        "sample_rate_hz": config.features.sample_rate,
        "mels": config.features.num_mels,
        "normalize": config.features.normalize,
        "frame_s": round(config.frame_s, 6),
        **ENCODERS[type(encoder)](encoder),
        "vocabulary": config.num_labels,
        **({"vocabulary_per_language": config.labels_per_language} if config.language_heads else {}),
        "tokens": checkpoint.tokenizer.kind,
        "writes_punctuation": bool(checkpoint.tokenizer.marks & set(".,?!")),
        "writes_capitals": any(
            piece != piece.lower() for piece in checkpoint.tokenizer.pieces if not piece.startswith("<")
        ),
    }
    if config.predictor is not None and config.joint is not None:
        facts |= {
            "predictor": f"{config.predictor.num_layers} x {config.predictor.hidden} LSTM",
            "joint_hidden": config.joint.hidden,
            "joint_activation": config.joint.activation,
            "max_symbols": config.joint.max_symbols,
            "durations": list(config.durations),
        }
    if checkpoint.language_model is not None:
        model = checkpoint.language_model
        facts |= {"language_model_ngrams": model.ngrams.count, "default_beam": model.fusion.beam}
    if config.trained_utterance_s is not None:
        facts["trained_utterance_s"] = config.trained_utterance_s
    if config.aed is not None:
        decoder = config.aed.decoder
        facts |= {
            "decoder": f"{decoder.num_layers} x {decoder.hidden} Transformer",
            "decoder_heads": decoder.num_heads,
            "decoder_ff_hidden": decoder.ff_hidden,
            "bridge_layers": config.aed.bridge.num_layers if config.aed.bridge else 0,
            "prompt": config.aed.prompt,
            "max_tokens": config.aed.max_tokens,
        }
    if checkpoint.aligner is not None:
        aligner = checkpoint.aligner
        facts |= {
            "aligner_parameters": aligner.num_parameters,
            "aligner_d_model": aligner.config.encoder.d_model,
            "aligner_frame_s": round(aligner.config.frame_s, 6),
            "aligner_vocabulary": aligner.config.num_labels,
        }
    parameters = checkpoint.num_parameters
    work = encoder_gflop_per_audio_s(config, [_UTTERANCE_S])
    return facts | {
        "encoder_gflop_per_audio_s": round(work, 4),
        "weights_bytes_bf16": 2 * parameters,
        "weights_bytes_fp32": 4 * parameters,
        "rtfx_ceiling_per_tflop_per_s": round(1000.0 / work, 1),
    }


def _conformer(encoder: EncoderConfig) -> dict[str, Any]:
    return {
        "layers": encoder.num_layers,
        "d_model": encoder.d_model,
        "heads": encoder.num_heads,
        "attention": str(encoder.attention or "full"),
        **({"contexts": [str(context) for context in encoder.contexts]} if encoder.contexts else {}),
        "ff_hidden": encoder.ff_hidden,
        "conv_kernel": encoder.conv_kernel,
        "conv_norm": encoder.conv_norm,
        "use_bias": encoder.use_bias,
        "xscaling": encoder.xscaling,
        "subsampling": f"{encoder.subsampling} x{encoder.subsampling_factor}, {encoder.subsampling_channels} channels",
    }


def _jasper(encoder: JasperConfig) -> dict[str, Any]:
    blocks = encoder.blocks
    return {
        "blocks": len(blocks),
        "convolutions": sum(block.repeat for block in blocks),
        "separable_blocks": sum(block.separable for block in blocks),
        "dense_blocks": sum(block.dense for block in blocks),
        "squeeze_excite_blocks": sum(block.se_hidden is not None for block in blocks),
        "d_model": encoder.d_model,
        "conv_kernels": f"{min(block.kernel for block in blocks)} to {max(block.kernel for block in blocks)}",
        "activation": encoder.activation,
        "masked_convolutions": encoder.masked,
        "subsampling": f"strides x{encoder.subsampling_factor}",
    }


def _granite(encoder: GraniteConfig) -> dict[str, Any]:
    return {
        "layers": encoder.num_layers,
        "d_model": encoder.d_model,
        "heads": encoder.num_heads,
        "attention": f"blocks of {encoder.block}",
        "ff_hidden": encoder.ff_hidden,
        "conv_kernel": encoder.conv_kernel,
        "conv_width": encoder.conv_width,
        "use_bias": encoder.use_bias,
        "self_conditioned_after": encoder.num_layers // 2,
        "subsampling": f"pairs of mel frames, halved in layers {', '.join(map(str, encoder.strided_layers)) or 'none'}",
    }


# Facts of an encoder, by the type of its config.
ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    EncoderConfig: _conformer,
    JasperConfig: _jasper,
    GraniteConfig: _granite,
}
