"""A pytest plugin for scripts/gpu_check: each test is a row in the file $GPU_CHECK_ROWS when it starts and when it ends.

$GPU_CHECK_SHARE divides a file among processes: 1/4 runs every fourth test, beginning with the second. $GPU_CHECK_RUN names
this process in its rows. Tests that an earlier process started are left out: after a crash, a second run takes the rest.
A process that ends early leaves no row "finished".
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu.goals import read_rows

_MAX_MESSAGE, _MAX_END = 400, 700  # characters


def _write(**row: Any) -> None:
    row["run"] = os.environ.get("GPU_CHECK_RUN", "")
    with open(os.environ["GPU_CHECK_ROWS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")  # one write, so that processes can share the file


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    index, count = map(int, os.environ.get("GPU_CHECK_SHARE", "0/1").split("/"))
    share = items[index::count]
    rows = read_rows(Path(os.environ["GPU_CHECK_ROWS"]))
    started = {row["test"] for row in rows if row.get("what") == "started"}
    items[:] = [item for item in share if item.nodeid not in started]
    _write(what="collected", tests=len(items), again=len(items) < len(share))


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(what="started", test=nodeid)


def pytest_sessionfinish() -> None:
    _write(what="finished")


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
