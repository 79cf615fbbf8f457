"""Random ARPA files, and their slow, obvious reading: each n-gram in a dictionary, and backing off as its definition says."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from random import Random

Ngram = tuple[str, ...]
NAT = math.log(10)


class SlowArpa:
    """An ARPA text, without checks."""

    def __init__(self, text: str) -> None:
        self.probabilities: dict[Ngram, float] = {}  # log10
        self.backoffs: dict[Ngram, float] = {}
        length = 0
        for line in text.split("\n"):
            if line.startswith("\\"):
                length = int(line[1:].split("-")[0]) if line.endswith("-grams:") else 0
            elif length and line.strip():
                probability, *rest = re.split("[ \t]+", line.strip(" \t"))
                self.probabilities[tuple(rest[:length])] = float(probability)
                self.backoffs[tuple(rest[:length])] = float(rest[length]) if len(rest) > length else 0.0
        self.longest = max(map(len, self.probabilities))

    def log10(self, context: Sequence[str], unit: str) -> float:
        """Return the log10 probability of a unit after others."""
        before = tuple(context)[-(self.longest - 1) :] if self.longest > 1 else ()
        if (*before, unit) in self.probabilities:
            return self.probabilities[(*before, unit)]
        if not before:
            raise KeyError(unit)
        return self.backoffs.get(before, 0.0) + self.log10(before[1:], unit)

    def nats(self, context: Sequence[str], unit: str) -> float:
        return NAT * self.log10(context, unit)


def random_arpa(seed: int, units: Sequence[str], longest: int, *, is_pruned: bool = False) -> str:
    """Return an ARPA file with random numbers. A pruned one lacks beginnings and ends of some of its n-grams."""
    random = Random(seed)
    ngrams: list[list[Ngram]] = [[("<unk>",), ("<s>",), ("</s>",), *((unit,) for unit in units)]]
    for length in range(2, longest + 1):
        found = {
            (random.choice(["<s>", *units]), *random.choices(units, k=length - 2), random.choice(["</s>", *units]))
            for _ in range(12 * len(units))
        }
        if not is_pruned:  # all beginnings and ends are there
            shorter = set(ngrams[-1])
            found = {one for one in found if one[:-1] in shorter and one[1:] in shorter}
        ngrams.append(sorted(found))
    while len(ngrams) > 1 and not ngrams[-1]:
        ngrams.pop()
    return written(
        [
            [(round(-random.uniform(0.1, 4), 4), one, round(random.uniform(-1.5, 0.3), 4)) for one in part]
            for part in ngrams
        ]
    )


def written(ngrams: Sequence[Sequence[tuple[float, Ngram, float]]]) -> str:
    """Return an ARPA file of n-grams by length: log10 probability, units, log10 weight of backing off."""
    lines = ["\\data\\", *(f"ngram {length}={len(part)}" for length, part in enumerate(ngrams, start=1)), ""]
    for length, part in enumerate(ngrams, start=1):
        lines.append(f"\\{length}-grams:")
        for probability, units, backoff in part:
            has_backoff = length < len(ngrams) and units[-1] != "</s>"
            lines.append(f"{probability}\t{' '.join(units)}" + (f"\t{backoff}" if has_backoff else ""))
        lines.append("")
    return "\n".join([*lines, "\\end\\", ""])
