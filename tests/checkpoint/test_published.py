"""A small stand-in of every published checkpoint loads, with every key of its YAML that inference reads, and transcribes.

tests/helpers/published.py has the configurations. Weights are random, with NeMo's names; test_golden.py has stand-ins made by
NeMo, with its tokens, times and text. If published YAMLs are beside the checkout, each is read and compared with the table.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
import sentencepiece
import torch

from fastscribe.checkpoint import huggingface
from fastscribe.checkpoint.lazy_weights import TensorSource, check_shapes
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.config import Options
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.indic import of_language
from fastscribe.families.model import build_model
from fastscribe.families.parameter_shapes import parameter_shapes
from fastscribe.families.registry import reader_of
from fastscribe.pipeline.recognizer import Recognizer
from tests.conftest import AUDIO, MODELS, ROOT, SHARED, waveform
from tests.helpers import cohere_folder, granite_folder, quick_yaml
from tests.helpers.collate import batch_of
from tests.helpers.conformer_shapes import conformer_shapes, norm
from tests.helpers.published import CONFIGS, TRAINING, UNSUPPORTED, Yaml, config, key_paths, stand_in
from tests.helpers.se_checkpoint import Shapes, encoder_shapes, linear, transducer_shapes
from tests.helpers.streaming_folder import write_folder

SHARED = SHARED / "published"
PUBLISHED_FILES = {
    "parakeet-tdt-0.6b-v3": "parakeet-tdt-0.6b-v3/model_config.yaml",
    "parakeet-tdt_ctc-110m": "parakeet-tdt_ctc-110m/model_config.yaml",
    "parakeet-unified-en-0.6b": "parakeet-unified-en-0.6b_cfg.json",
    "nemotron-3.5-asr-streaming-0.6b": "nemotron-3.5-asr-streaming-0.6b/model_config.yaml",
}
beside_the_checkout = pytest.mark.skipif(not SHARED.exists(), reason="no published configurations beside the checkout")

PIECES = 56
TEXT = ["Say it: the quick brown fox jumps over a lazy dog, twice.", "Who would? Not I, said Marta."] * 5
# Control tokens that the prompts of Canary models need; a published tokenizer has hundreds more.
CONTROLS = """
    startofcontext startoftranscript endoftext pad nospeech emo:undefined en de es fr transcribe translate pnc nopnc itn
    noitn timestamp notimestamp diarize nodiarize
