"""Make small Canary checkpoints (FastConformer encoder, Transformer decoder) and record NeMo's results.

    python -m scripts.goldens canary OUT_DIR MANIFEST AUDIO_DIR     # with nemo_toolkit[asr]

Writes OUT_DIR/<name>/model.nemo, golden.json and tensors.safetensors. golden.json has, for each setting of the prompt, its
slots and token ids, and per file of AUDIO_DIR the encoder's length, and for each setting tokens, text and words with times.
tensors.safetensors has, for two short files, the encoder's output and, if a projection or further layers follow, the
decoder's input. The decoders of `canary` and `canary2` are trained on MANIFEST's sentences in every setting; the others have
random weights and together cover every setting of the decoder that matters.

Settings as in common.py: CPU, float32, eval, one file at a time, no dither, no pad_to. `transcribe()` uses the
same, and its text must be equal.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
import torch
from nemo.collections.asr.models import EncDecMultiTaskModel
from nemo.collections.asr.models.aed_multitask_models import lens_to_mask
from nemo.collections.asr.parts.utils.timestamp_utils import process_aed_timestamp_outputs
from nemo.collections.common.tokenizers.canary_tokenizer import DEFAULT_TOKENS, CanaryTokenizer
from omegaconf import OmegaConf
from safetensors.numpy import save_file

from scripts.goldens import common

BATCH = 32
PIECES = 96  # of each language

Slots = dict[str, str]
Encoded = tuple[torch.Tensor, torch.Tensor, int]  # see encode()


@dataclass(frozen=True)
class Canary:
    """A model. `decoder` is NeMo's transf_decoder.config_dict without the common keys."""

    name: str
    prompt_format: str
    encoder: common.Spec
    decoder: dict[str, Any]
    decoding: dict[str, Any]
    settings: dict[str, Slots]
    seed: int
    is_unified: bool = False  # one SentencePiece model for control tokens and text
    final_norm: bool = True
    extra_layers: int = 0  # Transformer layers between encoder and decoder
    steps: int = 0  # of training


def encoder(d_model: int, **sizes: Any) -> common.Spec:
    plain = {"has_transducer": False, "has_ctc": True, "layers": 1, "ff_factor": 1, "channels": 16}
    return common.Spec("", common.LETTERS, d_model=d_model, **plain | sizes)


def beam(max_generation_delta: int) -> dict[str, Any]:
    search = {"beam_size": 1, "len_pen": 0.0, "max_generation_delta": max_generation_delta}
    return {"strategy": "beam", "return_best_hypothesis": True, "beam": search}


def canary_slots(target: str = "en", task: str = "asr", pnc: str = "yes") -> Slots:
    return {"source_lang": "en", "target_lang": target, "task": task, "pnc": pnc}


def canary2_slots(target: str = "en", pnc: str = "yes", timestamp: str = "no", context: str = "") -> Slots:
    languages = {"decodercontext": context, "emotion": "<|emo:undefined|>", "source_lang": "en", "target_lang": target}
    return languages | {"pnc": pnc, "itn": "no", "timestamp": timestamp, "diarize": "no"}


CANARY = {
    "default": canary_slots(),
    "nopnc": canary_slots(pnc="no"),
    "translate": canary_slots("de", "translate"),
}
CANARY2 = {
    "default": canary2_slots(),
    "nopnc": canary2_slots(pnc="no"),
    "translate": canary2_slots("de"),
}

CANARY_TOKENS = ("en", "de", "transcribe", "translate")
CANARY2_TOKENS = (
    "startofcontext",
    *(f"{no}{switch}" for switch in ("itn", "timestamp", "diarize") for no in ("", "no")),
    *(f"emo:{emotion}" for emotion in ("undefined", "neutral", "angry", "happy", "sad")),
    "en",
    "de",
)
FRAMES = tuple(str(frame) for frame in range(101))  # as time stamps

