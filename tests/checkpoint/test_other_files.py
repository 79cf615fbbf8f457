"""Files and folders that are no model are named as what they are, with the command that makes a model of them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import CheckpointError
from tests.checkpoint.test_checkpoint import packed
from tests.checkpoint.test_hostile_checkpoints import saved
from tests.conftest import MODELS
from tests.helpers import quick_yaml
from tests.helpers.archives import unpacked

NEMO = MODELS / "tdt_demo" / "model.nemo"
WEIGHTS = "model_weights.ckpt"
Packed = Callable[[Path], bytes]  # of an unpacked model


def zip_of(root: Path, *names: str, below: str = "") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.write(root / name, below + name)
    return file.getvalue()


def tar_of(root: Path, below: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(root, below)
    return file.getvalue()


def training_state(model: Path, **more: object) -> bytes:
    weights = torch.load(model / WEIGHTS, weights_only=True)
    return saved({"epoch": 1, "global_step": 2, "state_dict": weights, "optimizer_states": [{"step": 0.5}], **more})


def lightning(model: Path) -> bytes:
    config = quick_yaml.load((model / "model_config.yaml").read_text())
    return training_state(model, **{"pytorch-lightning_version": "2.4.0", "hyper_parameters": {"cfg": config}})


def content_of(model: Path) -> bytes:
    return (model / "model_config.yaml").read_bytes()


def nemo_of(_: Path) -> bytes:
    return NEMO.read_bytes()


def every_file(model: Path) -> list[str]:
    return sorted(path.name for path in model.iterdir())


ALONE, CTC = "the weights alone of a model", MODELS / "hf_ctc"
# The file's name, its content or first bytes, and a part of the message.
FILES: dict[str, tuple[str, Packed | bytes, str]] = {
    "bzip2": ("a.nemo", lambda m: bz2.compress(nemo_of(m)), "with bzip2: `bzip2 -dc a.nemo > a-unpacked.nemo`"),
    "bzip2 by name": ("a.nemo.bz2", bz2.compress(b""), "`bzip2 -dc a.nemo.bz2 > a.nemo`, then give a.nemo"),
    "xz": ("a b.nemo.xz", lzma.compress(b"a"), "xz: `xz -dc 'a b.nemo.xz' > 'a b.nemo'`, then give a b.nemo"),
    "zstd": ("a.nemo", b"\x28\xb5\x2f\xfd", "compressed with zstd: `zstd -dc a.nemo > a-unpacked.nemo`"),
    "lz4": ("a.nemo.lz4", b"\x04\x22\x4d\x18", "with lz4: `lz4 -dc a.nemo.lz4 > a.nemo`, then give a.nemo"),
    "gzip of no tar": ("a.ckpt.gz", lambda m: gzip.compress(lightning(m)), "`gzip -dc a.ckpt.gz > a.ckpt`, then give"),
    "7z": ("a.7z", b"7z\xbc\xaf\x27\x1c", "a 7z archive: `7z x a.7z -oa`, then give the model in a"),
    "RAR": ("a.rar", b"Rar!\x1a\7\1\0", "a RAR archive: `unrar x a.rar a/`"),
    "zip of a folder": (
        "a.nemo",
        lambda m: zip_of(m, *every_file(m), below="best/"),
        "a zip archive: `unzip a.nemo -d a`, then",
    ),
    "zip of an archive": (
        "a.zip",
        lambda m: zip_of(NEMO.parent, "model.nemo"),
        "`unzip a.zip -d a`, then give a/model.nemo",
    ),
    "zip of a checkpoint": ("a.zip", lambda m: zip_of(m, WEIGHTS), f"`unzip a.zip -d a`, then give a/{WEIGHTS}"),
    "zip of a Hugging Face folder": (
        *("a.zip", lambda m: zip_of(CTC, "config.json", "model.safetensors", below="ctc/")),
        "then give a/ctc",
    ),
    "zip of something": ("a.zip", lambda m: zip_of(CTC, "config.json"), "a zip archive that holds no model"),
    "half a zip": ("a.zip", lambda m: zip_of(NEMO.parent, "model.nemo")[:9000], "a damaged or partial zip file"),
    "tar of a folder": ("a.nemo", lambda m: tar_of(m, "best"), "`mkdir a && tar -xf a.nemo -C a`, then give a/best"),
    "tar of an archive": ("a.tar", lambda m: tar_of(NEMO, "b.nemo"), "tar -xf a.tar -C a`, then give a/b.nemo"),
    "tar.gz of a folder": (
        "a.tgz",
        lambda m: gzip.compress(tar_of(m, "best")),
        "tar -xf a.tgz -C a`, then give a/best",
    ),
    "tar of something": ("a.nemo", lambda m: tar_of(Path(__file__), "b.py"), "a.nemo: holds no model_config.yaml"),
    "weights": ("a.ckpt", lambda m: (m / WEIGHTS).read_bytes(), f"{ALONE}, without its config and tokenizer"),
    "safetensors": ("a.nemo", lambda m: (CTC / "model.safetensors").read_bytes(), ALONE),
    "weights of an old torch": ("a.pt", b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", ALONE),
    "TorchScript": (
        "a.pt",
        lambda m: torchscript(),
        "a TorchScript program, and fastscribe runs no code of a checkpoint",
    ),
    "GGUF": ("a.gguf", b"GGUF\3", "weights in GGUF, for llama.cpp"),
    "HDF5": ("a.h5", b"\x89HDF\r\n\x1a\n", "weights in HDF5"),
    "ONNX": ("encoder.onnx", b"\x08\x07\x12\x07pytorch", "an ONNX model"),
    "a page": ("a.nemo", b"<!doctype HTML><html>", "a web page, not the model: the download failed"),
    "a pointer": (
        *("a.nemo", lambda m: b"version https://git-lfs.github.com/spec/v1\noid 0\n"),
        "a Git LFS pointer, not the model: `git -C . lfs pull`",
    ),
    "its config": ("model_config.yaml", content_of, "a text file: give the model's .nemo file, or its folder"),
    "bytes": ("a.nemo", b"\1\2" * 600, "not a readable .nemo file"),
}


def torchscript() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("net/data.pkl", b"\x80\2}q\0.")
        archive.writestr("net/code/__torch__.py", "")
    return file.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("model"), NEMO)


def problem(path: Path | str) -> str:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    return str(error.value)


@pytest.mark.parametrize("kind", FILES)
def test_files_are_named(kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, pack, expected = FILES[kind]
    Path(name).write_bytes(pack + bytes(600) if isinstance(pack, bytes) else pack(model))
    assert expected in problem(name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("kind", ["weights", "safetensors"])
def test_weights_beside_their_config(kind: str, model: Path) -> None:
    path = {"weights": model / WEIGHTS, "safetensors": MODELS / "hf_ctc" / "model.safetensors"}[kind]
    assert problem(path).endswith(f"the weights alone of a model: give their folder, {path.parent}")


@pytest.mark.parametrize("pack", [lightning, training_state])
def test_the_cure_of_a_training_checkpoint(
    pack: Packed, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights in the archive that it was trained from are a model."""
    monkeypatch.chdir(tmp_path)
    Path("tdt.ckpt").write_bytes(pack(model))
    message = problem("tdt.ckpt")
    kind = "a Lightning checkpoint" if pack is lightning else "a checkpoint"
    assert f"{kind} of a training run, without the model's tokenizer" in message
    cure = re.search(r'`mkdir (.*) && tar -xf MODEL\.nemo -C \1 && python -c "(.*)"`, then give (.*)', message)
    assert cure is not None and cure[3] == "tdt"
    unpacked(tmp_path / cure[3], NEMO)
    (tmp_path / cure[3] / WEIGHTS).unlink()
    exec(cure[2])
    assert read_checkpoint(cure[3]).weights.keys() == read_checkpoint(NEMO).weights.keys()


