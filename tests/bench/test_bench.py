"""Measurements count correctly, and synthetic audio has the stated properties."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from fastscribe.bench import machine, synthetic, throughput_passes
from fastscribe.bench.roofline import time_call
from fastscribe.pipeline.batching import Budget
from tests.helpers.random_models import transcriber

CPU = torch.device("cpu")


# --- audio ---------------------------------------------------------------------------------------------------------


def test_synthetic_audio_is_reproducible() -> None:
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
    links = throughput_passes.hard_links(paths, tmp_path / "links", 3)
    assert len(set(links)) == 6 and all(link.samefile(paths[number % 2]) for number, link in enumerate(links))


# --- counting -------------------------------------------------------------------------------------------------------


def test_time_call_repeats_and_takes_the_median() -> None:
    calls: list[int] = []
    timing = time_call(lambda: calls.append(1), CPU, seconds=0.01, least=5, most=9)
    assert len(calls) == 3 + timing.runs and 5 <= timing.runs <= 9
    assert 0 < timing.min_ms <= timing.ms <= timing.max_ms


# --- measuring ------------------------------------------------------------------------------------------------------


def test_batches_hold_every_wave_once() -> None:
    waves = synthetic.waves([1.0, 2.5, 0.4, 2.5, 1.1], seed=6)
    batches = throughput_passes.batches_of(waves, transcriber("tiny"), transcriber("tiny")._recognizer.choose_budget())
    found = {
        utterance.audio.id: row[:length]
        for batch in batches
        for utterance, row, length in zip(batch.utterances, batch.samples_BS, batch.lengths_B, strict=True)
    }
    assert all(np.array_equal(found[str(number)], wave) for number, wave in enumerate(waves))
    assert all(not row[length:].any() for b in batches for row, length in zip(b.samples_BS, b.lengths_B, strict=True))


def test_throughput_counts_all_audio_and_shares_add_up(tmp_path: Path) -> None:
    waves = synthetic.waves([1.0, 2.5, 0.5], seed=7)
    batches = throughput_passes.batches_of(waves, transcriber("tiny"), Budget(math.inf))
    row = throughput_passes.from_batches(transcriber("tiny"), batches, passes=2, repeats=2)
    assert row["audio_s"] == pytest.approx(8.0)
    assert row["encoder_share_of_wall"] + row["outside_encoder_share_of_wall"] == pytest.approx(1.0)
    paths = synthetic.write_files(tmp_path / "audio", waves, "flac", 2)
    row = throughput_passes.from_files(transcriber("tiny"), paths, tmp_path / "out", passes=1)
    assert (row["audio_s"], row["files"]) == (pytest.approx(4.0), 3)
    assert len((tmp_path / "out" / "pass0" / "transcripts.jsonl").read_text().splitlines()) == 3


def test_the_machine_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.facts(CPU, tmp_path)
    assert found["versions"]["torch"] and found["cpu_cores"] > 0 and found["gpu"] is None
    json.dumps(found)
    monkeypatch.setenv("FASTSCRIBE_COMMIT", "abc")
    assert machine.commit(tmp_path) == "abc"
    monkeypatch.delenv("FASTSCRIBE_COMMIT")
    (tmp_path / "COMMIT").write_text("def\n")
    assert machine.commit(tmp_path) == "def"


class FakeNvidiaSmi:
    """nvidia-smi of a machine with two GPUs: answers for the named one, else for both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[list[str]] = []
        properties = lambda device: SimpleNamespace(  # noqa: E731
            name=f"GPU {device.index}", multi_processor_count=1, major=9, minor=0, uuid=f"uuid-{device.index}"
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, (device.index + 1) * 2**30))
        monkeypatch.setattr(machine.shutil, "which", lambda name: name)
        monkeypatch.setattr(machine.subprocess, "run", lambda command, **given: SimpleNamespace(stdout=self(command)))
        monkeypatch.setattr(machine.subprocess, "Popen", self.popen)

    def __call__(self, command: list[str]) -> str:
        self.commands.append(command)
        powers = {"--id=GPU-uuid-0": "10, 1, 100, 30\n", "--id=GPU-uuid-1": "90, 2, 600, 60\n"}
        return powers.get(command[1], "".join(powers.values()))

    def popen(self, command: list[str], **given: object) -> SimpleNamespace:
        said = self(command)
        return SimpleNamespace(terminate=lambda: None, communicate=lambda timeout: (said, ""))


@pytest.mark.parametrize(("index", "power_w"), [(0, 100), (1, 600)])
def test_gpu_is_queried_by_uuid(monkeypatch: pytest.MonkeyPatch, index: int, power_w: int) -> None:
    smi, device = FakeNvidiaSmi(monkeypatch), torch.device("cuda", index)
    found = machine.gpu_facts(device)
    assert (found["torch_name"], found["memory_gib"]) == (f"GPU {index}", index + 1.0)
    assert found["nvidia_smi"]["name"] == str(10 + 80 * index)  # its first number here
    with machine.gpu_samples(device) as samples:
        pass
    assert samples["smi_power_w"] == power_w
    assert all(f"--id=GPU-uuid-{index}" in command for command in smi.commands) and len(smi.commands) == 2


def test_gpu_samples_are_averaged() -> None:
    found = machine._means("90, 1980, 600.5, 50\n[N/A], 1, 2, 3\n100, 1900, 650.5, 52\n10")
    assert found["smi_utilization_percent"] == 95 and found["smi_power_w"] == 625.5
    assert machine._means("") == {}
