"""--dtype auto and fastest: what a processor's instruction sets decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fastscribe._system import processors
from fastscribe.errors import UsageError
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline import dtype_choice
from fastscribe.pipeline.dtype_choice import choose_dtype, emulated_bf16
from scripts.shapes import SHAPES

CPU = torch.device("cpu")
WIDE, CONVOLUTIONAL = SHAPES["parakeet-tdt-0.6b"].encoder, SHAPES["quartznet15x5"].encoder
assert isinstance(WIDE, EncoderConfig)
PLAIN = SHAPES["granite-speech-5.0-470m-turboctc"].encoder
NARROW = replace(WIDE, d_model=192, ff_hidden=768)
SETS = {
    "old laptop": {"avx2"},
    "laptop": {"avx2", "avx_vnni"},
    "Cascade Lake": {"avx2", "avx512f", "avx512_vnni"},
    "Cooper Lake": {"avx2", "avx512f", "avx512_vnni", "avx512_bf16"},
    "Zen 4": {"avx2", "avx512f", "avx512_vnni", "avx512_bf16"},
    "Sapphire Rapids": {"avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8"},
    "ARM": {"asimddp"},
    "ARM with bf16": {"asimddp", "i8mm", "bf16"},
}


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that gives the processor the instruction sets of that name, all of which work."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)

    def has(name: str) -> None:
        monkeypatch.setattr(processors, "_listed", lambda: {*SETS[name], "fpu", "sse2"})
        monkeypatch.setattr(dtype_choice, "is_amd", lambda: name.startswith("Zen"))
        problem = None if processors.has_native_int8() or processors.has_avx2() else "no AVX2"
        monkeypatch.setattr(dtype_choice, "_int8_problem", lambda: problem)

    return has


@pytest.mark.parametrize(
    ("name", "auto", "fastest", "without_loops", "narrow"),
    [
        ("old laptop", "fp32", "int8", "fp32", "fp32"),
        ("laptop", "fp32", "int8", "int8", "fp32"),
        ("Cascade Lake", "fp32", "int8", "int8", "fp32"),
        ("Cooper Lake", "fp32", "int8", "int8", "fp32"),
        ("Zen 4", "bf16", "bf16", "bf16", "bf16"),
        ("Sapphire Rapids", "bf16", "int8", "bf16", "bf16"),
        ("ARM", "fp32", "fp32", "fp32", "fp32"),
        ("ARM with bf16", "fp32", "fp32", "fp32", "fp32"),
    ],
)
def test_what_a_processor_gets(
    name: str, auto: str, fastest: str, without_loops: str, narrow: str, processor: Callable[[str], None]
) -> None:
    processor(name)
    said: list[str] = []
    assert choose_dtype("auto", CPU, WIDE, said.append) == choose_dtype("auto", CPU, CONVOLUTIONAL, said.append) == auto
    assert choose_dtype("fastest", CPU, WIDE, said.append) == fastest
    assert choose_dtype("fastest", CPU, PLAIN, said.append) == without_loops
    assert choose_dtype("fastest", CPU, CONVOLUTIONAL, said.append) == auto  # it has no matrices for 8 bits
    assert choose_dtype("auto", CPU, NARROW, said.append) == "fp32"
    assert choose_dtype("fastest", CPU, NARROW, said.append) == narrow
    assert not said


def test_emulated_bf16_is_said(processor: Callable[[str], None]) -> None:
    said: list[str] = []
    for name in ("Cooper Lake", "Zen 4", "ARM with bf16", "laptop"):
        processor(name)
        assert not said
        assert choose_dtype("fp32", CPU, WIDE, said.append) == "fp32"
        assert choose_dtype("bf16", CPU, WIDE, said.append) == "bf16"
    [line] = said
    assert line.startswith("--dtype bf16: emulated") and "fp32 is faster" in line and emulated_bf16() is not None


def test_a_limit_of_onednn_takes_instructions_away(
    monkeypatch: pytest.MonkeyPatch, processor: Callable[[str], None]
) -> None:
    processor("Sapphire Rapids")
    assert processors.has_native_bf16() and processors.has_native_int8()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2_vnni")
    assert processors.instructions() == {"avx2", "avx_vnni"} and not processors.has_native_bf16()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not processors.has_native_int8()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "ALL")
    assert processors.instructions() == SETS["Sapphire Rapids"]


def test_fastest_says_which_8_bits_it_does_without(
    processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if the hardware has them."""
    heard, gpu = RefusedPaths(lambda line: None), torch.device("cuda", 0)
    processor("old laptop")
    monkeypatch.setattr(dtype_choice, "_int8_problem", lambda: "numba cannot be loaded (no file)")
    assert choose_dtype("auto", CPU, WIDE, heard) == choose_dtype("fastest", CPU, CONVOLUTIONAL, heard) == "fp32"
    monkeypatch.setattr(dtype_choice, "_fp8_problem", lambda device: "fp8 needs triton, which this torch lacks")
    monkeypatch.setattr("fastscribe.families.blocks.fp8.fp8_hardware_problem", lambda device: "an old card")
    assert choose_dtype("fastest", gpu, WIDE, heard) == "bf16" and heard.reasons == {}
    assert choose_dtype("fastest", CPU, WIDE, heard) == "fp32"
    monkeypatch.setattr("fastscribe.families.blocks.fp8.fp8_hardware_problem", lambda device: None)
    assert choose_dtype("auto", gpu, WIDE, heard) == choose_dtype("fastest", gpu, CONVOLUTIONAL, heard) == "bf16"
    assert heard.reasons.keys() == {"int8"}
    assert choose_dtype("fastest", gpu, WIDE, heard) == "bf16"
    assert heard.reasons == {
        "int8": "numba cannot be loaded (no file)",
        "fp8": "fp8 needs triton, which this torch lacks",
    }


def test_wrong_dtypes() -> None:
    for name, reason in (("fp7", "not one of auto, fastest"), ("fp8", "needs an NVIDIA GPU")):
        with pytest.raises(UsageError, match=reason):
            choose_dtype(name, CPU, NARROW, print)
