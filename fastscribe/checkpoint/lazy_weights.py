"""Lazily read weights: names, shapes and dtypes come from a file's header, and values are read one tensor at a time.

torch is imported only when a tensor is read, so that `fastscribe inspect` does not need it.

A file is opened once and read through its descriptor, so that replacing the file at its path does not mix two checkpoints.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from fastscribe._system.positioned_read import PositionedFile, pread_into
from fastscribe.errors import CheckpointError, WeightsMismatch

if TYPE_CHECKING:
    import torch

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "int8": 1}
MIN_MAPPED_BYTES = 1 << 20  # of a tensor; smaller ones are copied in less time than they are mapped
# BatchNorm's step counter is the only integer weight. Inference does not use it, and some writers omit it.
COUNTER_SUFFIX = ".num_batches_tracked"
_POPULATE_READ = 22  # madvise of Linux 5.14: touch pages, and say what cannot be read, which else ends the process
_ALIGNMENT = 8  # bytes; the largest type's


@dataclass(frozen=True)
class TensorSource:
    """A tensor that is read on demand. `dtype` is torch's name without the prefix: "float32", "bfloat16" ..

    `stored_dtype` is the one on the disk, if it is another than the one that `read` returns.
    `read` returns memory that may be written; a large tensor's may be the file's (FileBytes.mapped), to be copied by who keeps
    it. It raises CheckpointError if the values cannot be read, or are not finite.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]
    stored_dtype: str | None = None

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def reshaped(self, shape: tuple[int, ...]) -> TensorSource:
        assert math.prod(shape) == self.num_elements
        return TensorSource(self.dtype, shape, lambda: self.read().view(shape))

    def rows(self, *parts: slice, num_zeros: int = 0) -> TensorSource:
        """Return some rows, one part behind the other, and rows of zeros behind them."""
        num_rows = sum(len(range(*part.indices(self.shape[0]))) for part in parts) + num_zeros

        def read() -> torch.Tensor:
            import torch

            tensor = self.read()
            return torch.cat([*(tensor[part] for part in parts), tensor.new_zeros(num_zeros, *self.shape[1:])])

        return TensorSource(self.dtype, (num_rows, *self.shape[1:]), read)


class StoredModel:
    """What a checkpoint tells of its weights without reading their values."""

    weights: Mapping[str, torch.Tensor]

    @property
    def num_parameters(self) -> int:
        return sum(source.num_elements for source in float_sources(self.weights))

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(sorted({source.dtype for source in float_sources(self.weights)}))


class LazyWeights(Mapping[str, "torch.Tensor"]):
    """weights[name] reads that tensor from its file at each access. Names, `len` and `sources` read no values."""

    def __init__(self, sources: Mapping[str, TensorSource]) -> None:
        self.sources = dict(sources)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.sources[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self.sources

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def sources_of(weights: Mapping[str, torch.Tensor]) -> Mapping[str, TensorSource]:
    """Return the sources of weights in a file or in memory; reads no values."""
    if isinstance(weights, LazyWeights):
        return weights.sources
    return {name: _in_memory(tensor) for name, tensor in weights.items()}


def float_sources(weights: Mapping[str, torch.Tensor]) -> list[TensorSource]:
    """Return where the weights lie, without integers, which count steps of training."""
    return [source for source in sources_of(weights).values() if source.dtype != "int64"]


def _in_memory(tensor: torch.Tensor) -> TensorSource:
    return TensorSource(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), lambda: tensor)


