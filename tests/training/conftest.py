"""What all tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _cheap_validation() -> Iterator[None]:
    """Drawing takes as long as training these models. test_plot draws, and test_two_processes runs the command with it.

    So do ten labels at each frame, which are what a model writes that has learnt little: new ones stop at two.
    """
    from fastscribe.training import model_recipe, trainer

    joint_config = model_recipe.JointConfig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "plot_log", lambda rows, path: None)
        patch.setattr(model_recipe, "JointConfig", lambda hidden, activation, _: joint_config(hidden, activation, 2))
        yield
