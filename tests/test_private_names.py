"""Names of other packages that are not public: docs/log.md lists all that the package uses, and it runs without them.

The list has a reason and a guard for each. Programs run in fresh processes, with the names and without them.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastscribe.families.blocks import int8, int8_packing
from fastscribe.ray import library
from scripts.shapes import SHAPES
from tests.conftest import AUDIO, MODELS, PACKAGE, ROOT
from tests.helpers.processes import fastscribe
from tests.helpers.warm_process import LIBRARIES_ALONE

OF_PYTHON = {"_exit", "_replace", "_asdict", "_fields", "_make"}  # documented, in spite of their names
OWN_OR_OF_TYPES = ("fastscribe", "_typeshed")
UNDOCUMENTED = re.compile(r"numba\.(core|np|cuda\.\w)")  # modules that numba's documentation does not promise


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and len(name) > 1


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.fixture(scope="module", autouse=True)
def _trees_are_not_collected() -> Iterator[None]:
    """They are millions of objects. Parsing takes five times as long with collections, and later ones would see them all."""
    gc.disable()
    trees()
    gc.enable()
    yield
    trees.cache_clear()


@cache
def own_names() -> set[str]:
    """Return all names that the package gives to something itself."""
    found = set(OF_PYTHON)
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
                found.add(node.attr)
    return found


def used_names(tree: ast.Module) -> set[str]:
    """Return private names, and modules that are not documented, of other packages."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own_names():
            found.add(node.attr)
        elif isinstance(node, ast.Import):
            found |= {name for alias in node.names for name in of_module(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in OWN_OR_OF_TYPES:
            found |= of_module(node.module)
            found |= {name for alias in node.names if is_private(name := alias.name)}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "import_module"):
            words = [word for one in node.args if (word := beginning(one))]
            found |= {name for word in words for name in of_module(word) if name not in own_names()}
    return found


def of_module(name: str) -> set[str]:
    """Return the private parts of a dotted name, and all of it if it is a module that is not documented."""
    parts = name.split(".")
    if parts[0] in OWN_OR_OF_TYPES:
        return set()
    return {part for part in parts if is_private(part)} | ({name} if UNDOCUMENTED.match(name) else set())


def beginning(node: ast.expr) -> str:
    """Return a text, or an f-string's up to its first value."""
    if isinstance(node, ast.JoinedStr):
        return beginning(node.values[0]) if node.values else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def listed() -> set[str]:
    """Return the names in the log's list, without what stands before their last dot."""
    log = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    lines = log.split("### Private names of other packages\n")[1].split("\n## ")[0].splitlines()
    words = {word for line in lines if line.startswith("| `") for word in re.findall("`([^`]+)`", line.split("|")[1])}
    return {word for word in words if not word.endswith((".py", "/"))}  # without the files that use them


def test_the_log_lists_every_private_name() -> None:
    for path, tree in trees().items():
        for name in used_names(tree):
            is_listed = any(one == name or one.endswith(f".{name}") for one in listed())
            assert is_listed, (
                f"{path}: {name} is not public. Use a public way, or add it to the list of private names in docs/log.md, with "
                "its reason, what the program does in a version without it, and a test here"
            )


def test_every_listed_name_is_used() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in trees())
    unused = [name for name in listed() if name not in text and name.rpartition(".")[2] not in text]
    assert not unused, "take them out of the list of private names in docs/log.md"


HIDE = """
import sys
from types import ModuleType

def without(module, *names):
    copy = ModuleType(module.__name__)
    vars(copy).update({name: value for name, value in vars(module).items() if name not in names})
    sys.modules[module.__name__] = copy

class Lacking:
    def __init__(self, inner, *names):
        self.inner, self.names = inner, names

    def __getattr__(self, name):
        if name in self.names:
            raise AttributeError(name)
        return getattr(self.inner, name)
"""

