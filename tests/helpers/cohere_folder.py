"""A small Cohere Transcribe model with random weights, as the folders that transformers' CohereAsr classes read.

Its config.json and weights come in three forms (FORMS): as the classes' modules are named, as save_pretrained writes a new
model, and as the model is published, where both are NeMo's.

Used by tests, and by scripts/goldens/cohere.py, which runs where transformers is installed and fastscribe is not, so nothing
here imports either of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from safetensors.torch import save_file

from tests.helpers.conformer_shapes import conformer_shapes
from tests.helpers.hf_folder import Json, bpe_tokenizer, drawn_weights, word_mark_decoder, write_json
from tests.helpers.se_checkpoint import Shapes, linear

Form = Literal["modules", "saved", "published"]
FORMS: tuple[Form, ...] = get_args(Form)

NAME = "cohere-transcribe-03-2026"
# The defaults of transformers' CohereAsrConfig, which are the published model's sizes, in the form that it writes.
SAVED_CONFIG: Json = {
    "architectures": ["CohereAsrForConditionalGeneration"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 4,
    "decoder_start_token_id": None,
    "dtype": "bfloat16",
    "encoder_config": {
        "activation_dropout": 0.0,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "conv_kernel_size": 9,
        "convolution_bias": True,
        "dropout": 0.0,
        "dropout_positions": 0.0,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "initializer_range": 0.02,
        "intermediate_size": 5120,
        "layerdrop": 0.0,
        "max_position_embeddings": 5000,
        "model_type": "parakeet_encoder",
        "num_attention_heads": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_mel_bins": 128,
        "scale_input": False,
        "subsampling_conv_channels": 256,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
        "subsampling_factor": 8,
    },
    "eos_token_id": 3,
    "head_dim": 128,
    "hidden_act": "relu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 4096,
    "is_encoder_decoder": True,
    "max_position_embeddings": 1024,
    "model_type": "cohere_asr",
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 16384,
}
PROCESSOR_CONFIG: Json = {
    "feature_extractor": {
        "dither": 1e-05,
        "feature_extractor_type": "CohereAsrFeatureExtractor",
        "feature_size": 128,
        "hop_length": 160,
        "max_audio_clip_s": 35.0,
        "min_energy_window_samples": 1600,
        "n_fft": 512,
        "overlap_chunk_second": 5.0,
        "padding_side": "right",
        "padding_value": 0.0,
        "preemphasis": 0.97,
        "return_attention_mask": True,
        "sampling_rate": 16000,
        "win_length": 400,
    },
    "processor_class": "CohereAsrProcessor",
}
# Every key of a published config.json, with those that transformers does not read.
_PUBLISHED_TRAINING: Json = {
    "use_loss_mask_for_prompt": False,
    "log_prediction": True,
    "log_batch_stats": False,
    "prompt_format": "cohere_asr",
    "prompt_defaults": [{"role": "user", "slots": {"decodercontext": "", "pnc": "<|pnc|>", "itn": "<|noitn|>"}}],
    "multitask_metrics_cfg": {
        "log_predictions": True,
        "metrics": {"wer": {"constraint": ".source_lang==.target_lang"}},
    },
    "decoding": {"strategy": "beam", "beam": {"beam_size": 1, "len_pen": 0.0, "max_generation_delta": -256}},
}
FRONT_END: Json = {
    "sample_rate": 16000,
    "max_audio_clip_s": 35,
    "overlap_chunk_second": 5.0,
    "min_energy_window_samples": 1600,
    "max_seq_len": 1024,
    "supported_languages": ["en", "ar"],
    "batch_size": 128,
    "preprocessor": {
        **{"sample_rate": 16000, "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01},
        **{"window": "hann", "features": 128, "n_fft": 512, "log": True, "frame_splicing": 1},
        **{"dither": 1e-05, "pad_to": 0, "pad_value": 0.0},
    },
}
# What transformers renames when it saves a new model: the name of its module, and NeMo's.
_ENCODER_NAMES = (
    ("subsampling.layers.", "pre_encode.conv."),
    ("subsampling.linear.", "pre_encode.out."),
    (".conv.norm.", ".conv.batch_norm."),
    *((f".{part}_proj.", f".linear_{part}.") for part in "qkv"),
    (".o_proj.", ".linear_out."),
    (".relative_k_proj.", ".linear_pos."),
    *((f".bias_{part}", f".pos_bias_{part}") for part in "uv"),
)
_PROJECTIONS = {"q": "query_net", "k": "key_net", "v": "value_net", "o": "out_projection"}
_ATTENTIONS = {"self_attn": "first_sub_layer", "encoder_attn": "second_sub_layer"}
_DECODER_NAMES = (
    ("decoder.pos_emb.weight", "transf_decoder._embedding.position_embedding.pos_enc"),
    ("decoder.embed_tokens.", "transf_decoder._embedding.token_embedding."),
    ("decoder.embedding_layernorm.", "transf_decoder._embedding.layer_norm."),
    ("decoder.norm.", "transf_decoder._decoder.final_layer_norm."),
    ("decoder.proj.", "encoder_decoder_proj."),
    ("model.decoder.layers.", "model.transf_decoder._decoder.layers."),
    *(
        (f".{module}.{part}_proj.", f".{layer}.{net}.")
        for module, layer in _ATTENTIONS.items()
        for part, net in _PROJECTIONS.items()
    ),
    (".mlp.fc1.", ".third_sub_layer.dense_in."),
    (".mlp.fc2.", ".third_sub_layer.dense_out."),
    (".input_layernorm.", ".layer_norm_1."),
    (".post_attention_layernorm.", ".layer_norm_2."),
    (".final_layernorm.", ".layer_norm_3."),
    ("proj_out.", "log_softmax.mlp.layer0."),
)
# fmt: off
_CONTROLS = (
    "<unk>", "<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>", "<|startofcontext|>",
    "<|itn|>", "<|noitn|>", "<|timestamp|>", "<|notimestamp|>", "<|diarize|>", "<|nodiarize|>", "<|emo:undefined|>",
    "<|en|>", "<|de|>", "<|ja|>",
)
_PIECES = ("▁", "▁the", "▁dog", "s", "ing", "▁of", ",", ".", "é", "▁It", "字", "▁7", "o", "▁and", "er", "▁漢")
# fmt: on


def tokenizer() -> Json:
    pieces = [*_CONTROLS, *_PIECES]
    return bpe_tokenizer(pieces, [True] * len(_CONTROLS), word_mark_decoder(), unk_token="<unk>")


def small_config() -> Json:
    """Return the published configuration with small sizes; every key stays."""
    whole = json.loads(json.dumps(SAVED_CONFIG))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    whole["encoder_config"] |= sizes | {"num_key_value_heads": 4, "subsampling_conv_channels": 8}
    own = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    own |= {"num_key_value_heads": 4, "head_dim": 6, "max_position_embeddings": 48}
    return whole | own | {"vocab_size": len(_CONTROLS) + len(_PIECES)}


def published_form(config: Json) -> Json:
    """Return the settings of a config.json that transformers wrote in the form of the published one."""
    encoder = config["encoder_config"]
    width, hidden = encoder["hidden_size"], config["hidden_size"]
    decoder = {
        **{"max_sequence_length": config["max_position_embeddings"], "num_token_types": 0, "embedding_dropout": 0},
        **{"learn_positional_encodings": False, "hidden_size": hidden, "inner_size": config["intermediate_size"]},
        **{"num_layers": config["num_hidden_layers"], "num_attention_heads": config["num_attention_heads"]},
        **{"ffn_dropout": 0, "attn_score_dropout": 0, "attn_layer_dropout": 0, "hidden_act": "relu", "pre_ln": True},
        **{"vocab_size": "None", "lm_dec_hidden": width},
    }
    head = {"num_layers": 1, "activation": "relu", "log_softmax": True, "hidden_size": hidden, "dropout": 0}
    return {
        **FRONT_END,
        **_PUBLISHED_TRAINING,
        "model_defaults": {"asr_enc_hidden": width, "lm_enc_hidden": hidden, "lm_dec_hidden": hidden},
        "encoder": {
            **{"feat_in": encoder["num_mel_bins"], "feat_out": -1, "n_layers": encoder["num_hidden_layers"]},
            **{"d_model": width, "subsampling": "dw_striding", "subsampling_factor": 8},
            **{"subsampling_conv_channels": encoder["subsampling_conv_channels"], "causal_downsampling": False},
            **{"reduction": None, "reduction_position": None, "reduction_factor": 1, "xscaling": False},
            **{"ff_expansion_factor": encoder["intermediate_size"] // width, "self_attention_model": "rel_pos"},
            **{"n_heads": encoder["num_attention_heads"], "att_context_size": [-1, -1], "untie_biases": True},
            **{"pos_emb_max_len": 5000, "conv_kernel_size": 9, "conv_norm_type": "batch_norm"},
            **{"conv_context_size": None, "dropout": 0, "dropout_pre_encoder": 0, "dropout_emb": 0, "dropout_att": 0},
        },
        "transf_encoder": {"num_layers": 0, "hidden_size": hidden, "mask_future": False, "pre_ln": True},
        "transf_decoder": {
            **{"model_name": None, "pretrained": False, "encoder": None, "pre_ln_final_layer_norm": True},
            "config_dict": decoder,
        },
        "head": head | {"num_classes": config["vocab_size"], "use_transformer_init": True},
        "model_type": "cohere_asr",
        "architectures": ["CohereAsrForConditionalGeneration"],
        "is_encoder_decoder": True,
    }


PUBLISHED_CONFIG = published_form(SAVED_CONFIG)


def saved_name(name: str) -> str:
    """Return the name under which transformers saves a new model's weight."""
    for ours, theirs in _ENCODER_NAMES if ".encoder." in name else _DECODER_NAMES:
        name = name.replace(ours, theirs)
    return name


