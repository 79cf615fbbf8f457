"""Options of --engine ray that do not fit, and a machine without the extra."""

from __future__ import annotations

import sys

import pytest

from fastscribe.errors import UsageError
from fastscribe.ray import library
from fastscribe.ray.pool import Size, placement
from tests.helpers.processes import fastscribe as command


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--ray-address", "auto"], "--ray-address needs --engine ray"),
        (["--ray-workers", 2], "--ray-workers needs --engine ray"),
        (["--engine", "ray", "--device", "cuda:1"], "--device cuda:1: with --engine ray it is auto, cpu or cuda"),
        (["--engine", "ray", "--devices", "all"], "--devices and --engine ray exclude each other"),
        (["--engine", "ray", "--report-html", "page.html"], "--report-html shows the batches of one process"),
    ],
    ids=["address", "workers", "device", "devices", "page"],
)
def test_options_that_do_not_fit(options: list[object], problem: str) -> None:
    done = command("transcribe", "a.wav", *options)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and problem in done.stderr


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--engine ray needs ray: install fastscribe with its extra ray \(in a clone"):
        library.ray_library()


def test_rays_client_and_an_unknown_cluster_are_refused() -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    with pytest.raises(UsageError, match="run the command on a node of the cluster"), library.connected("ray://host:1"):
        pass


@pytest.mark.parametrize(
    ("nodes", "size", "expected"),
    [
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 1}], Size(), (3, {"num_gpus": 1, "num_cpus": 1})),
        ([{"CPU": 8, "GPU": 2}], Size(gpus=0.5), (4, {"num_gpus": 0.5, "num_cpus": 1})),
        ([{"CPU": 8, "GPU": 2}], Size(workers=2, gpus=0), (2, {"num_gpus": 0, "num_cpus": 4})),
        ([{"CPU": 4}, {"CPU": 8}, {"memory": 1}], Size(), (2, {"num_gpus": 0, "num_cpus": 4})),
        ([{"CPU": 4}, {"CPU": 8}], Size(workers=6), (6, {"num_gpus": 0, "num_cpus": 2})),
        ([{"CPU": 4}, {"CPU": 8}], Size(cpus=2), (6, {"num_gpus": 0, "num_cpus": 2})),
        ([], Size(), (1, {"num_gpus": 0, "num_cpus": 1})),
    ],
    ids=[
        "a worker a GPU",
        "two a GPU",
        "CPUs beside GPUs",
        "a worker a node",
        "shared CPUs",
        "CPUs a worker",
        "no node yet",
    ],
)
def test_number_and_resources_of_workers(nodes: list[dict[str, float]], size: Size, expected: object) -> None:
    assert placement(nodes, size) == expected
