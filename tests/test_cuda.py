"""The whole path on a GPU. Everything here is skipped where there is none; scripts/gpu_check runs it where there is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.device import host_array
from fastscribe.types import Batch
from tests.conftest import AUDIO, MODEL_NAMES, MODELS, model_path, waveform

pytestmark = pytest.mark.cuda

FILES = sorted(AUDIO.glob("*.flac")) + sorted(AUDIO.glob("*.wav"))


def run(transcriber: Transcriber, files=FILES) -> dict[str, Transcript]:
    results = list(transcriber.transcribe(files))
    assert not [result for result in results if isinstance(result, Failure)]
    return {result.audio.path: result for result in results if isinstance(result, Transcript)}


def words(transcripts: dict[str, Transcript]) -> dict[str, list[tuple[str, float, float]]]:
    return {path: [(w.text, w.start_s, w.end_s) for w in found.words] for path, found in transcripts.items()}


def loaded(name: str, device: str, dtype: str, **options) -> Transcriber:
    return Transcriber.load(model_path(MODELS / name), device, dtype, Options(**options))


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_fp32_texts_and_times_equal_the_cpus(name: str) -> None:
    assert words(run(loaded(name, "cuda", "fp32"))) == words(run(loaded(name, "cpu", "fp32")))


@pytest.mark.parametrize("name", ["tdt_demo", "rnnt"])
def test_graph_modes_and_batches_change_nothing_in_fp32(name: str) -> None:
    reference = words(run(loaded(name, "cuda", "fp32", cuda_graphs="off")))
    for options in (
        {"cuda_graphs": "full"},
        {"cuda_graphs": "chunked"},
        {"cuda_graphs": "full", "batch_size": 1},
        {"cuda_graphs": "full", "batch_size": 3},
        {"cuda_graphs": "full", "batch_frames": 500},
    ):
        transcriber = loaded(name, "cuda", "fp32", **options)
        for _ in range(3):  # the encoder's graphs are captured when a shape comes back
            assert words(run(transcriber)) == reference


def test_bf16_modes_agree_with_each_other() -> None:
    found = [words(run(loaded("tdt_demo", "cuda", "bf16", cuda_graphs=mode))) for mode in ("off", "chunked", "full")]
    assert found[0] == found[1] == found[2]


def test_the_host_waits_for_nothing_between_batch_and_results() -> None:
    transcriber = loaded("tdt_demo", "cuda", "bf16", cuda_graphs="full")
    run(transcriber)  # what is made once may wait
    engine = transcriber.engine
    waves = [waveform(path) for path in FILES if soundfile.info(path).samplerate == 16000][:8]
    samples_BS = host_array((len(waves), max(map(len, waves))), np.dtype(np.float32), engine.device)
    lengths_B = host_array((len(waves),), np.dtype(np.int64), engine.device)
    samples_BS[:] = 0
    for row, wave in enumerate(waves):
        lengths_B[row] = len(wave)
        samples_BS[row, : len(wave)] = wave / 32768.0 if wave.dtype == np.int16 else wave
    batch = Batch((None,) * len(waves), samples_BS, lengths_B)  # type: ignore[arg-type]
    for _ in range(4):
        decoded = engine._submit(engine._encode(batch))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoded = engine._submit(engine._encode(batch))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(engine._hypotheses(decoded)) == len(waves)


def test_too_little_memory_splits_batches_and_is_remembered() -> None:
    transcriber = loaded("tdt_demo", "cuda", "fp32", batch_frames=10_000_000)
    reference = words(run(transcriber))
    torch.cuda.empty_cache()
    real, total = torch.cuda.mem_get_info()[0], torch.cuda.mem_get_info()[1]
    peak = torch.cuda.max_memory_allocated()
    assert peak < real
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 0.4 * peak) / total)
    try:
        assert words(run(transcriber)) == reference
        assert transcriber.engine.budget is not None and transcriber.engine.budget.frames < 10_000_000
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_other_rates_and_channels_are_resampled_on_the_device(tmp_path: Path) -> None:
    import soxr

    speech = waveform(FILES[0]).astype(np.float32) / 32768.0
    files = []
    for rate, channels in ((44100, 2), (48000, 1), (8000, 1), (16000, 2)):
        wave = soxr.resample(speech, 16000, rate)
        files.append(tmp_path / f"{rate}_{channels}.wav")
        soundfile.write(files[-1], np.stack([wave] * channels, axis=1), rate, subtype="FLOAT")
    on_gpu, on_cpu = run(loaded("tdt_demo", "cuda", "fp32"), files), run(loaded("tdt_demo", "cpu", "fp32"), files)
    assert {path: found.text for path, found in on_gpu.items()} == {path: found.text for path, found in on_cpu.items()}


def test_loading_and_unloading_leaks_nothing() -> None:
    sizes = []
    for _ in range(6):
        run(loaded("tdt_demo", "cuda", "bf16"))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        sizes.append(torch.cuda.mem_get_info()[0])
    assert max(sizes[2:]) - min(sizes[2:]) < 32 << 20
