"""Three formats of the same model. Anything else is refused in one line before anything is run or written."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.native import config_from_json
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli.describe import describe
from fastscribe.config import ChunkedAttention, LocalAttention
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint, WeightsMismatch
from fastscribe.families.model import build_model
from tests.conftest import MODELS, model_path
from tests.helpers import quick_yaml
from tests.helpers.archives import members, unpacked

NEMO = MODELS / "hybrid" / "model.nemo"


def packed(folder: Path, target: Path, mode: str = "w:") -> Path:
    with tarfile.open(target, mode) as archive:
        archive.add(folder, arcname=".")
    return target


def with_yaml(folder: Path, source: Path = NEMO, **changes) -> Path:
    """Copy the checkpoint with changed YAML keys: section__key=value."""
    unpacked(folder, source)
    config = quick_yaml.load((folder / "model_config.yaml").read_text())
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = config
        for section in sections:
            place = place[section]
        place[key] = value
    (folder / "model_config.yaml").write_text(quick_yaml.dump(config, allow_unicode=True))
    return folder


def same(a, b) -> bool:
    is_alike = a.config == b.config and a.weights.keys() == b.weights.keys()
    return is_alike and all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)


def with_json(folder: Path, change: Callable[[dict], None], model: str = "hf_ctc", file: str = "config.json") -> Path:
    """Copy a Hugging Face folder with a changed configuration."""
    shutil.copytree(MODELS / model, folder / "hf")
    values = json.loads((folder / "hf" / file).read_text())
    change(values)
    (folder / "hf" / file).write_text(json.dumps(values))
    return folder / "hf"


def test_tar_gzip_and_folder(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "model")
    zipped = tmp_path / "zipped.nemo"
    zipped.write_bytes(gzip.compress(NEMO.read_bytes()))
    reference = read_checkpoint(NEMO)
    assert same(read_checkpoint(folder), reference)
    assert same(read_checkpoint(zipped), reference)
    assert same(read_checkpoint(packed(folder, tmp_path / "again.nemo")), reference)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [*((name, torch.float32) for name in ("tdt_demo", "hf_ctc", "jasper")), ("hybrid", torch.bfloat16)],
    ids=str,
)
def test_native_round_trip(model: str, tmp_path: Path, dtype: torch.dtype) -> None:
    original = read_checkpoint(model_path(MODELS / model))
    native_writer.write(original, tmp_path / "own", dtype)
    again = read_checkpoint(tmp_path / "own")
    assert again.source == "fastscribe"
    assert again.config == original.config
    assert again.tokenizer.pieces == original.tokenizer.pieces
    assert again.dtypes == (str(dtype).removeprefix("torch."),)
    for name, tensor in again.weights.items():
        assert torch.equal(tensor, original.weights[name].to(dtype))
    build_model(again.config, again.weights, "own")
    assert again.tokenizer == original.tokenizer
    taught = replace(original, tokenizer=replace(original.tokenizer, attached="nowhere"))
    native_writer.write(taught, tmp_path / "own", dtype)
    assert read_checkpoint(tmp_path / "own").tokenizer == taught.tokenizer != original.tokenizer
    stated = replace(original, config=replace(original.config, trained_utterance_s=12.5))
    native_writer.write(stated, tmp_path / "own", dtype)
    again = read_checkpoint(tmp_path / "own")
    assert again.config == stated.config and describe(again)["trained_utterance_s"] == 12.5
    assert original.config.trained_utterance_s is None and "trained_utterance_s" not in describe(original)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("encoder__self_attention_model", "abs_pos", "encoder.self_attention_model"),
        ("encoder__att_context_size", [70, 13], "encoder.att_context_size"),
        ("encoder__subsampling", "vggnet", "encoder.subsampling"),
        ("encoder__subsampling_factor", 3, "encoder.subsampling_factor"),
        ("encoder__conv_norm_type", "group_norm4", "encoder.conv_norm_type"),
        ("encoder__conv_kernel_size", 8, "encoder.conv_kernel_size"),
        ("encoder__causal_downsampling", "yes", "encoder.causal_downsampling"),
        ("encoder__conv_context_size", [3, 5], "encoder.conv_context_size"),
        ("encoder__reduction", "pooling", "encoder.reduction"),
        ("encoder__new_switch", "on", "encoder.new_switch"),
        ("encoder___target_", "nemo.collections.asr.modules.SqueezeformerEncoder", "encoder._target_"),
        ("preprocessor__frame_splicing", 3, "preprocessor.frame_splicing"),
        ("preprocessor__normalize", {"fixed_mean": [0.0], "fixed_std": [1.0]}, "preprocessor.normalize"),
        ("preprocessor__window", "kaiser", "preprocessor.window"),
        ("preprocessor__exact_pad", True, "preprocessor.exact_pad"),
        ("preprocessor__features", 64, "encoder.feat_in"),
        ("decoder__normalization_mode", "layer", "decoder.normalization_mode"),
        ("decoder__prednet__rnn_hidden_size", 100, "decoder.prednet.rnn_hidden_size"),
        ("decoder__vocab_size", 99, "decoder.vocab_size"),
        ("joint__jointnet__activation", "gelu", "joint.jointnet.activation"),
        ("joint__num_extra_outputs", 3, "joint.num_extra_outputs"),
        ("preprocessor__window_size", "long", "preprocessor.window_size"),
        ("encoder__att_context_style", "chunked_limited_2", "encoder.att_context_style"),
        ("tokenizer__type", "wpe", "tokenizer.type"),
        ("aux_ctc__decoder___target_", "nemo.X", "aux_ctc.decoder._target_"),
    ],
)
def test_unsupported_settings(tmp_path: Path, key: str, value: object, named: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as error:
        read_checkpoint(with_yaml(tmp_path, **{key: value}))
    message = str(error.value)
    assert named in message
    assert repr(value) in message or key in ("encoder__n_heads", "preprocessor__features")
    assert "\n" not in message


@pytest.mark.parametrize(
    "changes",
    [
        {"aux_ctc": 5},
        {"aux_ctc": {"decoder": [1]}},
        {"joint__num_extra_outputs": 2, "loss": "x"},
        {"joint__num_extra_outputs": 2, "loss": {"tdt_kwargs": 7}},
        {"joint__num_extra_outputs": "two"},
        {"encoder": None},
        {"encoder__5": 6},
        {"preprocessor__window_size": 1e308},
        {"tokenizer__model_path": "nemo:a\0b"},
    ],
    ids=str,
)
def test_settings_of_wrong_types(tmp_path: Path, changes: dict) -> None:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(with_yaml(tmp_path, **changes))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("greedy", "expected"),
    [
        ({}, 10),
        ({"max_symbols": None}, None),
        ({"max_symbols": None, "max_symbols_per_step": 7}, 7),
        ({"max_symbols": 5, "max_symbols_per_step": 7}, 5),
        ({"max_symbols_per_step": 7}, 7),
    ],
)
def test_max_symbols(tmp_path: Path, greedy: dict, expected: int | None) -> None:
    loaded = read_checkpoint(with_yaml(tmp_path, decoding__greedy=greedy))
    assert loaded.config.joint is not None and loaded.config.joint.max_symbols == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder__feat_out": None, "encoder__causal_downsampling": None, "preprocessor__n_fft": None},
        {"encoder__att_context_style": "chunked_limited_with_rc", "encoder__att_context_size": [[70, 13, 13]]},
        {"decoder__vocab_size": None, "joint__num_classes": None, "decoding": None},
    ],
    ids=str,
)
def test_equivalent_settings(tmp_path: Path, changes: dict) -> None:
    assert read_checkpoint(with_yaml(tmp_path, **changes)).config == read_checkpoint(NEMO).config


LOCAL = {"self_attention_model": "rel_pos_local_attn", "att_context_size": [128, 64]}
STREAMING = {"att_context_style": "chunked_limited"}


def with_attention(folder: Path, settings: dict[str, object]) -> Path:
    return with_yaml(folder, **{f"encoder__{key}": value for key, value in settings.items()})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LOCAL, (LocalAttention(128, 64),)),
        (LOCAL | {"att_context_size": [[0, 7], [128, 128]]}, (LocalAttention(0, 7),)),
        (LOCAL | {"global_tokens": 1, "global_tokens_spacing": 3}, (LocalAttention(128, 64, num_global=1),)),
        ({"self_attention_model": "rel_pos", "att_context_size": [-1, -1]}, ()),
        (STREAMING | {"att_context_size": [70, 1]}, (ChunkedAttention(70, 1),)),
        (STREAMING | {"att_context_size": [[70, 13], [70, 0]]}, (ChunkedAttention(70, 13), ChunkedAttention(70, 0))),
        (STREAMING | {"att_context_size": [-1, 3]}, (ChunkedAttention(-1, 3),)),
        (STREAMING | {"att_context_size": [30, -1]}, (ChunkedAttention(30, -1),)),
        (STREAMING | {"att_context_size": [-1, -1]}, ()),
    ],
    ids=str,
)
def test_contexts(tmp_path: Path, settings: dict[str, object], expected: tuple) -> None:
    """Of several contexts the first is the default."""
    config = read_checkpoint(with_attention(tmp_path, settings)).config
    assert config.encoder.attention == (expected[0] if expected else None)
    assert config.encoder.contexts == (expected if STREAMING.items() <= settings.items() else ())
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        *(
            (LOCAL, "att_context_size", size)
            for size in (None, [-1, -1], [0, 0], [128], [1, 2, 3], [[128]], [1.5, 2], ["a", 1], [], 7, [True, True])
        ),
        (LOCAL, "global_tokens", 2),
        (LOCAL, "global_attn_separate", True),
        (LOCAL, "att_context_style", "chunked_limited"),
        *(
            (STREAMING, "att_context_size", size)
            for size in (None, [], [70, 3], [70], [70, 1, 1], [[70, 1], [70, 1]], [[70, 1], [70, -1]], [True, 1])
        ),
    ],
    ids=str,
)
def test_invalid_contexts(tmp_path: Path, settings: dict[str, object], key: str, value: object) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=rf"encoder\.{key}"):
        read_checkpoint(with_attention(tmp_path, settings | {key: value}))


def test_wrong_attention_of_a_folder() -> None:
    data = read_checkpoint(NEMO).config.to_json()
    data["encoder"]["attention"] = {"left": -1, "right": 2}
    with pytest.raises(ValueError, match="-1"):
        config_from_json(data)


def test_tokenizer_of_another_size(tmp_path: Path) -> None:
    """If the YAML does not give the number of labels, the weights do."""
    stored = members(MODELS / "tdt_demo" / "model.nemo")
    (other,) = (content for name, content in stored.items() if name.endswith("tokenizer.model"))
    (tmp_path / "nemo").mkdir()
    folder = with_yaml(
        tmp_path / "nemo", decoder__vocab_size=-1, joint__num_classes=-1, aux_ctc__decoder__num_classes=-1
    )
    for path in folder.glob("*tokenizer.model"):
        path.write_bytes(other)
    loaded = read_checkpoint(folder)
    with pytest.raises(WeightsMismatch, match="wrong shape"):
        build_model(loaded.config, loaded.weights, folder)

    native_writer.write(read_checkpoint(NEMO), tmp_path / "own", torch.float32)
    shutil.copytree(MODELS / "hf_ctc", tmp_path / "hf")
    for folder in (tmp_path / "own", tmp_path / "hf"):
        (folder / "tokenizer.model").write_bytes(other)
        with pytest.raises(CheckpointError, match="256 pieces, but the model 128 labels"):
            read_checkpoint(folder)
    for content in (b"[1, 2]", b'{"a": 1}', b"[" * 100_000, b"\xff"):
        (tmp_path / "own" / "tokenizer.model").unlink(missing_ok=True)
        (tmp_path / "own" / "characters.json").write_bytes(content)
        with pytest.raises(CheckpointError):
            read_checkpoint(tmp_path / "own")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("features.window", "foo"),
        ("features.hop_length", 0),
        ("features.preemphasis", "x"),
        ("features.log_guard_value", float("nan")),
        ("features.win_length", 1000),
        ("features.log", 1),
        ("encoder.num_layers", "a"),
        ("encoder.num_layers", True),
        ("encoder.d_model", 10**9),
        ("encoder.num_mels", 81),
        ("joint.max_symbols", -3),
        ("durations", [1, -1]),
        ("durations", 5),
        ("num_labels", 0),
        ("num_labels", None),
        ("trained_utterance_s", 0.0),
        ("trained_utterance_s", "long"),
        ("predictor", None),
        ("encoder", 3),
        ("encoder", None),
    ],
)
def test_native_settings_are_checked(tmp_path: Path, key: str, value: object) -> None:
    native_writer.write(read_checkpoint(NEMO), tmp_path, torch.float32)
    stored = json.loads((tmp_path / "config.json").read_text())
    part, _, name = key.rpartition(".")
    (stored["model"][part] if part else stored["model"])[name] = value
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(tmp_path)
    assert key in str(error.value) or value in (5, None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("part", "key", "value", "named"),
    [
        ("encoder_config", "new_switch", "on", r"encoder_config\.new_switch: 'on'"),
        ("feature_extractor", "new_switch", 3, r"feature_extractor\.new_switch: 3"),
        ("feature_extractor", "preemphasis", "x", r"feature_extractor\.preemphasis: 'x'"),
        ("encoder_config", "hidden_act", "gelu", r"encoder_config\.hidden_act: 'gelu'"),
        ("encoder_config", "new_switch", None, None),
        ("encoder_config", "top_k", 50, None),
    ],
)
def test_huggingface_unknown_keys(tmp_path: Path, part: str, key: str, value: object, named: str | None) -> None:
    file = "config.json" if part == "encoder_config" else "processor_config.json"
    folder = with_json(tmp_path, lambda values: values[part].update({key: value}), file=file)
    if named is None:
        assert same(read_checkpoint(folder), read_checkpoint(MODELS / "hf_ctc"))
    else:
        with pytest.raises(UnsupportedCheckpoint, match=named):
            read_checkpoint(folder)


@pytest.mark.parametrize("name", ["hf_ctc", "hf_rnnt", "hf_canary"])
def test_huggingface_names_with_and_without_their_prefix(name: str, tmp_path: Path) -> None:
    """transformers' classes write `model.` in front of names if their modules are nested, and read them either way."""
    shutil.copytree(MODELS / name, tmp_path / "hf")
    stored = load_file(MODELS / name / "model.safetensors")
    toggled = {(n.removeprefix("model.") if name == "hf_canary" else f"model.{n}"): w for n, w in stored.items()}
    assert toggled.keys() != stored.keys()
    save_file(toggled, tmp_path / "hf" / "model.safetensors")
    assert same(read_checkpoint(tmp_path / "hf"), read_checkpoint(MODELS / name))


