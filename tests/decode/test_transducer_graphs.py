"""Captured decoding equals greedy decoding in every mode, and falls back if a mode is unavailable.

Only tests marked `cuda` need a GPU. For the others a simulated CUDA device (tests/fakes/cuda.py) replaces torch's streams and
graphs, and FakeCuda runs the while graph, both on the CPU.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.cuda import loops, while_loop
from fastscribe.cuda.graph_capture import Generation, GraphsUnavailable
from fastscribe.cuda.loops import ChunkedLoop, DelayedFlag, LoopMaker, WhileLoop, bucket
from fastscribe.decode import graph_modes, transducer_graphs
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.families import build_greedy
from fastscribe.decode.label_looping import Network
from fastscribe.decode.transducer_graphs import GraphedDecoder
from fastscribe.errors import UsageError
from fastscribe.families.blocks.heads import Transducer
from fastscribe.fast_paths import RefusedPath
from fastscribe.types import Frames
from tests.cuda.test_while_loop import DEVICE, install
from tests.decode.test_label_looping import DURATIONS, assert_greedy, random_frames, run, tiny_transducer
from tests.fakes.cuda import SimulatedCuda
from tests.fakes.cuda_driver import Code, FakeCuda
from tests.helpers.drawn_rows import drawn

pytestmark = pytest.mark.usefixtures("one_thread")


class ListFlag(DelayedFlag):
    """A flag whose copies arrive immediately and are read late."""

    def __init__(self, flag: torch.Tensor) -> None:
        self.flag = flag
        self.copies: list[bool] = []

    def post(self) -> None:
        self.copies.append(bool(self.flag))

    def previous(self) -> bool:
        return len(self.copies) < 2 or self.copies[-2]


class PseudoWhile:
    """A while graph as a Python loop."""

    def __init__(
        self, steps_per_iteration: int, generation: Generation, step: Callable[[], None], flag: torch.Tensor
    ) -> None:
        self.step, self.flag, self.steps_per_iteration = step, flag, steps_per_iteration
        generation.capture(step)  # which runs it

    def run(self) -> None:
        goes_on = True
        while goes_on:
            for _ in range(self.steps_per_iteration):
                self.step()
            goes_on = bool(self.flag)


def chunked() -> LoopMaker:
    return partial(ChunkedLoop, ListFlag)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    durations=st.sampled_from(DURATIONS),
    max_symbols=st.sampled_from((1, 2, 5, 10)),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    steps_per_iteration=st.sampled_from((None, 1, 2, 3)),
    data=st.data(),
)
def test_loops_equal_greedy(seed, durations, max_symbols, batches, steps_per_iteration, data) -> None:
    """Buckets have empty rows, states are reused, and rows that run out of slots are decoded again.

    Batches leave out other tokens, and have other phrases, one after the other in the same graphs.
    """
    transducer = tiny_transducer(seed, durations, max_symbols, 1.5)
    make_loop = chunked() if steps_per_iteration is None else partial(PseudoWhile, steps_per_iteration)
    with pytest.MonkeyPatch.context() as monkeypatch:
        SimulatedCuda().install(monkeypatch)
        decoder = GraphedDecoder(Network.prepare(transducer), make_loop)
        drawn_batches = [drawn(data, random_frames(lengths), transducer.blank_id) for lengths in batches]
        packed = [decoder.submit(frames) for frames, *_ in drawn_batches]
        for (frames, *own), one in zip(drawn_batches, packed, strict=True):  # all are read after the last submit
            assert_greedy(transducer, frames, decoder.read(one.numpy(), frames), *own)
        decoder.close()


def test_buckets() -> None:
    sizes = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512]
    for rows in range(1, 513):
        assert bucket(rows) == min(size for size in sizes if size >= rows)


def submit(decoder: Decoder, rows: int, num_frames: int) -> None:
    frames = random_frames([min(9, num_frames)] * rows, extra=max(0, num_frames - 9))
    assert_greedy(TRANSDUCER, frames, run(decoder, frames))


def test_captures_freed_with_decoder(simulated_cuda: SimulatedCuda) -> None:
    decoder = GraphedDecoder(Network.prepare(tiny_transducer(1, (), 10, 2.0)), chunked())
    decoder.submit(random_frames([3]))
    assert len(simulated_cuda.live) == 1 and simulated_cuda.completed < simulated_cuda.enqueued
    del decoder
    gc.collect()
    assert not simulated_cuda.live


@pytest.mark.parametrize("needed", [1, 7, 8, 9, 16, 17])
def test_flag_read_one_chunk_late(needed: int) -> None:
    """Here the graph is a Python function."""
    flag = torch.tensor(True)
    done: list[int] = []

    def step() -> None:
        done.append(1)
        flag.fill_(len(done) < needed)

    generation = SimpleNamespace(capture=lambda chunk: SimpleNamespace(replay=chunk))
    ChunkedLoop(ListFlag, generation, step, flag).run()
    assert len(done) == 8 * (-(-needed // 8) + 1)


def test_loops_keep_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs contain only addresses."""
    graph = SimpleNamespace(raw_cuda_graph=lambda: 0)
    generation = SimpleNamespace(capture=lambda step, **how: graph, before_drop=lambda call: None)
    monkeypatch.setattr(loops.while_loop, "WhileGraph", lambda *given: SimpleNamespace(close=None))
    for make in (chunked(), partial(WhileLoop, None)):
        flag, stop = torch.tensor(False), torch.tensor(0)
        kept = weakref.ref(flag), weakref.ref(stop)
        loop = make(generation, partial(torch.gt, stop, 0, out=flag), flag)
        del flag, stop
        gc.collect()
        assert all(one() is not None for one in kept)
        del loop


