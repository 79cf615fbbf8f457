"""The number format of families/blocks/fp8.py: e4m3 of Micikevicius et al. 2022."""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
MAX_VALUE = 448.0
MIN_MAXIMUM = 1e-30  # avoids division by zero for a row of zeros
