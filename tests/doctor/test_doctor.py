"""`fastscribe doctor` says what a run would find, and goes on past every broken part."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fastscribe._system import processors
from fastscribe._system.processors import may_gain_from_bf16, usable_processors
from fastscribe.cli import _report_error, app
from fastscribe.doctor import Check, command, hardware, packages
from fastscribe.errors import UsageError
from fastscribe.families.blocks.int8 import int8_problem
from fastscribe.fast_paths import PathName
from tests.conftest import ROOT
from tests.test_project import PYPROJECT


def examined() -> dict[str, Check]:
    return {check.name: check for check in command.examine()}


@pytest.fixture(scope="module")
def here() -> Mapping[str, Check]:
    return examined()


def test_facts_are_those_of_a_run(here: Mapping[str, Check]) -> None:
    assert here["processor"].facts["usable"] == usable_processors()
    assert (here["bf16"].status == "ok") == may_gain_from_bf16()
    assert here["dtypes"].facts.keys() == {"auto", "fastest"}
    assert (here["int8"].status == "ok") == (int8_problem() is None)
    assert (here["gpu"].status == "ok") == torch.cuda.is_available()
    assert here["torch"].facts["version"] == torch.__version__
    assert "FLAC" in here["audio files"].facts["formats"] and "mov" in here["video and m4a"].facts["demuxers"]
    extras = set(metadata.metadata("fastscribe").get_all("Provides-Extra") or ())
    assert extras == {name.removeprefix("extra ") for name in here if name.startswith("extra ")}


@pytest.mark.parametrize(
    ("has", "bf16", "int8"),
    [
        ({"sse4_2"}, "emulated: this processor has none of AVX512-BF16", None),
        ({"avx2"}, "emulated", "through AVX2, with fp32 beside it"),
        ({"avx2", "avx_vnni"}, "emulated", "native (AVX-VNNI), with fp32 beside it"),
        ({"avx512f", "avx512_bf16", "amx_bf16", "amx_int8"}, "native (AVX512-BF16, AMX-BF16)", "with bf16 beside it"),
        ({"asimddp", "i8mm", "bf16"}, "BF16 (ARM): --dtype auto takes fp32, as no such machine was measured", None),
    ],
)
def test_slow_paths_are_named(has: set[str], bf16: str, int8: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(processors, "_listed", lambda: has)
    monkeypatch.setattr("fastscribe.families.blocks.int8.int8_problem", lambda: None if int8 else "none of AVX2")
    assert bf16 in hardware.bf16().finding
    assert (int8 or "none of AVX2") in hardware.int8().finding


def test_the_dtype_of_large_models_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(processors, "_listed", lambda: {"avx2", "avx512_bf16"})
    for is_amd, wanted in ((True, "auto takes bf16, fastest bf16: AVX512-BF16 of AMD"), (False, "auto takes fp32, ")):
        monkeypatch.setattr("fastscribe.pipeline.dtype_choice.is_amd", lambda is_amd=is_amd: is_amd)
        assert wanted in hardware.dtypes().finding


@pytest.mark.parametrize(("vectors", "packs", "line"), [("DEFAULT", True, "no vector"), ("AVX2", False, "cannot pack")])
def test_slow_kernels_of_torch(vectors: str, packs: bool, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_listed", lambda: {"avx2"})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr("fastscribe.families.blocks.forms.can_pack", lambda dtype: packs)
    check = hardware.torch_kernels()
    assert check.status == "missing" and line in check.finding


@pytest.mark.parametrize(
    ("variable", "value", "setting", "status"),
    [
        ("NUMBA_DISABLE_JIT", "1", ("DISABLE_JIT", 1), "problem"),
        ("NUMBA_CPU_NAME", "generic", None, "missing"),
        ("NUMBA_OPT", "0", ("OPT", 0), "missing"),
    ],
)
def test_slow_loops(variable: str, value: str, setting: Any, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    if setting is not None:  # numba has read its environment
        monkeypatch.setattr(f"numba.core.config.{setting[0]}", setting[1])
    check = hardware.cpu_loops()
    assert check.status == status and variable in check.finding and check.fix == f"unset {variable}"


def test_every_extra_has_a_purpose() -> None:
    assert packages._PURPOSES.keys() == PYPROJECT["project"]["optional-dependencies"].keys()


def test_only_broken_things_fail(here: Mapping[str, Check]) -> None:
    """This machine runs the tests, so nothing is broken; what is missing has a command, or no command could add it."""
    assert not [check for check in here.values() if check.status == "problem"]
    assert all(check.fix is None for check in here.values() if check.status == "ok")


def test_json_and_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check("a", "missing", "slow", refused={"triton": "no compiler"}),
        Check("b", "problem", "broken", "pip install b"),
    ]
    monkeypatch.setattr("fastscribe.doctor.command.examine", lambda: iter(checks))
    broken = CliRunner().invoke(app, ["doctor", "--json"])
    document = json.loads(broken.output)
    assert broken.exit_code == 1
    assert list(document) == ["fastscribe", "problems", "refused", "checks"]
    assert document["problems"] == 1 and document["refused"] == {"triton": "no compiler"}
    assert document["checks"][1] == {"name": "b", "status": "problem", "finding": "broken",
                                                     "fix": "pip install b", "facts": {}}  # fmt: skip
    shown = CliRunner().invoke(app, ["doctor"])
    assert "refused fast path: triton: no compiler" in shown.output
    assert shown.exit_code == 1 and "PROBLEM  b" in shown.output and "fix it: pip install b" in shown.output
    checks.pop()
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


@pytest.fixture
def unimportable(monkeypatch: pytest.MonkeyPatch) -> Any:
    def without(name: str, error: Exception) -> None:
        real = builtins.__import__

        def fails(module: str, *rest: Any) -> Any:
            if module.partition(".")[0] == name:
                raise error
            return real(module, *rest)

        monkeypatch.setattr(builtins, "__import__", fails)

    return without


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        ("torch", "torch", OSError("libcudart.so.13: cannot open shared object file")),
        ("soundfile", "audio files", OSError("sndfile library not found")),
        ("av", "video and m4a", ImportError("DLL load failed")),
        ("psutil", "memory", ImportError("No module named psutil")),
        ("packaging", "packages", ImportError("No module named packaging")),
        ("huggingface_hub", "model cache", ValueError("HF_HUB_DOWNLOAD_TIMEOUT=ten")),
    ],
)
def test_broken_packages_are_lines(module: str, name: str, error: Exception, unimportable: Any) -> None:
    unimportable(module, error)
    checks = examined()
    assert checks[name].status == "problem" and str(error).split()[0] in checks[name].finding
    assert checks["processor"].status == "ok" and len(checks) > 15
    if module == "torch":
        assert checks["gpu"].finding == "not known while torch cannot be imported"
        assert "--force-reinstall torch" in (checks["torch"].fix or "")


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    for function in ("requires", "metadata"):
        monkeypatch.setattr(metadata, function, refuse)
    check = packages.required()
    assert check.status == "problem" and check.finding.endswith(f"runs from {ROOT} without being installed")
    assert check.fix is not None and check.fix.endswith(f"pip install {ROOT}")
    assert not list(packages.extras())


def test_a_pyav_of_another_interface_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TypeError("open() got an unexpected keyword argument")

    monkeypatch.setattr("av.open", refuse)
    check = packages.containers
    assert command._guarded("video and m4a", check).finding.startswith("TypeError: open() got an unexpected")
    monkeypatch.undo()
    assert command._guarded("video and m4a", check).status == "ok"


def test_commands_name_doctor_where_torch_is_missing(capfd: pytest.CaptureFixture) -> None:
    assert _report_error(ModuleNotFoundError("No module named 'torch'", name="torch")) == 2
    assert "No module named 'torch'; `fastscribe doctor` shows" in capfd.readouterr().err
    with pytest.raises(ImportError):
        _report_error(ImportError("a mistake of ours", name="fastscribe.nowhere"))


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    check = examined()["model cache"]
    assert check.status == "problem" and "Permission denied" in check.finding and "HF_HUB_CACHE" in (check.fix or "")


def _with_gpu(monkeypatch: pytest.MonkeyPatch, driver: str | None, error: str | None, cuda: str | None) -> None:
    def choose() -> torch.device:
        if error:
            raise UsageError(f"--device cuda: {error}")
        return torch.device("cuda", 0)

    monkeypatch.setattr(hardware, "cuda", choose)
    monkeypatch.setattr(hardware, "_driver", lambda: hardware._Driver(driver, 1))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("driver", "cuda", "status", "fix"),
    [
        (None, None, "missing", None),
        ("580.65.06", None, "problem", "https://download.pytorch.org/whl/cu130"),
        ("560.35.03", None, "problem", "https://download.pytorch.org/whl/cu126"),
        ("470.10", "13.0", "problem", "newer NVIDIA driver"),
    ],
)
def test_reasons_for_no_gpu(
    driver: str | None, cuda: str | None, status: str, fix: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpu(monkeypatch, driver, "cannot be used here (the driver is too old)", cuda)
    check = hardware.gpu()
    assert check.status == status and (fix or "") in (check.fix or "") and (check.fix is None) == (fix is None)


@pytest.mark.parametrize(
    ("name", "path", "reason", "fix"),
    [
        ("cuda graphs", "graphs", "full: cuda.bindings cannot be imported (No module named 'cuda')", "cuda-bindings"),
        ("cuda graphs", "graphs", "full: the driver is for CUDA 12.2", "newer NVIDIA driver"),
        ("gpu kernels", "triton", "Triton cannot be imported (no module)", "install triton"),
        ("pinned memory", "pinning", "out of memory", None),
        ("helpers", "helpers", "no room for a process", None),
    ],
)
def test_fast_paths_are_those_of_a_run(
    name: str, path: PathName, reason: str, fix: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpu(monkeypatch, "580", None, "13.0")
    monkeypatch.setattr(packages, "find_spec", lambda name: object())
    answers: list[Any] = [{path: reason}, {}, UsageError("--devices 0: no driver")]
    monkeypatch.setattr(hardware, "refused_paths", lambda devices: raise_or_return(answers.pop(0)))
    for refused, status in (({path: reason}, "missing"), ({}, "ok")):
        hardware._outcome.cache_clear()
        check = command._PARTS[name]()
        assert (check.status, check.refused) == (status, refused) and hardware.gpu_run().status == "ok"
        if refused:
            assert reason in check.finding and (fix or "") in (check.fix or "") and (check.fix is None) == (fix is None)
    hardware._outcome.cache_clear()
    assert hardware.gpu_run().finding == "a run on the GPU fails: UsageError: --devices 0: no driver"
    assert hardware.gpu_run().status == "problem" and command._PARTS[name]().status == "missing"
    hardware._outcome.cache_clear()


def raise_or_return(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_the_run_that_finds_fast_paths() -> None:
    """On a processor, which has none of them to refuse: helpers start, and the recording is transcribed."""
    assert hardware.refused_paths("cpu:1") == {}


@pytest.mark.parametrize("has_hardware", [True, False])
def test_8_bits_are_refused_only_where_the_hardware_has_them(
    has_hardware: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpu(monkeypatch, "580", None, "13.0")
    lack = None if has_hardware else "too old"
    for name in ("int8", "fp8"):
        blocks = f"fastscribe.families.blocks.{name}.{name}"
        monkeypatch.setattr(f"{blocks}_hardware_problem", lambda *_: lack)
        monkeypatch.setattr(f"{blocks}_problem", lambda *_: "computes wrongly")
        check = command._PARTS[name]()
        assert check.status == "missing" and check.refused == ({name: "computes wrongly"} if has_hardware else {})


@pytest.mark.parametrize(
    ("program", "answer", "driver"),
    [
        (None, None, hardware._Driver()),
        (
            "nvidia-smi",
            SimpleNamespace(stdout="580.65.06\n580.65.06\n", stderr="", returncode=0),
            ("580.65.06", 2, None),
        ),
        (
            "nvidia-smi",
            SimpleNamespace(stdout="NVIDIA-SMI has failed\n..\n", stderr="", returncode=9),
            "9: NVIDIA-SMI has failed",
        ),
        ("nvidia-smi", SimpleNamespace(stdout="", stderr="Unable to\n", returncode=255), "255: Unable to"),
        ("nvidia-smi", subprocess.TimeoutExpired("nvidia-smi", 20), "did not answer"),
        ("nvidia-smi", PermissionError(13, "Permission denied"), "Permission denied"),
    ],
    ids=["none", "two GPUs", "failed", "failed on stderr", "hangs", "not executable"],
)
def test_drivers(program: str | None, answer: Any, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: program)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: raise_or_return(answer))
    found = hardware._driver()
    if isinstance(driver, str):
        check = hardware._no_gpu(UsageError("no"))
        assert driver in (found.problem or "") and driver in check.finding and check.status == "problem" and check.fix
    else:
        assert found == driver


@pytest.mark.parametrize(
    ("visible", "hides"), [("", True), ("-1", True), ("2", True), ("1", False), ("0,5", False), ("GPU-8932f937", False)]
)
def test_hidden_gpus(visible: str, hides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is not to blame for what the environment hides."""
    monkeypatch.setattr(hardware, "_driver", lambda: hardware._Driver("580.65.06", 2))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    check = hardware._no_gpu(UsageError("--device cuda: cannot be used here (no CUDA-capable device is detected)"))
    assert (check.status == "missing") == hides == (check.fix == "unset CUDA_VISIBLE_DEVICES")


def test_install_commands_fit_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: object())
    assert packages.install_command("a>=1") == f"{sys.executable} -m pip install 'a>=1'"
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    assert packages.install_command("a") == f"uv pip install --python {sys.executable} a"
    environment = tmp_path / "fastscribe-nightly"  # of pipx install --suffix=-nightly
    environment.mkdir()
    (environment / "pipx_metadata.json").touch()
    monkeypatch.setattr(sys, "prefix", str(environment))
    command = packages.install_command("--force-reinstall", "a")
    assert command == "pipx runpip fastscribe-nightly install --force-reinstall a"


def test_requirements_that_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=1",
        "nonesuch>=2",
        "numpy>=999; extra == 'x'",
        "fastscribe[x]; extra == 'y'",
        "away; sys_platform == 'z'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    check = packages.required()
    assert check.status == "problem" and check.facts["missing"] == ["nonesuch>=2"]
    assert "nonesuch>=2" in (check.fix or "")
    assert list(packages._unmet(packages._requirements("y"))) == ["numpy>=999"]
