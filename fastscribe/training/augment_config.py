"""The augmentation section of a recipe; augment.py applies it. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastscribe.errors import UsageError

_DB = (-100.0, 100.0)
_BOUNDS = {  # outside of these, float32 samples overflow or vanish
    **dict.fromkeys(("noise_db", "gain_db"), _DB),
    "noise_slope": (-4.0, 4.0),
}
RECORDED_SHARE = 0.5  # of the rows with noise get a recorded one, if the recipe has a manifest of them
PERCENT = 100  # speeds are whole hundredths, so that resampling's ratios are small


@dataclass(frozen=True)
class AugmentConfig:
    """Ranges are (min, max), uniform between; a chance is per row. Raises UsageError."""

    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    reverb_chance: float = 0.2  # of a room of room_manifest
    room_manifest: str | None = None  # of impulse responses; null: no row is in a room
    noise_chance: float = 0.4
    noise_manifest: str | None = (
        None  # of noise without speech: for half of the rows with noise; null: all of it is made
    )
    noise_db: tuple[float, float] = (5.0, 30.0)  # speech to noise
    noise_slope: tuple[float, float] = (0.0, 2.0)  # power falls as 1 / frequency ** slope: 0 white, 1 pink, 2 brown
    gain_db: tuple[float, float] = (-15.0, 6.0)
    freq_masks: int = 2
    freq_mask_share: float = 27 / 80  # of the mel bands, at most
    time_masks: int = 10
    time_mask_share: float = 0.05  # of the row's frames, at most

    def __post_init__(self) -> None:
        for speed in self.speeds:
            if not (0.5 <= speed <= 2 and math.isclose(speed * PERCENT, round(speed * PERCENT))):
                raise UsageError(f"speeds {self.speeds!r}: not whole hundredths from 0.5 to 2")
        for name in ("reverb_chance", "noise_chance", "freq_mask_share", "time_mask_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} {getattr(self, name)!r}: not a number from 0 to 1")
        for name in ("noise_db", "noise_slope", "gain_db"):
            low, high = getattr(self, name)
            lowest, highest = _BOUNDS[name]
            if not lowest <= low <= high <= highest:
                wanted = f"not (least, most) from {lowest:g} to {highest:g}"
                raise UsageError(f"{name} {(low, high)!r}: {'the least comes first' if low > high else wanted}")
        for manifest, chance in (("noise_manifest", "noise_chance"), ("room_manifest", "reverb_chance")):
            if getattr(self, manifest) is not None and not getattr(self, chance):
                raise UsageError(f"{manifest}: {chance} is 0, so it would not be used")
        if not self.speeds:
            raise UsageError("speeds: none is given")
        if min(self.freq_masks, self.time_masks) < 0:
            raise UsageError("freq_masks, time_masks: not numbers from 0")
