"""--dtype auto and fastest: what the processor's instruction sets propose, what a measurement overrules, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastscribe._system import processors
from fastscribe._system.user_cache import cache_folder
from fastscribe.errors import UsageError
from fastscribe.families.blocks.int8 import int8_problem
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline import dtype_choice, dtype_rates
from fastscribe.pipeline.dtype_choice import candidates, choose_dtype, emulated_bf16
from fastscribe.pipeline.dtype_rates import Widths, cpu_rates, measure, widths_of
from scripts.shapes import SHAPES

CPU = torch.device("cpu")
WIDE, CONVOLUTIONAL = SHAPES["parakeet-tdt-0.6b"].encoder, SHAPES["quartznet15x5"].encoder
assert isinstance(WIDE, EncoderConfig)
NARROW = replace(WIDE, d_model=192, ff_hidden=768)
SETS = {
    "old laptop": {"avx2"},
    "laptop": {"avx2", "avx_vnni"},
    "Cascade Lake": {"avx2", "avx512f", "avx512_vnni"},
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
        problem = None if processors.has_native_int8() or processors.has_avx2() else "no AVX2"
        monkeypatch.setattr(dtype_choice, "_int8_problem", lambda: problem)

    return has


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[tuple[int, int], tuple[str, ...]]]:
    """Return the measurements that are made; they find fp32 fastest by a third, then bf16, then int8."""
    made: list[tuple[tuple[int, int], tuple[str, ...]]] = []
    rates = {"fp32": 400.0, "bf16": 300.0, "int8": 200.0}

    def found(widths: tuple[int, int], dtypes: Sequence[str]) -> dict[str, float]:
        made.append((widths, tuple(dtypes)))
        return {dtype: rates[dtype] for dtype in dtypes}

    monkeypatch.setattr(dtype_rates, "measure", found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


@pytest.mark.parametrize(
    ("name", "auto", "fastest"),
    [
        ("old laptop", "fp32", "int8 fp32"),
        ("laptop", "fp32", "int8 fp32"),
        ("Cascade Lake", "fp32", "int8 fp32"),
        ("Zen 4", "bf16 fp32", "bf16 int8 fp32"),
        ("Sapphire Rapids", "bf16 fp32", "bf16 int8 fp32"),
        ("ARM", "fp32", "fp32"),
        ("ARM with bf16", "fp32 bf16", "fp32 bf16"),
    ],
)
def test_proposals(name: str, auto: str, fastest: str, processor: Callable[[str], None]) -> None:
    processor(name)
    assert candidates("auto", 1024) == tuple(auto.split())
    assert candidates("fastest", 1024) == tuple(fastest.split())
    assert candidates("auto", 192) == ("fp32",)
    assert "int8" not in candidates("fastest", 1024, has_matrices=False)
    assert (emulated_bf16() is None) == ("bf16" in auto)


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


def test_a_measurement_is_made_once_and_said_once(processor: Callable[[str], None], measurements: list) -> None:
    processor("Zen 4")
    said: list[str] = []
    for name in ("auto", "auto", "fastest"):
        assert choose_dtype(name, CPU, WIDE, said.append) == "fp32"
    assert measurements == [((1024, 4096, True), ("bf16", "int8", "fp32"))]
    assert said == [
        "--dtype auto: fp32; measured once for matrices of 1024 x 4096: fp32 400, bf16 300, int8 200 GFLOP/s a thread"
    ]
    assert choose_dtype("auto", CPU, CONVOLUTIONAL, said.append) == "fp32" and len(said) == 2
    assert measurements[1][1] == ("bf16", "fp32")
    processor("Sapphire Rapids")
    choose_dtype("auto", CPU, WIDE, said.append)
    assert len(measurements) == 3


def test_nothing_is_measured_without_a_choice(processor: Callable[[str], None], measurements: list) -> None:
    said: list[str] = []
    processor("Zen 4")
    assert choose_dtype("auto", CPU, NARROW, said.append) == "fp32"
    for dtype in ("fp32", "bf16"):
        assert choose_dtype(dtype, CPU, WIDE, said.append) == dtype
    processor("ARM")
    for name in ("auto", "fastest"):
        assert choose_dtype(name, CPU, WIDE, said.append) == "fp32"
    assert not measurements and not said
    assert choose_dtype("bf16", CPU, WIDE, said.append) == "bf16"
    [line] = said
    assert line.startswith("--dtype bf16: emulated") and "fp32 is faster" in line


def test_fastest_says_which_8_bits_it_does_without(
    processor: Callable[[str], None], measurements: list, monkeypatch: pytest.MonkeyPatch
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


def test_a_dtype_must_be_faster_by_a_margin(processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """So that noise does not make two machines of a kind choose differently."""
    processor("Zen 4")
    for fp32, wanted in ((113.0, "bf16"), (117.0, "fp32")):
        found = dtype_rates.Rates({"bf16": 100.0, "int8": 90.0, "fp32": fp32})
        monkeypatch.setattr(dtype_rates, "cpu_rates", lambda *_, found=found: found)
        assert choose_dtype("auto", CPU, WIDE, print) == wanted
    found = dtype_rates.Rates({"fp32": 1.0})  # bf16 was hopeless
    assert choose_dtype("auto", CPU, WIDE, print) == "fp32"


@pytest.mark.parametrize("content", ["", "[1]", '{"x": ', '{"x": {"bf16": "fast"}}'])
def test_damaged_rates_are_measured_again(content: str, measurements: list) -> None:
    path = cache_folder() / "dtype-rates.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert cpu_rates(Widths(64, 64), ("fp32", "bf16")).is_new
    assert not cpu_rates(Widths(64, 64), ("fp32", "bf16")).is_new
    assert list(json.loads(path.read_text()).values()) == [{"fp32": 400.0, "bf16": 300.0}]


def test_without_a_cache_the_instructions_decide(
    processor: Callable[[str], None], measurements: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each run would measure anew, and might find another dtype than the one before it."""
    processor("Zen 4")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said: list[str] = []
    assert choose_dtype("auto", CPU, WIDE, said.append) == "bf16"
    assert not measurements
    [line] = said
    assert "not measured" in line and str(tmp_path / "file") in line


