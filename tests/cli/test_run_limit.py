"""`--stop-after` and `--stop-at-usd`: their values, and what a dry run says about them. test_capped_runs.py runs them.

No GPU takes part.
"""

from __future__ import annotations

import pytest

from fastscribe.cli import run_limit
from fastscribe.cli.run_limit import LimitCheck, RunLimit, choose_limit, parse_time
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.pipeline.prices import list_price
from fastscribe.pipeline.workers import devices
from tests.conftest import AUDIO
from tests.fakes.cuda import forbid_contexts
from tests.helpers.processes import fastscribe


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h30m", 9000), ("3600s", 3600), ("3600", 3600), ("1.5h", 5400), ("1d2h", 93_600), ("0.5", 0.5)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "5x", "h", "30m2h", "1h 30m", "nan", "inf", "9" * 400, "٣"])
def test_no_times(text: str) -> None:
    with pytest.raises(UsageError, match="not a time, such as 90m"):
        parse_time(text)


def test_the_first_of_two_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_limit(None, None, "cpu", 2.0) is None
    by_time = choose_limit(5.0, "1h", "cpu", 2.0)
    assert by_time is not None and (by_time.after_s, by_time.text) == (3600, "after 1h")
    by_usd = choose_limit(5.0, "3h", "cpu", 2.0)
    assert by_usd is not None and (by_usd.after_s, by_usd.text) == (9000, "at 5.00 USD")
    assert by_usd.work_s == 8970
    monkeypatch.setattr(run_limit, "process_age_s", lambda: 100.0)
    old = choose_limit(None, "1h", "cpu", None)
    assert old is not None and old.elapsed_s >= 100


def test_processes_of_one_gpu_are_paid_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    monkeypatch.setattr(run_limit, "gpu_name", lambda number: f"GPU {number}")
    assert run_limit._gpu_names("auto", "0,0,0") == ["GPU 0"]
    assert run_limit._gpu_names("auto", "0,1,0") == ["GPU 0", "GPU 1"]


@pytest.mark.parametrize(
    ("device", "names"), [("auto", ["GPU 0"]), ("cuda", ["GPU 0"]), ("cuda:1", ["GPU 1"]), ("cpu", [])]
)
def test_the_price_of_one_gpu_needs_no_context_on_it(
    device: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_contexts(monkeypatch)
    monkeypatch.setattr(run_limit, "num_gpus", lambda: 2)
    monkeypatch.setattr(run_limit, "gpu_name", lambda number: f"GPU {number}")
    assert run_limit._gpu_names(device, None) == names
    monkeypatch.setattr(run_limit, "num_gpus", lambda: 0)
    assert not run_limit._gpu_names(device, None)


@pytest.mark.parametrize(
    ("names", "after_s"),
    [(["NVIDIA H100 80GB HBM3"], 3600.0), (["NVIDIA H100 80GB HBM3"] * 4, 900.0)],
    ids=["one", "four"],
)
def test_the_price_is_that_of_all_gpus(names: list[str], after_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    price = list_price(names[0])
    assert price is not None
    monkeypatch.setattr(run_limit, "_gpu_names", lambda device, devices: names)
    found = choose_limit(price.usd_per_hour, None, "auto", None, "all")
    assert found is not None and found.after_s == pytest.approx(after_s)
    monkeypatch.setattr(run_limit, "_gpu_names", lambda device, devices: [*names, "NVIDIA H200"])
    with pytest.raises(UsageError, match="no price is known for this machine"):
        choose_limit(5.0, None, "auto", None, "all")


def limit(after_s: float) -> RunLimit:
    return RunLimit(after_s, "after 1h", "--stop-after", started_s=0.0)


@pytest.mark.parametrize(
    ("ready_s", "estimated_s", "said", "num_runs"),
    [
        (70.0, 3500.0, "stops after 1h: this suffices", 1),
        (70.0, 3501.0, "stops after 1h: about 2 runs are needed", 2),
        (70.0, 0.0, "stops after 1h: this suffices", 0),
        (3570.0, 1.0, "before the model is loaded: raise --stop-after", None),
    ],
)
def test_what_a_dry_run_expects(ready_s: float, estimated_s: float, said: str, num_runs: int | None) -> None:
    check = limit(3600.0).check(ready_s, estimated_s)
    assert said in str(check)
    assert check == LimitCheck(limit(3600.0), num_runs)
    assert check.to_json() == {"limit_s": 3600.0, "limit_suffices": num_runs in (0, 1), "limit_runs": num_runs}


def test_a_limit_that_ends_the_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_limit, "start_timer", lambda seconds: None)
    for after_s, expected in ((1e9, CheckpointError), (1e-9, UsageError)):
        with pytest.raises(expected), limit(after_s).enforced():
            raise CheckpointError("model.nemo", "unreadable")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--stop-at-usd", 5), "--stop-at-usd 5: no price is known for this machine: give --price-per-hour USD"),
        (("--stop-at-usd", 5, "--price-per-hour", 0), "--price-per-hour 0 never costs that much"),
        (("--stop-at-usd", 0, "--price-per-hour", 1), "--stop-at-usd 0: not a number of USD above 0"),
        (("--stop-at-usd", "nan", "--price-per-hour", 1), "--stop-at-usd nan: not a number of USD above 0"),
        (("--stop-after", "5x"), "--stop-after 5x: not a time"),
    ],
)
def test_wrong_limits_end_before_the_model_is_loaded(options: tuple[object, ...], said: str) -> None:
    done = fastscribe("transcribe", AUDIO, "--model", "/no/such/model", "--device", "cpu", *options)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
