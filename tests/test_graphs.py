"""Captured decoding equals the definition of right in every mode, and falls back where a mode cannot be had.

On a CPU a pseudo-capture stands for the real one: replaying calls the function again, and FakeCuda runs the while graph.
The tests marked `cuda` do the same on a device.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.decode import cuda_while, graphs
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.graphs import ChunkedLoop, GraphedDecoder, LoopMaker, bucket, build_decoder
from fastscribe.decode.label_looping import Network
from fastscribe.errors import UsageError
from fastscribe.graph_capture import GraphsUnavailable, capture
from fastscribe.model.transducer import Transducer
from fastscribe.types import Frames, Hypothesis
from tests.test_cuda_while import DEVICE, Code, FakeCuda, install
from tests.test_decode import DURATIONS, assert_greedy, random_frames, tiny_transducer


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class PseudoGraph:
    """What a capture on a CPU would be: the function itself."""

    live = 0

    def __init__(self, function: Callable[[], None]) -> None:
        function()  # a warm-up
        self.function = function
        self.replays = 0
        PseudoGraph.live += 1

    def replay(self) -> None:
        self.replays += 1
        self.function()

    def raw_cuda_graph(self) -> int:
        return id(self)

    def reset(self) -> None:
        PseudoGraph.live -= 1


class ListFlag:
    """A flag whose copies arrive at once and are read late."""

    def __init__(self, flag: torch.Tensor) -> None:
        self.flag = flag
        self.copies: list[bool] = []

    def post(self) -> None:
        self.copies.append(bool(self.flag))

    def previous(self) -> bool:
        return len(self.copies) < 2 or self.copies[-2]


class PseudoWhile:
    """What a while graph does, as a plain loop."""

    def __init__(self, steps_per_turn: int, step: Callable[[], None], flag: torch.Tensor) -> None:
        self.step, self.flag, self.steps_per_turn = step, flag, steps_per_turn

    def run(self) -> None:
        goes_on = True
        while goes_on:
            for _ in range(self.steps_per_turn):
                self.step()
            goes_on = bool(self.flag)

    def close(self) -> None:
        pass


class NoOrder:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


def run(decoder: Decoder, frames: Frames) -> list[Hypothesis]:
    return decoder.read(decoder.submit(frames).cpu().numpy(), frames)


def chunked() -> LoopMaker:
    return partial(ChunkedLoop, PseudoGraph, ListFlag)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    durations=st.sampled_from(DURATIONS),
    max_symbols=st.sampled_from((1, 2, 5, 10)),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=3),
    steps_per_turn=st.sampled_from((None, 1, 2, 3)),
)
def test_every_loop_is_greedy(seed, durations, max_symbols, batches, steps_per_turn) -> None:
    """Buckets leave rows empty, states are used again, rows without room are decoded anew."""
    transducer = tiny_transducer(seed, durations, max_symbols, 1.5)
    make_loop = chunked() if steps_per_turn is None else partial(PseudoWhile, steps_per_turn)
    decoder = GraphedDecoder(Network.prepare(transducer), make_loop, NoOrder())
    submitted = [(frames, decoder.submit(frames)) for frames in map(random_frames, batches)]
    for frames, packed in submitted:  # all are read after the last submit
        assert_greedy(transducer, frames, decoder.read(packed.numpy(), frames))


def test_a_row_without_room_is_decoded_again() -> None:
    transducer = tiny_transducer(3, (), 10, -100.0)
    decoder = GraphedDecoder(Network.prepare(transducer), chunked(), NoOrder())
    frames = random_frames([4, 2])
    packed = decoder.submit(frames)
    assert packed[2:4].tolist() == [1, 1]
    hypotheses = decoder.read(packed.numpy(), frames)
    assert [len(h.token_ids) for h in hypotheses] == [40, 20]
    assert_greedy(transducer, frames, hypotheses)


def test_buckets() -> None:
    sizes = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512]
    for rows in range(1, 513):
        assert bucket(rows) == min(size for size in sizes if size >= rows)


def test_captures_are_kept_dropped_and_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MAX_CAPTURES", 2)
    monkeypatch.setattr(graphs, "_LEAST_SLOTS", 64)
    PseudoGraph.live = 0
    captured: list[PseudoGraph] = []

    def remember(function: Callable[[], None]) -> PseudoGraph:
        captured.append(PseudoGraph(function))
        return captured[-1]

    order = NoOrder()
    transducer = tiny_transducer(1, (), 10, 2.0)
    decoder = GraphedDecoder(Network.prepare(transducer), partial(ChunkedLoop, remember, ListFlag), order)

    def submit(rows: int, num_frames: int) -> None:
        frames = random_frames([min(9, num_frames)] * rows, extra=max(0, num_frames - 9))
        assert_greedy(transducer, frames, run(decoder, frames))

    submit(3, 5)
    submit(4, 9)
    assert len(captured) == 1  # the same bucket, other lengths
    submit(1, 9)
    submit(3, 9)
    assert len(captured) == 2 and "synchronize" not in order.calls
    submit(2, 9)  # one too many: that for one row was used longest ago
    assert len(captured) == 3 and PseudoGraph.live == 2 and "synchronize" in order.calls
    submit(4, 9)
    assert len(captured) == 3
    submit(1, 9)
    assert len(captured) == 4 and PseudoGraph.live == 2
    submit(1, 130)  # longer than the flat arrays: all of them are dropped
    assert len(captured) == 5 and PseudoGraph.live == 1
    submit(1, 255)
    assert len(captured) == 5  # arrays grow to a power of two
    assert order.calls[:3] == ["wait", "mark", "wait"]
    decoder.close()
    assert PseudoGraph.live == 0


def test_captures_go_with_the_decoder() -> None:
    PseudoGraph.live = 0
    decoder = GraphedDecoder(Network.prepare(tiny_transducer(1, (), 10, 2.0)), chunked(), NoOrder())
    decoder.submit(random_frames([3]))
    assert PseudoGraph.live == 1
    del decoder
    gc.collect()
    assert PseudoGraph.live == 0


@pytest.mark.parametrize("needed", [1, 7, 8, 9, 16, 17])
def test_the_flag_is_read_one_chunk_late(needed: int) -> None:
    flag = torch.tensor(True)
    done: list[int] = []

    def step() -> None:
        done.append(1)
        flag.fill_(len(done) < needed + 8)  # the capture's own run takes 8

    loop = ChunkedLoop(PseudoGraph, ListFlag, step, flag)
    loop.run()
    assert loop._graph.replays == -(-needed // 8) + 1


# A whole device in pretence: every mode through build_decoder.


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    install(monkeypatch, fake)
    cuda_while._toolkit.cache_clear()

    def pseudo_capture(function: Callable[[], None], stream: object, pool: object) -> PseudoGraph:
        graph = PseudoGraph(function)
        fake.steps[id(graph)] = function
        return graph

    monkeypatch.setattr(cuda_while, "toolkit", lambda device: cuda_while._toolkit(DEVICE))
    monkeypatch.setattr(graphs, "capture", pseudo_capture)
    monkeypatch.setattr(graphs, "LateFlag", ListFlag)
    monkeypatch.setattr(graphs, "StreamOrder", NoOrder)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return fake


TRANSDUCER = tiny_transducer(8, (0, 1, 2), 5, 1.0)


def decode_all(decoder: Decoder, transducer: Transducer = TRANSDUCER) -> None:
    for lengths in ([3, 0, 5], [1], [9, 9, 9, 2, 1]):
        frames = random_frames(lengths)
        assert_greedy(transducer, frames, run(decoder, frames))


@pytest.mark.parametrize("mode", ["auto", "full", "chunked", "off"])
@pytest.mark.parametrize("version", ["12.9.10", "13.0.2"])
def test_modes(fake: FakeCuda, mode: str, version: str) -> None:
    fake.version = sys.modules["cuda.bindings"].__version__ = version
    said: list[str] = []
    decoder = build_decoder(TRANSDUCER, DEVICE, mode, said.append)
    decode_all(decoder)
    assert not said
    assert (fake.calls.count("cuGraphLaunch") > 0) == (mode in ("auto", "full"))
    decoder.close()
    assert not fake.live


@pytest.mark.parametrize(
    "call", ["cuInit", "nvrtcCompileProgram", "cuGraphAddNode", "cuGraphInstantiate", "cuGraphLaunch"]
)
@pytest.mark.parametrize("failure", [Code.ERROR_NOT_SUPPORTED, RuntimeError("not found")])
def test_without_conditional_nodes(fake: FakeCuda, call: str, failure: Code | Exception) -> None:
    fake.failures[call] = failure
    said: list[str] = []
    decoder = build_decoder(TRANSDUCER, DEVICE, "auto", said.append)
    decode_all(decoder)
    assert len(said) == 1 and said[0].startswith("CUDA graphs: full cannot be had here (")
    assert said[0].endswith("); going on with chunked")
    assert not fake.live  # what the attempt made is gone
    with pytest.raises(UsageError, match=r"--cuda-graphs full: cannot be had here: \S"):
        decode_all(build_decoder(TRANSDUCER, DEVICE, "full", said.append))
    assert len(said) == 1 and not fake.live
    decode_all(build_decoder(TRANSDUCER, DEVICE, "chunked", said.append))


def test_without_capture(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: object, stream: object, pool: object) -> None:
        raise GraphsUnavailable("capture failed: no")

    monkeypatch.setattr(graphs, "capture", refuse)
    said: list[str] = []
    decoder = build_decoder(TRANSDUCER, DEVICE, "auto", said.append)
    assert not said
    decode_all(decoder)
    assert [line.rpartition(" ")[2] for line in said] == ["chunked", "off"]
    for mode in ("full", "chunked"):
        with pytest.raises(UsageError, match=f"--cuda-graphs {mode}: .*capture failed: no"):
            decode_all(build_decoder(TRANSDUCER, DEVICE, mode, said.append))


def test_a_batch_from_before_the_fall_back_is_read_after_it(fake: FakeCuda) -> None:
    transducer = tiny_transducer(3, (), 10, -100.0)
    decoder = build_decoder(transducer, DEVICE, "auto", lambda line: None)
    first, second = random_frames([4, 2]), random_frames([3] * 4)
    packed = decoder.submit(first)  # has no room for all of its labels
    fake.failures["cuGraphLaunch"] = Code.ERROR_OUT_OF_MEMORY
    assert_greedy(transducer, second, run(decoder, second))
    assert_greedy(transducer, first, decoder.read(packed.numpy(), first))


def test_memory_that_runs_out_is_the_batchs_affair(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller halves the batch; the mode stays."""

    real, hungry = graphs.capture, [True]

    def starve(function: Callable[[], None], stream: object, pool: object) -> PseudoGraph:
        if hungry:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(function, stream, pool)

    monkeypatch.setattr(graphs, "capture", starve)
    said: list[str] = []
    decoder = build_decoder(TRANSDUCER, DEVICE, "auto", said.append)
    with pytest.raises(torch.OutOfMemoryError):
        decoder.submit(random_frames([3, 4]))
    hungry.clear()
    decode_all(decoder)
    assert not said and fake.calls.count("cuGraphLaunch") == 3


