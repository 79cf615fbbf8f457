"""Limits of control groups, in trees of both versions as containers, systemd and SLURM make them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastscribe._system import limits, processors

MIB = 1 << 20


class Tree:
    """A system's groups in a folder, and what /proc says of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "proc").mkdir()
        self.says(group="", mounts="")
        monkeypatch.setattr(limits, "_PROC", str(folder / "proc"))

    def says(self, group: str, mounts: str) -> None:
        (self.folder / "proc/cgroup").write_text(group)
        (self.folder / "proc/mountinfo").write_text(f"23 1 0:21 / /proc rw,nosuid - proc proc rw\n{mounts}")

    def mount(self, version: int, root: str = "/", name: str = "", controllers: str = "") -> str:
        """Return a line of mountinfo."""
        end = "cgroup2 cgroup2 rw,nsdelegate" if version == 2 else f"cgroup cgroup rw,{controllers}"
        return f"35 24 0:30 {root} {self.folder / 'top' / name} rw,nosuid shared:9 - {end}\n"

    def write(self, path: str, **values: object) -> None:
        """Write a group's files, whose names have _ for the first dot."""
        group = self.folder / "top" / path
        group.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (group / name.replace("_", ".", 1)).write_text(f"{value}\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(limits, "total_bytes", lambda: 4096 * MIB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    return Tree(tmp_path, monkeypatch)


def pids() -> list[tuple[str, ...]]:
    return list(limits.settings("pids", "pids.max", "pids.current"))


def test_the_smallest_limit_on_the_way_up_counts_in_version_2(tree: Tree) -> None:
    """A service in a slice: its own limits are larger than those above, or there are none."""
    tree.says("0::/user.slice/job.scope/step\n", tree.mount(2))
    tree.write("user.slice/job.scope/step", memory_max="max", cpu_max="max 100000", pids_max="max", pids_current=3)
    tree.write("user.slice/job.scope", memory_max=512 * MIB, cpu_max="250000 100000", pids_max=100, pids_current=40)
    tree.write("user.slice", memory_max=1024 * MIB, cpu_max="800000 100000", pids_max=5000, pids_current=4990)
    tree.write("user.slice/other", memory_max=MIB, cpu_max="100000 100000", pids_max=1, pids_current=1)
    assert limits.usable_bytes() == 512 * MIB and processors.usable_processors() == 2
    assert pids() == [("max", "3"), ("100", "40"), ("5000", "4990")]


def test_hierarchies_of_version_1_have_groups_of_their_own(tree: Tree) -> None:
    tree.says(
        "11:pids:/batch\n4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm\n1:name=systemd:/elsewhere\n0::/elsewhere\n",
        tree.mount(1, name="memory", controllers="memory")
        + tree.mount(1, name="cpu", controllers="cpu,cpuacct")
        + tree.mount(1, name="pids", controllers="pids")
        + tree.mount(2, name="unified"),
    )
    tree.write("memory/slurm/job_7", memory_limit_in_bytes=(1 << 63) - 4096)
    tree.write("memory/slurm", memory_limit_in_bytes=2048 * MIB)
    tree.write("memory", memory_limit_in_bytes=(1 << 63) - 4096)
    tree.write("cpu/slurm", cpu_cfs_quota_us=300000, cpu_cfs_period_us=100000)
    tree.write("cpu", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    tree.write("pids/batch", pids_max=20, pids_current=5)
    tree.write("unified/elsewhere", memory_max=3072 * MIB, cpu_max="max 100000")
    assert limits.usable_bytes() == 2048 * MIB and processors.usable_processors() == 3
    assert pids() == [("20", "5")]


@pytest.mark.parametrize(
    ("group", "root"), [("/docker/abc", "/docker/abc"), ("/", "/"), ("/", "/../.."), ("/../x", "/")]
)
def test_a_container_sees_its_own_group_at_the_top(tree: Tree, group: str, root: str) -> None:
    tree.says(f"0::{group}\n", tree.mount(2, root))
    tree.write("", memory_max=256 * MIB, cpu_max="50000 100000")
    assert limits.usable_bytes() == 256 * MIB and processors.usable_processors() == 1


def test_a_group_below_a_part_of_the_tree_is_found(tree: Tree) -> None:
    tree.says("0::/docker/abc/inner\n", tree.mount(2, "/docker/abc"))
    tree.write("inner", memory_max=128 * MIB)
    tree.write("", memory_max="max")
    assert limits.usable_bytes() == 128 * MIB


def test_a_system_without_groups_has_no_limits(tree: Tree) -> None:
    assert limits.usable_bytes() == 4096 * MIB and processors.usable_processors() == 64
    (tree.folder / "proc/mountinfo").unlink()
    assert limits.usable_bytes() == 4096 * MIB and not pids()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "16"}, 4),
        ({"SLURM_CPUS_ON_NODE": "16"}, 16),
        ({"SLURM_CPUS_PER_TASK": "128"}, 64),
        ({"SLURM_CPUS_PER_TASK": "8(x2)"}, 64),
    ],
)
def test_a_task_of_slurm_has_the_processors_that_it_asked_for(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: int
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert processors.usable_processors() == expected


def test_processes_have_the_room_that_the_tightest_group_leaves(tree: Tree) -> None:
    tree.says("0::/a/b\n", tree.mount(2))
    tree.write("a/b", pids_max="max", pids_current=10)
    assert limits.room_for_processes(1, 2, 4)[0] > 100
    tree.write("a", pids_max=164, pids_current=60)
    assert limits.room_for_processes(1, 2, 4) == (
        10,
        "a control group may have 164 processes and threads here (pids.max)",
    )
