"""Comparison of two results: noise, better or worse, and refused inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastscribe.bench.result_diff import diff, direction
from fastscribe.bench.stored import read
from fastscribe.cli import app
from fastscribe.errors import UsageError
from tests.helpers.bench_documents import AMD, H200, document, speed, stored


def verdicts(a: dict[str, Any], b: dict[str, Any], noise: float = 5.0) -> dict[str, str]:
    found = diff(document([speed(**a)]), document([speed(**b)]), noise)
    return {change.measurement: change.verdict for change in found.changes}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rtfx", 1),
        ("memory_rtfx", 1),
        ("sequences_per_s", 1),
        ("matrix_tflop_per_s", 1),
        ("scaling_efficiency", 1),
        ("speedup_ratio", 1),
        ("equal_to_greedy_share", 1),
        ("equal_texts_share", 1),
        ("label_difference_share", -1),
        ("ms", -1),
        ("p99_ms", -1),
        ("wall_s", -1),
        ("stage_s.encode", -1),
        ("peak_bytes", -1),
        ("usd_per_1000_audio_hours", -1),
        ("us_per_step", -1),
        ("energy_j_per_audio_hour", -1),
        ("padding_share", -1),
        ("failed", -1),
        ("wer", -1),
        ("audio_s", 0),
        ("ceiling_rtfx", 0),
        ("ceiling_reached_share", 0),
        ("labels_per_audio_s", 0),
        ("encode_share", 0),
        ("batches", 0),
        ("smi_power_w", 0),
    ],
)
def test_the_unit_says_what_is_better(name: str, expected: int) -> None:
    assert direction(name) == expected


def test_only_differences_beyond_noise_count() -> None:
    quiet, loud = [99.5, 100.0, 100.5], [90.0, 100.0, 110.0]
    assert verdicts({"rtfx_runs": quiet}, {"rtfx": 103.0, "rtfx_runs": quiet})["rtfx"] == "better"
    assert verdicts({"rtfx_runs": quiet}, {"rtfx": 97.0, "rtfx_runs": quiet})["rtfx"] == "worse"
    assert verdicts({"rtfx_runs": loud}, {"rtfx": 110.0, "rtfx_runs": quiet})["rtfx"] == "same"
    assert verdicts({"rtfx_runs": quiet}, {"rtfx": 81.0, "rtfx_runs": loud})["rtfx"] == "same"  # 20 of 81: 24.7 %
    assert verdicts({"rtfx_runs": [100.0]}, {"rtfx": 104.0, "rtfx_runs": [104.0]})["rtfx"] == "same"  # measured once


def test_default_noise_without_a_spread() -> None:
    assert verdicts({"peak_bytes": 100}, {"peak_bytes": 104})["peak_bytes"] == "same"
    assert verdicts({"peak_bytes": 100}, {"peak_bytes": 106})["peak_bytes"] == "worse"
    assert verdicts({"peak_bytes": 100}, {"peak_bytes": 104}, noise=1.0)["peak_bytes"] == "worse"


def test_min_and_max_are_a_spread() -> None:
    a, b = {"ms": 10.0, "min_ms": 9.0, "max_ms": 11.0}, {"ms": 11.5, "min_ms": 5.0, "max_ms": 12.0}
    found = verdicts(a, b)
    assert found["ms"] == "same" and not {"min_ms", "max_ms"} & found.keys()
    walls = verdicts({"wall_s": 1.0, "wall_min_s": 0.99, "wall_max_s": 1.0}, {"wall_s": 1.02})
    assert walls["wall_s"] == "worse" and "wall_min_s" not in walls


def test_unknown_zero_and_failed() -> None:
    assert verdicts({"peak_bytes": None}, {"peak_bytes": 5})["peak_bytes"] == "unknown"
    assert verdicts({}, {"peak_bytes": 5})["peak_bytes"] == "unknown"
    assert verdicts({"padding_share": 0.0}, {"padding_share": 0.0})["padding_share"] == "same"
    found = diff(document([speed(padding_share=0.0)]), document([speed(padding_share=0.1)]))
    [change] = [one for one in found.changes if one.measurement == "padding_share"]
    assert (change.verdict, change.change_percent) == ("worse", None)
    case = {key: speed()[key] for key in ("model", "dtype", "batch_frames")}
    broken = document([{**case, "error": "out of memory"}])
    assert diff(document([speed()]), broken).count("worse") == 1
    assert diff(broken, document([speed()])).count("better") == 1
    assert diff(broken, broken).changes == []


@pytest.mark.parametrize(
    ("name", "before", "after", "verdict"),
    [
        ("equal_to_greedy_share", 1.0, 0.96, "worse"),
        ("equal_texts_share", 0.96, 0.961, "better"),
        ("wer_percent", 10.0, 10.4, "worse"),
        ("wer_share", 0.1, 0.1 * (1 + 1e-12), "same"),
        ("failed", 100, 101, "worse"),
        ("insertions", 100, 101, "changed"),
        ("labels_per_audio_s", 3.5, 3.6, "changed"),
        ("audio_s_per_s", 100.0, 104.0, "same"),  # timed
        ("files_write_share", 0.1, 0.104, "same"),
        ("files_write_share", 0.0002, 0.009, "same"),
        ("files_write_share", 0.0002, 0.012, "changed"),
        ("padding_share", 0.02, 0.025, "worse"),
    ],
)
def test_counts_have_no_noise(name: str, before: float, after: float, verdict: str) -> None:
    assert verdicts({name: before}, {name: after})[name] == verdict


def test_speeds_over_other_audio_are_not_compared() -> None:
    less = {"audio_s": 30.0, "rtfx": 10.0, "peak_bytes": 100, "failed": 0, "padding_share": 0.1}
    more = {"audio_s": 40.0, "rtfx": 20.0, "peak_bytes": 200, "failed": 1, "padding_share": 0.1}
    found = verdicts(less, more)
    assert (found["audio_s"], found["rtfx"], found["peak_bytes"]) == ("changed", "changed", "changed")
    assert (found["failed"], found["padding_share"]) == ("worse", "same")
    assert verdicts({"files": 75, "rtfx": 10.0}, {"files": 107, "rtfx": 20.0})["rtfx"] == "changed"


def test_rows_meet_by_their_case() -> None:
    a = document([speed(100.0, batch_frames=500), speed(200.0), speed(300.0, dtype="fp32")])
    b = document([speed(200.0), speed(100.0, batch_frames=500.0), speed(1.0, dtype="int8")])
    found = diff(a, b)
    assert {(change.case["batch_frames"], change.verdict) for change in found.changes} == {
        (500, "same"),
        ("auto", "same"),
    }
    assert [case["dtype"] for case in found.only_in_a] == ["fp32"]
    assert [case["dtype"] for case in found.only_in_b] == ["int8"]
    thrice = document([speed(100.0), speed(200.0), speed(300.0)])
    changes = [change for change in diff(thrice, thrice).changes if change.measurement == "rtfx"]
    assert [(change.a, change.b) for change in changes] == [(100.0, 100.0), (200.0, 200.0), (300.0, 300.0)]


numbers = st.floats(0.001, 1e6)


@given(st.dictionaries(st.sampled_from(["rtfx", "ms", "peak_bytes", "wall_s"]), numbers), st.floats(0, 50))
def test_a_result_is_the_same_as_itself(values: dict[str, float], noise: float) -> None:
    same = document([speed(**values)], note=values)
    found = diff(same, same, noise)
    assert {change.verdict for change in found.changes} == {"same"}
    assert (found.settings, found.only_in_a, found.only_in_b) == ({}, [], [])


@given(numbers, numbers, st.sampled_from(["rtfx", "ms"]))
def test_swapping_the_sides_swaps_the_verdicts(a: float, b: float, name: str) -> None:
    there = verdicts({name: a}, {name: b}, noise=0.0)[name]
    back = verdicts({name: b}, {name: a}, noise=0.0)[name]
    assert {there, back} in ({"better", "worse"}, {"same"})
    assert (there == "better") == ((b > a) if name == "rtfx" else (b < a))


def test_different_machines_are_not_compared_unless_asked() -> None:
    for other in (AMD | {"cpu": "Intel"}, AMD | {"cpu_cores": 4}, AMD | {"memory_gib": 64.0}, H200):
        a, b = document([speed()]), document([speed(500.0)], other)
        assert not diff(a, b).compared and not diff(a, b).changes
        forced = diff(a, b, across_machines=True)
        assert forced.compared and not forced.same_machine and forced.count("better") > 0
    on_cpu = document([speed()], H200) | {"device": "cpu"}
    assert not diff(on_cpu, document([speed()], H200)).same_machine  # the work was another device's


def test_other_differences_are_named() -> None:
    a = document([speed()], AMD | {"versions": {"torch": "2.11"}}, passes=5, ceilings=[{"a": 1.0}], rate=100.0)
    newer = AMD | {"versions": {"torch": "2.13"}, "load_average_1min": 9.0}
    b = document([speed()], newer, passes=3, ceilings=[{"a": 2.0}], rate=101.0)
    torch = {"machine.versions.torch": ("2.11", "2.13")}
    assert diff(a, b).settings == {"passes": (5, 3), "ceilings.0.a": (1.0, 2.0)} | torch


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["bench", "diff", *map(str, arguments)])
    if isinstance(done.exception, UsageError):
        return 2, done.stdout, f"{done.stderr}{done.exception}"
    return done.exit_code, done.stdout, done.stderr


def test_the_command(tmp_path: Path) -> None:
    a = stored(tmp_path, "a.json", document([speed(100.0), speed(dtype="fp32")]))
    b = stored(tmp_path, "b.json", document([speed(50.0)], passes=3))
    code, stdout, stderr = run(a, b, "--json", tmp_path / "d.json")
    found = json.loads(stdout.splitlines()[-1])
    assert code == 0 and found == json.loads((tmp_path / "d.json").read_text())
    assert found["worse"] == 2 and found["better"] == 0 and found["same_machine"]
    assert found["only_in_a"] == [{"model": "tiny", "dtype": "fp32", "batch_frames": "auto"}]
    assert found["differing_settings"] == {"passes": {"a": None, "b": 3}}
    assert all(key in row for row in found["rows"] for key in found["case_keys"])
    assert "DIFFERS: passes" in stderr and "ONLY IN A" in stderr and "-50.0" in stderr
    assert run(a, b, "--fail-on-worse")[0] == 1
    assert run(b, a, "--fail-on-worse")[0] == 0
    assert run(a, a, "--fail-on-worse")[0] == 0
    assert run(a, b, "--noise", "60", "--fail-on-worse")[0] == 1  # a case of A is not there any more
    assert run(b, a, "--noise", "200", "--fail-on-worse")[0] == 0


def test_gate_fails_if_nothing_was_compared(tmp_path: Path) -> None:
    a, b = (stored(tmp_path, f"{model}.json", document([speed(model=model)])) for model in ("m", "folder-m"))
    code, stdout, said = run(a, b, "--fail-on-worse")
    assert code == 2 and "no case was measured in both" in said and json.loads(stdout)["only_in_a"]
    assert run(a, b)[0] == 0


def test_diff_does_not_overwrite_its_inputs(tmp_path: Path) -> None:
    a, b = (stored(tmp_path, f"{name}.json", document([speed()])) for name in "ab")
    before = a.read_text()
    for option in ("--json", "--report-html"):
        code, stdout, said = run(a, b, option, a)
        assert (code, stdout) == (2, "") and a.read_text() == before, said


def test_the_command_on_different_machines(tmp_path: Path) -> None:
    a, b = stored(tmp_path, "a.json", document([speed()])), stored(tmp_path, "b.json", document([speed(1.0)], H200))
    code, stdout, stderr = run(a, b)
    found = json.loads(stdout)
    assert code == 0 and not found["compared"] and found["rows"] == [] and found["worse"] == 0
    assert "DIFFERENT MACHINES: nothing is compared" in stderr and " worse" not in stderr
    code, _, stderr = run(a, b, "--fail-on-worse")
    assert code == 2 and "not compared" in stderr  # a gate that cannot answer does not let through
    code, stdout, stderr = run(a, b, "--across-machines", "--fail-on-worse")
    assert code == 1 and json.loads(stdout)["worse"] > 0
    assert (
        "A: AMD EPYC, 2 vCPUs, 24 GiB  " in stderr
        and "B: NVIDIA H200 with Intel(R) Xeon(R), 16 vCPUs, 128 GiB  " in stderr
    )


def test_other_benchmarks_are_not_compared(tmp_path: Path) -> None:
    a = stored(tmp_path, "a.json", document([speed()]))
    code, stdout, stderr = run(a, stored(tmp_path, "b.json", document([], benchmark="loss")))
    assert (code, stdout) == (2, "") and "benchmark is throughput in one and loss in the other" in stderr
    code, _, stderr = run(a, stored(tmp_path, "c.json", document([], case_keys=("x",))))
    assert code == 2 and "case_keys is model, dtype, batch_frames in one and x in the other" in stderr
    code, _, stderr = run(a, stored(tmp_path, "d.json", document([], None)))
    assert code == 2 and "does not say what it was measured on" in stderr


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"benchmark": "throughput", "case_keys": [], "ro',
        "[]",
        "3",
        "null",
        "{}",
        '{"benchmark": "x", "rows": []}',
        '{"benchmark": "x", "case_keys": [], "rows": [1]}',
        '{"benchmark": "x", "case_keys": ["a"], "rows": [{"b": 1}]}',
        '{"benchmark": "x", "case_keys": [], "rows": [{"ms": NaN}]}',
        '{"benchmark": "x", "case_keys": [], "rows": [{"rtfx": 1e999}]}',
        '{"benchmark": "x", "case_keys": [], "rows": [{"rtfx": 1e-320}]}',
        '{"benchmark": "x", "case_keys": [], "rows": [{"rtfx": 1' + 400 * "0" + "}]}",
        '{"benchmark": "x", "case_keys": [], "rows": [{"rtfx": 1' + 5000 * "0" + "}]}",
        '{"benchmark": "x", "case_keys": [], "rows": [], "machine": {"cpu_cores": 1' + 30 * "0" + "}}",
        "[" * 100_000,
        "\ud800",
    ],
)
def test_invalid_result_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError, match=r"a\.json: not a benchmark's result") as refused:
        read(path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    assert run(path, path)[0] == 2


def test_unreadable_results(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read(path)
