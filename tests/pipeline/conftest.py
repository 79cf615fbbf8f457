"""Limits of time that are short enough for tests."""

from __future__ import annotations

import pytest

from fastscribe.pipeline import prefetch, thread_pool, windows


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow calls are soon overtaken, and threads that hang are soon replaced."""
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 0.05)
    monkeypatch.setattr(thread_pool, "STUCK_S", 0.1)
    monkeypatch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(windows, "_MAX_WAIT_S", 0.05)
