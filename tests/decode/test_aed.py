"""Attention decoders: batches that drop finished rows, and captured steps, equal the greedy reference.

Only tests marked `cuda` need a GPU. The others use simulated CUDA devices (tests/fakes), which record graphs and replay them
on the CPU.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.bench.work import LABELS_PER_S, PROMPT_TOKENS
from fastscribe.config import AedConfig, Options, TransformerConfig
from fastscribe.decode import aed, aed_graphs
from fastscribe.decode.aed import AedDecoder, decoder_memory
from fastscribe.decode.aed_graphs import GraphedAed
from fastscribe.decode.families import build_aed
from fastscribe.decode.prompt import Prompt
from fastscribe.errors import UsageError
from fastscribe.families.canary.attention_decoder import AttentionDecoder
from fastscribe.families.model import optimise_
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Frames, Hypothesis, Transcript
from tests.conftest import AUDIO, MODELS, checkpoint
from tests.cuda.test_while_loop import DEVICE
from tests.decode.test_label_looping import run
from tests.decode.test_transducer_graphs import PseudoWhile, chunked, fake, on_gpu
from tests.fakes.cuda import SimulatedCuda
from tests.fakes.cuda_driver import FakeCuda
from tests.helpers import random_models
from tests.helpers.drawn_rows import with_phrases
from tests.helpers.greedy_aed import greedy

__all__ = ["fake"]  # a fixture
pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, LABELS = 12, 21
PROMPT = Prompt((3, 4, 5), 7, 9, None, {}, text_ids=frozenset(range(10, LABELS)))
STACK = TransformerConfig(2, 16, 24, 4, "relu", pre_norm=True, final_norm=True)
BRIDGE = replace(STACK, num_layers=1, activation="gelu", pre_norm=False)
CONFIG = AedConfig(STACK, None, 24, 40, 6, "canary")
CONFIGS = (
    CONFIG,
    replace(CONFIG, bridge=BRIDGE, max_extra_tokens=None, max_tokens=20),
    replace(CONFIG, decoder=replace(STACK, pre_norm=False), bridge=replace(BRIDGE, pre_norm=True), max_tokens=9),
    replace(CONFIG, decoder=replace(STACK, hidden=WIDTH, final_norm=False), tokens_per_frame=0.5, max_extra_tokens=0),
    replace(CONFIG, max_tokens=4),
    replace(CONFIG, max_tokens=3),
    replace(CONFIG, beam=True),
    replace(CONFIG, beam=True, max_tokens=3),
)


def tiny_decoder(config: AedConfig, seed: int) -> AttentionDecoder:
    """Make a decoder whose rows end after different numbers of tokens."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = AttentionDecoder(config, WIDTH, LABELS, 8).eval().requires_grad_(False)
        model.positions.weight.mul_(3)
        model.head.weight.mul_(2)
        model.head.bias[PROMPT.end_id] += 0.6
        for layer in model.layers:
            layer.frames.out.weight.mul_(6)  # type: ignore[operator, union-attr]
    return model


def optimised(model: AttentionDecoder) -> AttentionDecoder:
    """Return a copy in inference form."""
    copy = deepcopy(model)
    optimise_(copy)
    assert not any(name.endswith("own.key.weight") for name in copy.state_dict())
    return copy


def random_frames(lengths: Sequence[int], extra: int = 0) -> Frames:
    lengths_B = torch.tensor(lengths)
    return Frames(3 * torch.randn(len(lengths), max(1, *lengths) + extra, WIDTH), lengths_B)


def assert_greedy(
    model: AttentionDecoder, frames: Frames, found: Sequence[Hypothesis], phrases: Sequence[Any] | None = None
) -> None:
    assert len(found) == len(frames.lengths_B)
    for row, hypothesis in enumerate(found):
        encoded_TD, own = frames.frames_BTD[row, : frames.lengths_B[row]], phrases and phrases[row]
        expected = greedy(model, PROMPT, encoded_TD, own, guess=hypothesis.token_ids)
        assert replace(hypothesis, logprobs=()) == replace(expected, logprobs=())
        assert hypothesis.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def shrink(monkeypatch: pytest.MonkeyPatch, steps_per_check: int, **others: int) -> None:
    """Reduce block and bucket sizes, so that a few tokens cross many of them."""
    for name, value in {"_STEPS_PER_CHECK": steps_per_check, "_MIN_KEYS": 8, **others}.items():
        monkeypatch.setattr(aed_graphs, name, value)


