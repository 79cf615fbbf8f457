"""`fastscribe bench --against`: turns are fair, texts are compared, and a failing or missing peer is reported."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
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

from fastscribe.bench.peer_comparison import compare, exporter, exports, peers, process, turns, worker
from fastscribe.bench.peer_comparison.process import SideFailed, Worker
from fastscribe.bench.peer_comparison.recordings import gather, write_lone
from fastscribe.cli import app
from fastscribe.errors import UsageError
from tests.conftest import AUDIO, MODELS, ROOT, golden
from tests.helpers.archives import unpacked

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
        return [SimpleNamespace(text=" " + self.asked["texts"].get(Path(path).stem, ""))], None

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
    common = {"device": "cpu", "dtype": "fp32", "threads": 1, "root": "", "packages": packages, "alone": paths[1]}
    return {"side": side, "model": str(model), "paths": paths, **common}


# --- turns ----------------------------------------------------------------------------------------------------------


class FakeSide:
    """A side that takes a given time per turn and records its turns. `seconds` may be a function of the number of turns so
    far, of all sides, and the batch size."""

    def __init__(
        self,
        side: str,
        log: list[tuple[str, int | None]],
        seconds: Any = 1.0,
        text: str = "a b",
        dtype: str = "fp32",
        cpu_share: float = 2.0,
    ) -> None:
        self.side, self.info = side, {"dtype": dtype}
        self._log, self._seconds, self._text, self._cpu_share = log, seconds, text, cpu_share
        self.alone: list[int | None] = []

    def turn(self, batch_size: int | None, alone: bool = False) -> dict[str, Any]:
        if alone:
            self.alone.append(batch_size)
            return {"wall_s": 0.25, "cpu_s": 0.5, "texts": [self._text]}
        self._log.append((self.side, batch_size))
        seconds = self._seconds(len(self._log), batch_size) if callable(self._seconds) else self._seconds
        if seconds is None:
            return {"error": "MemoryError: too much"}
        return {"wall_s": seconds, "cpu_s": self._cpu_share * seconds, "texts": [self._text]}

    def said(self) -> str:
        return "its last words"


def silent(_: str) -> None:
    pass


def cases_of(ours: Sequence[FakeSide], peers: Sequence[FakeSide], sizes: Sequence[int]) -> list[turns.Case]:
    return [turns.Case(side, None) for side in ours] + [turns.Case(side, size) for side in peers for size in sizes]


def compared(
    ours: FakeSide, peer: FakeSide, batch_sizes: Sequence[int], runs: int, audio_s: float = 10.0
) -> list[dict]:
    cases = cases_of([ours], [peer], batch_sizes)
    turns.take_turns(cases, [], runs, silent)
    return turns.rows(cases, audio_s, {"peer": {}})


def test_every_second_round_goes_backwards() -> None:
    log: list[tuple[str, int | None]] = []
    compared(FakeSide("fastscribe", log), FakeSide("peer", log), [1, 8], 3)
    there = [("fastscribe", None), ("peer", 1), ("peer", 8)]
    back = there[::-1]
    assert log == there + back + there + back


def test_warm_up_does_not_count_best_size_does() -> None:
    log: list[tuple[str, int | None]] = []
    seconds = {1: [50.0, 3.0, 5.0, 4.0], 8: [50.0, 2.0, 2.5, 9.0]}
    left = {size: iter(values) for size, values in seconds.items()}
    peer = FakeSide("peer", log, lambda _, size: next(left[size]), text="a c")
    ours, small, large = compared(FakeSide("fastscribe", log), peer, [1, 8], 3, audio_s=100.0)
    assert (small["wall_s"], small["wall_min_s"], small["wall_max_s"]) == (4.0, 3.0, 5.0)
    assert large["wall_s_runs"] == [2.0, 2.5, 9.0] and large["rtfx"] == 40.0 and large["cpu_s"] == 5.0
    assert len(ours["wall_s_runs"]) == 3 and ours["characters"] == 3
    assert (ours["peer"], ours["peer_best_batch_size"], ours["speedup_ratio"], ours["cpu_ratio"]) == (
        "peer",
        8,
        2.5,
        2.5,
    )
    assert (ours["speedup_min_ratio"], ours["speedup_max_ratio"]) == (2.0, 9.0)
    assert (ours["equal_texts_share"], ours["wer_between_share"]) == (0.0, 0.5)


def test_ratio_compares_turns_of_a_round() -> None:
    """The machine slows down threefold, for both sides alike."""
    log: list[tuple[str, int | None]] = []
    slower = [1.0, 1.0, 2.0, 3.0]
    ours = FakeSide("fastscribe", log, lambda turn, _: slower[(turn - 1) // 2])
    peer = FakeSide("peer", log, lambda turn, _: 2 * slower[(turn - 1) // 2])
    first, _ = compared(ours, peer, [1], 3)
    assert first["speedup_min_ratio"] == first["speedup_ratio"] == first["speedup_max_ratio"] == 2.0


def test_far_slower_batch_size_takes_no_more_turns() -> None:
    log: list[tuple[str, int | None]] = []
    rows = compared(FakeSide("fastscribe", log), FakeSide("peer", log, lambda _, size: 6.0 - size), [1, 4], 2)
    assert log.count(("peer", 1)) == 1 and log.count(("peer", 4)) == 3
    assert rows[1]["error"] == "left out: the warm-up took 5.0 s, that of batch 4 2.0 s"
    near = FakeSide("peer", log, lambda _, size: 2.0 + size / 100)
    assert all("error" not in row for row in compared(FakeSide("fastscribe", log), near, [1, 4], 2))


def test_a_size_that_the_machine_held_up_stays() -> None:
    """Its wall clock is far longer, its processor time is not."""
    case, slow = (turns.Case(FakeSide("peer", []), size) for size in (1, 8))
    turns.drop_slow([case, slow], {id(case): {"wall_s": 1.0, "cpu_s": 2.0}, id(slow): {"wall_s": 9.0, "cpu_s": 2.1}})
    assert slow.error is None


def test_dtypes_are_compared_with_their_counterparts_and_with_all() -> None:
    log: list[tuple[str, int | None]] = []
    ours = [FakeSide("fastscribe", log, 2.0), FakeSide("fastscribe", log, 1.0, dtype="int8")]
    nemo = [FakeSide("nemo", log, 4.0), FakeSide("nemo", log, 3.0, dtype="bf16", cpu_share=1.0)]
    onnx = [FakeSide("onnx-asr", log, 5.0), FakeSide("onnx-asr", log, 3.5, dtype="int8")]
    cases = cases_of(ours, [*nemo, *onnx], [8])
    alone = [turns.Lone(case.side) for case in cases]
    loads = turns.take_turns(cases, alone, 2, silent)
    assert len(loads) == 3 and all(len(one.wall_s) == 2 * turns.LONE_TURNS for one in alone)
    assert ours[0].alone == [None] * 6 and nemo[0].alone == [1] * 6
    fp32, int8, *_ = turns.rows(cases, 10.0, {"nemo": {"int8": "bf16"}, "onnx-asr": {}})
    assert (fp32["peer"], fp32["peer_dtype"], fp32["speedup_ratio"]) == ("nemo", "fp32", 2.0)
    assert (int8["peer"], int8["peer_dtype"], int8["speedup_ratio"], int8["cpu_ratio"]) == ("nemo", "bf16", 3.0, 1.5)
    sides = [
        {"side": one.side.side, "dtype": one.side.info["dtype"], "load_s": 2.0 + number, "load_cpu_s": 1.0, **one.row()}
        for number, one in enumerate(alone)
    ]
    found = {(row["dtype"], row["peer"], row["peer_dtype"]): row for row in turns.comparisons(cases, sides)}
    assert len(found) == 8
    row = found["int8", "onnx-asr", "int8"]
    assert (row["speedup_ratio"], row["latency_ratio"], row["load_ratio"]) == (3.5, 1.0, round(7 / 3, 3))


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
        made.wall_s, made.cpu_s, made.texts = walls_s, walls_s, ["a"]
        return made

    cases = [case("fastscribe", None, ours_s), case("peer", 1, peer_s)]
    found = " ".join(turns.caveats(turns.rows(cases, 10.0, {"peer": {}})))
    assert ("more recordings" in found, "overlap" in found) == (short, overlap)


def test_measured_turns_survive_an_early_end() -> None:
    mine, theirs = (
        turns.Case(FakeSide("fastscribe", []), None),
        [turns.Case(FakeSide("peer", []), size) for size in (1, 8)],
    )
    for case in (mine, theirs[0]):
        case.wall_s, case.cpu_s, case.texts = [1.0], [1.0], ["a"]
    ours, first, second = turns.rows([mine, *theirs], 10.0, {"peer": {}})
    assert ours["rtfx"] == first["rtfx"] == 10.0 and ours["speedup_ratio"] == 1.0
    assert second["error"] == "no turn that counts" and len(turns.caveats([ours, first, second])) == 1


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
    with pytest.raises(UsageError, match="not one of nemo, transformers, faster-whisper, onnx-asr, sherpa-onnx"):
        peers.find("kaldi")


@pytest.mark.parametrize("program", [worker, exporter])
def test_the_worker_needs_nothing_but_the_peer(program: ModuleType) -> None:
    """It runs without fastscribe: top-level imports are the standard library's, the others the side's."""
    assert program.__file__ is not None
    tree = ast.parse(Path(program.__file__).read_text(encoding="utf-8"))
    assert _imported(tree.body) <= sys.stdlib_module_names
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name != "load_fastscribe":
            assert "fastscribe" not in _imported(ast.walk(node))
    assert set(worker.LOADERS) == {*peers.PEERS, turns.OURS}
    assert (
        set(exporter.GRAPHS) == set(exporter.VOCABULARIES) == {one.name for one in peers.PEERS.values() if one.exported}
    )


def _imported(nodes: Any) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


# --- exports ------------------------------------------------------------------------------------------------------------

# Stand in for NeMo and its like, which the export looks for before it begins.
EXPORT_MODULES = ("nemo/collections/asr", "onnx", "onnxruntime")
# Stands in for exporter.py: it says what it was asked for, and fails if the model's name says so.
FAKE_EXPORTER = """
import json, sys
from pathlib import Path
asked = json.loads(sys.stdin.readline())
folder = Path(asked["folder"])
(folder / "encoder.onnx").write_text(asked["peer"])
(folder / "int8").write_text(asked["int8_weights"])
if "broken" in asked["model"]:
    sys.exit("no such layer")
