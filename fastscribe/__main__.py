"""Entry point of the command: the set-up before its modules are imported, which takes half a second on a busy machine."""

from __future__ import annotations

from fastscribe._system.signals import exit_on_sigint
from fastscribe._system.standard_streams import open_closed_streams, write_utf8


def main() -> None:
    open_closed_streams()
    write_utf8()
    exit_on_sigint()
    from fastscribe.cli import main as run

    run()


if __name__ == "__main__":
    main()
