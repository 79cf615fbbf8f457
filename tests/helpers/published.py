"""Published NeMo checkpoints as tables of facts: the keys of each model_config.yaml with their values, sizes included, but for
what is of training alone.

`config` gives the whole YAML of a checkpoint, `stand_in` the same with small sizes: every key stays, numbers that say how
large a layer is shrink. Used by test_published.py and by scripts/goldens/published.py, which runs where NeMo is
installed and fastscribe is not, so nothing here imports either of them.
"""

from __future__ import annotations

import copy
from typing import Any

Yaml = dict[str, Any]

ASR = "nemo.collections.asr."
LANGUAGES = ("be", "de", "en", "es", "fr", "hr", "it", "pl", "ru", "uk")
# Those of IndicConformer, in the order of its vocabulary.
INDIC_LANGUAGES = (
    *("as", "bn", "brx", "doi", "kok", "gu", "hi", "kn", "ks", "mai", "ml"),
    *("mr", "mni", "ne", "or", "pa", "sa", "sat", "sd", "ta", "te", "ur"),
)
DURATIONS = [0, 1, 2, 3, 4]
LETTERS = [" ", *"abcdefghijklmnopqrstuvwxyz", "'"]
ARTIFACT = "nemo:0123456789abcdef0123456789abcdef_"
# Inference ignores these sections, so each has one key of those that are published.
TRAINING: dict[str, Any] = {
    "train_ds": {"manifest_filepath": None},
    "validation_ds": {"manifest_filepath": None},
    "spec_augment": {"_target_": ASR + "modules.SpectrogramAugmentation"},
    "optim": {"name": "adamw"},
}
# The languages of Nemotron 3.5 and their places in its prompt.
_PROMPTS = """
    en-US:0 en:0 en-GB:1 enGB:1 es-ES:2 esES:2 es-US:3 es:3 zh-CN:4 zh-ZH:4 zh-TW:5 hi-IN:6 hi:6 hi-HI:6 ar-AR:7 ar:7
    fr-FR:8 fr:8 de-DE:9 de:9 ja-JP:10 ja-JA:10 ru-RU:11 ru:11 pt-BR:12 pt-PT:13 pt:13 ko-KR:14 ko:14 ko-KO:14 it-IT:15
    it:15 nl-NL:16 nl:16 pl-PL:17 pl:17 tr-TR:18 tr:18 uk-UA:19 uk:19 ro-RO:20 ro:20 el-GR:21 el:21 cs-CZ:22 cs:22
    hu-HU:23 hu:23 sv-SE:24 sv:24 da-DK:25 da:25 fi-FI:26 fi:26 no-NO:27 no:27 nb-NO:103 nb:103 nn-NO:104 nn:104 sk-SK:28
    sk:28 hr-HR:29 hr:29 bg-BG:30 bg:30 lt-LT:31 lt:31 et-EE:60 et:60 lv-LV:61 lv:61 sl-SI:62 sl:62 th-TH:32 vi-VN:33
    id-ID:34 ms-MY:35 bn-IN:36 ur-PK:37 fa-IR:38 ta-IN:39 te-IN:40 mr-IN:41 gu-IN:42 kn-IN:43 ml-IN:44 si-LK:45 ne-NP:46
    km-KH:47 sw-KE:48 am-ET:49 ha-NG:50 zu-ZA:51 yo-NG:52 ig-NG:53 af-ZA:54 rw-RW:55 so-SO:56 ny-MW:57 ln-CD:58 or-KE:59
    he-IL:64 ku-TR:65 az-AZ:66 ka-GE:67 hy-AM:68 uz-UZ:69 tg-TJ:70 ky-KG:71 qu-PE:80 ay-BO:81 gn-PY:82 nah-MX:83 mi-NZ:96
    haw-US:97 sm-WS:98 to-TO:99 fr-CA:100 mt-MT:102 auto:101
"""


def config(name: str) -> Yaml:
    """The YAML of the named checkpoint, with the vocabulary's size but without its pieces."""
    return copy.deepcopy(CONFIGS[name])


