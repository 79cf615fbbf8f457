"""Standard streams that are closed when the process starts, as by `2>&-` in a shell.

The next file that is opened would get the number of a closed one, and what a library prints would go into that file.
"""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Open the null device for each of the file descriptors 0 to 2 that is closed, and give Python a stderr.

    sys.stdin and sys.stdout stay None where they were, since commands that need them say so.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lasts
