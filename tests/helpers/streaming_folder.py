"""A streaming NeMo stand-in as the folder that transformers reads: NemotronAsrStreaming or Nemotron3_5Asr.

Nothing here imports transformers or fastscribe.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.helpers import quick_yaml
from tests.helpers.archives import members
from tests.helpers.hf_folder import write_json

NAMES = (
    (r"^encoder\.pre_encode\.conv\.0\.", "encoder.subsampling.conv_in."),
    (r"^encoder\.pre_encode\.conv\.2\.", "encoder.subsampling.layers.0.depthwise_conv."),
    (r"^encoder\.pre_encode\.conv\.3\.", "encoder.subsampling.layers.0.pointwise_conv."),
    (r"^encoder\.pre_encode\.conv\.5\.", "encoder.subsampling.layers.1.depthwise_conv."),
    (r"^encoder\.pre_encode\.conv\.6\.", "encoder.subsampling.layers.1.pointwise_conv."),
    (r"^encoder\.pre_encode\.out\.", "encoder.subsampling.linear."),
    (r"\.self_attn\.linear_([qkv])\.", r".self_attn.\1_proj."),
    (r"\.self_attn\.linear_out\.", ".self_attn.o_proj."),
    (r"\.self_attn\.linear_pos\.", ".self_attn.relative_k_proj."),
    (r"\.self_attn\.pos_bias_([uv])$", r".self_attn.bias_\1"),
    (r"\.conv\.batch_norm\.", ".conv.norm."),
    (r"^decoder\.prediction\.embed\.", "decoder.embedding."),
    (r"^decoder\.prediction\.dec_rnn\.lstm\.", "decoder.lstm."),
    (r"^joint\.pred\.", "decoder.decoder_projector."),
    (r"^joint\.enc\.", "encoder_projector."),
    (r"^joint\.joint_net\.2\.", "joint.head."),
    (r"^prompt_kernel\.0\.", "prompt_projector.linear_1."),
    (r"^prompt_kernel\.2\.", "prompt_projector.linear_2."),
)


def read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], bytes]:
    """Return config, weights and tokenizer of an archive."""
    by_end = {name.rpartition("_")[2]: content for name, content in members(path).items()}
    config = quick_yaml.load(by_end["config.yaml"])
    return config, torch.load(io.BytesIO(by_end["weights.ckpt"]), weights_only=True), by_end["tokenizer.model"]


def renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in weights.items():
        if name.startswith(("preprocessor.", "ctc_decoder.")):  # a hybrid's second head has no place in it
            continue
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        found[name] = tensor
    return found


def config_json(config: dict[str, Any], num_labels: int) -> dict[str, Any]:
    encoder, contexts = config["encoder"], config["encoder"]["att_context_size"]
    is_prompted = "WithPrompt" in config["target"]
    prompt = {"num_prompts": 128, "prompt_intermediate_size": 2 * encoder["d_model"], "default_prompt_id": 101}
    return {
        "architectures": ["Nemotron3_5AsrForRNNT" if is_prompted else "NemotronAsrStreamingForRNNT"],
        "model_type": "nemotron3_5_asr" if is_prompted else "nemotron_asr_streaming",
        "vocab_size": num_labels + 1,
        "blank_token_id": num_labels,
        "pad_token_id": 0,
        "decoder_hidden_size": config["decoder"]["prednet"]["pred_hidden"],
        "num_decoder_layers": config["decoder"]["prednet"]["pred_rnn_layers"],
        "hidden_act": "relu",
        "max_symbols_per_step": 10,
        "is_encoder_decoder": True,
        **(prompt if is_prompted else {}),
        "encoder_config": {
            "model_type": "nemotron_asr_streaming_encoder",
            "num_hidden_layers": encoder["n_layers"],
            "hidden_size": encoder["d_model"],
            "num_attention_heads": encoder["n_heads"],
            "intermediate_size": encoder["d_model"] * encoder["ff_expansion_factor"],
            "num_mel_bins": encoder["feat_in"],
            "subsampling_conv_channels": encoder["subsampling_conv_channels"],
            "conv_kernel_size": encoder["conv_kernel_size"],
            "attention_bias": encoder.get("use_bias", True),
            "convolution_bias": encoder.get("use_bias", True),
            "scale_input": encoder["xscaling"],
            "sliding_window": contexts[0][0] + 1,
            "default_num_lookahead_tokens": contexts[0][1],
            "supported_num_lookahead_tokens": [right for _, right in contexts],
        },
    }


def write_folder(nemo: Path, folder: Path, prompted: bool = True) -> None:
    """Write the folder; without `prompted`, as the model that has no language prompt."""
    config, weights, tokenizer = read(nemo)
    if not prompted:
        config["target"] = "EncDecRNNTBPEModel"
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("prompt")}
    theirs = renamed(weights)
    extractor = {"feature_extractor_type": "NemotronAsrStreamingFeatureExtractor"}
    extractor |= {"feature_size": config["encoder"]["feat_in"], "sampling_rate": 16000}
    processor: dict[str, Any] = {"feature_extractor": extractor, "blank_token": "<blank>"}
    if prompted:
        processor |= {key: config["model_defaults"][key] for key in ("prompt_dictionary", "num_prompts")}
    num_labels = theirs["joint.head.bias"].shape[0] - 1
    write_json(folder, config=config_json(config, num_labels), processor_config=processor)
    (folder / "tokenizer.model").write_bytes(tokenizer)
    save_file({name: tensor.contiguous() for name, tensor in theirs.items()}, folder / "model.safetensors")
