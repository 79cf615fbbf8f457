"""Output to a stream such as stdout: one format.

Rows of JSON and CTM name their recording and come in order of completion. Lines of text come in the order of the inputs, and
with their paths unless one recording was given. A stream of one of the SINGLE_FORMATS, such as SRT, is a file of its own and
holds one recording.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from typing import TextIO

from fastscribe._system.text_layout import escaped, join_texts
from fastscribe.audio.formats import STDIN
from fastscribe.audio.inputs import names_file
from fastscribe.config import OutputStyle
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.formats.writers import SINGLE_FORMATS, named, offset_suffix, render
from fastscribe.results.interfaces import Ledger, OutputRun
from fastscribe.types import Failure, Source, Transcript


def check_inputs(format: str, inputs: Sequence[str], found: Iterable[Source | Failure]) -> None:
    """Raise UsageError if the inputs are several recordings and the format holds one.

    Args:
        format: The format.
        inputs: What the user gave. What stdin holds is known once it is read (StreamOutput.expect).
        found: The recordings of the inputs, which are asked for up to the second one.
    """
    if format not in SINGLE_FORMATS or list(inputs) == [STDIN] or is_one(inputs):
        return
    if STDIN in inputs or len(list(islice(found, 2))) > 1:
        raise several(format)


def is_one(inputs: Sequence[str]) -> bool:
    """Return True if a single file was given, by its name."""
    return len(inputs) == 1 and inputs[0] != STDIN and names_file(inputs[0])


def several(format: str) -> UsageError:
    return UsageError(
        f"-f {format}: several recordings, or a list of them, do not go to stdout as one {format.upper()} file: give a folder "
        "with -o, or one recording"
    )


def stream_text(result: Transcript | Failure, style: OutputStyle, is_one: bool) -> str:
    """Return a result's text in the first of the formats; lines of text begin with a name and a tab unless `is_one`.

    A recording has a line then, and a dialogue one for each paragraph. The name is the path, with `@` and the offset in
    milliseconds of a manifest's row that has one.
    """
    text = render(named(result, style), style.formats[0], style.tokens, style.subtitles)
    if style.formats[0] != "txt" or is_one or isinstance(result, Failure):
        return text
    suffix = offset_suffix((result.audio.row or {}).get("offset"))  # or the rows of a file would look alike
    paragraphs = text.rstrip("\n").split("\n\n")
    lines = paragraphs if result.speakers else [join_texts(paragraphs)]
    return "".join(f"{escaped(result.audio.path)}{suffix}\t{line}\n" for line in lines)


def emit(stream: TextIO, text: str) -> None:
    """Write and flush a text as UTF-8, whatever the locale."""
    raw = getattr(stream, "buffer", None)  # StringIO has none
    if raw is None:
        stream.write(text)
    else:
        stream.flush()
        raw.write(text.encode())
        raw.flush()
    stream.flush()


class StreamOutput(Ledger):
    """Writes results in the first of the formats: UTF-8 whatever the locale, flushed after each result.

    It is its own ledger, which keeps nothing of earlier runs: give `ledger` to Transcriber.results(). The stream stays open.

    Args:
        stream: Where the text goes.
        run: What it writes. With `ordered`, and always of text, a result waits until those of all earlier inputs are written.
    """

    def __init__(self, stream: TextIO, run: OutputRun) -> None:
        super().__init__(run.shard)
        self._stream, self.style, self.ledger = stream, run.style, self
        self._format = run.style.formats[0]
        self._ordered = run.ordered or self._format == "txt"
        self._is_one, self._is_stdin = is_one(run.inputs), list(run.inputs) == [STDIN]
        self._order: deque[int] = deque()  # indices of inputs without a result
        self._held: dict[int, str] = {}  # texts that wait for earlier inputs, by index

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard.

        Raises:
            UsageError: Another recording would follow in a format that holds one. Called ahead of all decoding.
        """
        if self._is_stdin and source.index == 0:
            self._is_one = source.path == STDIN  # else it is the first of a list
        if self._format in SINGLE_FORMATS and (source.index > 0 or (self._is_stdin and not self._is_one)):
            raise several(self._format)
        is_ours = super().expect(source)
        if is_ours and self._ordered:
            self._order.append(source.index)
        return is_ours

    def __enter__(self) -> StreamOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with suppress(BrokenPipeError) if kind is not None else nullcontext():
            self.close()

    def close(self) -> None:
        """Write the results that wait for inputs without one."""
        for index in sorted(self._held):
            emit(self._stream, self._held.pop(index))

    def flush(self) -> None:
        """Do nothing: each result is flushed when it is written."""

    def write(self, result: Transcript | Failure) -> None:
        """Write one result, and those that waited for it.

        Raises:
            BrokenPipeError: The reader is gone.
            OutputError: The stream cannot be written.
        """
        item = result if isinstance(result, Failure) else result.audio
        text = stream_text(result, self.style, self._is_one)
        try:
            self._write(item.index, text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError("stdout", error) from error

    def _write(self, index: int, text: str) -> None:
        if not self._ordered:
            emit(self._stream, text)
            return
        self._held[index] = text
        while self._order and self._order[0] in self._held:
            emit(self._stream, self._held.pop(self._order.popleft()))