def test_on_a_cpu() -> None:
    said: list[str] = []
    for mode in ("auto", "off"):
        decode_all(build_decoder(TRANSDUCER, torch.device("cpu"), mode, said.append))
    for mode in ("full", "chunked"):
        with pytest.raises(UsageError, match=f"--cuda-graphs {mode}: needs a CUDA device"):
            build_decoder(TRANSDUCER, torch.device("cpu"), mode, said.append)
    with pytest.raises(UsageError, match="--cuda-graphs fast: not one of auto, full, chunked, off"):
        build_decoder(TRANSDUCER, torch.device("cpu"), "fast", said.append)
    assert not said


# On a device.

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MODES = ("full", "chunked", "off")


def on_device(transducer: Transducer, frames: Frames, dtype: torch.dtype) -> tuple[Transducer, Frames]:
    return transducer.to("cuda", dtype), Frames(frames.frames_BTD.to("cuda", dtype), frames.lengths_B.cuda())


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("seed", range(12))
def test_device_modes_are_greedy(seed: int) -> None:
    durations = DURATIONS[seed % len(DURATIONS)]
    torch.manual_seed(seed)
    batches = [random_frames(torch.randint(0, 30, (rows,)).tolist()) for rows in (8, 3, 1, 40)]
    expected = tiny_transducer(seed, durations, 1 + seed % 10, 1.5)
    for mode in MODES:
        transducer = tiny_transducer(seed, durations, 1 + seed % 10, 1.5).cuda()
        decoder = build_decoder(transducer, torch.device("cuda"), mode, pytest.fail)
        submitted = []
        for batch in batches:
            frames = Frames(batch.frames_BTD.cuda(), batch.lengths_B.cuda())
            submitted.append((batch, frames, decoder.submit(frames)))
        for batch, frames, packed in submitted:
            assert_greedy(expected, batch, decoder.read(packed.cpu().numpy(), frames))
        decoder.close()


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("durations", [(), (0, 1, 2, 3, 4)])
def test_device_modes_agree_in_bf16(durations: tuple[int, ...]) -> None:
    """To the bit, for a number of rows that is a bucket's."""
    found = []
    for mode in MODES:
        transducer = tiny_transducer(3, durations, 10, 1.0)
        torch.manual_seed(0)
        transducer, frames = on_device(transducer, random_frames([20] * 16), torch.bfloat16)
        decoder = build_decoder(transducer, torch.device("cuda"), mode, pytest.fail)
        found.append(run(decoder, frames))
        decoder.close()
    assert found[0] == found[1] == found[2]


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("mode", ["full", "chunked"])
def test_device_nothing_leaks(mode: str) -> None:
    transducer, frames = on_device(tiny_transducer(3, (), 10, 1.0), random_frames([20] * 4), torch.float32)

    def cycle() -> None:
        decoder = build_decoder(transducer, torch.device("cuda"), mode, pytest.fail)
        run(decoder, frames)
        decoder.close()

    for _ in range(10):
        cycle()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(200):
        cycle()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert free - torch.cuda.mem_get_info()[0] < 8 << 20


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("failure", ["python", "device"])
def test_device_is_as_before_after_a_capture_that_failed(failure: str) -> None:
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

    with pytest.raises(GraphsUnavailable, match="capture failed"):
        capture(function, stream)
    assert torch.cuda.current_stream() == before
    assert gc.isenabled()
    assert not torch.cuda.is_current_stream_capturing()
    torch.rand(3, device="cuda")
    # Memory used on two streams comes back only if the allocator knows that no capture is under way.
    reserved = None
    for _ in range(50):
        block = torch.empty(1 << 26, device="cuda", dtype=torch.uint8)
        block.record_stream(stream)
        del block
        torch.cuda.synchronize()
        reserved = reserved or torch.cuda.memory_reserved()
    assert torch.cuda.memory_reserved() <= reserved + (1 << 27)
    graph = capture(lambda: numbers.add_(1), stream)
    numbers.zero_()
    graph.replay()
    assert numbers.sum().item() == 1000


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("mode", MODES)
def test_device_while_another_thread_works(mode: str) -> None:
    transducer = tiny_transducer(5, (0, 1, 2, 3, 4), 10, 1.0).cuda()
    expected = tiny_transducer(5, (0, 1, 2, 3, 4), 10, 1.0)
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    block = torch.randn(int(torch.randint(1, 3000, ())), 1000, device="cuda")
                    (block @ block.T).sum().item()
                    torch.empty(1 << 20, pin_memory=True)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        decoder = build_decoder(transducer, torch.device("cuda"), mode, pytest.fail)
        with torch.cuda.stream(torch.cuda.Stream(priority=-1)):
            for rows in (1, 3, 8, 20, 70, 100):
                batch = random_frames([15] * rows)
                frames = Frames(batch.frames_BTD.cuda(), batch.lengths_B.cuda())
                assert_greedy(expected, batch, run(decoder, frames))
        decoder.close()
    finally:
        stop.set()
        thread.join()
    assert not errors


@pytest.mark.cuda
@needs_cuda
def test_device_submit_does_not_wait() -> None:
    """A whole loop is enqueued while the device is still busy with something long."""
    transducer, frames = on_device(tiny_transducer(3, (), 10, 1.0), random_frames([20] * 4), torch.float32)
    decoder = build_decoder(transducer, torch.device("cuda"), "full", pytest.fail)
    run(decoder, frames)
    torch.cuda._sleep(2_000_000_000)
    busy = torch.cuda.Event()
    busy.record()
    packed = decoder.submit(frames)
    assert not busy.query()
    assert decoder.read(packed.cpu().numpy(), frames)
    decoder.close()
