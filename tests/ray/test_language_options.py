"""--lm and --language on a cluster: workers must read the same language model, and say what they did with rows' languages."""

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
from fastscribe.ray.worker import ChunkStats, Facts, Refusal, Setup, Worker
from fastscribe.results.fingerprint import model_digest
from fastscribe.types import Source
from tests.conftest import AUDIO, MODELS
from tests.context.arpa_files import random_arpa

MODEL = str(MODELS / "rnnt" / "model.nemo")
FILE = str(sorted(AUDIO.glob("0*.flac"))[2])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_place", lambda: ("here pid 1", "node"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def driver(facts: Facts, options: Options) -> RayTranscriber:
    return RayTranscriber(None, SimpleNamespace(ready=()), facts, options, lambda line: None)


def test_a_worker_uses_a_language_model(tmp_path: Path) -> None:
    path = tmp_path / "tokens.arpa"
    names = [chr(100 + token) for token in range(97)]  # half of the tokens, in NeMo's encoding
    path.write_text(random_arpa(2, names, 2), encoding="utf-8")
    options = Options(lm=str(path), threads=1)
    found = Worker(Setup(MODEL, "cpu", "fp32", options, None, "run"))
    facts = found.load()
    assert isinstance(facts, Facts) and facts.content_digests == {"lm": model_digest(path)}
    groups = [group for group in found.transcribe([Source(FILE, FILE, FILE)]) if isinstance(group, list)]
    [(_, result)] = [entry for group in groups for entry in group]
    [expected] = Transcriber.load(MODEL, "cpu", "fp32", options, lambda line: None).transcribe(FILE)
    assert isinstance(result, Transcript) and isinstance(expected, Transcript)
    assert result.words == expected.words and result.words
    path.unlink()  # the driver need not have it
    stored = run_fingerprint(driver(facts, options), "sha256:1", options, OutputStyle(("jsonl",)))
    assert stored["--lm"] == facts.content_digests["lm"]
    with pytest.raises(UsageError, match="the nodes of the cluster differ: the content of --lm"):
        driver(facts, options)._check(replace(facts, place="there", content_digests={"lm": "sha256:other"}))
    refusal = Worker(Setup(MODEL, "cpu", "fp32", options, None, "run")).load()
    assert isinstance(refusal, Refusal) and refusal.message == f"--lm {path}: No such file or directory"


def test_a_worker_says_what_it_did_with_the_languages_of_rows() -> None:
    """One token is left out. Each chunk counts anew."""
    found = Worker(Setup(MODEL, "cpu", "fp32", Options(language="en", threads=1), None, "run"))
    assert isinstance(found.load(), Facts)
    languages = found._transcriber._languages.rules("")
    languages.excluded = lambda tag: frozenset((1,))
    languages.language, languages._reads_rows = "en", True
    rows = [Source(FILE, FILE, FILE, row={"language": "pl"}), Source(FILE, FILE, FILE)]
    for _ in range(2):
        [stats] = [one for one in found.transcribe(rows) if isinstance(one, ChunkStats)]
        assert any("rows name their language (pl 1)" in line for line in stats.said)