(folder / "config.json").write_text("{}")
print(json.dumps({"files": []}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def export_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules by these names for every Python, an exporter without needs, and a cache folder."""
    for module in EXPORT_MODULES:
        folder = tmp_path / "site" / module
        folder.mkdir(parents=True)
        for one in (folder, *folder.parents):
            if one != tmp_path / "site" and one.is_relative_to(tmp_path / "site"):
                (one / "__init__.py").touch()
    (tmp_path / "exporter.py").write_text(FAKE_EXPORTER, encoding="utf-8")
    monkeypatch.setattr(exports, "_EXPORTER", tmp_path / "exporter.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("export_modules")
def test_an_export_is_made_once_and_said(tmp_path: Path, bare_python: Path) -> None:
    model, said = tmp_path / "small.nemo", []
    model.write_bytes(b"weights")
    found = [
        exports.exported(peers.find(name), model, bare_python, said.append) for name in ("onnx-asr", "sherpa-onnx")
    ]
    assert [(one / "encoder.onnx").read_text() for one in found] == ["onnx-asr", "sherpa-onnx"]
    assert found[0].is_relative_to(tmp_path / "cache" / "fastscribe") and "small" in found[0].name
    assert str(model) in said[0] and str(found[0]) in said[0] and "exporting" in said[0]
    assert exports.exported(peers.find("onnx-asr"), model, bare_python, said.append) == found[0]
    assert len(said) == 3 and "is kept in" in said[2] and str(found[0]) in said[2]
    model.write_bytes(b"other weights")
    assert exports.exported(peers.find("onnx-asr"), model, bare_python, said.append) != found[0]


@pytest.mark.usefixtures("export_modules")
def test_int8_weights_are_those_that_onnxruntime_multiplies_rightly(
    tmp_path: Path, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "small.nemo"
    model.touch()
    for has_vnni, weights in ((True, "signed"), (False, "unsigned")):
        monkeypatch.setattr(exports, "has_native_int8", lambda has_vnni=has_vnni: has_vnni)
        assert (exports.exported(peers.find("onnx-asr"), model, bare_python, silent) / "int8").read_text() == weights


@pytest.mark.usefixtures("export_modules")
def test_a_failed_export_leaves_nothing(tmp_path: Path, bare_python: Path) -> None:
    model = tmp_path / "broken.nemo"
    model.touch()
    with pytest.raises(SideFailed, match=r"the onnx-asr export side: .* no such layer"):
        exports.exported(peers.find("onnx-asr"), model, bare_python, silent)
    assert list((tmp_path / "cache" / "fastscribe" / "peer-exports").iterdir()) == []
    (tmp_path / "cache" / "fastscribe" / "peer-exports").rmdir()
    (tmp_path / "cache" / "fastscribe" / "peer-exports").touch()
    with pytest.raises(UsageError, match=r"cannot be written: .*XDG_CACHE_HOME"):
        exports.exported(peers.find("onnx-asr"), model, bare_python, silent)


@pytest.mark.usefixtures("export_modules")
def test_missing_export_packages_are_one_line(tmp_path: Path, bare_python: Path) -> None:
    shutil.rmtree(tmp_path / "site" / "onnx")
    with pytest.raises(UsageError, match=r"needs onnx: .* -m pip install onnx; or .*--peer-model") as caught:
        exports.exported(peers.find("sherpa-onnx"), DEMO, bare_python, silent)
    assert str(bare_python) in str(caught.value) and str(DEMO) in str(caught.value)
    shutil.rmtree(tmp_path / "site" / "nemo")
    with pytest.raises(UsageError, match=r"needs nemo.collections.asr, onnx: .* install 'nemo_toolkit\[asr\]' onnx;"):
        exports.exported(peers.find("sherpa-onnx"), DEMO, bare_python, silent)
    with pytest.raises(UsageError, match=r"it reads a \.nemo file, exported to ONNX, which .* is not"):
        peers.choose_model(peers.find("sherpa-onnx"), MODELS / "hf_tdt_demo", None)


@pytest.mark.parametrize(
    ("decoding", "joint", "kind"), [({"durations": [0, 1]}, 1, "tdt"), ({}, 1, "rnnt"), ({}, None, "ctc")]
)
def test_kinds_of_exported_models(decoding: dict, joint: int | None, kind: str) -> None:
    assert exporter.kind_of(SimpleNamespace(joint=joint, cfg=SimpleNamespace(decoding=decoding))) == kind


def test_real_exports_say_what_fastscribe_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs a Python with NeMo, onnx, onnxruntime and both peers, which FASTSCRIBE_TEST_PEER_PYTHON names."""
    named = os.environ.get("FASTSCRIBE_TEST_PEER_PYTHON")
    if named is None:
        pytest.skip("FASTSCRIBE_TEST_PEER_PYTHON names no Python with NeMo, onnxruntime, onnx-asr and sherpa-onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wavs = [one.path for one in gather([str(path) for path in RECORDINGS], "wav", tmp_path)]
    for name in ("onnx-asr", "sherpa-onnx"):
        folder = exports.exported(peers.find(name), DEMO, Path(named), silent)
        for dtype in ("fp32", "int8"):
            side = Worker(Path(named), settings(name, folder) | {"dtype": dtype, "paths": wavs})
            assert side.info["dtype"] == dtype and side.info["versions"]["python"]
            assert sorted(side.turn(2)["texts"]) == sorted(texts()[path.stem] for path in RECORDINGS)
            side.stop()


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


def test_the_command_compares_and_leaves_a_document(
    fake_peer: Path, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer returns fastscribe's texts, except for one."""
    monkeypatch.setattr(compare, "LOADS", 2)
    model = fake_model(fake_peer, texts=texts() | {RECORDINGS[1].stem: "nothing like it"}, too_large=4)
    stored = fake_peer / "found.json"
    done = CliRunner().invoke(app, against(model, bare_python, "--peer-batch-sizes", "1,4", "--json", str(stored)))
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert document == json.loads(stored.read_text(encoding="utf-8"))
    assert (document["benchmark"], document["same_checkpoint"], document["files"]) == ("against", False, 2)
    assert document["model"] == "tdt_demo" and document["peer_models"] == {"faster-whisper": str(model)}
    assert document["random_weights"] is False and "random" not in done.stderr
    assert document["case_keys"] == ["side", "dtype", "batch_size"]
    ours, peer, failed = document["rows"]
    assert (ours["side"], peer["side"], failed["error"]) == ("fastscribe", "faster-whisper", "MemoryError: too much")
    assert len(peer["wall_s_runs"]) == document["runs"] == 5
    assert ours["equal_texts_share"] == 0.5 and ours["wer_between_share"] > 0.2 and "speedup_ratio" in ours
    assert ours["batch_frames"] >= 100 and "batch_frames" not in peer
    assert (
        document["refused"] == {}
        and document["complete"]
        and any("more recordings" in caveat for caveat in document["caveats"])
    )
    assert "more recordings" in done.stderr
    assert document["machine"]["cpu_cores"] and len(document["load_averages_1min"]) == 6
    for side in document["sides"]:
        assert len(side["load_s_runs"]) == len(side["load_cpu_s_runs"]) == 2 and len(side["latency_s_runs"]) == 10
    mine, whisper = document["sides"]
    assert document["versions"]["fastscribe"]["torch"] and (whisper["side"], whisper["dtype"]) == (
        "faster-whisper",
        "fp32",
    )
    (pair,) = document["comparisons"]
    assert (pair["dtype"], pair["peer"], pair["speedup_ratio"]) == ("fp32", "faster-whisper", ours["speedup_ratio"])
    assert pair["load_ratio"] == pytest.approx(whisper["load_s"] / mine["load_s"], abs=0.002)
    assert "chatter" not in done.output and "not fastscribe's checkpoint" in done.output


@pytest.mark.parametrize("is_random", [True, False])
def test_random_weights_are_reported(is_random: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of fastscribe tells the command, which copies it into its document, and the last lines follow that."""
    unpacked(tmp_path, DEMO)
    if is_random:
        with (tmp_path / "model_config.yaml").open("a", encoding="utf-8") as config:
            config.write("\nrandom_weights: true\n")  # as scripts/goldens/make_random_parakeet.py marks what it makes
    monkeypatch.setattr(sys, "path", list(sys.path))
    _, about = worker.load_fastscribe(settings("fastscribe", tmp_path) | {"root": str(ROOT)})
    assert about["random_weights"] is is_random and about["refused"] == {}
    log: list[tuple[str, int | None]] = []
    rows = compared(FakeSide("fastscribe", log), FakeSide("peer", log), [1], 3)
    dtypes = {"dtype": "fp32", "peer_dtype": "fp32"}
    document = {"rows": [row | dtypes for row in rows], "same_checkpoint": True, "caveats": []}
    (line,) = turns.about(document | {"random_weights": about["random_weights"]})
    assert ("says little: the weights are random" in line) == is_random


def test_a_failing_peer_is_shown_and_ends_the_command(
    fake_peer: Path, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a side of ours that is loaded."""

    def worker_or_stand_in(python: Path, settings: dict[str, Any]) -> object:
        if settings["side"] != "fastscribe":
            return Worker(python, settings)
        info = {"dtype": "fp32", "load_s": 1.0, "load_cpu_s": 1.0}
        return SimpleNamespace(side="fastscribe", info=info, stop=lambda: None)

    monkeypatch.setattr(compare, "Worker", worker_or_stand_in)
    done = CliRunner().invoke(app, against(fake_model(fake_peer, dies=True), bare_python))
    assert isinstance(done.exception, SideFailed)
    assert "chatter" in done.output and "cannot go on" in str(done.exception)


def test_too_few_runs_are_refused(fake_peer: Path, bare_python: Path) -> None:
    done = CliRunner().invoke(app, against(fake_model(fake_peer), bare_python, "--passes", "2"))
    assert isinstance(done.exception, UsageError) and "at least 3" in str(done.exception)


def test_a_peer_model_is_for_one_peer(fake_peer: Path, bare_python: Path) -> None:
    done = CliRunner().invoke(app, against(fake_model(fake_peer), bare_python, "--against", "onnx-asr"))
    assert isinstance(done.exception, UsageError) and "--peer-model" in str(done.exception)


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
    assert transcribe(["a", "b"], 2) == ["text"]
    given = ["decoder_input_ids", "input_features", "max_new_tokens"]
    assert asked == [(["a", "b"], "en"), (given, 45, 7), ("ids", "en", [(0, None)])]


@pytest.mark.parametrize(
    ("files", "config", "dtype", "called"),
    [
        (["encoder.int8.onnx"], {"features_size": 128}, "int8", ("from_transducer", 128, "encoder.int8.onnx")),
        (["encoder.onnx"], None, "bf16", ("from_transducer", 80, "encoder.onnx")),
        (["model.onnx"], {"features_size": 64}, "fp32", ("from_nemo_ctc", 64, "model.onnx")),
    ],
)
def test_sherpa_onnx_decodes_batches_of_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], config: dict | None, dtype: str, called: tuple
) -> None:
    decoded: list[int] = []

    class Stream:
        def accept_waveform(self, rate: int, samples: np.ndarray) -> None:
            self.result = SimpleNamespace(text=f"{rate} {len(samples)} {samples.dtype} {samples.max():.2f}")

    class Recognizer:
        def __init__(self, **given: Any) -> None:
            self.given = given

        def create_stream(self) -> Stream:
            return Stream()

        def decode_streams(self, streams: list[Stream]) -> None:
            decoded.append(len(streams))

    asked: list[tuple[str, dict]] = []

    def maker(name: str) -> Any:
        return lambda **given: asked.append((name, given)) or Recognizer(**given)

    fake = ModuleType("sherpa_onnx")
    kinds = ("from_transducer", "from_nemo_ctc")
    monkeypatch.setattr(
        fake, "OfflineRecognizer", SimpleNamespace(**{kind: maker(kind) for kind in kinds}), raising=False
    )
    monkeypatch.setitem(sys.modules, "sherpa_onnx", fake)
    for name in files:
        (tmp_path / name).touch()
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    paths = [str(tmp_path / f"{number}.wav") for number in range(3)]
    for number, path in enumerate(paths):
        soundfile.write(path, np.full(100 + number, 16384, dtype=np.int16), 16000)
    transcribe, about = worker.load_sherpa_onnx({"model": str(tmp_path), "dtype": dtype, "device": "cpu", "threads": 3})
    assert about == {"dtype": "int8" if dtype == "int8" else "fp32"}
    assert transcribe(paths, 2) == [f"16000 {100 + number} float32 0.50" for number in range(3)] and decoded == [2, 1]
    ((name, given),) = asked
    first = given.get("encoder", given.get("model"))
    assert (name, given["feature_dim"], Path(first).name) == called and given["num_threads"] == 3
    assert given.get("model_type") == ("nemo_transducer" if name == "from_transducer" else None)


def test_the_lone_recording_has_its_length(tmp_path: Path) -> None:
    some = gather([str(path) for path in RECORDINGS], "wav", tmp_path)
    path = write_lone(some, 20.0, tmp_path / "alone.wav")
    samples, rate = soundfile.read(path, dtype="int16")
    assert (len(samples), rate) == (320000, 16000)
    first, _ = soundfile.read(some[0].path, dtype="int16")
    assert np.array_equal(samples[: len(first)], first)
