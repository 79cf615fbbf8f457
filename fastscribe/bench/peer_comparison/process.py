"""A side's process: started under its own Python, asked by lines of JSON, and never outliving who asks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import IO, Any

from fastscribe.errors import FastscribeError

_WORKER = Path(__file__).with_name("worker.py")
_GOODBYE_S = 10.0
_SHOWN = 4000  # characters of what a failed side said last
# What NeMo says when its decoder is not at its fastest.
_FALLBACK = re.compile(
    r"\bfall(ing|s)? back|conditional node|cuda graphs?.*(disabled|not |unsupported)|NO_WHILE_LOOPS|NO_GRAPHS", re.I
)


class SideFailed(FastscribeError):
    """A side that ended or cannot go on. `messages` is the end of what it wrote to stderr."""

    def __init__(self, side: str, problem: str, messages: str) -> None:
        super().__init__(f"the {side} side: {problem}")
        self.messages = messages[-_SHOWN:]


class Worker:
    """`info` is what it said of itself when its model was loaded. Raises SideFailed, also for an answer that takes longer
    than `longest_s` (None: no limit)."""

    def __init__(
        self, python: Path, settings: Mapping[str, Any], program: Path = _WORKER, longest_s: float | None = None
    ) -> None:
        self.side: str = settings["side"]
        self._longest_s = longest_s
        self._messages: IO[str] = tempfile.TemporaryFile("a+", errors="backslashreplace")  # noqa: SIM115 - closed in stop()
        threads = str(settings["threads"])
        env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [python, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            encoding="utf-8",
            env={"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | env,
        )
        try:
            self.info = self.ask(settings)
        except BaseException:
            self.stop()
            raise

    def turn(self, batch_size: int | None, alone: bool = False) -> dict[str, Any]:
        """wall_s, cpu_s and texts, of all recordings or of the lone one; or error."""
        return self.ask({"batch_size": batch_size, "alone": alone})

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._watched(), suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
        with self._watched():
            line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            lines = self.said().strip().splitlines()
            last = lines[-1].strip()[:300] if lines else "no word"
            raise SideFailed(self.side, f"its process ended with code {code}: {last}", self.said())
        answer: dict[str, Any] = json.loads(line)
        return answer

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Kills the process where the block takes too long."""
        watch = None if self._longest_s is None else Timer(self._longest_s, self._process.kill)
        if watch is not None:
            watch.start()
        try:
            yield
        finally:
            if watch is not None:
                watch.cancel()

    def said(self) -> str:
        self._messages.seek(0)
        return self._messages.read()

    def fallback_lines(self) -> list[str]:
        """What it said of being slower than it might be."""
        found = [line.strip()[:300] for line in self.said().splitlines() if _FALLBACK.search(line)]
        return list(dict.fromkeys(found))[:8]

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._messages.close()
