"""Many files on a GPU get helper processes without an option; the inputs are listed while the model loads."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from fastscribe.audio.input_names import Repeats
from fastscribe.audio.inputs import expand
from fastscribe.cli import listing, run
from fastscribe.cli.listing import Listing
from fastscribe.cli.run_hooks import TranscribeJob
from fastscribe.config import Options, OutputStyle
from fastscribe.errors import UsageError
from fastscribe.ray.options import RayHook
from fastscribe.results.interfaces import OutputRun
from fastscribe.transcriber import Transcriber
from tests.conftest import AUDIO, FIRST, MODEL
from tests.helpers.warm_process import WARM

MANY = run.MANY_INPUTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with as many recordings as get helpers, and one that is none."""
    made = tmp_path_factory.mktemp("many")
    for number in range(MANY):
        (made / f"{number:03d}.wav").touch()
    (made / "notes.txt").touch()
    return made


def job(*inputs: object, device: str = "auto", options: Options | None = None) -> TranscribeJob:
    output = OutputRun(OutputStyle(), {}, inputs=[str(one) for one in inputs], place=Path("out"))
    chosen = Options() if options is None else options
    return TranscribeJob("model", device, "auto", chosen, output, None)


def helped_gpu(job: TranscribeJob) -> int | None:
    return run._helped_gpu(job, Listing(job.output.inputs))


@pytest.mark.parametrize(("device", "gpu"), [("auto", 0), ("cuda", 0), ("cuda:1", 1), ("cuda:2", None), ("cpu", None)])
def test_many_files_on_a_gpu_get_helpers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, gpu: int | None
) -> None:
    monkeypatch.setattr(run, "num_gpus", lambda: 2)
    assert helped_gpu(job(folder, device=device)) == gpu


def test_other_runs_stay_in_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files, models that see whole recordings, a cluster, devices by name, and a machine without a GPU; --threads 0."""
    monkeypatch.setattr(run, "num_gpus", lambda: 1)
    few = job(*sorted(folder.glob("*.wav"))[1:])
    others = [Options(speakers="model"), Options(rttm="turns"), Options(speakers="model", voices="model")]
    for one in (few, *(job(folder, options=options) for options in others), replace(job(folder), hooks=(RayHook(),))):
        assert helped_gpu(one) is None
    assert helped_gpu(job(folder, options=Options(speakers="channels"))) == 0
    assert helped_gpu(job(folder, options=Options(threads=4))) == 0
    assert helped_gpu(job(folder, options=Options(threads=0))) is None
    assert helped_gpu(replace(job(folder), devices="0,1")) is None
    monkeypatch.setattr(run, "num_gpus", lambda: 0)
    assert helped_gpu(job(folder)) is None


def test_what_may_be_many_counts_as_many(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(path) for path in sorted(folder.glob("*.wav"))]
    assert Listing([str(folder)]).has_many(MANY) and not Listing([str(folder)]).has_many(MANY + 1)
    assert Listing(paths).has_many(MANY) and not Listing(paths[1:]).has_many(MANY)
    assert not Listing(["https://example.org/a.wav"]).has_many(MANY)
    monkeypatch.setattr(run, "num_gpus", lambda: 1)
    monkeypatch.setattr(run.sys, "stdin", None)
    assert helped_gpu(job("-")) == 0


@pytest.mark.posix
def test_a_slow_list_may_be_of_many_and_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe is opened once. Its rows come when the listing has been asked."""
    monkeypatch.setattr(listing, "MAX_WAIT_S", 0.01)
    os.mkfifo(tmp_path / "pipe.jsonl")
    slow = Listing([str(tmp_path / "pipe.jsonl")])
    assert slow.has_many(MANY) and slow.number is None and not slow.is_whole
    with open(tmp_path / "pipe.jsonl", "w") as pipe:
        pipe.write('{"audio_filepath": "a.wav"}\n' * 3)
    assert [Path(one.path).name for one in slow] == ["a.wav"] * 3 and slow.number == 3


