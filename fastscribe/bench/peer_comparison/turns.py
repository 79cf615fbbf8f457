"""Two sides take turns over the same recordings, and what comes of it: rows, a ratio, and how far their texts agree.
The row of fastscribe has how it compares with the peer at its best batch size.

A round is a turn of fastscribe beside each of the peer's batch sizes; who goes first changes from round to round, so that
what else the machine does falls on both. The first round does not count. Pure but for what the sides do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from fastscribe.bench.edit_distance import edit_distance
from fastscribe.bench.peer_comparison.process import SideFailed

CASE_KEYS = ("side", "dtype", "batch_size")
OURS = "fastscribe"
_SHORT_TURN_S = 1.0
_NO_TURN = "no turn that counts"


class Side(Protocol):
    side: str
    info: dict[str, Any]

    def turn(self, batch_size: int | None) -> dict[str, Any]: ...

    def said(self) -> str: ...


@dataclass
class Case:
    """A side at a batch size (None: its own choice): seconds of every turn that counts, and the last texts."""

    side: Side
    batch_size: int | None
    wall_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)  # of a peer: fastscribe's turn beside each of these
    cpu_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    batch_frames: int | None = None  # of a side with a budget of its own
    error: str | None = None

    def take_turn(self, counts: bool) -> float | None:
        """Seconds; None where it failed, after which it takes no more."""
        found = self.side.turn(self.batch_size)
        if "error" in found:
            self.error = found["error"]
            return None
        wall_s: float = found["wall_s"]
        if counts:
            self.wall_s.append(wall_s)
            self.cpu_s.append(found["cpu_s"])
            self.texts = found["texts"]
            self.batch_frames = found.get("batch_frames")
        return wall_s

    def row(self, audio_s: float) -> dict[str, Any]:
        key = {"side": self.side.side, "dtype": self.side.info["dtype"], "batch_size": self.batch_size}
        if self.error is not None or not self.wall_s:
            return key | {"error": self.error or _NO_TURN}
        rtfx = [audio_s / seconds for seconds in self.wall_s]
        return key | {
            "rtfx": round(median(rtfx), 2),
            "rtfx_runs": [round(value, 2) for value in rtfx],
            "wall_s": round(median(self.wall_s), 4),
            "wall_s_runs": [round(value, 4) for value in self.wall_s],
            "wall_min_s": round(min(self.wall_s), 4),
            "wall_max_s": round(max(self.wall_s), 4),
            "cpu_s": round(median(self.cpu_s), 4),
            "cpu_s_runs": [round(value, 4) for value in self.cpu_s],
            **({} if self.batch_frames is None else {"batch_frames": self.batch_frames}),
        }


def take_turns(mine: Case, theirs: Sequence[Case], runs: int, say: Callable[[str], None]) -> None:
    """`runs` rounds after one that does not count. Raises SideFailed where a side has nothing to show."""
    for number in range(runs + 1):
        for case in (case for case in theirs if case.error is None):
            took_s: dict[str, float | None] = {}
            for one in (mine, case) if number % 2 == 0 else (case, mine):
                seconds = took_s[one.side.side] = one.take_turn(counts=number > 0)
                outcome = one.error if seconds is None else f"{seconds:.2f} s"
                say(f"{f'round {number}' if number else 'warm-up'}: {label(one.side.side, one.batch_size)}: {outcome}")
            ours_s = took_s[mine.side.side]
            if number > 0 and ours_s is not None and case.error is None:
                case.beside_s.append(ours_s)
        for cases in ([mine], theirs):
            if all(case.error for case in cases):
                side = cases[0].side
                raise SideFailed(side.side, f"every turn failed: {cases[0].error}", side.said())


def label(side: str, batch_size: int | None) -> str:
    return side if batch_size is None else f"{side}, batch {batch_size}"


def rows(mine: Case, theirs: Sequence[Case], audio_s: float) -> list[dict[str, Any]]:
    """fastscribe's first; also of turns that ended early."""
    found = [case.row(audio_s) for case in (mine, *theirs)]
    usable = [case for case in theirs if case.error is None and case.beside_s]
    if mine.error is None and usable:
        found[0] |= _compared(mine, min(usable, key=lambda case: median(case.wall_s)))
    return found


def _compared(mine: Case, best: Case) -> dict[str, Any]:
    """Ratios of the smallest and the largest are those of two turns side by side."""
    ratios = [theirs_s / ours_s for theirs_s, ours_s in zip(best.wall_s, best.beside_s, strict=False)]
    return {
        "peer_best_batch_size": best.batch_size,
        "speedup_ratio": round(median(best.wall_s) / median(mine.wall_s), 3),
        "speedup_min_ratio": round(min(ratios), 3),
        "speedup_max_ratio": round(max(ratios), 3),
        "equal_texts_share": round(equal_share(mine.texts, best.texts), 4),
        "wer_between_share": rounded(word_difference(mine.texts, best.texts)),
    }


def caveats(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps the ratio in `rows` from being one to rely on."""
    ours = found[0]
    if "speedup_ratio" not in ours:
        return []
    peer = next(row for row in found[1:] if row["batch_size"] == ours["peer_best_batch_size"])
    said = []
    shortest_s = min(ours["wall_s"], peer["wall_s"])
    if shortest_s < _SHORT_TURN_S:
        said.append(f"a turn took {shortest_s:.2f} s: the ratio is of starts and stops too; give more recordings")
    slower, faster = sorted((ours, peer), key=lambda row: -row["wall_s"])
    if faster["wall_max_s"] >= slower["wall_min_s"]:
        said.append("the two sides' times overlap: which is the faster one is not settled")
    return said


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def equal_share(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Share of texts that are identical."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def word_difference(ours: Sequence[str], theirs: Sequence[str]) -> float | None:
    """Edits between the words, over the peer's words; case and punctuation at a word's ends do not count. None: no words."""
    pairs = [(words(a), words(b)) for a, b in zip(ours, theirs, strict=True)]
    total = sum(len(wanted) for _, wanted in pairs)
    if total == 0:
        return None
    numbers: dict[str, int] = {}
    return sum(edit_distance(_numbered(a, numbers), _numbered(b, numbers)) for a, b in pairs) / total


def words(text: str) -> list[str]:
    """
    >>> words("Well -- don't!")
    ['well', "don't"]
    """
    bare = (_without_punctuation(word.casefold()) for word in text.split())
    return [word for word in bare if word]


def _without_punctuation(word: str) -> str:
    kept = [index for index, character in enumerate(word) if character.isalnum()]
    return word[kept[0] : kept[-1] + 1] if kept else ""


def _numbered(some: Sequence[str], numbers: dict[str, int]) -> list[int]:
    return [numbers.setdefault(word, len(numbers)) for word in some]


def about(document: Mapping[str, Any], peer: str) -> list[str]:
    """The last lines for people."""
    found = document["rows"][0]
    between = found["wer_between_share"]
    differ = "" if between is None else f"; {100 * between:.1f} % of the peer's words are edited between the two"
    if document["random_weights"]:
        differ += ", which says little: the weights are random, and words hang on near-ties"
    whose = "" if document["same_checkpoint"] else "; the peer had a model of its own"
    return [
        f"fastscribe is {found['speedup_ratio']:.2f} times as fast ({found['speedup_min_ratio']:.2f} to "
        f"{found['speedup_max_ratio']:.2f}) as {label(peer, found['peer_best_batch_size'])}, its best; "
        f"{found['equal_texts_share']:.0%} of the texts are equal{differ}{whose}",
        *(f"but {caveat}" for caveat in document["caveats"]),
    ]
