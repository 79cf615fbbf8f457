"""`fastscribe bench --against`: turns are fair, texts are compared, and a failing or missing peer is reported."""

from __future__ import annotations

import ast
import json
import sys
import tarfile
import venv
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jiwer
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastscribe.bench.peer_comparison import peers, process, turns, worker
from fastscribe.bench.peer_comparison.process import SideFailed, Worker
from fastscribe.bench.peer_comparison.recordings import gather
from fastscribe.cli import app
from fastscribe.errors import UsageError
from tests.conftest import AUDIO, MODELS, golden

DEMO = MODELS / "tdt_demo" / "model.nemo"
RECORDINGS = [AUDIO / "01_0_00010.flac", AUDIO / "02_0_00025.flac"]

# Stands in for faster-whisper. Its "model" is a JSON file: texts by the recording's stem, and how it is to go wrong.
FAKE = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace

class WhisperModel:
    def __init__(self, model, device, device_index, compute_type, cpu_threads):
        assert "fastscribe" not in sys.modules
        self.asked = json.loads(Path(model).read_text())
        self.model = SimpleNamespace(compute_type=compute_type)
        print("chatter that must not be taken for an answer")
        if self.asked.get("dies"):
            print("cannot go on like this", file=sys.stderr, flush=True)
            os._exit(7)

    def transcribe(self, path, batch_size=1):
        if batch_size >= self.asked.get("too_large", 1000):
            raise MemoryError("too much")
        return [SimpleNamespace(text=" " + self.asked["texts"][Path(path).stem])], None

