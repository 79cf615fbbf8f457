"""On-demand list prices of machines with one GPU, read on 21 November 2026. Pure.

A row is listed only if the text at its source gives its price; `as_of` is the date that the text gives, None without one. A
CPU's name does not identify a machine, so there is none.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Price(NamedTuple):
    """`device`: words of the GPU's name in torch. The price is that of the whole machine."""

    offer: str
    device: str
    usd_per_hour: float
    source: str
    as_of: str | None = None

    @property
    def cited(self) -> str:
        dated = f" of {self.as_of}" if self.as_of else ""
        return f"{self.offer}, {self.source}{dated}, read {_READ_ON}"

    def fits(self, device_name: str) -> bool:
        """Return True if a GPU of this name is of this kind."""
        name, requested = words(device_name), words(self.device)
        return requested <= name and not (name & _OTHER_PRODUCTS) - requested


_OTHER_PRODUCTS = frozenset(("nvl", "mig", "grid", "laptop"))  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb" is a part of a GPU


def words(name: str) -> frozenset[str]:
    """ "NVIDIA A100-SXM4-80GB" -> nvidia, a100, sxm4, 80gb"""
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


_READ_ON = "2026-11-21"
_JOBS = "https://huggingface.co/docs/hub/jobs-pricing"
_SILYBENCH = "https://raw.githubusercontent.com/tgarg01/silybench-data/main/derived/csv/gpu_prices.csv"
_RECEIPTS = "https://raw.githubusercontent.com/datareceipts/data-receipts/main/109-gpu-pricing/vendors.json"
PRICES = (
    Price("Hugging Face Jobs Nvidia T4 small", "T4", 0.40, _JOBS),
    Price("Hugging Face Jobs 1x Nvidia L4", "L4", 0.80, _JOBS),
    Price("Hugging Face Jobs Nvidia A10G small", "A10G", 1.00, _JOBS),
    Price("Hugging Face Jobs 1x Nvidia L40S", "L40S", 1.80, _JOBS),
    Price("Hugging Face Jobs Nvidia A100 large", "A100 80GB", 2.50, _JOBS),
    Price("Hugging Face Jobs Nvidia H200", "H200", 5.00, _JOBS),
    Price("Lambda 1x H100 SXM", "H100 80GB HBM3", 4.29, _SILYBENCH, "2026-09-25"),
    Price("Lambda 1x H100 PCIe", "H100 PCIe", 3.29, _SILYBENCH, "2026-09-25"),
    Price("Lambda 1x A100 SXM 40GB", "A100 SXM4 40GB", 1.99, _SILYBENCH, "2026-09-25"),
    Price("RunPod H100 NVL, Secure Cloud", "H100 NVL", 3.19, _RECEIPTS, "2026-11-09"),
)

MAX_USD = 1e6  # an hour; anything above is a typing error


def list_price(device_name: str) -> Price | None:
    """Return the price of a GPU; None for another device."""
    return next((price for price in PRICES if price.fits(device_name)), None)


def price_of(device_name: str, price_per_hour: float | None, num_devices: int = 1) -> tuple[float | None, str | None]:
    """Return USD an hour and its source; None: unknown.

    Args:
        device_name: Name of a GPU; several kinds, or a CPU, have no listed price.
        price_per_hour: The user's price of the whole machine, which comes first.
        num_devices: GPUs in use. The listed price of one is multiplied by it.
    """
    if price_per_hour is not None:
        return price_per_hour, "--price-per-hour"
    price = list_price(device_name)
    if price is None:
        return None, None
    times = f"{num_devices} x " if num_devices > 1 else ""
    return num_devices * price.usd_per_hour, times + price.cited