def test_a_lightning_checkpoint_whose_files_are_where_nemo_trained_it(tmp_path: Path) -> None:
    cfg = {"target": "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel", "tokenizer": {"dir": "/tok"}}
    more = {"encoder": {"_target_": "nemo.collections.asr.modules.ConformerEncoder"}}
    torch.save(
        {"pytorch-lightning_version": "2", "hyper_parameters": cfg | more, "state_dict": {}}, tmp_path / "a.ckpt"
    )
    code = (
        "from nemo.collections.asr.models.rnnt_bpe_models import EncDecRNNTBPEModel as M; "
        f"M.load_from_checkpoint('{tmp_path}/a.ckpt', map_location='cpu').save_to('{tmp_path}/a.nemo')"
    )
    assert f'`python -c "{code}"`, where NeMo trained it, makes {tmp_path}/a.nemo of it' in problem(tmp_path / "a.ckpt")


def test_names_that_a_shell_would_change(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "$(id).ckpt"
    path.write_bytes(lightning(model))
    assert f"mkdir '{tmp_path}/$(id)'" in problem(path) and "python -c '" in problem(path)


@pytest.mark.parametrize(
    ("file", "given"),
    [
        ("checkpoints/best.nemo", "checkpoints/best.nemo"),
        ("snapshots/abc/model.safetensors", "snapshots/abc"),
        ("last.ckpt", "last.ckpt"),
        ("notes/config.json", None),
    ],
)
def test_a_folder_above_a_model(file: str, given: str | None, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}")
    (path.parent / "config.json").write_text(
        "{" if path.parent == tmp_path else "{}"
    ) if "safetensors" in file else None
    expected = f"; give {tmp_path}/{given}" if given else "or .nemo file"
    assert problem(tmp_path).endswith(expected)


# --- where a tokenizer's file is ------------------------------------------------------------------------------------

TOKENIZER = "585d36f1577c4c5dbeddd4e0aed50861_tokenizer.model"


def with_path(folder: Path, path: str) -> Path:
    config = quick_yaml.load((folder / "model_config.yaml").read_text())
    config["tokenizer"] |= {"model_path": path, "dir": "/home/train/exp", "vocab_path": "/home/train/exp/vocab.txt"}
    (folder / "model_config.yaml").write_text(quick_yaml.dump(config))
    return folder


@pytest.mark.parametrize(
    ("path", "member", "mode"),
    [
        *((f"/home/train/exp/tok/{TOKENIZER}", TOKENIZER, mode) for mode in ("w:", "w:gz", "a folder")),
        (f"nemo:/home/train/exp/tok/{TOKENIZER}", TOKENIZER, "w:"),
        ("/home/train/exp/tok/tokenizer.model", TOKENIZER, "w:gz"),
        ("../tok/tokenizer.model", TOKENIZER, "a folder"),
        (f"C:\\train\\tok\\{TOKENIZER}", TOKENIZER, "w:"),
        (f"/home/train/{'0' * 32}_tokenizer.model", TOKENIZER, "w:gz"),
        *((f"/home/train/{TOKENIZER}", "tokenizer.model", mode) for mode in ("w:", "w:gz", "a folder")),
        *(("/home/train/tok/tokenizer.model", "tok/tokenizer.model", mode) for mode in ("w:", "w:gz", "a folder")),
    ],
)
def test_a_tokenizer_s_path_on_another_machine(path: str, member: str, mode: str, model: Path, tmp_path: Path) -> None:
    folder = with_path(shutil.copytree(model, tmp_path / "m"), path)
    (folder / member).parent.mkdir(exist_ok=True)
    (folder / TOKENIZER).rename(folder / member)
    found = read_checkpoint(folder if mode == "a folder" else packed(folder, folder.with_suffix(".nemo"), mode))
    assert found.tokenizer.pieces == read_checkpoint(NEMO).tokenizer.pieces


def test_tokenizers_of_languages_on_another_machine(tmp_path: Path) -> None:
    """The longest end of a path counts. If several files may be meant, none is taken."""
    source = MODELS / "published" / "stt_multilingual_fastconformer_hybrid_large_pc" / "model.nemo"
    folder = unpacked(tmp_path / "m", source)
    config = quick_yaml.load((folder / "model_config.yaml").read_text())
    for name, section in config["tokenizer"]["langs"].items():
        (folder / name).mkdir()
        (folder / section["model_path"].removeprefix("nemo:")).rename(folder / name / "tokenizer.model")
        section["model_path"] = f"/home/train/{name}/tokenizer.model"
    (folder / "model_config.yaml").write_text(quick_yaml.dump(config, sort_keys=False))
    expected = read_checkpoint(source).tokenizer.pieces
    for path in (folder, packed(folder, folder.with_suffix(".nemo"))):
        assert read_checkpoint(path).tokenizer.pieces == expected
    first, second, *_ = config["tokenizer"]["langs"]
    for number, name in enumerate((first, second)):
        (folder / name / "tokenizer.model").rename(folder / f"{number:032x}_tokenizer.model")
    message = problem(packed(folder, folder.with_suffix(".nemo")))
    assert f"holds no /home/train/{first}/tokenizer.model, which a model_path names" in message
    assert "one may be meant: unpack it, write nemo:FILE there in the config, and give the folder" in message


def test_no_tokenizer_at_all(model: Path, tmp_path: Path) -> None:
    folder = with_path(shutil.copytree(model, tmp_path / "m"), "/home/train/bpe.model")
    assert f"holds no /home/train/bpe.model, which a model_path names; of {TOKENIZER}, one may" in problem(folder)
    (folder / TOKENIZER).unlink()
    assert problem(folder).endswith("holds no /home/train/bpe.model, which a model_path names")
