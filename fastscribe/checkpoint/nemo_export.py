"""Writer of .nemo files of FastConformer models with subword vocabularies, and of Canary, which nemo.py reads. NeMo is not
needed.

The YAML has the keys that NeMo needs to restore the model and to transcribe with it, with NeMo's defaults of the dropouts that
training uses. Data sets and an optimiser come from the user's own config. NeMo lists the vocabulary itself.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import yaml

from fastscribe._system.safe_files import write_atomic
from fastscribe.checkpoint.exchange import check_config, check_family, refuse, sources_with_counters, stored_dtypes
from fastscribe.checkpoint.lazy_weights import sources_of
from fastscribe.checkpoint.nemo import RANDOM_KEY, WEIGHTS_NAME, parse_yaml
from fastscribe.checkpoint.nemo_config import heads_of, model_config
from fastscribe.checkpoint.value import NEMO_CONFIG_NAME as CONFIG_NAME
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.checkpoint.weight_writers import write_state
from fastscribe.config import FeaturesConfig, ModelConfig
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.nemo import to_nemo
from fastscribe.text.tokenizer import WORD_MARK, Tokenizer

if TYPE_CHECKING:
    import torch

_CLASSES = {  # by (has a transducer, has a CTC head)
    (False, True): "ctc_bpe_models.EncDecCTCModelBPE",
    (True, False): "rnnt_bpe_models.EncDecRNNTBPEModel",
    (True, True): "hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel",
    (False, False): "aed_multitask_models.EncDecMultiTaskModel",
}
_TOKENIZER_NAME, _VOCABULARY_NAME = "tokenizer.model", "vocab.txt"
_MODULES = "nemo.collections.asr.modules."
_DROPOUT, _TRANSDUCER_DROPOUT = 0.1, 0.2
_DITHER = 1e-5


def write(checkpoint: Checkpoint, path: Path, dtype: torch.dtype) -> None:
    """Write a .nemo file.

    Args:
        checkpoint: the model.
        path: of the new file.
        dtype: dtype of float weights.

    Raises:
        UsageError: NeMo's format, or this writer, cannot hold the model. Nothing was written.
        CheckpointError: a weight is not finite or cannot be read. `path` is as before.
        OSError: the file cannot be written. `path` is as before.
    """
    members = files_of(checkpoint)
    sources = to_nemo(sources_with_counters(checkpoint), checkpoint.config)
    dtypes = stored_dtypes(sources, dtype)
    tables = _feature_tables(checkpoint.config.features)
    dtypes |= {name: table.dtype for name, table in tables.items()}
    sources = {**sources_of(tables), **sources}

    def write_all(file: BinaryIO) -> None:
        for name, content in members.items():
            _add(file, name, partial(copyfileobj, io.BytesIO(content)))
        _add(file, WEIGHTS_NAME, lambda part: write_state(part, sources, dtypes))
        file.write(bytes(2 * tarfile.BLOCKSIZE))

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, write_all)


def files_of(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Return the members besides the weights. Raises UsageError if a .nemo file cannot hold the model."""
    encoder = check_family(checkpoint, "nemo")
    vocabularies = _vocabularies(checkpoint)
    config = _model(checkpoint.config, encoder, vocabularies)
    if checkpoint.has_random_weights:
        config[RANDOM_KEY] = True
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode()
    section = parse_yaml(text, checkpoint.path)
    heads, num_labels = heads_of(section, lambda: ()), checkpoint.config.num_labels
    check_config(checkpoint, "nemo", lambda: model_config(section, heads, num_labels, checkpoint.path))
    return {
        CONFIG_NAME: text,
        **{f"{prefix}{_TOKENIZER_NAME}": one.files[_TOKENIZER_NAME] for prefix, one in vocabularies.items()},
        **{f"{prefix}{_VOCABULARY_NAME}": _listing(one) for prefix, one in vocabularies.items()},
    }


def _vocabularies(checkpoint: Checkpoint) -> dict[str, Tokenizer]:
    """Return the vocabularies by what the names of their files begin with: nothing, or a language."""
    tokenizer = checkpoint.tokenizer
    if tokenizer.kind == "aggregate":
        try:
            return {f"{name}_": part for name, part in tokenizer.parts().items()}
        except ValueError as error:
            raise refuse(checkpoint, "nemo", str(error)) from error
    if _TOKENIZER_NAME not in tokenizer.files:
        raise refuse(checkpoint, "nemo", "NeMo needs a SentencePiece vocabulary, and this is a tokenizer.json")
    return {"": tokenizer}


