"""The documents' tables from stored results in both formats."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import PACKAGE, ROOT
from tests.helpers.bench_documents import AMD, H200, document, speed, stored

SCRIPT = ROOT / "scripts" / "readme_table"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("readme_table", str(SCRIPT))
    spec = importlib.util.spec_from_loader("readme_table", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    loader.exec_module(module)
    sys.path[:] = before
    return module


def against(machine: dict, **changes: object) -> dict:
    case = {"dtype": "bf16"}
    rows = [
        {
            "side": "fastscribe",
            **case,
            "batch_size": None,
            "rtfx": 90.0,
            "speedup_ratio": 2.25,
            "equal_texts_share": 1.0,
        },
        {"side": "nemo", **case, "batch_size": 4, "rtfx": 30.0},
        {"side": "nemo", **case, "batch_size": 8, "rtfx": 40.0},
        {"side": "nemo", **case, "batch_size": 64, "error": "out of memory"},
    ]
    settings = {
        "peer": "nemo",
        "model": "/models/parakeet.nemo",
        "same_checkpoint": True,
        "files": 30,
        "audio_s": 270.4,
        "shortest_s": 5.57,
        "longest_s": 12.2,
        "versions": {"nemo": {"nemo_toolkit": "3.0.0"}},
    }
    return document(rows, machine, "against", ("side", "dtype", "batch_size"), **settings | changes)


def test_each_machine_has_tables_of_its_own(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    stored(tmp_path / "gpu", "a.json", document([speed(9000.0), {**speed(), "error": "x"}], H200, audio="synthetic"))
    stored(tmp_path, "cpu-b.json", document([speed(20.0)], AMD, audio="given", random_weights=True))
    stored(tmp_path, "c.json", against(AMD))
    stored(tmp_path, "loss.json", document([], benchmark="loss"))
    parts = script.tables(tmp_path).split("\n\n")
    heads = [part for part in parts if not part.startswith("|")]
    assert sorted(heads) == [
        "`fastscribe bench --against nemo` on AMD EPYC, 2 vCPUs, 24 GiB:",
        "`fastscribe bench` on AMD EPYC, 2 vCPUs, 24 GiB:",
        "`fastscribe bench` on NVIDIA H200 with Intel(R) Xeon(R), 16 vCPUs, 128 GiB:",
    ]
    lines = [line for part in parts for line in part.splitlines() if line.startswith("|")]
    assert (
        "| tiny | bf16 | 900 (auto) | **9000.0** | 18000.0 | 60% / 30% | synthetic, 8 files, 60 s | 2026-11-21 |"
        in lines
    )
    assert (
        "| tiny (random weights) | bf16 | 900 (auto) | **20.0** | 40.0 | 60% / 30% | given, 8 files, 60 s | 2026-11-21 |"
        in lines
    )
    assert (
        "| parakeet.nemo | bf16 | **90.0** | 40.0 (8) | 2.25 | 100% | 30 files, 270 s (5.6 to 12.2 s) | 2026-11-21 |"
        in lines
    )
    assert any("nemo 3.0.0 RTFx (batch)" in line for line in lines)
    assert len(lines) == 3 * 2 + 3


def test_table_shows_the_beam(script: ModuleType, tmp_path: Path) -> None:
    stored(tmp_path, "a.json", document([speed()], AMD, audio="given", beam=4))
    assert "| tiny (beam 4) | bf16 |" in script.tables(tmp_path)


def test_file_name_does_not_decide_random_weights(script: ModuleType, tmp_path: Path) -> None:
    named = document([speed(20.0)], audio="given", random_weights=False)
    stored(tmp_path, "c.json", named | {"command": "fastscribe bench clips--random/ -m x"})
    assert "random" not in script.tables(tmp_path)


def test_texts_of_different_models_are_not_compared(script: ModuleType, tmp_path: Path) -> None:
    stored(tmp_path, "c.json", against(AMD, same_checkpoint=False))
    assert "| 2.25 | - |" in script.tables(tmp_path)


def test_several_tools_are_a_table_of_pairs(script: ModuleType, tmp_path: Path) -> None:
    settings = against(AMD) | {"load_averages_1min": [1.0, 3.2, 9.0], "random_weights": True}
    pair = {"dtype": "bf16", "peer": "nemo", "peer_dtype": "bf16", "peer_best_batch_size": 8, "speedup_ratio": 2.25}
    settings["comparisons"] = [pair | {"cpu_ratio": 1.5, "latency_ratio": 3.0}]
    stored(tmp_path, "c.json", settings)
    assert script.tables(tmp_path).splitlines()[-1] == (
        "| parakeet.nemo (random weights) | bf16 | **90.0** | nemo 3.0.0, bf16 (8) | 40.0 | 2.25 | 1.50 | 3.00 | - "
        "| 30 files, 270 s (5.6 to 12.2 s) | 3, 2026-11-21 |"
    )


def test_older_results_stay_one_table(script: ModuleType, tmp_path: Path) -> None:
    for path in (ROOT / "docs" / "bench").glob("cpu-*.json"):
        if "case_keys" not in json.loads(path.read_text(encoding="utf-8")):
            shutil.copy(path, tmp_path)
    lines = script.tables(tmp_path).splitlines()
    assert len(lines) >= 9 and all(line.startswith("| ") for line in lines)


def check(date: str, rows: list[dict], **changes: object) -> str:
    """A result of scripts/gpu_check."""
    part = {"part": "engine", "status": "done", "rows": rows}
    found = {"benchmark": "gpu_check", "date": date, "commit": date[-3:], "device": "cuda", "quick": False}
    return json.dumps(found | {"hardware": H200, "results": [part]} | changes)


def test_gpu_tables_show_the_newest_measurements(script: ModuleType, tmp_path: Path) -> None:
    row = {"what": "from_memory", "shape": "parakeet-tdt-0.6b-v3", "audio": "leaderboard", "budget_frames": "auto"}
    row |= {"graphs": "auto"}
    rivals = [{"software": "s", "model": "m", "hardware": "B300", "rtfx": 15000, "audio": "a", "source": "https://x"}]
    stored(tmp_path, "rivals.json", json.dumps({"rows": rivals}))
    warm, cold = row | {"pass": "warm", "rtfx": 22000.0}, row | {"pass": "cold", "rtfx": 10000.0}
    stored(tmp_path, "b.json", check("2026-11-21T01:00Z", [warm, cold]))
    stored(tmp_path, "a.json", check("2026-11-22T01:11Z", [warm | {"rtfx": 23100.0}]))
    h100 = {"gpu": {"torch_name": "NVIDIA H100 80GB HBM3"}}
    stored(tmp_path, "e.json", check("2026-11-20T01:22Z", [warm | {"rtfx": 11000.0}], hardware=h100))
    stored(tmp_path, "c.json", check("2026-11-23T01:00Z", [warm | {"rtfx": 1.0}], quick=True))
    stored(tmp_path, "d.json", check("2026-11-23T01:00Z", [warm | {"rtfx": 1.0}], device="cpu"))
    goals, rates = (part.splitlines() for part in script.gpu_tables(tmp_path).split("\n\n"))
    assert goals[2].endswith("| 20,000 | **10,000** | 50% | NVIDIA H200 | 00Z, 2026-11-21 |")
    assert goals[3].endswith("| 22,000 | **11,000** | 50% | NVIDIA H100 80GB HBM3 | 22Z, 2026-11-20 |")
    assert goals[4].endswith("| 22,000 | **23,100** | 105% | NVIDIA H200 | 11Z, 2026-11-22 |")
    assert sum("| not measured | - |" in line for line in goals) == 9
    assert [line.split(" | ")[3] for line in rates[2:]] == ["23,100", "15,000", "11,000", "10,000"]
    assert "| fastscribe, greedy, warm | parakeet-tdt-0.6b-v3 (random weights) | NVIDIA H200 |" in rates[2]


def test_stored_results_match_the_documents(script: ModuleType) -> None:
    made = script.made_tables(ROOT)
    assert {path.name for path in made} == {"README.md", "numbers.md", "gpu.md", "papers.md"}
    for path, tables in made.items():
        text = path.read_text(encoding="utf-8")
        assert text == script.with_tables(text, tables), f"{path.name}: run scripts/readme_table --write"
    assert all(
        row["source"].startswith("https://") and row["hardware"]
        for row in json.loads((ROOT / "docs" / "bench" / "gpu" / "rivals.json").read_text(encoding="utf-8"))["rows"]
    )


def test_the_readmes_table_is_short(script: ModuleType) -> None:
    _, _, *rows = script.short_table(ROOT / "docs" / "bench").splitlines()
    assert 3 <= len(rows) <= 12
    assert all("(random weights)" not in row and float(row.split("|")[-2]) > 0 for row in rows)


def test_only_text_between_the_marks_changes(script: ModuleType) -> None:
    before = f"# Title\n{script.START}\nold\n{script.END}\nafter {script.START} {script.END}"
    made = script.with_tables(before, "new")
    assert made == f"# Title\n{script.START}\nnew\n{script.END}\nafter {script.START} {script.END}"
    assert script.with_tables(made, "new") == made
    with pytest.raises(ValueError, match="has no"):
        script.with_tables("# Title", "new")


def test_write_puts_the_tables_into_the_documents(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "fastscribe").symlink_to(PACKAGE)
    shutil.copy(ROOT / "scripts" / "readme_table", tmp_path / "scripts")
    for name in ("__init__.py", "gpu", "papers.py"):
        (tmp_path / "scripts" / name).symlink_to(ROOT / "scripts" / name)
    shutil.copytree(ROOT / "docs" / "bench", tmp_path / "docs" / "bench")
    empty = "x\n<!-- benchmark -->\n<!-- /benchmark -->\ny\n"
    places = [stored(tmp_path / folder, name, empty) for folder, name in (("", "README.md"), ("docs", "numbers.md"))]
    guide = stored(tmp_path / "docs", "gpu.md", empty)
    stored(tmp_path / "docs", "papers.md", empty)
    command = [sys.executable, tmp_path / "scripts" / "readme_table"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    subprocess.run([*command, "--write"], check=True)
    for place in places:
        text = place.read_text()
        assert text.startswith("x\n<!-- benchmark -->\n| ") and text.endswith("<!-- /benchmark -->\ny\n")
        assert text.split("\n", 2)[2].split("<!-- /")[0].strip() in printed
    names = tuple(f"| {goal.name} |" for goal in script.GOALS)
    assert sum(line.startswith(names) for line in guide.read_text().splitlines()) == len(names)
    assert guide.read_text().endswith("<!-- /benchmark -->\ny\n")
    refused = subprocess.run([*command, "--wrte"], capture_output=True, text=True)
    assert refused.returncode == 2 and "usage" in refused.stderr
