"""Silero's voice activity detector (extra `vad`): the speech probability of each short frame of a recording.

silero-vad's wheel contains the network, so nothing is downloaded. Of its forms, this one takes many chunks per call and
releases the interpreter lock meanwhile. It is opened by path, because importing the package changes torch's number of
threads. The recording is streamed in blocks, resampled to the network's 16 kHz.

Shapes: N chunks of 512 samples, S samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soxr

from fastscribe.audio.read import blocks
from fastscribe.errors import MissingExtra
from fastscribe.types import AudioInfo, Float32Array, Float64Array

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

SPEECH = 0.5  # lowest probability that counts as speech
SILENT = SPEECH / 2  # lowest probability that may be speech
_RATE = 16_000
_CHUNK = 512
_CONTEXT = 64  # samples of the previous chunk, repeated in front of each chunk
_CHUNKS_PER_CALL = 512
_ZERO = 1e-6  # of full scale: what resampling may make of digital silence
_NETWORK = "data/silero_vad_16k_sequence.onnx"
_NOT_INSTALLED = "--vad silero", "silero-vad 6.2.3 and onnxruntime", "vad"


def check_vad() -> None:
    """Raise MissingExtra if the extra is not installed."""
    _network()


@cache
def _network() -> InferenceSession:
    package = find_spec("silero_vad")
    path = Path(package.origin or "").parent / _NETWORK if package else None
    if path is None or not path.is_file():
        raise MissingExtra(*_NOT_INSTALLED)
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(*_NOT_INSTALLED) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # recordings run in parallel instead
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def speech_probability(audio: AudioInfo, frame_samples: int) -> Float64Array:
    """Return, for each frame, the speech probability of the 32 ms chunk that contains its middle; 0 for digital silence.

    Args:
        audio, frame_samples: As frame_energy().

    Raises:
        AudioError, MissingExtra: As read() and check_vad().
    """
    probabilities: Float64Array = np.concatenate([np.zeros(1), *_probabilities(_chunks(_resampled(audio)))])
    centres_s = (np.arange(-(-audio.num_samples // frame_samples)) + 0.5) * frame_samples / audio.sample_rate
    chunks = np.minimum(1 + (centres_s * _RATE / _CHUNK).astype(np.int64), len(probabilities) - 1)
    of_frames: Float64Array = probabilities[chunks]
    return of_frames


def _resampled(audio: AudioInfo) -> Iterator[Float32Array]:
    stream = soxr.ResampleStream(audio.sample_rate, _RATE, 1, dtype="float32", quality="HQ")
    for block_S in blocks(audio, 10 * audio.sample_rate):
        yield block_S if audio.sample_rate == _RATE else stream.resample_chunk(block_S)
    if audio.sample_rate != _RATE:
        yield stream.resample_chunk(np.empty(0, np.float32), last=True)


def _chunks(pieces: Iterator[Float32Array]) -> Iterator[Float32Array]:
    """Yield chunks [N, context + chunk]. Each row begins with the end of the previous one; the last is zero-padded."""
    rest_S: Float32Array = np.empty(0, np.float32)
    context_S: Float32Array = np.zeros(_CONTEXT, np.float32)
    for piece_S in pieces:
        rest_S = np.concatenate([rest_S, piece_S])
        full = len(rest_S) // _CHUNK * _CHUNK
        if full:
            yield _with_context(rest_S[:full], context_S)
            context_S, rest_S = rest_S[full - _CONTEXT : full], rest_S[full:]
    if len(rest_S):
        yield _with_context(np.pad(rest_S, (0, _CHUNK - len(rest_S))), context_S)


def _with_context(samples_S: Float32Array, context_S: Float32Array) -> Float32Array:
    padded_S = np.concatenate([context_S, samples_S])
    return np.lib.stride_tricks.sliding_window_view(padded_S, _CONTEXT + _CHUNK)[::_CHUNK]


def _probabilities(chunks: Iterator[Float32Array]) -> Iterator[Float32Array]:
    network = _network()
    h, c = np.zeros((1, 1, 128), np.float32), np.zeros((1, 1, 128), np.float32)
    for rows_NS in chunks:
        for first in range(0, len(rows_NS), _CHUNKS_PER_CALL):
            some_NS = np.ascontiguousarray(rows_NS[first : first + _CHUNKS_PER_CALL])
            probabilities, h, c = network.run(["speech_probs", "hn", "cn"], {"input": some_NS, "h": h, "c": c})
            yield np.where(np.abs(some_NS).max(axis=1) < _ZERO, 0.0, probabilities.reshape(-1)).astype(np.float32)
