"""Turn what a Python caller gives (paths, bytes, file objects, arrays, tensors) into a stream of Sources.

Lazy: a caller's iterator is advanced one input at a time. Data are taken over (arrays are copied) before it is advanced again,
so it may reuse its memory. An input that cannot be used becomes a Failure of stage "input", and the rest goes on.

Dimensions: S samples, C channels.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fastscribe.audio.failures import printable, relative_id, to_failure
from fastscribe.audio.input_names import Repeats
from fastscribe.audio.inputs import expand
from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.audio.probe import SAMPLE_RATES
from fastscribe.config import whole_number
from fastscribe.errors import AudioError
from fastscribe.types import AnyArray, Failure, File, SampleArray, Samples, Source

if TYPE_CHECKING:
    import torch

    Data: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | AnyArray | torch.Tensor

_BARE_RATE = 16_000  # Hz, of samples without a rate: as whisper, faster-whisper and onnx-asr take them


@dataclass(frozen=True, eq=False)
class Audio:
    """One recording for Transcriber.transcribe(), with what its data do not say.

    Args:
        data: A path or anything else that names recordings; an encoded file as bytes or as a file object opened in binary
            mode; or samples as a NumPy array [S] or [S, C], or as a torch tensor [S] or [C, S] on any device. Samples are
            int16, int32, int8, uint8, or floats in [-1, 1].
        sample_rate: Samples a second in Hz; for arrays and tensors only. None: 16,000, for samples of one dimension.
        key: Any object that names the recording; results carry it. None: the path of a file, the position among the inputs,
            from 0, of other data.
        offset_s: Where to begin, in seconds.
        duration_s: Seconds to transcribe from there; None or 0: all that follows.
        track: Audio track of a container, from 0; None: as the option `track`.
    """

    data: Data
    sample_rate: int | None = None
    key: Any = None
    offset_s: float | None = None
    duration_s: float | None = None
    track: int | None = None


if TYPE_CHECKING:
    # Samples with their rate may be a tuple, and a row of a Hugging Face dataset is a dict.
    Input: TypeAlias = Audio | Data | tuple[AnyArray | torch.Tensor, int] | Mapping[str, Any]
    Inputs: TypeAlias = Input | Iterable[Input]


def all_of(inputs: Inputs) -> Iterable[Any]:
    """Return what Transcriber.transcribe() is given, one input or several, as an iterable of inputs."""
    return [inputs] if is_one(inputs) else inputs  # type: ignore[return-value]


def sources(
    inputs: Iterable[Any], left_out: Counter[str], repeats: Repeats | None = None
) -> Iterator[Source | Failure]:
    """Yield every recording of the inputs.

    Args:
        inputs: Each is an input as Transcriber.transcribe() takes it, or a Source or Failure, which stays as it is.
        left_out: As for expand().
        repeats: As for expand().
    """
    for position, item in enumerate(inputs):
        yield from _sources(item, position, left_out, repeats)
        del item  # the iterator may make the next one in its place


def is_one(inputs: object) -> bool:
    """Return True for one input, False for an iterable of inputs."""
    if isinstance(inputs, tuple):
        if len(inputs) != 2 or not _is_array(inputs[0]):
            return False
        return np.isscalar(inputs[1]) or (_is_array(inputs[1]) and inputs[1].ndim == 0)
    single = (str, os.PathLike, bytes, bytearray, memoryview, Audio, Mapping)
    return isinstance(inputs, single) or hasattr(inputs, "read") or _is_array(inputs) or not hasattr(inputs, "__iter__")


def _sources(
    item: object, position: int, left_out: Counter[str], repeats: Repeats | None
) -> Iterator[Source | Failure]:
    if isinstance(item, (Source, Failure)):
        yield item
        return
    name = f"input {position}"
    key: Any = position
    try:
        audio, channels_first = _as_audio(item)
        is_path = isinstance(audio.data, (str, os.PathLike))
        key = position if audio.key is None and not is_path else audio.key
        name = _name(audio, name)
        if is_path:
            yield from _named(audio, left_out, repeats)
        else:
            file = _file(audio, name, channels_first)
            yield _cut(audio, Source(name, file, relative_id(name), given_key=key))
    except Exception as error:  # any that a caller's object raises: one bad input becomes a Failure
        yield to_failure(Source(name, "", relative_id(name), given_key=key), "input", error)


def _as_audio(item: Any) -> tuple[Audio, bool]:
    """Return an input as an Audio, and whether its array would be [C, S]."""
    if isinstance(item, tuple) and len(item) == 2:
        if item[1] is None:
            raise ValueError("(array, None): the second is the sample rate in Hz")
        return Audio(*item), _is_tensor(item[0])
    audio = item if isinstance(item, Audio) else Audio(item)
    if not _is_row(audio.data):
        return audio, _is_tensor(audio.data)
    row: Any = audio.data
    if not isinstance(row, Mapping):
        row = {name: row[name] for name in ("array", "sampling_rate")}
    if row.get("array") is not None:
        array = row["array"] if _is_array(row["array"]) else np.asarray(row["array"])
        if row.get("sampling_rate") is None:
            raise ValueError("a dict of samples without its sampling_rate")
        return replace(audio, data=array, sample_rate=row["sampling_rate"]), True
    data = row.get("path") if row.get("bytes") is None else row["bytes"]
    if data is None:
        raise AudioError("", "a dict without audio: it needs array and sampling_rate, or bytes, or path")
    return replace(audio, data=data), False


def _is_row(data: object) -> bool:
    """Return True for the audio of a row of a Hugging Face dataset: a dict, or an object that decodes when it is asked."""
    is_decoder = hasattr(data, "__getitem__") and not hasattr(data, "__len__") and not hasattr(data, "read")
    return isinstance(data, Mapping) or (is_decoder and not _is_array(data))


def _name(audio: Audio, otherwise: str) -> str:
    """Return the name for reports: a key that is text, a path, or a file object's own."""
    path = audio.data if isinstance(audio.data, (str, os.PathLike)) else getattr(audio.data, "name", None)
    for name in (audio.key, path):
        if isinstance(name, (str, os.PathLike)) and os.fspath(name):
            return printable(os.fsdecode(name))
    return otherwise


