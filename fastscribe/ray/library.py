"""Import of Ray, and the connection to a cluster. Ray's settings that would disturb a run are put right here."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from fastscribe.errors import MissingExtra, UsageError, first_line


def ray_library() -> Any:
    """Import Ray. Raises MissingExtra if it is not installed."""
    with _own_signals():
        try:
            ray = importlib.import_module("ray")
            importlib.import_module("ray.data")
            return ray
        except ImportError as error:
            raise MissingExtra("--engine ray", error.name or "ray", "ray") from error


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster, and leave it at the end.

    Args:
        address: "auto" for the cluster that runs on this machine, or "host:port"; None: the cluster that RAY_ADDRESS names or
            that runs on this machine, else one of this machine alone, for as long as this block runs.

    Yields:
        The module `ray`. A program that is connected already stays so.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """
    ray = ray_library()
    given = address or os.environ.get("RAY_ADDRESS", "")
    if given.startswith("ray://"):
        raise UsageError(f"{given}: Ray's client cannot stream results: run the command on a node of the cluster")
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of this run's own reports to nobody
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its C code writes to stderr too
    with _own_signals(), _c_code_silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (Exception, SystemExit) as error:  # a node that is slow to start raises no narrower ones
            where = f"the Ray cluster {address}" if address else "a Ray cluster"
            why = "Ray ended the program" if isinstance(error, SystemExit) else first_line(error)
            raise UsageError(f"{where} cannot be reached: {why} (logs: /tmp/ray/session_latest/logs)") from error
    # Ray prints the end of a worker to stdout, where transcripts go. A Ray without this name prints it.
    worker: Any = getattr(getattr(ray, "_private", None), "worker", SimpleNamespace())
    worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        with _own_signals():
            ray.shutdown()
        worker._worker_logs_enabled = True


@contextmanager
def _c_code_silent() -> Iterator[None]:
    """Send what C code writes to stderr nowhere: as Ray begins, it says there that it has read its log level."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers: Ray replaces that of SIGTERM when it is imported and when it connects."""
    names = [name for name in ("SIGTERM", "SIGINT") if threading.current_thread() is threading.main_thread()]
    before = {name: signal.getsignal(getattr(signal, name)) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), signal.SIG_DFL if handler is None else handler)


@contextmanager
def signals_pass() -> Iterator[None]:
    """Raise the exception of a signal that came while Ray waited. Ray's C code puts a SystemError in its place."""
    try:
        yield
    except SystemError as error:
        cause = error.__cause__ or error.__context__
        if cause is None:
            raise
        raise cause from None


@contextmanager
def without_bars(ray: Any) -> Iterator[None]:
    """Let datasets that are made and run in this block have none of Ray Data's own bars and lines."""
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    before = context.enable_progress_bars, context.print_on_execution_start
    context.enable_progress_bars = context.print_on_execution_start = False
    try:
        yield
    finally:
        context.enable_progress_bars, context.print_on_execution_start = before
