"""The whole pipeline on a GPU. Skipped without a GPU; scripts/gpu_check runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.audio.probe import probe
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.cuda.device import host_array
from fastscribe.errors import is_out_of_memory
from fastscribe.pipeline.engine import Engine
from fastscribe.types import Batch, Source, Utterance
from tests.conftest import AUDIO, MODEL_NAMES, MODELS, model_path, waveform
from tests.helpers.loading import load_batches

pytestmark = pytest.mark.cuda

FILES = sorted(AUDIO.glob("*.flac")) + sorted(AUDIO.glob("*.wav"))
# On a GPU other rates are resampled there, and soxr's values differ by rounding: test_resampling_on_device.
AT_16_KHZ = [path for path in FILES if soundfile.info(path).samplerate == 16_000]


def run(transcriber: Transcriber, files=FILES) -> dict[str, Transcript]:
    results = list(transcriber.transcribe(files))
    assert not [result for result in results if isinstance(result, Failure)]
    return {result.audio.path: result for result in results if isinstance(result, Transcript)}


def words(transcripts: dict[str, Transcript]) -> dict[str, list[tuple[str, float, float]]]:
    return {path: [(w.text, w.start_s, w.end_s) for w in found.words] for path, found in transcripts.items()}


def loaded(name: str, device: str, dtype: str, **options) -> Transcriber:
    return Transcriber.load(model_path(MODELS / name), device, dtype, Options(**options))


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_fp32_equals_cpu(name: str) -> None:
    on_gpu, on_cpu = (words(run(loaded(name, device, "fp32"), AT_16_KHZ)) for device in ("cuda", "cpu"))
    assert on_gpu == on_cpu


@pytest.mark.parametrize("name", ["tdt_demo", "rnnt"])
def test_beam_equals_cpu(name: str) -> None:
    on_gpu, on_cpu = (loaded(name, device, "fp32", beam=4) for device in ("cuda", "cpu"))
    assert words(run(on_gpu, AT_16_KHZ)) == words(run(on_cpu, AT_16_KHZ))


def test_language_model_equals_cpu() -> None:
    on_gpu, on_cpu = (Transcriber.load(PACKAGED, device, "fp32") for device in ("cuda", "cpu"))
    assert on_gpu._recognizer.beam > 1
    assert words(run(on_gpu, AT_16_KHZ)) == words(run(on_cpu, AT_16_KHZ))


@pytest.mark.parametrize("name", ["tdt_demo", "rnnt"])
def test_graph_modes_equal_in_fp32(name: str) -> None:
    reference = words(run(loaded(name, "cuda", "fp32", cuda_graphs="off")))
    for options in (
        {"cuda_graphs": "full"},
        {"cuda_graphs": "chunked"},
        {"cuda_graphs": "full", "batch_size": 1},
        {"cuda_graphs": "full", "batch_size": 3},
        {"cuda_graphs": "full", "batch_frames": 500},
    ):
        transcriber = loaded(name, "cuda", "fp32", **options)
        for _ in range(3):  # the encoder's graphs are captured at the second use of a shape
            assert words(run(transcriber)) == reference


def test_graph_modes_equal_in_bf16() -> None:
    found = [words(run(loaded("tdt_demo", "cuda", "bf16", cuda_graphs=mode))) for mode in ("off", "chunked", "full")]
    assert found[0] == found[1] == found[2]


def batch_of(engine: Engine, rows: int, seconds: float) -> Batch:
    """Speech in pinned memory; rows begin at different offsets and get shorter."""
    speech, longest = np.tile(waveform(FILES[0]), 2), int(16_000 * seconds)
    samples_BS = host_array((rows, longest), np.dtype(np.int16), engine.device)
    lengths_B = np.linspace(longest, 0.8 * longest, rows).astype(np.int64)
    for row, length in enumerate(lengths_B):
        samples_BS[row] = np.resize(speech[997 * row % 16_000 :], longest)
        samples_BS[row, length:] = 0
    audio = probe(Source(str(FILES[0]), str(FILES[0]), FILES[0].name))
    return Batch((Utterance(audio, 0, audio.num_samples),) * rows, samples_BS, lengths_B)


def native_batches(engine: Engine, folder: Path, counts: Sequence[int]) -> list[Batch]:
    """Batches of `rows` 44.1 kHz stereo recordings, as the loader makes them for a GPU."""
    import soxr

    wave = soxr.resample(waveform(FILES[0]).astype(np.float32) / 32768.0, 16000, 44100)
    soundfile.write(folder / "stereo.wav", np.stack([wave, 0.5 * wave], axis=1), 44100)
    audio = probe(Source(str(folder / "stereo.wav"), str(folder / "stereo.wav"), "stereo.wav"))
    plans = [[Utterance(audio, 0, audio.num_samples - 4410 * row) for row in range(count)] for count in counts]
    allocate = partial(host_array, device=engine.device)
    loaded = load_batches(plans, sample_rate=16000, threads=2, ahead=2, allocate=allocate, native=True)
    return [batch for batch, _ in loaded if batch is not None]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let torch raise an error when an operation makes the host wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


SEEN = ((8, 4.0), (3, 6.0), (1, 2.5), (16, 5.0), (64, 10.0))
NEW = (
    (7, 31.0),
    (4, 19.0),
    (1, 43.0),
    (13, 17.0),
    (60, 12.0),
)  # no decoder state is allocated and no graph captured


def test_pipeline_does_not_sync() -> None:
    engine = loaded("tdt_demo", "cuda", "bf16", cuda_graphs="full")._engine
    seen, new = ([batch_of(engine, *shape) for shape in shapes] for shapes in (SEEN, NEW))
    for _ in range(4):  # one-time initialisation may wait
        for _, found in engine.stream(seen):
            assert not isinstance(found, Exception), found
    decoded = []
    with no_waiting():
        for batch in (*seen, *new, *reversed(seen)):
            decoded.append(engine._submit(engine._encode(batch)))
    found = [engine._hypotheses(one) for one in decoded]
    assert [len(rows) for rows in found] == [rows for rows, _ in (*SEEN, *NEW, *reversed(SEEN))]
    assert found[: len(SEEN)] == found[: -len(SEEN) - 1 : -1]
    assert all(one.token_ids for one in found[0])


def test_resampling_does_not_sync(tmp_path: Path) -> None:
    engine = loaded("tdt_demo", "cuda", "bf16", cuda_graphs="full")._engine
    batches = native_batches(engine, tmp_path, (4, 4, 4, 4, 3, 4))
    for _, found in engine.stream(batches[:4]):
        assert not isinstance(found, Exception), found
    decoded = []
    with no_waiting():
        for batch in batches[4:]:
            assert batch.native
            decoded.append(engine._submit(engine._encode(batch)))
    assert [len(engine._hypotheses(one)) for one in decoded] == [3, 4]


def free_bytes_when_idle() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


@pytest.mark.whole_device
def test_memory_with_many_shapes() -> None:
    """Includes memory outside torch: plans and workspaces of libraries. Batches are too large to be captured."""
    engine = loaded("tdt_demo", "cuda", "bf16", cuda_graphs="full")._engine
    sizes = []
    for number in range(220):
        batch = batch_of(engine, 48 + number % 51, 9.0 + 0.013 * number)
        for _, found in engine.stream([batch]):
            assert not isinstance(found, Exception), found
        if number % 50 == 19:
            sizes.append(free_bytes_when_idle())
    assert len(sizes) == 5 and max(sizes) - min(sizes) < 64 << 20


@pytest.mark.parametrize("graphs", ["off", "full"])
def test_too_long_row_fails_alone(graphs: str) -> None:
    engine = loaded("tdt_demo", "cuda", "bf16", cuda_graphs=graphs)._engine
    small = [batch_of(engine, rows, 5.0) for rows in (8, 3, 8, 5)]
    for _ in range(3):
        reference = [found for _, found in engine.stream(small)]
    long = batch_of(engine, 1, 4 * 3600.0)  # 0.9 GB in float32
    free_bytes_when_idle()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (800 << 20)) / total)
    try:
        outcomes = list(engine.stream([*small[:2], long, *small[2:]]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(outcomes) == 5
    found = {id(batch): result for batch, result in outcomes}
    error = found.pop(id(long))
    assert isinstance(error, Exception) and is_out_of_memory(error)
    assert [found[id(batch)] for batch in small] == reference


def test_out_of_memory_splits_batches() -> None:
    transcriber = loaded("tdt_demo", "cuda", "fp32", batch_frames=10_000_000)
    reference = words(run(transcriber))
    torch.cuda.empty_cache()
    real, total = torch.cuda.mem_get_info()[0], torch.cuda.mem_get_info()[1]
    peak = torch.cuda.max_memory_allocated()
    assert peak < real
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 0.4 * peak) / total)
    try:
        assert words(run(transcriber)) == reference
        assert transcriber._engine.budget is not None and transcriber._engine.budget.frames < 10_000_000
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_resampling_on_device(tmp_path: Path) -> None:
    import soxr

    speech = waveform(FILES[0]).astype(np.float32) / 32768.0
    files = []
    for rate, channels in ((44100, 2), (48000, 1), (8000, 1), (16000, 2)):
        wave = soxr.resample(speech, 16000, rate)
        files.append(tmp_path / f"{rate}_{channels}.wav")
        soundfile.write(files[-1], np.stack([wave] * channels, axis=1), rate, subtype="FLOAT")
    on_gpu, on_cpu = run(loaded("tdt_demo", "cuda", "fp32"), files), run(loaded("tdt_demo", "cpu", "fp32"), files)
    assert {path: found.text for path, found in on_gpu.items()} == {path: found.text for path, found in on_cpu.items()}


@pytest.mark.whole_device
@pytest.mark.parametrize("mode", ["full", "chunked"])
def test_load_unload_no_leak(mode: str) -> None:
    """Measured after each of torch's 32 streams has its cuBLAS workspace. The encoder is captured at the second use."""
    sizes = []
    for _ in range(80):
        transcriber = loaded("tdt_demo", "cuda", "bf16", cuda_graphs=mode)
        for _ in range(2):
            run(transcriber, FILES[:4])
        del transcriber
        sizes.append(free_bytes_when_idle())
    assert max(sizes[40:]) - min(sizes[40:]) < 64 << 20