TORCH = """
import torch
from torch import nn
from pathlib import Path

if sys.argv[1] == "without":
    hidden = ("_thnn_fused_lstm_cell", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math",
              "_linear_pointwise", "_reorder_linear_weight", "_convolution_pointwise", "_nbytes", "qlinear_prepack",
              "qlinear_pointwise")
    for name in ("aten", "mkldnn", "onednn"):
        setattr(torch.ops, name, Lacking(getattr(torch.ops, name), *hidden))
    for name in ("div_", "mul_", "copy_", "lerp_"):
        delattr(torch, f"_foreach_{name}")
    del torch._scaled_mm, torch._C._nn.mkldnn_reorder_conv2d_weight
from fastscribe.cuda import graph_capture
from fastscribe.families.blocks import dot_product_attention, forms, fp8, heads, int8, time_conv
from fastscribe.checkpoint import weight_writers
from fastscribe.training import weights
from types import SimpleNamespace

stream = SimpleNamespace(device=SimpleNamespace(index=0))
graph_capture._write_off(object(), stream, (0, 0))  # a torch without CUDA lacks both names

tensors = [torch.arange(3.0), torch.ones(2)]
weights._each("mul_", tensors, 3.0)
weights._each("lerp_", tensors, [torch.zeros(3), torch.zeros(2)], 0.5)
weights._each("copy_", tensors[1:], [tensors[0][1:]])
weights._each("div_", tensors, 2.0)
print([one.tolist() for one in tensors])

fp8.fp8_hardware_problem, fp8.scaled_product = (lambda device: None), fp8._scaled_product
print("_scaled_mm" in str(fp8.fp8_problem(torch.device("cpu"))), forms.can_pack(torch.float32),
      time_conv._can_pack(torch.float32), int8.int8_problem() is None, file=sys.stderr)

class OnGpu(torch.Tensor):
    is_cuda = property(lambda self: sys.argv[1] == "without")  # operators of a GPU are not there

torch.manual_seed(0)
gates, recurrent, cell = (torch.randn(2, 12).as_subclass(OnGpu), torch.randn(2, 12), torch.randn(2, 3))
print(sum(heads._cell(gates, recurrent, cell)).as_subclass(torch.Tensor).tolist())
query, key, value = (torch.randn(1, 2, 5, 8).as_subclass(OnGpu) for _ in range(3))
found = dot_product_attention.attend(query, key, value, torch.zeros(1, 1, 1, 5).as_subclass(OnGpu))
print(found.as_subclass(torch.Tensor).flatten()[:4].tolist())

if sys.argv[1] == "without":
    weight_writers._rebuild = lambda: None  # torch.save needs the name itself
source = SimpleNamespace(num_elements=6, shape=(2, 3), read=lambda: torch.arange(6.0).view(2, 3))
with open(sys.argv[2], "w+b") as file:
    weight_writers.write_state(file, {"a": source}, {"a": torch.float32})
print(torch.load(sys.argv[2], weights_only=True)["a"].tolist())
"""

OTHERS = """
import numba, soundfile, fsspec, numba.core.registry
numba.core.registry.cpu_target.target_context
import numpy as np
if sys.argv[1] == "without":
    import numba.core.options, numba.core.runtime.nrt
    without(numba.core.options, "DefaultOptions")
    without(numba.core.runtime.nrt, "rtsys")
    without(soundfile, "_snd", "_ffi")
from fastscribe._system import jit
from fastscribe._system.remote.file_system import FileSystemStore
from fastscribe.audio import channel_layout
from fastscribe.families.blocks.row_kernels import kernels

print(sorted(jit.loop_options()), file=sys.stderr)
x = np.linspace(-3, 3, 8, dtype=np.float32).reshape(1, 8)
def doubled(x):
    for i in range(x.shape[1]):
        x[0, i] *= 2
for _ in range(2):
    jit.compile_cached(jit.rebind(doubled, globals(), "test"), **jit.loop_options())(x)
print(x.tolist())
store = FileSystemStore("memory://folder/a.txt")
if sys.argv[1] == "without":
    store._fs = Lacking(store._fs, "_strip_protocol")
print(store._path("memory://folder/b.txt"))
with soundfile.SoundFile(sys.argv[2]) as sound, open(sys.argv[2], "rb") as file:
    print(channel_layout.sound_layout(sound, file), file=sys.stderr)
"""