def stand_in(config: Yaml, num_labels: int, num_layers: int = 1, width: int = 16) -> Yaml:
    """The config of a small model of the same kind, for a vocabulary of this size (of all languages together)."""
    small = copy.deepcopy(config)
    old_width = small["encoder"].get("d_model")
    if old_width is not None:
        small["encoder"].update(n_layers=num_layers, d_model=width, n_heads=4)
        if small["encoder"]["subsampling_conv_channels"] != -1:
            small["encoder"]["subsampling_conv_channels"] = (
                8 if small["encoder"]["subsampling"] == "dw_striding" else width
            )
    else:
        for block in small["encoder"]["jasper"]:
            block.update(filters=width, repeat=1, kernel=[min(block["kernel"][0], 11)])
        small["encoder"]["jasper"] = small["encoder"]["jasper"][:2] + small["encoder"]["jasper"][-2:]
    for section in ("decoder", "aux_ctc"):
        part = small.get(section, {})
        part = part.get("decoder", part)
        if isinstance(part.get("feat_in"), int):
            part["feat_in"] = width
        for key in ("vocab_size", "num_classes"):
            if isinstance(part.get(key), int) and part[key] > 0:
                part[key] = num_labels
    if "joint" in small:
        small["joint"]["num_classes"] = num_labels
        small["joint"]["jointnet"].update(joint_hidden=width, encoder_hidden=width, pred_hidden=width)
        small["decoder"]["prednet"].update(pred_hidden=width)
    for key in ("enc_hidden", "pred_hidden", "joint_hidden", "asr_enc_hidden", "lm_enc_hidden", "lm_dec_hidden"):
        if key in small.get("model_defaults", {}):
            small["model_defaults"][key] = width
    if "transf_decoder" in small:
        small["transf_decoder"]["config_dict"].update(
            hidden_size=width, inner_size=2 * width, num_layers=1, num_attention_heads=4, max_sequence_length=64
        )
        small["head"].update(hidden_size=width, num_classes=num_labels)
        small["transf_encoder"].update(hidden_size=width, inner_size=2 * width, num_attention_heads=4)
    return small


def key_paths(config: Yaml, prefix: str = "") -> set[str]:
    """Dotted paths of all keys that are not sections."""
    paths: set[str] = set()
    for key, value in config.items():
        is_section = isinstance(value, dict) and value
        paths |= key_paths(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}"}
    return paths


# --- sections -------------------------------------------------------------------------------------------------------


def _preprocessor(mels: int, **more: Any) -> Yaml:
    return {
        "_target_": ASR + "modules.AudioToMelSpectrogramPreprocessor",
        "sample_rate": 16000,
        "normalize": "per_feature",
        "window_size": 0.025,
        "window_stride": 0.01,
        "window": "hann",
        "features": mels,
        "n_fft": 512,
        "frame_splicing": 1,
        "dither": 1e-05,
        "pad_to": 0,
        **more,
    }


def _conformer(mels: int, layers: int, width: int, heads: int, kernel: int, **more: Any) -> Yaml:
    """The encoder of Conformer and FastConformer, with the keys of the earliest ones."""
    return {
        "_target_": ASR + "modules.ConformerEncoder",
        "feat_in": mels,
        "feat_out": -1,
        "n_layers": layers,
        "d_model": width,
        "subsampling": "striding",
        "subsampling_factor": 4,
        "subsampling_conv_channels": width,
        "ff_expansion_factor": 4,
        "self_attention_model": "rel_pos",
        "n_heads": heads,
        "att_context_size": [-1, -1],
        "xscaling": True,
        "untie_biases": True,
        "pos_emb_max_len": 5000,
        "conv_kernel_size": kernel,
        "conv_norm_type": "batch_norm",
        "dropout": 0.1,
        "dropout_emb": 0.0,
        "dropout_att": 0.1,
        **more,
    }


