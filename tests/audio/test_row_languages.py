"""Rows of manifests that name another language than the run's are counted, and one line names the first of them."""

from __future__ import annotations

from typing import Any

import pytest

from fastscribe.audio.row_languages import OtherLanguages
from fastscribe.types import Failure


def failed(index: int, row: dict[str, Any] | None) -> Failure:
    return Failure(f"{index}.wav", f"{index}", "probe", "AudioError", "gone", row, index)


@pytest.mark.parametrize(
    ("row", "num"),
    [
        (None, 0),
        ({"text": "a", "pred_language": "ta", "target_lang": "ta"}, 0),
        ({"lang": "hi", "language": "Hindi", "source_lang": "hi-IN"}, 0),
        ({"lang": None, "language": 7, "source_lang": "a b"}, 0),
        ({"lang": "ta"}, 1),
        ({"language": "Tamil"}, 1),
        ({"source_lang": "ta-IN"}, 1),
        ({"lang": "hi", "language": "ta"}, 1),
    ],
)
def test_which_rows_count(row: dict[str, Any] | None, num: int) -> None:
    others, of_no_language = OtherLanguages("hi"), OtherLanguages(None)
    others.count(failed(0, row))
    of_no_language.count(failed(0, row))
    assert (others.num, of_no_language.num) == (num, 0)


def test_line() -> None:
    others = OtherLanguages("hi")
    others.count(failed(3, {"lang": "ta"}))
    assert others.lines == ["1 row names another language than hi, the run's: 3.wav (lang: ta)"]
    for index in (1, 2):
        others.count(failed(index, {"lang": "hi", "language": "Assamese"}))
    assert others.lines == ["3 rows name another language than hi, the run's: 1.wav (language: as) is the first"]
