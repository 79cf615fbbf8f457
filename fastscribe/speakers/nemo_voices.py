"""Reader of NeMo's voice models, EncDecSpeakerLabelModel: titanet_large, titanet_small, speakerverification_*, ecapa_tdnn.

The archive is that of other .nemo files (nemo.py). It has no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from fastscribe.checkpoint import names, nemo
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.nemo_config import features_of, target
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import NEMO_CONFIG_NAME, Section, report_invalid_config
from fastscribe.checkpoint.weights import load_torch
from fastscribe.config import ModelConfig
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.families.jasper.config import JasperBlockConfig, JasperConfig
from fastscribe.families.jasper.nemo import encoder_config
from fastscribe.rooms import option_for
from fastscribe.speakers.config import EcapaConfig, Pooling, VoiceCheckpoint, VoiceModelConfig

_COMPUTED = re.compile(r"^preprocessor\.featurizer\.(window|fb)$")
_UNUSED = re.compile(r"^decoder\.final\.")  # tells the people of the training apart
_Names = tuple[tuple[str, str], ...]
_ATTENTION: _Names = (
    (r"^decoder\._pooling\.attention_layer\.0\.conv_layer\.", "attention."),
    (r"^decoder\._pooling\.attention_layer\.0\.bn\.", "attention.norm."),
    (r"^decoder\._pooling\.attention_layer\.2\.", "attention.scores."),
    (r"^decoder\.emb_layers\.(\d+)\.0\.", r"layers.\1.norm."),
    (r"^decoder\.emb_layers\.(\d+)\.1\.", r"layers.\1.linear."),
)
_STATISTICS: _Names = (
    (r"^decoder\.emb_layers\.(\d+)\.0\.", r"layers.\1.linear."),
    (r"^decoder\.emb_layers\.(\d+)\.1\.", r"layers.\1.norm."),
)
_CONVOLUTION = ((r"\.conv_layer\.", ".conv."), (r"\.bn\.", ".norm."))
_ECAPA: _Names = (
    (r"^encoder\.layers\.0\.", "encoder.first."),
    (r"^encoder\.feature_agg\.", "encoder.last."),
    (r"\.group_tdnn_block\.0\.", ".before."),
    (r"\.group_tdnn_block\.1\.", ".over_time.conv."),
    (r"\.group_tdnn_block\.3\.", ".over_time.norm."),
    (r"\.group_tdnn_block\.4\.", ".after."),
    (r"\.se_layer\.se_layer\.0\.", ".squeeze."),
    (r"\.se_layer\.se_layer\.2\.", ".squeeze_norm."),
    (r"\.se_layer\.se_layer\.3\.", ".excite."),
    *_CONVOLUTION,
)
# Convolutions of one frame, which are linear layers here.
_LINEAR = re.compile(r"(^attention|^attention\.scores|^layers\.\d+\.linear|\.squeeze|\.excite)\.weight$")
_MAX_SIZES = 16
_MAX_WIDTH = 1 << 14
_ECAPA_SE_HIDDEN = 128  # NeMo has no setting for it
_FRAME_MULTIPLE = 16  # NeMo's default of pad_to


def read_voice_model(path: str | Path) -> VoiceCheckpoint:
    """Read a voice model: a .nemo file, the unpacked folder, or a folder with one .nemo file.

    Raises:
        CheckpointError: There is none, or it is damaged, unsafe, not supported, or a model of another kind.
    """
    where = Path(path)
    members, config = nemo.open_config(where)
    if option_for(config.values) != "voices":
        raise CheckpointError(where, "no voice model (TitaNet, ECAPA-TDNN), which --voices needs")
    with report_invalid_config(f"{where}: {NEMO_CONFIG_NAME}"):
        model = voice_model_config(config)
    weights = load_torch(members[nemo.WEIGHTS_NAME], f"{where}: {nemo.WEIGHTS_NAME}")
    return VoiceCheckpoint(where, model, LazyWeights(_renamed(weights, model)))


def voice_model_config(config: Section) -> VoiceModelConfig:
    """Convert model_config.yaml. Raises UnsupportedCheckpoint naming key and value."""
    preprocessor = config.part("preprocessor")
    features = features_of(preprocessor)
    section = config.part("encoder")
    encoder: JasperConfig | EcapaConfig
    if target(section, "ConvASREncoder", "ECAPAEncoder") == "ECAPAEncoder":
        encoder = _ecapa(section, preprocessor.whole("pad_to", _FRAME_MULTIPLE, 0, 1024))
    else:
        encoder = encoder_config(section)
    if encoder.num_mels != features.num_mels:
        raise UnsupportedCheckpoint(config.where, "encoder.feat_in", encoder.num_mels, str(features.num_mels))
    # The limits of sizes are those of a transcription model with such an encoder.
    limited = encoder if isinstance(encoder, JasperConfig) else _like_jasper(encoder)
    validate(ModelConfig(features, limited, None, None, (), has_ctc=True, num_labels=1), config.where)
    decoder = config.part("decoder")
    pooling: Pooling = decoder.choose("pool_mode", "xvector", get_args(Pooling))
    width = decoder.whole("feat_in", None, 1, _MAX_WIDTH)
    if width != encoder.d_model:
        raise UnsupportedCheckpoint(config.where, "decoder.feat_in", width, str(encoder.d_model))
    channels = decoder.whole("attention_channels", 128, 1, _MAX_WIDTH)
    sizes = decoder.get("emb_sizes", 256)
    sizes = sizes if isinstance(sizes, list) else [sizes]
    if not 0 < len(sizes) <= _MAX_SIZES or not all(type(one) is int and 0 < one <= _MAX_WIDTH for one in sizes):
        supported = f"numbers from 1 to {_MAX_WIDTH}"
        raise UnsupportedCheckpoint(config.where, "decoder.emb_sizes", sizes, supported)
    decoder.ignore("num_classes", "angular", "init_mode")
    decoder.finish()
    return VoiceModelConfig(features, encoder, pooling, channels, tuple(sizes))


def _like_jasper(encoder: EcapaConfig) -> JasperConfig:
    """Return an encoder of the same mel bands and width, for checks."""
    block = JasperBlockConfig(encoder.width, 1, 1, 1, False, 1, False, 1, None, "none", False)
    return JasperConfig(encoder.num_mels, (block,), "relu", masked=True)


def _ecapa(section: Section, frame_multiple: int) -> EcapaConfig:
    filters, kernels, dilations = (_numbers(section, key) for key in ("filters", "kernel_sizes", "dilations"))
    section.ignore("init_mode")
    config = EcapaConfig(
        num_mels=section.whole("feat_in", None, 1, 1024),
        width=filters[0],
        kernels=kernels,
        dilations=dilations,
        groups=section.whole("scale", 8, 1, _MAX_WIDTH),
        se_hidden=_ECAPA_SE_HIDDEN,
        frame_multiple=frame_multiple,
    )
    section.finish()
    if len(filters) < 3 or any(one != filters[0] for one in filters[:-1]) or filters[-1] != config.d_model:
        supported = "equal widths, then their sum without the first"
        raise UnsupportedCheckpoint(section.where, section.path("filters"), list(filters), supported)
    for key, values in (("kernel_sizes", kernels), ("dilations", dilations)):
        if len(values) != len(filters):
            raise UnsupportedCheckpoint(section.where, section.path(key), list(values), f"{len(filters)} numbers")
    if any(kernel % 2 == 0 for kernel in kernels):
        raise UnsupportedCheckpoint(section.where, section.path("kernel_sizes"), list(kernels), "odd numbers")
    if config.width % config.groups:
        raise UnsupportedCheckpoint(section.where, section.path("scale"), config.groups, f"divisors of {config.width}")
    return config


def _numbers(section: Section, key: str) -> tuple[int, ...]:
    values = section.take(key, list)
    if not 0 < len(values) <= 64 or not all(type(one) is int and 0 < one <= _MAX_WIDTH for one in values):
        raise UnsupportedCheckpoint(section.where, section.path(key), values, f"numbers from 1 to {_MAX_WIDTH}")
    return tuple(values)


def _renamed(weights: Mapping[str, TensorSource], config: VoiceModelConfig) -> dict[str, TensorSource]:
    kept = {name: source for name, source in weights.items() if not _COMPUTED.match(name) and not _UNUSED.match(name)}
    pairs = _ATTENTION if config.pooling == "attention" else _STATISTICS
    if isinstance(config.encoder, JasperConfig):
        kept = names.from_nemo(kept, config.encoder)
    else:
        pairs += _ECAPA
    return names.rename(kept, {}, (*pairs, (r"^encoder\.layers\.(\d+)\.", _block)), _LINEAR)


def _block(match: re.Match[str]) -> str:
    """Return the name of an ECAPA block, which NeMo counts from 1."""
    return f"encoder.blocks.{int(match[1]) - 1}."