@pytest.mark.parametrize("program", [TORCH, OTHERS], ids=["torch", "others"])
def test_the_program_runs_without_private_names(program: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if program is OTHERS:
        write_surround(path)

    def run(how: str) -> tuple[str, str]:
        done = LIBRARIES_ALONE.python(HIDE + program, how, path)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    (with_names, told_with), (without_names, told_without) = run("with"), run("without")
    assert with_names == without_names or numbers(with_names) == pytest.approx(numbers(without_names), abs=1e-5)
    if program is TORCH:
        assert told_without.split() == ["True", "False", "False", "False"]
        assert told_with.split()[1:3] == ["True", "True"]
    else:
        assert "_nrt" in told_with and "_nrt" not in told_without
        assert "FL" in told_with and "FL" not in told_without


def numbers(text: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def write_surround(path: Path) -> None:
    """Write a WAV file of six channels whose header states their places."""
    import numpy as np
    import soundfile

    with soundfile.SoundFile(path, "w", 16000, 6, format="WAVEX", subtype="PCM_16") as sound:
        sound.write(np.zeros((160, 6)))
    content = bytearray(path.read_bytes())
    at = content.index(b"fmt ") + 8 + 20  # of the mask
    content[at : at + 4] = (0x3F).to_bytes(4, "little")
    path.write_bytes(content)


def test_a_ray_without_its_private_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    fake = SimpleNamespace(is_initialized=lambda: False, init=lambda **given: None, shutdown=lambda: ended.append(1))
    monkeypatch.setattr(library, "ray_library", lambda: fake)
    with library.connected(None) as ray:
        assert ray is fake
    assert ended == [1]


def test_commands_run_where_numba_compiles_nothing(tmp_path: Path) -> None:
    """With NUMBA_DISABLE_JIT=1: align's loop in Python, wide models by torch's operators. Texts and times are the same."""
    text = tmp_path / "text.txt"
    text.write_text("a large and enthusiastic audience", encoding="utf-8")
    align = ["align", AUDIO / "01_0_00010.flac", "--text", text, "-q", "--model", MODELS / "hybrid" / "model.nemo"]
    transcribe = ["transcribe", AUDIO / "15_1_00203.flac", "-q"]
    for arguments in (align, transcribe):
        plain = fastscribe(*arguments, "--device", "cpu")
        program = "from fastscribe.__main__ import main; main()"
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}  # which numba reads when it is imported
        done = LIBRARIES_ALONE.python(program, *arguments, "--device", "cpu", env=environment)
        assert plain.returncode == done.returncode == 0, done.stderr
        found = [[json.loads(line) for line in one.stdout.splitlines()] for one in (plain, done)]
        assert found[0] == found[1] and found[0][0]["words"]


def test_wide_models_do_without_loops_where_numba_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also their packing: in Python it would take minutes."""
    encoder, weight_NK = SHAPES["parakeet-tdt-0.6b"].encoder, torch.ones(1024, 1024)
    for value, expected in (("0", True), ("", True), ("1", False)):
        monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
        assert encoder.has_loops is expected
    assert int8_packing.pack(weight_NK) is None
    int8.int8_problem.cache_clear()
    monkeypatch.setattr(int8, "has_native_int8", lambda: False)
    monkeypatch.setattr(int8, "has_avx2", lambda: True)
    assert "NUMBA_DISABLE_JIT is set" in str(int8.int8_problem())
    int8.int8_problem.cache_clear()
