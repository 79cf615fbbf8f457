"""Retries for the stores whose library does not retry, and calls that Ctrl-C may interrupt."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread, current_thread, main_thread
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fastscribe._system.remote.store import RemoteUnavailable
from fastscribe.errors import first_line

RETRIES = 10
FEW_RETRIES = 5  # while no server has answered; about 3 s of pauses, at most 6
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.2, 15.0
RETRY_S, CONNECT_S = 120.0, 6.0  # from the first request, once a server has answered and before; no retry begins later

Result = TypeVar("Result")


def retry(call: Callable[[], Result], was_reached: Callable[[], bool] = lambda: True) -> Result:
    """Call until it does not raise RemoteUnavailable, with exponential back-off and full jitter.

    Args:
        call: What to do.
        was_reached: Returns False while no server has ever answered: most likely none will, so retries are few.
    """
    start = time.monotonic()
    for attempt in range(RETRIES):
        try:
            return call()
        except RemoteUnavailable:
            pause_s = random.uniform(0, min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**attempt))
            retries, limit_s = (RETRIES, RETRY_S) if was_reached() else (FEW_RETRIES, CONNECT_S)
            if attempt >= retries or time.monotonic() + pause_s > start + limit_s:
                raise
            time.sleep(pause_s)
    return call()


def check_reachable(endpoint: str) -> None:
    """Connect to an endpoint's host and port, with few retries. Behind a proxy, do nothing.

    Args:
        endpoint: URL of the endpoint ("https://host:port"); its path does not matter.

    Raises:
        RemoteUnavailable: The host is unknown, refuses the connection, or does not answer within CONNECT_S.
    """
    url = urlsplit(endpoint)
    host = url.hostname or ""
    if proxy_bypass(host) or not {url.scheme, "all"} & set(getproxies()):
        port = url.port or (80 if url.scheme == "http" else 443)
        deadline = time.monotonic() + CONNECT_S
        retry(lambda: _connect(host, port, max(0.1, deadline - time.monotonic())), lambda: False)


def _connect(host: str, port: int, timeout_s: float) -> None:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        socket.create_connection((host, port), timeout_s / len(addresses)).close()  # they share the time
    except OSError as error:
        problem = f"{host}:{port} cannot be reached ({first_line(error)})"
        raise RemoteUnavailable(f"{problem}; check the network, the endpoint and the bucket's name") from error


def interruptible(call: Callable[[], Result]) -> Result:
    """Call native code that sees no signals. The main thread waits for another thread, and so for Ctrl-C too."""
    if current_thread() is not main_thread():
        return call()
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="remote", daemon=True).start()
    return future.result()
