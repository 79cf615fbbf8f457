"""Augmentation, measured: frequencies, levels and mask widths."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.families.blocks.features import LogMel
from fastscribe.training.augment import (
    AugmentConfig,
    add_noise,
    augment_samples,
    batch_generator,
    change_gain,
    change_speed,
    mask_features,
)
from fastscribe.training.dataloader import AudioBatch
from fastscribe.training.learner import augmented_features
from fastscribe.training.model_recipe import ModelRecipe

RATE = 16_000
ALWAYS = AugmentConfig(noise_chance=1)
NEVER = AugmentConfig((1.0,), noise_chance=0, gain_db=(0, 0), freq_masks=0, time_masks=0)


def tone(hz: float, num_samples: int = RATE) -> torch.Tensor:
    return 0.1 * torch.sin(2 * math.pi * hz * torch.arange(num_samples, dtype=torch.float64) / RATE).float()


def batch(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    lengths_B = torch.tensor(lengths)
    samples_BS = 0.1 * torch.randn(len(lengths), max(lengths), generator=torch.Generator().manual_seed(seed))
    return samples_BS.masked_fill_(torch.arange(max(lengths)) >= lengths_B[:, None], 0), lengths_B


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def power_db(samples: torch.Tensor) -> float:
    return 10 * math.log10(float(samples.double().square().mean()) + 1e-30)


@pytest.mark.parametrize(("speed", "length"), [(0.9, 17778), (1.0, 16000), (1.1, 14546), (1.25, 12800)])
def test_speed(speed, length) -> None:
    samples_BS, lengths_B = change_speed(tone(1000)[None], torch.tensor([RATE]), torch.tensor([speed]))
    assert lengths_B.tolist() == [length] and samples_BS.shape == (1, length)
    middle = samples_BS[0, 1000:-1000]
    expected = 0.1 * torch.sin(2 * math.pi * 1000 * speed * torch.arange(length, dtype=torch.float64) / RATE).float()
    assert (middle - expected[1000:-1000]).abs().max() < 1e-5


def test_speed_without_aliasing() -> None:
    fast_BS, _ = change_speed(tone(7600)[None], torch.tensor([RATE]), torch.tensor([1.1]))  # 8,360 Hz, above 8,000
    assert power_db(fast_BS[0, 1000:-1000]) < power_db(tone(7600)) - 100


def test_speed_per_row() -> None:
    samples_BS, lengths_B = batch([4000, 1, 3000, 0, 3500])
    speeds_B = torch.tensor([1.1, 0.9, 0.9, 1.1, 1.0])
    changed_BS, new_B = change_speed(samples_BS, lengths_B, speeds_B)
    assert new_B.tolist() == [3637, 2, 3334, 0, 3500] and changed_BS.shape == (5, 3637)
    for row, length in enumerate(new_B.tolist()):
        alone_BS, _ = change_speed(samples_BS[row : row + 1], lengths_B[row : row + 1], speeds_B[row : row + 1])
        assert torch.allclose(changed_BS[row, :length], alone_BS[0, :length], atol=1e-6)
        assert not changed_BS[row, length:].any()
    assert torch.equal(changed_BS[4, :3500], samples_BS[4, :3500])


def test_noise_level() -> None:
    samples_BS, lengths_B = batch([RATE, RATE // 2, 5000])
    noisy_BS = add_noise(samples_BS, lengths_B, AugmentConfig(noise_chance=1, noise_db=(12, 12)), gen())
    for row, length in enumerate(lengths_B.tolist()):
        noise = (noisy_BS - samples_BS)[row]
        assert power_db(samples_BS[row, :length]) - power_db(noise[:length]) == pytest.approx(12, abs=0.01)
        assert not noise[length:].any()


@pytest.mark.parametrize("slope", [0.0, 1.0, 2.0])
def test_noise_slope(slope) -> None:
    samples_BS, lengths_B = batch([1 << 16] * 8)
    config = AugmentConfig(noise_chance=1, noise_db=(0, 0), noise_slope=(slope, slope))
    noise_BS = add_noise(samples_BS, lengths_B, config, gen()) - samples_BS
    assert noise_BS.mean(1).abs().max() < 1e-6  # nothing at 0 Hz
    power = torch.fft.rfft(noise_BS.double()).abs().square().mean(0).numpy()
    octaves = [power[1 << k : 2 << k].mean() for k in range(4, 15)]
    fitted = np.polyfit(np.arange(11) * math.log10(2), np.log10(octaves), 1)[0]
    assert fitted == pytest.approx(-slope, abs=0.1)


def test_gain() -> None:
    samples_BS, _ = batch([2000] * 64)
    samples_BS[:32] *= 0.1
    changed_BS = change_gain(samples_BS, AugmentConfig(gain_db=(-10, 20)), gen())
    gains = [power_db(after) - power_db(before) for after, before in zip(changed_BS, samples_BS, strict=True)]
    assert all(-10.01 < gain < 20.01 for gain in gains) and max(gains[:32]) > 15
    assert float(changed_BS.abs().max()) <= 0.9901
    limited = [row for row in range(64) if float(changed_BS[row].abs().max()) > 0.9899]
    assert limited and all(gains[row] < 20 for row in limited)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32])
def test_no_augmentation(dtype) -> None:
    samples_BS, lengths_B = batch([3000, 2000])
    samples_BS = (samples_BS * 8192).round()
    given = samples_BS.short() if dtype is torch.int16 else samples_BS / 32768
    changed_BS, new_B = augment_samples(given, lengths_B, NEVER, gen())
    assert changed_BS.dtype == torch.float32 and torch.equal(changed_BS, samples_BS / 32768)
    assert torch.equal(new_B, lengths_B)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=5),
    st.sampled_from([ALWAYS, AugmentConfig()]),
    st.integers(0, 99),
)
def test_any_batch(lengths, config, seed) -> None:
    samples_BS, lengths_B = batch(lengths, seed)
    before_BS = samples_BS.clone()
    changed_BS, new_B = augment_samples(samples_BS, lengths_B, config, gen(seed))
    assert torch.equal(samples_BS, before_BS)
    assert changed_BS.shape == (len(lengths), max(new_B.tolist())) and changed_BS.isfinite().all()
    assert float(changed_BS.abs().max() if changed_BS.numel() else 0) <= 0.991
    for row, (old, new) in enumerate(zip(lengths, new_B.tolist(), strict=True)):
        assert new in {math.ceil(round(old / speed, 6)) for speed in config.speeds}
        assert not changed_BS[row, new:].any()


def test_silence_stays_silent() -> None:
    changed_BS, _ = augment_samples(torch.zeros(3, 500), torch.tensor([500, 400, 0]), ALWAYS, gen())
    assert not changed_BS.any()


def test_batch_generator() -> None:
    samples_BS, lengths_B = batch([2000, 1500, 900])

    def changed(*place: int) -> torch.Tensor:
        return augment_samples(samples_BS, lengths_B, ALWAYS, batch_generator(*place))[0]

    first = changed(1, 2, 3)
    assert torch.equal(first, changed(1, 2, 3, 0))
    others = [changed(0, 2, 3), changed(1, 0, 3), changed(1, 2, 4), changed(1, 2, 3, 1)]
    assert not any(other.shape == first.shape and torch.equal(other, first) for other in others)


def test_planned_speeds_are_used() -> None:
    samples_BS, lengths_B = batch([1000, 1000, 1000])
    _, new_B = augment_samples(samples_BS, lengths_B, ALWAYS, gen(), speeds=torch.tensor([1.1, 0.9, 1.0]))
    assert new_B.tolist() == [910, 1112, 1000]


def stretches(inside: torch.Tensor) -> list[int]:
    """Lengths of the runs of True values."""
    text = "".join("x" if value else " " for value in inside.tolist())
    return [len(run) for run in text.split()]


@pytest.mark.parametrize("num_mels", [80, 128])
def test_mask_widths(num_mels) -> None:
    lengths_B = torch.tensor([1000, 200, 19, 0] * 25)
    mel_BMT = torch.ones(100, num_mels, 1000)
    one = AugmentConfig(freq_masks=1, time_masks=1)
    masked_BMT = mask_features(mel_BMT, lengths_B, one, gen()) == 0
    widths_of_bands, widths_of_1000 = set(), set()
    for row, length in enumerate(lengths_B.tolist()):
        bands, times = masked_BMT[row].all(1), masked_BMT[row].all(0)
        assert torch.equal(masked_BMT[row], bands[:, None] | times[None])  # whole bands and whole frames, nothing else
        assert len(stretches(bands)) <= 1 and sum(stretches(bands)) <= int(num_mels * 27 / 80)
        assert len(stretches(times)) <= 1 and sum(stretches(times)) <= int(length * 0.05)
        assert not times[length:].any()
        widths_of_bands.add(sum(stretches(bands)))
        widths_of_1000 |= {sum(stretches(times))} if length == 1000 else set()
    assert len(widths_of_bands) > 15 and len(widths_of_1000) > 10


def test_mask_positions() -> None:
    mel_BMT = torch.ones(400, 20, 60)
    masked_BMT = mask_features(mel_BMT, torch.full((400,), 60), AugmentConfig(), gen()) == 0
    assert mel_BMT.all()
    assert masked_BMT.all(2).any(0).all() and masked_BMT.all(1).any(0).all()
    most = AugmentConfig(freq_masks=0, time_masks=2, time_mask_share=1.0)
    assert (mask_features(mel_BMT, torch.full((400,), 60), most, gen()) == 0).all((1, 2)).any()


@pytest.mark.parametrize("normalize", ["none", "per_feature"])
def test_mask_value_by_model(normalize: str) -> None:
    log_mel = LogMel(replace(ModelRecipe().config(20).features, normalize=normalize))
    masked = replace(NEVER, time_masks=5, time_mask_share=0.5)
    samples_BS, lengths_B = batch([RATE, RATE // 2])
    rows = AudioBatch(np.arange(2), samples_BS, lengths_B)
    plain = log_mel(samples_BS, lengths_B)
    features = augmented_features(rows, torch.ones(2), log_mel, masked, gen(), torch.device("cpu"))
    for row, length in enumerate(plain.lengths_B.tolist()):
        plain_MT, changed_MT = (x.mel_BMT[row, :, :length] for x in (plain, features))
        is_masked_T = changed_MT[:, 1:].isclose(changed_MT[:, :-1]).all(0)
        assert is_masked_T.any() and not is_masked_T.all()
        means_M1 = plain_MT.mean(1, keepdim=True).expand(-1, int(is_masked_T.sum()))
        torch.testing.assert_close(changed_MT[:, 1:][:, is_masked_T], means_M1, atol=1e-4, rtol=1e-4)


def test_inference_tensor() -> None:
    with torch.inference_mode():
        mel_BMT = torch.randn(2, 8, 30)
    masked_BMT = mask_features(mel_BMT, torch.tensor([30, 20]), AugmentConfig(), gen())
    assert not masked_BMT.is_inference()


@pytest.mark.cuda
def test_gpu_without_synchronisation() -> None:
    samples_BS, lengths_B = batch([4000, 3000, 2500])
    quiet = AugmentConfig(noise_chance=0)
    on_host, _ = augment_samples(samples_BS, lengths_B, quiet, gen())
    on_device = samples_BS.cuda()
    augment_samples(on_device, lengths_B, ALWAYS, gen())
    torch.cuda.set_sync_debug_mode("error")
    try:
        changed_BS, _ = augment_samples(on_device, lengths_B, quiet, gen())
        augment_samples(on_device, lengths_B, ALWAYS, gen())
        mask_features(on_device[:, None], lengths_B, ALWAYS, gen())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(changed_BS.cpu(), on_host, atol=1e-5)