def test_huggingface_defaults(tmp_path: Path) -> None:
    def leave_out(values: dict) -> None:
        del values["num_decoder_layers"], values["decoder_hidden_size"]

    predictor = read_checkpoint(with_json(tmp_path, leave_out, "hf_rnnt")).config.predictor
    assert predictor is not None and (predictor.num_layers, predictor.hidden) == (2, 640)


def test_many_wrong_names() -> None:
    message = str(WeightsMismatch("model", missing=[f"a\n{i:03}" for i in range(1000)]))
    assert message.endswith("a 009 and 990 more")
    assert "\n" not in message


@pytest.mark.parametrize("state", [[torch.zeros(1)], {"a": "text"}, {"a": {"b": torch.zeros(1)}}, {1: 2}])
def test_not_a_state_dict(tmp_path: Path, state: object) -> None:
    torch.save(state, unpacked(tmp_path) / "model_weights.ckpt")
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path)


def test_global_pax_comment(tmp_path: Path) -> None:
    """git archive writes such headers; here each member has a header too."""
    content = {path.name: path.read_bytes() for path in unpacked(tmp_path / "model").iterdir()}
    remark = {"comment": "d" * 40, "mtime": "1"}
    path = tmp_path / "remark.nemo"
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT, pax_headers=remark) as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 0.25
            archive.addfile(member, io.BytesIO(data))
    assert path.read_bytes()[156:157] == tarfile.XGLTYPE
    assert same(read_checkpoint(path), read_checkpoint(NEMO))


