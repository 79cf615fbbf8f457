"""Sides take turns over the same recordings, and what comes of it: rows, ratios, and how far their texts agree.

A side is a tool with a dtype. A round is a turn of each side, of a peer at each batch size, and then some turns of each over
one recording alone; every second round goes backwards, so that what else the machine does falls on all. The first round
does not count. A batch size that is far slower in it than the side's best takes no more turns. Pure but for what the sides
do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from fastscribe.bench.edit_distance import edit_distance
from fastscribe.bench.peer_comparison.process import SideFailed

CASE_KEYS = ("side", "dtype", "batch_size")
OURS = "fastscribe"
LONE_TURNS = 2  # a round
_SHORT_TURN_S = 1.0
_NO_TURN = "no turn that counts"
_FAR_SLOWER = 1.15  # in wall clock and in processor time


class Side(Protocol):
    side: str
    info: dict[str, Any]

    def turn(self, batch_size: int | None, alone: bool = False) -> dict[str, Any]: ...

    def said(self) -> str: ...


@dataclass
class Case:
    """A side at a batch size (None: its own choice): seconds of every turn that counts, and the last texts."""

    side: Side
    batch_size: int | None
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    batch_frames: int | None = None  # of a side with a budget of its own
    error: str | None = None  # why it takes no more turns

    @property
    def label(self) -> str:
        return label(self.side.side, self.side.info["dtype"], self.batch_size)

    def take_turn(self, counts: bool) -> dict[str, Any] | None:
        """What the side answers; None where it failed, after which it takes no more."""
        found = self.side.turn(self.batch_size)
        if "error" in found:
            self.error = found["error"]
            return None
        if counts:
            self.wall_s.append(found["wall_s"])
            self.cpu_s.append(found["cpu_s"])
            self.texts = found["texts"]
            self.batch_frames = found.get("batch_frames")
        self.side.info["refused"] = found.get("refused", {})
        return found

    def row(self, audio_s: float) -> dict[str, Any]:
        key = {"side": self.side.side, "dtype": self.side.info["dtype"], "batch_size": self.batch_size}
        if self.error is not None or not self.wall_s:
            return key | {"error": self.error or _NO_TURN}
        rtfx = [audio_s / seconds for seconds in self.wall_s]
        return key | {
            "rtfx": round(median(rtfx), 2),
            "rtfx_runs": [round(value, 2) for value in rtfx],
            **timed("wall_s", self.wall_s),
            "wall_min_s": round(min(self.wall_s), 4),
            "wall_max_s": round(max(self.wall_s), 4),
            **timed("cpu_s", self.cpu_s),
            **({} if self.batch_frames is None else {"batch_frames": self.batch_frames}),
            "characters": sum(map(len, self.texts)),
        }


@dataclass
class Lone:
    """A side's turns over one recording alone."""

    side: Side
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    error: str | None = None

    def take_turn(self, counts: bool) -> None:
        found = self.side.turn(None if self.side.side == OURS else 1, alone=True)
        if "error" in found:
            self.error = found["error"]
        elif counts:
            self.wall_s.append(found["wall_s"])
            self.cpu_s.append(found["cpu_s"])

    def row(self) -> dict[str, Any]:
        if self.error is not None or not self.wall_s:
            return {"latency_error": self.error or _NO_TURN}
        return timed("latency_s", self.wall_s) | timed("latency_cpu_s", self.cpu_s)


def timed(name: str, values: Sequence[float]) -> dict[str, Any]:
    return {name: round(median(values), 4), f"{name}_runs": [round(value, 4) for value in values]}


def take_turns(cases: Sequence[Case], alone: Sequence[Lone], runs: int, say: Callable[[str], None]) -> list[float]:
    """`runs` rounds after one that does not count. Returns the machine's load average (1 minute) before each.

    Raises SideFailed where a side has nothing to show."""
    loads = []
    for number in range(runs + 1):
        loads.append(round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0)
        warm_up: dict[int, dict[str, Any]] = {}
        for case in [one for one in cases[:: 1 if number % 2 == 0 else -1] if one.error is None]:
            found = case.take_turn(counts=number > 0)
            outcome = case.error if found is None else f"{found['wall_s']:.2f} s, CPU {found['cpu_s']:.2f} s"
            say(f"{f'round {number}' if number else 'warm-up'}: {case.label}: {outcome}")
            if found is not None and number == 0:
                warm_up[id(case)] = found
        for side in {id(case.side): case.side for case in cases}.values():
            own = [case for case in cases if case.side is side]
            if all(case.error for case in own):
                raise SideFailed(side.side, f"every turn failed: {own[0].error}", side.said())
            drop_slow([case for case in own if case.error is None], warm_up)
        for _ in range(LONE_TURNS):
            for one in [one for one in alone[:: 1 if number % 2 == 0 else -1] if one.error is None]:
                one.take_turn(counts=number > 0)
    return loads


def drop_slow(cases: Sequence[Case], warm_up: Mapping[int, Mapping[str, Any]]) -> None:
    """End the batch sizes of a side that are far slower than its best one, by what they took in the warm-up."""
    measured = [case for case in cases if id(case) in warm_up]
    if not measured:
        return
    best = min(measured, key=lambda case: warm_up[id(case)]["wall_s"])
    limit = {name: _FAR_SLOWER * warm_up[id(best)][name] for name in ("wall_s", "cpu_s")}
    for case in measured:
        took = warm_up[id(case)]
        if all(took[name] > most for name, most in limit.items()):
            case.error = f"left out: the warm-up took {took['wall_s']:.1f} s, that of batch {best.batch_size} "
            case.error += f"{warm_up[id(best)]['wall_s']:.1f} s"


