"""What all tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _without_plots() -> Iterator[None]:
    """Drawing takes as long as training these models. test_plot draws, and test_two_processes runs the command with it."""
    from fastscribe.training import trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "plot_log", lambda rows, path: None)
        yield
