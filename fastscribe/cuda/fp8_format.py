"""The number format of cuda/fp8.py: e4m3 of Micikevicius et al. 2022."""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
SMALLEST = 1e-30  # a row of zeros still needs a scale to divide by