# --- the YAML ---------------------------------------------------------------------------------------------------------


def _model(config: ModelConfig, encoder: EncoderConfig, prefixes: Iterable[str]) -> dict[str, Any]:
    has_transducer = config.joint is not None
    sections: dict[str, Any] = {
        "target": "nemo.collections.asr.models." + _CLASSES[has_transducer, config.has_ctc],
        "sample_rate": config.features.sample_rate,
        "compute_eval_loss": False,
        "log_prediction": True,
        "skip_nan_grad": False,
        "train_ds": None,
        "validation_ds": {"use_start_end_token": False},  # NeMo's transcribe() reads it
        "test_ds": None,
        "tokenizer": _tokenizer(prefixes),
        "preprocessor": _preprocessor(config.features),
        "encoder": _encoder(encoder),
    }
    if has_transducer:
        sections |= _transducer(config)
    if config.has_ctc:
        ctc = _ctc(config)
        sections |= {"aux_ctc": {"ctc_loss_weight": 0.3, "use_cer": False, **ctc}} if has_transducer else ctc
    if config.aed is not None:
        from fastscribe.families.canary import nemo

        sections |= nemo.sections(config.aed, encoder.d_model)
        sections["tokenizer"]["custom_tokenizer"] = nemo.custom_tokenizer("langs" in sections["tokenizer"])
    return sections


def _tokenizer(prefixes: Iterable[str]) -> dict[str, Any]:
    """Return the section of a vocabulary, or of those that an aggregate joins."""
    parts = {
        prefix.removesuffix("_"): {
            "dir": "tokenizer",
            "type": "bpe",
            "model_path": f"nemo:{prefix}{_TOKENIZER_NAME}",
            "vocab_path": f"nemo:{prefix}{_VOCABULARY_NAME}",
        }
        for prefix in prefixes
    }
    return parts.get("") or {"type": "agg", "langs": parts}


def _preprocessor(features: FeaturesConfig) -> dict[str, Any]:
    is_full_band = features.high_hz == features.sample_rate / 2
    return {
        "_target_": _MODULES + "AudioToMelSpectrogramPreprocessor",
        "sample_rate": features.sample_rate,
        "normalize": "NA" if features.normalize == "none" else features.normalize,
        "window_size": features.win_length / features.sample_rate,
        "window_stride": features.hop_length / features.sample_rate,
        "window": features.window,
        "features": features.num_mels,
        "n_fft": features.n_fft,
        "preemph": features.preemphasis,
        "mag_power": features.mag_power,
        "lowfreq": features.low_hz,
        "highfreq": None if is_full_band else features.high_hz,
        "mel_norm": features.mel_norm,
        "log": features.log,
        "log_zero_guard_type": features.log_guard,
        "log_zero_guard_value": features.log_guard_value,
        "frame_splicing": 1,
        "dither": _DITHER,
        "pad_to": 0,
        "pad_value": 0.0,
    }


def _encoder(encoder: EncoderConfig) -> dict[str, Any]:
    return {
        "_target_": _MODULES + "ConformerEncoder",
        "feat_in": encoder.num_mels,
        "feat_out": -1,
        "n_layers": encoder.num_layers,
        "d_model": encoder.d_model,
        "use_bias": encoder.use_bias,
        "subsampling": encoder.subsampling,
        "subsampling_factor": encoder.subsampling_factor,
        "subsampling_conv_channels": encoder.subsampling_channels,
        "ff_expansion_factor": encoder.ff_hidden // encoder.d_model,
        "self_attention_model": "rel_pos",
        "n_heads": encoder.num_heads,
        "att_context_size": [-1, -1],
        "xscaling": encoder.xscaling,
        "untie_biases": True,
        "pos_emb_max_len": 5000,
        "conv_kernel_size": encoder.conv_kernel,
        "conv_norm_type": encoder.conv_norm,
        "conv_context_size": None,
        "dropout": _DROPOUT,
        "dropout_pre_encoder": _DROPOUT,
        "dropout_emb": 0.0,
        "dropout_att": _DROPOUT,
    }


