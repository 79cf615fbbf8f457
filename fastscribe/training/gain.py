"""Whether a trained model is better than the model that the run began with, or only luckier. Pure.

Both are measured on the same recordings, so that the errors of each recording are compared, and what is hard for both cancels.
The standard error of the difference is that of a ratio of sums with recordings as independent draws (Cochran 1977, 6.4): the
errors of a recording hang together. It is at least the one that single words would give, as McNemar (1947) counts them. Without
that a few recordings that happen to change alike would have none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastscribe.types import Float64Array

Counts = Mapping[int, tuple[int, int]]  # of each recording, by its index: its errors, and the words of its reference
_CLEAR = 2.0  # standard errors
_TINY = 0.25  # a set that cannot tell when this share of the errors goes


@dataclass(frozen=True)
class Gain:
    """How much lower the error rate of a trained model is than that of the start, as shares of the words.

    Words are characters where these decide.
    """

    fewer: float  # negative: more errors
    standard_error: float
    num_words: int
    num_recordings: int

    @classmethod
    def between(cls, start: Counts, trained: Counts) -> Gain:
        """Compare over the recordings that both have."""
        both = sorted(start.keys() & trained.keys())
        fewer = [start[index][0] - trained[index][0] for index in both]
        words = [start[index][1] for index in both]
        num_words = sum(words)
        return cls(sum(fewer) / num_words if num_words else 0.0, _standard_error(fewer, words), num_words, len(both))

    @property
    def is_clear(self) -> bool:
        """True if chance would hardly explain it."""
        return self.fewer > _CLEAR * self.standard_error

    @property
    def words_to_tell(self) -> int | None:
        """About how many words would make this gain a clear one; None if there is no gain."""
        if self.fewer <= 0:
            return None
        exact = self.num_words * (_CLEAR * self.standard_error / self.fewer) ** 2
        step: int = 10 ** max(0, len(str(math.ceil(exact))) - 2)  # two digits are enough
        return math.ceil(exact / step) * step

    def to_json(self) -> dict[str, Any]:
        return {
            "fewer": round(self.fewer, 5),
            "standard_error": round(self.standard_error, 5),
            "num_words": self.num_words,
            "num_recordings": self.num_recordings,
            "is_clear": self.is_clear,
            "words_to_tell": self.words_to_tell,
        }


def num_words(counts: Counts) -> int:
    """Return the words of all references."""
    return sum(words for _, words in counts.values())


def least_gain(start: Counts) -> float | None:
    """Return about the smallest gain that a validation set can tell from chance, if that is much of the start's errors.

    The standard error of the start's own rate stands for that of the difference, which is not known before training.
    """
    errors, words = [one for one, _ in start.values()], [one for _, one in start.values()]
    least = _CLEAR * _standard_error(errors, words)
    return least if least * sum(words) > _TINY * sum(errors) else None


def _standard_error(errors: Sequence[int], words: Sequence[int]) -> float:
    import numpy as np

    errors_R: Float64Array = np.array(errors, np.float64)
    words_R: Float64Array = np.array(words, np.float64)
    total, count = float(words_R.sum()), len(errors_R)
    if not total:
        return 0.0
    residuals_R = errors_R - errors_R.sum() / total * words_R
    of_recordings = float(residuals_R @ residuals_R) * count / max(1, count - 1)
    return math.sqrt(max(of_recordings, float(np.abs(errors_R).sum()))) / total
