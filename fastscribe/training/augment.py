"""Augment batches: speed, recorded rooms, noise and gain on samples, masks on features.

Everything runs on the samples' device, whole rows at once. One torch.Generator on the host decides what happens to which
row, so nothing here waits for the device and a run repeats exactly (on one kind of device: the noise comes from the
device's own generator, seeded by the host's). For the same reason lengths are host tensors.

Sources: SpecAugment (Park et al. 2019, arXiv 1904.08779) with time masks that scale with the length (arXiv 1912.05533),
speed perturbation (Ko et al., Interspeech 2015).

Shapes: B batch, S samples, R augmented rows, M mels, T mel frames, N frequency bins, L samples of an impulse response.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from fastscribe.audio.resample import resample_rows
from fastscribe.cuda.device import small_to_device
from fastscribe.training.recipe import PERCENT, RECORDED_SHARE, AugmentConfig

_PEAK = 0.99  # of full scale; the limit of augmented samples
_SILENT = 1e-10  # mean square below which a row counts as silent
_SPEED_RATE = 16_000  # any rate works, because only its ratio to the other matters


def batch_generator(seed: int, epoch: int, step: int, rank: int = 0) -> torch.Generator:
    """Return the host generator of one batch; it depends on the arguments alone, so a resumed run repeats the batch."""
    state = np.random.SeedSequence([seed, epoch, step, rank]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


@torch.no_grad()
def augment_samples(
    samples_BS: torch.Tensor,
    lengths_B: torch.Tensor,
    config: AugmentConfig,
    generator: torch.Generator,
    speeds: torch.Tensor | None = None,
    noise_BS: torch.Tensor | None = None,
    rooms_BL: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply speed, rooms, noise and gain.

    Args:
        samples_BS: [B, S] int16 or float32.
        lengths_B: [B] on the host.
        generator: on the host.
        speeds: [B] from the epoch's plan (buckets.draw_speeds); None draws them here.
        noise_BS: recorded noise, int16, at least as long as the rows at their speeds; zeros in rows without it. None: no row.
        rooms_BL: impulse responses of recorded rooms, direct sound first, as noise_BS.

    Returns:
        float32 [B, S'] within +-0.99, and the new lengths [B] on the host.
    """
    if speeds is None:
        speeds = torch.tensor(config.speeds)[torch.randint(len(config.speeds), (len(samples_BS),), generator=generator)]
    samples_BS, lengths_B = change_speed(to_float(samples_BS), lengths_B, speeds)
    if rooms_BL is not None:
        samples_BS = put_in_rooms(samples_BS, lengths_B, rooms_BL)
    samples_BS = add_noise(samples_BS, lengths_B, config, generator, noise_BS)
    return change_gain(samples_BS, config, generator), lengths_B


def to_float(samples: torch.Tensor) -> torch.Tensor:
    return samples.float().mul_(1 / 32768) if samples.dtype == torch.int16 else samples


