"""scripts/benchmarks/loss.py measures what the formula predicts, and its output is machine-readable."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fastscribe.errors import UsageError
from scripts.benchmarks import loss as command
from scripts.benchmarks import loss_cases as measuring
from scripts.benchmarks.loss_memory import LossShape, loss_memory
from tests.conftest import ROOT

CPU = torch.device("cpu")
MB = 1_000_000


MEASURED = [
    measuring.Case(form, "fastscribe", "numba", dtype, replace(shape, item_bytes=measuring.DTYPES[dtype].itemsize))
    for form, shape in (
        ("logits", LossShape(3, 120, 60, 64, 300)),
        ("joint", LossShape(3, 100, 50, 320, 300)),
        ("joint", LossShape(240, 40, 5, 320, 40)),  # mostly its inputs
        ("materialised", LossShape(3, 120, 60, 64, 600)),  # mostly its logits
    )
    for dtype in ("fp32", "bf16")
    if form != "materialised" or dtype == "fp32"  # torch's own sums of bf16 on a CPU make copies in float32
]


@pytest.mark.skipif(measuring.peak_bytes(CPU) is None, reason="the system does not say a process's peak memory")
def test_the_peak_on_a_cpu_is_the_formulas() -> None:
    """A new process has no memory of other tests. The first call of a shape also holds what oneDNN makes for it."""
    program = (
        "import json, torch; from scripts.benchmarks import loss_cases as loss;"
        "from tests.scripts.benchmarks.test_loss import CPU, MEASURED;"
        "loss.warm_up(CPU, MEASURED);"
        "print(json.dumps([[loss.measured(case, CPU, 0.0) for _ in range(2)][1] for case in MEASURED]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    for case, row in zip(MEASURED, json.loads(done.stdout), strict=True):
        expected = case.expected_bytes("cpu")
        assert expected > 20 * MB
        assert 0.9 * expected - 2 * MB < row["peak_bytes"] < 1.15 * expected + 4 * MB, case


def test_cases_are_the_articles_table() -> None:
    found = list(measuring.cases([1, 8], ["fp32", "bf16"], ["nemo"]))
    ours = [
        case
        for case in found
        if case.library == "fastscribe" and case.backend == "numba" and case.shape.num_frames == 200
    ]
    assert len(ours) == 2 * 2 * 3 * 2 * 2  # forms, vocabularies, labels, dtypes, batch sizes
    assert len([case for case in found if case.library == "nemo"]) == 12
    oracles = [case for case in found if case.backend == "oracle"]
    assert len(oracles) == 2 and all(case.shape.nodes < 500 for case in oracles)
    assert {case.shape.item_bytes for case in found if case.dtype == "bf16"} == {2}


def test_grid_has_every_library_in_every_form() -> None:
    found = list(measuring.grid((8, 32, 64), (100, 150, 200), ["nemo", "torchaudio"]))
    assert len(found) == len(set(found)) == 2 * 3 * 3 * (3 + 3 * 2 * 2)
    assert {case.dtype for case in found if case.form != "joint"} == {"fp32", "fp16"}
    assert {(case.form, case.library) for case in found} == {
        ("joint", "fastscribe"),
        *((form, name) for form in ("logits", "materialised") for name in ("fastscribe", "nemo", "torchaudio")),
    }


def test_slow_kind_is_not_measured_larger() -> None:
    some = [measuring.Case("logits", "fastscribe", "numba", "fp32", LossShape(n, 20, 5, 8, 9, 0, 4)) for n in (1, 2, 3)]
    rows = list(measuring.table(CPU, some, most_s=1e-9))
    assert "ms" in rows[0] and rows[0]["runs"] == 1
    assert all("left out" in row["error"] for row in rows[1:])


def test_failed_case_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    case = measuring.Case("logits", "fastscribe", "numba", "fp32", LossShape(1, 20, 5, 8, 9, 0, 4))
    monkeypatch.setattr(measuring, "free_bytes", lambda device: 1000)
    assert measuring.measured(case, CPU, 1.0)["error"].startswith("left out: 0.0 GB")
    monkeypatch.undo()
    refused = replace(case, backend="abacus")
    assert "backend is one of" in measuring.measured(refused, CPU, 1.0)["error"]


def test_headline_by_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measured", lambda case, device, most_s: {"ms": 1.0})
    found = measuring.headline(CPU, "bf16", 2, 1.0)
    assert found["formula_bytes_on_a_gpu"] < 3e9 < 800e9 < found["materialised_fp32_bytes"]
    assert found["largest_batch_by_formula"]["3 GB"] > 1024
    assert found["measured"]["batch_size"] == 2


def test_stored_results_match_the_formula() -> None:
    stored = json.loads((ROOT / "docs" / "bench" / "loss" / "cpu.json").read_text(encoding="utf-8"))
    for row in stored["rows"]:
        sizes = [row[name] for name in ("batch_size", "num_frames", "num_labels", "joint_width", "num_tokens")]
        shape = LossShape(*sizes, item_bytes=measuring.DTYPES[row["dtype"]].itemsize)
        case = measuring.Case(row["form"], row["library"], row["backend"], row["dtype"], shape)
        assert measuring.key(case).items() <= row.items() and set(stored["case_keys"]) <= row.keys()
        assert case.expected_bytes("cpu") == row["formula_bytes"]
        assert ("ms" in row) != ("error" in row)
    assert sum(loss_memory(measuring.HEADLINE).values()) == stored["headline"]["formula_bytes_on_a_gpu"]


@pytest.fixture
def fewer_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(*_: object) -> list[measuring.Case]:
        shape = LossShape(1, measuring.FRAMES, 5, 8, 28, 0, 4)
        return [measuring.Case(form, "fastscribe", "numba", "fp32", shape) for form in ("logits", "joint")]

    monkeypatch.setattr(measuring, "cases", cases)
    monkeypatch.setattr(measuring, "HEADLINE", LossShape(4, 20, 5, 8, 9, 2, 2))
    monkeypatch.setattr(measuring, "libraries", lambda: {"nemo": "ModuleNotFoundError: none"})


@pytest.mark.usefixtures("fewer_cases")
def test_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    stored, picture = tmp_path / "loss.json", tmp_path / "loss.png"
    options = [
        "--device",
        "cpu",
        "--json",
        str(stored),
        "--plot",
        str(picture),
        "--batch-sizes",
        "1",
        "--dtype",
        "fp32",
    ]
    done = CliRunner().invoke(command.app, options, catch_exceptions=False)
    assert done.exit_code == 0
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert document == json.loads(stored.read_text())
    assert [row["form"] for row in document["rows"]] == ["logits", "joint"]
    assert all(row["ms"] > 0 and row["formula_bytes"] > 0 for row in document["rows"])
    assert document["headline"]["measured"]["ms"] > 0 and document["other_libraries"]["nemo"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("quick", [True, False])
def test_quick_skips_fp16_on_a_cpu(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    measured_cases: list[measuring.Case] = []
    compiled: list[measuring.Case] = []

    def measured(case: measuring.Case, device: torch.device, most_s: float) -> dict[str, float]:
        measured_cases.append(case)
        return {"ms": 1.0}

    monkeypatch.setattr(measuring, "warm_up", lambda device, some: compiled.extend(some))
    monkeypatch.setattr(measuring, "libraries", dict)
    monkeypatch.setattr(measuring, "measured", measured)
    for options, joint in (([], {"fp32", "bf16"} if quick else set(measuring.DTYPES)), (["--dtype", "fp16"], {"fp16"})):
        measured_cases.clear()
        compiled.clear()
        arguments = ["--device", "cpu", *options, *["--quick"] * quick]
        assert CliRunner().invoke(command.app, arguments, catch_exceptions=False).exit_code == 0
        headline = measured_cases.pop()
        assert headline.dtype == "bf16" and {case.dtype for case in measured_cases if case.form == "joint"} == joint
        assert {case.dtype for case in measured_cases if case.form == "logits"} == (
            {"fp16"} if options else set(measuring.DTYPES)
        )
        assert {case.dtype for case in compiled if case.form == "joint"} == joint | {headline.dtype}


def test_quick_measures_the_smallest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    measured_cases: list[tuple[int, float]] = []

    def measured(case: measuring.Case, device: torch.device, most_s: float) -> dict[str, float]:
        measured_cases.append((case.shape.batch_size, most_s))
        return {"ms": 1.0}

    monkeypatch.setattr(measuring, "warm_up", lambda device, kinds: None)
    monkeypatch.setattr(measuring, "libraries", dict)
    monkeypatch.setattr(measuring, "measured", measured)
    arguments = ["--device", "cpu", "--dtype", "fp32", "--batch-sizes", "5,3,5"]
    for options, sizes, most_s in (
        (["--quick"], {3}, 1.0),
        (["--quick", "--max-seconds", "30"], {3}, 30.0),
        ([], {3, 5}, 10.0),
    ):
        measured_cases.clear()
        assert CliRunner().invoke(command.app, [*arguments, *options], catch_exceptions=False).exit_code == 0
        assert {size for size, _ in measured_cases[2:-1]} == sizes and len(set(measured_cases[2:-1])) == len(sizes)
        assert {seconds for _, seconds in measured_cases} == {most_s}


def test_plot_overwrites_only_a_picture(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place, problem in (("notes.txt", "no PNG"), ("nowhere/x.png", "cannot be written")):
        with pytest.raises(UsageError, match=problem):
            CliRunner().invoke(
                command.app, ["--plot", str(tmp_path / place)], catch_exceptions=False, standalone_mode=False
            )
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_plot_checks_for_matplotlib_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="extra plots"):
        CliRunner().invoke(
            command.app, ["--plot", str(tmp_path / "x.png")], catch_exceptions=False, standalone_mode=False
        )