# fmt: off
MODELS = (
    Canary("canary", "canary", encoder(32, mels=32),
           {"hidden_size": 32, "inner_size": 48, "num_layers": 2, "num_attention_heads": 4, "pre_ln": True,
            "max_sequence_length": 128, "num_token_types": 0},
           beam(50), CANARY, 1, steps=700),
    Canary("canary2", "canary2", encoder(36, mels=32),
           {"hidden_size": 32, "inner_size": 64, "num_layers": 2, "num_attention_heads": 4, "pre_ln": True,
            "max_sequence_length": 160, "num_token_types": 0},
           beam(50), CANARY2 | {"timestamps": canary2_slots(timestamp="yes")}, 1, steps=1000),
    Canary("canary_unified", "canary2", encoder(32, mels=32, heads=2, kernel=5),
           {"hidden_size": 24, "inner_size": 48, "num_layers": 2, "num_attention_heads": 3, "pre_ln": True,
            "max_sequence_length": 40, "num_token_types": 0, "hidden_act": "gelu", "learn_positional_encodings": True},
           {"strategy": "greedy", "greedy": {"temperature": None, "n_samples": 1}},
           {"default": CANARY2["default"], "translate": CANARY2["translate"],
            "context": canary2_slots(context="Bring water, please.")}, 11, is_unified=True, final_norm=False),
    Canary("canary_transf", "canary", encoder(32, mels=32, xscaling=True),
           {"hidden_size": 24, "inner_size": 40, "num_layers": 1, "num_attention_heads": 2, "pre_ln": False,
            "max_sequence_length": 64, "num_token_types": 2},
           beam(3), {name: CANARY[name] for name in ("default", "translate")}, 12, extra_layers=1),
)
# fmt: on


# --- building -------------------------------------------------------------------------------------------------------


def build(canary: Canary, folder: Path, sentences: list[str]) -> Any:
    """Return a NeMo model with its initial weights. `folder` holds its tokenizers until it is saved."""
    torch.manual_seed(canary.seed)
    model = EncDecMultiTaskModel(cfg=OmegaConf.create(model_config(canary, folder, sentences)))
    model.preprocessor.featurizer.dither, model.preprocessor.featurizer.pad_to = 0.0, 0
    return model.eval()


def model_config(canary: Canary, folder: Path, sentences: list[str]) -> dict[str, Any]:
    asr = "nemo.collections.asr"
    dropouts = {f"{where}_dropout": 0.1 for where in ("ffn", "attn_score", "attn_layer")}
    width = canary.decoder["hidden_size"]
    layers = {
        "num_layers": canary.extra_layers,
        "hidden_size": "${model_defaults.lm_enc_hidden}",
        "inner_size": 2 * width,
        "num_attention_heads": 4,
        "mask_future": False,
        "pre_ln": True,
        "pre_ln_final_layer_norm": True,
    }
    plain = {"embedding_dropout": 0.1, "learn_positional_encodings": False, "hidden_act": "relu", "vocab_size": "None"}
    return {
        "sample_rate": 16000,
        "prompt_format": canary.prompt_format,
        "model_defaults": {"asr_enc_hidden": canary.encoder.d_model, "lm_enc_hidden": width, "lm_dec_hidden": width},
        "train_ds": None,
        "validation_ds": None,
        "test_ds": None,
        "tokenizer": tokenizer_config(canary, folder, sentences),
        "preprocessor": common.preprocessor_config(canary.encoder),
        "encoder": common.encoder_config(canary.encoder),
        "transf_encoder": {
            "_target_": f"{asr}.modules.transformer.transformer_encoders.TransformerEncoder",
            **layers | dropouts,
        },
        "transf_decoder": {
            "_target_": f"{asr}.modules.transformer.get_nemo_transformer",
            "model_name": None,
            "pretrained": False,
            "encoder": None,
            "pre_ln_final_layer_norm": canary.final_norm,
            "config_dict": plain | dropouts | canary.decoder,
        },
        "head": {
            "_target_": f"{asr}.parts.submodules.token_classifier.TokenClassifier",
            "num_layers": 1,
            "activation": "relu",
            "log_softmax": True,
            "hidden_size": "${transf_decoder.config_dict.hidden_size}",
            "num_classes": "${transf_decoder.config_dict.vocab_size}",
            "dropout": 0.0,
            "use_transformer_init": True,
        },
        "decoding": canary.decoding,
        "loss": {
            "_target_": "nemo.collections.common.losses.smoothed_cross_entropy.SmoothedCrossEntropyLoss",
            "label_smoothing": 0.0,
            "pad_id": None,
        },
        "optim": {"name": "adamw", "lr": 0.001},
    }


