from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.prices import PRICES, list_price, price_of
from fastscribe.pipeline.stats import usd_per_audio_hours


def test_prices_have_sources() -> None:
    for price in PRICES:
        assert price.source.startswith("https://")
        assert price.usd_per_hour > 0
        assert price.source in price.cited and price.offer in price.cited
        [*dates, read_on] = re.findall(r" of (\d{4}-\d\d-\d\d)|read (\d{4}-\d\d-\d\d)$", price.cited)
        assert all(as_of <= read_on[1] for as_of, _ in dates) and bool(dates) == (price.as_of is not None)
    assert len({price.offer for price in PRICES}) == len(PRICES)


@pytest.mark.parametrize(
    ("name", "usd_per_hour"),
    [
        ("Tesla T4", 0.40),
        ("NVIDIA L4", 0.80),
        ("NVIDIA A10G", 1.00),
        ("NVIDIA L40S", 1.80),
        ("NVIDIA A100-SXM4-80GB", 2.50),
        ("NVIDIA A100 80GB PCIe", 2.50),
        ("NVIDIA A100-SXM4-40GB", 1.99),
        ("NVIDIA H100 80GB HBM3", 4.29),
        ("NVIDIA H100 PCIe", 3.29),
        ("NVIDIA H100 NVL", 3.19),
        ("NVIDIA H200", 5.00),
        ("NVIDIA A10", None),
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("GRID T4-16Q", None),
        ("AMD EPYC", None),
        ("Intel(R) Xeon(R) Platinum 8488C", None),
        ("", None),
    ],
)
def test_gpu_matched_by_words(name: str, usd_per_hour: float | None) -> None:
    found = list_price(name)
    assert (found.usd_per_hour if found else None) == usd_per_hour
    assert price_of(name, None) == ((usd_per_hour, found.cited) if found else (None, None))


def test_user_price_first() -> None:
    assert price_of("NVIDIA H200", 3.0) == (3.0, "--price-per-hour")
    assert price_of("NVIDIA H200", 0.0) == (0.0, "--price-per-hour")


@given(st.floats(0.01, 1e5), st.floats(0, 1e3), st.floats(0.1, 1e7))
def test_cost(rtfx: float, usd: float, hours: float) -> None:
    assert usd_per_audio_hours(rtfx, usd, hours) == pytest.approx(hours / rtfx * usd)
    assert usd_per_audio_hours(rtfx, None, hours) is None
    assert usd_per_audio_hours(0.0, usd, hours) is None