def test_the_listing_is_that_of_the_run(folder: Path) -> None:
    """Looking ahead takes nothing away."""
    inputs = [str(folder), str(folder / "000.wav"), str(folder / "gone.wav")]
    found, repeats = Listing(inputs), Repeats()
    expected = list(expand(inputs, repeats=repeats))
    assert list(islice(found.ahead(), 3)) == expected[:3] and not found.is_whole
    assert list(islice(found.ahead(), 5)) == expected[:5]
    assert list(found.ahead()) == expected and found.is_whole
    assert list(found) == expected and found.number == len(expected) == MANY + 1
    assert dict(found.left_out) == {".txt": 1} and found.repeats.num == repeats.num == 1


def test_a_listing_is_not_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits for the run, and those who look ahead see as many inputs as may wait."""
    monkeypatch.setattr(listing, "_MAX_AHEAD", 3)
    listed: list[int] = []

    def rows(inputs: list[str], *counts: object):
        for row in range(100):
            listed.append(row)
            yield row

    monkeypatch.setattr(listing, "sources", rows)
    found = Listing(["a"])
    assert list(found.ahead()) == [0, 1, 2] and not found.is_whole and found.number is None
    taken = iter(found)
    assert list(islice(taken, 20)) == list(range(20)) and len(listed) <= 20 + 5
    assert list(taken) == list(range(20, 100)) and found.number == 100


@pytest.mark.parametrize("many", [5, 10])
def test_what_is_asked_of_all_inputs_does_not_stay(many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run lists them again then; those that fit stay."""
    monkeypatch.setattr(listing, "_MAX_AHEAD", 5)
    names = [f"{number}.wav" for number in range(many)]
    for name in (*names, "notes.txt"):
        (tmp_path / name).touch()
    found = Listing([str(tmp_path), str(tmp_path / names[0])])
    assert [Path(one.path).name for one in found.whole()] == names and found.is_whole
    assert found.number == many and len(found._held) == 5
    found.begin_again()
    assert [Path(one.path).name for one in found] == names and found.number == many
    assert dict(found.left_out) == {".txt": 1} and found.repeats.num == 1


def test_a_listing_that_has_begun_again_leaves_no_other_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MAX_AHEAD", 5)
    for number in range(40):
        (tmp_path / f"{number:02d}.wav").touch()
    before = {one for one in threading.enumerate() if one.name == "list-inputs"}
    found = Listing([str(tmp_path)])
    assert len(list(islice(found.whole(), 20))) == 20 and not found.is_whole
    [first] = {one for one in threading.enumerate() if one.name == "list-inputs"} - before
    found.begin_again()
    first.join(30)
    assert not first.is_alive() and len(list(found)) == 40


@pytest.mark.posix
def test_a_pipe_is_never_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MAX_AHEAD", 2)
    os.mkfifo(tmp_path / "pipe.jsonl")
    found = Listing([str(tmp_path / "pipe.jsonl")])
    with open(tmp_path / "pipe.jsonl", "w") as pipe:
        pipe.write('{"audio_filepath": "a.wav"}\n' * 4)
    assert len(list(found.whole())) == 2 and not found.is_whole
    found.begin_again()
    assert len(list(found)) == 4


