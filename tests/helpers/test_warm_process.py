"""A command in the warm process ends and prints as one that starts from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli import MODEL
from tests.helpers.warm_process import Limits, WarmProcess

pytestmark = pytest.mark.linux


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmProcess]:
    warm = WarmProcess()
    yield warm
    assert warm.close() == ""


def test_limits(warm: WarmProcess, tmp_path: Path) -> None:
    limits = Limits(growth_bytes=2 << 30, file_bytes=0, seconds=60)
    done = warm.run("convert", MODEL, tmp_path / "out", limits=limits)
    assert done.returncode != 0 and not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert warm.run("convert", MODEL, tmp_path / "other").returncode == 0