def _fastconformer(mels: int, layers: int, width: int, **more: Any) -> Yaml:
    """The encoder with the keys that NeMo writes since FastConformer."""
    added = {
        "subsampling": "dw_striding",
        "subsampling_factor": 8,
        "subsampling_conv_channels": 256,
        "causal_downsampling": False,
        "reduction": None,
        "reduction_position": None,
        "reduction_factor": 1,
        "att_context_style": "regular",
        "xscaling": False,
        "conv_context_size": None,
        "dropout_pre_encoder": 0.1,
        "stochastic_depth_drop_prob": 0.0,
        "stochastic_depth_mode": "linear",
        "stochastic_depth_start_layer": 1,
    }
    return _conformer(mels, layers, width, 8, 9, **added | more)


def _base(target: str, version: str, tokenizer: Yaml | None, preprocessor: Yaml, encoder: Yaml, **more: Any) -> Yaml:
    tokenized = {} if tokenizer is None else {"tokenizer": tokenizer}
    return {
        "sample_rate": 16000,
        "log_prediction": True,
        "skip_nan_grad": False,
        **TRAINING,
        **tokenized,
        "preprocessor": preprocessor,
        "encoder": encoder,
        "target": ASR + "models." + target,
        "nemo_version": version,
        **more,
    }


def _bpe(**more: Any) -> Yaml:
    files = {"model_path": "tokenizer.model", "vocab_path": "vocab.txt", "spe_tokenizer_vocab": "tokenizer.vocab"}
    return {"dir": None, "type": "bpe", **{key: ARTIFACT + file for key, file in files.items()}, **more}


def _aggregate(languages: tuple[str, ...], **more: Any) -> Yaml:
    return {"type": "agg", "langs": {language: _bpe() for language in languages}, **more}


def _ctc_head(width: int | None, labels: int) -> Yaml:
    return {"_target_": ASR + "modules.ConvASRDecoder", "feat_in": width, "num_classes": labels, "vocabulary": []}


def _ctc(width: int, labels: int) -> Yaml:
    return {"decoder": _ctc_head(width, labels), "ctc_reduction": "mean_batch", "decoding": {"strategy": "greedy"}}


def _aux_ctc(width: int | None, labels: int, **decoding: Any) -> Yaml:
    aux = {"ctc_loss_weight": 0.3, "use_cer": False, "ctc_reduction": "mean_batch"}
    return {
        "aux_ctc": aux | {"decoder": _ctc_head(width, labels), "decoding": {"strategy": "greedy"} | decoding},
        "interctc": {"loss_weights": [], "apply_at_layers": []},
    }


def _transducer(width: int, labels: int, layers: int, hidden: int = 640, fused: int = 4, **greedy: Any) -> Yaml:
    sizes = {
        "joint_hidden": hidden,
        "activation": "relu",
        "dropout": 0.2,
        "encoder_hidden": width,
        "pred_hidden": hidden,
    }
    return {
        "compute_eval_loss": False,
        "rnnt_reduction": "mean_volume",
        "model_defaults": {"enc_hidden": width, "pred_hidden": hidden, "joint_hidden": hidden},
        "decoder": {
            "_target_": ASR + "modules.RNNTDecoder",
            "normalization_mode": None,
            "random_state_sampling": False,
            "blank_as_pad": True,
            "prednet": {"pred_hidden": hidden, "pred_rnn_layers": layers, "t_max": None, "dropout": 0.2},
            "vocab_size": labels,
        },
        "joint": {
            "_target_": ASR + "modules.RNNTJoint",
            "log_softmax": None,
            "preserve_memory": False,
            "fuse_loss_wer": fused > 0,
            "fused_batch_size": fused,
            "jointnet": sizes,
            "num_classes": labels,
            "vocabulary": [],
        },
        "decoding": {
            "strategy": "greedy_batch",
            "greedy": {"max_symbols": 10} | greedy,
            "beam": {
                "beam_size": 2,
                "return_best_hypothesis": False,
                "score_norm": True,
                "tsd_max_sym_exp": 50,
                "alsd_max_target_len": 2.0,
            },
        },
        "loss": {"loss_name": "default"},
        "labels": [],
    }


def _rnnt(*sizes: int, **more: Any) -> Yaml:
    warp = {"warprnnt_numba_kwargs": {"fastemit_lambda": 0.0, "clamp": -1.0}}
    whole = _transducer(*sizes, **more)
    return whole | {"loss": {"loss_name": "default", **warp}, "variational_noise": {"start_step": 0, "std": 0.0}}


