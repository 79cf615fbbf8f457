"""Makes small random-weight stand-ins of published NeMo checkpoints, with what NeMo itself gets out of them.

    python -m scripts.goldens published OUT_DIR AUDIO...   # with nemo_toolkit[asr]

The configurations are those of tests/helpers/published.py: every key of the published YAML but those of training alone is in
the .nemo, with small sizes. Writes OUT_DIR/<name>/model.nemo (gzipped), golden.json and tensors.safetensors, as common.py does.
The recordings also tune the models. tests/data/models/published holds some of the results.

NeMo 3.0.0 cannot join the pieces of an aggregate tokenizer back into words (AggregateTokenizer.tokens_to_text wants a
language), so CTC decoding and time stamps fail with them. Here the pieces are joined as its ids_to_text joins them.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from nemo.collections.asr import models as nemo_models
from omegaconf import OmegaConf
from safetensors.torch import save_file

from scripts.goldens import common
from tests.helpers import published

SEED = 4500
PIECES = 72  # of one tokenizer, which needs one for each character of its text
SPANISH = """\
¿Qué tal está usted hoy? ¡Muy bien, gracias! Mañana iremos al mercado «grande» de la ciudad: compraremos pan, queso y vino.
El niño pequeño corrió detrás del pingüino; ¿dónde estaba su hermano? Nadie lo sabía. Según él, la canción era así.
"""
# As parakeet-tdt-0.6b-v3 has them, and pieces that begin with punctuation and are no single mark.
SYMBOLS = ["<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", ".)", "?!", "?o"]
DATASETS = ("train_ds", "validation_ds", "test_ds")


def spec_of(name: str, config: dict[str, Any]) -> common.Spec:
    """Return the fields that common.py's functions need."""
    target = config["target"].rpartition(".")[2]
    tokenized, is_streaming = "tokenizer" in config, config["encoder"].get("att_context_style") == "chunked_limited"
    return common.Spec(
        name,
        PIECES if tokenized else tuple(config["labels"]),
        has_transducer="RNNT" in target,
        has_ctc="CTC" in target,
        durations=tuple(config.get("decoding", {}).get("durations", ())) if "RNNT" in target else (),
        factor=config["encoder"]["subsampling_factor"],
        history=0.3 if is_streaming else 1.0,
    )


def tokenizer_config(published_one: dict[str, Any], spec: common.Spec, folder: Path) -> dict[str, Any]:
    def trained(name: str, text: str, symbols: Sequence[str] = ()) -> dict[str, Any]:
        return {"dir": common.write_tokenizer(folder / name, text, PIECES, symbols), "type": "bpe"}

    if published_one["type"] == "bpe":
        return trained(spec.name, common.TEXT, SYMBOLS)
    languages = {}
    for language in published_one["langs"]:
        text = SPANISH if language == "es" else common.TEXT.lower() if language != "en" else common.TEXT
        languages[language] = trained(language, text)
    return {"type": "agg", "langs": languages}


