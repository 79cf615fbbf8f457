"""The tokens that each row of a batch may not have, as tensors (context/language_filter.py says which).

- Greedy decoding: the model alone decides whether there is a label, as with phrases to boost (boosting.py). The best label of
  those that stay takes the place of one that is left out. Where such a label would compete with the blank, words are lost: the
  blank is often the model's second choice (docs/log.md, 2026-11-24).
- Beam search: the labels that stay share the probability of all labels, in proportion to their own.

Durations and log-probabilities stay the model's: a token in the place of a likelier one has a low confidence.

Rows look their tokens up in one table of all languages of a run. A language has its place in the table for good, so CUDA
graphs read the table where it lies; it moves only when it grows.

Shapes: B batch, V labels without blank, L places of languages; place 0 leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch

from fastscribe.context.language_filter import LanguageFilter
from fastscribe.cuda.device import small_to_device
from fastscribe.types import Batch, Int64Array

_FIRST_PLACES = 8


@dataclass(frozen=True)
class VocabularyMask:
    """The tokens that the rows of a batch may not have."""

    excluded_LV: torch.Tensor  # bool
    place_B: Int64Array  # of each row's language

    def places(self) -> torch.Tensor:
        """Return the rows' places [B] on the table's device."""
        return small_to_device(np.ascontiguousarray(self.place_B), self.excluded_LV.device)

    def excluded(self) -> torch.Tensor:
        """Return the rows' tokens [B, V], bool."""
        return self.excluded_LV[self.places()]

    def part(self, rows: slice) -> VocabularyMask:
        """Return the mask of some rows."""
        return VocabularyMask(self.excluded_LV, self.place_B[rows])


class VocabularyMasks:
    """Makes the VocabularyMask of each batch.

    Args:
        languages: Has the tokens of each language.
        num_labels: Of the vocabulary, without blank.
        device: The decoder's.

    Attributes:
        languages: As given.
    """

    def __init__(self, languages: LanguageFilter, num_labels: int, device: torch.device) -> None:
        self.languages, self._device = languages, device
        self._lock = Lock()
        self._places: dict[frozenset[int], int] = {frozenset(): 0}
        self._table_LV = torch.zeros(_FIRST_PLACES, num_labels, dtype=torch.bool, device=device)

    def mask(self, batch: Batch) -> VocabularyMask | None:
        """Return the mask of a batch; None if its recordings are kept to no language."""
        tags = [utterance.audio.language for utterance in batch.utterances]
        if not any(tags):
            return None
        with self._lock:  # parts of a batch run side by side
            place_B = np.array([self._place(tag) for tag in tags])
            return VocabularyMask(self._table_LV, place_B)

    def _place(self, tag: str | None) -> int:
        """Return a language's place in the table; a new one is written there, in the order of the current stream.

        Languages that leave out the same tokens share one, so rows with any regions (en-US, en-GB) do not let it grow.
        """
        excluded = frozenset[int]() if tag is None else self.languages.excluded(tag) or frozenset()
        if excluded not in self._places:
            place = self._places[excluded] = len(self._places)
            if place == len(self._table_LV):
                self._table_LV = torch.cat((self._table_LV, torch.zeros_like(self._table_LV)))
            excluded_V = np.zeros(self._table_LV.shape[1], np.bool_)
            excluded_V[list(excluded)] = True
            self._table_LV[place] = small_to_device(excluded_V, self._device)
        return self._places[excluded]