def check_shapes(expected: Mapping[str, tuple[int, ...]], weights: Mapping[str, torch.Tensor], where: object) -> None:
    """Compare names and shapes; reads no values.

    Args:
        expected: shape by name.
        weights: weights of the checkpoint.
        where: the checkpoint, for messages.

    Raises:
        WeightsMismatch: lists every name that is missing, unexpected or has another shape.
    """
    found = {name: source.shape for name, source in sources_of(weights).items()}
    missing = {name for name in expected.keys() - found.keys() if not name.endswith(COUNTER_SUFFIX)}
    unexpected = found.keys() - expected.keys()
    wrong = [
        f"{name} {found[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if missing or unexpected or wrong:
        raise WeightsMismatch(where, missing, unexpected, wrong)


@dataclass(frozen=True)
class StoredTensor:
    """Location of a tensor's values in a file.

    Attributes:
        name: name in the file, for messages.
        start: offset in bytes.
        stride: in elements; None for row-major order.
    """

    file: RandomAccess
    where: object
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stride: tuple[int, ...] | None = None

    def source(self) -> TensorSource:
        return TensorSource(self.dtype, self.shape, self.read)

    def read(self) -> torch.Tensor:
        """Return a contiguous tensor, as TensorSource.read does.

        Raises:
            CheckpointError: The file is truncated, or values are NaN or infinite.
        """
        import torch

        try:
            if self.stride is None:
                tensor = self._elements(math.prod(self.shape)).view(self.shape)
            else:
                span = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
                tensor = self._elements(span).as_strided(self.shape, self.stride).contiguous()
        except EOFError as error:
            raise CheckpointError(self.where, f"damaged weights: {error}") from error
        except OSError as error:
            raise CheckpointError(self.where, f"cannot be read: {error.strerror or error}") from error
        except (MemoryError, RuntimeError) as error:  # torch's allocator raises the latter
            raise CheckpointError(self.where, "needs more memory than there is") from error
        # A sum is 25 times as fast as testing each number. If it overflows, each number is tested.
        if tensor.is_floating_point() and not (torch.isfinite(tensor.sum()) or torch.isfinite(tensor).all()):
            raise CheckpointError(self.where, f"refused: {self.name[:120]} holds NaN or infinity")
        return tensor

    def _elements(self, count: int) -> torch.Tensor:
        import torch

        dtype = getattr(torch, self.dtype)
        num_bytes = count * ITEM_BYTES[self.dtype]
        if num_bytes >= MIN_MAPPED_BYTES and isinstance(self.file, FileBytes):
            mapped = self.file.mapped(self.start, num_bytes)
            if mapped is not None:
                return torch.frombuffer(mapped, dtype=dtype)
        flat = torch.empty(count, dtype=dtype)
        if count:
            self.file.read_into(flat.view(torch.uint8).numpy().data, self.start)
        return flat


class RandomAccess(PositionedFile):
    """Bytes that can be read from any position, by several threads, also once it is closed as a file."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with the bytes from `offset` on. Raises EOFError if there are too few, and OSError like pread."""
        while len(buffer):
            count = self.read_at(offset, buffer)
            if count == 0:
                raise EOFError("the file is cut short")
            buffer, offset = buffer[count:], offset + count

    def content(self, offset: int, num_bytes: int) -> bytes:
        """Return these bytes. Raises as read_into()."""
        content = bytearray(num_bytes)
        self.read_into(memoryview(content), offset)
        return bytes(content)


class FileBytes(RandomAccess):
    """`size` bytes of a file from `start` on. The descriptor closes with the last object that uses it."""

    def __init__(self, descriptor: Descriptor, start: int, size: int) -> None:
        self._descriptor, self._start, self._size = descriptor, start, size

    @classmethod
    def of(cls, file: IO[bytes]) -> FileBytes:
        """Return all bytes of an open file. The caller may close the file."""
        return cls(Descriptor(os.dup(file.fileno())), 0, os.fstat(file.fileno()).st_size)

    def num_bytes(self) -> int:
        return self._size

    def part(self, start: int, size: int) -> FileBytes:
        assert 0 <= start <= start + size <= self._size
        return FileBytes(self._descriptor, self._start + start, size)

    def read_at(self, position: int, buffer: memoryview) -> int:
        held = buffer[: max(0, self._size - position)]
        return pread_into(self._descriptor.number, held, self._start + position) if len(held) else 0

    def mapped(self, offset: int, num_bytes: int) -> memoryview | None:
        """Return bytes of the file without a copy of them; None where only read_into() can read them, or can say why not.

        Pages that are written become the process's own. Others change with the file, and if it is cut short, the next touch
        ends the process; so nothing should keep this memory.
        """
        position = self._start + offset
        first = position % mmap.ALLOCATIONGRANULARITY
        if sys.platform != "linux" or position % _ALIGNMENT or offset + num_bytes > self._size:
            return None
        try:
            pages = mmap.mmap(
                self._descriptor.number, first + num_bytes, offset=position - first, access=mmap.ACCESS_COPY
            )
            pages.madvise(_POPULATE_READ)
        except (OSError, ValueError):
            return None
        return memoryview(pages)[first:]


class Descriptor:
    """A file descriptor that closes when nothing refers to this object."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class MemoryBytes(RandomAccess):
    def __init__(self, content: bytes) -> None:
        self._content = content

    def num_bytes(self) -> int:
        return len(self._content)

    def read_at(self, position: int, buffer: memoryview) -> int:
        part = memoryview(self._content)[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)
