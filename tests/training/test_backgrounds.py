"""Recorded noise and rooms: who gets which, at which level, and the same in a resumed run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from fastscribe.errors import UsageError
from fastscribe.families.blocks.features import LogMel
from fastscribe.training.augment import augment_samples
from fastscribe.training.backgrounds import (
    KINDS,
    BackgroundCorpus,
    BackgroundDraw,
    BackgroundReader,
    LostFiles,
    draw_backgrounds,
)
from fastscribe.training.corpus import Example, Examples
from fastscribe.training.dataloader import AudioBatch, AudioDataLoader
from fastscribe.training.learner import augmented_features
from fastscribe.training.model_recipe import ModelRecipe
from fastscribe.training.recipe import AugmentConfig
from tests.training.test_trainer import recipe_of, trainer_of

STILL = AugmentConfig((1.0,), noise_chance=0.0, gain_db=(0.0, 0.0), freq_masks=0, time_masks=0)
RATE = 16_000


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def write(path: Path, samples_S: np.ndarray) -> Example:
    soundfile.write(path, samples_S.astype(np.int16), RATE)
    return Example(str(path), "", len(samples_S) / RATE)


def test_draw() -> None:
    noise = Examples.of([Example(f"{number}.wav", "", 1.0) for number in range(5)])
    config = AugmentConfig(noise_chance=0.4, noise_manifest="n", reverb_chance=0.2)
    draw = draw_backgrounds(BackgroundCorpus(noise), config, 20_000, epoch=3, seed=1)
    again, other = (draw_backgrounds(BackgroundCorpus(noise), config, 20_000, epoch, 1) for epoch in (3, 4))
    assert np.array_equal(draw.noise, again.noise) and np.array_equal(draw.begins, again.begins)
    assert not np.array_equal(draw.noise, other.noise) and set(draw.rooms) == {-1}
    assert np.mean(draw.noise >= 0) == pytest.approx(0.2, abs=0.01)  # half of the rows with noise
    counts = np.bincount(draw.noise[draw.noise >= 0], minlength=5)
    assert counts.min() > 0.9 * counts.mean()
    rooms = draw_backgrounds(BackgroundCorpus(rooms=noise), replace(config, room_manifest="r"), 20_000, 3, 1).rooms
    assert np.mean(rooms >= 0) == pytest.approx(0.2, abs=0.01)  # all rooms are recorded


def reader(corpus: BackgroundCorpus, draw: BackgroundDraw, said: list[str], **changes: Any) -> BackgroundReader:
    return BackgroundReader(corpus, draw, replace(STILL, **changes), RATE, LostFiles(corpus, said.append))


def test_noise_from_a_random_place(tmp_path: Path) -> None:
    ramp = write(tmp_path / "ramp.wav", np.arange(1, 20_001))
    short, silent = write(tmp_path / "short.wav", np.arange(1, 401)), write(tmp_path / "silent.wav", np.zeros(400))
    (tmp_path / "bad.wav").write_bytes(b"not audio")
    bad = Example(str(tmp_path / "bad.wav"), "", 1.0)
    draw = BackgroundDraw(np.array([0, 0, 1, 2, 3, 3, -1]), np.full(7, -1), np.array([0.0, 1.0, 0.5, 0, 0, 0, 0]))
    said: list[str] = []
    read = reader(BackgroundCorpus(Examples.of([ramp, short, silent, bad])), draw, said, speeds=(0.8, 1.0))
    first, last, repeated, *others = (read.noise(position, 8000) for position in range(7))
    assert first is not None and last is not None and repeated is not None
    assert len(first) == len(last) == len(repeated) == 10_000  # as at the lowest speed
    assert first[0] == 1 and abs(int(last[-1]) - 20_000) <= 1
    assert np.array_equal(repeated[:800], np.tile(np.arange(1, 401), 2))
    assert others == [None] * 4 and len(said) == 1 and said[0].startswith("left out of the augmentation: ")


def test_lost_noise_is_reported_once(tmp_path: Path) -> None:
    """The message has where the draw begins, which is another place each time."""
    noise = [replace(write(tmp_path / name, np.arange(1, 401)), duration_s=60.0) for name in ("a.wav", "b.wav")]
    draw = BackgroundDraw(np.array([0, 0, 0, 1]), np.full(4, -1), np.array([0.3, 0.5, 0.9, 0.5]))
    said: list[str] = []
    read = reader(BackgroundCorpus(Examples.of(noise)), draw, said)
    assert [read.noise(position, 8000) for position in range(4)] == [None] * 4
    assert len(said) == 2 and "a.wav" in said[0] and "b.wav" in said[1]


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_lost_files_end_a_run(manifest: Path, tmp_path: Path, kind: str) -> None:
    for number in range(2):
        (tmp_path / f"bad{number}.wav").write_bytes(b"not audio")
    rows = [{"audio_filepath": str(tmp_path / f"bad{number}.wav"), "duration": 1.0} for number in range(2)]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    augment = {"noise_chance": 1.0, "reverb_chance": 1.0, f"{kind}_manifest": str(tmp_path / "bad.jsonl")}
    recipe = recipe_of(manifest, augment=augment, run={"epochs": 3})
    expected = rf"2 of the 2 recordings of augment\.{kind}_manifest tried so far cannot be used, see above"
    with pytest.raises(UsageError, match=expected):
        trainer_of(recipe, tmp_path / "run").run()


def test_room_from_its_direct_sound_on(tmp_path: Path) -> None:
    response = np.zeros(3 * RATE)
    response[100], response[50], response[100 + 800] = -20_000, 100, 9000
    draw = BackgroundDraw(np.array([-1]), np.array([0]), np.zeros(1))
    room_L = reader(BackgroundCorpus(rooms=Examples.of([write(tmp_path / "r.wav", response)])), draw, []).room(0)
    assert room_L is not None and len(room_L) == 2 * RATE and (room_L[0], room_L[800]) == (-20_000, 9000)


def test_levels() -> None:
    """Recorded noise has the level of the recipe, and only the rows that have one get it."""
    random = torch.Generator().manual_seed(1)
    speech_BS, noise_BS = (torch.randint(-3000, 3000, (3, 8000), generator=random).short() for _ in range(2))
    noise_BS[1] = 0
    lengths_B = torch.tensor([8000, 8000, 6000])
    config = replace(STILL, noise_chance=1e-9, noise_manifest="n", noise_db=(10.0, 10.0))
    mixed_BS, _ = augment_samples(speech_BS, lengths_B, config, generator(), noise_BS=noise_BS)
    clean_BS = speech_BS.float() / 32768
    for row, length in ((0, 8000), (2, 6000)):
        added_S = (mixed_BS[row] - clean_BS[row])[:length]
        ratio = clean_BS[row, :length].square().mean() / added_S.square().mean()
        assert 10 * float(ratio.log10()) == pytest.approx(10, abs=0.01)
        expected_S = noise_BS[row, :length].float()
        assert torch.corrcoef(torch.stack([added_S, expected_S]))[0, 1] > 0.9999
    torch.testing.assert_close(mixed_BS[1], clean_BS[1])


def test_recorded_and_made_noise_come_to_the_chance() -> None:
    speech_BS = torch.full((4000, 32), 1000, dtype=torch.int16)
    config = replace(STILL, noise_chance=0.4, noise_manifest="n", noise_db=(10.0, 10.0))
    noise_BS = (
        torch.where(torch.arange(4000)[:, None] < 800, 7, 0).short().expand(4000, 32)
    )  # to 0.2, half of the chance
    mixed_BS, _ = augment_samples(speech_BS, torch.full((4000,), 32), config, generator(), noise_BS=noise_BS)
    is_changed_B = (mixed_BS - 1000 / 32768).abs().amax(1) > 1e-6
    assert (mixed_BS[:800] - 1000 / 32768).std(1).max() < 1e-6  # no other noise besides
    assert is_changed_B[:800].all() and float(is_changed_B.float().mean()) == pytest.approx(0.4, abs=0.03)


def test_convolution() -> None:
    speech_BS = torch.zeros(2, 4000, dtype=torch.int16)
    speech_BS[:, 10] = 8000
    rooms_BL = torch.zeros(2, 900, dtype=torch.int16)
    rooms_BL[0, 0], rooms_BL[0, 800] = 20_000, -15_000
    config = replace(STILL, room_manifest="r")
    wet_BS, _ = augment_samples(speech_BS, torch.tensor([4000, 4000]), config, generator(), rooms_BL=rooms_BL)
    expected_BS = speech_BS.float() / 32768
    expected_BS[0, 810] = -0.6 * expected_BS[0, 10]
    expected_BS[0, 10] *= 0.8
    torch.testing.assert_close(wet_BS, expected_BS, atol=1e-6, rtol=1e-4)


def test_loader_reads_them_ahead(tmp_path: Path) -> None:
    speech = Examples.of([write(tmp_path / "s.wav", np.full(1600, 9)), write(tmp_path / "t.wav", np.full(3200, 9))])
    noise = Examples.of([write(tmp_path / "n.wav", np.full(9000, 5))])
    draw = BackgroundDraw(np.array([-1, 0, -1]), np.full(3, -1), np.zeros(3))
    loader = AudioDataLoader(speech, RATE, 0.0, 1, print)
    plan = [np.array([1, 0]), np.array([2])]
    first, second = loader.batches(plan, np.array([0, 1, 1]), reader(BackgroundCorpus(noise), draw, []))
    assert first.noise_BS is not None and first.noise_BS.shape == (2, 3200) and first.rooms_BL is None
    assert first.noise_BS[0].eq(5).all() and not first.noise_BS[1].any() and second.noise_BS is None
    half = first.slice_rows(slice(1, None))
    assert half.noise_BS is not None and half.noise_BS.shape == (1, 3200)


def test_a_learner_mixes_what_was_read() -> None:
    """That a run which goes on draws the same is in test_trainer.py."""
    log_mel = LogMel(ModelRecipe().config(20).features)
    speech_BS, lengths_B = torch.randint(-3000, 3000, (1, 8000)).short(), torch.tensor([8000])
    plain, *others = (
        augmented_features(rows, torch.ones(1), log_mel, STILL, generator(), torch.device("cpu")).mel_BMT
        for rows in (
            AudioBatch(np.arange(1), speech_BS, lengths_B),
            AudioBatch(np.arange(1), speech_BS, lengths_B, noise_BS=speech_BS.flip(1)),
            AudioBatch(np.arange(1), speech_BS, lengths_B, rooms_BL=speech_BS[:, :900]),
        )
    )
    assert not any(torch.allclose(plain, other, atol=0.1) for other in others)
