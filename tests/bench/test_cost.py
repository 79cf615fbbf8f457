"""Cost of stored speeds: arithmetic, prices by hardware, and the command's output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastscribe.bench.price_comparison import compare, usd_per_hours
from fastscribe.cli import app
from fastscribe.errors import UsageError
from fastscribe.pipeline.prices import PRICES
from tests.helpers.bench_documents import AMD, H200, SAPPHIRE_RAPIDS, document, speed, stored


@given(st.floats(0.1, 1e5), st.floats(0.001, 100))
def test_a_million_hours_cost_a_thousand_times_a_thousand(rtfx: float, usd_per_hour: float) -> None:
    found = usd_per_hours(rtfx, usd_per_hour)
    assert found["usd_per_1000_audio_hours"] == pytest.approx(1000 / rtfx * usd_per_hour)
    assert found["usd_per_1000000_audio_hours"] == pytest.approx(1000 * found["usd_per_1000_audio_hours"])


def test_an_unknown_price_makes_no_cost() -> None:
    assert set(usd_per_hours(100.0, None).values()) == {None}
    [row] = compare([("a.json", document([speed()]))], [])  # no listed price is for this CPU
    assert row["price"] == "unknown" and row["source"] is None
    assert row["usd_per_hour"] is row["usd_per_1000_audio_hours"] is row["times_the_cheapest_ratio"] is None


def test_gpu_beside_cpu_cheapest_first_unknown_last() -> None:
    documents = [
        ("cpu.json", document([speed(20.0)], SAPPHIRE_RAPIDS)),
        ("odd.json", document([speed(9999.0)], AMD)),
        ("h200.json", document([speed(10_000.0)], H200)),
    ]
    rows = compare(documents, [])
    costs = [row["usd_per_1000_audio_hours"] for row in rows]
    assert costs[-1] is None and costs[:-1] == sorted(costs[:-1])
    assert rows[0]["times_the_cheapest_ratio"] == 1.0
    listed = [price for price in PRICES if price.device == "H200"]
    assert len([row for row in rows if row["file"] == "h200.json"]) == len(listed) >= 3
    jobs = next(row for row in rows if row["price"] == "Hugging Face Jobs Nvidia H200")
    assert jobs["usd_per_1000_audio_hours"] == pytest.approx(1000 / 10_000 * 5.00)  # by the speed from files
    assert jobs["device"] == "NVIDIA H200" and jobs["source"].startswith("https://") and jobs["read_on"]
    assert {row["device"] for row in rows} == {
        "NVIDIA H200",
        "Intel(R) Xeon(R) Platinum 8488C, 2 vCPUs",
        "AMD EPYC, 2 vCPUs",
    }
    assert next(row for row in rows if row["file"] == "cpu.json")["note"] == "taken to be Xeon 8488C"
    assert jobs["configuration"] == "tiny, dtype bf16, batch_frames auto"


def test_eight_gpu_price_is_divided_by_eight() -> None:
    h100 = H200 | {"gpu": {"torch_name": "NVIDIA H100 80GB HBM3"}}
    rows = compare([("h100.json", document([speed()], h100))], [])
    whole = next(row for row in rows if row["price"] == "AWS p5.48xlarge")
    assert (whole["usd_per_hour"], whole["gpus_of_machine"]) == (pytest.approx(6.88), 8)
    assert whole["note"] == "1 of its 8 GPUs"


def test_users_price_replaces_listed_prices() -> None:
    documents = [("cpu.json", document([speed()], SAPPHIRE_RAPIDS)), ("h200.json", document([speed()], H200))]
    rows = compare(documents, [("h200", 3.0), ("NVIDIA", 2.0)])
    assert [row["usd_per_hour"] for row in rows if row["file"] == "h200.json"] == [2.0, 3.0]
    assert all("Hugging Face" in row["price"] for row in rows if row["file"] == "cpu.json")
    with pytest.raises(
        UsageError, match=r"A100: nothing was measured on that; there is Intel\(R\) .* 8488C, NVIDIA H200"
    ):
        compare(documents, [("A100", 1.0)])
    free = compare(documents[:1], [("Xeon", 0.0)])
    assert free[0]["usd_per_1000_audio_hours"] == 0.0 and free[0]["times_the_cheapest_ratio"] is None


def test_failed_rows_have_no_cost() -> None:
    case = {"side": "nemo", "dtype": "fp32", "batch_size": None}
    rows = [{**case, "rtfx": 40.0}, {**case, "error": "out of memory"}]
    peer = document(rows, benchmark="against", case_keys=tuple(case), model="m.nemo")
    found = compare([("p.json", peer)], [("EPYC", 1.0)])
    assert [row["rtfx"] for row in found] == [40.0]
    assert found[0]["configuration"] == "m.nemo, side nemo, dtype fp32"
    both = compare([("p.json", peer), ("t.json", document([speed()]))], [])
    assert len({row["rtfx_of"] for row in both}) == 2
    for name in ("loss", "latency", "decoder", "train"):  # an RTFx of one batch at a time is no hour's cost
        with pytest.raises(UsageError, match=f"l.json: a result of '{name}': only throughput, against"):
            compare([("l.json", document([speed()], benchmark=name))], [])
    with pytest.raises(UsageError, match="no row of it has an RTFx"):
        compare([("l.json", document([]))], [])
    with pytest.raises(UsageError, match="does not say what it was measured on"):
        compare([("d.json", document([speed()], None))], [])


def test_energy_is_carried_along() -> None:
    rows = [speed(energy_kwh_per_1000_audio_hours=2.0), speed()]
    found = compare([("a.json", document(rows))], [("EPYC", 1.0)])
    assert [row["energy_kwh_per_1000_audio_hours"] for row in found] == [2.0, None]
    [odd] = compare([("a.json", document([speed(energy_kwh_per_1000_audio_hours="x")]))], [("EPYC", 1.0)])
    assert odd["energy_kwh_per_1000_audio_hours"] is None


def test_the_command(tmp_path: Path) -> None:
    cpu = stored(tmp_path, "cpu.json", document([speed(20.0)]))
    gpu = stored(tmp_path, "gpu.json", document([speed(10_000.0)], H200))
    out = tmp_path / "cost.json"
    done = CliRunner().invoke(app, ["bench", "cost", str(cpu), str(gpu), "--json", str(out)])
    assert done.exit_code == 0, done.output
    [line] = done.stdout.splitlines()
    found = json.loads(line)
    assert found == json.loads(out.read_text())
    assert found["benchmark"] == "cost" and found["case_keys"] == ["file", "configuration", "price"]
    assert all(key in row for row in found["rows"] for key in found["case_keys"])
    notes = ("1 of its 8 GPUs", "taken to be Xeon 8488C")
    assert not any(note in done.stderr for note in notes)
    assert "paths to JSONL on disk" in done.stderr and "not of the same thing" not in done.stderr
    assert "no price is known" in done.stderr and "https://huggingface.co/docs/hub/jobs-pricing" in done.stderr
    two = stored(tmp_path, "two.json", document([speed()], SAPPHIRE_RAPIDS))
    eight = stored(tmp_path, "h100.json", document([speed()], H200 | {"gpu": {"torch_name": "NVIDIA H100 80GB HBM3"}}))
    page = tmp_path / "cost.html"
    done = CliRunner().invoke(app, ["bench", "cost", str(two), str(eight), "--report-html", str(page)])
    assert all(note in done.stderr and note in done.stdout and note in page.read_text() for note in notes)
    priced = CliRunner().invoke(app, ["bench", "cost", str(cpu), "--price-per-hour", "EPYC=0.1"])
    assert json.loads(priced.stdout)["rows"][0]["usd_per_1000_audio_hours"] == pytest.approx(5.0)


@pytest.mark.parametrize("price", ["3.5", "=3.5", "H200=", "H200=nan", "H200=-1", "H200=inf", "H200=1e300", " =1"])
def test_prices_that_cannot_be_read(tmp_path: Path, price: str) -> None:
    gpu = stored(tmp_path, "gpu.json", document([speed()], H200))
    done = CliRunner().invoke(app, ["bench", "cost", str(gpu), "--price-per-hour", price])
    assert done.exit_code == 2 and "not NAME=USD" in done.stderr
