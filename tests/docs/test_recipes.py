"""The recipes for clusters: what each one starts, and what becomes of a task that ends early.

tests/results/test_shards.py has the parts that the variables of schedulers mean, and tests/cli/test_terminated_runs.py has
runs that end early and go on.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fastscribe.results.shards import choose_shard
from tests.conftest import ROOT
from tests.docs.test_examples import check_call

pytestmark = pytest.mark.linux

EXAMPLES = ROOT / "docs" / "examples"
SLURM, KUBERNETES, BATCH = (EXAMPLES / name for name in ("slurm_array.sh", "kubernetes_job.yaml", "aws_batch_job.json"))
SHARDS = 3


def check_task(words: list[str], inputs: str, output: str, variables: dict[str, str]) -> None:
    """Check that a command of the program is right, and does the second part of the inputs with these variables."""
    assert words == ["transcribe", inputs, "--output-dir", output, "--shard", words[5], "--no-progress"]
    check_call(words)
    assert str(choose_shard(words[5], variables)) == f"1/{SHARDS}"


# --- SLURM -----------------------------------------------------------------------------------------------------------


PROGRAMS = {
    "srun": 'exec "$@"',
    "timeout": 'shift 3; code=0; "$@" || code=$?; [ $code -ne 143 ] || code=124; exit $code',  # each SIGTERM is its own
    "fastscribe": 'printf "%s\\n" "$@" > "$CALLED"; printf "%s" "$WRITTEN" >> "$JOURNAL"; eval "$END"',
    "scontrol": 'echo "$@" >> "$REQUEUED"',
}


@pytest.mark.parametrize(
    ("written", "end", "code", "requeued"),
    [
        ("{}", "exit 0", 0, ""),
        ("{}", "kill -KILL $$", 137, ""),
        ("{}", "kill -TERM $$", 124, "requeue 77\n"),  # its time was over
        ("", "kill -TERM $$", 124, ""),  # it would not end
    ],
    ids=["done", "killed", "late", "late without a result"],
)
def test_slurm_array(written: str, end: str, code: int, requeued: str, tmp_path: Path) -> None:
    """A task as sbatch --array=0-2 starts it: srun and scontrol are stand-ins, and the program ends as the case says."""
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o700)
    places = {name: str(tmp_path / name.lower()) for name in ("CALLED", "REQUEUED")}
    places["JOURNAL"] = str(tmp_path / f"journal.shard-1-of-{SHARDS}.jsonl")
    for path in places.values():
        Path(path).touch()
    variables = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "77", "SHARDS": str(SHARDS)}
    variables |= {"WRITTEN": written, "END": end, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", SLURM, "in", tmp_path], env=os.environ | places | variables, check=False)
    assert (done.returncode, Path(places["REQUEUED"]).read_text()) == (code, requeued)
    check_task(Path(places["CALLED"]).read_text().splitlines(), "in", str(tmp_path), {})


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
        assert codes is None or (codes["containerName"], codes["values"]) == (container["name"], [2, 3])


def test_a_pod_does_its_part() -> None:
    [container] = job()["spec"]["template"]["spec"]["containers"]
    given = {"INPUTS": "in", "OUTPUT": "out", "SHARDS": str(SHARDS)}
    assert given.keys() <= {one["name"] for one in container["env"]}
    name, *words = [
        re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], word) for word in container["command"] + container["args"]
    ]
    assert name == "fastscribe"
    check_task(words, "in", "out", {"JOB_COMPLETION_INDEX": "1"})


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


def test_a_job_of_the_array_does_its_part() -> None:
    parameters = {"inputs": "in", "output": "out", "shards": f"auto/{SHARDS}"}
    assert parameters.keys() == definition()["parameters"].keys()
    [entry_point] = re.findall("^ENTRYPOINT (.*)", (ROOT / "Dockerfile.cuda").read_text(), re.MULTILINE)
    name, *command = [*json.loads(entry_point), *definition()["containerProperties"]["command"]]  # as a container's
    assert name == "fastscribe"
    words = [parameters[word[5:]] if word.startswith("Ref::") else word for word in command]
    check_task(words, "in", "out", {"AWS_BATCH_JOB_ARRAY_INDEX": "1"})


def test_a_job_that_ended_early_is_retried_and_no_other() -> None:
    assert [retries(exit_code) for exit_code in (143, 137, 1, 0, 2, 3)] == [True] * 3 + [False] * 3