# On a simulated device: every mode through build_greedy.


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, simulated_cuda: SimulatedCuda) -> FakeCuda:
    fake = FakeCuda()
    install(monkeypatch, fake)
    simulated_cuda.install(monkeypatch)
    fake.steps = simulated_cuda.steps
    while_loop._toolkit.cache_clear()
    monkeypatch.setattr(while_loop, "toolkit", lambda device: while_loop._toolkit(DEVICE))
    monkeypatch.setattr(graph_modes, "DelayedFlag", ListFlag)
    return fake


TRANSDUCER = tiny_transducer(8, (0, 1, 2), 5, 1.0)


def decode_all(decoder: Decoder, transducer: Transducer = TRANSDUCER) -> None:
    for lengths in ([3, 0, 5], [1], [9, 9, 9, 2, 1]):
        frames = random_frames(lengths)
        assert_greedy(transducer, frames, run(decoder, frames))


@pytest.mark.parametrize(
    ("mode", "version"), [("auto", "13.0.2"), ("full", "12.9.10"), ("chunked", "13.0.2"), ("off", "12.9.10")]
)
def test_modes(fake: FakeCuda, mode: str, version: str) -> None:
    fake.version = sys.modules["cuda.bindings"].__version__ = version
    lines: list[str] = []
    decoder = build_greedy(TRANSDUCER, DEVICE, mode, lines.append)
    decode_all(decoder)
    assert not lines
    assert (fake.calls.count("cuGraphLaunch") > 0) == (mode in ("auto", "full"))
    decoder.close()
    assert not fake.live


