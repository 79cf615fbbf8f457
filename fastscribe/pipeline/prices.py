"""On-demand list prices of machines, read on 21 November 2026. Pure.

A row is listed only if the text at its source gives its price; `as_of` is the date that the text gives, None without one. A
GPU has one row, which a run's report takes. A CPU's words name the one model by which its machines are known (Sapphire Rapids:
8488C at AWS, 8481C at Google; Ice Lake: 8375C at AWS; common knowledge, not in the texts), because another generation has
another speed.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Price(NamedTuple):
    """`device`: words of a GPU's name in torch, or of a CPU's name in Linux. The price is that of the whole machine."""

    offer: str
    device: str
    num_vcpus: int | None  # of a CPU instance; None: the instance has one such GPU
    usd_per_hour: float
    source: str
    as_of: str | None = None

    @property
    def cited(self) -> str:
        dated = f" of {self.as_of}" if self.as_of else ""
        return f"{self.offer}, {self.source}{dated}, read {_READ_ON}"

    def fits(self, device_name: str, num_vcpus: int | None) -> bool:
        """Return True if a device is of this kind: a GPU by its name (`num_vcpus` None), a CPU by name and vCPUs."""
        name, requested = words(device_name), words(self.device)
        if not requested <= name or (name & _OTHER_PRODUCTS) - requested:
            return False
        return num_vcpus == self.num_vcpus


_OTHER_PRODUCTS = frozenset(("nvl", "mig", "grid", "laptop"))  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb" is a part of a GPU


def words(name: str) -> frozenset[str]:
    """ "NVIDIA A100-SXM4-80GB" -> nvidia, a100, sxm4, 80gb"""
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


_READ_ON = "2026-11-21"
_JOBS = "https://huggingface.co/docs/hub/jobs-pricing"
_ENDPOINTS = (
    "https://github.com/huggingface/hf-endpoints-documentation/blob/05c783d3a783ef5d4f3a67c1c29672d0a4f61de1"
    "/docs/source/support/pricing.mdx"
)
_AWS = "https://github.com/skypilot-org/skypilot-catalog/blob/001367d22a0033fac286a8c71aeac7109e431bcb/catalogs/v7/aws/vms.csv"
_SILYBENCH = "https://raw.githubusercontent.com/tgarg01/silybench-data/main/derived/csv/gpu_prices.csv"
_RECEIPTS = "https://raw.githubusercontent.com/datareceipts/data-receipts/main/109-gpu-pricing/vendors.json"
PRICES = (
    Price("Hugging Face Jobs Nvidia T4 small", "T4", None, 0.40, _JOBS),
    Price("Hugging Face Jobs 1x Nvidia L4", "L4", None, 0.80, _JOBS),
    Price("Hugging Face Jobs Nvidia A10G small", "A10G", None, 1.00, _JOBS),
    Price("Hugging Face Jobs 1x Nvidia L40S", "L40S", None, 1.80, _JOBS),
    Price("Hugging Face Jobs Nvidia A100 large", "A100 80GB", None, 2.50, _JOBS),
    Price("Hugging Face Jobs Nvidia H200", "H200", None, 5.00, _JOBS),
    Price("Lambda 1x H100 SXM", "H100 80GB HBM3", None, 4.29, _SILYBENCH, "2026-09-25"),
    Price("Lambda 1x H100 PCIe", "H100 PCIe", None, 3.29, _SILYBENCH, "2026-09-25"),
    Price("Lambda 1x A100 SXM 40GB", "A100 SXM4 40GB", None, 1.99, _SILYBENCH, "2026-09-25"),
    Price("RunPod H100 NVL, Secure Cloud", "H100 NVL", None, 3.19, _RECEIPTS, "2026-11-09"),
    Price("Hugging Face Endpoints aws intel-spr x2", "Xeon 8488C", 2, 0.067, _ENDPOINTS),
    Price("Hugging Face Endpoints aws intel-spr x4", "Xeon 8488C", 4, 0.134, _ENDPOINTS),
    Price("Hugging Face Endpoints aws intel-spr x8", "Xeon 8488C", 8, 0.268, _ENDPOINTS),
    Price("Hugging Face Endpoints aws intel-spr x16", "Xeon 8488C", 16, 0.536, _ENDPOINTS),
    Price("Hugging Face Endpoints gcp intel-spr x2", "Xeon 8481C", 2, 0.100, _ENDPOINTS),
    Price("Hugging Face Endpoints gcp intel-spr x4", "Xeon 8481C", 4, 0.200, _ENDPOINTS),
    Price("Hugging Face Endpoints gcp intel-spr x8", "Xeon 8481C", 8, 0.400, _ENDPOINTS),
    Price("AWS c6i.large", "Xeon 8375C", 2, 0.085, _AWS),
    Price("AWS c6i.xlarge", "Xeon 8375C", 4, 0.17, _AWS),
)

MAX_USD = 1e6  # an hour; anything above is a typing error


def list_price(device_name: str) -> Price | None:
    """Return the price of a GPU for a run's report. None for a CPU, whose name does not identify the machine."""
    return next((price for price in PRICES if price.fits(device_name, None)), None)


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
