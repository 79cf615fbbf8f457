"""The package stays small: the numbers of scripts/house.py keep within their limits, which follow what has been won."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from scripts import house

ROOM = 1.04  # a limit is set with 2 % of room; with more than twice that left, it is out of date


@cache
def measured() -> dict[str, int]:
    return house.measure()


@pytest.mark.parametrize("name", house.LIMITS)
def test_numbers_keep_within_their_limits(name: str) -> None:
    value, limit = measured()[name], house.LIMITS[name].at_most
    assert house.above(name, value) is None
    assert limit <= value * ROOM + 1, f"{name}: {value:,} now: lower the limit of {limit:,} in scripts/house.py"


def test_a_number_above_its_limit_says_where_the_limit_is_and_what_to_do() -> None:
    limit = house.LIMITS["lines of the package"]
    line = house.above("lines of the package", limit.at_most + 1)
    assert line is not None and line.startswith(
        f"lines of the package: {limit.at_most + 1:,}, and LIMITS in scripts/house.py"
    )
    assert limit.advice in line
    assert all(one.advice for one in house.LIMITS.values())


def test_words_in_code_are_found_and_those_of_prose_are_not() -> None:
    code = '"""On speakers."""\ndef f(Speaker_names):\n    """Of speakers."""\n    return options["--speakers"]\n# speakers\n'
    assert [word for word in house._words(ast.parse(code)) if "speaker" in word] == ["speaker_names", "--speakers"]


def test_arguments_are_counted() -> None:
    assert house.num_arguments("pipeline.workers.groups", "ReadBatch") > 4
    with pytest.raises(LookupError):
        house.num_arguments("pipeline.workers.groups", "NoSuchClass")
