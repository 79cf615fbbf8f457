"""docs/examples/curator_stage.py: against NeMo Curator where it is installed, else against its protocol."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import soundfile

from fastscribe import Options, Transcriber
from tests.conftest import AUDIO, MODELS, ROOT
from tests.fakes import curator_protocol

MODEL = str(MODELS / "tdt_demo" / "model.nemo")
FILES = sorted(AUDIO.glob("0*.flac"))[:3]
METHODS = ("download_weights_on_node", "load_model", "unload_model", "transcribe_batch")
HAS_CURATOR = find_spec("nemo_curator") is not None


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The module of the example."""
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_CURATOR:
            for name, module in curator_protocol.modules().items():
                patch.setitem(sys.modules, name, module)
        patch.syspath_prepend(str(ROOT / "docs" / "examples"))
        patch.delitem(sys.modules, "curator_stage", raising=False)
        yield importlib.import_module("curator_stage")
        del sys.modules["curator_stage"]


@pytest.fixture(scope="module")
def adapter(example: Any) -> Iterator[Any]:
    made = example.FastscribeASR(model_id=MODEL, dtype="fp32", options={"max_utterance_s": 20.0})
    made.load_model(num_gpus=0)
    yield made
    made.unload_model()


def items() -> list[dict[str, Any]]:
    waves = [soundfile.read(path, dtype="float32")[0] for path in FILES]
    common = {"sample_rate": 16_000, "language": "English", "language_code": "en"}
    return [{"waveform": wave, "task_id": str(index), **common} for index, wave in enumerate(waves)]


def texts() -> list[str]:
    transcriber = Transcriber.load(MODEL, "cpu", "fp32", Options(max_utterance_s=20.0))
    return [result.text for result in transcriber.transcribe([str(path) for path in FILES], ordered=True)]


def test_it_is_an_adapter(example: Any, adapter: Any) -> None:
    base = importlib.import_module("nemo_curator.models.asr.base")
    assert isinstance(adapter, base.ASRAdapter)
    for name in METHODS:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (example.FastscribeASR, base.ASRAdapter))
        assert [(one.name, one.kind) for one in ours.parameters.values()] == [
            (one.name, one.kind) for one in theirs.parameters.values()
        ]


@pytest.mark.skipif(not HAS_CURATOR, reason="needs nemo_curator")
def test_the_protocol_written_down_is_theirs() -> None:
    base = importlib.import_module("nemo_curator.models.asr.base")
    for kind in ("ASRResult", "ASRAdapter"):
        ours, theirs = getattr(curator_protocol, kind), getattr(base, kind)
        assert ours.__annotations__ == theirs.__annotations__
    assert set(METHODS) == {name for name in vars(base.ASRAdapter) if not name.startswith("_")} - {"model_id"}


def test_each_item_has_its_text(adapter: Any) -> None:
    given = [*items(), {**items()[0], "waveform": np.zeros(0, np.float32)}]
    adapter.download_weights_on_node()  # nothing to do for a file
    found = adapter.transcribe_batch([given[3], *given[:3]])
    assert [result.text for result in found] == ["", *texts()]
    assert [(result.skipped, result.skip_reason) for result in found] == [(True, "empty_audio"), *[(False, None)] * 3]
    assert [word["word"] for word in found[1].extras["words"]] == found[1].text.split()
    assert {"words", "segments", "gaps"} == found[1].extras.keys()
    json.dumps([result.extras for result in found], allow_nan=False)
    assert adapter.transcribe_batch([]) == []


def test_one_bad_item_is_marked(adapter: Any) -> None:
    good, bad = items()[0], {**items()[0], "waveform": np.zeros((2, 2, 2), np.float32)}
    found = adapter.transcribe_batch([bad, good])
    assert (found[0].text, found[0].skipped) == ("", True) and found[0].skip_reason.endswith("_error")
    assert found[0].extras["error"]["message"] and found[1].text == texts()[0]


def test_wrong_uses(example: Any) -> None:
    fresh = example.FastscribeASR(model_id=MODEL)
    with pytest.raises(RuntimeError, match="load_model"):
        fresh.transcribe_batch(items())
    with pytest.raises(ValueError, match="one GPU or none"):
        fresh.load_model(num_gpus=2)


def test_the_stage_runs_it(example: Any) -> None:
    """As Curator's executors call a stage."""
    stages = pytest.importorskip("nemo_curator.stages.audio.inference.asr.stage", reason="needs nemo_curator")
    from nemo_curator.stages.resources import Resources
    from nemo_curator.tasks import AudioTask

    stage = stages.ASRStage(
        adapter_target="curator_stage.FastscribeASR",
        model_id=MODEL,
        waveform_key="waveform",
        extras_key="fastscribe",
        adapter_kwargs={"dtype": "fp32", "options": {"max_utterance_s": 20.0}},
        resources=Resources(cpus=1.0),
        batch_size=512,
    )
    stage.setup_on_node()
    stage.setup()
    tasks = [AudioTask(data={"waveform": item["waveform"], "sampling_rate": 16_000}) for item in items()]
    tasks.append(AudioTask(data={"waveform": np.zeros(0, np.float32), "sampling_rate": 16_000}))
    done = stage.process_batch(tasks)
    stage.teardown()
    assert [task.data["pred_text"] for task in done] == [*texts(), ""]
    assert [task.data.get("_skipme") for task in done] == [None, None, None, "empty_audio"]
    assert [word["word"] for word in done[0].data["fastscribe"]["words"]] == done[0].data["pred_text"].split()