def change_speed(
    samples_BS: torch.Tensor, lengths_B: torch.Tensor, speeds_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Play each row at its speed (tempo and pitch), in whole hundredths: float32 [B, S'], zero beyond the new lengths."""
    percents_B = (speeds_B.double() * PERCENT).round().long()
    new_lengths_B = -(-lengths_B * PERCENT // percents_B)
    changed_BS = samples_BS.new_zeros(len(samples_BS), int(new_lengths_B.max()) if len(samples_BS) else 0)
    for percent in percents_B.unique().tolist():
        rows_R = torch.nonzero(percents_B == percent)[:, 0]
        longest = int(lengths_B[rows_R].max())
        rows_on_device_R = small_to_device(rows_R, samples_BS.device)
        rows_RS = samples_BS[rows_on_device_R, :longest]
        if percent != PERCENT and longest:
            rows_RS = resample_rows(rows_RS, percent * _SPEED_RATE // PERCENT, _SPEED_RATE)
        changed_BS[:, : rows_RS.shape[1]].index_copy_(0, rows_on_device_R, rows_RS)
    return _zero_beyond_(changed_BS, new_lengths_B), new_lengths_B


def put_in_rooms(samples_BS: torch.Tensor, lengths_B: torch.Tensor, rooms_BL: torch.Tensor) -> torch.Tensor:
    """Convolve the rows that have an impulse response with it. Responses get an energy of 1."""
    rows_R = torch.nonzero(rooms_BL.any(1))[:, 0]
    if not len(rows_R):  # half of a batch that was split
        return samples_BS
    rooms_RL = to_float(rooms_BL[rows_R].to(samples_BS.device))
    rooms_RL = rooms_RL / rooms_RL.norm(dim=1, keepdim=True)
    rows_on_device_R = small_to_device(rows_R, samples_BS.device)
    rows_RS = samples_BS[rows_on_device_R, : int(lengths_B[rows_R].max())]
    size = _fft_size(rows_RS.shape[1] + rooms_RL.shape[1] - 1)
    spectrum_RN = torch.fft.rfft(rows_RS, size) * torch.fft.rfft(rooms_RL, size)
    wet_RS = torch.fft.irfft(spectrum_RN, size)[:, : rows_RS.shape[1]]
    return _replaced(samples_BS, rows_on_device_R, _zero_beyond_(wet_RS, lengths_B[rows_R]))


def add_noise(
    samples_BS: torch.Tensor,
    lengths_B: torch.Tensor,
    config: AugmentConfig,
    generator: torch.Generator,
    recorded_BS: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add noise to some rows: that of recorded_BS, or steady noise, from white to brown."""
    if recorded_BS is not None:
        rows_R = torch.nonzero(recorded_BS.any(1))[:, 0]
        noise_RS = to_float(recorded_BS[rows_R, : samples_BS.shape[1]].to(samples_BS.device))
        noise_RS = F.pad(noise_RS, (0, samples_BS.shape[1] - noise_RS.shape[1]))
        ratio_db = _uniform(config.noise_db, len(rows_R), generator)
        samples_BS = _mixed(samples_BS, lengths_B, rows_R, noise_RS, ratio_db)
    rows_R = _chosen_to_make(config, len(samples_BS), recorded_BS, generator)
    ratio_db = _uniform(config.noise_db, len(rows_R), generator)
    slopes = _uniform(config.noise_slope, len(rows_R), generator)
    if not len(rows_R):
        return samples_BS
    noise_RS = _coloured(slopes, samples_BS.shape[1], samples_BS.device, generator)
    return _mixed(samples_BS, lengths_B, rows_R, noise_RS, ratio_db)


def _coloured(slopes: torch.Tensor, num_samples: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Noise [R, S] whose power falls as 1 / frequency ** slope; nothing at 0 Hz."""
    size = _fft_size(max(2, num_samples))
    bins_N = torch.arange(size // 2 + 1, device=device, dtype=torch.float32)
    spectrum_RN = torch.view_as_complex(_normal((len(slopes), size // 2 + 1, 2), device, generator))
    spectrum_RN *= bins_N.clamp(min=1) ** (-small_to_device(slopes, device)[:, None] / 2)
    spectrum_RN[:, 0] = 0
    noise_RS: torch.Tensor = torch.fft.irfft(spectrum_RN, size)[:, :num_samples]
    return noise_RS


def _mixed(
    samples_BS: torch.Tensor,
    lengths_B: torch.Tensor,
    rows_R: torch.Tensor,
    noise_RS: torch.Tensor,
    ratio_db: torch.Tensor,
) -> torch.Tensor:
    """Add noise to `rows_R`, ratio_db below each row's mean power over its length."""
    device = samples_BS.device
    rows_on_device_R, rows_lengths = small_to_device(rows_R, device), lengths_B[rows_R]
    clean_RS, noise_RS = samples_BS[rows_on_device_R], _zero_beyond_(noise_RS, rows_lengths)
    counts_R = small_to_device(rows_lengths.clamp(min=1).float(), device)
    clean_R, noise_R = (rows.square().sum(1) / counts_R for rows in (clean_RS, noise_RS))
    gains_R = (clean_R / noise_R.clamp(min=_SILENT)).sqrt() * small_to_device(10 ** (-ratio_db / 20), device)
    return _replaced(samples_BS, rows_on_device_R, noise_RS.mul_(gains_R[:, None]).add_(clean_RS))


def change_gain(samples_BS: torch.Tensor, config: AugmentConfig, generator: torch.Generator) -> torch.Tensor:
    """Make every row louder or softer without clipping."""
    gains_B = small_to_device(10 ** (_uniform(config.gain_db, len(samples_BS), generator) / 20), samples_BS.device)
    if not samples_BS.shape[1]:
        return samples_BS
    min_B, max_B = samples_BS.aminmax(dim=1)
    peaks_B = torch.maximum(-min_B, max_B).clamp(min=_SILENT)
    return samples_BS * torch.minimum(gains_B, _PEAK / peaks_B)[:, None]


@torch.no_grad()
def mask_features(
    mel_BMT: torch.Tensor,
    lengths_B: torch.Tensor,
    config: AugmentConfig,
    generator: torch.Generator,
    is_normalised: bool = True,
) -> torch.Tensor:
    """SpecAugment: set bands and time spans to their mean, in a copy.

    The mean is 0 for normalised features, else each band's mean in its row. A mask's width is uniform from 0 to its share
    of the bands or of the row's frames.
    """
    batch, num_mels, num_frames = mel_BMT.shape
    bands = torch.full((batch,), num_mels)
    masked_BM = _random_spans(config.freq_masks, config.freq_mask_share, bands, num_mels, generator)
    masked_BT = _random_spans(config.time_masks, config.time_mask_share, lengths_B, num_frames, generator)
    device = mel_BMT.device
    masked_BMT = small_to_device(masked_BM, device)[:, :, None] | small_to_device(masked_BT, device)[:, None]
    if is_normalised:
        return mel_BMT.masked_fill(masked_BMT, 0.0)
    is_frame_BT = torch.arange(num_frames, device=device) < small_to_device(lengths_B, device)[:, None]
    counts_B = small_to_device(lengths_B.clamp(min=1), device)
    means_BM = mel_BMT.masked_fill(~is_frame_BT[:, None], 0.0).sum(2) / counts_B[:, None]
    return torch.where(masked_BMT & is_frame_BT[:, None], means_BM[:, :, None], mel_BMT)


def _random_spans(
    count: int, share: float, lengths_B: torch.Tensor, size: int, generator: torch.Generator
) -> torch.Tensor:
    """[B, size], True inside any of `count` spans, each within the length and at most `share` of it."""
    widest_B1 = (lengths_B * share).long()[:, None]
    drawn = torch.rand(2, len(lengths_B), count, generator=generator)
    widths = (drawn[0] * (widest_B1 + 1)).long()
    starts = (drawn[1] * (lengths_B[:, None] - widths + 1)).long()
    positions = torch.arange(size)
    inside = (positions >= starts[..., None]) & (positions < (starts + widths)[..., None])
    return inside.any(1)


def _chosen_to_make(
    config: AugmentConfig, batch: int, recorded_BS: torch.Tensor | None, generator: torch.Generator
) -> torch.Tensor:
    """Draw the rows that get made noise, so that with those that have a recorded one they come to the chance."""
    recorded_share = 0.0 if config.noise_manifest is None else RECORDED_SHARE
    chance = (1 - recorded_share) * config.noise_chance / (1 - recorded_share * config.noise_chance)
    rows_R = torch.nonzero(torch.rand(batch, generator=generator) < chance)[:, 0]
    return rows_R if recorded_BS is None else rows_R[~recorded_BS[rows_R].any(1)]


def _uniform(bounds: tuple[float, float], count: int, generator: torch.Generator) -> torch.Tensor:
    low, high = bounds
    return low + (high - low) * torch.rand(count, generator=generator)


def _normal(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Normal noise from a generator on the device that the host's generator seeds."""
    seed = int(torch.randint(1 << 62, (), generator=generator))
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed))


def _replaced(samples_BS: torch.Tensor, rows_on_device_R: torch.Tensor, rows_RS: torch.Tensor) -> torch.Tensor:
    replaced_BS = samples_BS.clone()
    replaced_BS[:, : rows_RS.shape[1]].index_copy_(0, rows_on_device_R, rows_RS)
    return replaced_BS


def _zero_beyond_(rows_RS: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    positions_S = torch.arange(rows_RS.shape[1], device=rows_RS.device)
    return rows_RS.masked_fill_(positions_S >= small_to_device(lengths_R, rows_RS.device)[:, None], 0.0)


def _fft_size(low: int) -> int:
    """Round up to one of four sizes an octave: the device caches a plan for each size."""
    step = 1 << max(0, (low - 1).bit_length() - 3)
    return -(-low // step) * step
