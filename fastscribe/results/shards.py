"""Shards: the part of the inputs that one of several independent processes transcribes.

The hash of an input's id decides its shard, so neither the order of the inputs nor finished results matter. Shards are
numbered from 0, as indices of SLURM, Kubernetes and AWS Batch usually are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastscribe.errors import UsageError

_SHARD_PATTERN = re.compile(r"(auto|\d{1,9})/(\d{1,9})", re.ASCII)
_SLURM_INDEX = "SLURM_ARRAY_TASK_ID"
# Of Kubernetes and of AWS Batch, which do not say how many tasks there are, and what the user calls that number.
_BARE_INDICES = {"JOB_COMPLETION_INDEX": "the job's completions", "AWS_BATCH_JOB_ARRAY_INDEX": "the array's size"}


@dataclass(frozen=True)
class Shard:
    index: int
    count: int
    source: str = field(default="--shard", compare=False)  # of the numbers: the option, or an environment variable

    def holds(self, id: str) -> bool:
        return self.count == 1 or shard_of(id, self.count) == self.index

    @property
    def suffix(self) -> str:
        """Suffix of the names of its files; empty if there is one shard only."""
        return "" if self.count == 1 else f".shard-{self.index}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


UNSHARDED = Shard(0, 1)


def shard_of(id: str, count: int) -> int:
    """Return the shard of an id, from 0 to count - 1: the same on every machine and in every version."""
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


def choose_shard(given: str | None, environment: Mapping[str, str]) -> Shard:
    """Return the shard of this process.

    Args:
        given: "i/n"; "auto/n": the scheduler's index; None: all from the scheduler, if there is one.
        environment: Environment variables.

    Raises:
        UsageError: `given` is malformed, or the scheduler's variables do not suffice.
    """
    if given is None:
        return _from_scheduler(environment)
    match = _SHARD_PATTERN.fullmatch(given.strip())
    if match is None:
        raise UsageError(f"--shard {given}: not i/n, such as 0/4 for the first of four, or auto/4")
    count = int(match[2])
    index = _scheduler_index(given, count, environment) if match[1] == "auto" else int(match[1])
    return _checked(Shard(index, count), f"--shard {given}")


def _checked(shard: Shard, where: str) -> Shard:
    if shard.count == 0:
        raise UsageError(f"{where}: the second number is that of all shards, 1 or more; 0/1 is everything")
    if not 0 <= shard.index < shard.count:
        last = shard.count - 1
        raise UsageError(f"{where}: shards are numbered from 0, here 0/{shard.count} to {last}/{shard.count}")
    return shard


def _scheduler_index(given: str, count: int, environment: Mapping[str, str]) -> int:
    if _SLURM_INDEX in environment:
        index, tasks = _slurm_task(environment)
        if tasks != count:
            raise UsageError(
                f"--shard {given}: this SLURM array has {tasks} tasks; give --shard $SLURM_ARRAY_TASK_ID/{count}, or, where "
                "the first task has the number 1, one less"
            )
        return index
    for name in _BARE_INDICES:
        if name in environment:
            return _number(environment, name)
    names = ", ".join(_BARE_INDICES)
    raise UsageError(f"--shard {given}: none of {_SLURM_INDEX}, {names} is set here; give a number")


def _from_scheduler(environment: Mapping[str, str]) -> Shard:
    if _SLURM_INDEX in environment:
        index, tasks = _slurm_task(environment)
        if tasks == 1:
            raise UsageError(
                "this SLURM array has a single task, which does not say whether there were more before: give --shard I/N, or "
                "--shard 0/1 to do everything here"
            )
        return _checked(Shard(index, tasks, _SLURM_INDEX), _SLURM_INDEX)
    for name, count in _BARE_INDICES.items():
        if name in environment:
            raise UsageError(
                f"{name} is set, which does not say how many tasks there are: give --shard auto/N ({count}), or "
                "--shard 0/1 to do everything here"
            )
    return UNSHARDED


def _slurm_task(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return (index from 0, count) of an array without holes; --array=3,7 does not tell the number of tasks."""
    first, last = _number(environment, "SLURM_ARRAY_TASK_MIN"), _number(environment, "SLURM_ARRAY_TASK_MAX")
    count = _number(environment, "SLURM_ARRAY_TASK_COUNT")
    if first not in (0, 1) or last - first + 1 != count:
        raise UsageError(
            f"this SLURM array has {count} tasks from {first} to {last}, which do not say into how many shards the inputs "
            "are divided: give --shard I/N, or --shard 0/1 to do everything here"
        )
    return _number(environment, _SLURM_INDEX) - first, count


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{name} is {text!r}, not a number: give --shard i/n")
    return int(text)
