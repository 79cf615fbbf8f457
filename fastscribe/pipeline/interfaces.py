"""What the core asks of rooms: the interfaces, each with the one place that calls it. rooms.py has the table of the rooms.

An object of a room satisfies one by having its methods. The core makes none of them: it asks a room's door for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fastscribe.types import AnyArray, Features, Frames, Hypothesis

if TYPE_CHECKING:
    import torch


class SideModel(Protocol):
    """A model beside the recogniser, on its device: stages of batches with another purpose (Recognizer.stages calls them).

    Attributes:
        config: The model's config, for its room.
        runs_in_parts: On a CPU, rows of a batch may run side by side.
    """

    @property
    def config(self) -> Any: ...

    @property
    def runs_in_parts(self) -> bool: ...

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the features of samples at the recogniser's rate."""

    def encode(self, features: Features) -> Frames:
        """Return the model's output."""

    def submit(self, frames: Frames) -> torch.Tensor:
        """Return what read() needs a host copy of."""

    def read(self, packed: AnyArray, frames: Frames) -> Sequence[Hypothesis]:
        """Return a result for each row from the host copy; its room knows what Hypothesis.found means."""
