"""Log-mel features on the model's device, a whole batch at once, always in float32.

Follows NeMo 3.0's FilterbankFeatures in eval mode: pre-emphasis, samples beyond the true length zeroed, centred STFT with
constant zero padding and a symmetric window, power spectrum, Slaney mel filters, log with a guard, normalisation over the
valid frames. A row has floor(samples / hop) valid frames and is zero beyond them. There is no dither and no pad_to, which
are for training. Other front ends differ by their config: transformers' GraniteSpeech5FeatureExtractor has a periodic window,
HTK's mel scale, and reflects the ends of a recording, here each row's own end in any batch.

Mel bands without signal (silence, or the upper half of telephone audio) have a standard deviation below the 1e-5 floor.
Their features are the scaled rounding error of the mean, and models react to it. Therefore `_sums` adds each row separately,
in the reference's order for a single recording, and padding and neighbours never change a row.

On a CPU torch.stft computes the spectrum, bitwise equal to the reference. Elsewhere it would need a new FFT plan for nearly
every batch: plans are keyed by the number of frames, take a millisecond of host time each, and accumulate outside torch's
memory. There the padded rows are concatenated and split into blocks of _FRAMES_PER_BLOCK frames, which share one plan and one
matrix product shape. This also bounds the memory for rows of any length, and no batch changes a row. The products do not use
TF32 (cuda/no_tf32.py).

Shapes: B batch, S samples, T mel frames, M mels, K frequency bins, F frames of one block, N samples of a frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import FeaturesConfig
from fastscribe.cuda.device import full_float32
from fastscribe.types import Features, Float32Array, Float64Array

_WINDOWS: dict[str, Callable[..., torch.Tensor]] = {
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
    "bartlett": torch.bartlett_window,
    "none": lambda length, periodic: torch.ones(length),
}
_STD_FLOOR = 1e-5
# Of the spectrum on a CPU, 11 minutes. Larger chunks are slower and need memory beyond the budget.
_BYTES_PER_CHUNK = 1 << 28
_FRAMES_PER_BLOCK = 1 << 15  # on other devices: 67 MB of samples, about 50 us of work


class LogMel(nn.Module):
    """Samples [B, S] (int16 or float32) and lengths [B] to Features."""

    window_N: torch.Tensor
    filters_MK: torch.Tensor

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("window_N", _window(config), persistent=False)
        self.register_buffer("filters_MK", torch.from_numpy(mel_filters(config)), persistent=False)

    @torch.inference_mode()
    def forward(
        self, samples_BS: torch.Tensor, lengths_B: torch.Tensor, gain_B1: torch.Tensor | None = None
    ) -> Features:
        """Compute the features; each row's samples are multiplied by its gain, if any."""
        frame_lengths_B = self.config.num_frames(lengths_B)
        num_frames = self.config.num_frames(samples_BS.shape[1])
        mel_BMT = self._log_mel(samples_BS, lengths_B, gain_B1)
        valid_BT = torch.arange(mel_BMT.shape[2], device=mel_BMT.device) < frame_lengths_B[:, None]
        mel_BMT = self._normalise(mel_BMT, valid_BT[:, None], frame_lengths_B)
        # The STFT's last frame may be beyond the longest row. At least one frame stays.
        return Features(mel_BMT[:, :, : max(1, num_frames)], frame_lengths_B)

    def _log_mel(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor, gain_B1: torch.Tensor | None) -> torch.Tensor:
        """Return log-mel frames [B, M, T] without normalisation; on a CPU, rows of 11 minutes or more in pieces.

        A piece begins some frames early and ends as many late, so that the ones that stay see the samples that they see of
        the whole.
        """
        config, num_samples = self.config, samples_BS.shape[1]
        num_frames, per_piece = num_samples // config.hop_length + 1, _BYTES_PER_CHUNK // (config.n_fft * 8)
        is_whole = num_frames <= per_piece or not _uses_stft(samples_BS) or config.dither or config.edges == "reflect"
        if is_whole:
            return self._log_mel_of_piece(samples_BS, lengths_B, gain_B1)
        around = math.ceil((config.n_fft // 2 + 1) / config.hop_length)  # the sample before counts in the pre-emphasis
        mel_BMT = samples_BS.new_empty(len(samples_BS), config.num_mels, num_frames, dtype=torch.float32)
        for begin in range(0, num_frames, per_piece):
            end = min(begin + per_piece, num_frames)
            early = min(begin, around)
            start, stop = (begin - early) * config.hop_length, min(num_samples, (end + around) * config.hop_length)
            lengths = (lengths_B - start).clamp(0, stop - start)
            piece_BMT = self._log_mel_of_piece(samples_BS[:, start:stop], lengths, gain_B1)
            mel_BMT[:, :, begin:end] = piece_BMT[:, :, early : early + end - begin]
        return mel_BMT

    def _log_mel_of_piece(
        self, samples_BS: torch.Tensor, lengths_B: torch.Tensor, gain_B1: torch.Tensor | None
    ) -> torch.Tensor:
        if samples_BS.dtype == torch.int16:
            samples_BS = samples_BS.float() / 32768.0
        if gain_B1 is not None:
            samples_BS = samples_BS * gain_B1
        if self.config.dither:
            samples_BS = self._dithered(samples_BS, lengths_B)
        frame_lengths_B = self.config.num_frames(lengths_B)
        num_frames = self.config.num_frames(samples_BS.shape[1])
        samples_BS = self._pre_emphasise(samples_BS, lengths_B)
        if self.config.edges == "reflect":
            samples_BS = self._with_reflected_ends(samples_BS, lengths_B, frame_lengths_B, num_frames)
        return self._log_(self._mel(samples_BS))

    def _mel(self, samples_BS: torch.Tensor) -> torch.Tensor:
        """Return mel frames [B, M, T], computed like the reference or in blocks."""
        if not _uses_stft(samples_BS):
            return self._mel_in_blocks(samples_BS)
        bytes_per_row = samples_BS.shape[1] // self.config.hop_length * self.config.n_fft * 8
        rows_per_chunk = max(1, _BYTES_PER_CHUNK // max(1, bytes_per_row))
        return torch.cat([self._mel_by_stft(rows_BS) for rows_BS in samples_BS.split(rows_per_chunk)])

    def _dithered(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        """Add normal noise, as transformers' CohereAsrFeatureExtractor: the same for all recordings of a length.

        The noise is drawn on the CPU on every device. A GPU is waited for, because the lengths are the seeds.
        """
        samples_BS, generator = samples_BS.clone(), torch.Generator()
        for samples_S, length in zip(samples_BS, lengths_B.tolist(), strict=True):
            noise_S = torch.randn(length, generator=generator.manual_seed(length))
            samples_S[:length] += self.config.dither * noise_S.to(samples_S.device)
        return samples_BS

    def _pre_emphasise(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        if self.config.preemphasis is None:
            return samples_BS
        emphasised_BS = samples_BS.clone()
        emphasised_BS[:, 1:] -= self.config.preemphasis * samples_BS[:, :-1]
        positions_S = torch.arange(samples_BS.shape[1], device=samples_BS.device)
        return emphasised_BS.masked_fill_(positions_S >= lengths_B[:, None], 0.0)

    def _with_reflected_ends(
        self, samples_BS: torch.Tensor, lengths_B: torch.Tensor, frame_lengths_B: torch.Tensor, num_frames: int
    ) -> torch.Tensor:
        """Return samples [B, S + n_fft] with half a frame before each row and after it, mirrored at its first and last sample.

        A row ends at its last frame's centre at the earliest. Rows shorter than half a frame have no valid mirror image.
        """
        half, hop = self.config.n_fft // 2, self.config.hop_length
        ends_B1 = torch.maximum(lengths_B, (frame_lengths_B - 1) * hop + 1)[:, None]
        num_samples = max(samples_BS.shape[1], (num_frames - 1) * hop + 1)
        padded_BS = F.pad(samples_BS, (half, num_samples - samples_BS.shape[1] + half))
        padded_BS[:, :half] = padded_BS[:, half + 1 : 2 * half + 1].flip(1)
        after_N = torch.arange(half, device=samples_BS.device)
        mirrored_BN = (half + ends_B1 - 2 - after_N).clamp(min=0)
        return padded_BS.scatter_(1, half + ends_B1 + after_N, padded_BS.gather(1, mirrored_BN))

    def _mel_by_stft(self, samples_BS: torch.Tensor) -> torch.Tensor:
        config = self.config
        spectrum_BKT = torch.stft(
            samples_BS,
            config.n_fft,
            config.hop_length,
            window=self.window_N,
            center=config.edges == "zeros",
            pad_mode="constant",
            return_complex=True,
        )
        return self.filters_MK @ self._energy(spectrum_BKT)

    def _mel_in_blocks(self, samples_BS: torch.Tensor) -> torch.Tensor:
        """Concatenate the rows, compute a frame at every hop, and drop the frames that extend into the next row."""
        config, (batch, num_samples) = self.config, samples_BS.shape
        hop, half = config.hop_length, config.n_fft // 2
        if config.edges == "reflect":
            half, num_samples = 0, num_samples - config.n_fft
        hops_per_row = math.ceil((num_samples + config.n_fft) / hop)
        blocks = math.ceil(batch * hops_per_row / _FRAMES_PER_BLOCK)
        concatenated = samples_BS.new_zeros(blocks * _FRAMES_PER_BLOCK * hop + config.n_fft)
        rows_BS = concatenated[: batch * hops_per_row * hop].view(batch, -1)
        rows_BS[:, half : half + samples_BS.shape[1]] = samples_BS
        frames_FN = concatenated.unfold(0, config.n_fft, hop)[: blocks * _FRAMES_PER_BLOCK]
        with full_float32(samples_BS.device):
            spectra = (torch.fft.rfft(block_FN * self.window_N) for block_FN in frames_FN.split(_FRAMES_PER_BLOCK))
            mel_FM = torch.cat([self._energy(spectrum_FK) @ self.filters_MK.t() for spectrum_FK in spectra])
        mel_BTM = torch.unflatten(mel_FM[: batch * hops_per_row], 0, (batch, hops_per_row))
        return mel_BTM[:, : num_samples // hop + 1].transpose(1, 2)

    def _energy(self, spectrum: torch.Tensor) -> torch.Tensor:
        """Compute the power; overwrites the spectrum."""
        real, imaginary = torch.view_as_real(spectrum).square_().unbind(-1)
        energy = real + imaginary  # a sum over the last dimension takes more than twice as long
        return energy if self.config.mag_power == 2.0 else energy.pow_(self.config.mag_power / 2)

    def _log_(self, mel_BMT: torch.Tensor) -> torch.Tensor:
        if not self.config.log:
            return mel_BMT
        if self.config.log_guard == "add":
            return mel_BMT.add_(self.config.log_guard_value).log_()
        mel_BMT.clamp_(min=self.config.log_guard_value)
        return mel_BMT.log10_() if self.config.normalize == "peak" else mel_BMT.log_()

    def _normalise(self, mel_BMT: torch.Tensor, valid_B1T: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        if self.config.normalize == "peak":
            assert self.config.peak_range is not None
            peak_B11 = mel_BMT.masked_fill(~valid_B1T, -torch.inf).amax((1, 2), keepdim=True)
            above_BMT = torch.maximum(mel_BMT, peak_B11 - self.config.peak_range)
            return above_BMT.div_(4).add_(1).masked_fill_(~valid_B1T, 0.0)
        mel_BMT.masked_fill_(~valid_B1T, 0.0)
        if self.config.normalize == "none":
            return mel_BMT
        over_bands = self.config.normalize == "all_features"
        count_B11 = lengths_B[:, None, None] * (self.config.num_mels if over_bands else 1)
        mean = _sums(mel_BMT, lengths_B, over_bands) / count_B11.clamp(min=1)
        mel_BMT.sub_(mean).masked_fill_(~valid_B1T, 0.0)
        squares = mel_BMT.square().sum((1, 2) if over_bands else 2, keepdim=True, dtype=torch.float64)
        std = (squares / (count_B11 - 1).clamp(min=1)).sqrt().float()
        return mel_BMT.div_(std.add_(_STD_FLOOR))


def _uses_stft(samples: torch.Tensor) -> bool:
    return samples.device.type == "cpu"


def _window(config: FeaturesConfig) -> torch.Tensor:
    """Return the window, centred in a frame [N]."""
    before = (config.n_fft - config.win_length) // 2
    after = config.n_fft - config.win_length - before
    return F.pad(_WINDOWS[config.window](config.win_length, periodic=config.periodic_window), (before, after))


def _sums(mel_BMT: torch.Tensor, lengths_B: torch.Tensor, over_bands: bool) -> torch.Tensor:
    """Return sums over each row's valid frames, [B, M, 1] or [B, 1, 1].

    A CPU adds each row's valid frames and the STFT's one masked frame beyond them: the last bits of a float32 sum depend on
    the number of terms, zeros included, and these bits matter (see the file's header). The loop makes two small calls per
    recording. Other devices add in float64, which does not depend on padding either, but lacks the reference's rounding.
    """
    if over_bands or not _uses_stft(mel_BMT):
        axes = (1, 2) if over_bands else 2
        return mel_BMT.sum(axes, keepdim=True, dtype=torch.float64).float()
    rows = zip(mel_BMT, lengths_B.tolist(), strict=True)
    return torch.stack([row_MT[:, : length + 1].sum(1, keepdim=True) for row_MT, length in rows])


def mel_filters(config: FeaturesConfig) -> Float32Array:
    """Return triangular filters [M, K] on HTK's mel scale or Slaney's (Auditory Toolbox; as librosa.filters.mel)."""
    bins_hz = np.linspace(0, config.sample_rate / 2, config.n_fft // 2 + 1)
    edges_hz = mel_edges(config)
    rising = (bins_hz - edges_hz[:-2, None]) / np.diff(edges_hz)[:-1, None]
    falling = (edges_hz[2:, None] - bins_hz) / np.diff(edges_hz)[1:, None]
    filters_MK = np.maximum(0, np.minimum(rising, falling))
    if config.mel_norm == "slaney":
        filters_MK = filters_MK.astype(np.float32) * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]
    return np.asarray(filters_MK, np.float32)


def mel_edges(config: FeaturesConfig) -> Float64Array:
    """Return frequencies in Hz [M + 2]: band m begins at the one of index m, peaks at the next and ends at the one after."""
    to_mel, to_hz = _SCALES[config.mel_scale]
    return to_hz(np.linspace(to_mel(config.low_hz), to_mel(config.high_hz), config.num_mels + 2, dtype=np.float64))


# The Slaney scale is linear (200/3 Hz per mel) up to 1 kHz and logarithmic (27 steps per factor of 6.4) above.
_HZ_PER_MEL, _KNEE_HZ = 200.0 / 3, 1000.0
_KNEE_MEL, _LOG_STEP = _KNEE_HZ / _HZ_PER_MEL, np.log(6.4) / 27.0


def _hz_to_mel(hz: float) -> float:
    return hz / _HZ_PER_MEL if hz < _KNEE_HZ else _KNEE_MEL + float(np.log(hz / _KNEE_HZ)) / _LOG_STEP


def _mel_to_hz(mel: Float64Array) -> Float64Array:
    return np.where(mel < _KNEE_MEL, mel * _HZ_PER_MEL, _KNEE_HZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL)))


def _hz_to_htk(hz: float) -> float:
    return 2595.0 * math.log10(1.0 + hz / 700.0)


def _htk_to_hz(mel: Float64Array) -> Float64Array:
    hz: Float64Array = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    return hz


_SCALES: dict[str, tuple[Callable[[float], float], Callable[[Float64Array], Float64Array]]] = {
    "slaney": (_hz_to_mel, _mel_to_hz),
    "htk": (_hz_to_htk, _htk_to_hz),
}
