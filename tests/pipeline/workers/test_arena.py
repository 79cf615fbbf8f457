"""Parts of the shared memory never overlap, other processes see what is written, and nothing is left of it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.workers import arena as arena_module
from fastscribe.pipeline.workers.arena import Arena, SharedFile, SharedMemory

PAGE = 4096


@pytest.fixture
def arena():
    made = Arena(8 * PAGE)
    yield made
    made.close()


def test_parts_are_given_first_fit_and_whole_pages(arena: Arena) -> None:
    first, second, third = (arena.allocate(size) for size in (1, PAGE + 1, 5 * PAGE))
    assert first is not None
    assert (second, third) == (first + PAGE, first + 3 * PAGE)
    assert arena.allocate(1) is None
    arena.release(second, PAGE + 1)
    assert arena.allocate(3 * PAGE) is None
    assert arena.allocate(PAGE) == second and arena.allocate(1) == second + PAGE


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0)])
def test_released_neighbours_are_one_part_again(arena: Arena, order: tuple[int, ...]) -> None:
    sizes = [2 * PAGE, 3 * PAGE, 3 * PAGE]
    places = [arena.allocate(size) for size in sizes]
    for index in order:
        assert not arena.is_empty
        arena.release(places[index], sizes[index])
    assert arena.is_empty and arena.allocate(8 * PAGE) == places[0]


def test_nothing_takes_a_place_too(arena: Arena) -> None:
    assert len({arena.allocate(0) for _ in range(8)}) == 8
    assert arena.allocate(0) is None


def test_clear_takes_all_back(arena: Arena) -> None:
    whole = arena.allocate(8 * PAGE)
    arena.clear()
    assert arena.is_empty and arena.allocate(8 * PAGE) == whole


@given(st.sets(st.integers(0, 7)), st.integers(1, PAGE))
def test_kept_parts_are_not_given_out_again(kept: set[int], size: int) -> None:
    arena = Arena(8 * PAGE)
    places = [arena.allocate(size) for _ in range(8)]
    arena.clear((places[index], size) for index in kept)
    assert arena.is_empty, "nobody gives the kept parts back"
    found = []
    while (place := arena.allocate(1)) is not None:
        found.append(place)
        assert not arena.is_empty
    assert found == [place for index, place in enumerate(places) if index not in kept]
    for place in found:
        arena.release(place, 1)
    assert arena.is_empty
    arena.close()


def test_what_it_grows_by_counts_beside_kept_parts(arena: Arena) -> None:
    kept = arena.allocate(8 * PAGE)
    arena.clear([(kept, 8 * PAGE)])
    place = arena.grow(2 * PAGE)
    assert not arena.is_empty
    arena.release(place, 2 * PAGE)
    assert arena.is_empty and arena.allocate(2 * PAGE) == place


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


def test_it_grows_by_what_does_not_fit(arena: Arena) -> None:
    other = SharedMemory(arena.file)
    old = arena.view(arena.allocate(8 * PAGE), 4)
    old[:] = b"kept"
    place = arena.grow(20 * PAGE)
    arena.view(place, 20 * PAGE)[-3:] = b"end"
    assert bytes(other.view(place, 20 * PAGE)[-3:]) == b"end", "it was mapped before the memory grew"
    assert bytes(old) == b"kept"
    assert not arena.is_empty
    arena.release(place, 20 * PAGE)
    assert arena.allocate(20 * PAGE) == place, "the memory stays"


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
                held.append((starts[0], pages, size))
                taken[starts[0] : starts[0] + pages] = [True] * pages
        elif held:
            at, pages, size = held.pop(size % len(held))
            arena.release(first + at * PAGE, size)
            taken[at : at + pages] = [False] * pages
        assert arena.is_empty is not any(taken)
    arena.close()


def test_status_words_begin_between_jobs_and_are_nobody_elses(arena: Arena) -> None:
    other = SharedMemory(arena.file)
    assert other.status(0).tolist() == other.status(1023).tolist() == [-1, -1]
    other.status(1)[:] = 7, 3
    arena.view(arena.allocate(8 * PAGE), 8 * PAGE)[:] = bytes(8 * PAGE)
    assert [arena.status(number).tolist() for number in (0, 1, 2)] == [[-1, -1], [7, 3], [-1, -1]]


@pytest.mark.posix
def test_another_process_sees_what_is_written_and_writes_what_is_seen(arena: Arena) -> None:
    place = arena.allocate(PAGE)
    samples = np.frombuffer(arena.view(place, PAGE), np.int16)
    samples[:] = 3
    code = (
        "import sys, numpy as np\n"
        "from fastscribe.pipeline.workers.arena import SharedFile, SharedMemory\n"
        f"view = SharedMemory(SharedFile(*{tuple(arena.file)!r})).view({place}, {PAGE})\n"
        "samples = np.frombuffer(view, np.int16)\n"
        "samples[1:] *= 5\n"
    )
    subprocess.run([sys.executable, "-c", code], pass_fds=(arena.file.descriptor,), check=True)
    assert samples[0] == 3 and (samples[1:] == 15).all()


def files() -> set[str]:
    folders = [Path(tempfile.gettempdir()), Path("/dev/shm")]
    return {str(path) for folder in folders if folder.exists() for path in folder.glob("*fastscribe*")}


@pytest.mark.parametrize("has_memfd", [True, False])
def test_it_has_no_name_while_it_is_used(has_memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing is left behind, however the processes end."""
    if os.name == "nt":
        pytest.skip("Windows deletes no open file")
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
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


@pytest.mark.linux
def test_a_full_dev_shm_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers have 64 MB there. A memfd is no file of it, and none of the temporary folder."""
    monkeypatch.setattr(tempfile, "mkstemp", None)
    arena = Arena(256 << 20)
    assert os.readlink(f"/proc/self/fd/{arena.file.descriptor}").startswith("/memfd:fastscribe")
    assert os.fstat(arena.file.descriptor).st_dev != os.stat("/dev/shm").st_dev
    arena.view(arena.allocate(100 << 20), 100 << 20)[:: 1 << 20] = bytes([1]) * 100
    arena.close()


@pytest.mark.parametrize(("total_gb", "mb"), [(0.1, 64), (8, 1024), (16, 2048), (1024, 2048)])
def test_its_size_follows_the_machine(total_gb: float, mb: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(arena_module.Arena, "__init__", lambda self, num_bytes: sizes.append(num_bytes))
    Arena.of_machine(int(total_gb * (1 << 30)))
    assert sizes == [mb << 20]


def test_a_descriptor_is_all_that_another_process_needs(arena: Arena) -> None:
    assert SharedFile(*arena.file) == arena.file and arena.file.num_bytes == arena.num_bytes