def tokenizer_config(canary: Canary, folder: Path, sentences: list[str]) -> dict[str, Any]:
    kind = "nemo.collections.common.tokenizers.canary_tokenizer."
    text = "\n".join(sentences)
    if canary.is_unified:
        symbols = [*DEFAULT_TOKENS, *(f"<|{token}|>" for token in (*CANARY2_TOKENS, *FRAMES[:10]))]
        directory = common.write_tokenizer(folder / "all", f"{text}\n{common.TEXT}", PIECES, symbols)
        return {"dir": directory, "type": "bpe", "custom_tokenizer": {"_target_": f"{kind}CanaryBPETokenizer"}}
    tokens = CANARY_TOKENS if canary.prompt_format == "canary" else CANARY2_TOKENS + FRAMES
    CanaryTokenizer.build_special_tokenizer(list(tokens), folder / "spl_tokens")
    common.drop_normaliser(folder / "spl_tokens")
    directories = {
        "spl_tokens": str(folder / "spl_tokens"),
        "en": common.write_tokenizer(folder / "en", f"{text}\n{text.lower()}", PIECES),
        "de": common.write_tokenizer(folder / "de", f"{text}\n{common.TEXT}", PIECES),
    }
    languages = {language: {"dir": directory, "type": "bpe"} for language, directory in directories.items()}
    return {
        "type": "agg",
        "langs": languages,
        "custom_tokenizer": {"_target_": f"{kind}CanaryTokenizer", "tokenizers": None},
    }


# --- making it speak ------------------------------------------------------------------------------------------------


def prompt_ids(model: Any, slots: Slots) -> list[int]:
    return list(model.prompt.encode_dialog([{"role": "user", "slots": dict(slots)}])["context_ids"].tolist())


def expected_answer(slots: Slots, text: str, num_frames: int) -> str:
    """Return the text for this setting: German is the English backwards, times are spread evenly."""
    words = text.split()
    if slots["target_lang"] == "de":
        words.reverse()
    if slots["pnc"] == "no":
        words = ["".join(c for c in word.lower() if c.isalpha() or c in "'-") for word in words]
    if slots.get("timestamp") == "yes":
        times = [round(index * num_frames / len(words)) for index in range(len(words) + 1)]
        words = [
            f"<|{start}|> {word} <|{end}|>" for word, (start, end) in zip(words, itertools.pairwise(times), strict=True)
        ]
    return " ".join(words)


def examples(model: Any, canary: Canary, text: str, num_frames: int) -> list[tuple[list[int], int]]:
    """Return an example per setting: the decoder's tokens, with prompt and end, and the length of the prompt."""
    found = []
    for slots in canary.settings.values():
        said = {
            "text": expected_answer(slots, text, num_frames),
            model.prompt.PROMPT_LANGUAGE_SLOT: slots["target_lang"],
        }
        turns = [{"role": "user", "slots": dict(slots)}, {"role": "assistant", "slots": said}]
        tokens = model.prompt.encode_dialog(turns)
        found.append((tokens["input_ids"].tolist(), len(tokens["context_ids"])))
    return found