def label(side: str, dtype: str, batch_size: int | None) -> str:
    return f"{side} {dtype}" + ("" if batch_size is None else f", batch {batch_size}")


def rows(cases: Sequence[Case], audio_s: float, counterparts: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Also of turns that ended early. A row of fastscribe has how it compares with the fastest of its counterparts:
    `counterparts` has the dtype of a peer that stands against one of fastscribe's, by peer."""
    found = [case.row(audio_s) for case in cases]
    for row, mine in zip(found, cases, strict=True):
        if mine.side.side != OURS or not is_usable(mine):
            continue
        dtype = mine.side.info["dtype"]
        theirs = [
            case
            for case in cases
            if case.side.side in counterparts
            and is_usable(case)
            and case.side.info["dtype"] == counterparts[case.side.side].get(dtype, dtype)
        ]
        if theirs:
            row |= compared(mine, min(theirs, key=lambda case: median(case.wall_s)))
    return found


def is_usable(case: Case) -> bool:
    return case.error is None and bool(case.wall_s)


def compared(mine: Case, best: Case) -> dict[str, Any]:
    """Ratios of the smallest and the largest are those of two turns of a round."""
    ratios = [theirs_s / ours_s for theirs_s, ours_s in zip(best.wall_s, mine.wall_s, strict=False)]
    return {
        "peer": best.side.side,
        "peer_dtype": best.side.info["dtype"],
        "peer_best_batch_size": best.batch_size,
        "speedup_ratio": round(median(best.wall_s) / median(mine.wall_s), 3),
        "speedup_min_ratio": round(min(ratios), 3),
        "speedup_max_ratio": round(max(ratios), 3),
        "cpu_ratio": _ratio(median(best.cpu_s), median(mine.cpu_s)),
        "equal_texts_share": round(equal_share(mine.texts, best.texts), 4),
        "wer_between_share": rounded(word_difference(mine.texts, best.texts)),
    }


def _ratio(theirs: float, ours: float) -> float | None:
    return round(theirs / ours, 3) if ours else None


def comparisons(cases: Sequence[Case], sides: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each dtype of fastscribe beside each side of a peer at its best batch size: speed, and latency and load time of
    `sides`, which has a row of each side with its `side` and `dtype`. Ratios above 1 are in favour of fastscribe."""
    about = {(row["side"], row["dtype"]): row for row in sides}
    best: dict[tuple[str, str], Case] = {}
    for case in filter(is_usable, cases):
        key = (case.side.side, case.side.info["dtype"])
        if key not in best or median(case.wall_s) < median(best[key].wall_s):
            best[key] = case
    found = []
    for mine in (case for key, case in best.items() if key[0] == OURS):
        for key, case in best.items():
            if key[0] == OURS:
                continue
            row = {"dtype": mine.side.info["dtype"], **compared(mine, case)}
            ours, theirs = about.get((OURS, row["dtype"]), {}), about.get(key, {})
            for name in ("latency_s", "latency_cpu_s", "load_s", "load_cpu_s"):
                if ours.get(name) and name in theirs:
                    row[f"{name.removesuffix('_s')}_ratio"] = _ratio(theirs[name], ours[name])
            found.append(row)
    return found


def caveats(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps the ratios in `rows` from being ones to rely on."""
    return [said for row in found if "speedup_ratio" in row for said in _caveats(row, found)]


def _caveats(ours: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> list[str]:
    case = (ours["peer"], ours["peer_dtype"], ours["peer_best_batch_size"])
    peer = next(row for row in found if tuple(row[key] for key in CASE_KEYS) == case)
    said = []
    shortest_s = min(ours["wall_s"], peer["wall_s"])
    if shortest_s < _SHORT_TURN_S:
        said.append(f"a turn took {shortest_s:.2f} s: the ratio is of starts and stops too; give more recordings")
    slower, faster = sorted((ours, peer), key=lambda row: -row["wall_s"])
    if faster["wall_max_s"] >= slower["wall_min_s"]:
        two = f"{label(OURS, ours['dtype'], None)} and {label(*case)}"
        said.append(f"the times of {two} overlap: which is the faster one is not settled")
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


def about(document: Mapping[str, Any]) -> list[str]:
    """The last lines for people."""
    lines = []
    for found in (row for row in document["rows"] if "speedup_ratio" in row):
        between = found["wer_between_share"]
        differ = "" if between is None else f"; {100 * between:.1f} % of the peer's words are edited between the two"
        if document["random_weights"]:
            differ += ", which says little: the weights are random, and words hang on near-ties"
        whose = "" if document["same_checkpoint"] else "; the peer had a model of its own"
        peer = label(found["peer"], found["peer_dtype"], found["peer_best_batch_size"])
        lines.append(
            f"{label(OURS, found['dtype'], None)} is {found['speedup_ratio']:.2f} times as fast "
            f"({found['speedup_min_ratio']:.2f} to {found['speedup_max_ratio']:.2f}) as {peer}, its best"
            f"{_processor_time(found['cpu_ratio'])}; {found['equal_texts_share']:.0%} of the texts are equal{differ}{whose}"
        )
    return [*lines, *(f"but {caveat}" for caveat in document["caveats"])]


def _processor_time(ratio: float | None) -> str:
    return "" if ratio is None else f", which takes {ratio:.2f} times the processor time"