def test_duplicate_config_in_tar(tmp_path: Path) -> None:
    """`tar -rf` adds a second config. The user must choose; following the message selects the later one."""
    folder = with_yaml(tmp_path / "model", decoding__greedy={"max_symbols": 7})
    path = shutil.copy(NEMO, tmp_path / "model.nemo")
    with tarfile.open(path, "a:") as archive:
        archive.add(folder / "model_config.yaml", arcname="./model_config.yaml")
    with pytest.raises(CheckpointError, match=r"'model_config\.yaml': unpack it .* use the folder .* or pack it anew"):
        read_checkpoint(path)
    again = unpacked(tmp_path / "again", path)
    loaded = [read_checkpoint(again), read_checkpoint(packed(again, tmp_path / "again.nemo"))]
    assert [model.config.joint.max_symbols for model in loaded] == [7, 7]  # type: ignore[union-attr]


def test_legacy_torch_weights(tmp_path: Path) -> None:
    folder = unpacked(tmp_path)
    weights = folder / "model_weights.ckpt"
    torch.save(torch.load(weights, weights_only=True), weights, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"since 1\.6: if an older one wrote it") as refused:
        read_checkpoint(folder)
    exec(re.search(r"torch\.save\(.*\)", str(refused.value))[0], {"torch": torch, "FILE": weights})  # type: ignore[index]
    assert same(read_checkpoint(folder), read_checkpoint(NEMO))