def train(model: Any, canary: Canary, spoken: list[tuple[np.ndarray, str]]) -> None:
    """Train the decoder. Of the encoder, train only the statistics: its random output already separates the clips."""
    encoded = [common.encode(model, samples) for samples, _ in spoken]
    lengths_B = torch.cat([length_B for *_, length_B in encoded])
    with torch.no_grad():
        model.encoder.train()
        mels_TM = [mel_BMT[0, :, : int(length_B)].T for mel_BMT, length_B, _, _ in encoded]
        mel_BTM = torch.nn.utils.rnn.pad_sequence(mels_TM, batch_first=True)
        for _ in range(40):
            model.encoder(
                audio_signal=mel_BTM.transpose(1, 2), length=torch.tensor([len(mel_TM) for mel_TM in mels_TM])
            )
        model.encoder.eval()
        states_TD = [common.encode(model, samples)[2][0].T for samples, _ in spoken]
    states_BTD = torch.nn.utils.rnn.pad_sequence(states_TD, batch_first=True)
    mask_BT = lens_to_mask(lengths_B, states_BTD.shape[1]).float()
    wanted = [examples(model, canary, text, int(n)) for (_, text), n in zip(spoken, lengths_B, strict=True)]
    learn(model, canary.steps, states_BTD, mask_BT, wanted)


