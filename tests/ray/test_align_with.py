"""--align-with on a cluster: each node finds the second model for itself, and workers must read the same one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastscribe import Options, Transcriber, Transcript
from fastscribe.config import OutputStyle
from fastscribe.errors import UsageError
from fastscribe.journaled import run_fingerprint
from fastscribe.ray import worker
from fastscribe.ray.run import RayTranscriber
from fastscribe.ray.worker import Facts, Refusal, Setup, Worker
from fastscribe.results.fingerprint import model_digest
from fastscribe.types import Source
from tests.conftest import AUDIO, MODELS
from tests.helpers import indic_folder

MODEL, ALIGNER = (str(MODELS / name / "model.nemo") for name in ("canary2", "ctc"))
FILE = str(sorted(AUDIO.glob("0*.flac"))[0])


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Worker, Facts]:
    monkeypatch.setattr(worker, "_place", lambda: ("here pid 1", "node"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = Worker(Setup(MODEL, "cpu", "fp32", Options(align_with=ALIGNER, threads=1), None, "run"))
    facts = found.load()
    assert isinstance(facts, Facts)
    return found, facts


def driver(facts: Facts, options: Options) -> RayTranscriber:
    pool = SimpleNamespace(ready=())
    return RayTranscriber(None, pool, facts, options, lambda line: None)


def test_a_worker_takes_times_from_its_copy(loaded: tuple[Worker, Facts]) -> None:
    groups = [group for group in loaded[0].transcribe([Source(FILE, FILE, FILE)]) if isinstance(group, list)]
    [(_, found)] = [entry for group in groups for entry in group]
    local = Transcriber.load(MODEL, "cpu", "fp32", Options(align_with=ALIGNER))
    [expected] = local.transcribe(FILE)
    assert isinstance(found, Transcript) and isinstance(expected, Transcript)
    assert found.words == expected.words and found.words


def test_the_fingerprint_needs_no_copy_on_the_driver(loaded: tuple[Worker, Facts]) -> None:
    """The driver may know the name alone: the workers say what they have read."""
    options = Options(align_with="someone/model-that-the-driver-cannot-find")
    found = run_fingerprint(driver(loaded[1], options), "sha256:1", options, OutputStyle(("jsonl",)))
    assert found["--align-with"] == model_digest(ALIGNER)


def test_the_fingerprint_has_the_aligners_language(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker, "_place", lambda: ("here pid 1", "node"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    aligner = str(indic_folder.write(tmp_path / "indic", indic_folder.shapes()))
    options = Options(align_with=aligner, language="hi-IN", threads=1)
    facts = Worker(Setup(str(MODELS / "tdt_demo" / "model.nemo"), "cpu", "fp32", options, None, "run")).load()
    assert isinstance(facts, Facts) and not any("--language" in line for line in facts.said)
    found = run_fingerprint(driver(facts, options), "sha256:1", options, OutputStyle(("jsonl",)))
    assert found["--language"] == "hi"


def test_workers_with_other_aligners_are_refused(loaded: tuple[Worker, Facts]) -> None:
    one = driver(loaded[1], Options(align_with=ALIGNER))
    one._check(loaded[1])
    with pytest.raises(UsageError, match="the nodes of the cluster differ: the content of --align-with"):
        one._check(replace(loaded[1], place="there", content_digests={"align_with": "sha256:other"}))


def test_an_aligner_that_does_not_fit_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for aligner, problem in (
        (str(MODELS / "tdt_demo" / "model.nemo"), "decoders of --align-with"),
        ("/nowhere", "no such"),
    ):
        refusal = Worker(Setup(MODEL, "cpu", "fp32", Options(align_with=aligner), None, "run")).load()
        assert isinstance(refusal, Refusal) and problem in refusal.message