LONG = replace(CONFIG, max_extra_tokens=None, max_tokens=70)
batches = st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=6), min_size=1, max_size=3)


def perhaps_with_phrases(
    data: st.DataObject, lengths: list[int], extra: int = 0
) -> tuple[Frames, Sequence[Any] | None]:
    """Frames, and the phrases of each row. Tokens without text are never boosted."""
    frames = random_frames(lengths, extra)
    return with_phrases(data, frames, LABELS) if data.draw(st.booleans()) else (frames, None)


@settings(max_examples=16, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(CONFIGS), batches, st.data())
def test_batch_equals_greedy(seed: int, config: AedConfig, batches: list[list[int]], data: st.DataObject) -> None:
    """Rows without frames have no tokens, and caches grow when they are full."""
    model = tiny_decoder(config, seed)
    decoder = AedDecoder(optimised(model), PROMPT)
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(aed, "_POSITIONS_PER_GROWTH", 2 if seed % 2 else aed._POSITIONS_PER_GROWTH)
        for lengths in batches:
            frames, phrases = perhaps_with_phrases(data, lengths, extra=seed % 3)
            found = run(decoder, frames)
            assert all(found[row] == Hypothesis() for row, length in enumerate(lengths) if length == 0)
            assert_greedy(model, frames, found, phrases)


def test_finished_rows_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny_decoder(CONFIG, 1), []
    monkeypatch.setattr(aed, "step", lambda *given: (rows.append(len(given[2].token_B1)), one_step(*given))[1])
    torch.manual_seed(0)
    frames = random_frames([1 + row % 34 for row in range(64)])
    found = run(AedDecoder(model, PROMPT), frames)
    assert_greedy(model, frames, found)
    needed = sum(len(hypothesis.token_ids) for hypothesis in found)
    assert rows[0] == 64 and rows[-1] < 16
    assert sum(rows) < 1.35 * needed < 0.8 * 64 * len(rows)


one_step = aed.step


def test_nan_stays_in_its_batch(simulated_cuda: SimulatedCuda) -> None:
    model = tiny_decoder(CONFIG, 3)
    decoder = GraphedAed(model, PROMPT, chunked())
    torch.manual_seed(0)
    broken, frames = random_frames([30] * 4), random_frames([7, 3])
    broken.frames_BTD[1] = float("nan")
    broken.frames_BTD[2] = float("inf")
    for _ in range(2):
        decoder.submit(broken)
        assert_greedy(model, frames, run(decoder, frames))


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from((*CONFIGS, replace(LONG, max_tokens=40))),
    batches,
    st.sampled_from((None, 1, 2)),
    st.one_of(st.none(), st.integers(1, 40)),
    st.sampled_from((1, 2, 96)),
    st.data(),
)
def test_graph_modes_equal_greedy(
    seed: int,
    config: AedConfig,
    batches: list[list[int]],
    steps_per_iteration: int | None,
    steps_per_check: int | None,
    captures: int,
    data: st.DataObject,
) -> None:
    """Buckets have empty rows and positions, and states that share memory are reused. With small blocks, graphs are captured
    and states change in the middle of a batch.
    """
    model = tiny_decoder(config, seed)
    make_loop = chunked() if steps_per_iteration is None else partial(PseudoWhile, steps_per_iteration)
    with pytest.MonkeyPatch.context() as monkeypatch:
        SimulatedCuda().install(monkeypatch)
        monkeypatch.setattr(aed_graphs, "_MIN_FRAMES", 4)
        if steps_per_check is not None:
            shrink(monkeypatch, steps_per_check, _MIN_ROWS=1, _MAX_CAPTURES=captures)
        decoder = GraphedAed(optimised(model), PROMPT, make_loop)
        torch.manual_seed(seed)
        given_batches = [perhaps_with_phrases(data, lengths) for lengths in [*batches, batches[0]]]
        packed = [decoder.submit(frames) for frames, _ in given_batches]
        for (frames, phrases), one in zip(given_batches, packed, strict=True):  # all are read after the last submit
            assert_greedy(model, frames, decoder.read(one.numpy(), frames), phrases)
        decoder.close()


