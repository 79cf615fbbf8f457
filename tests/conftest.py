"""Paths of the test data, and models loaded once a session."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import fastscribe
from fastscribe import python_names
from fastscribe._system.process_settings import limit_openmp_spin

# Their asserts show values, as those of tests do; a fork of the warm process has imported them already.
pytest.register_assert_rewrite(*{"tests.helpers", "tests.fakes"} - set(sys.modules))

from tests.helpers.warm_process import LIBRARIES_ALONE, WARM  # noqa: E402

limit_openmp_spin()  # as the command line does, before anything imports torch
# Workers share the processors, and so do the processes that they start: with all of them in each, tests took a quarter more
# processor time, and runs of the packaged model half.
if (num_workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_workers)))
# An example's duration depends on the load of the machine.
settings.register_profile("fastscribe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fastscribe")
python_names.speak_python = lambda: (
    None
)  # messages name options, whatever a test imports; tests/test_python_names.py calls it
# Shells make background jobs ignore it, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PACKAGE = Path(fastscribe.__file__).parent  # the checkout's, or the installed one's
ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
DATA = ROOT / "tests" / "data"
AUDIO = DATA / "audio"
MODELS = DATA / "models"
MODEL = MODELS / "tdt_demo" / "model.nemo"
RATE = 16_000
FIRST = next(AUDIO.glob("01_*"))
SENTENCE = "At Rice Stadium a very large, enthusiastic crowd greeted the President."  # in FIRST
CONVOLUTIONAL_NAMES = ("jasper", "quartznet", "conv_unmasked", "conv_grouped")
MODEL_NAMES = ("tdt_demo", "rnnt", "ctc", "hybrid", "hf_tdt_demo", "hf_rnnt", "hf_ctc", *CONVOLUTIONAL_NAMES)
# In models/published: stand-ins of published configurations (published.py).
PUBLISHED_NAMES = (
    "parakeet-tdt-0.6b-v3",
    "parakeet-tdt_ctc-110m",
    "parakeet-unified-en-0.6b",
    "stt_multilingual_fastconformer_hybrid_large_pc",
    "stt_enes_conformer_ctc_large",
    "stt_en_conformer_ctc_small",
    "stt_en_conformer_transducer_large",
    "stt_zh_conformer_transducer_large",
    "nemotron-3.5-asr-streaming-0.6b",
    "stt_en_fastconformer_hybrid_large_streaming_multi",
)


# Systems that a marker leaves out.
LACKING = {"linux": sys.platform != "linux", "posix": os.name != "posix"}
LONGEST = ROOT / "tests" / "ray" / "test_cluster.py"  # a minute or more, most of which a node takes to start


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist keep the order of the files: by itself it takes those of few tests last, however long they are."""
    config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from what lives until the end: it took a third of the collection's processor time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000)  # models and their tokenizers are many objects, and few of them are garbage
        atexit.register(
            gc.unfreeze
        )  # extensions such as Triton's report what is left behind; pytest's own collections come before
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    items.sort(key=lambda item: item.path != LONGEST)  # or one worker would be alone with it at the end
    for item in items:
        for name in LACKING:
            if LACKING[name] and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"needs a system of the kind {name}, see pyproject.toml"))

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Run torch operations on a number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@contextmanager
def refusal(kind: type[Exception], text: str) -> Iterator[None]:
    """Expect an exception whose message is one line that holds a text."""
    with pytest.raises(kind) as caught:
        yield
    assert text in str(caught.value) and "\n" not in str(caught.value)


def model_path(folder: Path) -> Path:
    return folder / "model.nemo" if (folder / "model.nemo").exists() else folder


@cache
def golden(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "golden.json").read_text(encoding="utf-8"))


@cache
def checkpoint(folder: Path):
    from fastscribe.checkpoint.reader import read_checkpoint

    return read_checkpoint(model_path(folder))


@cache
def recognizer(folder: Path, decoder: str | None = None, dtype: str = "fp32"):
    from fastscribe.config import Options
    from fastscribe.pipeline.recognizer import Recognizer

    return Recognizer.build(checkpoint(folder), "cpu", dtype, Options(decoder=decoder))


@cache
def waveform(path: Path, sample_rate: int = 16000) -> np.ndarray:
    """Return the samples of a whole file, as a run would read them. Callers share the array."""
    from fastscribe.audio.probe import probe
    from fastscribe.audio.read import read
    from fastscribe.types import Source

    audio = probe(Source(path=str(path), file=str(path), id=path.name))
    return read(audio, 0, audio.num_samples, sample_rate=sample_rate)


@pytest.fixture(scope="session", autouse=True)
def _warm_process_ends() -> Iterator[None]:
    yield
    WARM.close()
    LIBRARIES_ALONE.close()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run on one thread: operations are tiny."""
    with torch_threads(1):
        yield


@pytest.fixture
def simulated_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tests.fakes.cuda import SimulatedCuda

    return SimulatedCuda().install(monkeypatch)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """An empty store."""
    from tests.helpers.object_store import object_store

    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Processes of `--devices` are forks."""
    from tests.helpers.forked_workers import forked_workers

    with forked_workers():
        yield


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that models of this process get, in order."""
    from fastscribe.pipeline.engine import Engine

    found: list[Any] = []
    push = Engine.push
    monkeypatch.setattr(Engine, "push", lambda engine, batch: (found.append(batch), push(engine, batch))[1])
    return found
