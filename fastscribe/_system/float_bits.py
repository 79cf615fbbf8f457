"""float32, float16 and bfloat16 in functions for numba, which has no bfloat16: 16-bit values are uint16.

Nothing here is decorated: each user compiles the functions for its machine, and tests call them as they are. All are plain
arithmetic without branches, so that loops over them vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # they sum to ln 2; the first has few bits
_MIN_EXPONENT = np.float32(-87.0)  # e to this is about the least normal float32
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_SHRINK, _GROW = np.float32(2.0**-112), np.float32(2.0**112)  # between float16's exponents and float32's
_MIN_OVERFLOW = np.float32(65520.0)  # rounds to infinity in float16


def same_float32(value: Any) -> Any:
    return value


def widen_bfloat16(bits: Any) -> Any:
    """The upper half of a float32."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def narrow_bfloat16(value: Any) -> Any:
    """Rounds to nearest, ties to even."""
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


def widen_float16(bits: Any) -> Any:
    """Exact, including subnormals and infinities; without a branch, so that it vectorises."""
    magnitude = np.uint32(np.uint32(bits) & np.uint32(0x7FFF)) << np.uint32(13)
    sign = np.uint32(np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16)
    grown = np.uint32(np.float32(np.uint32(magnitude).view(np.float32) * _GROW).view(np.uint32))
    infinite = np.uint32(magnitude) | np.uint32(0x7F800000)
    widened = infinite if magnitude >= np.uint32(0x0F800000) else grown
    return np.uint32(np.uint32(widened) | np.uint32(sign)).view(np.float32)


def narrow_float16(value: Any) -> Any:
    """Rounds to nearest, ties to even; subnormals kept, infinity from 65520 on."""
    sign = np.uint32(np.uint32(np.float32(value).view(np.uint32)) & np.uint32(0x80000000)) >> np.uint32(16)
    magnitude = np.float32(abs(np.float32(value)))
    shrunk = np.uint32(np.float32(magnitude * _SHRINK).view(np.uint32))
    odd = np.uint32(shrunk >> np.uint32(13)) & np.uint32(1)
    rounded = np.uint32(np.uint32(shrunk + np.uint32(0xFFF) + odd) >> np.uint32(13))
    finite = np.uint32(rounded) if magnitude < _MIN_OVERFLOW else np.uint32(0x7C00)
    not_a_number = np.uint32(0x7E00) if magnitude != magnitude else finite
    return np.uint16(np.uint32(not_a_number) | np.uint32(sign))


def bounded_exponential(x: Any) -> Any:
    """e**x in float32 for -87 <= x <= 87, within 2 units in the last place."""
    power = np.float32(np.floor(np.float32(x * _LOG2_E + _HALF)))
    r = np.float32(np.float32(x - power * _LN2_HIGH) - power * _LN2_LOW)
    series = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)  # Cephes' expf
    series = series * r + np.float32(8.3334519073e-3)
    series = series * r + np.float32(4.1665795894e-2)
    series = series * r + np.float32(1.6666665459e-1)
    series = series * r + np.float32(5.0000001201e-1)
    series = series * r * r + r + _ONE
    scale = np.int32(np.int32(np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(series * scale)


def exponential(x: Any) -> Any:
    """e**x in float32 for x <= 0, within 2 units in the last place; 0 below -87."""
    power = np.float32(bounded_exponential(_MIN_EXPONENT if x < _MIN_EXPONENT else np.float32(x)))
    return np.float32(0.0) if x < _MIN_EXPONENT else power


def order_key(value: Any) -> Any:
    """Map a float32 to an int32 of the same order: integer maxima vectorise, float maxima do not."""
    bits = np.float32(value).view(np.int32)
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


def value_of_key(key: Any) -> Any:
    """Map an order_key back to its float32."""
    bits = np.int32(np.int32(key) ^ np.int32(np.int32(np.int32(key) >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return bits.view(np.float32)


STORED = {"float32": "float32", "bfloat16": "uint16"}  # numpy's type of an array by torch's, as loops get it
READERS = {
    "float32": (same_float32, same_float32),
    "bfloat16": (widen_bfloat16, narrow_bfloat16),
    "float16": (widen_float16, narrow_float16),
}


def as_numpy(tensor: Any) -> Any:
    """View the memory of a contiguous tensor on the CPU; 16-bit floats as uint16."""
    assert tensor.is_contiguous()
    tensor = tensor.detach()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def float32_copy(tensor: Any) -> Any:
    """Return a tensor's values as numpy's float32, in memory of their own: the tensor's may be a file's."""
    return np.array(tensor.detach().float().contiguous().numpy())
