"""On-demand list prices of machines, and the cost of an hour of audio. Pure.

A row is listed only if the text at `source` gives its price; some of these texts quote the seller's page. `as_of` is the
date that the text gives for the price, None without one; `read_on` is the day it was read. Anything else is unknown. A run's
report takes the first row for its GPU. None of the texts names the CPUs of the instances; these are common knowledge of
2026, and prices based on them are marked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """`device`: words of a GPU's name in torch, or of a CPU's name in Linux.

    A CPU's words name the one model by which its machines are known (Sapphire Rapids: 8488C at AWS, 8481C at Google; Ice
    Lake: 8375C at AWS), because another generation has another speed. A CPU without a generation is not listed.
    """

    cloud: str
    instance: str
    device: str
    num_gpus: int  # 0: a CPU instance
    num_vcpus: int | None
    usd_per_hour: float  # of the whole machine
    source: str
    read_on: str
    as_of: str | None

    @property
    def offer(self) -> str:
        return f"{self.cloud} {self.instance}"

    @property
    def cited(self) -> str:
        dated = f" of {self.as_of}" if self.as_of else ""
        return f"{self.offer}, {self.source}{dated}, read {self.read_on}"

    def fits(self, device_name: str, num_vcpus: int | None) -> bool:
        """Return True if a device is of this kind: a GPU by its name (`num_vcpus` None), a CPU by name and vCPUs."""
        name, requested = words(device_name), words(self.device)
        if not requested <= name or (name & _OTHER_PRODUCTS) - requested:
            return False
        return num_vcpus is None if self.num_gpus else num_vcpus == self.num_vcpus


_OTHER_PRODUCTS = frozenset(("nvl", "mig", "grid", "laptop"))  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb" is a part of a GPU


def words(name: str) -> frozenset[str]:
    """ "NVIDIA A100-SXM4-80GB" -> nvidia, a100, sxm4, 80gb"""
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


# Source, date in the text, and from it: cloud, instance, device, GPUs, vCPUs, USD an hour.
_Rows = tuple[tuple[str, str, str, int, int | None, float], ...]
_READ_ON = "2026-11-21"
_ENDPOINTS = "https://github.com/huggingface/hf-endpoints-documentation/blob/05c783d3a783ef5d4f3a67c1c29672d0a4f61de1"
_AWS = "https://github.com/skypilot-org/skypilot-catalog/blob/001367d22a0033fac286a8c71aeac7109e431bcb/catalogs/v7"
_RECEIPTS = "https://raw.githubusercontent.com/datareceipts/data-receipts/main/109-gpu-pricing"
_READ: tuple[tuple[str, str | None, _Rows], ...] = (
    (
        "https://huggingface.co/docs/hub/jobs-pricing",
        None,
        (
            ("Hugging Face Jobs", "Nvidia T4 small", "T4", 1, 4, 0.40),
            ("Hugging Face Jobs", "1x Nvidia L4", "L4", 1, 8, 0.80),
            ("Hugging Face Jobs", "Nvidia A10G small", "A10G", 1, 4, 1.00),
            ("Hugging Face Jobs", "1x Nvidia L40S", "L40S", 1, 8, 1.80),
            ("Hugging Face Jobs", "Nvidia A100 large", "A100 80GB", 1, 12, 2.50),
            ("Hugging Face Jobs", "Nvidia H200", "H200", 1, 23, 5.00),
        ),
    ),
    (
        f"{_ENDPOINTS}/docs/source/support/pricing.mdx",
        None,
        (
            ("Hugging Face Endpoints", "aws nvidia-t4 x1", "T4", 1, None, 0.50),
            ("Hugging Face Endpoints", "gcp nvidia-l4 x1", "L4", 1, None, 0.70),
            ("Hugging Face Endpoints", "gcp nvidia-a100 x1", "A100 80GB", 1, None, 3.60),
            ("Hugging Face Endpoints", "aws intel-spr x2", "Xeon 8488C", 0, 2, 0.067),
            ("Hugging Face Endpoints", "aws intel-spr x4", "Xeon 8488C", 0, 4, 0.134),
            ("Hugging Face Endpoints", "aws intel-spr x8", "Xeon 8488C", 0, 8, 0.268),
            ("Hugging Face Endpoints", "aws intel-spr x16", "Xeon 8488C", 0, 16, 0.536),
            ("Hugging Face Endpoints", "gcp intel-spr x2", "Xeon 8481C", 0, 2, 0.100),
            ("Hugging Face Endpoints", "gcp intel-spr x4", "Xeon 8481C", 0, 4, 0.200),
            ("Hugging Face Endpoints", "gcp intel-spr x8", "Xeon 8481C", 0, 8, 0.400),
        ),
    ),
    (
        f"{_AWS}/aws/vms.csv",  # us-east-1
        None,
        (
            ("AWS", "g4dn.xlarge", "T4", 1, 4, 0.526),
            ("AWS", "c6i.large", "Xeon 8375C", 0, 2, 0.085),
            ("AWS", "c6i.xlarge", "Xeon 8375C", 0, 4, 0.17),
        ),
    ),
    (
        "https://www.factualminds.com/blog/amazon-ec2-on-demand-pricing-instance-families-2026/",  # us-east-1
        "2026-06-17",
        (("AWS", "g5.xlarge", "A10G", 1, None, 1.006),),
    ),
    (
        "https://raw.githubusercontent.com/tgarg01/silybench-data/main/derived/csv/gpu_prices.csv",
        "2026-09-25",
        (
            ("Lambda", "1x H100 SXM", "H100 80GB HBM3", 1, None, 4.29),
            ("Lambda", "1x H100 PCIe", "H100 PCIe", 1, None, 3.29),
            ("Lambda", "1x A100 SXM 40GB", "A100 SXM4 40GB", 1, None, 1.99),
            ("Nebius", "HGX H100", "H100 80GB HBM3", 1, None, 3.85),
            ("Nebius", "HGX H200", "H200", 1, None, 4.50),
            ("Nebius", "L40S (Intel)", "L40S", 1, None, 1.55),
            ("RunPod", "H200, Secure Cloud", "H200", 1, None, 4.59),
            ("RunPod", "L40S, Secure Cloud", "L40S", 1, None, 1.09),
        ),
    ),
    (
        f"{_RECEIPTS}/vendors.json",
        "2026-11-09",
        (
            ("RunPod", "H100 SXM, Secure Cloud", "H100 80GB HBM3", 1, None, 3.99),
            ("RunPod", "H100 NVL, Secure Cloud", "H100 NVL", 1, None, 3.19),
            ("RunPod", "A100 SXM, Secure Cloud", "A100 SXM4 80GB", 1, None, 1.79),
        ),
    ),
    (
        f"{_RECEIPTS}/hyperscalers.json",  # us-east-1, eastus
        "2026-11-09",
        (
            ("Azure", "Standard_NC24ads_A100_v4", "A100 80GB PCIe", 1, None, 3.673),
            ("Azure", "Standard_NC40ads_H100_v5", "H100 NVL", 1, None, 6.98),
            ("AWS", "p4d.24xlarge", "A100 SXM4 40GB", 8, None, 21.957642),
            ("AWS", "p4de.24xlarge", "A100 SXM4 80GB", 8, None, 27.44705),
            ("AWS", "p5.48xlarge", "H100 80GB HBM3", 8, None, 55.04),
        ),
    ),
)
PRICES = tuple(Price(*row, source, _READ_ON, as_of) for source, as_of, rows in _READ for row in rows)


MAX_USD = 1e6  # an hour; anything above is a typing error


def list_price(device_name: str) -> Price | None:
    """Return the price of a GPU for a run's report. None for a CPU, whose name does not identify the machine."""
    return next((price for price in PRICES if price.num_gpus == 1 and price.fits(device_name, None)), None)


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
