"""Options of --engine ray that do not fit, and a machine without the extra."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fastscribe.errors import UsageError
from fastscribe.ray import library
from fastscribe.ray.run import Places, placement
from tests.helpers.processes import refused


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--engine", "ray", "--device", "cuda:1"], "--device cuda:1: with --engine ray it is auto, cpu or cuda"),
        (["--engine", "ray", "--devices", "all"], "--devices and --engine ray exclude each other"),
        (["--engine", "ray", "--report-html", "page.html"], "--report-html shows the batches of one process"),
        (["--engine", "ray", "--dry-run"], "--dry-run times this machine, so it does not go with --engine ray"),
    ],
    ids=["device", "devices", "page", "dry run"],
)
def test_options_that_do_not_fit(options: list[object], problem: str) -> None:
    assert problem in refused("transcribe", "a.wav", *options)


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--engine ray needs ray: install fastscribe with its extra ray \(in a clone"):
        library.ray_library()


def test_rays_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    problem = "ray://host:1: .* run the command on a node of the cluster"
    with pytest.raises(UsageError, match=problem), library.connected("ray://host:1"):
        pass
    monkeypatch.setenv("RAY_ADDRESS", "ray://host:1")
    with pytest.raises(UsageError, match=problem), library.connected(None):
        pass


@pytest.mark.parametrize(
    ("error", "why"),
    [(SystemExit(1), "Ray ended the program"), (Exception("The node timed out.\nMore"), "The node timed out.")],
    ids=["exit", "timeout"],
)
def test_a_cluster_that_does_not_start(error: BaseException, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**given: object) -> None:
        raise error

    fake = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(library, "ray_library", lambda: fake)
    with pytest.raises(UsageError) as raised, library.connected(None):
        pass
    assert str(raised.value) == f"a Ray cluster cannot be reached: {why} (logs: /tmp/ray/session_latest/logs)"


@pytest.mark.parametrize(
    ("nodes", "workers", "device", "expected"),
    [
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 1}], None, "auto", (3, 1, 1)),
        ([{"CPU": 8, "GPU": 2}], 1, "cuda", (1, 1, 1)),
        ([{"CPU": 8, "GPU": 2}], 2, "cpu", (2, 0, 4)),
        ([{"CPU": 4}, {"CPU": 8}, {"memory": 1}], None, "auto", (2, 0, 4)),
        ([{"CPU": 4}, {"CPU": 8}], 6, "auto", (6, 0, 2)),
        ([], None, "auto", (1, 0, 1)),
    ],
    ids=["one a GPU", "fewer", "CPUs beside GPUs", "one a node", "shared CPUs", "no node yet"],
)
def test_number_and_resources_of_actors(
    nodes: list[dict[str, float]], workers: int | None, device: str, expected: tuple[int, int, int]
) -> None:
    assert placement(nodes, workers, device) == Places(*expected)


def test_a_cluster_without_gpus() -> None:
    with pytest.raises(UsageError, match="--device cuda: the cluster has no GPU"):
        placement([{"CPU": 8}], None, "cuda")
