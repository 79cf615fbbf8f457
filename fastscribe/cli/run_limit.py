"""`--stop-at-usd` and `--stop-after`: when a run ends, what it says then, and whether a limit suffices.

A run begins no batch that would be done after the limit (pipeline/time_limit.py). At the limit itself a timer drops what is
still in flight. Both act as SIGTERM does: finished results are kept, and the next run goes on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from fastscribe._system.gpus import gpu_name, num_gpus
from fastscribe._system.process_age import process_age_s
from fastscribe._system.signals import TimeIsOver, start_timer, stop_timer
from fastscribe.errors import CheckpointError, UsageError

_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_UNITS_S = (86_400.0, 3600.0, 60.0, 1.0)
# The end of a run, from the last batch to the exit: results are written, the report too.
_MIN_RESERVE_S, _RESERVE_SHARE, _MAX_RESERVE_S = 1.0, 0.01, 30.0


def parse_time(text: str) -> float:
    """Return the seconds of "90m", "2h30m", "1.5h", "45s" or "3600".

    Raises:
        UsageError: The text is none of these, or 0.
    """
    plain = re.fullmatch(r"\d+(?:\.\d+)?", text, re.ASCII)
    match = _TIME.fullmatch(text)
    seconds = float(text) if plain else 0.0
    if match and not plain:
        seconds = sum(unit_s * float(number or 0) for unit_s, number in zip(_UNITS_S, match.groups(), strict=True))
    if not 0 < seconds < math.inf:
        raise UsageError(f"--stop-after {text}: not a time, such as 90m, 2h30m, 45s or 3600 (seconds)")
    return seconds


@dataclass(frozen=True)
class RunLimit:
    """The end of this run. Times are in seconds since the start of the process.

    Attributes:
        after_s: The limit.
        text: The limit as a report names it: "at 5.00 USD", "after 2h30m".
        option: The option that set it.
        started_s: The start of the process, on time.perf_counter().
    """

    after_s: float
    text: str
    option: str
    started_s: float

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self.started_s

    @property
    def work_s(self) -> float:
        """The time by which the last batch should be done."""
        return self.after_s - min(_MAX_RESERVE_S, max(_MIN_RESERVE_S, _RESERVE_SHARE * self.after_s))

    def check(self, ready_s: float, estimated_s: float) -> LimitCheck:
        """Return whether this limit suffices.

        Args:
            ready_s: Seconds until the model was loaded.
            estimated_s: Seconds of the work.
        """
        work_s = self.work_s - ready_s
        return LimitCheck(self, math.ceil(estimated_s / work_s) if work_s > 0 else None)

    @property
    def too_short(self) -> UsageError:
        """The error if nothing could be finished: another run with this limit would only cost as much again."""
        return UsageError(
            f"stopped {self.text}: no recording was finished in {self.elapsed_s:.0f} s; the model is loaded and the inputs are "
            f"listed anew in each run: raise {self.option}"
        )

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raise TimeIsOver in the block at the limit. If it leaves the block, no recording was begun.

        Raises:
            UsageError: The limit is too short.
        """
        try:
            start_timer(self.after_s - self.elapsed_s)
            yield
        except TimeIsOver:
            raise self.too_short from None
        except CheckpointError as error:  # what native code that reads a model makes of any exception
            if self.elapsed_s < self.after_s:
                raise
            raise self.too_short from error
        finally:
            stop_timer()


@dataclass(frozen=True)
class LimitCheck:
    """How many runs with a limit a dry run expects, as if all recordings were short; None: no number of runs does all."""

    limit: RunLimit
    num_runs: int | None

    @property
    def suffices(self) -> bool:
        return self.num_runs is not None and self.num_runs <= 1

    def __str__(self) -> str:
        if self.num_runs is None:
            return f"stops {self.limit.text}, before the model is loaded: raise {self.limit.option}"
        needed = "this suffices" if self.suffices else f"about {self.num_runs:,} runs are needed"
        return f"stops {self.limit.text}: {needed}"

    def to_json(self) -> dict[str, object]:
        return {"limit_s": round(self.limit.after_s, 4), "limit_suffices": self.suffices, "limit_runs": self.num_runs}


def choose_limit(
    stop_at_usd: float | None,
    stop_after: str | None,
    device: str,
    price_per_hour: float | None,
    devices: str | None = None,
) -> RunLimit | None:
    """Return the limit that comes first, or None without one.

    Args:
        stop_at_usd: USD that this run may cost.
        stop_after: Its time, as parse_time() takes it.
        device: What `--device` says. Its price is looked up if there is no other; that imports torch.
        price_per_hour: USD an hour for the machine, from the user.
        devices: What `--devices` says, instead of `device`.

    Raises:
        UsageError: A value is none, or the price is needed and unknown.
    """
    started_s = perf_counter() - (process_age_s() or 0.0)
    after_s = None if stop_after is None else parse_time(stop_after)
    by_time = None if after_s is None else RunLimit(after_s, f"after {stop_after}", "--stop-after", started_s)
    if stop_at_usd is None:
        return by_time
    if not 0 < stop_at_usd < math.inf:
        raise UsageError(f"--stop-at-usd {stop_at_usd:g}: not a number of USD above 0")
    usd_after_s = stop_at_usd / _price(stop_at_usd, device, devices, price_per_hour) * 3600
    digits = 2 if round(stop_at_usd, 2) == stop_at_usd else 4
    by_usd = RunLimit(usd_after_s, f"at {stop_at_usd:.{digits}f} USD", "--stop-at-usd", started_s)
    return by_usd if by_time is None or by_usd.after_s < by_time.after_s else by_time


def _price(stop_at_usd: float, device: str, devices: str | None, price_per_hour: float | None) -> float:
    where = f"--stop-at-usd {stop_at_usd:g}"
    if price_per_hour == 0:
        raise UsageError(f"{where}: --price-per-hour 0 never costs that much")
    if price_per_hour is not None:
        return price_per_hour
    names = _gpu_names(device, devices)
    if len(set(names)) == 1:
        from fastscribe.pipeline.prices import price_of

        usd_per_hour, _ = price_of(names[0], None, len(names))
        if usd_per_hour is not None:
            return usd_per_hour
    raise UsageError(f"{where}: no price is known for this machine: give --price-per-hour USD")


def _gpu_names(device: str, devices: str | None) -> list[str]:
    """Return the names of the GPUs in use; none on a CPU, whose name does not identify the machine.

    The driver is asked and not torch, whose context would take memory of each GPU for as long as this process lives.
    """
    if devices is not None:
        from fastscribe.pipeline.workers.devices import parse_devices

        gpus = [one.name for one in parse_devices(devices) if one.kind == "cuda"]
    else:
        gpus = [] if device == "cpu" or not num_gpus() else [device]
    numbers = (gpu.partition(":")[2] for gpu in dict.fromkeys(gpus))
    return [gpu_name(int(number) if number.isdecimal() else 0) for number in numbers]
