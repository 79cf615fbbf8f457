"""Conversion of NeMo's model_config.yaml to ModelConfig. Every key is used, known to be irrelevant, or reported as an error.

The heads come from the checkpoint's class, or from its weight names if the class is not NeMo's. Sections of the YAML do not
show them, because NeMo copies unused sections between configs: a model without a CTC head may have an `aux_ctc` section.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from fastscribe.checkpoint.value import Section
from fastscribe.config import (
    AedConfig,
    EncoderSettings,
    FeaturesConfig,
    JointActivation,
    JointConfig,
    LogGuard,
    MelNorm,
    ModelConfig,
    PredictorConfig,
    Window,
)
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.registry import NEMO_ENCODERS, module_of
from fastscribe.rooms import UNSUPPORTED_CLASSES

# Keys that language_heads() and check_vocabularies() read. The last one, a token's number in its language, has no order.
_LANGUAGE_KEYS = (
    *("multisoftmax", "multilingual", "language_keys"),
    *("language_masks", "token_id_offsets", "offset_token_ids_by_token_id"),
)


def model_config(config: Section, heads: Heads, num_labels: int, where: object) -> ModelConfig:
    """Convert the model section of the YAML.

    Args:
        config: the whole model_config.yaml.
        heads: heads of the model.
        num_labels: vocabulary size without blank.
        where: the checkpoint, for messages.

    Returns:
        The config.

    Raises:
        UnsupportedCheckpoint: names the key and value that are not supported.
    """
    features = features_of(config.part("preprocessor"))
    section = config.part("encoder")
    encoder: EncoderSettings = module_of(NEMO_ENCODERS[target(section, *NEMO_ENCODERS)], "nemo").encoder_config(section)
    if encoder.num_mels != features.num_mels:
        raise UnsupportedCheckpoint(
            where, "encoder.feat_in", encoder.num_mels, f"preprocessor.features {features.num_mels}"
        )
    if heads.language_prompt:
        from fastscribe.families.nemotron import with_language_prompt

        encoder = with_language_prompt(encoder, config)
    predictor = joint = None
    durations: tuple[int, ...] = ()
    languages = _language_heads(config, heads)
    has_languages = bool(languages)
    if heads.transducer:
        predictor = _predictor(config.part("decoder"), num_labels, has_languages)
        durations = _durations(config, where)
        joint = _joint(config, num_labels, where, has_languages)
    if heads.ctc:
        _check_ctc((config.part("aux_ctc") if heads.transducer else config).part("decoder"), num_labels, has_languages)
    return ModelConfig(
        features=features,
        encoder=encoder,
        predictor=predictor,
        joint=joint,
        durations=durations,
        has_ctc=heads.ctc,
        num_labels=num_labels,
        aed=_aed(config, num_labels) if heads.aed else None,
        language_heads=languages,
    )


def _language_heads(config: Section, heads: Heads) -> tuple[str, ...]:
    if config.part("tokenizer", optional=True).get("type", None) != "multilingual":
        return ()
    from fastscribe.families.indic import language_heads

    return language_heads(config, is_hybrid=heads.transducer and heads.ctc)


def _aed(config: Section, num_labels: int) -> AedConfig:
    from fastscribe.families.canary.nemo import aed

    return aed(config, num_labels)


def target(section: Section, *classes: str) -> str:
    """Return the class name. Raises UnsupportedCheckpoint unless it is one of `classes`."""
    target = section.get("_target_", "")
    name = target.rpartition(".")[2] if isinstance(target, str) else ""
    if name not in classes:
        raise UnsupportedCheckpoint(section.where, section.path("_target_"), target, ", ".join(classes))
    return name


def features_of(section: Section) -> FeaturesConfig:
    """Convert the section of the preprocessor. Raises UnsupportedCheckpoint naming key and value."""
    target(section, "AudioToMelSpectrogramPreprocessor")
    sample_rate = section.positive("sample_rate", 16000)
    win_length = _samples(section, "window_size", "n_window_size", 0.02, sample_rate)
    lowest, highest = (section.number(key, None, nullable=True) for key in ("lowfreq", "highfreq"))
    section.choose("frame_splicing", 1, (1,))
    section.choose("exact_pad", False, (False, None))
    section.ignore("dither", "pad_to", "pad_value", "rng", "nb_augmentation_prob", "nb_max_freq", "use_torchaudio")
    section.ignore("stft_conv", "stft_exact_pad", "max_duration", "use_grads")
    normalize = section.choose("normalize", "per_feature", ("per_feature", "all_features", "NA", None, False))
    config = FeaturesConfig(
        sample_rate=sample_rate,
        num_mels=section.positive("features", 64),
        n_fft=section.positive("n_fft", 2 ** math.ceil(math.log2(win_length))),
        win_length=win_length,
        hop_length=_samples(section, "window_stride", "n_window_stride", 0.01, sample_rate),
        window=section.choose("window", "hann", get_args(Window)),
        preemphasis=section.number("preemph", 0.97, nullable=True),
        mag_power=section.number("mag_power", 2.0) or 0.0,
        low_hz=lowest or 0.0,
        high_hz=highest or sample_rate / 2,
        mel_norm=section.choose("mel_norm", "slaney", (*get_args(MelNorm), None)),
        log=section.choose("log", True, (True, False)),
        log_guard=section.choose("log_zero_guard_type", "add", get_args(LogGuard)),
        log_guard_value=_guard_value(section),
        normalize=normalize if normalize in ("per_feature", "all_features") else "none",
    )
    section.finish()
    return config


def _samples(section: Section, seconds_key: str, samples_key: str, default_s: float, sample_rate: int) -> int:
    if samples_key in section:
        section.ignore(seconds_key)
        return section.positive(samples_key)
    section.ignore(samples_key)
    samples = int((section.number(seconds_key, default_s) or 0) * sample_rate)  # truncated, as NeMo does
    if samples <= 0:
        raise UnsupportedCheckpoint(
            section.where, section.path(seconds_key), section.values[seconds_key], "at least one sample"
        )
    return samples


# The smallest normal float32, and the difference of 1 and the next float32.
_FLOAT32_LIMITS = {"tiny": 2.0**-126, "eps": 2.0**-23}


def _guard_value(section: Section) -> float:
    value = section.get("log_zero_guard_value", None)
    if isinstance(value, str) and value in _FLOAT32_LIMITS:
        return _FLOAT32_LIMITS[value]
    return section.number("log_zero_guard_value", 2**-24) or 0.0


def _predictor(section: Section, num_labels: int, has_languages: bool) -> PredictorConfig:
    target(section, "RNNTDecoder")
    section.ignore(*_LANGUAGE_KEYS if has_languages else ())
    section.choose("normalization_mode", None, (None,))
    section.choose("blank_as_pad", True, (True,))
    _check_size(section, "vocab_size", num_labels)
    section.ignore("random_state_sampling")
    prednet = section.part("prednet")
    section.finish()
    prednet.ignore("dropout", "t_max", "weights_init_scale", "hidden_hidden_bias_scale", "forget_gate_bias")
    hidden = prednet.positive("pred_hidden")
    prednet.choose("rnn_hidden_size", None, (None, -1, hidden))
    config = PredictorConfig(hidden=hidden, num_layers=prednet.positive("pred_rnn_layers"))
    prednet.finish()
    return config


def _check_size(section: Section, key: str, expected: int) -> None:
    if section.get(key, expected) not in (expected, -1, None):
        raise UnsupportedCheckpoint(
            section.where, section.path(key), section.values[key], f"the vocabulary's {expected}"
        )


def _durations(config: Section, where: object) -> tuple[int, ...]:
    """Return the TDT durations. NeMo uses decoding.durations; the other two sections repeat them."""
    decoding = config.part("decoding", optional=True)
    extra_outputs = config.part("joint").get("num_extra_outputs", None) or 0
    if not extra_outputs:
        return ()
    candidates = (
        decoding.get("durations", None),
        config.part("loss", optional=True).part("tdt_kwargs", optional=True).get("durations", None),
        config.part("model_defaults", optional=True).get("tdt_durations", None),
    )
    durations = next((candidate for candidate in candidates if candidate), None)
    if decoding.get("model_type", "tdt") != "tdt" or not isinstance(durations, list) or len(durations) != extra_outputs:
        raise UnsupportedCheckpoint(
            where, "joint.num_extra_outputs", extra_outputs, "TDT with as many decoding.durations"
        )
    return tuple(durations)


def _joint(config: Section, num_labels: int, where: object, has_languages: bool) -> JointConfig:
    section = config.part("joint")
    target(section, "RNNTJoint")
    section.ignore(*_LANGUAGE_KEYS if has_languages else ())
    _check_size(section, "num_classes", num_labels)
    section.ignore("vocabulary", "num_extra_outputs", "log_softmax", "preserve_memory", "fuse_loss_wer")
    section.ignore("fused_batch_size", "experimental_fuse_loss_wer", "masking_prob")
    jointnet = section.part("jointnet")
    section.finish()
    jointnet.ignore("dropout", "encoder_hidden", "pred_hidden")
    greedy = config.part("decoding", optional=True).part("greedy", optional=True)
    candidates = [greedy.values[key] for key in ("max_symbols", "max_symbols_per_step") if key in greedy.values] or [10]
    max_symbols = next((candidate for candidate in candidates if candidate is not None), None)
    if max_symbols is not None and (type(max_symbols) is not int or max_symbols <= 0):
        raise UnsupportedCheckpoint(where, "decoding.greedy.max_symbols", max_symbols, "positive numbers, null")
    joint = JointConfig(
        hidden=jointnet.positive("joint_hidden"),
        activation=jointnet.choose("activation", "relu", get_args(JointActivation)),
        max_symbols=max_symbols,
    )
    jointnet.finish()
    return joint


def _check_ctc(section: Section, num_labels: int, has_languages: bool) -> None:
    target(section, "ConvASRDecoder")
    section.ignore(*_LANGUAGE_KEYS if has_languages else ())
    _check_size(section, "num_classes", num_labels)
    section.choose("add_blank", True, (True,))
    section.ignore("feat_in", "init_mode", "vocabulary")
    section.finish()


@dataclass(frozen=True)
class Heads:
    """Which of the three heads a model has. Hybrids have a transducer and a CTC head.

    A language prompt is no head: it comes before the heads.
    """

    transducer: bool = False
    ctc: bool = False
    aed: bool = False
    language_prompt: bool = False


CLASSES = {
    "EncDecCTCModel": Heads(ctc=True),
    "EncDecCTCModelBPE": Heads(ctc=True),
    "EncDecRNNTModel": Heads(transducer=True),
    "EncDecRNNTBPEModel": Heads(transducer=True),
    "EncDecRNNTBPEModelWithPrompt": Heads(transducer=True, language_prompt=True),
    "EncDecHybridRNNTCTCModel": Heads(transducer=True, ctc=True),
    "EncDecHybridRNNTCTCBPEModel": Heads(transducer=True, ctc=True),
    "EncDecMultiTaskModel": Heads(aed=True),
}
# NeMo's classes whose output depends on more than the audio, or that have other layers.
_UNSUPPORTED_CLASSES = {
    "EncDecHybridRNNTCTCBPEModelWithPrompt": "models without language prompts, EncDecRNNTBPEModelWithPrompt",
    "EncDecTransfModelBPE": "EncDecMultiTaskModel",
}
# Prefixes of weight names that identify a head. A transducer's predictor is called `decoder`, as a CTC model's head is.
_TRANSDUCER, _AUX_CTC, _CTC, _AED = "joint.", "ctc_decoder.", "decoder.decoder_layers.", "transf_decoder."
_KNOWN_MODULES = {"preprocessor", "encoder", "decoder", "joint", "ctc_decoder"} | {
    "transf_encoder",
    "encoder_decoder_proj",
    "transf_decoder",
    "log_softmax",
}


def heads_of(config: Section, weight_names: Callable[[], Iterable[str]]) -> Heads:
    """Return the heads of a model.

    Args:
        config: the whole model_config.yaml; its `target` is the dotted path of the class.
        weight_names: reads NeMo's names of the weights. Called only for classes that are not NeMo's.

    Returns:
        The heads.

    Raises:
        UnsupportedCheckpoint: the class, or a module that the weights belong to, is not supported.
    """
    target = config.get("target", None)
    name = target.rpartition(".")[2] if isinstance(target, str) else ""
    if name in CLASSES:
        return CLASSES[name]
    if supported := (_UNSUPPORTED_CLASSES | UNSUPPORTED_CLASSES).get(name):
        raise UnsupportedCheckpoint(config.where, "target", target, supported)
    return _by_weights(tuple(weight_names()), config.where, target)


def _by_weights(names: tuple[str, ...], where: object, target: object) -> Heads:
    """Return the heads of a custom class, which is usually a subclass of NeMo's."""
    unknown = next((name for name in names if name.partition(".")[0] not in _KNOWN_MODULES), None)
    heads = Heads(
        transducer=any(name.startswith(_TRANSDUCER) for name in names),
        ctc=any(name.startswith((_AUX_CTC, _CTC)) for name in names),
        aed=any(name.startswith(_AED) for name in names),
    )
    if unknown is not None:
        raise UnsupportedCheckpoint(where, "target", target, f"{', '.join(CLASSES)}; this class has {unknown[:80]} too")
    if heads == Heads() or (heads.aed and (heads.transducer or heads.ctc)):
        raise UnsupportedCheckpoint(where, "target", target, ", ".join(CLASSES))
    return heads
