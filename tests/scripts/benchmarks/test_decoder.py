"""Each decoding mode is measured on the same frames, equals greedy decoding, and reports what it could not measure in time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastscribe.bench.timing import time_call
from fastscribe.errors import UsageError
from fastscribe.pipeline.recognizer import Recognizer
from scripts.benchmarks import decode_loops, decoder, decoding_speed, encoder_speed
from scripts.benchmarks.decode_loops import Loops, greedy_rows
from scripts.shapes import SHAPES
from tests.conftest import MODELS
from tests.helpers import random_models
from tests.helpers.benches import run_app, table
from tests.helpers.random_models import transcriber

CPU = torch.device("cpu")
DEMO = MODELS / "tdt_demo" / "model.nemo"


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests check results, not times."""
    random_models.make_once(monkeypatch)
    for module in (decoding_speed, encoder_speed):
        monkeypatch.setattr(module, "time_call", lambda call, device, **_: time_call(call, device, 0.0, 1, 1))


@pytest.mark.parametrize("is_random", [True, False], ids=["random", "stand_in"])
@pytest.mark.parametrize("shape", ["tiny", "tiny-rnnt"])
def test_every_mode_equals_greedy(shape: str, is_random: bool) -> None:
    sizes = [2, 3] if is_random else [3]
    rows = list(Loops(shape, transcriber(shape), is_random).rows(sizes, 4.0, 60.0))
    assert [(row["batch_size"], row["mode"]) for row in rows] == [
        (size, mode) for size in sizes for mode in ("greedy", "one_frame", "windowed")
    ]
    for size in sizes:
        greedy, one_frame, windowed = (row for row in rows if row["batch_size"] == size)
        assert greedy["labels"] == one_frame["labels"] == windowed["labels"] > 0
        assert one_frame["equal_to_greedy_share"] == windowed["equal_to_greedy_share"] == 1.0
        assert windowed["rows_compared"] == size
        assert windowed["steps"] < one_frame["steps"] < greedy["steps"]
        assert 1.5 < windowed["labels_per_audio_s"] < 6
        for row in (greedy, one_frame, windowed):
            assert row["us_per_step"] == pytest.approx(1000 * row["ms"] / row["steps"])
            assert row["decoder_share"] == pytest.approx(row["ms"] / (row["ms"] + row["encoder_ms"]))


@pytest.mark.parametrize("is_random", [True, False], ids=["random", "stand_in"])
def test_the_encoder_is_timed_on_the_rows_that_are_decoded(monkeypatch: pytest.MonkeyPatch, is_random: bool) -> None:
    """Labels per second also refer to the audio of those rows."""
    seen: list[list[int]] = []
    loops = Loops("tiny", transcriber("tiny"), is_random)
    real = Recognizer.encode
    monkeypatch.setattr(
        Recognizer, "encode", lambda self, given: seen.append(given.lengths_B.tolist()) or real(self, given)
    )
    greedy, *_ = loops.rows([3], 4.0, 60.0)
    encoded = {tuple(lengths) for lengths in seen}
    assert encoded == {(400, 380, 360)}
    assert greedy["labels_per_audio_s"] == pytest.approx(greedy["labels"] / (4.0 + 3.8 + 3.6))
    assert loops._frames([4.0, 3.8, 3.6]).lengths_B.tolist() == [50, 48, 45]


def test_greedy_takes_a_step_a_frame_and_a_label() -> None:
    transducer = decoding_speed.random_transducer(SHAPES["tiny-rnnt"], CPU)
    frames = decoding_speed.random_frames([50, 47, 45], SHAPES["tiny-rnnt"].encoder.d_model, CPU, seed=4)
    found, row = greedy_rows(transducer, frames, CPU, 60.0)
    assert row["steps"] == int(frames.lengths_B.sum()) + sum(len(one.token_ids) for one in found)
    assert not transducer.joint._forward_hooks


