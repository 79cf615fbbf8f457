"""Print scores to stdout, with the versions of what made them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fastscribe.cli.app import StdoutClosed
from fastscribe.evaluation.scores import NormalizerName
from fastscribe.version import __version__


def print_parts(parts: Iterable[str]) -> None:
    """Print texts. Raises StdoutClosed."""
    if sys.stdout is None:
        raise StdoutClosed
    try:
        for part in parts:
            print(part)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise StdoutClosed from error


def versions(normalizer: NormalizerName, *scorers: str) -> dict[str, str]:
    """Return the versions of this package, of the scorers (jiwer if none is named), and of the normaliser if it has one."""
    from importlib.metadata import version

    packages = (*(scorers or ("jiwer",)), *(("whisper-normalizer",) if normalizer == "whisper-en" else ()))
    return {"fastscribe": __version__} | {package: version(package) for package in packages}