@pytest.mark.parametrize("mode", ["full", "chunked"])
def test_capture_cache(
    fake: FakeCuda, simulated_cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(transducer_graphs, "_MAX_CAPTURES", 2)
    monkeypatch.setattr(transducer_graphs, "_MIN_SLOTS", 64)
    decoder = build_greedy(TRANSDUCER, DEVICE, mode, pytest.fail)

    def captures_and_live() -> tuple[int, int]:
        return len(simulated_cuda.captured), len(simulated_cuda.live)

    submit(decoder, 3, 5)
    submit(decoder, 4, 9)
    assert captures_and_live() == (1, 1)  # the same bucket, other lengths
    submit(decoder, 1, 9)
    submit(decoder, 3, 9)
    assert captures_and_live() == (2, 2)
    submit(decoder, 2, 9)  # beyond the limit: drops all others
    assert captures_and_live() == (3, 1)
    submit(decoder, 4, 9)
    assert captures_and_live() == (4, 2)
    submit(decoder, 1, 130)  # longer than the flat arrays: drops all of them
    assert captures_and_live() == (5, 1)
    submit(decoder, 1, 255)
    assert captures_and_live() == (5, 1)  # arrays grow to a power of two
    submit(decoder, 4, 200)
    submit(decoder, 1, 255)
    assert captures_and_live() == (7, 2)
    assert simulated_cuda.streams_made == 1
    decoder.close()
    assert not simulated_cuda.live and not fake.live
    submit(decoder, 1, 9)
    decoder.close()


def test_min_slots(fake: FakeCuda) -> None:
    decoder = GraphedDecoder(Network.prepare(TRANSDUCER), chunked())
    decoder.submit(random_frames([1] * 3))
    slots = decoder.captured.buffers
    assert slots is not None and slots.capacity >= 32_768 * 2
    assert len({bucket(rows) for rows in range(1, 8193)}) <= transducer_graphs._MAX_CAPTURES


@pytest.mark.parametrize(
    ("call", "failure"),
    [
        ("cuInit", RuntimeError("not found")),
        *((call, Code.ERROR_NOT_SUPPORTED) for call in ("cuGraphAddNode", "cuGraphLaunch")),
    ],
)
def test_without_conditional_nodes(fake: FakeCuda, call: str, failure: Code | Exception) -> None:
    fake.failures[call] = failure
    lines: list[str] = []
    decoder = build_greedy(TRANSDUCER, DEVICE, "auto", lines.append)
    decode_all(decoder)
    assert len(lines) == 1 and lines[0].startswith("CUDA graphs: full is unavailable (")
    assert lines[0].endswith("); using chunked")
    assert not fake.live  # handles of the attempt are freed
    with pytest.raises(UsageError, match=r"--cuda-graphs full: unavailable: \S"):
        decode_all(build_greedy(TRANSDUCER, DEVICE, "full", lines.append))
    assert len(lines) == 1 and not fake.live
    decode_all(build_greedy(TRANSDUCER, DEVICE, "chunked", lines.append))


@pytest.mark.parametrize("method", ["capture_begin", "capture_end", "instantiate"])
def test_without_capture(fake: FakeCuda, simulated_cuda: SimulatedCuda, method: str) -> None:
    simulated_cuda.failures[method] = [RuntimeError("no")] * 1000
    lines: list[str] = []
    decoder = build_greedy(TRANSDUCER, DEVICE, "auto", lines.append)
    assert not lines
    decode_all(decoder)
    modes = [line.rpartition(" ")[2] for line in lines]
    refused = [(line.path, line.reason.partition(":")[0]) for line in lines if isinstance(line, RefusedPath)]
    assert refused == [("graphs", mode) for mode in ("full", "chunked")[: len(lines)]]
    assert modes == ([] if method == "instantiate" else ["chunked", "off"])  # full does not use torch's executable
    for mode in ("chunked",) if method == "instantiate" else ("full", "chunked"):
        decoder = build_greedy(TRANSDUCER, DEVICE, mode, lines.append)
        for _ in range(2):
            with pytest.raises(UsageError, match=f"--cuda-graphs {mode}: .*capture failed: no"):
                decode_all(decoder)


def test_read_after_fallback(fake: FakeCuda) -> None:
    transducer = tiny_transducer(3, (), 10, -100.0)
    decoder = build_greedy(transducer, DEVICE, "auto", lambda line: None)
    first, second = random_frames([4, 2]), random_frames([3] * 4)
    packed = decoder.submit(first)  # runs out of label slots
    fake.failures["cuGraphLaunch"] = Code.ERROR_NOT_SUPPORTED
    assert_greedy(transducer, second, run(decoder, second))
    assert_greedy(transducer, first, decoder.read(packed.numpy(), first))


@pytest.mark.parametrize("where", ["capture_begin", "cuGraphAddNode", "cuGraphInstantiate", "cuGraphLaunch"])
def test_out_of_memory_keeps_mode(fake: FakeCuda, simulated_cuda: SimulatedCuda, where: str) -> None:
    """The caller splits the batch; the mode does not change."""
    lines: list[str] = []
    decoder = build_greedy(TRANSDUCER, DEVICE, "auto", lines.append)
    decoder.submit(random_frames([3]))
    if where.startswith("cu"):
        fake.failures[where] = Code.ERROR_OUT_OF_MEMORY
    else:
        simulated_cuda.failures[where] = [torch.OutOfMemoryError("CUDA out of memory")] * 2
    with pytest.raises(torch.OutOfMemoryError):
        decoder.submit(random_frames([3, 4]))
    assert simulated_cuda.cache_emptied
    fake.failures.clear()
    launches = fake.calls.count("cuGraphLaunch")
    decode_all(decoder)
    assert not lines and fake.calls.count("cuGraphLaunch") == launches + 3


def test_out_of_memory_after_launch(
    fake: FakeCuda, simulated_cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch still runs when everything is dropped; dropping waits for it."""
    decoder = build_greedy(TRANSDUCER, DEVICE, "chunked", pytest.fail)
    decoder.submit(random_frames([3]))
    monkeypatch.setattr(transducer_graphs, "pack", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        decoder.submit(random_frames([3]))
    decoder.close()
    assert not simulated_cuda.live


def out_of_memory(*arguments: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_on_a_cpu() -> None:
    lines: list[str] = []
    for mode in ("auto", "off"):
        decode_all(build_greedy(TRANSDUCER, torch.device("cpu"), mode, lines.append))
    for mode in ("full", "chunked"):
        with pytest.raises(UsageError, match=f"--cuda-graphs {mode}: needs a CUDA device"):
            build_greedy(TRANSDUCER, torch.device("cpu"), mode, lines.append)
    with pytest.raises(UsageError, match="--cuda-graphs fast: not one of auto, full, chunked, off"):
        build_greedy(TRANSDUCER, torch.device("cpu"), "fast", lines.append)
    assert not lines


# On a GPU.

MODES = ("full", "chunked", "off")


def on_gpu(frames: Frames) -> Frames:
    return Frames(frames.frames_BTD.cuda(), frames.lengths_B.cuda())


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(12))
def test_device_modes_equal_greedy(seed: int) -> None:
    durations = DURATIONS[seed % len(DURATIONS)]
    torch.manual_seed(seed)
    batches = [random_frames(torch.randint(0, 30, (rows,)).tolist()) for rows in (8, 3, 1, 40)]
    expected = tiny_transducer(seed, durations, 1 + seed % 10, 1.5)
    for mode in MODES:
        transducer = tiny_transducer(seed, durations, 1 + seed % 10, 1.5).cuda()
        decoder = build_greedy(transducer, torch.device("cuda"), mode, pytest.fail)
        on_device = list(map(on_gpu, batches))
        submitted = list(map(decoder.submit, on_device))
        for batch, frames, packed in zip(batches, on_device, submitted, strict=True):
            assert_greedy(expected, batch, decoder.read(packed.cpu().numpy(), frames))
        decoder.close()


@pytest.mark.cuda
@pytest.mark.parametrize("mode", ["full", "chunked"])
def test_device_generations(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots grow twice, more buckets than the limit, then the first bucket again."""
    monkeypatch.setattr(transducer_graphs, "_MAX_CAPTURES", 3)
    monkeypatch.setattr(transducer_graphs, "_MIN_SLOTS", 64)
    expected = tiny_transducer(5, (0, 1, 2, 3, 4), 10, 1.0)
    transducer = tiny_transducer(5, (0, 1, 2, 3, 4), 10, 1.0).cuda()
    decoder = build_greedy(transducer, torch.device("cuda"), mode, pytest.fail)
    for rows, num_frames in ((1, 9), (1, 90), (1, 200), (2, 40), (4, 40), (1, 40), (8, 20), (16, 9), (1, 9), (2, 9)):
        batch = random_frames([num_frames] * rows)
        for _ in range(2):
            assert_greedy(expected, batch, run(decoder, on_gpu(batch)))
            torch.cuda.empty_cache()
    decoder.close()


@pytest.mark.cuda
@pytest.mark.parametrize("failure", ["python", "device"])
def test_device_after_failed_capture(failure: str) -> None:
    stream, before = torch.cuda.Stream(), torch.cuda.current_stream()
    numbers = torch.zeros(1000, device="cuda")
    runs: list[int] = []

    def function() -> None:
        runs.append(1)
        numbers.add_(1)
        if len(runs) > 2 and failure == "python":
            raise ValueError("on purpose")
        if len(runs) > 2:
            numbers.sum().item()  # not allowed in a capture

    failing = Generation(numbers.device, torch.cuda.synchronize)
    with pytest.raises(GraphsUnavailable, match="capture failed"):
        failing.capture(function)
    failing.drop()
    assert torch.cuda.current_stream() == before
    assert gc.isenabled()
    assert not torch.cuda.is_current_stream_capturing()
    torch.rand(3, device="cuda")
    # The allocator frees memory used on two streams only if no capture is in progress.
    reserved = None
    for _ in range(50):
        block = torch.empty(1 << 26, device="cuda", dtype=torch.uint8)
        block.record_stream(stream)
        del block
        torch.cuda.synchronize()
        reserved = reserved or torch.cuda.memory_reserved()
    assert torch.cuda.memory_reserved() <= reserved + (1 << 27)
    generation = Generation(numbers.device, torch.cuda.synchronize)
    graph = generation.capture(lambda: numbers.add_(1))
    numbers.zero_()
    graph.replay()
    assert numbers.sum().item() == 1000
    generation.drop()


@pytest.mark.cuda
@pytest.mark.parametrize("mode", MODES)
def test_device_with_busy_thread(mode: str) -> None:
    transducer = tiny_transducer(5, (0, 1, 2, 3, 4), 10, 1.0).cuda()
    expected = tiny_transducer(5, (0, 1, 2, 3, 4), 10, 1.0)
    stop = threading.Event()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():  # torch refuses random numbers on a device where a graph is captured
                block = torch.ones(int(torch.randint(1, 3000, ())), 1000, device="cuda")
                (block @ block.T).sum().item()
                torch.empty(1 << 20, pin_memory=True)

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(work)
        try:
            decoder = build_greedy(transducer, torch.device("cuda"), mode, pytest.fail)
            with torch.cuda.stream(torch.cuda.Stream(priority=-1)):
                for rows in (1, 3, 8, 20, 70, 100):
                    batch = random_frames([15] * rows)
                    assert_greedy(expected, batch, run(decoder, on_gpu(batch)))
            decoder.close()
        finally:
            stop.set()
    busy.result()


@pytest.mark.cuda
def test_device_submit_does_not_wait() -> None:
    """The loop is enqueued while the device is still busy with a long kernel."""
    frames = on_gpu(random_frames([20] * 4))
    decoder = build_greedy(tiny_transducer(3, (), 10, 1.0).cuda(), torch.device("cuda"), "full", pytest.fail)
    run(decoder, frames)
    torch.cuda._sleep(2_000_000_000)
    busy = torch.cuda.Event()
    busy.record()
    packed = decoder.submit(frames)
    assert not busy.query()
    assert decoder.read(packed.cpu().numpy(), frames)
    decoder.close()
