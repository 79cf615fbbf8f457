"""Malicious models. `fastscribe inspect --check` refuses each within seconds and 2 GB, with exit code 2 and one line on stderr,
and runs and writes nothing. Unusual but valid models still load.
"""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import json
import operator
import os
import pickle
import shutil
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fastscribe.checkpoint import lazy_weights, native_writer, nemo, tar
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.checkpoint.weights import load_safetensors, load_torch
from fastscribe.errors import CheckpointError
from tests.checkpoint.test_checkpoint import packed, with_yaml
from tests.conftest import AUDIO, MODELS, checkpoint
from tests.helpers import quick_yaml
from tests.helpers.archives import members, unpacked
from tests.helpers.processes import fastscribe
from tests.helpers.warm_process import Limits

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures itself as Linux does")
NEMO = MODELS / "hybrid" / "model.nemo"
TORCH_ZIP = "model_weights.ckpt"
YAML = "model_config.yaml"
Make = Callable[[Path], Path]  # in an empty folder -> the model
Inspect = Callable[[Path | str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def inspect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspect]:
    """Run `fastscribe inspect --check` with limits on memory, time and writing."""
    scratch = tmp_path_factory.mktemp("scratch")
    environment = os.environ | {"TMPDIR": str(scratch), "HOME": str(scratch)}
    limits = Limits(growth_bytes=2 << 30, file_bytes=0, seconds=10)
    yield lambda path: fastscribe("inspect", path, "--check", env=environment, limits=limits)
    assert list(scratch.rglob("*")) == []


def refusal(inspect: Inspect, make: Make, folder: Path) -> str:
    """Return its one line on stderr, without the folder's name, and check that the folder is unchanged."""
    path = make(folder)
    before = listing(folder)
    result = inspect(path)
    assert (result.returncode, result.stdout) == (2, ""), result
    assert listing(folder) == before
    message = result.stderr
    assert message.count("\n") == 1 and message.endswith("\n") and len(message) < 2500, message[:3000]
    assert message.startswith("fastscribe: ") and "Traceback" not in message and message.strip().isprintable()
    return message.replace(str(folder), "")


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*"))


def cases(table: Mapping[str, tuple[Callable, str]]):
    return pytest.mark.parametrize(("make", "message"), list(table.values()), ids=list(table))


def test_valid_model(inspect: Inspect) -> None:
    """Precondition of the other tests."""
    result = inspect(NEMO)
    assert (result.returncode, result.stderr) == (0, "") and "parameters" in result.stdout


# Weights: pickles in a zip


class Runs:
    """Its pickle calls the given function."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def with_weights(content: Callable[[Path], bytes]) -> Make:
    """Make a .nemo archive with these weights. The callable gets the path of a file that must not be created."""

    def make(folder: Path) -> Path:
        inside = unpacked(folder / "inside")
        (inside / TORCH_ZIP).write_bytes(content(folder / "ran"))
        return packed(inside, folder / "model.nemo")

    return make


def saved(state: object, **options) -> bytes:
    file = io.BytesIO()
    torch.save(state, file, **options)
    return file.getvalue()


@cache
def sound_state() -> dict[str, torch.Tensor]:
    return dict(torch.load(io.BytesIO(members(NEMO)[TORCH_ZIP]), weights_only=True))


def touch(marker: Path) -> Runs:
    return Runs(os.system, f"touch {marker}")


def rezipped(change: Callable[[str, bytes], bytes | None], **options) -> bytes:
    """Make valid weights with some zip members changed or removed."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(sound_state()))) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target.getvalue()


def with_pickle(content: bytes) -> bytes:
    return rezipped(lambda name, old: content if name.endswith("/data.pkl") else old)


def torchscript(marker: Path) -> bytes:
    members = {"m/data.pkl": pickle.dumps(touch(marker), 2), "m/constants.pkl": b"\x80\x02).", "m/version": b"3\n"}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


def directory_elsewhere(other: bytes) -> bytes:
    """A zip with two directories: one at the recorded offset, one before the end record."""
    return saved({"a": torch.zeros(1)}) + other


def doubled_members() -> bytes:
    target = io.BytesIO(saved(sound_state()))
    with zipfile.ZipFile(target, "a") as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        archive.writestr(name.upper().replace("DATA.PKL", "data.PKL"), b"\x80\x02}.")
    return target.getvalue()


def overlapping_members() -> bytes:
    """Many members with the same bytes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(1 << 20))
        first = archive.infolist()[1]
        for number in range(1, 200):
            member = zipfile.ZipInfo(f"archive/data/{number}")
            for field in ("header_offset", "CRC", "file_size", "compress_size", "external_attr", "create_version"):
                setattr(member, field, getattr(first, field))
            archive.filelist.append(member)
            archive.NameToInfo[member.filename] = member
    return target.getvalue()


def aliased() -> bytes:
    """Weights that share their bytes: 40 GB of layers in a file of 33 MB."""
    storage = torch.zeros(1 << 24, dtype=torch.bfloat16)
    return saved({f"encoder.layers.{i}.weight": storage.view(4096, 4096) for i in range(1200)})


def changed(**changes: object) -> bytes:
    return saved(sound_state() | changes)


def holding(value: float, dtype: torch.dtype = torch.float32) -> bytes:
    state = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in sound_state().items()}
    state["joint.enc.bias"] = state["joint.enc.bias"].clone()
    state["joint.enc.bias"][3] = value
    return saved(state)


WEIGHTS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "os.system": (lambda ran: saved(touch(ran)), "more than plain tensors"),
    "protocol 4": (lambda ran: saved(touch(ran), pickle_protocol=4), "refused"),
    "TorchScript": (torchscript, "more than plain tensors"),
    "a byte array of 1 TB": (lambda ran: saved({"a": Runs(bytearray, 1 << 40)}), "bytearray"),
    "sparse": (lambda ran: saved({"a": torch.eye(3).to_sparse()}), "more than plain tensors"),
    "a memo of 4 billion": (lambda ran: with_pickle(b"\x80\x02}r\xff\xff\xff\xff."), "weights"),
    "a string of 4 GB": (lambda ran: with_pickle(b"\x80\x02X\xff\xff\xff\xff."), "weights"),
    "nested 1,000,000 deep": (lambda ran: with_pickle(b"\x80\x02" + b"(" * 10**6 + b"."), "weights"),
    "a key nested 3,000,000 deep": (
        lambda ran: with_pickle(b"\x80\x02})" + b"\x85" * 3 * 10**6 + b"Ns."),
        "key is no text",
    ),
    "a key of 2**60 tuples": (
        lambda ran: with_pickle(b"\x80\x02})" + b"q\x01h\x01\x86" * 60 + b"Ns."),
        "key is no text",
    ),
    "keys at once": (lambda ran: with_pickle(b"\x80\x02}()" + b"\x85" * 3 * 10**6 + b"Nu."), "key is no text"),
    "an OrderedDict's key nested deep": (
        lambda ran: with_pickle(b"\x80\x02ccollections\nOrderedDict\n)R)" + b"\x85" * 3 * 10**6 + b"Ns."),
        "key is no text",
    ),
    "a tensor nested deep": (
        lambda ran: with_pickle(b"\x80\x02}X\1\0\0\0a)" + b"\x85" * 3 * 10**6 + b"s."),
        "flat dictionary",
    ),
    "dictionaries nested deep": (
        lambda ran: with_pickle(b"\x80\x02" + b"}X\1\0\0\0a" * 450_000 + b"N" + b"s" * 450_000 + b"."),
        "flat dictionary",
    ),
    "a pickle of 5 MB": (lambda ran: with_pickle(b"\x80\x02" + b"N0" * 2_500_000 + b"."), "absurd size"),
    "no pickle": (lambda ran: rezipped(lambda name, old: None if "pkl" in name else old), "list of tensors"),
    "no tensors": (lambda ran: rezipped(lambda name, old: None if "/data/" in name else old), "weights"),
    "short tensors": (lambda ran: rezipped(lambda name, old: old[:8] if "/data/" in name else old), "refused|damaged"),
    "packed": (lambda ran: rezipped(lambda name, old: old, compression=zipfile.ZIP_DEFLATED), "unpack to"),
    "overlapping members": (lambda ran: overlapping_members(), "unpack to"),
    "two directories": (lambda ran: directory_elsewhere(saved(sound_state())), "not where it says"),
    "doubled members": (lambda ran: doubled_members(), "same name|zip file"),
    "a comment": (lambda ran: saved(sound_state())[:-2] + b"\x03\x00abc", "not the zip file"),
    "aliases": (lambda ran: aliased(), "claims more than it holds"),
    "stride 0": (lambda ran: changed(a=torch.zeros(1).expand(1 << 40)), "a claims more than it holds"),
    "a million dimensions": (
        lambda ran: changed(a=torch.zeros(1).reshape([1] * 200_000)),
        "a tensor of more than 8 dimensions",
    ),
    "20,001 tensors": (lambda ran: saved(dict.fromkeys(map(str, range(20_001)), torch.ones(1))), "20001 tensors"),
    "names of odd characters": (lambda ran: changed(**{"\x1b[2J\x07\n\u202e": torch.ones(1)}), "unexpected"),
    "a name of a megabyte": (lambda ran: changed(**{"n" * 10**6: torch.ones(1)}), "unexpected: nnn"),
    "whole numbers": (
        lambda ran: changed(**{"joint.enc.bias": torch.zeros(64, dtype=torch.int8)}),
        "GLOBAL torch CharStorage",
    ),
    "long numbers": (
        lambda ran: changed(**{"joint.enc.bias": torch.zeros(64, dtype=torch.int64)}),
        "joint.enc.bias is of torch.int64",
    ),
    "infinity in fp16": (lambda ran: holding(float("-inf"), torch.float16), "joint.enc.bias holds NaN"),
    "empty": (lambda ran: b"", "not the zip file"),
    "100 bytes": (lambda ran: b"PK\5\6" * 25, "not the zip file|damaged"),
}


@cases(WEIGHTS)
def test_weights(inspect: Inspect, tmp_path: Path, make: Callable[[Path], bytes], message: str) -> None:
    assert matches(message, refusal(inspect, with_weights(make), tmp_path))
    assert not (tmp_path / "ran").exists()


def matches(expected: str, message: str) -> bool:
    assert any(part in message for part in expected.split("|")), message
    return True


# The archive: tar and gzip


def tar_of(*members: tuple[dict, bytes], ending: bytes | None = None, format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Write a tar of the given headers, each followed by its bytes."""
    blocks = []
    for fields, content in members:
        header = tarfile.TarInfo(fields.get("name", YAML))
        header.size = len(content)
        for name, value in fields.items():
            setattr(header, name, value)
        blocks.append(header.tobuf(format))
        blocks.append(content + bytes(-len(content) % 512))
    return b"".join(blocks) + (bytes(1024) if ending is None else ending)


def pax(**records: str) -> tuple[dict, bytes]:
    content = b""
    for key, value in records.items():
        rest = f" {key.replace('__', '.')}={value}\n".encode()
        length = next(n for n in itertools.count(len(rest)) if len(str(n)) + len(rest) == n)
        content += str(length).encode() + rest
    return {"type": tarfile.XHDTYPE, "name": "PaxHeader"}, content


def pax_global(**records: str) -> tuple[dict, bytes]:
    fields, content = pax(**records)
    return fields | {"type": tarfile.XGLTYPE}, content


def written(folder: Path, content: bytes) -> Path:
    (folder / "model.nemo").write_bytes(content)
    return folder / "model.nemo"


def negative_size() -> bytes:
    """-512 in base-256 notation: a naive reader seeks back to the same header forever."""
    header = bytearray(tar_of(({"type": tarfile.XHDTYPE}, b""))[:512])
    header[124:136] = (-512 & (1 << 96) - 1).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def sparse_file(folder: Path) -> Path:
    """1 TB of zeros that take no room."""
    with (folder / "model.nemo").open("wb") as file:
        file.truncate(1 << 40)
    return folder / "model.nemo"


MARK = b"x" * 100
ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "up from below": (lambda: tar_of(({"name": "a/../../evil"}, MARK)), "leaves the folder"),
    "up in a long name": (lambda: tar_of(pax(path="../" * 20 + "evil"), ({}, MARK)), "leaves the folder"),
    "up in GNU's long name": (
        lambda: tar_of(({"type": b"L", "name": "././@LongLink"}, b"../evil\0"), ({}, MARK)),
        "leaves the folder",
    ),
    "absolute": (lambda: tar_of(({"name": "/etc/evil"}, MARK)), "leaves the folder"),
    "a drive": (lambda: tar_of(({"name": "C:evil"}, MARK)), "leaves the folder"),
    "backslashes": (lambda: tar_of(({"name": "..\\..\\evil"}, MARK)), "leaves the folder"),
    "a link": (lambda: tar_of(({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, b"")), "is a link"),
    "sparse": (lambda: tar_of(({"type": tarfile.GNUTYPE_SPARSE}, b"")), "a sparse file"),
    "sparse by pax": (
        lambda: tar_of(pax(GNU__sparse__major="1", GNU__sparse__minor="0"), ({}, b"9999999\n")),
        "a sparse file",
    ),
    "all in one place": (lambda: tar_of(pax_global(path=YAML), ({}, MARK)), "sets path for all members"),
    "all links": (lambda: tar_of(pax_global(linkpath="/etc"), ({}, MARK)), "sets linkpath for all members"),
    "all sparse": (lambda: tar_of(pax_global(GNU__sparse__major="1")), "sets sparse for all members"),
    "doubled by another name": (lambda: tar_of(({}, MARK), ({"name": f"./{YAML}"}, MARK)), "two members are called"),
    "4,000 members": (lambda: tar_of(*(({"name": str(i)}, b"") for i in range(4_000))), "more than 2000 members"),
    "4,000 pax headers": (lambda: tar_of(*[pax(mtime="1")] * 4_000), "more than 2000 members"),
    "a size of 1 TB by pax": (lambda: tar_of(pax(size=str(1 << 40)), ({}, MARK)), "claims 1099511627776 bytes"),
    "a negative size": (lambda: negative_size(), "claims -512 bytes"),
    "a size that is no number": (lambda: tar_of(pax(size="much"), ({}, MARK)), "not a readable .nemo"),
    "a pax header of 1 MB": (lambda: tar_of(({"type": b"x"}, bytes(1 << 20))), "a header of 1048576 bytes"),
    "a pax record that goes nowhere": (lambda: tar_of(({"type": b"x"}, b"0 path=x\n"), ({}, MARK)), "not a readable"),
    "a name of odd characters": (lambda: tar_of(pax(path="/\x1b[2J\n\u202e"), ({}, MARK)), "leaves the folder"),
    "a recording": (lambda: next(AUDIO.glob("*.flac")).read_bytes(), "a recording, not a model"),
    "no header": (lambda: b"\1" * 4096, "not a readable .nemo"),
    "half": (lambda: NEMO.read_bytes()[:1_000_000], "cut short"),
    "half a header": (lambda: NEMO.read_bytes()[:300], "not a readable .nemo"),
    "empty": (lambda: b"", "is empty"),
    "a gzip bomb": (lambda: gzip.compress(tar_of(({"name": TORCH_ZIP}, bytes(96 << 20))), 1), "claims 100663296 bytes"),
    "gzip of gzip": (lambda: gzip.compress(gzip.compress(NEMO.read_bytes(), 1), 1), "compressed with gzip"),
    "half a gzip": (lambda: gzip.compress(NEMO.read_bytes(), 1)[:400_000], "not a readable .nemo"),
    "a config of 9 MB": (lambda: tar_of(({}, b"#" * (9 << 20))), "claims 9437184 bytes"),
}


@cases(ARCHIVES)
def test_archives(inspect: Inspect, tmp_path: Path, make: Callable[[], bytes], message: str) -> None:
    assert matches(message, refusal(inspect, lambda folder: written(folder, make()), tmp_path))


def test_an_archive_of_a_tb_of_zeros(inspect: Inspect, tmp_path: Path) -> None:
    assert f"holds no {YAML}" in refusal(inspect, sparse_file, tmp_path)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(
        st.text(st.characters(exclude_characters="\0/\\:\n", exclude_categories=["Cs"]), min_size=1, max_size=180),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 2000]), min_size=5, max_size=5),
)
def test_valid_tars_equal_tarfile(names: list[str], format: int, sizes: list[int]) -> None:
    most = 98 if format == tarfile.USTAR_FORMAT else 1000
    names = [name for name in names if name not in (".", "..") and len(name.encode()) <= most]
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:", format=format) as archive:
        folder = tarfile.TarInfo("./folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, size in zip(names, sizes, strict=False):
            member = tarfile.TarInfo(f"folder/{name}")
            member.size, member.mtime = size, 1234567890.25
            archive.addfile(member, io.BytesIO(os.urandom(size)))
    whole = target.getvalue()
    found = list(tar.members(io.BytesIO(whole), len(whole), Path("x")))
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        expected = [(member.name, member.offset_data, member.size) for member in archive if member.isfile()]
    assert found == expected


# The configuration


def convolutional(*blocks: dict) -> Make:
    """A small QuartzNet with changed block settings."""
    ones = {key: [1] for key in ("kernel", "stride", "dilation")}
    plain = {"filters": 64, "repeat": 1, **ones, "dropout": 0.0, "residual": False}
    changed = [plain | block for block in blocks]
    return lambda folder: with_yaml(folder, MODELS / "quartznet" / "model.nemo", encoder__jasper=changed)


def edited(change: Callable[[bytes], bytes | str], name: str = YAML) -> Make:
    """Unpack a model, and change one of its files, which a pattern names."""

    def make(folder: Path) -> Path:
        [path] = unpacked(folder).glob(name)
        content = change(path.read_bytes())
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return make


def yaml_text(text: str | bytes) -> Make:
    return edited(lambda _: text)


def yaml_with(**changes: object) -> Make:
    return lambda folder: with_yaml(folder, **changes)


def appended(text: str) -> Make:
    return edited(lambda config: config + text.encode())


def tokenizer_of(content: bytes) -> Make:
    return edited(lambda _: content, "*tokenizer.model")


def characters(labels: list[str]) -> Make:
    def change(text: bytes) -> str:
        config = quick_yaml.load(text.decode()) | {"labels": labels}
        del config["tokenizer"]
        return quick_yaml.dump(config)

    return edited(change)


def laughs(before: str, after: str) -> str:
    """9**39 values, or keys."""
    lines = (f"a{i}: &a{i} {before}{', '.join([f'*a{i - 1}'] * 9)}{after}" for i in range(1, 40))
    return "\n".join(["a0: &a0 {x: 1}", *lines])


HUGE = (10**9, 10**12, 2**40, 2**63, 10**30, 10**400, -1, 0, 2.5, "12", True, None, float("inf"), float("nan"), [], {})
SIZES = (
    "encoder__d_model", "encoder__n_layers", "encoder__n_heads", "encoder__conv_kernel_size", "encoder__feat_in",
    "encoder__ff_expansion_factor", "preprocessor__sample_rate", "preprocessor__n_fft", "preprocessor__features",
    "decoder__prednet__pred_hidden", "decoder__prednet__pred_rnn_layers", "joint__jointnet__joint_hidden",
)  # fmt: skip

CONFIGS: dict[str, tuple[Make, str]] = {
    "python object": (yaml_text("a: !!python/object/apply:os.system ['touch ran']"), "not safe YAML"),
    "laughs": (yaml_text(laughs("[", "]")), "labels"),
    "laughs in the encoder": (yaml_text(laughs("[", "]") + "\nlabels: [a]\npreprocessor: *a39"), "no section"),
    "laughs by merging": (yaml_text(laughs("{<<: [", "]}")), "not safe YAML"),
    "in itself, the encoder": (appended("\nloss: &a\n  tdt_kwargs: *a\n"), "comes twice|unsupported"),
    "nested in [": (yaml_text("a: " + "[" * 100_000), "nested deeper|maximum nesting depth"),
    "nested in {": (yaml_text("{a: " * 100_000), "nested deeper|maximum nesting depth"),
    "a long value": (yaml_text("a: " + "x" * 70_000), "too long"),
    "a number of 60,000 digits": (yaml_text("a: " + "9" * 60_000), "not safe YAML|no section"),
    "a key of 60,000 hexadecimal digits": (appended("\n? 0x" + "f" * 60_000 + "\n: 1\n"), "a number of 60,002 digits"),
    "2**20 labels a frame": (yaml_with(decoding__greedy={"max_symbols": 1 << 20}),
        "max_symbols: 1048576 (supported: 1 to 1000"),
    "a hop of one sample": (yaml_with(preprocessor__window_stride=1 / 16_000), "hop_length: 1 (supported: from 32 samples"),
    "a window of 16,384 samples": (yaml_with(preprocessor__n_fft=1 << 14), "n_fft: 16384 (supported: up to 64 hops"),
    "101 durations": (yaml_with(joint__num_extra_outputs=101, decoding__durations=[*range(101)]), "number of durations: 101"),
    "8,000,000 pieces": (tokenizer_of(b"\x0a\x00" * 8_000_000), "more than 65,536 pieces"),
    "8,000,000 parts beside the pieces": (tokenizer_of(b"\x12\x00" * 8_000_000), "more than 65,536 pieces"),
    "70,000 characters": (characters(["a"] * 70_000), "more than 65,536 pieces"),
    "a key twice": (appended("\nencoder:\n  d_model: 64\n"), "comes twice"),
    "a lone surrogate": (yaml_text('labels: ["\\uD800", b]'), "YAML|text|character"),
    "not UTF-8": (yaml_text(b"a: \xff\xfe\xfd"), "not safe YAML"),
    "a list": (yaml_text("- a"), "no sections"),
    "a tokenizer outside": (yaml_with(tokenizer__model_path="nemo:../../../etc/passwd"), "holds no "),
    "a tokenizer that is a folder": (yaml_with(tokenizer__model_path="nemo:."), "holds no ."),
    "hop 0": (yaml_with(preprocessor__window_stride=0), "window_stride"),
    "hop of hours": (yaml_with(preprocessor__window_stride=1e6), "hop_length"),
    "window of hours": (yaml_with(preprocessor__window_size=1e6), "preprocessor.n_fft|features."),
    "heads that do not divide": (yaml_with(encoder__n_heads=7), "multiples of 7 heads"),
    "durations that stand still": (yaml_with(joint__num_extra_outputs=1, decoding__durations=[0]), "durations"),
    "durations back": (yaml_with(joint__num_extra_outputs=2, decoding__durations=[0, -1]), "durations"),
    "a billion labels": (yaml_with(decoder__vocab_size=10**9), "decoder.vocab_size"),
    "a kernel of 10**9": (convolutional({"kernel": [10**9]}), "blocks.kernel"),
    "a kernel beyond numbers": (convolutional({"kernel_size_factor": 1e308, "kernel": 10**9}), "blocks.kernel|config cannot"),
    "10**9 convolutions": (convolutional({"repeat": 10**9}), "blocks.repeat"),
    "10**9 filters": (convolutional({"filters": 10**9}), "blocks.filters"),
    "256 x 64 convolutions": (convolutional(*[{"repeat": 64}] * 256), "4000 convolutions"),
    "250 dense blocks": (convolutional(*[{"residual": True, "residual_dense": True}] * 250), "4000 convolutions"),
    "strides of 8**64": (convolutional({"stride": [8], "repeat": 64}), "encoder stride"),
    "2,000 blocks": (convolutional(*[{}] * 2_000), "encoder.jasper|too many values"),
    "filters shared by no number": (convolutional({"separable": True, "heads": 10**9}), "blocks.heads"),
    "the widest convolutions": (
        convolutional(*[{"filters": 1 << 14, "repeat": 15, "kernel": [1023]}] * 256), "weights do not match"
    ),
    "the largest of all": (
        yaml_with(encoder__d_model=1 << 14, encoder__n_layers=256, encoder__ff_expansion_factor=8), "weights do not match"
    ),
}  # fmt: skip


@cases(CONFIGS)
def test_configs(inspect: Inspect, tmp_path: Path, make: Make, message: str) -> None:
    assert matches(message, refusal(inspect, make, tmp_path))
    assert not Path("ran").exists()


def test_yaml_of_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemo, "_MAX_EVENTS", 1000)
    with pytest.raises(CheckpointError, match="too many values"):
        nemo.parse_yaml(b"a: [" + b"1," * 1000 + b"]", "here")


