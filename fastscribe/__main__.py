"""Where the command begins: what comes before its own modules, which take half a second to import on a busy machine."""

from __future__ import annotations

from fastscribe._system.signals import exit_on_sigint
from fastscribe._system.standard_streams import open_closed_streams


def main() -> None:
    open_closed_streams()
    exit_on_sigint()
    from fastscribe.cli import main as run

    run()


if __name__ == "__main__":
    main()