def test_yaml_numbers_without_point(tmp_path: Path) -> None:
    folder = with_yaml(tmp_path, preprocessor__log_zero_guard_value="GUARD")
    text = (folder / "model_config.yaml").read_text()
    (folder / "model_config.yaml").write_text(text.replace("GUARD", "1e-5"))
    assert read_checkpoint(folder).config.features.log_guard_value == 1e-5


def test_damaged_weights(tmp_path: Path) -> None:
    weights = unpacked(tmp_path) / "model_weights.ckpt"
    whole = weights.read_bytes()
    directory, entry = whole.rindex(b"PK\x05\x06"), whole.index(b"PK\x01\x02")
    places = [*range(entry, entry + 46, 3), *range(directory, directory + 22, 2), *range(40, 2000, 150)]
    for place in places:
        weights.write_bytes(whole[:place] + b"\xfe" + whole[place + 1 :])
        with contextlib.suppress(CheckpointError):
            read_checkpoint(tmp_path)
    weights.write_bytes(whole[:entry] + b"x" * 40 + whole[entry + 40 :])
    with pytest.raises(CheckpointError, match="damaged weights"):
        read_checkpoint(tmp_path)


ENCODER_ALONE = {
    "architectures": ["FastConformerModel"],
    "encoder_layers": 32,
    "model_type": "fastconformer",
    "nemo_decoder_type": "none",
    "nemo_encoder_type": "nemo.collections.asr.modules.ConformerEncoder",
    "nemo_model_name": "nvidia/canary-1b-flash",
    "nemo_model_type": "canary",
}


