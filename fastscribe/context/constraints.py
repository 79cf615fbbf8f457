"""The constraints of a run: its phrases to boost and the tokens that languages leave out, for each batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastscribe.context.booster import Booster
from fastscribe.context.vocabulary_mask import VocabularyMasks
from fastscribe.types import Batch, Frames


@dataclass(frozen=True)
class Constraints:
    """What the rows of batches may not write, and what they should rather write (run_rooms.LazyConstraints calls it).

    Attributes:
        booster: Has the phrases.
        masks: Has the tokens; None: the model has one language, or a prompt for it.
    """

    booster: Booster
    masks: VocabularyMasks | None

    def constrain(self, frames: Frames, batch: Batch) -> Frames:
        """Return the batch's frames with the phrases to boost and the tokens that are left out, if there are any."""
        boost, mask = self.booster.boost(batch), self.masks and self.masks.mask(batch)
        return frames if boost is None and mask is None else replace(frames, boost=boost, mask=mask)
