"""Packages depend on each other in one direction, no imports form a circle, and light modules do without torch."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.conftest import PACKAGE

# From the ground up. A module may import modules of earlier layers and of its own.
LAYERS = (
    ("errors", "types", "config", "speaker_config", "languages", "version", "_system"),
    ("audio", "segmentation", "text", "report", "evaluation", "resume", "output"),
    ("readable", "voices"),
    (
        "pipeline.batching",
        "pipeline.cost_model",
        "pipeline.stats",
        "pipeline.thread_pool",
        "pipeline.idle",
        "pipeline.time_limit",
        "pipeline.model_facts",
        "pipeline.batch_layout",
    ),
    ("pipeline.presentation",),
    (
        "pipeline.prefetch",
        "pipeline.sort_buffer",
        "pipeline.gap_recovery",
        "pipeline.dialogues",
        "pipeline.voices",
        "bench.work",
    ),
    ("pipeline.text_stage", "pipeline.preparation"),
    ("pipeline.texts",),
    ("pipeline.loader",),
    ("pipeline.windows",),
    ("pipeline.executor",),
    ("cuda.no_tf32", "cuda.device", "cuda.graph_capture"),
    ("decode.prompt", "audio.resample"),
    ("model", "checkpoint", "cuda.fp8_format", "cuda.fp8_triton", "cuda.triton_kernels"),
    ("cuda.operations", "cuda.fp8", "cuda.fused_layers", "cuda.fused_granite"),
    ("model.families", "model.model", "cuda.encoder_graphs"),
    ("decode",),
    ("cuda.while_loop", "cuda.loops"),
    ("cuda.boost_tables",),
    ("cuda.transducer_graphs", "cuda.aed_graphs"),
    ("decode.families",),
    ("pipeline.alignment", "pipeline.dtype_rates"),
    ("pipeline.dtype_choice",),
    ("pipeline.side_model",),
    ("pipeline.diarizer", "pipeline.voice_printer"),
    ("pipeline.recognizer",),
    ("pipeline.engine",),
    ("pipeline.local",),
    ("pipeline.workers",),
    ("pipeline.recordings",),
    ("pipeline.run",),
    ("transcriber", "dry_run", "training", "doctor", "journaled"),
    ("ray", "aligner"),
    ("single",),
    ("bench",),
    ("cli", "__main__"),
)
WITHOUT_TORCH = (
    *LAYERS[0],
    "audio",
    "segmentation",
    "text",
    "readable",
    "voices",
    "report",
    "evaluation",
    "resume",
    "output",
    "pipeline.batching",
    "pipeline.cost_model",
    "pipeline.stats",
    "pipeline.executor",
    "pipeline.idle",
    "pipeline.presentation",
    "pipeline.recordings",
    "pipeline.run",
    "pipeline.windows",
    "pipeline.thread_pool",
    "pipeline.time_limit",
    "pipeline.prefetch",
    "pipeline.sort_buffer",
    "pipeline.gap_recovery",
    "pipeline.dialogues",
    "pipeline.voices",
    "pipeline.text_stage",
    "pipeline.texts",
    "pipeline.model_facts",
    "pipeline.batch_layout",
    "pipeline.preparation",
    "pipeline.loader",
    "pipeline.workers",
    "checkpoint",
    "decode.prompt",
    "dry_run",
    "doctor",
    "journaled",
    "transcriber",
    "ray.chunks",
    "ray.library",
    "ray.node_model",
    "ray.pool",
    "ray.worker",
    "cli",
    "training.manifest",
    "training.buckets",
    "training.batch_search",
    "training.bpe",
    "training.model_recipe",
    "training.recipe",
    "training.vocabulary",
    "training.augment_config",
    "training.plot",
    "bench.document",
    "bench.stored",
    "bench.price_comparison",
    "bench.result_diff",
    "bench.energy",
    "bench.work",
    "bench.peer_comparison.exporter",
    "bench.peer_comparison.peers",
    "bench.peer_comparison.process",
    "bench.peer_comparison.recordings",
    "bench.peer_comparison.worker",
)
WITH_TORCH = ("audio.resample",)


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "__init__.py"
    }


def is_below(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


@cache
def layer_of(module: str) -> int:
    names = [(level, name) for level, names in enumerate(LAYERS) for name in names]
    fitting = [(len(name), level) for level, name in names if is_below(module, (name,))]
    if not fitting:  # the package of modules that are in layers of their own
        fitting = [(0, level) for level, name in names if name.startswith(module + ".")][:1]
    assert fitting, f"{module}.py is in no layer of tests/test_layers.py; put it in one"
    return max(fitting)[1]


@cache
def syntax(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, at_import_time: bool) -> set[str]:
    """Return the imported modules; with `at_import_time`, without those inside functions or `if TYPE_CHECKING`."""
    known, found = modules(), set()

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
                for alias in child.names:
                    name = f"{child.module}.{alias.name}"
                    found.add(name if name.removeprefix("fastscribe.") in known else child.module)
            visit(child)

    visit(syntax(path))
    own = {name for name in found if name.startswith("fastscribe") or name not in known}  # not the library `ray`
    return {name.removeprefix("fastscribe.") for name in own}


def test_imports_point_down() -> None:
    known = modules()
    wrong = [
        f"{module} must not import {target}: it lies in a later layer"
        for module, path in known.items()
        for target in sorted(imports(path, at_import_time=True) & known.keys())
        if layer_of(target) > layer_of(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_have_no_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING count too."""
    known = modules()
    left = {module: imports(path, at_import_time=False) & known.keys() for module, path in known.items()}
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"these import each other in a circle, or import such a module: {sorted(left)}"


def test_listed_modules_exist() -> None:
    names = {name for layer in LAYERS for name in layer} | {*WITHOUT_TORCH, *WITH_TORCH}
    assert not names - modules().keys()


def test_module_names_in_bench_and_cli_differ() -> None:
    """Tracebacks and searches show `latency.py` without its folder."""
    measurements = {name.split(".")[1] for name in modules() if name.startswith("bench.")}
    commands = {name.split(".")[2] for name in modules() if name.startswith("cli.bench.")}
    assert measurements and commands and not measurements & commands


def test_light_modules_do_not_import_torch() -> None:
    light = {m: path for m, path in modules().items() if is_below(m, WITHOUT_TORCH) and m not in WITH_TORCH}
    assert len(light) > len(WITHOUT_TORCH)
    wrong = [
        module
        for module, path in light.items()
        if any(name.split(".")[0] in ("torch", "model") for name in imports(path, at_import_time=True))
    ]
    assert not wrong, f"these import torch: {wrong}"