def shapes(config: Json) -> Shapes:
    """Return name and shape of each stored weight."""
    found: Shapes = {}
    for name, shape in conformer_shapes(published_form(config)["encoder"]).items():
        for ours, theirs in _ENCODER_NAMES:
            name = name.replace(theirs, ours)
        found[f"model.{name}"] = shape
    hidden, inner, tokens = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    norms = ["model.decoder.embedding_layernorm", "model.decoder.norm"]
    found["model.decoder.embed_tokens.weight"] = (tokens, hidden)
    found["model.decoder.pos_emb.weight"] = (config["max_position_embeddings"], hidden)
    found |= linear("model.decoder.proj", config["encoder_config"]["hidden_size"], hidden)
    for layer in (f"model.decoder.layers.{number}" for number in range(config["num_hidden_layers"])):
        norms += [f"{layer}.{norm}" for norm in ("input_layernorm", "post_attention_layernorm", "final_layernorm")]
        for name in (f"{layer}.{attention}.{part}_proj" for attention in _ATTENTIONS for part in _PROJECTIONS):
            found |= linear(name, hidden, hidden)
        found |= linear(f"{layer}.mlp.fc1", hidden, inner) | linear(f"{layer}.mlp.fc2", inner, hidden)
    found |= {f"{norm}.{part}": (hidden,) for norm in norms for part in ("weight", "bias")}
    return found | linear("proj_out", hidden, tokens)


