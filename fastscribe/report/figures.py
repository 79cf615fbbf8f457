"""Format numbers for people: sizes, digits, ticks of axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

UNKNOWN = "–"
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"))


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