def _tdt(*sizes: int, **more: Any) -> Yaml:
    whole = _transducer(*sizes, **more)
    whole["model_defaults"] |= {"tdt_durations": DURATIONS, "num_tdt_durations": 5}
    whole["joint"]["num_extra_outputs"] = 5
    whole["decoding"] |= {"model_type": "tdt", "durations": DURATIONS}
    kwargs = {"fastemit_lambda": 0.0, "clamp": -1.0, "durations": DURATIONS, "sigma": 0.02, "omega": 0.1}
    return whole | {"loss": {"loss_name": "tdt", "tdt_kwargs": kwargs}}


def _canary(version: str, layers: int, decoder_layers: int, languages: tuple[str, ...], form: str, **more: Any) -> Yaml:
    width, hidden = 1024, 1024
    dropouts = {f"{where}_dropout": 0.1 for where in ("ffn", "attn_score", "attn_layer")}
    modules = ASR + "modules.transformer."
    unified = _bpe(
        custom_tokenizer={"_target_": "nemo.collections.common.tokenizers.canary_tokenizer.CanaryBPETokenizer"}
    )
    custom = {"_target_": "nemo.collections.common.tokenizers.canary_tokenizer.CanaryTokenizer", "tokenizers": None}
    aggregate = _aggregate(("spl_tokens", *languages), custom_tokenizer=custom)
    return _base(
        "aed_multitask_models.EncDecMultiTaskModel",
        version,
        aggregate if languages else unified,
        _preprocessor(128, log=True, pad_value=0.0),
        _fastconformer(128, layers, width, use_bias=True),
        label_smoothing=0.0,
        use_loss_mask_for_prompt=False,
        context_len_for_AR_decoding=5,
        prompt_format=form,
        prompt_defaults=[
            {"role": "user", "slots": {"source_lang": "<|en|>", "target_lang": "<|en|>", "pnc": "<|pnc|>"}}
        ],
        model_defaults={"asr_enc_hidden": width, "lm_enc_hidden": hidden, "lm_dec_hidden": hidden},
        transf_encoder={
            "_target_": modules + "transformer_encoders.TransformerEncoder",
            "num_layers": 0,
            "hidden_size": hidden,
            "inner_size": 4 * hidden,
            "num_attention_heads": 8,
            **dropouts,
            "mask_future": False,
            "pre_ln": True,
            "pre_ln_final_layer_norm": True,
        },
        transf_decoder={
            "_target_": modules + "get_nemo_transformer",
            "model_name": None,
            "pretrained": False,
            "encoder": None,
            "pre_ln_final_layer_norm": True,
            "config_dict": {
                "max_sequence_length": 1024,
                "num_token_types": 0,
                "embedding_dropout": 0.1,
                "learn_positional_encodings": False,
                "hidden_size": hidden,
                "inner_size": 4 * hidden,
                "num_layers": decoder_layers,
                "num_attention_heads": 8,
                **dropouts,
                "hidden_act": "relu",
                "pre_ln": True,
                "vocab_size": "None",
            },
        },
        head={
            "_target_": ASR + "parts.submodules.token_classifier.TokenClassifier",
            "num_layers": 1,
            "activation": "relu",
            "log_softmax": True,
            "hidden_size": hidden,
            "num_classes": 0,
            "dropout": 0.0,
            "use_transformer_init": True,
        },
        decoding={
            "strategy": "beam",
            "return_best_hypothesis": True,
            "beam": {"beam_size": 1, "len_pen": 0.0, "max_generation_delta": 50},
        },
        loss={
            "_target_": "nemo.collections.common.losses.smoothed_cross_entropy.SmoothedCrossEntropyLoss",
            "label_smoothing": 0.0,
            "pad_id": 2,
        },
        **more,
    )


def _jasper_block(filters: int, kernel: int, repeat: int, stride: int = 1, dilation: int = 1, **more: Any) -> Yaml:
    sizes = {"filters": filters, "repeat": repeat, "kernel": [kernel], "stride": [stride], "dilation": [dilation]}
    return sizes | {"dropout": 0.0, "residual": False} | more