def test_slow_greedy_reports_its_rows() -> None:
    transducer = decoding_speed.random_transducer(SHAPES["tiny"], CPU)
    frames = decoding_speed.random_frames([30, 29, 28, 27], SHAPES["tiny"].encoder.d_model, CPU, seed=4)
    found, row = greedy_rows(transducer, frames, CPU, 0.0)
    assert len(found) == row["rows_compared"] == 1
    assert row["ms"] is None and row["steps"] is None and row["us_per_step"] > 0
    assert decode_loops._beside(row, 1.0, 1.0)["decoder_share"] is None


def test_wrong_mode_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = Loops("tiny", transcriber("tiny"), is_random=True)
    real = decoding_speed.decode

    def one_label_less(*given):
        first, *others = real(*given)
        return [type(first)(first.token_ids[1:], first.token_frames[1:]), *others]

    monkeypatch.setattr(decoding_speed, "decode", one_label_less)
    row = list(loops.rows([2], 2.0, 60.0))[-1]
    assert row["mode"] == "windowed" and row["equal_to_greedy_share"] == 0.5


def test_out_of_memory_costs_one_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = Loops("tiny", transcriber("tiny"), is_random=True)
    real = decode_loops.encoder_speed.measure

    def measure(encode, config, lengths_s, device):
        if len(lengths_s) == 3:
            raise torch.OutOfMemoryError("no room")
        return real(encode, config, lengths_s, device)

    monkeypatch.setattr(decode_loops.encoder_speed, "measure", measure)
    rows = list(loops.rows([3, 1], 1.0, 60.0))
    assert ["error" in row for row in rows] == [True] * 3 + [False] * 3


def test_unavailable_mode_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_loops, "modes", lambda device: ("greedy", "full"))
    _, full = Loops("tiny", transcriber("tiny"), is_random=True).rows([1], 1.0, 60.0)
    assert "needs a CUDA device" in full["error"] and "ms" not in full


def test_a_gpu_has_its_graphs_too() -> None:
    assert decode_loops.modes(torch.device("cuda")) == ("greedy", "one_frame", "windowed", "chunked", "full")


def test_the_command(capsys, tmp_path: Path) -> None:
    model = random_models.folder("tiny-rnnt", tmp_path)
    arguments = ("--batch-sizes", "2", "--duration-s", "2", "--device", "cpu", "--json", tmp_path / "out.json")
    found, said = run_app(capsys, decoder.app, "--model", model, *arguments)
    assert found["benchmark"] == "decoder" and found["case_keys"] == ["model", "mode", "batch_size"]
    lines = table(said, "batch ")
    assert [(line[0], line[1]) for line in lines] == [(str(row["batch_size"]), row["mode"]) for row in found["rows"]]
    assert "stand in" not in said


def test_different_rows_are_reported(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_speed, "equal_share", lambda found, wanted: 0.5)
    arguments = ("-m", DEMO, "--batch-sizes", "1", "--duration-s", "0.5", "--device", "cpu", "--dtype")
    assert "please report" in run_app(capsys, decoder.app, *arguments, "fp32")[1]
    assert "--dtype fp32 tells" in run_app(capsys, decoder.app, *arguments, "bf16")[1]


def test_shape_of_a_trained_model(capsys) -> None:
    found, said = run_app(capsys, decoder.app, "-m", DEMO, "--batch-sizes", "2", "--duration-s", "1", "--device", "cpu")
    assert {row["equal_to_greedy_share"] for row in found["rows"]} == {1.0}
    assert "stand in for the model's own" in said


def test_unavailable_choices(capsys, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no transducer"):
        run_app(capsys, decoder.app, "--model", random_models.folder("tiny-ctc", tmp_path), "--device", "cpu")
    with pytest.raises(UsageError, match="--batch-sizes 0: not whole numbers"):
        run_app(capsys, decoder.app, "--batch-sizes", "0")
    with pytest.raises(UsageError, match="fp8"):
        run_app(capsys, decoder.app, "--dtype", "fp8", "--device", "cpu")
