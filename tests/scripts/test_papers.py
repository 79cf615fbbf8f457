"""docs/papers.md's tables from the rows of gpu_check."""

from __future__ import annotations

import json

import pytest

from scripts import papers
from scripts.gpu import ladder
from scripts.shapes import SHAPES
from tests.conftest import ROOT

PUBLISHED = json.loads((ROOT / "docs" / "bench" / "gpu" / "papers.json").read_text(encoding="utf-8"))
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def result(part: str, *rows: dict, card: str = H100, date: str = "2026-11-28T01:00Z") -> dict:
    entry = {"part": part, "status": "done", "rows": list(rows)}
    hardware = {"gpu": {"torch_name": card}}
    return {"commit": "abc", "date": date, "hardware": hardware, "results": [entry]}


def rung(name: str, rtfx: float, side: str = "fastscribe", usd: float | None = None) -> dict:
    row = {"what": "rung", "shape": "parakeet-tdt-0.6b-v3", "rung": name, "side": side, "changes": "x", "rtfx": rtfx}
    if usd is None:
        return row
    return row | {"usd_per_1000000_audio_hours": usd, "usd_per_hour": 4.0, "device_name": "a card", "price": "a list"}


def joint(form: str, dtype: str, peak: float, **more: object) -> dict:
    row = {"what": "loss", "form": form, "library": "fastscribe", "dtype": dtype, "batch_size": 64, "num_labels": 200}
    return row | {"num_tokens": 1024, "peak_bytes": peak, "ms": 5.0, "formula_bytes": peak, **more}


LATENCY = {"p90_ms": 3.2, "p95_ms": 3.4, "p99_ms": 3.9, "average_ms": 3.05}


def lines(documents: list[dict]) -> list[str]:
    return papers.page(documents, PUBLISHED).splitlines()


def test_without_results_every_work_says_so() -> None:
    summary = [line for line in lines([]) if "| not measured | - |" in line]
    assert len(summary) == 6
    assert sum(line.endswith(": not measured.") for line in lines([])) == 6


def test_a_ladder_has_ratios_and_dollars_for_each_card() -> None:
    rungs = (
        rung("nemo, first", 200.0, "nemo"),
        rung("greedy", 1000.0),
        rung("planned", 20000.0, usd=200.0),
        rung("CPU, int8", 50.0, usd=2000.0),
    )
    found = lines([result("tenfold", *rungs), result("tenfold", rung("planned", 25000.0), card=H200)])
    [planned] = [line for line in found if "| planned |" in line and "| H100 |" in line]
    assert "| 20,000 | 20.00 | 100.0 | 200 |" in planned
    assert any("100.0 times NeMo's first way | H100 |" in line for line in found)
    assert found.count("| a card | 4 | a list |") == 1
    assert any("10.0 times cheaper than the CPU | H100 |" in line for line in found)
    assert any("| H200 | planned | x | 25,000 | - | - | - |" in line for line in found)


def test_the_rungs_of_several_results_are_in_order_and_steps_are_of_a_side() -> None:
    early = result("tenfold", rung("nemo, first", 200.0, "nemo"), rung("greedy", 1000.0), date="2026-11-28T01:00Z")
    late = (rung("planned", 6000.0), rung("bf16", 2000.0), rung("nemo, now", 400.0, "nemo"), rung("CPU, int8", 50.0))
    found = [line.split(" | ") for line in lines([result("tenfold", *late, date="2026-11-28T02:00Z"), early])]
    rungs = [cells for cells in found if len(cells) == 9 and cells[1] == "H100"]
    assert [(cells[2], cells[5], cells[6]) for cells in rungs] == [
        ("nemo, first", "-", "1.0"),
        ("nemo, now", "2.00", "2.0"),
        ("greedy", "-", "5.0"),
        ("bf16", "2.00", "10.0"),
        ("planned", "3.00", "30.0"),
        ("CPU, int8", "-", "0.2"),
    ]
    alone = [result("tenfold", rung("nemo, now", 400.0, "nemo"), rung("planned", 6000.0))]
    assert not any("times NeMo's first way" in line for line in lines(alone))


def test_every_rung_has_its_place() -> None:
    known = {one.name for shape in ("tiny", "tiny-ctc") for one in ladder.rungs(SHAPES[shape])}
    assert known == set(papers._RUNGS)


