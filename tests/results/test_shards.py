"""Every input is in one shard, the same on every machine; shards from schedulers' variables."""

from __future__ import annotations

import pytest

from fastscribe.errors import UsageError
from fastscribe.results.shards import UNSHARDED, Shard, choose_shard, shard_of


def slurm(index: object, first: object = 0, last: object = 3, count: object = 4) -> dict[str, str]:
    names = ("ID", "MIN", "MAX", "COUNT")
    return {
        f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in zip(names, (index, first, last, count), strict=True)
    }


def test_shards_are_the_same_in_every_version() -> None:
    ids = ["a.wav", "b.wav", "x/c.flac", "é.mp3", "", "d/a.wav@1500"]
    assert [shard_of(id, 7) for id in ids] == [3, 2, 3, 4, 1, 6]
    assert [shard_of(id, 1000) for id in ids] == [708, 119, 194, 746, 652, 258]


def test_shards_are_alike_in_size() -> None:
    sizes = [0] * 8
    for number in range(8000):
        sizes[shard_of(f"corpus/{number}.wav", 8)] += 1
    assert min(sizes) > 850 and max(sizes) < 1150


def test_names_of_a_shards_files() -> None:
    assert UNSHARDED.suffix == ""
    assert Shard(3, 12).suffix == ".shard-3-of-12"
    assert str(Shard(3, 12)) == "3/12"


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, (0, 1)),
        ("0/1", {}, (0, 1)),
        (" 2/3 ", {}, (2, 3)),
        ("2/3", slurm(0), (2, 3)),  # the option takes precedence
        (None, slurm(2), (2, 4)),
        (None, slurm(1, 1, 4, 4), (0, 4)),  # numbered from 1
        ("auto/4", slurm(3), (3, 4)),
        ("auto/4", slurm(4, 1, 4, 4), (3, 4)),
        ("auto/8", {"JOB_COMPLETION_INDEX": "7"}, (7, 8)),
        ("auto/8", {"AWS_BATCH_JOB_ARRAY_INDEX": "7"}, (7, 8)),
        (None, {"SLURM_JOB_ID": "5"}, (0, 1)),  # no array
    ],
)
def test_shard_from_option_or_scheduler(
    given: str | None, environment: dict[str, str], expected: tuple[int, int]
) -> None:
    shard = choose_shard(given, environment)
    assert (shard.index, shard.count) == expected


@pytest.mark.parametrize(
    ("given", "environment", "said"),
    [
        ("", {}, "not i/n"),
        ("-1/4", {}, "not i/n"),
        ("١/٤", {}, "not i/n"),
        ("4/4", {}, "numbered from 0, here 0/4 to 3/4"),
        ("0/0", {}, "1 or more; 0/1 is everything"),
        ("auto/4", {}, "none of SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX, AWS_BATCH_JOB_ARRAY_INDEX is set"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "4"}, "numbered from 0"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX is 'x'"),
        (None, {"JOB_COMPLETION_INDEX": "0"}, "--shard auto/N (the job's completions)"),
        (None, {"AWS_BATCH_JOB_ARRAY_INDEX": "0"}, "--shard auto/N (the array's size)"),
        (None, {"SLURM_ARRAY_TASK_ID": "0"}, "SLURM_ARRAY_TASK_MIN is ''"),
        (None, slurm("²"), "not a number"),
        (None, slurm(4), "numbered from 0"),
        (None, slurm(0, 0, 8, 3), "3 tasks from 0 to 8"),  # --array=0-8:4
        (None, slurm(7, 3, 7, 2), "2 tasks from 3 to 7"),  # --array=3,7
        (None, slurm(5, 5, 5, 1), "1 tasks from 5 to 5"),  # --array=5: which of how many?
        (None, slurm(0, 0, 0, 1), "a single task"),  # --array=0, perhaps of four
        ("auto/4", slurm(1, 0, 2, 3), "has 3 tasks"),
        (None, slurm(0, 0, 3, 0), "0 tasks"),
    ],
)
def test_unknown_scheduler_settings_are_errors(given: str | None, environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match="shard") as raised:
        choose_shard(given, environment)
    assert said in str(raised.value)