""".split()  # noqa: SIM905


@cache
def sentencepiece_model(controls: tuple[str, ...] = ()) -> bytes:
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        model_type="bpe",
        vocab_size=PIECES + len(controls),
        normalization_rule_name="identity",
        user_defined_symbols=[f"<|{name}|>" for name in controls],
        minloglevel=2,
    )
    return model.getvalue()


# --- weights, with NeMo's names -------------------------------------------------------------------------------------


def aed_shapes(small: Yaml, num_labels: int) -> Shapes:
    sizes = small["transf_decoder"]["config_dict"]
    width, inner, classes = sizes["hidden_size"], sizes["inner_size"], -(-num_labels // 8) * 8
    shapes = linear("log_softmax.mlp.layer0", width, classes)
    embedding = "transf_decoder._embedding"
    shapes |= {f"{embedding}.token_embedding.weight": (classes, width)}
    shapes |= {f"{embedding}.position_embedding.pos_enc": (sizes["max_sequence_length"], width)}
    shapes |= norm(f"{embedding}.layer_norm", width) | norm("transf_decoder._decoder.final_layer_norm", width)
    for layer in (f"transf_decoder._decoder.layers.{number}" for number in range(sizes["num_layers"])):
        for number in (1, 2, 3):
            shapes |= norm(f"{layer}.layer_norm_{number}", width)
        for attention in ("first_sub_layer", "second_sub_layer"):
            for name in ("query_net", "key_net", "value_net", "out_projection"):
                shapes |= linear(f"{layer}.{attention}.{name}", width, width)
        shapes |= linear(f"{layer}.third_sub_layer.dense_in", width, inner)
        shapes |= linear(f"{layer}.third_sub_layer.dense_out", inner, width)
    return shapes


def nemo_weights(small: Yaml, num_labels: int) -> dict[str, torch.Tensor]:
    """Random weights for the class that `target` names."""
    target = small["target"].rpartition(".")[2]
    shapes = conformer_shapes(small["encoder"]) if "d_model" in small["encoder"] else encoder_shapes(small["encoder"])
    width = small["encoder"].get("d_model") or small["encoder"]["jasper"][-1]["filters"]
    if "RNNT" in target:
        shapes |= transducer_shapes(small, num_labels)
    if "CTC" in target:
        head = "ctc_decoder" if "RNNT" in target else "decoder"
        shapes |= linear(f"{head}.decoder_layers.0", width, num_labels + 1, True, 1)
    if "MultiTask" in target:
        shapes |= aed_shapes(small, num_labels)
    if "WithPrompt" in target:
        shapes |= linear("prompt_kernel.0", width + small["model_defaults"]["num_prompts"], 2 * width)
        shapes |= linear("prompt_kernel.2", 2 * width, width)
    shapes["preprocessor.featurizer.fb"] = (1, small["preprocessor"]["features"], 257)
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator) / max(1, shape[-1] if len(shape) > 1 else 1) ** 0.5
        is_scale = len(shape) == 1 and name.endswith(".weight")
        weights[name] = torch.ones(shape) if is_scale or name.endswith("running_var") else value
        if name.endswith("num_batches_tracked"):
            weights[name] = torch.tensor(1)
    return weights


# --- checkpoints ----------------------------------------------------------------------------------------------------


def write(small: Yaml, num_labels: int, folder: Path) -> Path:
    """Write an unpacked .nemo file with this config."""
    folder.mkdir(exist_ok=True)
    written = dict(small)
    if "tokenizer" in small:
        written["tokenizer"] = with_files(small["tokenizer"], "MultiTask" in small["target"], folder)
    (folder / "model_config.yaml").write_text(quick_yaml.dump(written, allow_unicode=True, sort_keys=False))
    torch.save(nemo_weights(small, num_labels), folder / "model_weights.ckpt")
    return folder


def with_files(tokenizer: Yaml, is_canary: bool, folder: Path) -> Yaml:
    if "langs" in tokenizer:
        languages = {
            name: with_files(part | {"controls": is_canary and name == "spl_tokens"}, is_canary, folder)
            for name, part in tokenizer["langs"].items()
        }
        return tokenizer | {"langs": languages}
    controls = tuple(CONTROLS) if tokenizer.pop("controls", is_canary) else ()
    file_name = f"{len(controls)}_tokenizer.model"
    (folder / file_name).write_bytes(sentencepiece_model(controls))
    return tokenizer | {"model_path": f"nemo:{file_name}"}


def num_labels_of(whole: Yaml) -> int:
    if "tokenizer" not in whole:
        return len(whole["labels"])
    languages = whole["tokenizer"].get("langs", ["one"])
    return PIECES * len(languages) + len(CONTROLS) * ("MultiTask" in whole["target"])


def shrunk(whole: Yaml, folder: Path) -> Path:
    num_labels = num_labels_of(whole)
    return write(stand_in(whole, num_labels), num_labels, folder)


def texts(loaded: Checkpoint) -> list[str]:
    """Transcribe a clip and a fifth of it in one batch."""
    loaded = of_language(loaded, "hi")
    model = Recognizer.build(loaded, "cpu", "fp32", Options())
    whole = waveform(AUDIO / "e03_one_second_exact.flac")
    waves = [whole, whole[: len(whole) // 5]]
    return [loaded.tokenizer.sentence(found.token_ids) for found in model.transcribe(batch_of(waves))]


def kind_of(name: str) -> tuple[object, ...]:
    """What the forms of a model depend on; its sizes do not matter."""
    whole = config(name)
    encoder, decoding = whole["encoder"], whole.get("decoding", {})
    keys = (
        "_target_",
        "subsampling",
        "conv_norm_type",
        "att_context_style",
        "causal_downsampling",
        "self_attention_model",
    )
    return whole["target"], "durations" in decoding, whole.get("prompt_format"), *(encoder.get(key) for key in keys)


FIRST_OF_KINDS = {kind_of(name): name for name in reversed(CONFIGS)}.values()


@pytest.mark.parametrize("name", CONFIGS)
def test_stand_in_loads_or_transcribes(name: str, tmp_path: Path) -> None:
    """The first of its kind transcribes; of the others, names and shapes of the weights are compared."""
    whole = config(name)
    loaded = read_checkpoint(shrunk(whole, tmp_path))
    target = whole["target"].rpartition(".")[2]
    transducer = ("tdt" if "durations" in whole.get("decoding", {}) else "rnnt",) if "RNNT" in target else ()
    assert loaded.config.decoders == transducer + ("ctc",) * ("CTC" in target) + ("aed",) * ("MultiTask" in target)
    assert loaded.config.num_labels == num_labels_of(whole) == len(loaded.tokenizer.pieces)
    if name in FIRST_OF_KINDS:
        assert len(texts(loaded)) == 2
    else:
        check_shapes(parameter_shapes(loaded.config), loaded.weights, name)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_checkpoints(name: str, tmp_path: Path) -> None:
    whole, reason = UNSUPPORTED[name]
    with pytest.raises(UnsupportedCheckpoint, match=reason) as refused:
        read_checkpoint(shrunk(whole, tmp_path))
    assert "aux_ctc" not in str(refused.value) and "\n" not in str(refused.value)


def test_guide_lists_tested_checkpoints() -> None:
    guide = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    table = guide.split("<!-- made by scripts/made_docs.py -->")[1].split("<!-- made until here -->")[0]
    listed = {name.split("/")[-1] for name in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)}
    assert listed == {*CONFIGS, *granite_folder.NAMES, cohere_folder.NAME}
    assert all(f"`{name}`" in guide for name in UNSUPPORTED)


# --- heads ----------------------------------------------------------------------------------------------------------


def test_class_decides_heads(tmp_path: Path) -> None:
    left_over = config("parakeet-tdt-0.6b-v3")
    small = stand_in(left_over, PIECES) | {"aux_ctc": {"decoder": "unread"}, "transf_decoder": {"config_dict": {}}}
    assert read_checkpoint(write(small, PIECES, tmp_path)).config.decoders == ("tdt",)


@pytest.mark.parametrize(
    ("name", "decoders"),
    [
        ("parakeet-tdt_ctc-110m", ("tdt", "ctc")),
        ("parakeet-tdt-0.6b-v3", ("tdt",)),
        ("parakeet-ctc-0.6b", ("ctc",)),
        ("canary-1b-flash", ("aed",)),
    ],
)
@pytest.mark.parametrize("target", ["my.models.Finetuned", 7])
def test_weights_decide_heads_of_custom_class(
    name: str, decoders: tuple[str, ...], target: object, tmp_path: Path
) -> None:
    folder = shrunk(config(name), tmp_path)
    path = folder / "model_config.yaml"
    path.write_text(quick_yaml.dump(quick_yaml.load(path.read_text()) | {"target": target}, allow_unicode=True))
    loaded = read_checkpoint(folder)
    assert loaded.config.decoders == decoders
    build_model(loaded.config, loaded.weights, folder)


@pytest.mark.parametrize(("added", "shown"), [("speaker.weight", "speaker.weight"), (None, "EncDecRNNTBPEModel")])
def test_custom_class_with_unknown_module(added: str | None, shown: str, tmp_path: Path) -> None:
    folder = shrunk(config("parakeet-rnnt-0.6b"), tmp_path)
    weights = torch.load(folder / "model_weights.ckpt", weights_only=True)
    kept = {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")}
    torch.save(weights | {added: torch.zeros(1)} if added else kept, folder / "model_weights.ckpt")
    path = folder / "model_config.yaml"
    path.write_text(path.read_text().replace("rnnt_bpe_models.EncDecRNNTBPEModel", "mine.Whispering"))
    with pytest.raises(UnsupportedCheckpoint, match=r"target: '.*mine\.Whispering'.*" + shown):
        read_checkpoint(folder)


def test_ignored_streaming_keys(tmp_path: Path) -> None:
    """parakeet-unified attends to all frames; chunks and `dcc` are for streaming."""
    unified = config("parakeet-unified-en-0.6b")
    plain = json.loads(json.dumps(unified))
    del plain["encoder"]["conv_context_style"], plain["encoder"]["att_chunk_context_size"]
    plain["encoder"]["att_context_style"] = "regular"
    one, other = (read_checkpoint(shrunk(whole, tmp_path / str(i))) for i, whole in enumerate((unified, plain)))
    assert one.config == other.config
    odd = config("parakeet-unified-en-0.6b")
    odd["encoder"]["conv_context_style"] = "other"
    with pytest.raises(UnsupportedCheckpoint, match=r"encoder\.conv_context_style: 'other'"):
        read_checkpoint(shrunk(odd, tmp_path / "odd"))


# --- published files, if they are beside the checkout ---------------------------------------------------------------


def published_file(name: str) -> Yaml:
    text = (SHARED / PUBLISHED_FILES[name]).read_text(encoding="utf-8")
    return json.loads(text) if name == "parakeet-unified-en-0.6b" else quick_yaml.load(text)


@beside_the_checkout
@pytest.mark.parametrize("name", PUBLISHED_FILES)
def test_published_keys(name: str) -> None:
    ours, theirs = config(name), published_file(name)
    for section in {*TRAINING, "test_ds", "data"}:
        ours.pop(section, None), theirs.pop(section, None)
    assert key_paths(ours) == key_paths(theirs)


# --- transformers' streaming folders ----------------------------------------------------------------------------------


NEMOTRON = MODELS / "published" / "nemotron-3.5-asr-streaming-0.6b" / "model.nemo"


def test_streaming_folder_without_prompt(tmp_path: Path) -> None:
    encoder = read_checkpoint(NEMOTRON).config.encoder
    write_folder(NEMOTRON, tmp_path, prompted=False)
    loaded = read_checkpoint(tmp_path)
    assert loaded.config.encoder == replace(encoder, language_prompt=None)
    assert [str(context) for context in encoder.contexts] == ["56,3", "56,0", "56,6", "56,13"]
    assert len(texts(loaded)) == 2


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("sliding_window", 58, "supported_num_lookahead_tokens"),
        ("supported_num_lookahead_tokens", [3, "2"], "supported_num_lookahead_tokens"),
        ("hidden_act", "relu", "hidden_act"),
    ],
)
def test_invalid_streaming_folder(tmp_path: Path, key: str, value: object, named: str) -> None:
    write_folder(NEMOTRON, tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    whole["encoder_config"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(UnsupportedCheckpoint, match=rf"encoder_config\.{named}"):
        read_checkpoint(tmp_path)


@beside_the_checkout
def test_published_streaming_folder(tmp_path: Path) -> None:
    folder = SHARED / "nemotron-3.5-asr-streaming-0.6b"
    found = huggingface.read_config(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")), folder)
    header = json.loads((folder / "safetensors_header.json").read_text(encoding="utf-8"))
    theirs = {name: tuple(value["shape"]) for name, value in header.items() if name != "__metadata__"}
    sources = {name: TensorSource("float32", shape, lambda: torch.empty(0)) for name, shape in theirs.items()}
    ours = {name: source.shape for name, source in reader_of("nemotron3_5_asr").our_names(sources, found).items()}
    assert ours == parameter_shapes(found)
    assert found.encoder.language_prompt is not None and found.encoder.language_prompt.languages["no"] == 27