class BatchedInferencePipeline:
    def __init__(self, model):
        self.transcribe = model.transcribe
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without packages."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@pytest.fixture
def fake_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake faster_whisper on the path of every Python; return the folder for its models."""
    package = tmp_path / "site" / "faster_whisper"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return tmp_path


def fake_model(folder: Path, **asked: Any) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps({"texts": texts()} | asked), encoding="utf-8")
    return path


def texts() -> dict[str, str]:
    return {Path(name).stem: row["text"] for name, row in golden(MODELS / "tdt_demo")["files"].items()}


def settings(side: str, model: Path) -> dict[str, Any]:
    paths = [str(path) for path in RECORDINGS]
    packages = ["pip", "no-such-package"]
    common = {"device": "cpu", "dtype": "fp32", "threads": 1, "root": "", "packages": packages}
    return {"side": side, "model": str(model), "paths": paths, **common}


# --- turns ----------------------------------------------------------------------------------------------------------


class FakeSide:
    """A side that takes a given time per turn and records its turns."""

    def __init__(self, side: str, log: list[tuple[str, int | None]], seconds: Any = 1.0, text: str = "a b") -> None:
        self.side, self.info = side, {"dtype": "fp32"}
        self._log, self._seconds, self._text = log, seconds, text

    def turn(self, batch_size: int | None) -> dict[str, Any]:
        self._log.append((self.side, batch_size))
        seconds = self._seconds(len(self._log), batch_size) if callable(self._seconds) else self._seconds
        if seconds is None:
            return {"error": "MemoryError: too much"}
        return {"wall_s": seconds, "cpu_s": 2 * seconds, "texts": [self._text]}

    def said(self) -> str:
        return "its last words"


def silent(_: str) -> None:
    pass


def compared(
    ours: FakeSide, peer: FakeSide, batch_sizes: Sequence[int], runs: int, audio_s: float = 10.0
) -> list[dict]:
    mine, theirs = turns.Case(ours, None), [turns.Case(peer, size) for size in batch_sizes]
    turns.take_turns(mine, theirs, runs, silent)
    return turns.rows(mine, theirs, audio_s)


def test_sides_alternate_and_swap() -> None:
    log: list[tuple[str, int | None]] = []
    compared(FakeSide("fastscribe", log), FakeSide("peer", log), [1, 8], 3)
    ours, small, large = ("fastscribe", None), ("peer", 1), ("peer", 8)
    even, odd = [ours, small, ours, large], [small, ours, large, ours]
    assert log == even + odd + even + odd


def test_warm_up_does_not_count_best_size_does() -> None:
    log: list[tuple[str, int | None]] = []
    seconds = {1: [50.0, 3.0, 5.0, 4.0], 8: [50.0, 2.0, 2.5, 9.0]}
    left = {size: iter(values) for size, values in seconds.items()}
    peer = FakeSide("peer", log, lambda _, size: next(left[size]), text="a c")
    ours, small, large = compared(FakeSide("fastscribe", log), peer, [1, 8], 3, audio_s=100.0)
    assert (small["wall_s"], small["wall_min_s"], small["wall_max_s"]) == (4.0, 3.0, 5.0)
    assert large["wall_s_runs"] == [2.0, 2.5, 9.0] and large["rtfx"] == 40.0 and large["cpu_s"] == 5.0
    assert len(ours["wall_s_runs"]) == 6
    assert (ours["peer_best_batch_size"], ours["speedup_ratio"]) == (8, 2.5)
    assert (ours["speedup_min_ratio"], ours["speedup_max_ratio"]) == (2.0, 9.0)
    assert (ours["equal_texts_share"], ours["wer_between_share"]) == (0.0, 0.5)


def test_ratio_compares_adjacent_turns() -> None:
    """The machine slows down threefold, for both sides alike."""
    log: list[tuple[str, int | None]] = []
    slower = [1.0, 1.0, 2.0, 3.0]
    ours = FakeSide("fastscribe", log, lambda turn, _: slower[(turn - 1) // 2])
    peer = FakeSide("peer", log, lambda turn, _: 2 * slower[(turn - 1) // 2])
    first, _ = compared(ours, peer, [1], 3)
    assert first["speedup_min_ratio"] == first["speedup_ratio"] == first["speedup_max_ratio"] == 2.0


@pytest.mark.parametrize(
    ("ours_s", "peer_s", "short", "overlap"),
    [
        ([5.0, 5.2], [9.0, 9.5], False, False),
        ([5.0, 9.1], [9.0, 9.5], False, True),
        ([0.05, 0.06], [9.0, 9.5], True, False),
        ([9.0, 9.4], [0.2, 9.1], False, True),
    ],
)
def test_unreliable_ratio_has_a_warning(ours_s: list[float], peer_s: list[float], short: bool, overlap: bool) -> None:
    def case(side: str, size: int | None, walls_s: list[float]) -> turns.Case:
        made = turns.Case(FakeSide(side, []), size)  # type: ignore[arg-type]
        made.wall_s, made.cpu_s, made.texts, made.beside_s = walls_s, walls_s, ["a"], ours_s
        return made

    found = " ".join(turns.caveats(turns.rows(case("fastscribe", None, ours_s), [case("peer", 1, peer_s)], 10.0)))
    assert ("more recordings" in found, "overlap" in found) == (short, overlap)


def test_measured_turns_survive_an_early_end() -> None:
    mine, theirs = (
        turns.Case(FakeSide("fastscribe", []), None),
        [turns.Case(FakeSide("peer", []), size) for size in (1, 8)],
    )
    for case in (mine, theirs[0]):
        case.wall_s, case.cpu_s, case.texts = [1.0], [1.0], ["a"]
    ours, first, second = turns.rows(mine, theirs, 10.0)
    assert ours["rtfx"] == first["rtfx"] == 10.0 and "speedup_ratio" not in ours
    assert second["error"] == "no turn that counts" and turns.caveats([ours, first, second]) == []


def test_failed_batch_size_leaves_the_comparison() -> None:
    log: list[tuple[str, int | None]] = []
    peer = FakeSide("peer", log, lambda _, size: None if size == 8 else 1.0)
    row = compared(FakeSide("fastscribe", log), peer, [1, 8], 2)[2]
    assert log.count(("peer", 8)) == 1
    assert row == {"side": "peer", "dtype": "fp32", "batch_size": 8, "error": "MemoryError: too much"}


def test_side_without_results_ends_the_comparison() -> None:
    log: list[tuple[str, int | None]] = []
    with pytest.raises(SideFailed, match="the peer side: every turn failed: MemoryError") as caught:
        compared(FakeSide("fastscribe", log), FakeSide("peer", log, lambda *_: None), [1, 8], 2)
    assert caught.value.messages == "its last words"
    with pytest.raises(SideFailed, match="the fastscribe side"):
        compared(FakeSide("fastscribe", log, lambda *_: None), FakeSide("peer", log), [1], 2)


WORDS = st.lists(st.sampled_from(["a", "b", "c", "won't"]), max_size=8)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_the_difference_between_texts_is_a_word_error_rate(pairs: list[tuple[list[str], list[str]]]) -> None:
    ours, theirs = ([" ".join(words) for words in side] for side in zip(*pairs, strict=True))
    found = turns.word_difference(ours, theirs)
    if not any(theirs):
        assert found is None
    else:
        assert found == pytest.approx(jiwer.process_words(theirs, ours).wer)


def test_word_errors_ignore_case_and_punctuation() -> None:
    assert turns.words("Well -- DON'T, (stop)!") == ["well", "don't", "stop"]
    assert turns.word_difference(["Hello, world."], ["hello world"]) == 0.0
    assert turns.equal_share(["Hello.", "Yes."], ["hello", "Yes."]) == 0.5


# --- recordings -------------------------------------------------------------------------------------------------------


def test_recordings_are_copied_only_if_the_peer_needs_it(tmp_path: Path) -> None:
    plain, both, slow = (tmp_path / f"{name}.wav" for name in ("plain", "both", "slow"))
    soundfile.write(plain, np.arange(16000, dtype=np.int16), 16000)
    soundfile.write(both, np.zeros((20000, 2), dtype=np.int16), 16000)
    soundfile.write(slow, np.zeros(12000, dtype=np.int16), 8000)
    stereo = AUDIO / "e08_stereo_44k1.flac"
    given = [str(path) for path in (plain, both, slow, stereo, RECORDINGS[0])]
    copied = {}
    for takes in ("any", "mono", "wav"):
        found = gather(given, takes, tmp_path)
        assert [one.duration_s for one in found] == sorted((one.duration_s for one in found), reverse=True)
        copied[takes] = {one.duration_s for one in found if one.is_copy}
        for one in found:
            info = soundfile.info(one.path)
            assert info.frames / info.samplerate == pytest.approx(one.duration_s, abs=0.001)
            assert takes == "any" or info.channels == 1
    length_s = {path: soundfile.info(path).duration for path in (both, slow, stereo, RECORDINGS[0])}
    assert copied == {"any": set(), "mono": {length_s[both], length_s[stereo]}, "wav": set(length_s.values())}


def test_a_copy_holds_the_same_samples(tmp_path: Path) -> None:
    (copy,) = gather([str(RECORDINGS[0])], "wav", tmp_path)
    assert np.array_equal(soundfile.read(copy.path, dtype="int16")[0], soundfile.read(RECORDINGS[0], dtype="int16")[0])


def test_unusable_recordings_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a manifest's row"):
        gather([str(AUDIO.parent / "manifest.jsonl")], "any", tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        gather([str(tmp_path / "none.wav")], "any", tmp_path)


# --- peers --------------------------------------------------------------------------------------------------------------


def test_missing_peer_is_one_line(bare_python: Path) -> None:
    for peer in peers.PEERS.values():
        with pytest.raises(UsageError, match=r"-m pip install") as caught:
            peers.check_installed(peer, bare_python)
        assert peer.install in str(caught.value) and str(bare_python) in str(caught.value)
    arguments = ["bench", "--against", "faster-whisper", str(RECORDINGS[0]), "--peer-python", str(bare_python)]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, UsageError)  # which is exit code 2
    with pytest.raises(UsageError, match="cannot be run"):
        peers.check_installed(peers.find("nemo"), Path("/no/such/python"))
    with pytest.raises(UsageError, match="no Python that works: exit code 1: no word"):
        peers.check_installed(peers.find("nemo"), Path("/bin/false"))


def test_peer_gets_the_same_checkpoint_if_it_can() -> None:
    nemo, transformers, whisper = (peers.find(name) for name in ("nemo", "transformers", "faster-whisper"))
    folder = MODELS / "hf_tdt_demo"
    assert peers.choose_model(nemo, DEMO, None) == (str(DEMO), True)
    assert peers.choose_model(transformers, folder, None) == (str(folder), True)
    assert peers.choose_model(whisper, DEMO, "tiny.en") == ("tiny.en", False)
    for peer, path in ((nemo, folder), (transformers, DEMO), (whisper, DEMO)):
        with pytest.raises(UsageError, match="--peer-model"):
            peers.choose_model(peer, path, None)
    with pytest.raises(UsageError, match="not one of nemo, transformers, faster-whisper, onnx-asr"):
        peers.find("kaldi")


def test_the_worker_needs_nothing_but_the_peer() -> None:
    """It runs without fastscribe: top-level imports are the standard library's, the others the side's."""
    tree = ast.parse(Path(worker.__file__).read_text(encoding="utf-8"))
    assert _imported(tree.body) <= sys.stdlib_module_names
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name != "load_fastscribe":
            assert "fastscribe" not in _imported(ast.walk(node))
    assert set(worker.LOADERS) == {*peers.PEERS, turns.OURS}


def _imported(nodes: Any) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


# --- processes ------------------------------------------------------------------------------------------------------------


def test_worker_runs_without_fastscribe(fake_peer: Path, bare_python: Path) -> None:
    side = Worker(bare_python, settings("faster-whisper", fake_model(fake_peer, too_large=16)))
    try:
        assert side.info["dtype"] == "fp32" and side.info["load_s"] > 0
        assert side.info["versions"]["no-such-package"] is None and side.info["versions"]["python"]
        for batch_size in (1, 8):
            found = side.turn(batch_size)
            assert found["texts"] == [texts()[path.stem] for path in RECORDINGS]
            assert found["wall_s"] > 0 and found["cpu_s"] >= 0
        assert side.turn(16) == {"error": "MemoryError: too much"}
        assert side.turn(1)["texts"]
        assert "chatter" in side.said()
    finally:
        side.stop()
    assert side._process.returncode == 0


def test_dead_worker_reports_its_last_output(fake_peer: Path, bare_python: Path) -> None:
    with pytest.raises(SideFailed, match="ended with code 7: cannot go on like this") as caught:
        Worker(bare_python, settings("faster-whisper", fake_model(fake_peer, dies=True)))
    assert "chatter" in caught.value.messages


def test_a_worker_that_hangs_is_killed(bare_python: Path, fake_peer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GOODBYE_S", 0.3)
    package = fake_peer / "site" / "faster_whisper" / "__init__.py"
    package.write_text(FAKE + "\nimport atexit, time\natexit.register(time.sleep, 60)\n", encoding="utf-8")
    side = Worker(bare_python, settings("faster-whisper", fake_model(fake_peer)))
    side.stop()
    assert side._process.returncode == -9


def test_decoders_warnings_are_kept(fake_peer: Path, bare_python: Path) -> None:
    package = fake_peer / "site" / "faster_whisper" / "__init__.py"
    line = "Cuda graphs with while loops are disabled, decoding speed will be slower"
    package.write_text(FAKE + f"\nprint({line!r}); print({line!r})\n", encoding="utf-8")
    side = Worker(bare_python, settings("faster-whisper", fake_model(fake_peer)))
    side.turn(1)
    assert side.fallback_lines() == [line]
    side.stop()


# --- the command ------------------------------------------------------------------------------------------------------------


def against(model: Path, python: Path, *more: str) -> Sequence[str]:
    recordings = [str(path) for path in RECORDINGS]
    options = ["--model", str(DEMO), "--device", "cpu", "--dtype", "fp32", "--peer-model", str(model)]
    return ["bench", "--against", "faster-whisper", *recordings, *options, "--peer-python", str(python), *more]


def test_the_command_compares_and_leaves_a_document(fake_peer: Path, bare_python: Path) -> None:
    """The peer returns fastscribe's texts, except for one."""
    model = fake_model(fake_peer, texts=texts() | {RECORDINGS[1].stem: "nothing like it"}, too_large=4)
    stored = fake_peer / "found.json"
    done = CliRunner().invoke(app, against(model, bare_python, "--peer-batch-sizes", "1,4", "--json", str(stored)))
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert document == json.loads(stored.read_text(encoding="utf-8"))
    assert (document["benchmark"], document["same_checkpoint"], document["files"]) == ("against", False, 2)
    assert document["model"] == "tdt_demo" and document["peer_model"] == str(model)
    assert document["random_weights"] is False and "random" not in done.stderr
    assert document["case_keys"] == ["side", "dtype", "batch_size"]
    ours, peer, failed = document["rows"]
    assert (ours["side"], peer["side"], failed["error"]) == ("fastscribe", "faster-whisper", "MemoryError: too much")
    assert len(peer["wall_s_runs"]) == document["runs"] == 5
    assert ours["equal_texts_share"] == 0.5 and ours["wer_between_share"] > 0.2 and "speedup_ratio" in ours
    assert ours["batch_frames"] >= 100 and "batch_frames" not in peer
    assert document["complete"] and any("more recordings" in caveat for caveat in document["caveats"])
    assert "more recordings" in done.stderr
    assert document["versions"]["fastscribe"]["torch"] and document["machine"]["cpu_cores"]
    assert "chatter" not in done.output and "not fastscribe's checkpoint" in done.output


