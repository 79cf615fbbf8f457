"""Means for the log: over finite values, and unchanged by a stop."""

from __future__ import annotations

import math

import torch

from fastscribe.training.log_window import LogWindow


def losses(loss: float, ctc: float) -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(loss), "ctc": torch.tensor(ctc)}


def test_not_finite_losses() -> None:
    window = LogWindow()
    for pair, norm in (((1.0, 2.0), 5.0), ((math.inf, 1.0), math.nan), ((2.0, math.nan), math.inf), ((2.0, 5.0), 6.0)):
        window.add_losses(losses(*pair))
        window.add_norm(norm)
    assert window.means() == {"loss": 1.5, "ctc": 3.5}
    assert window.row() == {"loss": 1.5, "ctc": 3.5, "gradient_norm": 5.5, "skipped": 2}


def test_undone_step() -> None:
    window = LogWindow()
    for norm in (1.0, math.nan, 3.0):
        window.add_losses(losses(1.0, 2.0))
        window = LogWindow(window.state())  # in the middle of a step
        window.add_losses(losses(3.0, 2.0))
        window.add_norm(norm)
    assert window.row() == {"loss": 2.0, "ctc": 2.0, "gradient_norm": 2.0, "skipped": 2}


def test_unaligned_utterances() -> None:
    window = LogWindow()
    for count, pair in ((0, (1.0, 2.0)), (3, (2.0, 4.0)), (2, (math.inf, 1.0))):
        window.add_losses({**losses(*pair), "unaligned": torch.tensor(count)})
    for each in (window, LogWindow(window.state())):
        assert each.means() == {"loss": 1.5, "ctc": 3.0}
        assert each.row() == {"loss": 1.5, "ctc": 3.0, "unaligned": 5, "skipped": 1}


def test_nothing_finite() -> None:
    window = LogWindow()
    assert window.row() == {} == window.means()
    window.add_losses(losses(math.nan, math.nan))
    window.add_norm(math.nan)
    assert window.row() == {"skipped": 1} and window.means() == {}
