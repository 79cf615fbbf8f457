"""The package stays small: the numbers of scripts/house.py keep within their limits, which follow what has been won."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from scripts import house

SLACK = 1.02  # a limit may be this much above the number: small changes need no new limits


@cache
def measured() -> dict[str, int]:
    return house.measure()


@pytest.mark.parametrize("name", house.LIMITS)
def test_numbers_keep_within_their_limits(name: str) -> None:
    value, limit = measured()[name], house.LIMITS[name]
    assert value <= limit, f"{name}: {value:,}, and at most {limit:,} are wanted"
    assert limit <= value * SLACK + 1, f"{name}: {value:,} now: lower the limit of {limit:,} in scripts/house.py"


def test_words_in_code_are_found_and_those_of_prose_are_not() -> None:
    code = '"""On speakers."""\ndef f(Speaker_names):\n    """Of speakers."""\n    return options["--speakers"]\n# speakers\n'
    assert [word for word in house._words(ast.parse(code)) if "speaker" in word] == ["speaker_names", "--speakers"]


def test_arguments_are_counted() -> None:
    assert house.num_arguments("pipeline.sort_buffer", "SortBuffer") > 4
    with pytest.raises(LookupError):
        house.num_arguments("pipeline.sort_buffer", "NoSuchClass")