def build(name: str, spec: common.Spec, seed: int, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the model, and its config with all published keys."""
    torch.manual_seed(seed)
    whole = published.config(name)
    tokenizer = tokenizer_config(whole["tokenizer"], spec, folder) if "tokenizer" in whole else None
    num_languages = len(tokenizer.get("langs", [1])) if tokenizer else 1
    num_labels = len(spec.vocabulary) if tokenizer is None else -1
    if tokenizer is not None:
        num_labels = (PIECES if "langs" in tokenizer else PIECES + len(SYMBOLS)) * num_languages
    is_streaming = whole["encoder"].get("att_context_style") == "chunked_limited"
    small = published.stand_in(whole, num_labels, **({"num_layers": 2, "width": 8} if is_streaming else {}))
    config = small | dict.fromkeys(DATASETS) | ({"tokenizer": tokenizer} if tokenizer else {})
    model = getattr(nemo_models, whole["target"].rpartition(".")[2])(cfg=OmegaConf.create(config))
    common.as_measured(model).freeze()
    if num_languages > 1:
        model.tokenizer.tokens_to_text = lambda tokens: "".join(tokens).replace("▁", " ")
    common.randomise(model, spec)
    for parameter in model.prompt_kernel.parameters() if hasattr(model, "prompt_kernel") else ():
        parameter.normal_(0.0, 0.3)
    return model, small


@torch.no_grad()
def settle(model: Any, samples: list[np.ndarray]) -> None:
    """Centre and scale the first layers' output: features that are not normalised make all frames alike."""
    outputs = []
    for each in samples:
        mel_BMT, length_B, _, _ = common.encode(model, each)
        outputs.append(model.encoder.pre_encode(x=mel_BMT.transpose(1, 2), lengths=length_B)[0][0])
    output_ND, out = torch.cat(outputs), model.encoder.pre_encode.out
    scale = 1.0 / output_ND.std(0)
    out.weight.mul_(scale[:, None])
    out.bias.sub_(output_ND.mean(0)).mul_(scale)


@torch.no_grad()
def round_weights(model: Any) -> None:
    """Round weights to six significant bits, which gzip packs into a third."""
    for parameter in model.parameters():
        mantissa, exponent = torch.frexp(parameter)
        parameter.copy_(torch.ldexp((mantissa * 64).round() / 64, exponent))


def save(model: Any, small: dict[str, Any], path: Path) -> None:
    """Write NeMo's archive, gzipped, with all keys of the published config, including those that NeMo did not get."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "model.nemo"
        model.save_to(str(plain))
        packed = io.BytesIO()
        with tarfile.open(plain) as source, tarfile.open(fileobj=packed, mode="w:") as target:
            for member in source:
                content = source.extractfile(member).read() if member.isfile() else b""  # type: ignore[union-attr]
                if member.name.endswith("model_config.yaml"):
                    content = with_all_keys(content, small)
                member.size, member.mtime = len(content), 0
                target.addfile(member, io.BytesIO(content))
        path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def with_all_keys(saved: bytes, small: dict[str, Any]) -> bytes:
    def merged(ours: Any, theirs: Any) -> Any:
        if not isinstance(ours, dict) or not isinstance(theirs, dict):
            return theirs
        both = {key: merged(value, theirs.get(key, value)) for key, value in ours.items()}
        return both | {key: value for key, value in theirs.items() if key not in ours}

    config = merged(small, yaml.safe_load(saved)) | {key: small[key] for key in DATASETS if key in small}
    config["tokenizer"] = yaml.safe_load(saved).get("tokenizer") if "tokenizer" in small else None
    if config["tokenizer"] is None:
        del config["tokenizer"]
    missing = published.key_paths(small) - published.key_paths(config)
    assert all(key.startswith("tokenizer.") for key in missing), missing
    return yaml.safe_dump(config, allow_unicode=True, sort_keys=False).encode()


def make(name: str, seed: int, audio: Sequence[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spec = spec_of(name, published.config(name))
    with tempfile.TemporaryDirectory() as scratch:
        model, small = build(name, spec, seed, Path(scratch))
        samples = {path.name: common.read(path) for path in audio}
        if model.cfg.preprocessor.normalize == "NA":
            settle(model, list(samples.values()))
        common.tune(model, spec, [common.encode(model, each)[2] for each in samples.values()])
        if model.cfg.preprocessor.normalize == "NA":
            round_weights(model)
        save(model, small, folder / "model.nemo")
    common.with_timestamps(model, spec)
    files: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for number, (file_name, each) in enumerate(samples.items()):
        _, mel_length_B, encoded_BDT, length_B = common.encode(model, each)
        found = common.golden(model, spec, encoded_BDT, length_B)
        lengths = {"num_samples": len(each), "feat_len": int(mel_length_B), "enc_len": int(length_B)}
        fragile = common.is_fragile(model, spec, encoded_BDT, length_B, found)
        languages = in_other_languages(model, spec, each)
        contexts = in_other_contexts(model, lambda each=each: decoded(model, spec, each))
        others = {"languages": languages, "contexts": contexts}
        files[file_name] = lengths | found | {"fragile": fragile} | {key: one for key, one in others.items() if one}
        if number == 0:
            tensors[f"encoder/{file_name}"] = encoded_BDT[0, :, : int(length_B)].T.contiguous()
    save_file(tensors, folder / "tensors.safetensors")
    together(model, spec, samples, files)
    common.write_golden(folder, name, model, files, frame_seconds=0.01 * spec.factor)


def in_other_languages(model: Any, spec: common.Spec, samples: np.ndarray) -> dict[str, Any]:
    """What a model writes that is told a language; nothing of other models."""
    languages = ("en-GB", "no") if hasattr(model, "prompt_kernel") else ()
    return {language: decoded(model, spec, samples, language) for language in languages}


def in_other_contexts(model: Any, find: Callable[[], Any]) -> dict[str, Any]:
    """What `find` returns with each context of a streaming model but its default."""
    first, *others = model.encoder.att_context_size_all
    found = {}
    for context in others:
        model.encoder.set_default_att_context_size(context)
        found[",".join(map(str, context))] = find()
    model.encoder.set_default_att_context_size(first)
    return found


def decoded(model: Any, spec: common.Spec, samples: np.ndarray, language: str = "auto") -> dict[str, Any]:
    _, _, encoded_BDT, length_B = common.encode(model, samples, language)
    whole = common.golden(model, spec, encoded_BDT, length_B)
    return {key: whole[key] for key in ("tokens", "token_frames", "text")}


def together(model: Any, spec: common.Spec, samples: dict[str, np.ndarray], files: dict[str, Any]) -> None:
    """Check that a batch of all files gives the tokens and times of each alone, except for rounding."""
    encoded_BDT, encoded_lengths_B = common.encode_together(model, list(samples.values()))
    for row, found in enumerate(files.values()):
        one = common.golden(model, spec, encoded_BDT[row : row + 1], encoded_lengths_B[row : row + 1])
        assert found["fragile"] or one["tokens"] == found["tokens"], (spec.name, row)


def main(out: Path, *audio: Path, only: Sequence[str] = ()) -> None:
    for number, (name, config) in enumerate(published.CONFIGS.items()):
        wanted = not only or name in only
        is_fork = config.get("joint", {}).get("multilingual")  # indic.py
        if wanted and not is_fork and "EncDecMultiTaskModel" not in config["target"] and "d_model" in config["encoder"]:
            make(name, SEED + number, audio, out / name)