@pytest.mark.parametrize("key", SIZES)
def test_absurd_sizes(tmp_path: Path, key: str) -> None:
    """Each is refused by name before weights are read, so there are none here."""
    (unpacked(tmp_path) / TORCH_ZIP).unlink()
    config = quick_yaml.load((tmp_path / YAML).read_text())
    *sections, last = key.split("__")
    place = functools.reduce(operator.getitem, sections, config)
    for value in HUGE:
        place[last] = value
        (tmp_path / YAML).write_text(quick_yaml.dump(config))
        with pytest.raises(CheckpointError) as error:
            read_checkpoint(tmp_path)
        message = str(error.value)
        takes_default = value is None
        assert takes_default or "unsupported" in message or "config cannot be read" in message, (value, message)
        assert "\n" not in message and len(message) < 1000


# Folders: JSON, safetensors, tokenizers


def huggingface(change: Callable[[Path], object]) -> Make:
    def make(folder: Path) -> Path:
        shutil.copytree(MODELS / "hf_ctc", folder / "hf")
        change(folder / "hf")
        return folder / "hf"

    return make


def own(change: Callable[[Path], object]) -> Make:
    def make(folder: Path) -> Path:
        native_writer.write(checkpoint(MODELS / "hybrid"), folder / "own", torch.float32)
        change(folder / "own")
        return folder / "own"

    return make


