"""Entry point of the command: the set-up before its modules are imported, which takes half a second on a busy machine."""

from __future__ import annotations

from typing import NoReturn

from fastscribe._system.signals import end_process, exit_on_sigint
from fastscribe._system.standard_streams import open_closed_streams, write_utf8


def main() -> NoReturn:
    """Run the command line of this process, and end the process at once; fastscribe.cli.main() is for callers in Python."""
    open_closed_streams()
    write_utf8()
    exit_on_sigint()
    from fastscribe.cli import exit_code

    end_process(exit_code())


if __name__ == "__main__":
    main()
