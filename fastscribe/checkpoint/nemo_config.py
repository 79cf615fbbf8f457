"""NeMo's model_config.yaml -> ModelConfig. Every key is used, known not to matter for the result, or an error naming it."""

from __future__ import annotations

import math

import torch

from fastscribe.checkpoint.value import Section, check_encoder
from fastscribe.config import EncoderConfig, FeaturesConfig, JointConfig, ModelConfig, PredictorConfig
from fastscribe.errors import UnsupportedCheckpoint


def model_config(config: Section, num_labels: int, where: object) -> ModelConfig:
    """The YAML's model section -> ModelConfig. Raises UnsupportedCheckpoint naming the key and value it cannot honour."""
    features = _features(Section(config.values.get("preprocessor"), "preprocessor", where))
    encoder = _encoder(Section(config.values.get("encoder"), "encoder", where))
    if encoder.num_mels != features.num_mels:
        raise UnsupportedCheckpoint(
            where, "encoder.feat_in", encoder.num_mels, f"preprocessor.features {features.num_mels}"
        )
    has_transducer, has_aux_ctc = "joint" in config, "aux_ctc" in config
    predictor = joint = None
    durations: tuple[int, ...] = ()
    if has_transducer:
        predictor = _predictor(Section(config.values.get("decoder"), "decoder", where), num_labels)
        durations = _durations(config, where)
        joint = _joint(config, num_labels, len(durations), where)
    ctc = config.values.get("aux_ctc", {}).get("decoder") if has_aux_ctc else config.values.get("decoder")
    if not has_transducer or has_aux_ctc:
        _check_ctc(Section(ctc, "aux_ctc.decoder" if has_aux_ctc else "decoder", where), num_labels)
    return ModelConfig(
        features=features,
        encoder=encoder,
        predictor=predictor,
        joint=joint,
        durations=durations,
        has_ctc=has_aux_ctc or not has_transducer,
        num_labels=num_labels,
        blank_id=num_labels,
    )


def _target(section: Section, *classes: str) -> None:
    target = str(section.get("_target_", ""))
    if target.rpartition(".")[2] not in classes:
        raise UnsupportedCheckpoint(section.where, f"{section.name}._target_", target, ", ".join(classes))