def _quartznet() -> Yaml:
    sizes = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
    middle = [_jasper_block(n, k, 5, residual=True, separable=True) for n, k in sizes for _ in range(3)]
    first, last = _jasper_block(256, 33, 1, 2, separable=True), _jasper_block(512, 87, 1, 1, 2, separable=True)
    encoder = {"_target_": ASR + "modules.ConvASREncoder", "feat_in": 64, "activation": "relu", "conv_mask": True}
    encoder["jasper"] = [first, *middle, last, _jasper_block(1024, 1, 1)]
    preprocessor = _preprocessor(64, pad_to=16, stft_conv=False, window_size=0.02)
    whole = _base("ctc_models.EncDecCTCModel", "1.0.0", None, preprocessor, encoder, labels=LETTERS)
    return whole | {"decoder": _ctc_head(1024, 28) | {"vocabulary": LETTERS}}


def _excited_block(filters: int, kernel: int, stride: int = 1, repeat: int = 5, factor: float | None = 1.0) -> Yaml:
    """A separable block with squeeze-and-excite. A block that is repeated has a residual, which strides if the block does."""
    strided = {"stride_last": True, "residual_mode": "stride_add"} if stride > 1 else {}
    scaled = {} if factor is None else {"kernel_size_factor": factor}
    excited = {"separable": True, "se": True, "se_context_size": -1}
    block = _jasper_block(filters, kernel, repeat, stride, residual=repeat > 1, **excited, **strided, **scaled)
    return block | {"dropout": 0.1 if repeat > 1 else 0.0}


def _excited(kernels: list[tuple[int, int]], filters: int, last: int, factor: float, activation: str) -> Yaml:
    """An encoder of such blocks: (kernel, stride) of each, the first and last of which are not repeated."""
    first, *middle, end = kernels
    jasper = [_excited_block(filters, first[0], repeat=1, factor=None)]
    jasper += [_excited_block(filters, *sizes, factor=factor) for sizes in middle]
    jasper.append(_excited_block(last, end[0], repeat=1, factor=factor))
    encoder = {"_target_": ASR + "modules.ConvASREncoder", "feat_in": 80, "activation": activation, "conv_mask": True}
    return encoder | {"jasper": jasper}


def _block_defaults(factor: float, **more: Any) -> Yaml:
    shared = {"repeat": 5, "dropout": 0.1, "separable": True, "se": True, "se_context_size": -1}
    return shared | {"kernel_size_factor": factor, **more}


_CITRINET_KERNELS = [(5, 1), (11, 2), *((size, 1) for size in range(13, 22, 2)), (13, 2)]
_CITRINET_KERNELS += [
    *((size, 1) for size in range(15, 26, 2)),
    (25, 2),
    *((size, 1) for size in range(27, 40, 2)),
    (41, 1),
]
_CONTEXTNET_KERNELS = [(5, 2 if number in (3, 7, 14) else 1) for number in range(23)]


def _citrinet(filters: int, last: int, factor: float, target: str, tokenizer: Yaml | None, **more: Any) -> Yaml:
    encoder = _excited(_CITRINET_KERNELS, filters, last, factor, "relu")
    defaults = {"model_defaults": _block_defaults(factor, filters=filters, enc_final=last)}
    preprocessor = _preprocessor(80, pad_to=16, stft_conv=False)
    return _base(target, "1.0.0rc1", tokenizer, preprocessor, encoder, **defaults, **more)


def _contextnet(filters: int) -> Yaml:
    encoder = _excited(_CONTEXTNET_KERNELS, filters, 640, 1.0, "swish") | {"init_mode": "tds_uniform"}
    whole = _base(_RNNT, "1.6.0", _bpe(), _preprocessor(80, pad_to=16, stft_conv=False), encoder, **_rnnt(640, 1024, 1))
    return whole | {"model_defaults": _block_defaults(1.0, filters=filters) | whole["model_defaults"]}


# --- the checkpoints ------------------------------------------------------------------------------------------------

_RNNT, _CTC = "rnnt_bpe_models.EncDecRNNTBPEModel", "ctc_bpe_models.EncDecCTCModelBPE"
_HYBRID = "hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel"
_EU = _aggregate(LANGUAGES)
_ENES = _aggregate(("en", "es"))