@pytest.mark.parametrize("with_loops", [False, True])
def test_measurement_leaves_no_trace(with_loops: bool) -> None:
    dtypes = ["fp32", "bf16", *(["int8"] if int8_problem() is None else [])]
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    found = measure(Widths(64, 96, with_loops), dtypes)
    assert found and set(found) <= set(dtypes) and min(found.values()) > 0
    assert torch.get_num_threads() == threads and torch.equal(torch.random.get_rng_state(), state)


def test_hopeless_dtypes_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    def time(layer: object, rows: int, width: int, dtype: str) -> float:
        calls.append((dtype, rows))
        return rows * (1.0 if dtype == "bf16" else 0.01)

    monkeypatch.setattr(dtype_rates, "_time", time)
    assert measure(Widths(32, 32), ("fp32", "bf16")).keys() == {"fp32"}
    assert max(rows for dtype, rows in calls if dtype == "bf16") == dtype_rates._FIRST_ROWS


def test_widths() -> None:
    assert widths_of(WIDE) == (1024, 4096, True) and widths_of(CONVOLUTIONAL) == (512, 512, False)


def test_wrong_dtypes() -> None:
    for name, reason in (("fp7", "not one of auto, fastest"), ("fp8", "needs an NVIDIA GPU")):
        with pytest.raises(UsageError, match=reason):
            choose_dtype(name, CPU, NARROW, print)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(dtype_rates, "cache_folder", no_home)
    with pytest.raises(dtype_rates.CannotKeep, match="home"):
        dtype_rates.cpu_rates(Widths(256, 1024), ("fp32", "bf16"))
