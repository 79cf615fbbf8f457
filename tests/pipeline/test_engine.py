"""Results are neither lost, doubled nor mixed up, whichever batches fail and however many are in flight."""

from __future__ import annotations

import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.audio.failures import defect
from fastscribe.errors import DeviceFailed, ModelOutputError, UsageError
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.engine import Engine, _attempt, select_rows
from fastscribe.results.formats.writers import to_object
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Batch, Features, Frames, Hypothesis


class FakeRecognizer:
    """Returns a recording's first sample as its token. Fails at given stages for given samples, a given number of times."""

    runs_in_parts = True
    device = torch.device("cpu")
    facts = SimpleNamespace(device_name="a fake")
    sample_rate = 16000

    def __init__(self, failures: dict[tuple[str, int], int] | None = None, error: Exception | None = None) -> None:
        self.failures = dict(failures or {})
        self.error = error or RuntimeError("fails")
        self.log: list[tuple[str, list[int]]] = []

    def step(self, stage: str, values: torch.Tensor) -> None:
        numbers = [int(number) for number in values.flatten(1)[:, 0]]
        self.log.append((stage, numbers))
        for number in numbers:
            if self.failures.get((stage, number), 0) > 0:
                self.failures[stage, number] -= 1
                raise self.error

    def upload(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(batch.samples_BS), torch.from_numpy(batch.lengths_B)

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        return Features(samples_BS[:, None, :], lengths_B)

    def encode(self, features: Features) -> Frames:
        self.step("encode", features.mel_BMT)
        return Frames(features.mel_BMT.transpose(1, 2), features.lengths_B)

    def submit(self, frames: Frames) -> torch.Tensor:
        self.step("submit", frames.frames_BTD)
        return frames.frames_BTD[:, 0, 0].to(torch.int32)

    def read(self, packed: np.ndarray, frames: Frames) -> list[Hypothesis]:
        self.step("read", frames.frames_BTD)
        return [Hypothesis((int(number),), (0,), (1,), (0.0,)) for number in packed]

    def stages(self, batch: Batch) -> FakeRecognizer:
        return self

    def with_constraints(self, frames: Frames, batch: Batch) -> Frames:
        return frames

    def num_frames(self, batch: Batch) -> int:
        return int(batch.lengths_B.max())


def batch(numbers: list[int]) -> Batch:
    samples_BS = np.array([[number] * (5 + number % 3) + [0] * (2 - number % 3) for number in numbers], dtype=np.int16)
    utterances = tuple(SimpleNamespace(number=number, purpose="words") for number in numbers)
    return Batch(utterances, samples_BS, np.array([5 + number % 3 for number in numbers]))  # type: ignore[arg-type]


def engine(recognizer: FakeRecognizer, overlap: bool, budget: Budget | None = None) -> Engine:
    made = Engine(recognizer)  # type: ignore[arg-type]
    made.budget = budget or made.budget
    if overlap:  # as on a GPU, where several batches are in flight
        made._max_encoded, made._max_decoded = 1, 2
    return made


def results(made: Engine, batches: list[list[int]]) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for finished, outcome in made.stream(batch(numbers) for numbers in batches):
        decoded = [None] if isinstance(outcome, Exception) else [hypothesis.token_ids[0] for hypothesis in outcome]
        for utterance, number in zip(finished.utterances, decoded, strict=True):
            assert utterance.number not in found
            found[utterance.number] = number
    return found


@st.composite
def runs(draw):
    sizes = draw(st.lists(st.integers(1, 6), max_size=8))
    numbers = iter(range(1, 100))
    batches = [[next(numbers) for _ in range(size)] for size in sizes]
    stages = st.sampled_from(["encode", "submit", "read"])
    failing = draw(st.dictionaries(st.tuples(stages, st.integers(1, max(1, sum(sizes)))), st.sampled_from([1, 2, 99])))
    return batches, failing, draw(st.booleans())


@given(runs())
def test_each_recording_gets_its_own_result_once(run) -> None:
    batches, failing, overlap = run
    found = results(engine(FakeRecognizer(failing), overlap), batches)
    everything = [number for numbers in batches for number in numbers]
    assert sorted(found) == everything
    hopeless = {number for (_, number), times in failing.items() if times == 99}
    for number, decoded in found.items():
        if number not in {n for _, n in failing}:
            assert decoded == number
        elif number in hopeless:
            assert decoded is None
        else:
            assert decoded in (number, None)


@pytest.mark.parametrize("problems", [{}, {0: "endless", 2: "damaged", 3: "damaged"}])
def test_columns_stay_columns(problems: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine makes no Hypothesis, which would delay the launch of the next batch's kernels."""
    numbers = [7, 8, 9, 10, 11, 12]
    counts_B = np.array([row not in problems for row in range(6)], np.int32)
    ids_N = np.array([number for row, number in enumerate(numbers) if row not in problems], np.int32)
    columns = HypothesisColumns(counts_B, ids_N, 0 * ids_N, 0 * ids_N, np.zeros(len(ids_N), np.float32), problems)

    class Recognizer(FakeRecognizer):
        def read(self, packed: np.ndarray, frames: Frames) -> HypothesisColumns:
            return columns

    with monkeypatch.context() as patched:
        patched.setattr("fastscribe.text.hypothesis_columns.Hypothesis", None)
        outcomes = list(engine(Recognizer(), overlap=True).stream([batch(numbers)]))
    found = [(tuple(one.number for one in finished.utterances), outcome) for finished, outcome in outcomes]
    if not problems:
        assert found == [(tuple(numbers), columns)] and found[0][1] is columns
        return
    assert [one for one, _ in found] == [(7,), (8,), (9, 10), (11, 12)]
    assert [str(outcome) for _, outcome in found[::2]] == ["endless", "damaged"]
    assert all(isinstance(outcome, ModelOutputError) for _, outcome in found[::2])
    assert all(isinstance(outcome, HypothesisColumns) for _, outcome in found[1::2])
    assert [[one.token_ids for one in outcome] for _, outcome in found[1::2]] == [[(8,)], [(11,), (12,)]]


def test_next_batch_is_encoded_before_last_is_read() -> None:
    recognizer = FakeRecognizer()
    results(engine(recognizer, overlap=True), [[1], [2], [3], [4]])
    order = [(stage, numbers[0]) for stage, numbers in recognizer.log]
    assert order.index(("encode", 2)) < order.index(("submit", 1))
    assert order.index(("encode", 4)) < order.index(("read", 1))
    recognizer = FakeRecognizer()
    results(engine(recognizer, overlap=False), [[1], [2]])
    assert [stage for stage, _ in recognizer.log] == ["encode", "submit", "read"] * 2


def test_running_out_of_memory_shrinks_the_budget() -> None:
    budget = Budget(1000)
    recognizer = FakeRecognizer({("encode", 3): 1}, torch.OutOfMemoryError("CUDA out of memory"))
    assert results(engine(recognizer, True, budget), [[1, 2, 3, 4]]) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert budget.frames == pytest.approx(0.7 * 4 * 7)
    budget = Budget(1000)
    results(engine(FakeRecognizer({("encode", 3): 1}), True, budget), [[1, 2, 3, 4]])
    assert budget.frames == 1000  # another failure says nothing of memory


@pytest.mark.parametrize("overlap", [False, True])
def test_lost_device_or_unavailable_mode_ends_run(overlap: bool, monkeypatch) -> None:
    with pytest.raises(UsageError):
        results(engine(FakeRecognizer({("submit", 2): 9}, UsageError("--cuda-graphs full")), overlap), [[1], [2]])
    answer = torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile with ..")
    monkeypatch.setattr("fastscribe.pipeline.engine.recover", lambda device: answer)
    made = engine(FakeRecognizer({("read", 2): 9}), overlap)
    with pytest.raises(DeviceFailed, match="a fake failed: CUDA error: unspecified launch failure;"):
        results(made, [[1], [2], [3]])
    made.drop()  # which meets the same answer, and says nothing more


@pytest.mark.parametrize("stage", ["encode", "submit", "read"])
def test_single_failed_row_is_retried_alone(stage: str) -> None:
    recognizer = FakeRecognizer({(stage, 3): 1}, torch.OutOfMemoryError("CUDA out of memory"))
    assert results(engine(recognizer, overlap=True), [[1], [2], [3], [4], [5]]) == {n: n for n in range(1, 6)}
    recognizer = FakeRecognizer({(stage, 3): 1})
    assert results(engine(recognizer, overlap=False), [[1], [2], [3]])[3] is None  # it was alone, and failed alone


SHORT = RuntimeError("could not create a primitive")


@pytest.mark.parametrize(
    ("error", "limit_s", "overlap"),
    [(SHORT, 40.0, False), (MemoryError(), 40.0, True), (SHORT, 1e-4, False), (RuntimeError("fails"), 40.0, False)],
    ids=["a primitive", "a batch in flight", "a long recording", "another error"],
)
def test_a_machine_without_memory_ends_the_run_unless_a_long_recording_may_be_to_blame(
    error: Exception, limit_s: float, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `ulimit -v 1800000`, where each of 850 recordings had a failure of its own."""
    monkeypatch.setattr("fastscribe.pipeline.engine.DEFAULT_MAX_UTTERANCE_S", limit_s)
    made = engine(FakeRecognizer({("encode", number): 99 for number in (2, 3)}, error), overlap)
    if limit_s < 1 or str(error) == "fails":
        assert results(made, [[1, 2], [3, 4]]) == {1: 1, 2: None, 3: None, 4: 4}
        return
    with pytest.raises(DeviceFailed) as caught:
        results(made, [[1, 2], [3, 4]])
    assert caught.value.__cause__ is error


def test_drop_forgets_batches_in_flight() -> None:
    made = engine(FakeRecognizer(), overlap=True)
    assert list(made.push(batch([1]))) == []
    made.drop()
    assert list(made.drain()) == []


def test_slices_are_padded_to_their_longest_row() -> None:
    whole = batch([3, 4, 5, 6])
    assert select_rows(whole, [0]).samples_BS.tolist() == [[3] * 5]
    assert select_rows(whole, [2, 3]).samples_BS.tolist() == [[5] * 7, [6] * 5 + [0] * 2]


def test_a_defect_keeps_its_place_without_its_frames() -> None:
    def fails(_: object) -> None:
        try:
            int("x")
        except ValueError as cause:
            raise KeyError("x") from cause

    chained = _attempt(fails, None)
    assert isinstance(chained, KeyError) and chained.__cause__ is not None and chained.__cause__.__traceback__ is None
    error = _attempt(to_object, None)  # type: ignore[arg-type]
    assert isinstance(error, AttributeError) and error.__traceback__ is None
    for known in (error, pickle.loads(pickle.dumps(error))):  # from a device's process too
        assert re.search(
            r"^a defect of fastscribe, AttributeError .* in fastscribe/results/.*, line \d+$", defect(known)
        )
