"""What an actor does, without Ray: it loads the model beside itself, compares it, and reads what options name for itself."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastscribe import Options, Transcriber, Transcript
from fastscribe.config import OutputStyle
from fastscribe.errors import DeviceFailed, FastscribeError, UsageError
from fastscribe.ray.run import Places, RayTranscriber, _Block
from fastscribe.results.fingerprint import model_digest
from fastscribe.results.formats.writers import to_jsonl
from fastscribe.transcriber import run_fingerprint
from fastscribe.types import Failure, RenderedTranscript, Source
from tests.conftest import AUDIO, MODELS
from tests.context.arpa_files import random_arpa
from tests.helpers import indic_folder, sortformer, voices
from tests.helpers.forked_workers import forked_workers

pa = pytest.importorskip("pyarrow", reason="needs the extra ray")

from fastscribe.ray import worker  # noqa: E402 - needs pyarrow
from fastscribe.ray.worker import (  # noqa: E402
    BLOCK,
    MAX_DEATHS,
    NUMBER,
    Begun,
    BlockResults,
    BlockWorker,
    Facts,
    Refusal,
    Setup,
    Undone,
)

pytestmark = pytest.mark.posix
CTC, DEMO = (str(MODELS / name / "model.nemo") for name in ("ctc", "tdt_demo"))
FILE = str(sorted(AUDIO.glob("0*.flac"))[0])
ROWS = OutputStyle(("jsonl",))


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_place", lambda: "here pid 1")
    with forked_workers():
        yield


def setup(model: str, style: OutputStyle | None = None, **options: Any) -> Setup:
    return Setup(model, "cpu", "fp32", Options(threads=1, **options), style)


@cache
def facts(given: Setup) -> Facts:
    found = worker.look(given)
    assert isinstance(found, Facts), found
    return found


def driver(found: Facts, options: Options) -> RayTranscriber:
    return RayTranscriber(None, Setup("default", options=options), Places(1, 0, 1), found, lambda line: None)


def transcribed(given: Setup, expected: Facts, sources: list[Source]) -> BlockResults:
    """Give an actor a block, as Ray Data does."""
    actor = BlockWorker(given, expected, Begun().begin)
    table = actor(pa.table({NUMBER: [7], BLOCK: [pickle.dumps(sources)]}))
    assert table.column_names == [NUMBER, BLOCK] and table[NUMBER].to_pylist() == [7]
    found = pickle.loads(table[BLOCK][0].as_py())
    assert isinstance(found, BlockResults), found
    actor._transcriber.close()
    return found


def test_a_block_has_the_rows_of_a_local_run(tmp_path: Path) -> None:
    """Positions are those of the run; a file that cannot be read fails alone."""
    given, row = setup(CTC, ROWS), {"audio_filepath": FILE, "nested": [{"a": [1, None]}]}
    sources = [Source(FILE, FILE, "a", row, index=5), Source("gone.wav", str(tmp_path / "gone.wav"), "b", index=9)]
    found = transcribed(given, facts(given), sources)
    good, bad = sorted(found.results, key=lambda one: one.index)
    local = Transcriber.load(CTC, "cpu", "fp32", given.options)
    [expected] = local.results([replace(sources[0], index=0)])  # type: ignore[list-item]
    assert (
        isinstance(good, RenderedTranscript)
        and good.contents["jsonl"] == to_jsonl(expected).encode()
        and good.index == 5
    )
    assert good.audio.row == row and not good.words
    assert isinstance(bad, Failure) and bad.index == 9
    assert (found.share.name, found.share.utterances) == ("here pid 1", 1) and found.real_frames > 0


def test_a_block_with_which_actors_die_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    given = setup(CTC)
    actor, died = BlockWorker(given, facts(given), Begun().begin), SystemExit()

    def die(*_: object) -> None:
        raise died

    monkeypatch.setattr(actor, "_transcribe", die)
    for _ in range(MAX_DEATHS):
        with pytest.raises(SystemExit):
            actor._transcribe_if_it_may(0, [])
    assert actor._transcribe_if_it_may(0, []) == Undone()
    with pytest.raises(SystemExit):
        actor._transcribe_if_it_may(1, [])
    actor._transcriber.close()


@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_device_that_fails_is_tried_in_another_process(num_failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given, closed = setup(CTC), list[str]()
    actor = BlockWorker(given, facts(given), Begun().begin)
    monkeypatch.setattr(worker, "load", lambda *_: devices.pop())

    def lose(*_: object, **__: object) -> None:
        raise DeviceFailed("cuda:0", RuntimeError("lost"))

    good = actor._transcriber
    bad = [SimpleNamespace(results=lose, _executor=good._executor, close=lambda: closed.append("bad")) for _ in "ab"]
    actor._transcriber = cast(Any, bad[0])
    devices = [good, bad[1]][: 2 if num_failures == 2 else 1]
    monkeypatch.setattr(worker, "facts_of", lambda *_: actor._expected)
    batch = pa.table({NUMBER: [0], BLOCK: [pickle.dumps([Source(FILE, FILE, FILE)])]})
    found = [pickle.loads(actor(batch)[BLOCK][0].as_py()) for _ in range(num_failures)]
    if num_failures == 2:
        assert found.pop(0) == Undone("here pid 1", "cuda:0 failed: lost")
    [done] = found
    assert isinstance(done, BlockResults) and len(done.results) == 1 and closed == ["bad"] * num_failures
    good.close()


def test_a_place_whose_device_does_no_block_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count begins again with each block that the place has done."""
    found = driver(facts(setup(CTC)), Options())
    results = [Failure("a.wav", "a", "load", "AudioError", "none")]
    done = BlockResults(results, worker.DeviceShare("1.2.3.4 GPU 0", "a"), {}, 0, 0)  # type: ignore[arg-type]
    bad, other = (Undone(place, "cuda:0 failed: lost") for place in ("1.2.3.4 GPU 0", "1.2.3.4 GPU 1"))
    answers = [bad, bad, done, bad, bad, done, bad, other, bad, bad, done]
    monkeypatch.setattr(found, "_pipeline", lambda blocks: (one for one in enumerate(answers)))
    blocks = {number: _Block(b"", 1.0) for number in range(len(answers))}
    taken = found._done(blocks)
    assert [next(taken) for _ in range(2)] == results * 2
    with pytest.raises(DeviceFailed) as raised:
        next(taken)
    assert str(raised.value).startswith("1.2.3.4 GPU 0 failed: cuda:0 failed: lost; the run stops")
    assert sorted(blocks) == [0, 1, 3, 4, 6, 7, 8, 9, 10]


