"""Parts of the shared memory never overlap, other processes see what is written, and nothing is left of it."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.workers import arena as arena_module
from fastscribe.pipeline.workers.arena import Arena, SharedMemory

PAGE = 4096


@pytest.fixture
def arena():
    made = Arena(8 * PAGE)
    yield made
    made.close()


def test_what_it_grows_by_is_used_again(arena: Arena) -> None:
    arena.allocate(8 * PAGE)
    place = arena.grow(2 * PAGE)
    assert arena.allocate(PAGE) is None
    arena.release(place)
    assert arena.allocate(2 * PAGE) == place


def test_the_first_mapping_stays_in_use_when_the_memory_grows(arena: Arena) -> None:
    """A GPU's driver may have pinned it."""
    first = arena.allocate(8 * PAGE)
    before = address(arena.view(first, 8 * PAGE))
    beyond = arena.grow(2 * PAGE)
    arena.view(beyond, 4)[:] = b"more"
    arena.view(first, 4)[:] = b"same"
    other = SharedMemory(arena.file)
    assert (bytes(other.view(beyond, 4)), bytes(other.view(first, 4))) == (b"more", b"same")
    assert address(arena.view(first, 8 * PAGE)) == before
    assert address(arena.view(first + 3 * PAGE, PAGE)) == before + 3 * PAGE


def address(memory: memoryview) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5 * PAGE)), max_size=60))
def test_it_does_what_a_list_of_pages_does(steps: list[tuple[bool, int]]) -> None:
    """A model that looks at every page: a part is the first run of free pages that is long enough."""
    arena = Arena(16 * PAGE)
    first = arena.num_bytes - 16 * PAGE
    taken, held = [False] * 16, []
    for allocates, size in steps:
        pages = max(1, -(-size // PAGE))
        if allocates:
            starts = [at for at in range(17 - pages) if not any(taken[at : at + pages])]
            place = arena.allocate(size)
            assert place == (first + starts[0] * PAGE if starts else None)
            if place is not None:
                held.append((starts[0], pages))
                taken[starts[0] : starts[0] + pages] = [True] * pages
        elif held:
            at, pages = held.pop(size % len(held))
            arena.release(first + at * PAGE)
            taken[at : at + pages] = [False] * pages
    arena.close()


def files() -> set[str]:
    folders = [Path(tempfile.gettempdir()), Path("/dev/shm")]
    return {str(path) for folder in folders if folder.exists() for path in folder.glob("*fastscribe*")}


@pytest.mark.parametrize("has_memfd", [True, False])
def test_it_has_no_name_while_it_is_used(has_memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing is left behind, however the processes end. A memfd needs no folder either."""
    if os.name == "nt":
        pytest.skip("Windows deletes no open file")
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif hasattr(os, "memfd_create"):  # a container's /dev/shm may be full
        monkeypatch.setattr(tempfile, "mkstemp", None)
    before = files()
    arena = Arena(PAGE)
    assert files() <= before and not arena.file.path
    SharedMemory(arena.file).view(arena.allocate(PAGE), 4)[:] = b"same"
    arena.close()


@pytest.mark.linux
def test_its_memory_is_free_once_it_is_closed() -> None:
    gc.collect()
    before = mappings()
    arena = Arena(64 * PAGE)
    assert mappings() == before + 1
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(arena.file.descriptor)
    del arena
    assert mappings() == before


def mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:fastscribe")


@pytest.mark.parametrize(
    ("total_gb", "num_devices", "mb", "part_mb"),
    [
        (0.1, 1, 64, 8),
        (8, 1, 1024, 128),
        (16, 1, 2048, 256),
        (1024, 1, 2048, 256),
        (1024, 8, 16384, 256),
        (16, 8, 2048, 32),
    ],
)
def test_its_size_follows_the_machine_and_the_devices(
    total_gb: float, num_devices: int, mb: int, part_mb: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight parts of each device have room."""
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(arena_module.Arena, "__init__", lambda self, *given: sizes.append(given))
    Arena.of_machine(int(total_gb * (1 << 30)), num_devices)
    assert sizes == [(mb << 20, part_mb << 20)]


# --- segments --------------------------------------------------------------------------------------------------------


def pages(segments: list[tuple[int, int]]) -> list[int]:
    return [(end - begin) // PAGE for begin, end in segments]


@pytest.mark.parametrize(
    ("all_pages", "first", "expected"),
    [(16, 2, [2, 2, 4, 8]), (24, 1, [1, 1, 2, 4, 8, 8]), (8, 8, [8]), (3, 5, [3]), (1, 1, [1])],
)
def test_each_segment_is_as_large_as_all_before(all_pages: int, first: int, expected: list[int]) -> None:
    arena = Arena(all_pages * PAGE, first * PAGE)
    assert pages(arena.segments) == expected
    assert arena.segments == SharedMemory(arena.file).segments
    assert arena.segments[-1][1] == arena.num_bytes
    arena.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9 * PAGE)), max_size=60), st.integers(1, 20), st.integers(1, 8))