def header(entries: dict | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(entries) if isinstance(entries, dict) else entries
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list, start: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def weights_with(**changes: torch.Tensor) -> Callable[[Path], object]:
    return lambda folder: save_file(load_file(folder / "model.safetensors") | changes, folder / "model.safetensors")


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in a file's place."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def writing(name: str, content: bytes | str) -> Callable[[Path], object]:
    return replaced(name, lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content))


def as_fifo(name: str) -> Callable[[Path], object]:
    return replaced(name, os.mkfifo)


def as_link(name: str, target: str) -> Callable[[Path], object]:
    return replaced(name, lambda path: path.symlink_to(target))


def sharded(shard: object) -> Callable[[Path], object]:
    return writing("model.safetensors.index.json", json.dumps({"weight_map": {"a": shard}}))


def setting(*path: str, value: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        functools.reduce(operator.getitem, path[:-1], config)[path[-1]] = value
        (folder / "config.json").write_text(json.dumps(config))

    return change


def tensors_in(content: bytes) -> Make:
    return huggingface(writing(SAFETENSORS, content))


def config_in(content: bytes | str) -> Make:
    return huggingface(writing("config.json", content))


def json_pieces_in(content: bytes | str) -> Make:
    return huggingface(writing("tokenizer.json", content))


OWN_PIECES = checkpoint(MODELS / "hybrid").tokenizer.files["tokenizer.model"]


def pieces_in(content: bytes) -> Make:
    return own(writing("tokenizer.model", content))


def with_normaliser(trie: bytes) -> bytes:
    """Append a table of normalisation rules to a SentencePiece model."""
    table = struct.pack("<I", 1024) + trie
    content = b"\x12" + bytes([len(table) & 0x7F | 0x80, len(table) >> 7]) + table
    return OWN_PIECES + b"\x1a" + bytes([len(content) & 0x7F | 0x80, len(content) >> 7]) + content


SAFETENSORS = "model.safetensors"
BIAS = "ctc_head.bias"
TWICE = "{" + ", ".join([f'"a": {json.dumps(tensor([1], 0, 4))}'] * 2) + "}"
FOLDERS: dict[str, tuple[Make, str]] = {
    "safetensors, a header of 9 MB": (tensors_in(header(b" " * 9_000_000)), "header claims"),
    "safetensors, a header beyond the end": (tensors_in(header("{}", length=1000)), SAFETENSORS),
    "safetensors, a nested header": (tensors_in(header('{"a":' + "[" * 10**6)), SAFETENSORS),
    "safetensors, not UTF-8": (tensors_in(header(b'{"\xff\xfe": 1}')), SAFETENSORS),
    "safetensors, overlapping": (
        tensors_in(header({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12))), SAFETENSORS
    ),
    "safetensors, beyond the end": (tensors_in(header({"a": tensor([9], 0, 36)}, b"x")), SAFETENSORS),
    "safetensors, an absurd shape": (
        tensors_in(header({"a": tensor([2**40, 2**40], 0, 4)}, bytes(4))), SAFETENSORS
    ),
    "safetensors, an absurd shape of nothing": (
        tensors_in(header({"a": tensor([0, 2**62, 2**62], 0, 0)})), "hf: "
    ),
    "safetensors, a million dimensions": (
        tensors_in(header({"a": tensor([1] * 10**6, 0, 4)}, bytes(4))), "8 dimensions"
    ),
    "safetensors, negative": (tensors_in(header({"a": tensor([-1], 0, 4)}, bytes(4))), SAFETENSORS),
    "safetensors, an unknown type": (tensors_in(header({"a": tensor([1], 0, 4, "X9")}, bytes(4))), SAFETENSORS),
    "safetensors, a name twice": (tensors_in(header(TWICE, bytes(4))), "comes twice"),
    "safetensors, many empty tensors": (
        tensors_in(header({str(i): tensor([0], 0, 0) for i in range(20_001)})), "20001 tensors"
    ),
    "safetensors, whole numbers": (
        huggingface(weights_with(**{BIAS: torch.zeros(129, dtype=torch.int32)})), f"{BIAS} is of torch.int32"
    ),
    "safetensors, NaN in our own": (
        own(weights_with(**{"ctc.output.bias": torch.full((129,), torch.inf)})), "ctc.output.bias holds NaN or infinity"
    ),
    "safetensors, a FIFO": (huggingface(as_fifo(SAFETENSORS)), "not a regular file"),
    "safetensors, a folder": (huggingface(replaced(SAFETENSORS, Path.mkdir)), "irectory"),
    "safetensors, /dev/zero": (huggingface(as_link(SAFETENSORS, "/dev/zero")), "not a regular file"),
    "safetensors, a link to itself": (huggingface(as_link(SAFETENSORS, SAFETENSORS)), "symbolic links"),
    "safetensors, a link to nowhere": (huggingface(as_link(SAFETENSORS, "nowhere")), "no such file"),
    "shards above": (huggingface(sharded("../evil.safetensors")), "leaves the folder"),
    "shards that are folders": (huggingface(sharded("..")), "leaves the folder|irectory"),
    "shards in no map": (huggingface(writing("model.safetensors.index.json", "[]")), "its weight_map does not name"),
    "shards of numbers": (
        huggingface(writing("model.safetensors.index.json", '{"weight_map": {"a": 5, "b": "c"}}')),
        "its weight_map does not name",
    ),
    "shards, nested": (huggingface(writing("model.safetensors.index.json", "[" * 10**6)), "cannot be read"),
    "shards, a FIFO": (huggingface(as_fifo("model.safetensors.index.json")), "not a regular file"),
    "config, a FIFO": (huggingface(as_fifo("config.json")), "not a regular file"),
    "config, nested": (config_in("[" * 10**6), "cannot be read"),
    "config, 9 MB": (config_in(" " * (9 << 20)), "9437184 bytes"),
    "config, a key twice": (config_in('{"a": 1, "a": 2}'), "comes twice"),
    "config, not UTF-8": (config_in(b"\xff\xfe\xfd"), "cannot be read"),
    "config, absurd width": (huggingface(setting("encoder_config", "hidden_size", value=10**12)), "encoder.d_model"),
    "config, absurd vocabulary": (huggingface(setting("vocab_size", value=10**9)), "pad_token_id"),
    "config, infinite": (huggingface(setting("vocab_size", value=float("inf"))), "vocab_size"),
    "config, of our own": (own(setting("model", "encoder", "num_layers", value=10**9)), "encoder.num_layers"),
    "config, a format of our own": (own(setting("format_version", value=[[]])), "format_version"),
    "yaml, a FIFO": (lambda folder: (os.mkfifo(folder / YAML), folder)[1], "not a model folder"),
    "yaml, weights a FIFO": (lambda folder: (as_fifo(TORCH_ZIP)(unpacked(folder)), folder)[1], "not a regular file"),
    "tokenizer, garbage": (pieces_in(b"\x93garbage" * 99), "tokenizer cannot be read"),
    "tokenizer, 17 MB": (pieces_in(bytes(17 << 20)), "17825792 bytes"),
    "tokenizer, a FIFO": (own(as_fifo("tokenizer.model")), "tokenizer"),
    "tokenizer, a length of 2**70": (pieces_in(b"\x0a" + b"\xff" * 9 + b"\x7f"), "tokenizer cannot be read"),
    "tokenizer, numbers without end": (pieces_in(b"\x0a" + b"\xff" * 999), "tokenizer cannot be read"),
    "tokenizer, a normaliser without end": (pieces_in(with_normaliser(b"\xff" * 1024 + b"x\0")), "tokenizer cannot be read"),
    "tokenizer, pieces that are no text": (pieces_in(b"\x0a\x04\x0a\x02\xff\xfe"), "tokenizer cannot be read"),
    "tokenizer.json, a list": (json_pieces_in("[]"), "tokenizer cannot be read"),
    "tokenizer.json, nested": (json_pieces_in("[" * 10**6), "tokenizer cannot be read"),
    "tokenizer.json, 17 MB": (json_pieces_in(bytes(17 << 20)), "17825792 bytes"),
    "tokenizer.json, ids that are lists": (
        json_pieces_in('{"model": {"vocab": {"a": []}}}'), "tokenizer cannot be read"
    ),
    "tokenizer.json, gaps": (json_pieces_in('{"model": {"vocab": {"a": 99999999999}}}'), "no piece for ids"),
    "tokenizer.json, pieces that are numbers": (
        json_pieces_in(json.dumps({"model": {"vocab": [[i, 0] for i in range(128)]}})), "not text"
    ),
    "tokenizer.json, a lone surrogate": (
        json_pieces_in(json.dumps({"model": {"vocab": [["\ud800", 0]] * 128}})), "surrogates"
    ),
}  # fmt: skip


@cases(FOLDERS)
def test_folders(inspect: Inspect, tmp_path: Path, make: Make, message: str) -> None:
    assert matches(message, refusal(inspect, make, tmp_path))
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/dev/zero", "neither a file nor a folder"),
        ("/proc/self/environ", "is empty"),
        ("/proc/self", "not a model folder"),
        ("fifo", "neither a file nor a folder"),
        ("loop", "symbolic links"),
        ("x" * 300, "cannot be opened"),
        ("no\0such", "cannot be opened"),
        ("", "not a model folder"),
    ],
)
def test_not_a_model_path(inspect: Inspect, tmp_path: Path, path: str, message: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    assert matches(message, refusal(inspect, lambda folder: folder / path, tmp_path))


# Unusual but valid


def test_large_finite_weights(tmp_path: Path) -> None:
    """Their sum overflows."""
    state = {
        "a": torch.full((100,), 60_000.0, dtype=torch.float16),
        "b": torch.full((9,), 3e38),
        "c": torch.empty(0, 3),
        "d": torch.tensor(1.5),
    }
    save_file(state, tmp_path / SAFETENSORS)
    for sources in (load_safetensors(tmp_path / SAFETENSORS), load_torch(lazy_weights.MemoryBytes(saved(state)), "x")):
        assert sources.keys() == state.keys()
        assert all(torch.equal(sources[name].read(), tensor) for name, tensor in state.items())