def learn(
    model: Any, steps: int, states_BTD: torch.Tensor, mask_BT: torch.Tensor, wanted: list[list[tuple[list[int], int]]]
) -> None:
    """Train until the steps are done, on the cross entropy of the answers."""
    num_settings, pad = len(wanted[0]), model.tokenizer.pad_id
    tokens, prompt_lengths = zip(*(example for each in wanted for example in each), strict=True)
    parts = [model.encoder_decoder_proj, model.transf_decoder, model.log_softmax]
    parameters = list({id(p): p for part in parts for p in part.parameters()}.values())  # two of them share one
    with torch.no_grad():  # or it finds no way to tell the clips apart
        strengthen_attention(model, model.encoder_decoder_proj(states_BTD[mask_BT.bool()]))

    def loss_of_batch() -> torch.Tensor:
        rows_B = torch.randperm(len(tokens))[:BATCH]
        rows = [torch.tensor(tokens[row]) for row in rows_B]
        tokens_BN = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        decoded_BND = model.transf_decoder(
            input_ids=tokens_BN[:, :-1],
            decoder_mask=(tokens_BN[:, :-1] != pad).float(),
            encoder_embeddings=model.encoder_decoder_proj(states_BTD[rows_B // num_settings]),
            encoder_mask=mask_BT[rows_B // num_settings],
        )
        is_prompt_BN = torch.arange(1, tokens_BN.shape[1])[None] < torch.tensor(prompt_lengths)[rows_B, None]
        labels_BN = tokens_BN[:, 1:].masked_fill(is_prompt_BN, pad)
        log_probs_BVN = model.log_softmax(hidden_states=decoded_BND).transpose(1, 2)
        return torch.nn.functional.nll_loss(log_probs_BVN, labels_BN, ignore_index=pad)

    common.learn(parameters, steps, 8e-3, 0.1, loss_of_batch)


@torch.no_grad()
def randomise(model: Any, canary: Canary, samples: list[np.ndarray]) -> None:
    """Draw every part at random, then set the rest so that each file gives a long and different text."""
    common.randomise(model, canary.encoder)
    parts = [model.transf_decoder, model.encoder_decoder_proj] + ([model.transf_encoder] if canary.extra_layers else [])
    for module in (module for part in parts for module in part.modules()):
        if isinstance(module, torch.nn.LayerNorm):
            module.weight.normal_(1.0, 0.3)
            module.bias.normal_(0.0, 0.2)
        if isinstance(module, torch.nn.Linear):
            module.weight.normal_(0.0, 2.0 / module.in_features**0.5)
            module.bias.normal_(0.0, 0.3)
        if isinstance(module, torch.nn.Embedding):
            module.weight.normal_(0.0, module.embedding_dim**-0.5)
    encoded = [encode(model, each) for each in samples]
    strengthen_attention(model, torch.cat([states_BTD[0] for _, states_BTD, _ in encoded]))
    centre(model, encoded)
    bias_V, end = model.log_softmax.mlp.layer0.bias, model.tokenizer.eos_id
    fair, spread, handicap_1 = float(bias_V[end]), float(bias_V[: model.tokenizer.vocab_size].std()), torch.zeros(1)

    def count() -> int:
        bias_V[end] = fair + spread * handicap_1[0]
        return sum(len(found["tokens"]) for each in encoded for found in decode_all(model, canary, each).values())

    handicap_1[0] = -100.0
    common.bisect(handicap_1, 0, 0.6 * count(), count)
    bias_V[end] = fair + spread * handicap_1[0]


@torch.no_grad()
def strengthen_attention(model: Any, states_ND: torch.Tensor) -> None:
    """Make the decoder's attention to the encoder vary from frame to frame and outweigh its other inputs."""
    for layer in model.transf_decoder.decoder.layers:
        for linear, size in ((layer.second_sub_layer.key_net, 2.0), (layer.second_sub_layer.value_net, 3.0)):
            linear.weight.mul_(size / linear(states_ND).std(0).mean())
            linear.bias.sub_(linear(states_ND).mean(0))


@torch.no_grad()
def centre(model: Any, encoded: list[Encoded]) -> None:
    """Give each piece the same probability over random histories, control tokens a lower one, and padding none."""
    head, num_tokens = model.log_softmax.mlp.layer0, model.tokenizer.vocab_size
    head.bias.zero_()
    text = [index for index in range(num_tokens) if is_text(model.tokenizer.ids_to_tokens([index])[0])]
    usual = [*text, model.tokenizer.eos_id]
    histories_NU = torch.tensor(text)[torch.randint(len(text), (8, 30))]
    logits_NV = torch.cat(
        [
            head(
                model.transf_decoder(
                    input_ids=histories_NU,
                    decoder_mask=torch.ones(histories_NU.shape),
                    encoder_embeddings=states_BTD.expand(8, -1, -1),
                    encoder_mask=torch.ones(8, states_BTD.shape[1]),
                )
            ).flatten(0, 1)
            for _, states_BTD, _ in encoded
        ]
    )
    deviation_V = logits_NV.std(0)  # as the likeliest of many is mostly one that varies much
    is_usual_V = torch.zeros_like(deviation_V, dtype=torch.bool)
    is_usual_V[usual] = True
    deviation_V[~is_usual_V] *= 2
    deviation_V[num_tokens:] = 100.0
    head.bias.copy_(-logits_NV.mean(0) - deviation_V)


def is_text(piece: str) -> bool:
    return not piece.startswith(("<|", "<pad>", "<unk>"))


# --- goldens --------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def encode(model: Any, samples: np.ndarray) -> Encoded:
    """samples [S] -> encoder output [1, D, T], decoder input [1, T, D'], number of valid frames."""
    _, _, encoded_BDT, length_B = common.encode(model, samples)
    signal_BS, signal_length_B = torch.from_numpy(samples)[None], torch.tensor([len(samples)])
    _, _, states_BTD, _ = model.forward(input_signal=signal_BS, input_signal_length=signal_length_B)
    return encoded_BDT, states_BTD, int(length_B)


def decode(model: Any, encoded: Encoded, prompt: list[int], with_times: bool = False) -> dict[str, Any]:
    _, states_BTD, length = encoded
    mask_BT = lens_to_mask(torch.tensor([length]), states_BTD.shape[1]).to(states_BTD.dtype)
    (hypothesis,) = model.decoding.decode_predictions_tensor(states_BTD, mask_BT, torch.tensor([prompt]))
    found = {"tokens": hypothesis.y_sequence.tolist(), "text": hypothesis.text}
    if with_times:
        stride = model.cfg.preprocessor.window_stride
        (timed,) = process_aed_timestamp_outputs([hypothesis], model.encoder.subsampling_factor, stride)
        seconds = ("start", "end")
        words = [word | {key: round(word[key], 4) for key in seconds} for word in timed.timestamp["word"]]
        found |= {"timed_text": timed.text, "words": words}
    return found


def goldens(model: Any, canary: Canary, samples: dict[str, np.ndarray], folder: Path) -> dict[str, Any]:
    files: dict[str, Any] = {}
    tensors: dict[str, np.ndarray] = {}
    for name, each in samples.items():
        encoded = encoded_BDT, states_BTD, length = encode(model, each)
        found = decode_all(model, canary, encoded)
        noise = 1 + 1e-5 * torch.randn(states_BTD.shape, generator=torch.Generator().manual_seed(0))
        fragile = decode_all(model, canary, (encoded_BDT, states_BTD * noise, length)) != found
        lengths = {"num_samples": len(each), "encoded_length": length, "padded_length": states_BTD.shape[1]}
        files[name] = lengths | found | {"fragile": fragile}
        if name in common.TENSORS_OF:
            tensors[f"encoder/{name}"] = np.ascontiguousarray(encoded_BDT[0, :, :length].T)
            if encoded_BDT.shape[1] != states_BTD.shape[2] or canary.extra_layers:
                tensors[f"states/{name}"] = np.ascontiguousarray(states_BTD[0, :length])
    save_file(tensors, folder / "tensors.safetensors")
    return files


def decode_all(model: Any, canary: Canary, encoded: Encoded) -> dict[str, Any]:
    return {
        name: decode(model, encoded, prompt_ids(model, slots), slots.get("timestamp") == "yes")
        for name, slots in canary.settings.items()
    }


def check_transcribe(model: Any, canary: Canary, paths: list[Path], files: dict[str, Any]) -> None:
    """Check that `transcribe()` gives the same text for 16 kHz files of a second or longer; it pads shorter ones."""
    for name, slots in canary.settings.items():
        if slots.get("decodercontext"):
            continue  # nothing but a manifest can give it one
        slots_for_transcribe = {
            "source_lang": slots["source_lang"],
            "target_lang": slots["target_lang"],
            "pnc": slots["pnc"],
        }
        if "task" in slots:
            slots_for_transcribe["taskname"] = slots["task"]  # an option `task` it takes and ignores
        timed = {"timestamps": True} if slots.get("timestamp") == "yes" else {}
        found = model.transcribe(
            [str(path) for path in paths], batch_size=1, verbose=False, **slots_for_transcribe, **timed
        )
        for path, hypothesis in zip(paths, found, strict=True):
            wanted = files[path.name][name]["timed_text" if timed else "text"]
            assert hypothesis.text == wanted, (path.name, name, hypothesis.text, wanted)


def make(canary: Canary, spoken: list[tuple[np.ndarray, str]], audio: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    samples = {path.name: common.read(path) for path in audio}
    with tempfile.TemporaryDirectory() as scratch:
        model = build(canary, Path(scratch), [text for _, text in spoken])
        if canary.steps:
            train(model, canary, spoken)
            model.save_to(str(folder / "model.nemo"))
        else:
            randomise(model, canary, list(samples.values()))
            common.save_compressed(model, folder / "model.nemo")
    files = goldens(model, canary, samples, folder)
    prompts = {name: {"slots": slots, "ids": prompt_ids(model, slots)} for name, slots in canary.settings.items()}
    facts = {"frame_seconds": 0.01 * canary.encoder.factor, "prompts": prompts}
    common.write_golden(folder, canary.name, model, files, **facts)
    long = [path for path in audio if sf.info(path).samplerate == 16000 and len(samples[path.name]) >= 16000]
    check_transcribe(model, canary, long, files)


def main(out: Path, manifest: Path, audio_dir: Path, only: Sequence[str] = ()) -> None:
    audio = sorted(audio_dir.iterdir())
    spoken = [(samples, text) for samples, text in common.spoken(audio, manifest) if len(samples) < 10 * 16000]
    for canary in MODELS:
        if not only or canary.name in only:
            make(canary, spoken, audio, out / canary.name)
