"""The package stays small: the numbers of scripts/house.py keep within their limits, which follow what has been won."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from scripts import house


@cache
def measured() -> dict[str, int]:
    return house.measure()


@pytest.mark.parametrize("name", house.LIMITS)
def test_numbers_keep_within_their_limits(name: str) -> None:
    assert house.problem_of(name, measured()[name]) is None


def test_a_number_beyond_its_limit_says_where_the_limit_is_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit that it names passes, also for other numbers."""
    limit = house.Limit(140, "Leave it out; a fork raises the limit")
    monkeypatch.setattr(house, "LIMITS", {"options": limit})
    for value in (*range(1, 134), *range(141, 20_000)):
        line = house.problem_of("options", value)
        assert line is not None and f"options: {value:,}, and LIMITS in scripts/house.py allows 140. " in line
        assert (limit.advice in line) == (value > 140)
        [named] = re.findall(r" ([0-9,]+)(?: passes)?\.$", line)
        house.LIMITS["options"] = limit._replace(at_most=int(named.replace(",", "")))
        assert house.problem_of("options", value) is None
        house.LIMITS["options"] = limit
    assert house.problem_of("options", 140) is None and all(one.advice for one in house.LIMITS.values())


def test_words_in_code_are_found_and_those_of_prose_are_not() -> None:
    code = '"""On speakers."""\ndef f(Speaker_names):\n    """Of speakers."""\n    return options["--speakers"]\n# speakers\n'
    assert [word for word in house._words(ast.parse(code)) if "speaker" in word] == ["speaker_names", "--speakers"]


def test_arguments_are_counted() -> None:
    assert house.num_arguments("pipeline.workers.groups", "ReadBatch") > 4
    with pytest.raises(LookupError):
        house.num_arguments("pipeline.workers.groups", "NoSuchClass")