def _named(audio: Audio, left_out: Counter[str], repeats: Repeats | None) -> Iterator[Source | Failure]:
    """Yield the recordings that a path names."""
    assert isinstance(audio.data, (str, os.PathLike))
    if audio.sample_rate is not None:
        raise AudioError("", "sample_rate is for arrays; a file states its own")
    if audio.key is not None or (audio.offset_s, audio.duration_s, audio.track) != (None, None, None):
        repeats = None  # an input of its own: another key or another part of a file that came before
    for found in expand([os.fsdecode(audio.data)], left_out=left_out, repeats=repeats):
        keyed = found if audio.key is None else replace(found, given_key=audio.key)
        yield keyed if isinstance(keyed, Failure) else _cut(audio, keyed)


def _cut(audio: Audio, source: Source) -> Source:
    """Return the source with the part and the track that the caller asks for."""
    if (audio.offset_s, audio.duration_s, audio.track) == (None, None, None):
        return source
    if source.row is not None:
        raise AudioError(source.path, "a manifest's rows have offset, duration and track of their own")
    offset_s, duration_s = _seconds("offset_s", audio.offset_s), _seconds("duration_s", audio.duration_s)
    if audio.track is not None and (not isinstance(audio.track, Integral) or audio.track < 0):
        raise AudioError(source.path, f"track is {audio.track!r}, not a number from 0")
    suffix, track = f"@{round(offset_s * 1000)}" if offset_s else "", whole_number(audio.track)
    duration_s = duration_s or None  # 0 as in a list's row
    return replace(source, id=source.id + suffix, offset_s=offset_s, duration_s=duration_s, track=track)


