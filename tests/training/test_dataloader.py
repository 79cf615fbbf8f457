"""Recordings into batches: equal to what transcription reads, cached or not, and a bad one fails alone."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest
import soundfile

from fastscribe.audio.read import read
from fastscribe.pipeline import thread_pool
from fastscribe.training import backgrounds
from fastscribe.training.corpus import Example
from fastscribe.training.dataloader import AudioDataLoader
from tests.conftest import AUDIO, waveform

FILES = sorted(AUDIO.glob("0*.flac"))[:4]


def example(path: Path, offset_s: float = 0.0, duration_s: float | None = None) -> Example:
    """An example of the whole recording, unless `duration_s` is given."""
    return Example(str(path), "text", soundfile.info(path).duration if duration_s is None else duration_s, offset_s)


def loader(examples: list[Example], cache_bytes: float = 1e9, said: list[str] | None = None) -> AudioDataLoader:
    return AudioDataLoader(examples, 16_000, cache_bytes, 2, (said if said is not None else []).append)


def test_rows() -> None:
    plan = [np.array([2, 0]), np.array([1, 3])]
    batches = list(loader([example(path) for path in FILES]).batches(plan))
    for rows, indices in zip(batches, plan, strict=True):
        assert rows.examples.tolist() == indices.tolist()
        for row_S, length, index in zip(rows.samples_BS, rows.lengths_B.tolist(), indices, strict=True):
            wave_S = waveform(FILES[index])
            assert length == len(wave_S) and not row_S[length:].any()
            assert np.array_equal(row_S[:length].numpy(), wave_S)


def test_cache(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.wav" for index in range(3)]
    for path in paths:
        soundfile.write(path, np.full(2000, 0.25), 16_000)
    plan = [np.array([0, 1, 2])]
    read = loader([example(path) for path in paths], cache_bytes=8000)  # two of them, at 2 bytes a sample
    first = next(read.batches(plan))
    for path in paths:
        path.unlink()
    again = next(read.batches(plan))
    assert len(first.examples) == 3 and len(again.examples) == 2


def test_cuts_and_rates(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.arange(8000) / 8000, 8000, subtype="FLOAT")
    rows = next(loader([example(tmp_path / "a.wav", 0.25, 0.5)]).batches([np.array([0])]))
    assert rows.lengths_B.tolist() == [8000]
    middle = rows.samples_BS[0, 1000:7000].float() / 32768
    assert np.allclose(middle, 0.25 + np.arange(1000, 7000) / 16_000, atol=1e-3)


def test_bad_recording(tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(b"not audio")
    said: list[str] = []
    read = loader([example(tmp_path / "bad.wav", duration_s=1.0), example(FILES[0])], said=said)
    for _ in range(2):
        rows = next(read.batches([np.array([0, 1])]))
        assert rows.examples.tolist() == [1] and len(rows.samples_BS) == 1
    assert len(said) == 1 and "bad.wav" in said[0]
    nothing = next(read.batches([np.array([0])]))
    assert nothing.examples.tolist() == [] and nothing.samples_BS.shape == (0, 0)
    assert (read.num_tried, read.num_unreadable) == (2, 1)


@pytest.mark.parametrize(
    ("lasts_s", "promised_s", "least_s", "problem"),
    [
        (1.0, 1.2, 0.0, None),
        (1.0, 1.3, 0.0, "the manifest gives 1.30 s, so the text may be that of more than it has"),
        (0.09, 0.09, 0.0, "too short for the model, which needs 0.10 s to learn from"),
        (0.1, 0.1, 0.0, None),
        (0.4, 0.4, 0.5, "too short for the model, which needs 0.50 s to learn from"),
        (0.5, 0.5, 0.5, None),
    ],
)
def test_much_shorter_than_promised(
    tmp_path: Path, lasts_s: float, promised_s: float, least_s: float, problem: str | None
) -> None:
    path, said = tmp_path / "a.wav", []
    soundfile.write(path, np.full(round(16_000 * lasts_s), 0.25), 16_000)
    read = AudioDataLoader([example(path, duration_s=promised_s)], 16_000, 0.0, 1, said.append, least_s)
    assert len(next(read.batches([np.array([0])])).examples) == (problem is None)
    assert said == ([] if problem is None else [f"left out: {path}: lasts {lasts_s:.2f} s: {problem}"])


def test_repeated_example(tmp_path: Path) -> None:
    path, said = tmp_path / "a.wav", []
    soundfile.write(path, np.full(3200, 0.25), 16_000)
    parts = [example(path, 0.0, 0.1), example(path, 0.1, 0.1), example(tmp_path / "none.wav", duration_s=1.0)]
    read = loader(parts, cache_bytes=2 * 3200, said=said)  # room for two
    drawn = np.array([0, 1, 0, 2, 2])
    next(read.batches([np.arange(5)], drawn))
    path.unlink()
    assert next(read.batches([np.array([4, 2, 1, 0])], drawn)).examples.tolist() == [2, 1, 0]
    assert len(said) == 1 and (read.num_tried, read.num_unreadable) == (3, 1)


def test_batches_keep_their_order_while_a_recording_hangs(monkeypatch) -> None:
    """Its thread is replaced: later batches are read meanwhile, and they wait for their turn."""
    monkeypatch.setattr(thread_pool, "STUCK_S", 0.1)
    monkeypatch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.02)
    release, others_read = Event(), Event()
    names: list[str] = []

    def hanging(audio, *rest, **options):
        if audio.path == str(FILES[0]):
            assert others_read.wait(60)
            release.wait(60)
        names.append(audio.path)
        if len(names) == 3:
            others_read.set()
            release.set()
        return read(audio, *rest, **options)

    monkeypatch.setattr(backgrounds, "read", hanging)
    one_thread = AudioDataLoader([example(path) for path in FILES], 16_000, 0.0, 1, lambda line: None)
    plan = [np.array([number]) for number in range(4)]
    assert [rows.examples.tolist() for rows in one_thread.batches(plan)] == [[0], [1], [2], [3]]
    assert names[-1] == str(FILES[0])


def test_an_unexpected_error_ends_the_stream(monkeypatch) -> None:
    def broken(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr(backgrounds, "read", broken)
    with pytest.raises(RuntimeError, match="no"):
        next(loader([example(FILES[0])]).batches([np.array([0])]))


def test_a_batch_without_examples_is_empty() -> None:
    [rows] = loader([example(FILES[0])]).batches([np.array([], dtype=np.int64)])
    assert rows.examples.tolist() == [] and rows.samples_BS.shape == (0, 0)
