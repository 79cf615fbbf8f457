"""Format numbers for people: units, digits, ticks of axes. Pure.

A measurement's name ends in its unit (bench/document.py), which gives its heading and its scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

UNKNOWN = "–"
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"))
# Units by the end of the name, longest first.
_UNITS = (
    ("_usd_per_hour", "USD per hour"),
    ("_audio_s_per_s", "audio s/s"),
    ("_steps_per_s", "steps/s"),
    ("_per_audio_s", "per audio s"),
    ("_bytes_per_s", "B/s"),
    ("_flops_per_s", "FLOP/s"),
    ("_gb_per_s", "GB/s"),
    ("_tflops", "TFLOP/s"),
    ("_gflops", "GFLOP/s"),
    ("_per_s", "per s"),
    ("_bytes", "bytes"),
    ("_gib", "GiB"),
    ("_mhz", "MHz"),
    ("_percent", "%"),
    ("_share", "%"),
    ("_kwh", "kWh"),
    ("_wh", "Wh"),
    ("_usd", "USD"),
    ("_ms", "ms"),
    ("_us", "µs"),
    ("_s", "s"),
    ("_w", "W"),
    ("_j", "J"),
    ("_c", "°C"),
)
_UNIT_FIRST = re.compile(r"(us|ms|s|j|wh|kwh|usd|mb|gflop)_per_(\w+)")
_SYMBOLS = {"us": "µs", "j": "J", "wh": "Wh", "kwh": "kWh", "usd": "USD", "mb": "MB", "gflop": "GFLOP"}


@dataclass(frozen=True)
class Quantity:
    """A measurement's label, unit, and the factor from its value to that unit."""

    label: str
    unit: str
    factor: float

    @property
    def heading(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit and self.label else self.label or self.unit


def quantity(name: str, values: Iterable[Any] = ()) -> Quantity:
    """Choose the label and unit by the measurement's name, and by its largest value if that decides the unit.

    >>> quantity("padding_share").heading
    'padding, %'
    """
    start = _UNIT_FIRST.fullmatch(name)
    if start:
        per = words(start[2]).replace("1000000 ", "1,000,000 ").replace("1000 ", "1,000 ")
        return Quantity("", f"{_SYMBOLS.get(start[1], start[1])} per {per}", 1.0)
    for end, unit in _UNITS:
        if ("_" + name).endswith(end):
            label = words(("_" + name)[: -len(end)].strip("_"))
            if unit == "bytes":
                size, unit = _size_unit(max((v for v in values if is_number(v)), default=0))
                return Quantity(label, unit, 1 / size)
            return Quantity(label, unit, 100.0 if end == "_share" else 1.0)
    return Quantity(words(name), "", 1.0)


def words(name: str) -> str:
    return name.replace("_", " ").replace("rtfx", "RTFx")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any) -> str:
    """Format with three significant digits, and all digits before the point.

    >>> number(12345.6), number(3.14159), number(0.00123), number(None)
    ('12,346', '3.14', '0.00123', '–')
    """
    if not is_number(value):
        return UNKNOWN
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 0.001:
        return f"{value:.3g}"
    return f"{value:,.{_decimals(abs(value))}f}"


def column(values: Sequence[Any]) -> list[str]:
    """Format numbers with the same digits after the point, so that they align."""
    known = [value for value in values if is_number(value)]
    if all(value == int(value) for value in known):
        return [f"{int(value):,}" if is_number(value) else UNKNOWN for value in values]
    decimals = _decimals(max(abs(value) for value in known))
    smallest = min((abs(value) for value in known if value), default=1.0)
    decimals = min(6, max(decimals, _decimals(smallest) - 1))  # the smallest still has two digits
    while decimals and all(round(value, decimals) == round(value, decimals - 1) for value in known):
        decimals -= 1
    return [f"{value:,.{decimals}f}" if is_number(value) else UNKNOWN for value in values]


def _decimals(size: float) -> int:
    return 0 if size <= 0 else min(6, max(0, 2 - math.floor(math.log10(size))))


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(0.1234), duration(75), duration(7322)
    ('0.123 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 59.5:
        return f"{column([round(seconds, 3)])[0]} s"
    minutes, left_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_s} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def size(num_bytes: float) -> str:
    scale, unit = _size_unit(num_bytes)
    return f"{number(num_bytes / scale)} {unit}"


def share(part: float) -> str:
    return f"{100 * part:.1f} %"


def _size_unit(num_bytes: float) -> tuple[float, str]:
    return next((scale, unit) for scale, unit in _SIZES if num_bytes >= scale or scale == 1.0)


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to the first one that is not below `top`.

    >>> ticks(7)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    if not top > 0:
        return [0.0, 1.0]
    rough = top / wanted
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10, 20) if base * factor >= rough * 0.999)
    return [round(step * place, 12) for place in range(math.ceil(top / step - 1e-9) + 1)]