def test_what_a_part_prepares_is_no_measurement() -> None:
    prepared = {"what": "training_batches", "shape": "canary-1b", "batches": "random", "is_preparation": True}
    [cell] = [line for line in lines([result("training_speed", prepared)]) if line.startswith("| encoder-decoder, tr")]
    assert "not measured" in cell


def test_the_newest_result_of_a_card_is_shown_and_errors_are_not() -> None:
    old, new = rung("planned", 1.0), rung("planned", 2.0)
    broken = rung("planned", 3.0) | {"error": "RuntimeError"}
    documents = [
        result("tenfold", broken),
        result("tenfold", new),
        result("tenfold", old),
    ]  # as plan.stored() orders them
    assert [one["rtfx"] for one in papers.newest(documents, "tenfold", ("rung",), what="rung")] == [2.0]


def test_losses_show_peaks_and_what_does_not_fit() -> None:
    rows = (joint("materialised", "fp32", 40e9), joint("materialised", "fp16", 20e9), joint("joint", "fp16", 1e9))
    found = lines([result("loss", *rows, joint("logits", "fp32", 0.0) | {"fits": False})])
    assert any("2.0 times less; ours 40.0 (batch 64, 200 labels) | H100" in line for line in found)
    assert any("| fastscribe, sample by sample | fp16 | 1.00 | 5.0 | H100 |" in line for line in found)
    assert any("| fastscribe, logits | fp32 | does not fit |" in line for line in found)
    headline = joint("joint", "bf16", 2.8e9, what="samplewise", batch_size=1024, num_tokens=8193)
    found = lines([result("samplewise", headline)])
    assert any("| 2.80 GB with 8,193 tokens, bf16 | H100 |" in line for line in found)
    assert any(line.startswith("| 8193 | sample by sample | bf16 | 1,024 | 2.80 | 2.80 | 5 |") for line in found)


def test_training_and_inference_have_their_ratios() -> None:
    common = {"what": "training_batches", "shape": "s", "padding_share": 0.5, "batch_rows": 10.0, "step_ms": 9.0}
    first = common | {"batches": "random", "batch_audio_s": 100.0, "audio_s_per_s": 1000.0, "peak_bytes": 7e9}
    best = common | {"batches": "by what fits in memory", "batch_audio_s": 600.0, "audio_s_per_s": 2500.0}
    ratio = {"what": "ratio", "shape": "a", "over": "b", "graphs": "auto", "budget_frames": "auto", "rtfx_ratio": 3.1}
    ratio |= {"rtfx": 3100.0, "rtfx_of_other": 1000.0, "decoder_share": 0.1, "decoder_share_of_other": 0.6}
    found = lines([result("training_speed", first, best), result("attention", ratio)])
    assert any("batches 6.0 times as large, training 2.5 times as fast | H100" in line for line in found)
    assert any("| random | 50% | 100 | 10 | 9 | 1,000 | 7.0 | s | H100 |" in line for line in found)
    assert any("| a over b | 3,100 | 1,000 | 3.10 | 10% / 60% | H100 |" in line for line in found)


@pytest.mark.parametrize("shape", ["jasper10x5dr", "quartznet15x5"])
def test_latencies_stand_beside_the_published_ones(shape: str) -> None:
    """The published row is that of the same model, batch and length in the other 16-bit form."""
    row = {"what": "latency", "shape": shape, "batch_size": 16, "duration_s": 16.7, "bf16": LATENCY, "tf32": LATENCY}
    found = lines([result("convolutions", row)])
    theirs = {"jasper10x5dr": ("60.92", "20.0"), "quartznet15x5": ("57.78", "18.9")}[shape]
    assert any(f"| bf16 | 3.20 | 3.40 | 3.90 | 3.05 | {theirs[0]} | {theirs[1]} | H100" in line for line in found)
    assert sum(line.startswith(f"| {shape} | 16 | 16.7 | ") for line in found) == 2
    assert any(f"{shape}: 3.0 ms against {float(theirs[0]):.1f} | H100" in line for line in found)


def test_published_latencies_are_whole() -> None:
    rows = PUBLISHED["convolutions"]["latencies"]
    cases = {(row["shape"], row["batch_size"], row["seconds"], row["dtype"]) for row in rows}
    assert len(rows) == len(cases) == 2 * 5 * 3 * 2
    assert all(row["p90_ms"] <= row["p95_ms"] <= row["p99_ms"] for row in rows)
