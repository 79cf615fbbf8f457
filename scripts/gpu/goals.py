"""The speed goals on one H200, and what a document of scripts/gpu_check says about them. Pure: reads rows, measures nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = dict[str, Any]
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Rows of a file with a JSON document a line; none if there is no file. A line that was cut short is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def rows_of(document: Document, part: str, **wanted: Any) -> list[Row]:
    """Rows of a part with these values. Rows with an error are left out if any value is wanted."""
    found = [row for entry in document["results"] if entry["part"] == part for row in entry["rows"]]
    return [
        row
        for row in found
        if all(row.get(key) == value for key, value in wanted.items()) and not (wanted and "error" in row)
    ]


def best(document: Document, part: str, value: str, **wanted: Any) -> float | None:
    rows = rows_of(document, part, **wanted)
    return max((row[value] for row in rows if row.get(value) is not None), default=None)


def matrix_ceiling(document: Document) -> float | None:
    """TFLOP/s of the large bf16 product, of this result or of an earlier one on this kind of card."""
    rows = rows_of(document, "ceilings", what="matmul", dtype="bf16")
    return next(
        (row["tflop_per_s"] for row in rows if row["m"] == row["n"]), document.get("earlier_ceiling_tflop_per_s")
    )


def nemo_ratio(document: Document) -> float | None:
    """Our speed over NeMo's at NeMo's better batch size."""
    ours, theirs = (best(document, "nemo", "rtfx", what="side", side=side) for side in ("fastscribe", "nemo"))
    return None if ours is None or theirs is None else ours / theirs


def tests_passed(document: Document, part: str) -> float | None:
    """Share of the part's CUDA tests that passed; None if it did not run, or if all its tests were skipped.

    A test that never ran counts as failed. So does each module that did not load, each run of pytest and each part that ended
    early, because the tests that they cost may not have been counted yet.
    """
    rows = rows_of(document, part)
    statuses = [entry["status"] for entry in document["results"] if entry["part"] == part]
    lost = sum(row.get("what") in ("collection", "pytest") and "error" in row for row in rows)
    lost += sum(status != "done" and not status.startswith("skipped") for status in statuses)
    names: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for row in rows:
        if row.get("what") == "test":
            names[row["outcome"]].add(row["test"])
    collected = sum(row["tests"] for row in rows_of(document, part, what="collected"))
    ran = collected - len(names["skipped"]) + lost
    return len(names["passed"] - names["failed"]) / ran if ran > 0 else None


@dataclass(frozen=True)
class Goal:
    name: str
    wanted: float
    measured: Callable[[Document, Row], float | None]  # of a document whose shapes have these names
    at_least: bool = True  # False: at most


def _engine(value: str, which: str) -> Callable[[Document, Row], float | None]:
    return lambda document, names: best(
        document, "engine", value, what="from_memory", shape=names["tdt"], **{"pass": which}
    )


def _memory(shape: str) -> Callable[[Document, Row], float | None]:
    case = {"what": "from_memory", "audio": "leaderboard", "budget_frames": "auto", "graphs": "auto"}
    return lambda document, names: best(document, "memory", "rtfx", shape=names[shape], **case)


def from_files(document: Document, shape: str) -> float | None:
    """Return the rate of the command, which has helper processes."""
    return best(document, "files", "rtfx", what="command", audio="flac", shape=shape)


GOALS = (
    Goal("0.6B TDT (8,192 tokens), from memory, every batch shape new, RTFx", 20_000, _engine("rtfx", "cold")),
    Goal("0.6B TDT (8,192 tokens), from memory, warm, RTFx", 22_000, _engine("rtfx", "warm")),
    Goal(
        "0.6B TDT (8,192 tokens), FLAC files to JSONL, RTFx",
        15_000,
        lambda document, names: from_files(document, names["tdt"]),
    ),
    Goal("0.6B CTC, from memory, warm, RTFx", 25_000, _memory("ctc")),
    Goal("1.1B RNN-T, from memory, warm, RTFx", 12_000, _memory("rnnt")),
    Goal("speed over NeMo 3.0's, same files and weights", 3.0, lambda document, _: nemo_ratio(document)),
    Goal(
        "encoder, share of the measured matrix ceiling",
        0.5,
        lambda document, names: best(document, "encoder", "mfu_share", form="shipped", shape=names["tdt"]),
    ),
    Goal(
        "GPU busy, share of the time",
        0.95,
        lambda document, names: best(
            document, "profile", "busy_share_of_wall", shape=names["tdt"], audio="leaderboard"
        ),
    ),
    Goal(
        "wall time outside the encoder, share",
        0.1,
        _engine("outside_encoder_share_of_wall", "warm"),
        at_least=False,
    ),
    Goal("low-level CUDA tests passed, share", 1.0, lambda document, _: tests_passed(document, "tests")),
    Goal("end-to-end CUDA tests passed, share", 1.0, lambda document, _: tests_passed(document, "end_to_end")),
)


def goals(document: Document) -> list[Row]:
    """Each goal with its measured value, None if there is none, and the share of the goal that is reached."""
    names = {"tdt": "parakeet-tdt-0.6b-v3", "rnnt": "parakeet-rnnt-1.1b", "ctc": "parakeet-ctc-0.6b"}
    if document["quick"]:
        names = {"tdt": "tiny", "rnnt": "tiny-rnnt", "ctc": "tiny-ctc"}
    return [_reached(goal, goal.measured(document, names)) for goal in GOALS]


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _reached(goal: Goal, found: float | None) -> Row:
    share = None
    if found is not None:
        share = round(found / goal.wanted if goal.at_least else goal.wanted / max(found, 1e-9), 3)
    row = {"goal": goal.name, "wanted": goal.wanted, "at_least": goal.at_least}
    return row | {"measured": found, "reached_share": share}