def test_random_weights_are_reported(fake_peer: Path, bare_python: Path) -> None:
    folder = fake_peer / "random"
    with tarfile.open(DEMO) as archive:
        archive.extractall(folder, filter="data")
    with (folder / "model_config.yaml").open("a", encoding="utf-8") as config:
        config.write("\nrandom_weights: true\n")  # as scripts/goldens/make_random_parakeet.py marks what it makes
    asked = [*against(fake_model(fake_peer, texts=texts()), bare_python), "--model", str(folder)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["random_weights"] is True
    assert "says little: the weights are random" in done.stderr


def test_a_failing_peer_is_shown_and_ends_the_command(fake_peer: Path, bare_python: Path) -> None:
    done = CliRunner().invoke(app, against(fake_model(fake_peer, dies=True), bare_python))
    assert isinstance(done.exception, SideFailed)
    assert "chatter" in done.output and "cannot go on" in str(done.exception)


def test_too_few_runs_are_refused(fake_peer: Path, bare_python: Path) -> None:
    done = CliRunner().invoke(app, against(fake_model(fake_peer), bare_python, "--passes", "2"))
    assert isinstance(done.exception, UsageError) and "at least 5" in str(done.exception)


def test_transformers_gets_the_prompt_of_cohere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processor needs a language and gives prompt and parts; without a limit its texts would have 20 tokens."""
    asked: list[Any] = []

    class Given(dict):
        def to(self, device: str, dtype: object) -> Given:
            return self

    class Processor:
        feature_extractor = SimpleNamespace(sampling_rate=16000)

        def __call__(self, audio: list[str], **options: Any) -> Given:
            asked.append((audio, options["language"]))
            return Given(input_features=0, audio_chunk_index=[(0, None)], decoder_input_ids=np.array([[7, 8, 9]]))

        def decode(self, ids: object, **options: Any) -> list[str]:
            asked.append((ids, options["language"], options["audio_chunk_index"]))
            return ["text"]

    class Model:
        generation_config = SimpleNamespace(decoder_start_token_id=None)

        def to(self, device: str) -> Model:
            return self

        def eval(self) -> Model:
            return self

        def generate(self, **given: Any) -> str:
            asked.append((sorted(given), given["max_new_tokens"], self.generation_config.decoder_start_token_id))
            return "ids"

    config = SimpleNamespace(model_type="cohere_asr", architectures=["Cohere"], max_position_embeddings=48)
    fake = ModuleType("transformers")
    for name, made in (("AutoConfig", config), ("AutoProcessor", Processor()), ("Cohere", Model())):
        setattr(fake, name, SimpleNamespace(from_pretrained=lambda path, made=made, **options: made))
    utils = ModuleType("transformers.audio_utils")
    monkeypatch.setattr(utils, "load_audio", lambda path, sampling_rate: path, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.setitem(sys.modules, "transformers.audio_utils", utils)
    settings = {"model": "m", "device": "cpu", "dtype": "fp32", "threads": torch.get_num_threads(), "paths": ["a", "b"]}
    transcribe, _ = worker.load_transformers(settings)
    assert transcribe(2) == ["text"]
    given = ["decoder_input_ids", "input_features", "max_new_tokens"]
    assert asked == [(["a", "b"], "en"), (given, 45, 7), ("ids", "en", [(0, None)])]
