"""What is compiled while the weights are read is what a batch calls: nothing is left for it to compile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fastscribe.config import Options
from fastscribe.decode import looping_kernels
from fastscribe.families.blocks import row_kernels
from fastscribe.pipeline import model_building
from fastscribe.transcriber import Transcriber
from tests.conftest import AUDIO, MODELS, checkpoint
from tests.families.conformer.test_cpu_layers import DTYPES

Loops = dict[str, Any]


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loops]:
    """The compilers of all loops that the test makes, by name. A narrow model has loops too."""
    monkeypatch.setattr("fastscribe.families.conformer.config.MIN_WIDTH_OF_LOOPS", 1)
    found: Loops = {}
    for module in (row_kernels, looping_kernels):

        def watched(function: Any, compiled: Any = module.compile_cached, **options: Any) -> Any:
            loop = compiled(function, **options)
            found[function.__qualname__] = loop.compile.args[0]
            return loop

        monkeypatch.setattr(module, "compile_cached", watched)
        module.kernels.cache_clear()
    yield found
    for module in (row_kernels, looping_kernels):
        module.kernels.cache_clear()


def compiled(loops: Loops) -> dict[str, list[Any]]:
    return {name: loop.signatures for name, loop in loops.items() if loop.signatures}


def check_that_a_batch_compiles_nothing(dtype: str, loops: Loops) -> None:
    transcriber = Transcriber.load(MODELS / "tdt_demo" / "model.nemo", "cpu", dtype)
    for thread in threading.enumerate():
        if thread.name == "compile-loops":
            thread.join()
    ahead = compiled(loops)
    assert len(ahead) >= 11 and all(len(signatures) == 1 for signatures in ahead.values())
    [result] = transcriber.transcribe([AUDIO / "05_0_00148.flac"])
    assert result.text and compiled(loops) == ahead


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_compiles_nothing(dtype: str, loops: Loops) -> None:
    check_that_a_batch_compiles_nothing(dtype, loops)


def test_nor_where_layers_are_not_packed(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX2 alone, MKL computes wide layers in float32, and torch all in bfloat16."""
    monkeypatch.setattr("fastscribe.families.blocks.forms.packs", lambda shape, dtype: False)
    check_that_a_batch_compiles_nothing("fp32", loops)


def test_no_more_than_is_needed(loops: Loops) -> None:
    """A beam has no loops of its own."""
    model = checkpoint(MODELS / "tdt_demo")

    def names(options: Options) -> set[str]:
        loops.clear()
        list(model_building._compiled(model.config, "fp32", model.weights, options))
        return {name.partition("_float32")[0] for name in compiled(loops)}

    assert names(Options()) >= {"choose", "subsample", "softmax"}
    assert "choose" not in names(Options(beam=4))


def test_a_process_that_ends_does_not_wait_for_all_loops(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_building, "main_thread", lambda: threading.Thread())  # one that does not run
    model, asked = checkpoint(MODELS / "tdt_demo"), []
    monkeypatch.setattr(model_building, "_compiled", lambda *arguments: (asked.append(number) for number in range(9)))
    model_building.compile_meanwhile(model.config, "fp32", model.weights, Options())
    for thread in threading.enumerate():
        if thread.name == "compile-loops":
            thread.join()
    assert asked == [0]
