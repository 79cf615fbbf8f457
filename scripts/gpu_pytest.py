"""A pytest plugin for scripts/gpu_check: each test is a row in the file $GPU_CHECK_ROWS as soon as it ends.

$GPU_CHECK_SHARE divides a file among processes: 1/4 runs every fourth test, beginning with the second.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

_MAX_MESSAGE, _MAX_END = 400, 700  # characters


def _write(**row: Any) -> None:
    with open(os.environ["GPU_CHECK_ROWS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")  # one write, so that processes can share the file


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    index, count = map(int, os.environ.get("GPU_CHECK_SHARE", "0/1").split("/"))
    items[:] = items[index::count]


def pytest_collection_finish(session: pytest.Session) -> None:
    _write(what="collected", tests=len(session.items))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(what="collection", file=report.nodeid, error=report.longreprtext[-_MAX_END:])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:  # a test that is skipped or fails before or after its call is a row too
        return
    row: dict[str, Any] = {"what": "test", "test": report.nodeid, "outcome": report.outcome}
    row["took_s"] = round(report.duration, 3)
    if report.failed:
        message = getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longreprtext)
        row |= {"error": f"{report.when}: {message}"[:_MAX_MESSAGE], "end": report.longreprtext[-_MAX_END:]}
    elif report.skipped and isinstance(report.longrepr, tuple):
        row["reason"] = report.longrepr[2]
    _write(**row)
