"""What may come between a model's scores and a decoder's choice: the interfaces that a decoder calls.

The core has no such thing itself. The room `context` makes them (phrases to boost, tokens that a language leaves out, language
models), and `Frames.boost` and `Frames.mask` bring them to the decoder of a batch. Without one, a decoder does nothing more.

Shapes: B rows of a batch, N rows or beams, K states of each, V labels without blank, L places of languages, X labels with
blank plus durations, A rows that go on, S label slots of a row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeVar

import torch

from fastscribe.types import Frames, Int64Array

State = TypeVar("State")


class PhraseScores(Protocol):
    """Scores of labels that depend on the labels before them, by states on the decoder's device.

    Nothing waits for the device and no shape depends on values, so CUDA graphs capture the calls.
    """

    def following(self, states_NK: torch.Tensor) -> torch.Tensor:
        """Return the state [N, K, V], int64, after each label."""
        ...

    def scores(self, states_NK: torch.Tensor, next_NKV: torch.Tensor) -> torch.Tensor:
        """Return what each label adds to the score of a text [N, V], float32.

        Args:
            states_NK: The states before the label.
            next_NKV: What `following` returned for them.
        """
        ...

    def advance(self, next_NKV: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
        """Return the states [N, K] after labels, of those that `following` returned."""
        ...

    def at_risk(self, states_NK: torch.Tensor) -> torch.Tensor:
        """Return what a text that ends in these states loses [N]."""
        ...


class HostChoice(Protocol):
    """Chooses labels in the memory of the host, between two products of cpu_looping.py."""

    def __call__(
        self,
        logits_NX: Any,
        rows_A: Int64Array,
        input_A: Int64Array,
        count_B: Int64Array,
        ids_BS: Any,
        logprobs_BS: Any,
    ) -> None:
        """Replace the labels that the model chose by the best of those that stay, with what the scorer adds.

        Args:
            logits_NX: Of the frames that are decoded, in the model's dtype; bfloat16 as uint16.
            rows_A: The rows.
            input_A: The row of the logits that has each one's label; -1 without a label.
            count_B: Each row's labels.
            ids_BS: The labels; the last of each row is replaced.
            logprobs_BS: Their log-probabilities, which are the model's.
        """
        ...


class Constraint(Protocol):
    """What the rows of a batch may write, or should rather write."""

    def on_host(self, frames: Frames, num_labels: int, dtype: str, activation: str) -> HostChoice:
        """Return what chooses labels in the memory of the host, with all constraints of the frames.

        Args:
            frames: The batch, with this constraint and perhaps another.
            num_labels: Labels without blank.
            dtype: "float32" or "bfloat16".
            activation: Of the joint network.
        """
        ...


class Boost(Constraint, Protocol):
    """The phrases to boost of a batch."""

    @property
    def tables(self) -> PhraseScores:
        """The scores."""
        ...

    @property
    def start_BK(self) -> Int64Array:  # noqa: N802 - its dimensions
        """Each row's states before its first label."""
        ...

    def starts(self) -> torch.Tensor:
        """Return `start_BK` on the device of the tables."""
        ...

    def part(self, rows: slice) -> Boost:
        """Return the phrases of some rows."""
        ...

    def new_place(self) -> FixedPlace:
        """Return a place for the tables of later batches too."""
        ...


class FixedPlace(Protocol):
    """Where captured decoders find scores: a graph contains addresses, so the tables of each batch are copied there."""

    def load(self, boost: Boost) -> tuple[PhraseScores, Hashable]:
        """Copy a batch's tables, in the order of the current stream.

        Returns:
            The tables with the batch's phrases, and what tells apart the graphs that read them.
        """
        ...


class TokenMask(Constraint, Protocol):
    """The labels that the rows of a batch may not have, in one table for all languages."""

    @property
    def excluded_LV(self) -> torch.Tensor:  # noqa: N802 - its dimensions
        """The table, bool. It stays where it lies until a language is new to a full one."""
        ...

    def places(self) -> torch.Tensor:
        """Return the rows' places in the table [B], int64."""
        ...

    def excluded(self) -> torch.Tensor:
        """Return the rows' labels [B, V], bool."""
        ...

    def part(self, rows: slice) -> TokenMask:
        """Return the mask of some rows."""
        ...


class FusedModel(Protocol):
    """A language model in beam search, which keeps a state for each hypothesis."""

    @property
    def start(self) -> int:
        """State before a text's first label."""
        ...

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
        """Return what each label adds to the score [N, V]."""
        ...

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        """Return the state after a label [N], int64."""
        ...

    def to(self, device: torch.device) -> FusedModel:
        """Return the tables on a device."""
        ...


class ReferencePhrases(Protocol[State]):
    """Phrases to boost, one text and one label at a time: what the reference decoders call."""

    @property
    def start(self) -> tuple[State, ...]:
        """The states before a text's first label, one in each list."""
        ...

    def after(self, states: Sequence[State], token: int) -> tuple[State, ...]:
        """Return the states after a label."""
        ...

    def score(self, states: Sequence[State], token: int) -> float:
        """Return what a label adds to the score of a text."""
        ...

    def at_risk(self, states: Sequence[State]) -> float:
        """Return what a text that ends in these states loses."""
        ...