def _seconds(name: str, value: float | None) -> float | None:
    """Return a length of time as float: a product of NumPy's small numbers would overflow."""
    if value is None:
        return None
    if not (isinstance(value, Real) and 0 <= value < math.inf):
        raise AudioError("", f"{name} is {value!r:.40}, not a length of time")
    return float(value)


def _file(audio: Audio, name: str, channels_first: bool) -> File:
    """Return where the data are, which have no path."""
    data: Any = audio.data
    if _is_array(data):
        return Samples(_to_samples(_array(data), channels_first), _rate(audio.sample_rate, data.ndim), name)
    is_content = isinstance(data, (bytes, bytearray, memoryview))
    if not is_content and not hasattr(data, "read"):
        kind = type(data).__name__
        raise AudioError(name, f"{kind} is no recording: give a path, bytes, a file object, or an array with its rate")
    if audio.sample_rate is not None:
        raise AudioError(name, "sample_rate is for arrays; a file states its own")
    if is_content:
        return EncodedBytes(bytes(data), name)
    if isinstance(data, io.TextIOBase):
        raise AudioError(name, "a file that was opened as text: open it with mode 'rb'")
    can_seek = data.seekable() if hasattr(data, "seekable") else hasattr(data, "seek")
    return FileObject(data, name) if can_seek else EncodedBytes(data.read(), name)


def _is_tensor(data: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def _is_array(data: object) -> bool:
    return isinstance(data, np.ndarray) or _is_tensor(data)


def _array(data: Any) -> AnyArray:
    """Return an array or a tensor as an array on the host."""
    if isinstance(data, np.ndarray):
        return data
    tensor = data.detach().cpu()
    array: AnyArray = (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # NumPy has no bfloat16
    return array


def _rate(sample_rate: object, num_dimensions: int) -> int:
    if sample_rate is None:
        if num_dimensions == 1:
            return _BARE_RATE
        problem = f"{num_dimensions} dimensions without their rate: samples alone are 16 kHz mono, of one dimension; else give"
        raise ValueError(f"{problem} (array, sample_rate) or Audio(array, sample_rate)")
    try:
        rate: int = int(sample_rate)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        rate = 0
    if rate != sample_rate or rate not in SAMPLE_RATES:
        raise ValueError(f"a sample rate of {sample_rate} Hz: give a whole number from 1,000 to 1,000,000")
    return rate


def _to_samples(array: AnyArray, channels_first: bool) -> SampleArray:
    """Copy a caller's samples into the form that the readers use.

    Args:
        array: [S] or [S, C]; int16, other integers of 8 or 32 bits (scaled to [-1, 1)), or floats in [-1, 1].
        channels_first: True: two-dimensional arrays are [C, S].

    Returns:
        A copy [S, C], because the caller may use the memory again: int16 stays int16, all else is float32.

    Raises:
        ValueError: another dtype, another number of dimensions, no channels, or surely the other order of dimensions; one line.
    """
    if array.ndim not in (1, 2):
        raise ValueError(f"an array of {array.ndim} dimensions: give [samples], or one with a dimension for channels")
    shaped = array[:, None] if array.ndim == 1 else array.T if channels_first else array
    if shaped.shape[1] == 0:
        raise ValueError(f"an array of shape {array.shape}: it holds no channels")
    if shaped.shape[1] > shaped.shape[0] > 0:
        order = "[channels, samples]" if channels_first else "[samples, channels]"
        raise ValueError(f"an array of shape {array.shape}: it is {order} here, so this one must be transposed")
    kind, bits = shaped.dtype.kind, 8 * shaped.dtype.itemsize
    if (kind, bits) == ("i", 16):
        return np.array(shaped, np.int16, order="C")
    if kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):  # the readers report infinite samples
            return np.array(shaped, np.float32, order="C")
    if (kind, bits) not in (("u", 8), ("i", 8), ("i", 32)):
        raise ValueError(f"an array of {array.dtype}: give int16, int32, uint8, int8, or floats in [-1, 1]")
    centred = shaped.astype(np.float32)
    if kind == "u":
        centred -= 128
    return np.asarray(centred / np.float32(2.0 ** (bits - 1)), np.float32)