def test_a_long_list_has_a_number_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size gives the number. Folders and packed lists have none."""
    monkeypatch.setattr(listing, "_MAX_AHEAD", 5)
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number}.wav").touch()
    rows = b"".join(b'{"audio_filepath": "%04d.wav"}\n' % number for number in range(1000))
    monkeypatch.setattr(listing, "_SAMPLE_BYTES", len(rows) // 10)
    (tmp_path / "long.jsonl").write_bytes(rows)
    (tmp_path / "long.jsonl.gz").write_bytes(gzip.compress(rows))
    long, packed, folder = (str(tmp_path / name) for name in ("long.jsonl", "long.jsonl.gz", "in"))
    for inputs, expected in (([long], 1000), ([long, str(FIRST)], 1001), ([packed], None), ([long, folder], None)):
        found = Listing(inputs)
        first = list(islice(found, 7))
        assert len(first) == 7 and found.number == expected, inputs
    assert 7 + len(list(found)) == 1020 == found.number


def test_an_error_of_the_listing_comes_behind_what_was_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(inputs: list[str], *counts: object):
        yield from inputs
        raise MemoryError("no room")

    monkeypatch.setattr(listing, "sources", broken)
    whole = Listing(["a", "b"])
    assert list(whole.ahead()) == ["a", "b"] and not whole.is_whole
    found = iter(whole)
    assert [next(found), next(found)] == ["a", "b"]  # type: ignore[comparison-overlap]
    with pytest.raises(MemoryError, match="no room"):
        next(found)


@pytest.mark.posix
def test_the_command_that_coordinates_imports_no_torch(tmp_path: Path) -> None:
    """Its report has the seconds from the start of the command."""
    clips = sorted(AUDIO.glob("0[12]_*"))
    program = """if True:
        import atexit, sys
        from fastscribe.cli import main
        atexit.register(lambda: print("torch" in sys.modules))
        main()"""
    given = ["transcribe", *map(str, clips), "-m", str(MODEL), "-o", str(tmp_path), "--devices", "cpu:1", "--quiet"]
    done = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["files"] == len(clips)
    assert 0 < report["load_s"] < report["first_batch_s"] <= report["total_s"]


_GPU = """if True:
    import sys
    from fastscribe.cli import main, run
    from fastscribe.pipeline.workers import devices
    kind = sys.argv.pop(1)
    run.num_gpus, run.MANY_INPUTS = lambda: 1, 3
    devices.parse_devices = lambda text: (devices.Device(f"cuda:{text}", kind, 1, {}),)
    sys.exit(main())"""


@pytest.mark.posix
def test_a_command_with_many_files_ends_well_whatever_the_driver(tmp_path: Path) -> None:
    """A part of the processors plays the GPU; then one whose driver torch cannot use. The next command has nothing to do."""
    clips = sorted(AUDIO.glob("0[1-4]_*"))
    written = []
    for name, kind, more in (("here", "cpu", ("--threads", "0")), ("helped", "cpu", ()), ("refused", "cuda", ())):
        given = ("transcribe", *clips, "-m", MODEL, "-o", tmp_path / name, "-f", "jsonl,srt", "--dtype", "fp32", *more)
        done = WARM.python(_GPU, kind, *given)
        lines = [line for line in done.stderr.splitlines() if "no processes beside this one" in line]
        assert done.returncode == 0 and len(lines) == (name == "refused"), done.stderr
        rows = [path for path in (tmp_path / name).glob("*.jsonl") if path.name != "journal.jsonl"]
        texts = {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.srt")}  # a helper renders them
        written.append((sorted(line for path in rows for line in path.read_bytes().splitlines()), texts))
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert bool(report["devices"]) == (name == "helped")
        assert list(report["refused"]) == ["helpers"] * (name == "refused")
        if name == "helped":
            assert "nothing to do" in WARM.python(_GPU, kind, *given).stderr
    assert written[0] == written[1] == written[2] and [len(one) for one in written[0]] == [len(clips)] * 2


@pytest.mark.posix
def test_one_process_and_several_exclude_each_other(tmp_path: Path) -> None:
    done = WARM.run("transcribe", next(AUDIO.glob("01*")), "-m", MODEL, "--threads", "0", "--devices", "cpu:1")
    assert done.returncode == 2 and "--threads 0 keeps a run in one process" in done.stderr
    with pytest.raises(UsageError, match="threads 0 keeps a run in one process"):
        Transcriber.load(MODEL, options=Options(threads=0), devices="cpu:1")
