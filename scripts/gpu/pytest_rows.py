"""A pytest plugin for scripts/gpu_check: each test is a row in the file $GPU_CHECK_ROWS when it ends.

pytest-xdist's controller writes the rows. A test that ends its process has failed there too, and a new process takes the rest.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

_MAX_MESSAGE, _MAX_END = 400, 700  # characters


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's controller
        config.pluginmanager.register(Rows())


def pytest_runtest_logfinish() -> None:
    """Leave no memory of the GPU to a process that runs other tests next."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Rows:
    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if node.gateway.id == "gw0":  # all processes collect the same, and one that takes another's place does again
            _write(what="collected", tests=len(ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            _write(what="collection", file=report.nodeid, error=report.longreprtext[-_MAX_END:])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when in ("setup", "teardown") and report.passed:  # one that is skipped or fails there is a row too
            return
        row: dict[str, Any] = {"what": "test", "test": report.nodeid, "outcome": report.outcome}
        row["took_s"] = round(report.duration, 3)
        if report.failed:
            message = getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longreprtext)
            row |= {"error": f"{report.when}: {message}"[:_MAX_MESSAGE], "end": report.longreprtext[-_MAX_END:]}
        elif report.skipped and isinstance(report.longrepr, tuple):
            row["reason"] = report.longrepr[2]
        _write(**row)


def _write(**row: Any) -> None:
    with open(os.environ["GPU_CHECK_ROWS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