def test_out_of_memory_in_capture(simulated_cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """All graphs are dropped and steps captured again in the middle of a batch."""
    shrink(monkeypatch, 4)
    model = tiny_decoder(LONG, 1)
    decoder = GraphedAed(model, PROMPT, chunked())
    torch.manual_seed(0)
    frames = random_frames([9])
    failures = []

    def failing(*given: Any) -> None:
        if given[3] > 40 and not failures:
            failures.append(given)
            given[2].position_1.add_(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        one_step(*given)

    monkeypatch.setattr(aed_graphs, "step", failing)
    assert_greedy(model, frames, run(decoder, frames))
    assert failures


def test_close_frees_buffers(simulated_cuda: SimulatedCuda) -> None:
    decoder = GraphedAed(tiny_decoder(CONFIG, 3), PROMPT, chunked())
    decoder.submit(random_frames([5] * 2))
    assert decoder.captured.buffers is not None
    room = weakref.ref(decoder.captured.buffers.flat)
    decoder.submit(random_frames([14] * 8))  # needs larger buffers
    gc.collect()
    assert room() is None and simulated_cuda.live
    gone = weakref.ref(decoder)
    del decoder
    gc.collect()
    assert gone() is None and not simulated_cuda.live


def test_steps_use_small_buckets(simulated_cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    model, attended = tiny_decoder(LONG, 1), []
    shrink(monkeypatch, 8, _MIN_ROWS=2)
    decoder = GraphedAed(model, PROMPT, partial(PseudoWhile, 1))
    torch.manual_seed(0)
    frames = random_frames([14] * 64)
    run(decoder, frames)  # captures all graphs

    def noted(*given: Any) -> None:
        attended.append((len(given[2].token_B1), given[3]))
        one_step(*given)

    monkeypatch.setattr(aed_graphs, "step", noted)
    found = run(decoder, frames)
    assert_greedy(model, frames, found)
    counts = sorted(len(hypothesis.token_ids) for hypothesis in found)
    assert attended[0] == (64, 32) and attended[-1] == (4, 72)  # 3 and 8 positions and 16 more, in powers of two
    assert [rows for rows, _ in attended] == sorted((rows for rows, _ in attended), reverse=True)
    assert [places for _, places in attended] == sorted(places for _, places in attended)
    for number, (rows, places) in enumerate(attended):
        going_on = sum(count > number - number % 8 for count in counts)
        assert rows <= max(2, 4 * going_on) and places >= len(PROMPT.ids) + number


@pytest.mark.parametrize("mode", ["auto", "chunked", "off"])
def test_modes(fake: FakeCuda, mode: str) -> None:
    lines: list[str] = []
    model = tiny_decoder(CONFIG, 3)
    decoder = build_aed(model, PROMPT, DEVICE, mode, lines.append)
    for lengths in ([3, 1, 5], [1], [9, 9, 9, 2, 1]):
        frames = random_frames(lengths)
        assert_greedy(model, frames, run(decoder, frames))
    assert not lines
    assert (fake.calls.count("cuGraphLaunch") > 0) == (mode in ("auto", "full"))
    decoder.close()
    assert not fake.live


def test_captures_share_memory(simulated_cuda: SimulatedCuda) -> None:
    model = tiny_decoder(CONFIG, 3)
    decoder = GraphedAed(model, PROMPT, chunked())

    def captures_and_live(rows: int, num_frames: int) -> tuple[int, int]:
        frames = random_frames([num_frames] * rows)
        assert_greedy(model, frames, run(decoder, frames))
        return len(simulated_cuda.captured), len(simulated_cuda.live)

    assert captures_and_live(3, 14) == (1, 1)
    assert captures_and_live(4, 16) == (1, 1)  # the same bucket
    assert captures_and_live(2, 14) == (2, 2)  # fits into the same memory
    assert captures_and_live(8, 14) == (3, 1)  # needs more memory: drops all others
    assert captures_and_live(4, 17) == (4, 2)
    decoder.close()
    assert not simulated_cuda.live


@pytest.mark.parametrize("config", [LONG, replace(CONFIG, max_extra_tokens=50, max_tokens=300)])
def test_decoder_memory_estimate(simulated_cuda: SimulatedCuda, config: AedConfig) -> None:
    model = tiny_decoder(config, 3)
    model.head.bias[PROMPT.end_id] += 1e3  # the sizes are known before the first token
    foreseen = decoder_memory(model)
    for rows, num_frames in ((65, 70), (128, 129), (97, 3), (33, 257), (17, 33)):
        decoder = GraphedAed(model, PROMPT, partial(PseudoWhile, 1))
        decoder.submit(random_frames([num_frames] * rows))
        taken = decoder.captured.size * model.embedding.weight.element_size()
        copied = taken / 2  # when rows move to a smaller state
        assert taken + copied <= 1.1 * rows * (foreseen.frame_bytes * num_frames + foreseen.row_bytes) < 6 * taken
        decoder.close()


def test_random_model_token_rate() -> None:
    for result in random_models.transcriber("tiny-canary").transcribe(sorted(map(str, AUDIO.glob("0[1-3]_*.flac")))):
        assert isinstance(result, Transcript)
        assert -2 <= len(result.tokens) - LABELS_PER_S * result.audio.duration_s <= PROMPT_TOKENS
        times = [token.start_s for token in result.tokens]
        assert times == sorted(times) and 0 <= times[0] < times[-1] <= result.audio.duration_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(pnc=True), "--pnc is for Canary models"),
        (Options(pnc=False), "--no-pnc is for Canary models"),
        (Options(timestamps=True), "--timestamps is for Canary models"),
        (Options(target_language="de"), "--target-language de: this model does not translate; Canary models do"),
    ],
)
def test_prompt_options_need_a_prompt(options: Options, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recognizer.build(checkpoint(MODELS / "hybrid"), options=options)


# On a GPU.


@pytest.mark.cuda
@pytest.mark.parametrize("mode", ["full", "chunked", "off"])
@pytest.mark.parametrize("seed", range(len(CONFIGS)))
def test_device_modes_equal_greedy(mode: str, seed: int) -> None:
    torch.manual_seed(seed)
    batches = [random_frames(torch.randint(1, 30, (rows,)).tolist()) for rows in (8, 3, 1, 40, 8)]
    expected, model = tiny_decoder(CONFIGS[seed], seed), tiny_decoder(CONFIGS[seed], seed).cuda()
    decoder = build_aed(model, PROMPT, torch.device("cuda"), mode, pytest.fail)
    on_device = list(map(on_gpu, batches))
    submitted = list(map(decoder.submit, on_device))
    for batch, frames, packed in zip(batches, on_device, submitted, strict=True):
        assert_greedy(expected, batch, decoder.read(packed.cpu().numpy(), frames))
    decoder.close()


@pytest.mark.cuda
def test_device_modes_agree_in_bf16() -> None:
    """Bitwise equal for bucket sizes, whatever the memory holds; heads have a realistic width."""
    stack = replace(STACK, hidden=256, ff_hidden=512)
    config = replace(CONFIG, decoder=stack, max_extra_tokens=None, max_tokens=39)
    model = tiny_decoder(config, 3).to("cuda", torch.bfloat16)
    torch.manual_seed(0)
    larger, frames = random_frames([99] * 30), random_frames([64] * 16)
    found = []
    for mode in ("full", "chunked"):
        decoder = build_aed(model, PROMPT, torch.device("cuda"), mode, pytest.fail)
        for batch in (larger, frames):
            on_device = Frames(batch.frames_BTD.to("cuda", torch.bfloat16), batch.lengths_B.cuda())
            heard = run(decoder, on_device)
        found.append(heard)
    assert found[0] == found[1]