def test_parts_lie_in_one_segment_and_never_overlap(steps: list[tuple[bool, int]], all_pages: int, first: int) -> None:
    """The number of segments in use is what the parts need."""
    arena = Arena(all_pages * PAGE, first * PAGE)
    held: list[tuple[int, int]] = []
    last = 0  # segment with a part
    for allocates, size in steps:
        size = max(1, size)
        place = arena.allocate(size) if allocates else None
        if place is not None:
            [index] = [
                index for index, (begin, end) in enumerate(arena.segments) if begin <= place and place + size <= end
            ]
            assert all(place + size <= begin or begin + other <= place for begin, other in held)
            held.append((place, size))
            last = max(last, index)
        elif not allocates and held:
            arena.release(held.pop(size % len(held))[0])
        assert arena._num_used <= last + 1
    for place, _ in held:
        arena.release(place)
    assert list(arena._gaps())[:-1] == arena.segments[: arena._num_used], "neighbours in a segment are one again"
    arena.close()


@pytest.mark.linux
def test_a_few_batches_take_no_more_memory_than_they_need() -> None:
    arena = Arena(64 << 20, 8 << 20)
    view = arena.view(arena.allocate(3 << 20), 3 << 20)
    view[:: 1 << 12] = bytes([1]) * len(view[:: 1 << 12])
    assert os.fstat(arena.file.descriptor).st_blocks * 512 < 4 << 20
    arena.close()


def test_a_segment_is_pinned_once_and_when_a_part_of_it_is_used() -> None:
    """A process that comes later, or that sees another part first, pins what it uses itself."""
    arena = Arena(16 * PAGE, 2 * PAGE)
    places = [arena.allocate(2 * PAGE) for _ in range(3)]
    device, pinned = SharedMemory(arena.file), []
    base = address(memoryview(device._map))

    def pin(memory: memoryview) -> int:
        pinned.append((address(memory) - base, address(memory) - base + len(memory)))
        return len(memory)

    for thread in device.pin_with(pin, refused=pytest.fail):
        thread.join()
    assert pinned == device.segments[:1]
    for place in (places[0], places[2], places[2] + PAGE, places[1], places[2]):
        device.view(place, PAGE)
        for thread in threading.enumerate():
            if thread.name == "pin":
                thread.join()
    assert pinned == [device.segments[index] for index in (0, 2, 1)]
    assert device.pinned_bytes == sum(end - begin for begin, end in pinned)
    device.view(arena.grow(PAGE), PAGE)
    assert len(pinned) == 3, "what it grew by is not pinned"
    arena.close()


def test_segments_that_are_pinned_at_the_same_time_are_all_counted() -> None:
    arena, all_pin = Arena(16 * PAGE, 2 * PAGE), threading.Barrier(2)
    places = [arena.allocate(2 * PAGE) for _ in range(2)]
    device = SharedMemory(arena.file)

    def pin(memory: memoryview) -> int:
        all_pin.wait(60)
        return len(memory)

    [thread] = device.pin_with(pin, refused=pytest.fail)
    device.view(places[1], PAGE)
    for one in (thread, *(one for one in threading.enumerate() if one.name == "pin")):
        one.join()
    assert device.pinned_bytes == 4 * PAGE
    arena.close()


def test_a_segment_for_which_there_is_no_thread_stays_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device goes on, and can use it."""

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    arena = Arena(16 * PAGE, 2 * PAGE)
    arena.allocate(2 * PAGE)
    device, reasons = SharedMemory(arena.file), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not device.pin_with(pytest.fail, lambda error: reasons.append(str(error)))
    assert len(device.view(arena.allocate(PAGE), PAGE)) == PAGE
    assert reasons == ["can't start new thread"] * 2
    arena.close()


# --- systems that refuse memory without a file ----------------------------------------------------------------------


def refuse(number: int) -> Callable[..., int]:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.linux
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOSYS])
def test_a_system_that_refuses_a_memfd_gets_a_file_without_a_name(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", refuse(number))
    before = files()
    arena = Arena(64 * PAGE, 8 * PAGE)
    assert arena.refusal is not None and arena.refusal.errno == number and files() <= before
    first, later = arena.allocate(8 * PAGE), arena.allocate(8 * PAGE)
    SharedMemory(arena.file).view(later, 4)[:] = b"same"
    assert bytes(arena.view(later, 4)) == b"same" and first is not None
    assert os.fstat(arena.file.descriptor).st_blocks * 512 >= 16 * PAGE, "the disk has room for what is written"
    arena.close()


@pytest.mark.linux
def test_a_full_disk_is_an_error_and_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the first segment there is no memory; without room for another one it stays as it is."""
    reserve, room = os.posix_fallocate, 100 * PAGE

    def fallocate(descriptor: int, begin: int, num_bytes: int) -> None:
        if begin + num_bytes > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(descriptor, begin, num_bytes)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    monkeypatch.setattr(os, "memfd_create", refuse(errno.ENOSYS))
    opened = {*os.listdir("/proc/self/fd")}
    with pytest.raises(OSError, match="No space left"):
        Arena(1024 * PAGE, 128 * PAGE)
    assert {*os.listdir("/proc/self/fd")} <= opened  # what earlier tests left may be freed meanwhile
    arena = Arena(1024 * PAGE, 32 * PAGE)
    assert [arena.allocate(32 * PAGE) is None for _ in range(4)] == [False, False, True, True]
    with pytest.raises(OSError, match="No space left"):
        arena.grow(PAGE)
    arena.close()