def _transducer(config: ModelConfig) -> dict[str, Any]:
    assert config.predictor is not None and config.joint is not None
    width, predictor, joint = config.encoder.d_model, config.predictor, config.joint
    durations = list(config.durations)
    tdt = {"tdt_durations": durations, "num_tdt_durations": len(durations)} if durations else {}
    loss = {"fastemit_lambda": 0.0, "clamp": -1.0}
    return {
        "model_defaults": {
            "enc_hidden": width,
            "pred_hidden": predictor.hidden,
            "joint_hidden": joint.hidden,
            **tdt,
        },
        "decoder": {
            "_target_": _MODULES + "RNNTDecoder",
            "normalization_mode": None,
            "random_state_sampling": False,
            "blank_as_pad": True,
            "vocab_size": config.num_labels,
            "prednet": {
                "pred_hidden": predictor.hidden,
                "pred_rnn_layers": predictor.num_layers,
                "t_max": None,
                "dropout": _TRANSDUCER_DROPOUT,
            },
        },
        "joint": {
            "_target_": _MODULES + "RNNTJoint",
            "log_softmax": None,
            "preserve_memory": False,
            "fuse_loss_wer": True,
            "fused_batch_size": 4,
            "num_classes": config.num_labels,
            **({"num_extra_outputs": len(durations)} if durations else {}),
            "jointnet": {
                "joint_hidden": joint.hidden,
                "activation": joint.activation,
                "dropout": _TRANSDUCER_DROPOUT,  # above 0: it decides a layer's number in to_nemo()
                "encoder_hidden": width,
                "pred_hidden": predictor.hidden,
            },
        },
        "decoding": {
            "strategy": "greedy_batch",
            "greedy": {"max_symbols": joint.max_symbols, "loop_labels": True},
            **({"model_type": "tdt", "durations": durations} if durations else {}),
        },
        "rnnt_reduction": "mean_volume",
        "loss": (
            {"loss_name": "tdt", "tdt_kwargs": {**loss, "durations": durations, "sigma": 0.02, "omega": 0.1}}
            if durations
            else {"loss_name": "default", "warprnnt_numba_kwargs": loss}
        ),
    }


def _ctc(config: ModelConfig) -> dict[str, Any]:
    return {
        "ctc_reduction": "mean_batch",
        "decoder": {
            "_target_": _MODULES + "ConvASRDecoder",
            "feat_in": config.encoder.d_model,
            "num_classes": config.num_labels,
            "vocabulary": [],
        },
        "decoding": {"strategy": "greedy_batch", "greedy": {}},
    }


def _listing(tokenizer: Tokenizer) -> bytes:
    """Return vocab.txt, which NeMo requires and does not read: pieces without word marks, ## before those inside words."""
    hidden = tokenizer.unknown_ids | tokenizer.silent_ids
    pieces = [piece for i, piece in enumerate(tokenizer.pieces) if i not in hidden]
    lines = [piece[1:] if piece.startswith(WORD_MARK) else f"##{piece}" for piece in pieces]
    return "".join(f"{line}\n" for line in lines).encode()


# --- the weights ------------------------------------------------------------------------------------------------------


def _feature_tables(features: FeaturesConfig) -> Mapping[str, torch.Tensor]:
    """Return the window and the mel filters, which NeMo's state dict holds."""
    from fastscribe.families.blocks.features import LogMel

    tables = LogMel(features)
    before = (features.n_fft - features.win_length) // 2  # zeros, which NeMo's window does not hold
    window = tables.window_N[before : before + features.win_length]
    return {"preprocessor.featurizer.window": window, "preprocessor.featurizer.fb": tables.filters_MK[None]}


class _Part:
    """The rest of a file from its position on, as a file for zipfile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._start = file, file.tell()
        self.write, self.flush = file.write, file.flush

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        moved = self._file.seek(offset + self._start if whence == os.SEEK_SET else offset, whence)
        return moved - self._start

    def seekable(self) -> bool:
        return True


def _add(file: BinaryIO, name: str, write_content: Callable[[BinaryIO], object]) -> None:
    """Append a member of a tar. Its header is written last, because it gives the size."""
    header_start = file.tell()
    file.write(bytes(tarfile.BLOCKSIZE))
    write_content(cast(BinaryIO, _Part(file)))
    end = file.seek(0, os.SEEK_END)
    member = tarfile.TarInfo(f"./{name}")  # NeMo's form of the name
    member.size = end - header_start - tarfile.BLOCKSIZE
    file.write(bytes(-end % tarfile.BLOCKSIZE))
    file.seek(header_start)
    file.write(member.tobuf(tarfile.GNU_FORMAT))
    file.seek(0, os.SEEK_END)