def test_the_recordings_of_a_lost_block_are_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gives up the one with which actors die alone, and no other."""
    found = driver(facts(setup(CTC)), Options())
    rounds: list[list[list[str]]] = []

    def pipeline(blocks: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        rounds.append([[one.source.path for one in block.recordings()] for block in blocks.values()])
        for number, block in list(blocks.items()):
            sources = [one.source for one in block.recordings()]
            results = [Failure(one.path, one.id, "load", "AudioError", "none", index=one.index) for one in sources]
            is_lost = any(one.path == "kills.wav" for one in sources)
            done = BlockResults(results, worker.DeviceShare("here", "a"), {}, 0, 0)  # type: ignore[arg-type]
            yield number, Undone() if is_lost else done

    monkeypatch.setattr(found, "_pipeline", lambda blocks: (one for one in pipeline(blocks)))
    names = ("a.wav", "kills.wav", "b.wav")
    results = list(found.results([Source(name, name, name) for name in names]))  # type: ignore[list-item]
    assert rounds == [[["a.wav", "kills.wav"], ["b.wav"]], [["a.wav"], ["kills.wav"]]]
    [killer] = [one for one in results if isinstance(one, Failure) and one.error_type == "WorkerDied"]
    assert killer.path == "kills.wav" and killer.message.startswith("workers ended, or their device failed,")
    assert sorted(one.index for one in results) == [0, 1, 2] and found.progress.failed == 3


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"version": "0.0"}, "fastscribe is 0.0 at there and "),
        ({"model_digest": "sha256:other"}, "the model's content is sha256:other at there"),
        ({"model": "bf16"}, "--dtype is bf16 at there and fp32 at here pid 1"),
    ],
    ids=["version", "model", "dtype"],
)
def test_an_actor_that_differs_refuses_in_one_line(changed: dict[str, Any], problem: str) -> None:
    given = setup(CTC)
    own = facts(given)
    if "model" in changed:
        changed = {"model": replace(own.model, dtype=changed["model"])}
    actor = BlockWorker(given, replace(own, place="there", **changed), Begun().begin)
    refused = pickle.loads(actor(pa.table({NUMBER: [0], BLOCK: [pickle.dumps([])]}))[BLOCK][0].as_py())
    assert isinstance(refused, Refusal) and "\n" not in refused.message
    assert refused.message.startswith(f"the nodes of the cluster differ: {problem}")
    actor._transcriber.close()


def test_a_second_model_is_read_by_each_actor(tmp_path: Path) -> None:
    """--align-with, --lm, --speakers and --voices: the driver may know a name alone, because a worker says what it has read."""
    path = tmp_path / "tokens.arpa"
    names = [chr(100 + token) for token in range(97)]  # half of the tokens, in NeMo's encoding
    path.write_text(random_arpa(2, names, 2), encoding="utf-8")
    speakers = str(sortformer.write_nemo(tmp_path / "speakers.nemo", sortformer.config("v2")))
    prints = str(voices.write_nemo(tmp_path / "titanet.nemo", voices.config("titanet")))
    for model, name, value in (
        (str(MODELS / "canary2" / "model.nemo"), "align_with", CTC),
        (str(MODELS / "rnnt" / "model.nemo"), "lm", str(path)),
        (DEMO, "speakers", speakers),
        (DEMO, "voices", prints),
    ):
        more = {"speakers": speakers} if name == "voices" else {}
        own = facts(setup(model, **{name: value}, **more))
        assert own.content_digests[name] == model_digest(value)
        elsewhere = Options(**{name: "someone/model-that-the-driver-cannot-find"}, **more)
        stored = run_fingerprint(driver(own, elsewhere), "sha256:1", elsewhere, ROWS)
        assert stored["--" + name.replace("_", "-")] == model_digest(value)
        others = own.content_digests | {name: "sha256:other"}
        with pytest.raises(UsageError, match=f"the nodes of the cluster differ: the content of --{name[:5]}"):
            own.check(replace(own, place="there", content_digests=others))
    refusal = worker.look(setup(DEMO, lm="/nowhere.arpa"))
    assert isinstance(refusal, Refusal) and refusal.message == "--lm /nowhere.arpa: No such file or directory"


def test_rooms_that_need_whole_recordings(tmp_path: Path) -> None:
    """Speakers and their prints are those of a local run; turns are read once."""
    model = str(voices.write_nemo(tmp_path / "titanet.nemo", voices.config("titanet")))
    turns = tmp_path / "all.rttm"
    turns.write_text(f"SPEAKER {Path(FILE).stem} 1 0 99 <NA> <NA> Ann <NA> <NA>\n")
    given = setup(DEMO, ROWS, rttm=str(turns), voices=model)
    [result] = transcribed(given, facts(given), [Source(FILE, FILE, FILE)]).results
    [expected] = Transcriber.load(DEMO, "cpu", "fp32", given.options).transcribe(FILE)
    assert isinstance(expected, Transcript) and expected.speakers == ("Ann",) and expected.voices
    assert isinstance(result, RenderedTranscript) and result.contents["jsonl"] == to_jsonl(expected).encode()


def test_an_actor_says_what_it_did_with_the_languages_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    given = setup(str(MODELS / "rnnt" / "model.nemo"), language="en")
    actor = BlockWorker(given, facts(given), Begun().begin)
    monkeypatch.setattr(actor._transcriber, "results", lambda sources, style: (one for one in ()))
    monkeypatch.setattr(actor._transcriber, "shares", lambda: [worker.DeviceShare("cpu:0", "a")])
    lines = SimpleNamespace(take_lines=lambda: ["one row names its language"])
    monkeypatch.setattr(actor._transcriber, "_languages", lines)
    for _ in range(2):
        found = actor._transcribe([])
        assert isinstance(found, BlockResults) and found.said[-1] == "one row names its language"
    actor._transcriber.close()


def test_the_fingerprint_has_the_aligners_language(tmp_path: Path) -> None:
    aligner = str(indic_folder.write(tmp_path / "indic", indic_folder.shapes()))
    found = facts(setup(DEMO, align_with=aligner, language="hi-IN"))
    options = Options(align_with=aligner, language="hi-IN")
    assert run_fingerprint(driver(found, options), "sha256:1", options, ROWS)["--language"] == "hi"


def test_models_that_cannot_be_used(tmp_path: Path) -> None:
    refusal = worker.look(setup(str(tmp_path / "gone.nemo")))
    assert isinstance(refusal, Refusal) and "gone.nemo: no such file" in refusal.message
    with pytest.raises(FastscribeError, match=r"gone\.nemo: no such file"):
        worker.on_this_node(Setup(str(tmp_path / "gone.nemo")), print)
