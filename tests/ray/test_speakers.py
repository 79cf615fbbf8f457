"""--speakers MODEL and --rttm on a cluster: each node finds the speaker model, and workers must read the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastscribe import Options, Transcriber, Transcript
from fastscribe.config import OutputStyle
from fastscribe.errors import UsageError
from fastscribe.journaled import run_fingerprint
from fastscribe.ray import worker
from fastscribe.ray.worker import Facts, Refusal, Setup, Worker
from fastscribe.results.fingerprint import model_digest
from fastscribe.results.formats.writers import to_jsonl
from fastscribe.types import RenderedTranscript, Source
from tests.conftest import AUDIO, MODELS
from tests.helpers import sortformer, voices
from tests.ray.test_align_with import driver

MODEL = str(MODELS / "tdt_demo" / "model.nemo")
FILE = str(sorted(AUDIO.glob("0*.flac"))[0])


@pytest.fixture
def speakers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(worker, "_place", lambda: ("here pid 1", "node"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return str(sortformer.write_nemo(tmp_path / "speakers.nemo", sortformer.config("v2")))


def test_a_worker_tells_speakers_apart(speakers: str) -> None:
    options = Options(speakers=speakers, threads=1)
    found = Worker(Setup(MODEL, "cpu", "fp32", options, None, "run"))
    facts = found.load()
    assert isinstance(facts, Facts) and facts.content_digests == {"speakers": model_digest(speakers)}
    groups = [group for group in found.transcribe([Source(FILE, FILE, FILE)]) if isinstance(group, list)]
    [(_, result)] = [entry for group in groups for entry in group]
    [expected] = Transcriber.load(MODEL, "cpu", "fp32", options).transcribe(FILE)
    assert isinstance(result, Transcript) and isinstance(expected, Transcript)
    assert (result.words, result.turns) == (expected.words, expected.turns) and len(result.speakers) > 1
    # The driver may know the name alone.
    named = Options(speakers="someone/model-that-the-driver-cannot-find")
    stored = run_fingerprint(driver(facts, named), "sha256:1", named, OutputStyle(("jsonl",)))
    assert stored["--speakers"] == model_digest(speakers)
    with pytest.raises(UsageError, match="the nodes of the cluster differ: the content of --speakers"):
        driver(facts, options)._check(replace(facts, place="there", content_digests={"speakers": "sha256:other"}))


def test_turns_from_elsewhere(speakers: str, tmp_path: Path) -> None:
    turns = tmp_path / "all.rttm"
    turns.write_text(f"SPEAKER {Path(FILE).stem} 1 0 99 <NA> <NA> Ann <NA> <NA>\n")
    options = Options(rttm=str(turns), threads=1)
    found = Worker(Setup(MODEL, "cpu", "fp32", options, OutputStyle(("rttm",)), "run"))
    facts = found.load()
    assert isinstance(facts, Facts)
    local = Transcriber.load(MODEL, "cpu", "fp32", options)
    assert facts.content_digests == local._content_digests()
    turns.unlink()  # a file is read once
    groups = [group for group in found.transcribe([Source(FILE, FILE, FILE)]) if isinstance(group, list)]
    [(_, result)] = [entry for group in groups for entry in group]
    assert isinstance(result, Transcript) and result.speakers == ("Ann",)
    refusal = Worker(Setup(MODEL, "cpu", "fp32", options, None, "run")).load()
    assert isinstance(refusal, Refusal) and "all.rttm: no such file" in refusal.message


def test_columns_with_speakers(speakers: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra ray")
    import fastscribe.ray

    options = Options(speakers=speakers, threads=1)
    found = fastscribe.ray.Transcriber(MODEL, device="cpu", dtype="fp32", options=options)
    table = found(pa.table({"path": [FILE, "gone.wav"]}))
    assert table.schema.equals(found(pa.table({"path": ["gone.wav"]})).schema)
    good, bad = table.to_pylist()
    assert len(good["speakers"]) > 1 and {word["speaker"] for word in good["words"]} <= set(good["speakers"])
    assert {turn["speaker"] for turn in good["turns"]} == set(good["speakers"])
    assert bad["error"] is not None and bad["speakers"] == bad["turns"] == []


def test_voice_prints(speakers: str, tmp_path: Path) -> None:
    """The prints of a worker are those of a local run, in rows and in columns; the driver needs no copy of the model."""
    pa = pytest.importorskip("pyarrow", reason="needs the extra ray")
    import fastscribe.ray

    model = str(voices.write_nemo(tmp_path / "titanet.nemo", voices.config("titanet")))
    turns = tmp_path / "all.rttm"
    turns.write_text(f"SPEAKER {Path(FILE).stem} 1 0 99 <NA> <NA> Ann <NA> <NA>\n")
    options = Options(rttm=str(turns), voices=model, threads=1)
    found = Worker(Setup(MODEL, "cpu", "fp32", options, OutputStyle(("jsonl",)), "run"))
    facts = found.load()
    assert isinstance(facts, Facts)
    groups = [group for group in found.transcribe([Source(FILE, FILE, FILE)]) if isinstance(group, list)]
    [(_, result)] = [entry for group in groups for entry in group]
    local = Transcriber.load(MODEL, "cpu", "fp32", options)
    [expected] = local.transcribe(FILE)
    assert isinstance(result, RenderedTranscript) and isinstance(expected, Transcript)
    [voice] = expected.voices
    assert voice.embedding_E is not None
    assert result.texts["jsonl"] == to_jsonl(expected)
    style = OutputStyle(("jsonl",))
    stored = run_fingerprint(local, "sha256:1", options, style)
    elsewhere = replace(options, voices="someone/model-that-the-driver-cannot-find")
    assert run_fingerprint(driver(facts, elsewhere), "sha256:1", elsewhere, style) == stored
    others = facts.content_digests | {"voices": "sha256:other"}
    with pytest.raises(UsageError, match="the nodes of the cluster differ: the content of --voices"):
        driver(facts, options)._check(replace(facts, place="there", content_digests=others))
    columns = fastscribe.ray.Transcriber(MODEL, device="cpu", dtype="fp32", options=options)
    good, bad = columns(pa.table({"path": [FILE, "gone.wav"]})).to_pylist()
    assert good["voices"] == [
        {
            "speaker": "Ann",
            "speech": round(voice.speech_s, 3),
            "start": round(voice.start_s, 3),
            "end": round(voice.end_s, 3),
            "embedding": voice.embedding_E.tolist(),
        }
    ]
    assert bad["voices"] == []