@pytest.mark.parametrize("config", [ENCODER_ALONE, {"model_type": "whisper"}, {}, None], ids=str)
def test_nemo_file_in_folder(tmp_path: Path, config: dict | None) -> None:
    """canary-1b-flash has a config.json of NeMo's encoder beside its .nemo file; parakeet-ctc has only the .nemo file."""
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    if config is ENCODER_ALONE:
        with pytest.raises(CheckpointError, match=r"encoder alone; give the \.nemo file of nvidia/canary-1b-flash"):
            read_checkpoint(tmp_path)
    shutil.copy(NEMO, tmp_path / "one.nemo")
    lines: list[str] = []
    loaded = read_checkpoint(tmp_path, lines.append)
    assert same(loaded, read_checkpoint(NEMO)) and loaded.path == tmp_path / "one.nemo"
    (line,) = lines
    assert "using one.nemo" in line and "config.json" in line
    shutil.copy(NEMO, tmp_path / "two.nemo")
    with pytest.raises(CheckpointError, match=r"holds 2 \.nemo files \(one\.nemo, two\.nemo\); give one of them"):
        read_checkpoint(tmp_path)


def test_nemo_file_beside_model_ignored(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "hf_ctc", tmp_path / "hf")
    shutil.copy(NEMO, tmp_path / "hf" / "one.nemo")
    assert same(read_checkpoint(tmp_path / "hf"), read_checkpoint(MODELS / "hf_ctc"))