def _parakeet_v3(version: str = "2.3.0rc5", labels: int = 8192) -> Yaml:
    return _base(
        _RNNT,
        version,
        _bpe(),
        _preprocessor(128, log=True, pad_value=0.0),
        _fastconformer(128, 24, 1024, use_bias=False),
        **_tdt(1024, labels, 2),
        # Left over: this class has no CTC head, and the weights have none.
        **_aux_ctc(None, -1),
    )


def _parakeet_unified() -> Yaml:
    streaming = {
        "att_chunk_context_size": [[70], [1, 2, 7, 13], [0, 1, 2, 3, 4, 7, 13]],
        "att_context_style": "chunked_limited_with_rc",
        "conv_context_style": "dcc",
    }
    whole = _base(
        _RNNT,
        "2.7.0rc0",
        _bpe(),
        _preprocessor(128, pad_value=0.0),
        _fastconformer(128, 24, 1024, xscaling=True, **streaming),
        **_transducer(1024, 1024, 2, fused=-1, use_cuda_graph_decoder=False),
    )
    whole["loss"] |= {"offline_loss_weight": 0.3, "streaming_loss_weight": 0.7}
    return whole


def _streaming(
    target: str,
    version: str,
    contexts: list[Any] | None = None,
    sizes: tuple[int, int, int] = (128, 24, 1024),
    **more: Any,
) -> Yaml:
    """A cache-aware streaming encoder, of this number of mels, layers and width."""
    causal = {
        "causal_downsampling": True,
        "att_context_size": contexts or [[70, 13], [70, 6], [70, 1], [70, 0]],
        "att_context_style": "chunked_limited",
        "conv_norm_type": "layer_norm",
        "conv_context_size": "causal",
    }
    causal |= {"use_bias": False} if sizes[2] > 512 else {}
    preprocessor = _preprocessor(sizes[0], log=True, pad_value=0.0, normalize="NA")
    tokenizer = more.pop("tokenizer", _bpe())
    return _base(target, version, tokenizer, preprocessor, _fastconformer(*sizes, **causal), **more)


def _prompted(whole: Yaml) -> Yaml:
    """With the languages that Nemotron 3.5 can be told to write."""
    languages = {name: int(index) for name, _, index in (one.partition(":") for one in _PROMPTS.split())}
    prompt = {"prompt_dictionary": languages, "num_prompts": 128}
    defaults = {"initialize_prompt_feature": True, "norm": None} | prompt
    del whole["rnnt_reduction"]
    whole |= {"model_defaults": whole["model_defaults"] | defaults, "num_prompts": 128}
    whole |= {"tokenizer": _bpe()}
    del whole["tokenizer"]["spe_tokenizer_vocab"]
    return whole


def _indic(layers: int, width: int, predictor_layers: int, **encoder: Any) -> Yaml:
    """IndicConformer: a vocabulary and outputs for each language, with the keys of AI4Bharat's fork of NeMo.

    Its YAML was not at hand. These are NeMo's keys, and those of the fork that published inspections of a checkpoint name.
    """
    labels = 256 * len(INDIC_LANGUAGES)
    whole = _base(
        _HYBRID,
        "1.23.0rc0",
        _aggregate(INDIC_LANGUAGES) | {"type": "multilingual"},
        _preprocessor(80, log=True, pad_value=0.0),
        _fastconformer(80, layers, width, xscaling=True, **encoder),
        **_rnnt(width, labels, predictor_layers),
        **_aux_ctc(width, labels),
    )
    # Tables that the fork computes after it has read the file, which has none of them.
    whole["decoder"] |= {"multisoftmax": True, "language_masks": None}
    whole["joint"] |= {"multilingual": True, "language_keys": list(INDIC_LANGUAGES), "language_masks": None}
    whole["joint"] |= {"token_id_offsets": None, "offset_token_ids_by_token_id": None}
    whole["aux_ctc"]["decoder"] |= {"multisoftmax": True, "language_masks": None}
    return whole


