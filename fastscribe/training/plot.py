"""Plot a run's log: losses and word error rate by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastscribe._system.file_kinds import InTheWay, starts_with
from fastscribe._system.safe_files import write_atomic

_OURS = re.compile(rb"\x89PNG\r\n\x1a\n.*Software\0fastscribe", re.DOTALL)
_LOSSES = ("loss", "transducer", "ctc")


def plot_log(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the log as a PNG. Raises ImportError without matplotlib, InTheWay, OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    losses, errors = figure.subplots(1, 2)
    steps = [row for row in rows if "loss" in row]
    for name in _LOSSES:
        points = [(row["step"], row[name]) for row in steps if name in row]
        if points:
            losses.plot(*zip(*points, strict=True), label=name, linewidth=1)
    losses.set(xlabel="step", ylabel="loss, nats a label", yscale="log")
    _legend(losses)
    validations = [(row["step"], row["validation"]) for row in rows if "validation" in row]
    for name, label in (
        ("wer", "words, normalised"),
        ("exact_wer", "words with case and punctuation"),
        ("cer", "characters"),
    ):
        points = [(step, 100 * rates[name]) for step, rates in validations]
        if points:
            errors.plot(*zip(*points, strict=True), label=label, marker=".")
    errors.set(xlabel="step", ylabel="error rate, %", ylim=(0, None))
    _legend(errors)
    if path.exists() and not is_plot(path):
        raise InTheWay(path)
    canvas: Any = FigureCanvasAgg(figure)
    write_atomic(path, lambda file: canvas.print_png(file, metadata={"Software": "fastscribe"}))


def is_plot(path: Path) -> bool:
    """Return True if a file is a picture that fastscribe drew, or empty."""
    return path.is_file() and starts_with(path, _OURS)


def _legend(axes: Any) -> None:
    if axes.lines:
        axes.legend()
