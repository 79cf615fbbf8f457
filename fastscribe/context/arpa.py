"""Reads ARPA files, the text format of n-gram models that KenLM, SRILM and NeMo's training script write.

A file has a section for each length of n-grams, with an n-gram a line: its log10 probability, its units,
and, where longer n-grams may begin with it, the log10 weight of backing off. backoff_graph.py makes an automaton of it.

A section is read in blocks of lines. The fields of a block are split at once, so that a file of 100 MB takes seconds.

Shapes: A n-grams of one length, N units of each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.types import AnyArray, Float32Array, Int32Array, Int64Array

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
MAX_ORDER = 20
MAX_NGRAMS = 1 << 27  # about 3 GB
_BLOCK_BYTES = 1 << 23
_MAX_HEADER_BYTES = 1 << 20
_NAT = math.log(10)
_ZERO = -99.0  # log10 of a probability of 0, by convention
LOG_ZERO = _ZERO * _NAT  # the natural logarithm
_MAX_LOG10 = 0.01  # rounding makes a few probabilities larger than 1
_MAX_NUMBER = 1e6  # sums of larger ones could be infinite
_COUNT = re.compile(rb"ngram\s+(\d{1,18})\s*=\s*(\d{1,18})\s*$")
_SECTION = re.compile(rb"\\(\d{1,18})-grams:\s*$")
_MARK = re.compile(rb"^\\.*$", re.MULTILINE)
_IS_SPACE = np.zeros(256, bool)
_IS_SPACE[[9, 10, 11, 12, 13, 32]] = True  # as bytes.split()


@dataclass(frozen=True)
class Order:
    """The n-grams of one length."""

    ids_AN: Int32Array  # indices of Arpa.units
    logprobs_A: Float32Array  # natural logarithms
    backoffs_A: Float32Array


@dataclass(frozen=True)
class Arpa:
    units: tuple[str, ...]  # of the unigrams, in their order
    orders: tuple[Order, ...]


class _LineError(Exception):
    """A line that is wrong, by its number within a block from 0."""

    def __init__(self, line: int, problem: str) -> None:
        self.line, self.problem = line, problem


def read_arpa(file: IO[bytes], where: str) -> Arpa:
    """Read a model.

    Args:
        file: The text, at its beginning.
        where: The file's name, for messages.

    Returns:
        The model. An n-gram that stands twice stands there twice.

    Raises:
        UsageError: The text is no ARPA file, or is damaged; the message has the line.
        OSError, EOFError, zlib.error: It cannot be read.
    """
    reader = _Reader(file, where)
    counts = reader.header()
    units: dict[bytes, int] = {}
    orders = []
    for length, count in enumerate(counts, start=1):
        reader.section(length)
        parts, found = [], 0
        for block in reader.blocks():
            parts.append(reader.parsed(block, length, units))
            found += len(parts[-1][1])
            if found > count:  # perhaps far more: a compressed file can be of any length
                raise reader.error(f"more {length}-grams from here on than the {count:,} of the header")
        if found != count:
            raise reader.error(f"{found:,} {length}-grams before this line, where the header has {count:,}")
        ids, logprobs, backoffs = zip(*parts, strict=True) if parts else ((), (), ())
        orders.append(
            Order(
                np.concatenate([np.empty((0, length), np.int32), *ids]),
                np.concatenate([np.empty(0, np.float32), *logprobs]),
                np.concatenate([np.empty(0, np.float32), *backoffs]),
            )
        )
    reader.end()
    return Arpa(tuple(unit.decode() for unit in units), tuple(orders))


class _Reader:
    """Blocks of whole lines between the lines that begin with a backslash."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self._file, self._where = file, where
        self._rest = b""  # what is read and not used yet
        self._line = 1  # number of its first line
        self._is_whole = False  # the file ends with it

    def error(self, problem: str, line: int | None = None) -> UsageError:
        return UsageError(f"{self._where}: line {self._line if line is None else line:,}: {problem}")

    def header(self) -> list[int]:
        """Read up to the first section. Return the number of n-grams of each length."""
        while (line := self._next_line()).strip() != b"\\data\\":
            if self._line > 1000 or self._ended or line.startswith(b"\\"):
                raise UsageError(f"{self._where}: no ARPA file: it has no line \\data\\")
            self._skip(line)
        self._skip(line)
        counts: list[int] = []
        while not (line := self._next_line()).startswith(b"\\"):
            found = _COUNT.match(line)
            if line.strip() and (found is None or int(found[1]) != len(counts) + 1):
                raise self.error(f"not ngram {len(counts) + 1}=NUMBER: {_shown(line)}")
            if found is not None:
                counts.append(int(found[2]))
            if self._ended:
                break
            self._skip(line)
        if not counts or len(counts) > MAX_ORDER or sum(counts) > MAX_NGRAMS:
            raise self.error(f"{sum(counts):,} n-grams of up to {len(counts)} units: from 1 to {MAX_ORDER} are read")
        return counts

    def section(self, length: int) -> None:
        line = self._next_line()
        found = _SECTION.match(line)
        if found is None or int(found[1]) != length:
            raise self.error(f"\\{length}-grams: should be here" + (f", not {_shown(line)}" if line else ""))
        self._skip(line)

    def end(self) -> None:
        line = self._next_line()
        if line.strip() != b"\\end\\":
            raise self.error("the file ends before \\end\\" if not line else f"not \\end\\: {_shown(line)}")

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of lines up to the next section or the end."""
        while True:
            if len(self._rest) < _BLOCK_BYTES:
                self._read()
            mark = _MARK.search(self._rest)
            end = mark.start() if mark else len(self._rest) if self._is_whole else self._rest.rfind(b"\n") + 1
            block, self._rest = self._rest[:end], self._rest[end:]
            if block.strip():
                yield block
            self._line += block.count(b"\n")
            if mark or (self._is_whole and not self._rest):
                return
            if not end:
                raise self.error("a line without an end")

    def parsed(
        self, block: bytes, length: int, units: dict[bytes, int]
    ) -> tuple[Int32Array, Float32Array, Float32Array]:
        """Return the n-grams of a block; those of one unit are added to `units`."""
        try:
            return _parsed(block, length, units)
        except _LineError as error:
            raise self.error(error.problem, self._line + error.line) from None

    @property
    def _ended(self) -> bool:
        return self._is_whole and not self._rest

    def _next_line(self) -> bytes:
        """Return the next line with its end, without using it; empty at the end."""
        while b"\n" not in self._rest and not self._is_whole:
            if len(self._rest) > _MAX_HEADER_BYTES:
                raise UsageError(f"{self._where}: no ARPA file: it has no line \\data\\")
            self._read()
        return self._rest[: self._rest.find(b"\n") + 1 or len(self._rest)]

    def _skip(self, line: bytes) -> None:
        self._rest = self._rest[len(line) :]
        self._line += 1

    def _read(self) -> None:
        more = self._file.read(_BLOCK_BYTES)
        self._is_whole = not more
        self._rest += more


def _parsed(block: bytes, length: int, units: dict[bytes, int]) -> tuple[Int32Array, Float32Array, Float32Array]:
    counts_L = _fields_per_line(block)
    is_wrong_L = (counts_L != 0) & (counts_L != length + 1) & (counts_L != length + 2)
    if is_wrong_L.any():
        line = int(np.flatnonzero(is_wrong_L)[0])
        raise _LineError(line, f"not a number, {length} units and perhaps a number: {_line(block, line)}")
    lines_A = np.flatnonzero(counts_L)
    counts_A = counts_L[lines_A]
    first_A = np.cumsum(counts_A) - counts_A
    fields = np.array(block.split(), dtype=object)
    logprobs_A = _numbers(fields[first_A], block, lines_A)
    is_wrong_A = logprobs_A > _MAX_LOG10
    if is_wrong_A.any():
        line = int(lines_A[is_wrong_A][0])
        raise _LineError(line, f"a log10 probability above 0: {_line(block, line)}")
    has_backoff_A = counts_A == length + 2
    backoffs_A = np.zeros(len(lines_A), np.float32)
    backoffs_A[has_backoff_A] = _numbers(fields[(first_A + length + 1)[has_backoff_A]], block, lines_A[has_backoff_A])
    if length == 1:
        _add_units(fields[first_A + 1].tolist(), units, lines_A)
    ids_NA = np.empty((length, len(lines_A)), np.int32)
    for place in range(length):
        words = fields[first_A + 1 + place].tolist()
        try:
            ids_NA[place] = np.fromiter(map(units.__getitem__, words), np.int32, len(words))
        except KeyError as error:
            line = int(lines_A[words.index(error.args[0])])
            raise _LineError(line, f"{_shown(error.args[0])} is not among the 1-grams") from None
    return ids_NA.T, np.minimum(logprobs_A, 0) * np.float32(_NAT), backoffs_A * np.float32(_NAT)


def _fields_per_line(block: bytes) -> Int64Array:
    characters = np.frombuffer(block, np.uint8)
    is_space = _IS_SPACE[characters]
    begins = ~is_space
    begins[1:] &= is_space[:-1]
    ends = np.flatnonzero(characters == ord("\n"))
    if not len(ends) or ends[-1] != len(characters) - 1:
        ends = np.append(ends, len(characters) - 1)
    return np.diff(np.cumsum(begins)[ends], prepend=0)


def _numbers(fields: AnyArray, block: bytes, lines: Int64Array) -> Float32Array:
    try:
        found = np.fromiter(map(float, fields), np.float64, len(fields))
    except ValueError:
        found = np.array([_number(field) for field in fields], np.float64)
    found[found == -np.inf] = _ZERO
    is_wrong = ~(np.abs(found) <= _MAX_NUMBER)
    if is_wrong.any():
        place = int(np.flatnonzero(is_wrong)[0])
        problem = "not a number" if not np.isfinite(found[place]) else "too large a number"
        raise _LineError(int(lines[place]), f"{problem}: {_shown(fields[place])}")
    return found.astype(np.float32)


def _number(field: bytes) -> float:
    try:
        return float(field)
    except ValueError:
        return math.nan


def _add_units(words: list[bytes], units: dict[bytes, int], lines_A: Int64Array) -> None:
    for word, line in zip(words, lines_A.tolist(), strict=True):
        if word in units:
            raise _LineError(line, f"{_shown(word)} stands twice among the 1-grams")
        try:
            word.decode()
        except UnicodeDecodeError:
            raise _LineError(line, "not valid UTF-8") from None
        units[word] = len(units)


def _line(block: bytes, number: int) -> str:
    return _shown(block.split(b"\n", number + 1)[number])


def _shown(text: bytes) -> str:
    return repr(text.strip().decode("utf-8", "replace")[:60])


def is_arpa(head: bytes) -> bool:
    """Return True if a file that begins with these bytes may be an ARPA file."""
    return re.search(rb"(?m)^\s*\\data\\\s*$", head) is not None
