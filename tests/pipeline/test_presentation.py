"""Results in the order of the inputs, and a bar that counts them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fastscribe.pipeline.stats import Progress
from fastscribe.transcriber import in_order, with_bar
from fastscribe.types import Failure


def results(*indices: int, error: Exception | None = None) -> Iterator[Failure]:
    for index in indices:
        yield Failure(str(index), str(index), "load", "AudioError", "no", index=index)
    if error is not None:
        raise error


def test_order_as_soon_as_possible() -> None:
    taken: list[int] = []

    def watched() -> Iterator[Failure]:
        for result in results(1, 2, 0, 4, 3):
            taken.append(result.index)
            yield result

    ordered = in_order(watched())
    assert next(ordered).index == 0 and taken == [1, 2, 0]
    assert [result.index for result in ordered] == [1, 2, 3, 4]


def test_nothing_held_back_is_lost() -> None:
    ordered = in_order(results(0, 3, 2, error=RuntimeError("device")))
    assert [next(ordered).index for _ in range(3)] == [0, 2, 3]
    with pytest.raises(RuntimeError, match="device"):
        next(ordered)


@pytest.mark.parametrize(
    ("inputs", "shown"),
    [([1, 2, 3], "3/3"), ([1], "3file"), (iter([1, 2, 3]), "3file"), ((np.zeros(3), 16_000), "3file")],
)
def test_bar(capsys, inputs, shown) -> None:
    counts = Progress()

    def counted() -> Iterator[Failure]:
        for result in results(0, 1, 2):
            counts.count(result)
            yield result

    assert len(list(with_bar(counted(), lambda: counts, inputs))) == 3
    last = capsys.readouterr().err.rstrip().rpartition("\r")[2]
    assert shown in last and "3 failed" in last and "0.00 h" in last
