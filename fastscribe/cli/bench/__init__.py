"""`fastscribe bench`: measurements of this machine, a file a command."""

from __future__ import annotations

from fastscribe.cli.bench import loss, train

__all__ = ["loss", "train"]
