"""The measuring room: what is counted is counted right, and the stand-ins (audio, models) are what they claim to be."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.bench import agreement, decoder, encoder, gpu_utilization, kernels, machine, synthetic, throughput
from fastscribe.bench.measurement_log import MeasurementLog
from fastscribe.bench.random_model import random_checkpoint, random_tokenizer
from fastscribe.bench.shapes import SHAPES
from fastscribe.bench.timing import time_call
from fastscribe.bench.work import LABELS_PER_S, encoder_gflop_per_audio_s
from fastscribe.checkpoint import native
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.checkpoint.validate import validate
from fastscribe.config import Options
from fastscribe.model.model import Model
from fastscribe.model.operations import TORCH
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.transcriber import Transcriber
from fastscribe.types import Hypothesis

CPU = torch.device("cpu")


@cache
def made(shape: str) -> Checkpoint:
    return random_checkpoint(shape)


@cache
def transcriber(shape: str) -> Transcriber:
    checkpoint = made(shape)
    return Transcriber(checkpoint, Engine(Recognizer.build(checkpoint, "cpu", "fp32")), Options(), 0.0)


# --- shapes, models, audio ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_usable_configs(shape: str) -> None:
    validate(SHAPES[shape], shape)


@pytest.mark.parametrize(
    ("shape", "millions"),
    [
        ("parakeet-tdt-0.6b", 618),
        ("parakeet-tdt-0.6b-v3", 627),
        ("parakeet-rnnt-1.1b", 1070),
        ("parakeet-ctc-0.6b", 610),
    ],
)
def test_published_shapes_have_the_published_sizes(shape: str, millions: int) -> None:
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in Model(SHAPES[shape]).parameters())
    assert round(parameters / 1e6) == millions


@pytest.mark.parametrize("shape", ["tiny", "tiny-rnnt", "tiny-ctc"])
def test_random_models_speak_at_the_rate_of_speech(shape: str) -> None:
    """On recordings they were not tuned on, of another length too, and not all at one frame."""
    waves = synthetic.waves([8.0] * 8 + [20.0] * 4, seed=11)
    found = agreement.hypotheses(transcriber(shape), waves)
    rates = [
        len(hypothesis.token_ids) * synthetic.RATE_HZ / len(wave) for hypothesis, wave in zip(found, waves, strict=True)
    ]
    assert LABELS_PER_S - 1.2 < sum(rates) / len(rates) < LABELS_PER_S + 1.2
    assert max(rates) < 3 * LABELS_PER_S
    at_a_frame = Counter(count for one in found for count in Counter(one.token_frames).values())
    assert at_a_frame[1] > 0.7 * sum(at_a_frame.values())
    assert len({label for one in found for label in one.token_ids}) > 30


def test_history_matters_to_a_random_transducer() -> None:
    """With the predictor silenced, other labels come out."""
    recognizer = transcriber("tiny").recognizer
    waves = synthetic.waves([8.0] * 4, seed=12)
    before = agreement.hypotheses(transcriber("tiny"), waves)
    checkpoint = made("tiny")
    weights = dict(checkpoint.weights)
    weights["transducer.joint.predictor.weight"] = torch.zeros_like(weights["transducer.joint.predictor.weight"])
    deaf = Checkpoint(checkpoint.path, "fastscribe", checkpoint.config, checkpoint.tokenizer, weights)
    other = Transcriber(deaf, Engine(Recognizer.build(deaf, "cpu", "fp32")), Options(), 0.0)
    assert recognizer.decoder_name == "tdt"
    assert agreement.compare(agreement.hypotheses(other, waves), before)["equal_share"] == 0.0


def test_the_same_seed_makes_the_same_model_and_it_survives_storing(tmp_path: Path) -> None:
    again = random_checkpoint("tiny")
    assert all(torch.equal(tensor, again.weights[name]) for name, tensor in made("tiny").weights.items())
    assert not torch.equal(
        random_checkpoint("tiny", seed=1).weights["encoder.subsampling.out.weight"],
        again.weights["encoder.subsampling.out.weight"],
    )
    native.write(again, tmp_path / "model", torch.float32)
    stored = read_checkpoint(tmp_path / "model")
    assert stored.config == again.config and stored.tokenizer == again.tokenizer
    assert stored.has_random_weights and again.has_random_weights


@pytest.mark.parametrize("num_labels", [16, 1024, 8192])
def test_random_tokenizers_have_as_many_different_pieces(num_labels: int) -> None:
    pieces = random_tokenizer(replace(SHAPES["tiny"], num_labels=num_labels)).pieces
    assert len(set(pieces)) == num_labels


def test_audio_is_reproducible_varied_and_as_long_as_asked() -> None:
    lengths_s = [0.5, 3.0, 61.5]
    waves, again = synthetic.waves(lengths_s, seed=2), synthetic.waves(lengths_s, seed=2)
    assert [len(wave) for wave in waves] == [8000, 48000, 984000]
    assert all(wave.dtype == np.int16 and np.array_equal(wave, same) for wave, same in zip(waves, again, strict=True))
    assert all(500 < np.abs(wave).max() < 32767 for wave in waves)
    assert not np.array_equal(waves[0], synthetic.waves(lengths_s, seed=3)[0])


def test_leaderboard_lengths_have_its_mean_and_its_spread() -> None:
    lengths_s = synthetic.leaderboard_lengths_s(2048, seed=3)
    assert lengths_s.mean() == pytest.approx(7.85)
    assert 3.0 < np.mean([lengths_s[i : i + 128].max() for i in range(0, 2048, 128)]) / 7.85 < 5.0


@pytest.mark.parametrize(("rate_hz", "channels"), [(16000, 1), (44100, 2)])
def test_files_hold_the_waves(tmp_path: Path, rate_hz: int, channels: int) -> None:
    waves = synthetic.waves([1.0, 2.0], seed=5)
    paths = synthetic.write_files(tmp_path / "out", waves, "flac", 2, rate_hz, channels)
    for path, wave in zip(paths, waves, strict=True):
        samples, rate = soundfile.read(path, dtype="int16", always_2d=True)
        assert (rate, samples.shape[1]) == (rate_hz, channels)
        assert len(samples) == pytest.approx(len(wave) * rate_hz / 16000, abs=2)
        assert rate_hz != 16000 or np.array_equal(samples[:, 0], wave)
    links = throughput.hard_links(paths, tmp_path / "links", 3)
    assert len(set(links)) == 6 and all(link.samefile(paths[number % 2]) for number, link in enumerate(links))


# --- counting -------------------------------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=12)


@given(spans)
def test_covered_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    assert gpu_utilization.covered(spans) == len({instant for begin, end in spans for instant in range(begin, end)})


def test_busy_share_counts_no_time_twice() -> None:
    found = gpu_utilization.summary([("a", 0.0, 400.0), ("b", 300.0, 500.0), ("a", 900.0, 1000.0)], wall_s=0.002)
    assert found["busy_share_of_wall"] == pytest.approx(0.3)
    assert found["busy_share_first_to_last"] == pytest.approx(0.6)
    assert found["top_kernels"][0] == {"name": "a", "count": 2, "ms": 0.5}
    assert gpu_utilization.summary([], wall_s=1.0)["busy_share_of_wall"] == 0.0


@given(st.lists(st.integers(0, 3), max_size=7), st.lists(st.integers(0, 3), max_size=7))
def test_edit_distance_is_the_textbooks(a: list[int], b: list[int]) -> None:
    table = {(i, 0): i for i in range(len(a) + 1)} | {(0, j): j for j in range(len(b) + 1)}
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            swap = table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
            table[i, j] = min(swap, table[i - 1, j] + 1, table[i, j - 1] + 1)
    assert agreement.edit_distance(a, b) == table[len(a), len(b)]


def test_agreement_of_equal_and_of_different_labels() -> None:
    wanted = [Hypothesis(token_ids=(1, 2, 3)), Hypothesis(token_ids=(4,))]
    assert agreement.compare(wanted, wanted)["label_difference_share"] == 0.0
    found = agreement.compare([Hypothesis(token_ids=(1, 3)), Hypothesis(token_ids=(4,))], wanted)
    assert (found["label_difference_share"], found["equal_share"]) == (0.25, 0.5)


def test_time_call_repeats_and_takes_the_median() -> None:
    calls: list[int] = []
    timing = time_call(lambda: calls.append(1), CPU, seconds=0.01, least=5, most=9)
    assert len(calls) == 3 + timing.runs and 5 <= timing.runs <= 9
    assert 0 < timing.min_ms <= timing.median_ms <= timing.max_ms


# --- the notebook ---------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_failed_measurement_is_a_row_and_the_next_is_made(tmp_path: Path) -> None:
    notes = MeasurementLog(tmp_path / "rows", seconds=60)
    assert notes.measure({"what": "a"}, lambda: {"ms": 1 / 3, "not": float("nan")}) is not None
    assert notes.measure({"what": "b"}, lambda: {"ms": 1 / 0}) is None
    assert notes.make({"what": "c"}, lambda: "made") == "made"
    assert notes.make({"what": "d"}, lambda: [][1]) is None
    found = rows(tmp_path / "rows")
    assert found[0] == {"what": "a", "ms": 0.33333, "not": None}
    assert found[1]["error"].startswith("ZeroDivisionError")
    assert [row["what"] for row in found] == ["a", "b", "c", "d"] and "error" in found[3]


def test_what_there_is_no_time_for_is_skipped_and_said(tmp_path: Path) -> None:
    notes = MeasurementLog(tmp_path / "rows", seconds=5)
    assert notes.measure({"what": "long"}, lambda: {}, needs_s=50) is None
    assert notes.measure({"what": "short"}, lambda: {}, needs_s=1) is not None
    assert rows(tmp_path / "rows")[0] == {"what": "long", "error": "skipped: out of time"}


def test_a_lost_device_ends_the_part(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fastscribe.bench.measurement_log.recover", lambda device: RuntimeError("again"))

    def lost() -> dict:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError):
        MeasurementLog(tmp_path / "rows", seconds=5).measure({"what": "a"}, lost)
    assert "illegal memory access" in rows(tmp_path / "rows")[0]["error"]


# --- measuring ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kernels.NAMES)
def test_kernel_errors_are_small_for_the_definition_and_large_for_anything_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = kernels.measure("torch", name, 3, 20, 64, 4, CPU)
    assert good["relative_error"] < 0.02 and good["gb_per_s"] > 0
    wrong = type(TORCH)(
        **{each: lambda *given, each=each: 1.1 * getattr(TORCH, each)(*given) for each in kernels.NAMES}
    )
    monkeypatch.setattr(kernels, "operations", lambda form: wrong)
    assert kernels.measure("torch", name, 3, 20, 64, 4, CPU)["relative_error"] > 0.05


@pytest.mark.parametrize("form", ["plain", "fused_torch", "shipped"])
def test_encoder_rates_are_the_counted_work_over_the_time(form: str) -> None:
    config = made("tiny").config
    row = encoder.measure(encoder.build(form, made("tiny"), CPU), config, [1.5, 1.0], CPU)
    work_tflop = encoder_gflop_per_audio_s(config, [1.5, 1.0]) * 2.5 / 1000
    assert row["tflop_per_s"] == pytest.approx(work_tflop / (row["ms"] / 1000))
    assert row["rtfx"] == pytest.approx(2.5 / (row["ms"] / 1000))


@pytest.mark.parametrize("shape", ["tiny", "tiny-rnnt"])
def test_decoding_made_up_frames_takes_a_turn_a_label_and_equals_greedy(shape: str) -> None:
    transducer = decoder.random_transducer(SHAPES[shape], CPU)
    frames = decoder.random_frames([60, 58, 56, 54], SHAPES[shape].encoder.d_model, CPU, seed=2)
    built = decoder.build(transducer, CPU, "off")
    row = decoder.measure(built, frames, CPU)
    assert 4 < row["labels_of_longest_row"] < 60
    assert (
        row["labels_of_longest_row"] <= decoder.num_turns(transducer, frames) <= 2 * row["labels_of_longest_row"] + 16
    )
    found, _ = decoder.greedy_rate(transducer, frames, CPU)
    assert decoder.equal_share(decoder.decode(built, frames)[:1], [found]) == 1.0


def test_batches_hold_every_wave_once() -> None:
    waves = synthetic.waves([1.0, 2.5, 0.4, 2.5, 1.1], seed=6)
    batches = throughput.batches_of(waves, transcriber("tiny"), transcriber("tiny").recognizer.choose_budget())
    found = {
        utterance.audio.id: row[:length]
        for batch in batches
        for utterance, row, length in zip(batch.utterances, batch.samples_BS, batch.lengths_B, strict=True)
    }
    assert all(np.array_equal(found[str(number)], wave) for number, wave in enumerate(waves))
    assert all(not row[length:].any() for b in batches for row, length in zip(b.samples_BS, b.lengths_B, strict=True))


def test_throughput_counts_all_audio_and_shares_add_up(tmp_path: Path) -> None:
    waves = synthetic.waves([1.0, 2.5, 0.5], seed=7)
    row = throughput.from_memory(transcriber("tiny"), waves, Budget(math.inf), passes=2, repeats=2)
    assert row["audio_s"] == pytest.approx(8.0)
    assert row["encoder_share_of_wall"] + row["outside_encoder_share_of_wall"] == pytest.approx(1.0)
    paths = synthetic.write_files(tmp_path / "audio", waves, "flac", 2)
    row = throughput.from_files(transcriber("tiny"), paths, tmp_path / "out", passes=1, strict=True)
    assert (row["audio_s"], row["files"]) == (pytest.approx(4.0), 3)
    assert len((tmp_path / "out" / "pass0" / "transcripts.jsonl").read_text().splitlines()) == 3


def test_a_file_that_fails_is_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "bad.flac").write_bytes(b"no audio")
    with pytest.raises(RuntimeError, match=r"bad\.flac"):
        throughput.from_files(transcriber("tiny"), [tmp_path / "bad.flac"], tmp_path / "out", passes=1, strict=True)


def test_the_machine_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.facts(CPU, tmp_path)
    assert found["versions"]["torch"] and found["cpu_cores"] > 0 and found["gpu"] is None
    json.dumps(found)
    monkeypatch.setenv("FASTSCRIBE_COMMIT", "abc")
    assert machine.commit(tmp_path) == "abc"
    monkeypatch.delenv("FASTSCRIBE_COMMIT")
    (tmp_path / "COMMIT").write_text("def\n")
    assert machine.commit(tmp_path) == "def"


class Smi:
    """nvidia-smi of a machine with two GPUs, which answers for one where it is named, else for both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        properties = lambda device: SimpleNamespace(  # noqa: E731
            name=f"GPU {device.index}", multi_processor_count=1, major=9, minor=0, uuid=f"uuid-{device.index}"
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, (device.index + 1) * 2**30))
        monkeypatch.setattr(machine.shutil, "which", lambda name: name)
        monkeypatch.setattr(machine.subprocess, "run", lambda command, **given: SimpleNamespace(stdout=self(command)))
        monkeypatch.setattr(machine.subprocess, "Popen", self.popen)

    def __call__(self, command: list[str]) -> str:
        self.asked.append(command)
        powers = {"--id=GPU-uuid-0": "10, 1, 100, 30\n", "--id=GPU-uuid-1": "90, 2, 600, 60\n"}
        return powers.get(command[1], "".join(powers.values()))

    def popen(self, command: list[str], **given: object) -> SimpleNamespace:
        said = self(command)
        return SimpleNamespace(terminate=lambda: None, communicate=lambda timeout: (said, ""))


@pytest.mark.parametrize(("index", "power_w"), [(0, 100), (1, 600)])
def test_a_gpu_is_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, index: int, power_w: int) -> None:
    smi, device = Smi(monkeypatch), torch.device("cuda", index)
    found = machine.gpu_facts(device)
    assert (found["torch_name"], found["memory_gib"]) == (f"GPU {index}", index + 1.0)
    assert found["nvidia_smi"]["name"] == str(10 + 80 * index)  # its first number here
    with machine.gpu_samples(device) as samples:
        pass
    assert samples["smi_power_w"] == power_w
    assert all(f"--id=GPU-uuid-{index}" in command for command in smi.asked) and len(smi.asked) == 2


def test_samples_of_the_gpu_are_averaged_and_odd_lines_left_out() -> None:
    found = machine._means("90, 1980, 600.5, 50\n[N/A], 1, 2, 3\n100, 1900, 650.5, 52\n10")
    assert found["smi_utilization_percent"] == 95 and found["smi_power_w"] == 625.5
    assert machine._means("") == {}
