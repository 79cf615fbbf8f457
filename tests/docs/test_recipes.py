"""The recipes for clusters run: under stand-ins for their schedulers, with a task that is killed and one that is retried."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_terminated_runs import program
from tests.conftest import ROOT
from tests.helpers.forked_runs import Runs
from tests.helpers.kill_runs import arguments, compare, make_clips
from tests.helpers.processes import fastscribe
from tests.helpers.schedulers import StandIn

pytestmark = pytest.mark.linux

EXAMPLES = ROOT / "docs" / "examples"
SLURM, KUBERNETES, BATCH = (EXAMPLES / name for name in ("slurm_array.sh", "kubernetes_job.yaml", "aws_batch_job.json"))
SHARDS = 3
KILLED = program(2, "[signal.SIGKILL]")  # in the second batch
NOTICED = program(2, "[signal.SIGTERM]")
Task = Callable[[int, str], int]  # a task's number and code to run first -> the exit code


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    opened = Runs(tmp_path_factory.mktemp("runs"))
    yield opened
    opened.close()


@pytest.fixture
def stand_in(runs: Runs, tmp_path: Path) -> StandIn:
    return StandIn(tmp_path, runs)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips") / "in"
    make_clips(folder, 18)
    return folder


@pytest.fixture(scope="module")
def expected(runs: Runs, clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("expected") / "out"
    given = arguments(clips, out)
    given[given.index("jsonl,srt")] = "jsonl"
    assert runs(given) == 0
    return out


def check(task: Task, first: list[tuple[int, str, int]], out: Path, expected: Path) -> None:
    """Run tasks, of which some end early, and then merge; run those that merge names again, and merge.

    Args:
        task: Runs a task.
        first: (number, code to run first, expected exit code) of each task.
        out: The output folder.
        expected: The results of a single run.
    """
    for number, code, exit_code in first:
        assert task(number, code) == exit_code
    merged = fastscribe("merge", out)
    early = [number for number, _, exit_code in first if exit_code]
    assert merged.returncode == 1
    [line] = [line for line in merged.stderr.splitlines() if "not complete, run them again" in line]
    assert [int(number) for number in re.findall(rf"(\d+)/{SHARDS}", line)] == early
    for number in early:
        assert task(number, "") == 0
    assert fastscribe("merge", out).returncode == 0
    problems, counts = compare(out, expected)
    assert problems == [] and not any(counts.values())


# --- SLURM -----------------------------------------------------------------------------------------------------------


def test_slurm_array(stand_in: StandIn, clips: Path, expected: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def task(number: int, code: str) -> int:
        """As sbatch --array=0-2 starts it; a retried one is of an array of its own, --array=NUMBER."""
        names = ("ID", "MIN", "MAX", "COUNT")
        values = (number, number, number, 1) if not code else (number, 0, SHARDS - 1, SHARDS)
        variables = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in zip(names, values, strict=True)}
        variables |= {"SLURM_JOB_ID": "77", "SHARDS": str(SHARDS)}
        return stand_in.run(["bash", SLURM, clips, out], variables, code)

    check(task, [(0, KILLED, 137), (1, NOTICED, 124), (2, "", 0)], out, expected)
    assert stand_in.calls == [["scontrol", "requeue", "77"]]  # of the task whose time was over


@pytest.mark.parametrize(("written", "calls"), [("", 0), ("{}", 1)])
def test_slurm_array_without_progress_ends(written: str, calls: int, tmp_path: Path) -> None:
    """It is requeued only if its journal grew."""
    folder = tmp_path / "bin"
    folder.mkdir()
    journal = tmp_path / f"journal.shard-1-of-{SHARDS}.jsonl"
    journal.write_text("header\n")
    for name, script in (
        ("srun", f"printf '%s' '{written}' >> '{journal}'; exit 124"),
        ("scontrol", f"echo \"$@\" >> '{tmp_path / 'calls'}'"),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o700)
    (tmp_path / "calls").touch()
    variables = {"SLURM_ARRAY_TASK_ID": "1", "SHARDS": str(SHARDS), "SLURM_JOB_ID": "77"}
    environment = {**os.environ, **variables, "PATH": f"{folder}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", SLURM, "in", tmp_path], env=environment, check=False).returncode == 124
    assert (tmp_path / "calls").read_text() == "requeue 77\n" * calls


def test_slurm_array_agrees_with_itself() -> None:
    """Its number of tasks, and its end before its time limit."""
    text = SLURM.read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", text, re.MULTILINE))
    [shards] = re.findall(r"SHARDS:=(\d+)", text)
    assert options["array"].partition("%")[0] == f"0-{int(shards) - 1}"
    [minutes] = re.findall(r"LIMIT:=(\d+)m", text)
    limit_h, limit_min, _ = map(int, options["time"].split(":"))
    assert 0 < 60 * limit_h + limit_min - int(minutes) <= 15
    assert subprocess.run(["bash", "-n", SLURM], check=False).returncode == 0


# --- Kubernetes ------------------------------------------------------------------------------------------------------


def job() -> dict[str, Any]:
    return yaml.safe_load(KUBERNETES.read_text())


def test_kubernetes_job_is_one() -> None:
    found = job()
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    spec, pod = found["spec"], found["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] <= spec["completions"]
    assert pod["restartPolicy"] == "Never"  # backoffLimitPerIndex and podFailurePolicy need it
    assert spec["backoffLimitPerIndex"] > 0 and pod["terminationGracePeriodSeconds"] >= 30
    [container] = pod["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables["SHARDS"] == str(spec["completions"])
    assert all(isinstance(value, str) for value in variables.values())
    for rule in spec["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        assert codes is None or (codes["containerName"], codes["values"]) == (container["name"], [1, 2])


def test_kubernetes_job(stand_in: StandIn, clips: Path, expected: Path, tmp_path: Path) -> None:
    [container] = job()["spec"]["template"]["spec"]["containers"]
    out = tmp_path / "out"
    given = {"INPUTS": str(clips), "OUTPUT": str(out), "SHARDS": str(SHARDS)}
    assert given.keys() <= {one["name"] for one in container["env"]}
    words = [
        re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], word) for word in container["command"] + container["args"]
    ]

    def task(number: int, code: str) -> int:
        code_of_process = stand_in.run(words, {**given, "JOB_COMPLETION_INDEX": str(number)}, code)
        return 128 - code_of_process if code_of_process < 0 else code_of_process  # as the kubelet reports it

    check(task, [(0, "", 0), (1, NOTICED, 143), (2, KILLED, 137)], out, expected)


# --- AWS Batch -------------------------------------------------------------------------------------------------------


def definition() -> dict[str, Any]:
    return json.loads(BATCH.read_text())


def test_aws_batch_job_definition_is_one() -> None:
    session = pytest.importorskip("botocore.session", reason="needs botocore, which comes with moto, of the group dev")
    from botocore.validate import ParamValidator

    operation = session.get_session().get_service_model("batch").operation_model("RegisterJobDefinition")
    report = ParamValidator().validate(definition(), operation.input_shape)
    assert not report.has_errors(), report.generate_report()
    assert ParamValidator().validate({"type": 1}, operation.input_shape).has_errors()


def retries(exit_code: int) -> bool:
    """As AWS Batch decides: the first condition that fits. A host that is gone is not tested here."""
    for rule in definition()["retryStrategy"]["evaluateOnExit"]:
        pattern = rule.get("onExitCode", "")
        if pattern == str(exit_code) or (pattern.endswith("*") and str(exit_code).startswith(pattern[:-1])):
            return rule["action"] == "RETRY"
    raise AssertionError(exit_code)


def test_aws_batch_array(stand_in: StandIn, clips: Path, expected: Path, tmp_path: Path) -> None:
    settings = definition()["containerProperties"]
    out = tmp_path / "out"
    parameters = definition()["parameters"] | {"inputs": clips, "output": out, "shards": f"auto/{SHARDS}"}
    assert parameters.keys() == definition()["parameters"].keys()
    [entry_point] = re.findall("^ENTRYPOINT (.*)", (ROOT / "Dockerfile.cuda").read_text(), re.MULTILINE)
    command = [*json.loads(entry_point), *settings["command"]]  # as a container's
    words = [str(parameters[word[5:]]) if word.startswith("Ref::") else word for word in command]
    own = {one["name"]: one["value"] for one in settings["environment"] if one["name"] != "FASTSCRIBE_MODEL"}

    def task(number: int, code: str) -> int:
        code_of_process = stand_in.run(words, {**own, "AWS_BATCH_JOB_ARRAY_INDEX": str(number)}, code)
        return 128 - code_of_process if code_of_process < 0 else code_of_process

    first = [(0, NOTICED, 143), (1, KILLED, 137), (2, "", 0)]
    assert [retries(exit_code) for _, _, exit_code in first] == [True, True, False]
    assert [retries(exit_code) for exit_code in (0, 1, 2)] == [False] * 3
    check(task, first, out, expected)