def random_weights(config: Json, seed: int) -> dict[str, torch.Tensor]:
    """Return float32 weights of a model whose tokens depend on the audio and that ends some of its texts."""

    def adjust(name: str, values: np.ndarray) -> None:
        if name.endswith("attn.q_proj.weight") or name == "proj_out.weight":
            values *= 4.0  # attention to few frames, and labels that are clearly the best
        if name == "proj_out.bias":
            values[: len(_CONTROLS)] -= 100.0  # only pieces of text, and the end
            values[config["eos_token_id"]] += 100.0 + _END_BIAS

    return drawn_weights(shapes(config), seed, adjust)


_END_BIAS = 3.0
SEED = 5


def write_folder(folder: Path, seed: int = SEED, form: Form = "modules") -> Json:
    """Write the folder and return its config.json."""
    config = small_config()
    weights = random_weights(config, seed)
    described: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    described |= {"pad_token": "<pad>", "eos_token": "<|endoftext|>", "unk_token": "<unk>"}
    if form != "modules":
        weights = {saved_name(name): tensor for name, tensor in weights.items()}
    if form == "published":
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        buffers = {"window": torch.hann_window(400), "fb": torch.zeros(1, 128, 257)}
        weights |= {f"preprocessor.featurizer.{name}": buffer for name, buffer in buffers.items()}
        config = published_form(config)
        processor: Json = {"auto_map": {"AutoProcessor": "processing_cohere_asr.CohereAsrProcessor"}}
        processor |= {"processor_class": "CohereAsrProcessor"}
        write_json(folder, processor_config=processor, preprocessor_config=processor)
    else:
        write_json(folder, processor_config=PROCESSOR_CONFIG)
    write_json(folder, config=config, tokenizer=tokenizer(), tokenizer_config=described)
    if form == "saved":
        _write_shards(folder, weights)
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return config


def _write_shards(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write the weights in two files and their index, as save_pretrained writes those of a large model."""
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, kept in parts.items():
        save_file({name: weights[name] for name in kept}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, kept in parts.items() for name in kept}
    write_json(folder, **{"model.safetensors.index": {"metadata": {}, "weight_map": places}})
