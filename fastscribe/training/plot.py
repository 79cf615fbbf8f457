"""The log of a run as a picture: losses and word error rate by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LOSSES = ("loss", "transducer", "ctc")


def plot_log(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes a PNG. Raises ImportError without matplotlib, OSError."""
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
    for name, label in (("wer", "normalised"), ("exact_wer", "with case and punctuation")):
        points = [(step, 100 * rates[name]) for step, rates in validations]
        if points:
            errors.plot(*zip(*points, strict=True), label=label, marker=".")
    errors.set(xlabel="step", ylabel="word error rate, %", ylim=(0, None))
    _legend(errors)
    FigureCanvasAgg(figure).print_png(str(path))


def _legend(axes: Any) -> None:
    if axes.lines:
        axes.legend()
