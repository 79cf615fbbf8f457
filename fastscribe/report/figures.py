"""Format numbers for people. Pure."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Format with three significant digits, and all digits before the point.

    >>> number(12345.6), number(3.14159), number(0.00123), number(0)
    ('12,346', '3.14', '0.00123', '0')
    """
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 0.001:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(0.1234), duration(75), duration(7322), duration(360_000)
    ('0.123 s', '1 min 15 s', '2 h 2 min', '100 h')
    """
    if seconds < 59.5:
        return f"{round(seconds, 3):.3g} s"
    minutes, left_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_s} s"
    return f"{minutes // 60:,} h {minutes % 60} min" if minutes < 6000 else f"{number(seconds / 3600)} h"


def memory(num_bytes: int) -> str:
    return f"{number(num_bytes / 2**30)} GiB"