def _features(section: Section) -> FeaturesConfig:
    _target(section, "AudioToMelSpectrogramPreprocessor")
    sample_rate = section.positive("sample_rate", 16000)
    win_length = _samples(section, "window_size", "n_window_size", 0.02, sample_rate)
    highest = section.get("highfreq", None) or sample_rate / 2
    section.choose("frame_splicing", 1, (1,))
    section.choose("exact_pad", False, (False, None))
    section.ignore("dither", "pad_to", "pad_value", "rng", "nb_augmentation_prob", "nb_max_freq", "use_torchaudio")
    section.ignore("stft_conv", "stft_exact_pad", "max_duration", "use_grads")
    normalize = section.choose("normalize", "per_feature", ("per_feature", "all_features", "NA", None, False))
    preemphasis = section.get("preemph", 0.97)
    config = FeaturesConfig(
        sample_rate=sample_rate,
        num_mels=section.positive("features", 64),
        n_fft=section.positive("n_fft", 2 ** math.ceil(math.log2(win_length))),
        win_length=win_length,
        hop_length=_samples(section, "window_stride", "n_window_stride", 0.01, sample_rate),
        window=section.choose("window", "hann", ("hann", "hamming", "blackman", "bartlett", "none")),
        preemphasis=None if preemphasis is None else float(preemphasis),
        mag_power=float(section.get("mag_power", 2.0)),
        low_hz=float(section.get("lowfreq", 0) or 0),
        high_hz=float(highest),
        mel_norm=section.choose("mel_norm", "slaney", ("slaney", None)),
        log=section.choose("log", True, (True, False)),
        log_guard=section.choose("log_zero_guard_type", "add", ("add", "clamp")),
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
    return int(section.get(seconds_key, default_s) * sample_rate)  # truncated, as NeMo does


def _guard_value(section: Section) -> float:
    value = section.get("log_zero_guard_value", 2**-24)
    if value in ("tiny", "eps"):
        return float(getattr(torch.finfo(torch.float32), value))
    return float(value)


def _encoder(section: Section) -> EncoderConfig:
    _target(section, "ConformerEncoder")
    d_model, kernel = section.positive("d_model"), section.positive("conv_kernel_size", 31)
    section.choose("feat_out", -1, (-1, d_model))
    section.choose("self_attention_model", "rel_pos", ("rel_pos",))
    section.choose("att_context_size", None, (None, [-1, -1], [[-1, -1]]))
    section.choose("att_context_style", "regular", ("regular",))
    section.choose("conv_context_size", None, (None, kernel // 2, [kernel // 2, kernel // 2]))
    section.choose("conv_context_style", "regular", ("regular",))
    section.choose("causal_downsampling", False, (False,))
    section.choose("reduction", None, (None,))
    section.choose("global_tokens", 0, (0,))
    section.ignore("reduction_position", "reduction_factor", "untie_biases", "pos_emb_max_len", "sync_max_audio_length")
    section.ignore("subsampling_conv_chunking_factor", "att_context_probs", "att_chunk_context_size")
    section.ignore("global_tokens_spacing", "global_attn_separate", "use_pytorch_sdpa", "use_pytorch_sdpa_backends")
    section.ignore("stochastic_depth_drop_prob", "stochastic_depth_mode", "stochastic_depth_start_layer")
    section.ignore("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att")
    channels = section.get("subsampling_conv_channels", -1)
    config = EncoderConfig(
        num_mels=section.positive("feat_in"),
        num_layers=section.positive("n_layers"),
        d_model=d_model,
        num_heads=section.positive("n_heads", 4),
        ff_hidden=d_model * section.positive("ff_expansion_factor", 4),
        conv_kernel=kernel,
        conv_norm=section.choose("conv_norm_type", "batch_norm", ("batch_norm", "layer_norm")),
        use_bias=section.choose("use_bias", True, (True, False)),
        xscaling=section.choose("xscaling", True, (True, False)),
        subsampling=section.choose("subsampling", "striding", ("dw_striding", "striding")),
        subsampling_factor=section.choose("subsampling_factor", 4, (2, 4, 8, 16, 32)),
        subsampling_channels=d_model if channels == -1 else section.positive("subsampling_conv_channels"),
    )
    section.finish()
    check_encoder(config, section.where)
    return config


def _predictor(section: Section, num_labels: int) -> PredictorConfig:
    _target(section, "RNNTDecoder")
    section.choose("normalization_mode", None, (None,))
    section.choose("blank_as_pad", True, (True,))
    _check_size(section, "vocab_size", num_labels)
    section.ignore("random_state_sampling", "prednet")
    section.finish()
    prednet = Section(section.values.get("prednet"), "decoder.prednet", section.where)
    prednet.ignore("dropout", "t_max", "weights_init_scale", "hidden_hidden_bias_scale", "forget_gate_bias")
    hidden = prednet.positive("pred_hidden")
    prednet.choose("rnn_hidden_size", None, (None, -1, hidden))
    config = PredictorConfig(hidden=hidden, num_layers=prednet.positive("pred_rnn_layers"))
    prednet.finish()
    return config


def _check_size(section: Section, key: str, expected: int) -> None:
    if section.get(key, expected) not in (expected, -1):
        raise UnsupportedCheckpoint(
            section.where, f"{section.name}.{key}", section.values[key], f"the vocabulary's {expected}"
        )


def _durations(config: Section, where: object) -> tuple[int, ...]:
    """TDT durations; NeMo decodes with decoding.durations, which the other two places repeat."""
    decoding = config.values.get("decoding") or {}
    extra_outputs = config.values["joint"].get("num_extra_outputs") or 0
    if not extra_outputs:
        return ()
    loss = config.values.get("loss") or {}
    places = (decoding.get("durations"), (loss.get("tdt_kwargs") or {}).get("durations"))
    defaults = (config.values.get("model_defaults") or {}).get("tdt_durations")
    durations = next((place for place in (*places, defaults) if place), None)
    if decoding.get("model_type", "tdt") != "tdt" or not isinstance(durations, list) or len(durations) != extra_outputs:
        raise UnsupportedCheckpoint(
            where, "joint.num_extra_outputs", extra_outputs, "TDT with as many decoding.durations"
        )
    if not all(type(d) is int and d >= 0 for d in durations):
        raise UnsupportedCheckpoint(where, "decoding.durations", durations, "whole numbers from 0")
    return tuple(durations)


def _joint(config: Section, num_labels: int, num_durations: int, where: object) -> JointConfig:
    section = Section(config.values["joint"], "joint", where)
    _target(section, "RNNTJoint")
    _check_size(section, "num_classes", num_labels)
    section.ignore("jointnet", "vocabulary", "num_extra_outputs", "log_softmax", "preserve_memory", "fuse_loss_wer")
    section.ignore("fused_batch_size", "experimental_fuse_loss_wer", "masking_prob")
    section.finish()
    jointnet = Section(section.values.get("jointnet"), "joint.jointnet", where)
    jointnet.ignore("dropout", "encoder_hidden", "pred_hidden")
    greedy = (config.values.get("decoding") or {}).get("greedy") or {}
    max_symbols = greedy.get("max_symbols", greedy.get("max_symbols_per_step", 10))
    if max_symbols is not None and (type(max_symbols) is not int or max_symbols <= 0):
        raise UnsupportedCheckpoint(where, "decoding.greedy.max_symbols", max_symbols, "positive numbers, null")
    joint = JointConfig(
        hidden=jointnet.positive("joint_hidden"),
        activation=str(jointnet.choose("activation", "relu", ("relu", "tanh", "sigmoid"))),
        max_symbols=max_symbols,
    )
    jointnet.finish()
    return joint


def _check_ctc(section: Section, num_labels: int) -> None:
    _target(section, "ConvASRDecoder")
    _check_size(section, "num_classes", num_labels)
    section.choose("add_blank", True, (True,))
    section.ignore("feat_in", "init_mode", "vocabulary")
    section.finish()
