"""Results to stdout: one format, each as soon as it is there or in the order of the inputs."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext, suppress
from typing import Any, TextIO

from fastscribe.config import OutputStyle
from fastscribe.output.writers import render
from fastscribe.resume.shards import UNSHARDED, Shard
from fastscribe.types import Failure, Source, Transcript


class StreamOutput:
    """Writes results in the first of the formats to a text stream such as stdout: UTF-8 whatever the locale, flushed each time.

    With `ordered` a result waits until those of all inputs before it are out. BrokenPipeError is left to the caller, and
    so is the stream: it is not closed.
    """

    failed_before = 0
    report_path: Any = None

    def __init__(self, stream: TextIO, style: OutputStyle, shard: Shard = UNSHARDED, *, ordered: bool = False) -> None:
        self._stream, self._style = stream, style
        self._shard, self._ordered = shard, ordered
        self._order: deque[int] = deque()  # indices of inputs that are not out yet
        self._pending: dict[int, str] = {}

    def __enter__(self) -> StreamOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with suppress(BrokenPipeError) if kind is not None else nullcontext():
            self.close()

    def close(self) -> None:
        """Lets out what waited for an input that never came."""
        for index in sorted(self._pending):
            self._emit(self._pending.pop(index))

    def flush(self) -> None:
        """Each result is flushed as it is written."""

    def totals(self) -> None:
        """Nobody knows what else went to the stream."""

    def expect(self, source: Source | Failure) -> bool:
        """See Ledger."""
        if not self._shard.holds(source.id):
            return False
        if self._ordered:
            self._order.append(source.index)
        return True

    def is_done(self, source: Source | Failure) -> bool:
        """Nothing is remembered of a stream."""
        return False

    def write(self, result: Transcript | Failure) -> None:
        text = render(result, self._style.formats[0], self._style.tokens, self._style.subtitles)
        if not self._ordered:
            self._emit(text)
            return
        self._pending[result.index if isinstance(result, Failure) else result.audio.index] = text
        while self._order and self._order[0] in self._pending:
            self._emit(self._pending.pop(self._order.popleft()))

    def _emit(self, text: str) -> None:
        raw = getattr(self._stream, "buffer", None)  # StringIO has none
        if raw is None:
            self._stream.write(text)
        else:
            self._stream.flush()
            raw.write(text.encode())
            raw.flush()
        self._stream.flush()
