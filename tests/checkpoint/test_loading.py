"""Weights are read one tensor at a time: nothing reads more than it needs, and no model is in memory twice."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fastscribe.checkpoint import lazy_weights, native_writer, state_pickle
from fastscribe.checkpoint.lazy_weights import FileBytes, LazyWeights, MemoryBytes, TensorSource, sources_of
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.checkpoint.weights import load_torch
from fastscribe.config import Options
from fastscribe.errors import CheckpointError, WeightsMismatch
from fastscribe.families.model import Model, build_model
from fastscribe.families.parameter_shapes import parameter_shapes
from fastscribe.pipeline.model_building import build_on_device
from scripts.shapes import SHAPES
from tests.checkpoint.test_checkpoint import same
from tests.checkpoint.test_hostile_checkpoints import rezipped, saved
from tests.conftest import MODELS, checkpoint, torch_threads
from tests.helpers.archives import unpacked
from tests.helpers.warm_process import LIBRARIES_ALONE

NEMO, HF = MODELS / "hybrid" / "model.nemo", MODELS / "hf_ctc"
SAFETENSORS, TORCH_ZIP = "model.safetensors", "model_weights.ckpt"


@pytest.mark.parametrize("shape", SHAPES)
def test_published_shapes(shape: str) -> None:
    """With two layers at most, which are alike."""
    config, few = SHAPES[shape], {}
    if hasattr(config.encoder, "num_layers"):
        few = {"num_layers": min(2, config.encoder.num_layers)}
    config = replace(config, encoder=replace(config.encoder, **few))
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in Model(config).state_dict().items()}
    assert parameter_shapes(config) == expected


# Reads


def spoilt(folder: Path) -> Path:
    """A model whose weights are all NaN."""
    weights = shutil.copytree(HF, folder) / SAFETENSORS
    content = weights.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    weights.write_bytes(content[:start] + b"\xff" * (len(content) - start))
    return folder


def spoilt_nemo(folder: Path) -> Path:
    path = unpacked(folder) / TORCH_ZIP
    state = torch.load(path, weights_only=True)
    torch.save({name: tensor.float().fill_(torch.nan) for name, tensor in state.items()}, path)
    return folder


INSPECT = """
import atexit, sys
sys.argv = ["fastscribe", "inspect", *sys.argv[1:]]
from fastscribe.cli import main
atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
main()
"""


@pytest.mark.parametrize("make", [spoilt, spoilt_nemo])
def test_inspect_reads_no_weights(make, tmp_path: Path) -> None:
    path = make(tmp_path / "model")
    done = subprocess.run([sys.executable, "-c", INSPECT, str(path), "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "False\n")
    loaded = read_checkpoint(path)
    assert json.loads(done.stdout)["parameters"] == loaded.num_parameters > 0
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        build_model(loaded.config, loaded.weights, path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what cannot be read before it is touched")
@pytest.mark.parametrize("dtype", [None, "bf16", "int8"])
def test_a_model_keeps_no_memory_of_its_file(dtype: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors are not copied as they are read. All are large here."""
    mappings: list[weakref.ref[mmap.mmap]] = []
    mapped = FileBytes.mapped

    def seen(self: FileBytes, offset: int, num_bytes: int) -> memoryview | None:
        found = mapped(self, offset, num_bytes)
        assert found is not None
        mappings.append(weakref.ref(found.obj))
        return found

    def built() -> Model:
        read = read_checkpoint(NEMO)
        if dtype is None:
            return build_model(read.config, read.weights, NEMO)
        return build_on_device(read, torch.device("cpu"), dtype, Options(), print)

    copied = built().state_dict()
    monkeypatch.setattr(lazy_weights, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(FileBytes, "mapped", seen)
    model = built()
    assert len(mappings) > 100 and not any(mapping() for mapping in mappings)
    found = model.state_dict()
    assert found.keys() == copied.keys() and all(torch.equal(found[name], copied[name]) for name in copied)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what cannot be read before it is touched")
def test_memory_of_a_file_is_its_own_bytes(tmp_path: Path) -> None:
    path, content = tmp_path / "file", os.urandom(3 * mmap.PAGESIZE)
    path.write_bytes(content)
    with path.open("r+b") as file:
        part = FileBytes.of(file).part(24, len(content) - 32)
        found = part.mapped(mmap.PAGESIZE, 5000)
        assert found is not None and found == content[mmap.PAGESIZE + 24 :][:5000]
        found[0] ^= 255  # the process's own page
        assert path.read_bytes() == content
        assert part.mapped(4, 16) is None  # a number of 8 bytes would not lie at a multiple of 8
        assert part.mapped(0, len(content) - 31) is None  # more than the part has
        with pytest.raises(EOFError):  # though the file goes on
            part.read_into(memoryview(bytearray(16)), len(content) - 40)
        file.truncate(mmap.PAGESIZE)
        assert part.mapped(0, 2 * mmap.PAGESIZE) is None  # a touch would end the process
        with pytest.raises(EOFError):
            part.read_into(memoryview(bytearray(2 * mmap.PAGESIZE)), 0)


def test_names_checked_before_reading() -> None:
    def unread() -> torch.Tensor:
        raise AssertionError("read")

    config = checkpoint(HF).config
    sources = {name: TensorSource("float32", shape, unread) for name, shape in parameter_shapes(config).items()}
    sources["surplus"] = sources.pop("ctc.output.bias")
    sources["ctc.output.weight"] = TensorSource("float32", (2, 2), unread)
    with pytest.raises(
        WeightsMismatch, match=r"missing: ctc\.output\.bias; unexpected: surplus; wrong shape: .*\(2, 2\)"
    ):
        build_model(config, LazyWeights(sources), "model")


def watched(weights: Mapping[str, torch.Tensor], look: Callable[[str], None]) -> LazyWeights:
    """Return the same weights, which call `look` with the name of each that is read."""

    def watched_source(name: str, source: TensorSource) -> TensorSource:
        def read() -> torch.Tensor:
            look(name)
            return source.read()

        return replace(source, read=read)

    return LazyWeights({name: watched_source(name, source) for name, source in sources_of(weights).items()})


@pytest.mark.linux
@pytest.mark.parametrize("name", ["hybrid", "hf_tdt_demo", "jasper"])
def test_parts_load_in_turn(name: str) -> None:
    """Each part is prepared before the next part's weights are read, and every weight belongs to a part."""
    loaded, events = checkpoint(MODELS / name), []

    def prepare_(path: str, part: nn.Module) -> None:
        events.append(("prepare", path))
        part.float()

    weights = watched(loaded.weights, lambda name: events.append(("read", name)))
    model = build_model(loaded.config, weights, "model", prepare_)
    assert sorted(name for kind, name in events if kind == "read") == sorted(weights)
    assert not any(tensor.is_meta for tensor in model.state_dict().values())
    pending: list[str] = []
    for kind, name in events:
        if kind == "read":
            pending.append(name)
        else:
            assert pending and all(read.startswith(f"{name}.") for read in pending)
            pending = []
    assert not pending
    assert sum(kind == "prepare" for kind, _ in events) > 3


@pytest.mark.parametrize("fails", [None, "read", "prepare"])
def test_threads_that_prepare_leave_the_number_of_threads(fails: str | None) -> None:
    """Reading takes one thread meanwhile. The number is this thread's, and the default of threads to come."""
    loaded, found = checkpoint(HF), []

    def look(name: str) -> None:
        found.append(torch.get_num_threads())
        if fails == "read" and len(found) == 9:
            raise OSError("damaged")

    def prepare_(path: str, part: nn.Module) -> None:
        if fails == "prepare":
            raise OSError("damaged")

    with torch_threads(3):
        with nullcontext() if fails is None else pytest.raises((CheckpointError, OSError), match="damaged"):
            build_model(loaded.config, watched(loaded.weights, look), "model", prepare_, threads=2)
        with ThreadPoolExecutor(1) as pool:
            assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == 3
    assert set(found) == {1}


# Memory

PEAK = """
import sys
from pathlib import Path
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.pipeline.recognizer import Recognizer

def resident(field):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(field + ":")[1].split()[0])

tiny, path, dtype = sys.argv[1:]
Recognizer.build(read_checkpoint(tiny), "cpu", dtype)  # one-time allocations
Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
before = resident("VmRSS")
kept = Recognizer.build(read_checkpoint(path), "cpu", dtype)
print(resident("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """38 M parameters in 24 layers, stored in float32: 154 MB."""
    base = SHAPES["tiny-ctc"]
    config = replace(base, encoder=replace(base.encoder, num_layers=24, d_model=256, ff_hidden=1024))
    value = torch.full((1024 * 1024,), 0.01)
    shapes = parameter_shapes(config).items()
    sources = {
        name: TensorSource("float32", shape, lambda shape=shape: value[: torch.Size(shape).numel()].view(shape))
        for name, shape in shapes
        if not name.endswith("num_batches_tracked")
    }
    made = Checkpoint(Path("made"), "fastscribe", config, checkpoint(HF).tokenizer, LazyWeights(sources))
    from scripts.random_checkpoint import random_tokenizer

    folder = tmp_path_factory.mktemp("large")
    native_writer.write(replace(made, tokenizer=random_tokenizer(config)), folder, torch.float32)
    return folder


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures itself as Linux does")
@pytest.mark.parametrize(("dtype", "item_bytes"), [("fp32", 4), ("bf16", 2)])
def test_peak_memory(large: Path, dtype: str, item_bytes: int) -> None:
    done = LIBRARIES_ALONE.python(PEAK, HF, large, dtype)
    assert done.returncode == 0, done.stderr
    loaded = read_checkpoint(large)
    model_bytes = item_bytes * loaded.num_parameters
    largest_bytes = 4 * max(source.num_elements for source in sources_of(loaded.weights).values())
    constant_bytes = 8 << 20
    assert model_bytes > 70e6
    assert 0.9 * model_bytes < int(done.stdout) < 1.3 * model_bytes + largest_bytes + constant_bytes


# Results


def odd_tensors() -> Iterator[tuple[str, torch.Tensor]]:
    base = torch.randn(6, 8)
    yield "whole", base
    yield "transposed", base.t()
    yield "part", base[2:5, 1:4]
    yield "every other", base[:, ::2]
    yield "tied", base
    yield "scalar", torch.tensor(2.5)
    yield "empty", torch.empty(0, 4)
    yield "one", torch.randn(1, 5, 1).transpose(0, 1)
    yield "bf16", torch.randn(5).bfloat16()
    yield "fp16", torch.randn(5).half()
    yield "fp64", torch.randn(5).double()
    yield "a.num_batches_tracked", torch.tensor(7)
    yield "parameter", nn.Parameter(torch.randn(3))


def test_torch_file_round_trip() -> None:
    state = dict(odd_tensors())
    found = LazyWeights(load_torch(MemoryBytes(saved(state)), "x"))
    assert list(found) == list(state)
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name
        assert found.sources[name].shape == tuple(tensor.shape)
        assert found[name].is_contiguous() and not found[name].requires_grad
    found["whole"].zero_()
    assert torch.equal(found["tied"], state["whole"])


def test_safetensors_file_equal(tmp_path: Path) -> None:
    loaded = read_checkpoint(NEMO)
    native_writer.write(loaded, tmp_path, torch.bfloat16)
    weights = {name: tensor.bfloat16() for name, tensor in loaded.weights.items() if tensor.is_floating_point()}
    save_file(weights, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / SAFETENSORS).read_bytes() == (tmp_path / "theirs").read_bytes()


def test_write_over_source(tmp_path: Path) -> None:
    native_writer.write(read_checkpoint(HF), tmp_path, torch.float32)
    native_writer.write(read_checkpoint(tmp_path), tmp_path, torch.float32)
    original = read_checkpoint(HF)
    assert all(
        torch.equal(tensor, original.weights[name]) for name, tensor in read_checkpoint(tmp_path).weights.items()
    )


def test_failed_write_leaves_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds NaN"):
        native_writer.write(read_checkpoint(spoilt(tmp_path / "bad")), tmp_path / "own", torch.float32)
    assert list((tmp_path / "own").iterdir()) == []


def test_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "model.nemo"
    path.write_bytes(NEMO.read_bytes())
    loaded = read_checkpoint(path)
    path.unlink()
    path.write_bytes(b"another")
    assert same(loaded, read_checkpoint(NEMO))


def test_file_truncated_after_open(tmp_path: Path) -> None:
    path = tmp_path / "model.nemo"
    path.write_bytes(NEMO.read_bytes())
    loaded = read_checkpoint(path)
    os.truncate(path, 4096)
    with pytest.raises(CheckpointError, match="cut short"):
        build_model(loaded.config, loaded.weights, path)


# Content that state_pickle.py refuses; attacks are in test_hostile_checkpoints.py


def test_unusual_torch_files() -> None:
    negated = torch.tensor([1 + 2j]).conj().imag
    for state in ({"a": torch.zeros([1] * 9)}, {"a": negated}):
        with pytest.raises(CheckpointError):
            load_torch(MemoryBytes(saved(state)), "x")
    big_endian = rezipped(lambda name, old: b"big" if name.endswith("byteorder") else old)
    with pytest.raises(CheckpointError, match="not little-endian"):
        load_torch(MemoryBytes(big_endian), "x")


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02ccollections\nOrderedDict\n}b.",  # attributes of a class
        b"\x80\x02ccollections\nOrderedDict\n)R)\x81.",  # NEWOBJ
        b"\x80\x02ccollections\nOrderedDict\nK\x05R.",
        b"\x80\x02X\x17\x00\x00\x00collections OrderedDict)R.",  # a string in place of a global
        b"\x80\x02K\x01Q.",
        b"\x80\x02}}K\x01s.",  # an unhashable key
        b"\x80\x02(K\x01u.",
        b"\x80\x02}",
        b"",
    ],
)
def test_unusual_pickles(pickled: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, AttributeError, ValueError, LookupError, TypeError, EOFError)):
        state_pickle.parse(pickled)


@pytest.mark.parametrize("name", ["tdt_demo/model.nemo", "hf_ctc"])
def test_a_model_without_permission(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fastscribe.checkpoint.nemo.safe_open", refuse)
    monkeypatch.setattr("fastscribe.checkpoint.value.safe_read", refuse)
    monkeypatch.setattr("pathlib.Path.is_file", refuse)  # of a folder that may not be entered
    with pytest.raises(CheckpointError, match=r": permission denied$"):
        read_checkpoint(MODELS / name)
