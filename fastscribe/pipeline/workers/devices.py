"""What `--devices` names: all GPUs, some of them by number, or parts of the processors.

A GPU that is named several times gets as many processes, each with a model of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fastscribe._system.processors import num_gpus, usable_processors
from fastscribe.errors import UsageError

_FORMS = "all, numbers of GPUs such as 0,2 or 0,0, or cpu:N for N processes"


@dataclass(frozen=True)
class Device:
    """A device that gets a process.

    Attributes:
        name: "cuda:2" or "cpu:0", for messages and the report.
        kind: "cuda" or "cpu", as its own process names it.
        processors: Processors to compute with and to read audio on.
        variables: Environment variables that its process needs.
        memory_share: The part of a GPU's memory that its process may take.
        number: That of the process, if it is one of several on its device; else 0.
    """

    name: str
    kind: str
    processors: int
    variables: Mapping[str, str]
    memory_share: float = 1.0
    number: int = 0

    @property
    def process_name(self) -> str:
        return f"process {self.number} of {self.name}" if self.number else f"the process of {self.name}"


def parse_devices(text: str) -> tuple[Device, ...]:
    """Return the devices that `--devices` names.

    Raises:
        UsageError: The text is no such name, or a device is not there.
    """
    if text == "all" or re.fullmatch(r"(cuda:)?[0-9]+(,(cuda:)?[0-9]+)*", text):
        return _gpus(text)
    found = re.fullmatch(r"cpu:([0-9]+)", text)
    if found is None:
        raise UsageError(f"--devices {text}: not {_FORMS}")
    number, processors = int(found[1]), usable_processors()
    if not 1 <= number <= processors:
        possible = (
            "there is 1 processor" if processors == 1 else f"from 1 to {processors} processes have a processor each"
        )
        raise UsageError(f"--devices cpu:{number}: {possible} here")
    return split_processors(number, processors)


def split_processors(number: int, processors: int) -> tuple[Device, ...]:
    """Return devices that share some processors."""
    shares = [processors // number + (index < processors % number) for index in range(number)]
    return tuple(
        Device(f"cpu:{index}", "cpu", share, {"OMP_NUM_THREADS": str(share), "MKL_NUM_THREADS": str(share)})
        for index, share in enumerate(shares)
    )


def _gpus(text: str) -> tuple[Device, ...]:
    count = num_gpus()
    if not count:
        raise UsageError(
            f"--devices {text}: no CUDA device is visible here: cpu:N is for processors; fastscribe doctor shows what is here"
        )
    numbers = list(range(count)) if text == "all" else [int(one.removeprefix("cuda:")) for one in text.split(",")]
    for number in numbers:
        if number >= count:
            visible = f"{count} are visible, 0 to {count - 1}" if count > 1 else "only device 0 is visible"
            raise UsageError(
                f"--devices {text}: there is no CUDA device {number}: {visible} (the numbers count from 0)"
            )
    share = max(1, usable_processors() // len(numbers))
    return tuple(
        Device(
            f"cuda:{number}",
            "cuda",
            share,
            {"CUDA_VISIBLE_DEVICES": _visible_name(number)},
            memory_share=1 / numbers.count(number),
            number=numbers[: place + 1].count(number) if numbers.count(number) > 1 else 0,
        )
        for place, number in enumerate(numbers)
    )


def _visible_name(number: int) -> str:
    """Return how CUDA_VISIBLE_DEVICES names a GPU, so that a process sees no other one and takes no memory of it."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return visible[number] if number < len(visible) and visible[number] else str(number)