def _plain_conformer(target: str, tokenizer: Yaml | None, layers: int, width: int, head: Yaml, **more: Any) -> Yaml:
    return _base(
        target, "1.8.0", tokenizer, _preprocessor(80, log=True), _conformer(80, layers, width, 4, 31), **head, **more
    )


def _characters(whole: Yaml) -> Yaml:
    """With a vocabulary of characters; the published ones are other languages'."""
    joint = whole["joint"] | {"num_classes": len(LETTERS), "vocabulary": LETTERS}
    return whole | {"labels": LETTERS, "joint": joint}


CONFIGS: dict[str, Yaml] = {
    "parakeet-tdt-0.6b-v3": _parakeet_v3(),
    "parakeet-tdt-0.6b-v2": _parakeet_v3("2.2.0rc0", 1024),
    "parakeet-tdt-1.1b": _base(
        _RNNT,
        "1.22.0",
        _bpe(),
        _preprocessor(80, log=True, pad_value=0.0),
        _fastconformer(80, 42, 1024),
        **_tdt(1024, 1024, 2),
    ),
    "parakeet-tdt_ctc-110m": _base(
        _HYBRID,
        "1.23.0",
        _bpe(),
        _preprocessor(80),
        _fastconformer(80, 17, 512),
        **_tdt(512, 1024, 1),
        **_aux_ctc(512, 1024, greedy={}),
    ),
    "parakeet-tdt_ctc-1.1b": _base(
        _HYBRID,
        "1.23.0",
        _bpe(),
        _preprocessor(80),
        _fastconformer(80, 42, 1024),
        **_tdt(1024, 1024, 2),
        **_aux_ctc(1024, 1024, greedy={}),
    ),
    "parakeet-rnnt-0.6b": _base(
        _RNNT, "1.22.0", _bpe(), _preprocessor(80), _fastconformer(80, 24, 1024, xscaling=True), **_rnnt(1024, 1024, 2)
    ),
    "parakeet-rnnt-1.1b": _base(
        _RNNT, "1.22.0", _bpe(), _preprocessor(80), _fastconformer(80, 42, 1024), **_rnnt(1024, 1024, 2)
    ),
    "parakeet-ctc-0.6b": _base(
        _CTC, "1.22.0", _bpe(), _preprocessor(80), _fastconformer(80, 24, 1024, xscaling=True), **_ctc(1024, 1024)
    ),
    "parakeet-ctc-1.1b": _base(
        _CTC, "1.22.0", _bpe(), _preprocessor(80), _fastconformer(80, 42, 1024), **_ctc(1024, 1024)
    ),
    "parakeet-unified-en-0.6b": _parakeet_unified(),
    "canary-1b": _canary("1.23.0", 24, 24, ("en", "de", "es", "fr"), "canary"),
    "canary-1b-flash": _canary("2.1.0", 32, 4, ("en", "de", "es", "fr"), "canary2"),
    "canary-180m-flash": _canary("2.1.0", 17, 4, ("en", "de", "es", "fr"), "canary2"),
    "canary-1b-v2": _canary("2.3.0", 32, 8, (), "canary2"),
    "stt_en_fastconformer_ctc_large": _base(
        _CTC, "1.20.0", _bpe(), _preprocessor(80), _fastconformer(80, 18, 512), **_ctc(512, 1024)
    ),
    "stt_en_fastconformer_transducer_large": _base(
        _RNNT, "1.20.0", _bpe(), _preprocessor(80), _fastconformer(80, 17, 512), **_rnnt(512, 1024, 1)
    ),
    "stt_en_fastconformer_hybrid_large_pc": _base(
        _HYBRID,
        "1.20.0",
        _bpe(),
        _preprocessor(80),
        _fastconformer(80, 17, 512),
        **_rnnt(512, 1024, 1),
        **_aux_ctc(512, 1024),
    ),
    "stt_multilingual_fastconformer_hybrid_large_pc": _base(
        _HYBRID,
        "1.20.0",
        _EU,
        _preprocessor(80),
        _fastconformer(80, 17, 512),
        **_rnnt(512, 2560, 1),
        **_aux_ctc(512, 2560),
    ),
    "stt_enes_conformer_ctc_large": _plain_conformer(_CTC, _ENES, 18, 512, _ctc(512, 1024)),
    "stt_enes_conformer_transducer_large": _plain_conformer(_RNNT, _ENES, 17, 512, _rnnt(512, 2048, 1)),
    "stt_en_conformer_ctc_small": _plain_conformer(_CTC, _bpe(), 16, 176, _ctc(176, 1024)),
    "stt_en_conformer_transducer_large": _plain_conformer(_RNNT, _bpe(), 17, 512, _rnnt(512, 1024, 1)),
    "stt_zh_conformer_transducer_large": _characters(
        _plain_conformer("rnnt_models.EncDecRNNTModel", None, 17, 512, _rnnt(512, 28, 1))
    ),
    "stt_en_quartznet15x5": _quartznet(),
    "stt_en_citrinet_256": _citrinet(256, 640, 1.0, _CTC, _bpe(), decoder=_ctc_head(640, 1024)),
    "stt_en_citrinet_512": _citrinet(512, 640, 1.0, _CTC, _bpe(), decoder=_ctc_head(640, 1024)),
    "stt_en_citrinet_1024_gamma_0_25": _citrinet(1024, 1024, 0.25, _CTC, _bpe(), decoder=_ctc_head(1024, 1024)),
    "stt_uk_citrinet_1024_gamma_0_25": _citrinet(1024, 1024, 0.25, _CTC, _bpe(), decoder=_ctc_head(1024, 1024)),
    # 5,206 Chinese characters; letters stand for them.
    "stt_zh_citrinet_1024_gamma_0_25": _citrinet(
        1024, 1024, 0.25, "ctc_models.EncDecCTCModel", None, decoder=_ctc_head(1024, 5206), labels=LETTERS
    ),
    "stt_en_contextnet_256": _contextnet(256),
    "stt_en_contextnet_512": _contextnet(512),
    "stt_en_contextnet_1024": _contextnet(1024),
    "nemotron-speech-streaming-en-0.6b": _streaming(_RNNT, "2.6.0", **_rnnt(1024, 1024, 2)),
    "nemotron-3.5-asr-streaming-0.6b": _streaming(
        "rnnt_bpe_models_prompt.EncDecRNNTBPEModelWithPrompt",
        "2.8.0rc0",
        [[56, 3], [56, 0], [56, 6], [56, 13]],
        **_prompted(_rnnt(1024, 13087, 2)),
        # Left over: the weights have no CTC head.
        **_aux_ctc(None, -1),
    ),
    "stt_en_fastconformer_hybrid_large_streaming_multi": _streaming(
        _HYBRID, "1.20.0", None, (80, 17, 512), **_rnnt(512, 1024, 1), **_aux_ctc(512, 1024)
    ),
    "stt_en_fastconformer_hybrid_large_streaming_80ms": _streaming(
        _HYBRID, "1.20.0", [70, 0], (80, 17, 512), **_rnnt(512, 1024, 1), **_aux_ctc(512, 1024)
    ),
    "parakeet_realtime_eou_120m-v1": _streaming(
        _RNNT, "2.4.0", [70, 1], (80, 17, 512), **_rnnt(512, 1026, 1), **_aux_ctc(None, -1)
    ),
    "indicconformer_stt_hi_hybrid_ctc_rnnt_large": _indic(
        *(17, 512, 1),
        subsampling="striding",
        subsampling_factor=4,
        subsampling_conv_channels=-1,
        conv_kernel_size=31,
    ),
    "indicconformer_stt_multi_hybrid_rnnt_600m": _indic(24, 1024, 2),
}
# Named in one line that says why.
UNSUPPORTED: dict[str, tuple[Yaml, str]] = {
    "EncDecHybridRNNTCTCBPEModelWithPrompt": (
        _streaming(
            "hybrid_rnnt_ctc_bpe_models_prompt.EncDecHybridRNNTCTCBPEModelWithPrompt",
            "2.8.0rc0",
            **_prompted(_rnnt(1024, 13087, 2)),
            **_aux_ctc(None, -1),
        ),
        "language prompts",
    ),
}
