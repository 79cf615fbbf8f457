"""Arrows point one way: each module may import only from rooms before its own. Who opens torch is settled here too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import PACKAGE

# From the ground up. A module may import modules of earlier lines and of its own.
LAYERS = (
    (
        "errors",
        "types",
        "config",
        "openmp",
        "freed_memory",
        "processors",
        "plain_text",
        "regular_file",
        "standard_streams",
        "safe_files",
        "prices",
    ),
    (
        "audio",
        "long_audio",
        "batching",
        "tokenizer",
        "text_encoder",
        "transcript",
        "word_times",
        "output",
        "resume",
        "evaluation",
        "events",
        "stats",
        "cost_model",
        "windows",
        "crew",
        "interruption",
        "lookahead",
        "report",
    ),
    ("device", "graph_capture", "true_float32", "language_model", "bench.work"),
    ("decode.prompt",),
    (
        "features",
        "resample",
        "model",
        "checkpoint",
        "describe",
        "decode.decoder",
        "decode.checked",
        "decode.greedy",
        "decode.beam",
        "decode.ctc",
        "decode.forced_alignment",
    ),
    ("hub", "model_location"),
    ("decode.fast_predictor", "decode.aed", "decode.aligning"),
    ("decode.label_looping",),
    ("decode.cuda_while", "decode.batched_beam"),
    ("decode.loops",),
    ("decode.graphs",),
    ("decode.aed_graphs",),
    ("decode.families",),
    ("recognizer",),
    ("engine",),
    ("run", "survey", "training"),
    ("bench",),
    ("terminal",),
    ("cli", "__main__"),
)
WITHOUT_TORCH = LAYERS[0] + LAYERS[1] + ("terminal", "cli", "describe")
WITHOUT_TORCH += ("training.manifest", "training.buckets", "training.batch_search", "training.bpe")
WITHOUT_TORCH += ("bench.document", "bench.stored", "bench.cost", "bench.diff", "bench.energy")
WITHOUT_TORCH += ("bench.against.peers", "bench.against.process", "bench.against.recordings", "bench.against.worker")
WITHOUT_TORCH += ("bench.work", "decode.prompt", "checkpoint", "language_model", "hub", "model_location")
WITHOUT_TORCH += ("training.recipe", "training.augment_config", "training.plot")


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py" or path.parent != PACKAGE
    }


def layer_of(module: str) -> int:
    names = [(level, name) for level, names in enumerate(LAYERS) for name in names]
    fitting = [(len(name), level) for level, name in names if module == name or module.startswith(name + ".")]
    if not fitting and module == "decode.__init__":
        return 2
    assert fitting, f"{module}.py is in no layer of tests/test_layers.py; put it in one"
    return max(fitting)[1]


def imports(path: Path, at_import_time: bool) -> set[str]:
    """Names imported; with `at_import_time`, not those inside functions or `if TYPE_CHECKING`."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            skipped = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            if at_import_time and skipped:
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                found.add(child.module)
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("module", modules())
def test_imports_point_down(module: str) -> None:
    known = modules()
    for name in imports(known[module], at_import_time=True):
        target = name.removeprefix("fastscribe.")
        if name.startswith("fastscribe.") and target in known:
            assert layer_of(target) <= layer_of(module), f"{module} must not import {target}: it lies in a later room"


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith(WITHOUT_TORCH)])
def test_planning_reading_and_writing_do_without_torch(module: str) -> None:
    names = imports(modules()[module], at_import_time=True)
    assert not any(name.split(".")[0] in ("torch", "fastscribe.model") for name in names), f"{module} imports torch"
