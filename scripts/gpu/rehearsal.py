"""Run the command on a simulated GPU, in its real processes, and compare its rows with those of a CPU.

    scripts/gpu_rehearsal [--scenes many,killed] [--python PYTHON] [--keep FOLDER]

Needs no GPU. The coordinator, the devices' processes and the helpers are the command's own; tests/fakes/gpu_processes gives
each of them a torch with a simulated CUDA device, which is strict about where tensors are. Triton kernels are interpreted.
The model has random weights and float32, so that rows are equal byte for byte. No fast path may be refused. It ends with 1 at
the first wrong thing. It says nothing about the speed of a GPU, the order of its streams, or compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.gpu.goals import read_rows

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "tests" / "fakes" / "gpu_processes"
SPEECH = ROOT / "tests" / "data" / "audio" / "01_0_00010.flac"
CUDA_TESTS = "tests/cuda/test_device_processes.py"
MANY = 300  # clips: more than the inputs from which on a GPU gets helpers
_DIFFERENT = 7  # the others are links to them
_TIMEOUT_S = 600  # of a command, also on a busy machine
# Of the encoder (families/conformer/operations.py).
OPERATIONS = (
    "rel_attention",
    "glu_depthwise",
    "layer_norm",
    "layer_norm_twice_",
    "first_convolutions",
    "relu_depthwise",
)


class Wrong(Exception):
    """What a scene did that it should not; str() is one line."""


@dataclass(frozen=True)
class Scene:
    """One run of the command.

    Attributes:
        name: Its name.
        about: What it tries.
        arguments: The command's, beside the clips, the model, the dtype and the output.
        gpus: What the simulated GPUs are like (tests/fakes/whole_cuda.Settings).
        devices: Processes of devices that decode on a GPU. 0: the command's own process does.
        goes_on_here: The command's own process decodes what they leave.
        happens: Events that must have happened.
        says: A line with these words must be on stderr.
        refused: Fast paths that are refused on purpose: report.json must have them, and no others.
        clips: Number of clips.
    """

    name: str
    about: str
    arguments: Sequence[str] = ("--device", "cuda")
    gpus: dict[str, Any] = field(default_factory=dict)
    devices: int = 1
    goes_on_here: bool = False
    happens: Sequence[str] = ()
    says: str = ""
    refused: Sequence[str] = ()
    clips: int = MANY


SCENES = (
    Scene("plain", "a few clips, in the command's own process", devices=0, clips=24),
    Scene("few", "a few clips, in a process of the device", ("--devices", "0"), clips=24),
    Scene(
        "kernels",
        "every fused operation is interpreted, in a batch and in graphs",
        ("--devices", "0", "--batch-size", "1"),
        {"interpreted_frames": 60},
        happens=[f"interpreted {name}" for name in OPERATIONS],
        clips=3,
    ),
    Scene("many", f"{MANY} clips with a GPU: helpers and a process of the device"),
    Scene("two", "--devices 0,1", ("--devices", "0,1"), {"gpus": 2}, devices=2),
    Scene(
        "killed",
        "a device's process is killed",
        gpus={"killed_at_copy": 3},
        devices=2,
        happens=["killed"],
        says="was killed by SIGKILL",
    ),
    Scene(
        "given_up",
        "each process of the device is killed; the run goes on in the command's process, with inputs that were not listed yet",
        ("--device", "cuda", "--window", "20"),
        {"killed_at_copy": 4, "dies_again": True},
        devices=4,
        goes_on_here=True,
        happens=["killed"],
        says="goes on in this process",
        refused=["helpers"],
    ),
    Scene(
        "memory",
        "batches find no memory and are halved",
        gpus={"largest_copy_bytes": 200_000},
        happens=["out of memory"],
    ),
    Scene(
        "model",
        "the device's process has no memory for its model; the run goes on in the command's process",
        gpus={"refuses_model": True},
        devices=0,
        happens=["model refused"],
        says="out of memory",
        refused=["helpers"],
    ),
    Scene(
        "pinning",
        "the memory that processes share cannot be pinned",
        gpus={"refuses_pinning": True},
        says="cannot be pinned",
        refused=["pinning"],
        clips=24,
        arguments=("--devices", "0"),
    ),
)


class Rehearsal:
    """Runs scenes.

    Args:
        python: The Python whose fastscribe is run.
        is_checkout: It runs this checkout's; else the one that is installed there.
        folder: Folder for all files.
        say: Called with a line at a time.
    """

    def __init__(self, python: str, is_checkout: bool, folder: Path, say: Callable[[str], None]) -> None:
        self._python, self._folder, self._say = python, folder, say
        self._paths = [str(ROOT)] if is_checkout else []
        self._rows: dict[int, list[str]] = {}  # of a CPU, by the number of clips

    def prepare(self) -> None:
        """Make the model and the clips."""
        self._folder.mkdir(parents=True, exist_ok=True)
        make_model(self._folder / "model")

    def run(self, scene: Scene) -> None:
        """Run a scene. Raises Wrong."""
        if scene.clips not in self._rows:
            done = self._command(
                replace(scene, name=f"cpu-{scene.clips}", arguments=("--device", "cpu")), simulated=None
            )
            self._rows[scene.clips] = rows_of(done.out)
            check_expected(scene, self._rows[scene.clips])
        done = self._command(scene, simulated=scene.gpus)
        check(scene, done, self._rows[scene.clips])

    def tests(self) -> None:
        """Run the tests of the devices' processes, which are marked cuda, on the simulated GPU. Raises Wrong."""
        command = [self._python, "-m", "pytest", "-p", "no:cacheprovider", CUDA_TESTS]
        done = self._process(command, {"interpreted_frames": 0}, self._folder / "tests.events", ROOT)
        last = done.stdout.strip().splitlines()[-1:]
        if done.returncode != 0 or "passed" not in "".join(last) or "skipped" in "".join(last):
            raise Wrong(f"{CUDA_TESTS}: exit code {done.returncode}: {done.stdout[-1500:]}{done.stderr[-500:]}")

    def _command(self, scene: Scene, simulated: dict[str, Any] | None) -> Done:
        clips, out = self._folder / f"clips-{scene.clips}", self._folder / "out" / scene.name
        if not clips.exists():
            make_clips(clips, scene.clips)
        shutil.rmtree(out, ignore_errors=True)
        events = self._folder / f"{scene.name}.events"
        command = [self._python, "-m", "fastscribe", "transcribe", str(clips), "-m", str(self._folder / "model")]
        command += ["--dtype", "fp32", "-o", str(out), "--no-progress", *scene.arguments]
        done = self._process(command, simulated, events, self._folder)
        return Done(done.returncode, done.stderr, out, read_rows(events))

    def _process(
        self, command: Sequence[str], simulated: dict[str, Any] | None, events: Path, where: Path
    ) -> subprocess.CompletedProcess[str]:
        once = events.with_suffix(".once")
        for path in (events, once):
            path.unlink(missing_ok=True)
        paths, env = list(self._paths), dict(os.environ)
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if simulated is not None:
            paths.insert(0, str(SITE))
            env |= {
                "SIMULATED_GPU": json.dumps({**simulated, "events": str(events), "once": str(once)}),
                "TRITON_INTERPRET": "1",
            }
        env["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            return subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise Wrong(f"no end after {_TIMEOUT_S} s: {(late.stderr or b'')[-500:]!r}") from late


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    stderr: str
    out: Path
    events: list[dict[str, Any]]

    def pids(self, event: str, is_worker: bool = True) -> set[int]:
        """Return the processes of devices, or the others, in which an event happened."""
        return {one["pid"] for one in self.events if one["event"] == event and one["is_worker"] == is_worker}


def check(scene: Scene, done: Done, expected: Sequence[str]) -> None:
    """Raise Wrong at the first thing that is not as it should be."""
    if done.code != 0:
        raise Wrong(f"exit code {done.code}: {done.stderr[-700:]}")
    if "Traceback" in done.stderr:
        raise Wrong(f"an error that nothing handles: {done.stderr[-700:]}")
    found = refused(done)
    for path, reason in found.items():
        if path not in scene.refused:
            raise Wrong(f"a fast path was refused: {path}: {reason}")
    for path in scene.refused:
        if path not in found:
            raise Wrong(f"report.json does not say that {path} was refused: {done.stderr[-700:]}")
    compare(expected, rows_of(done.out))
    if scene.says and scene.says not in done.stderr:
        raise Wrong(f"stderr does not say {scene.says!r}: {done.stderr[-700:]}")
    for event in scene.happens:
        if not any(one["event"] == event for one in done.events):
            raise Wrong(f"this did not happen: {event}")
    _check_device(scene, done)


def check_expected(scene: Scene, rows: Sequence[str]) -> None:
    """Raise Wrong unless a CPU has made a text of every clip, and several different ones."""
    texts = [json.loads(row).get("text") for row in rows]
    if len(texts) != scene.clips or None in texts:
        raise Wrong(f"a CPU has texts of {len(texts) - texts.count(None)} clips, not of {scene.clips}")
    if len(set(texts)) < 2:
        raise Wrong(f"a CPU has the same text for all clips: {texts[0]!r}")


def _check_device(scene: Scene, done: Done) -> None:
    """Check that everything that a GPU has took part, where it should."""
    workers, here = done.pids("batch"), done.pids("batch", is_worker=False)
    if len(workers) != scene.devices:
        raise Wrong(f"{len(workers)} processes of devices decoded, not {scene.devices}")
    is_here = scene.goes_on_here or not scene.devices
    if is_here and len(here) != 1:
        raise Wrong(f"{len(here)} processes beside those of devices decoded, not the command's own")
    if not is_here and (others := done.pids("context", is_worker=False)):
        raise Wrong(f"{len(others)} processes made a CUDA context that have no device")
    decoding = workers | here
    for event in ("interpreted kernel", "graph", "loop"):
        if not any(one["event"] == event and one["pid"] in decoding for one in done.events):
            raise Wrong(f"no process of a device had this: {event}")
    pinned = done.pids("pinned batch") | done.pids("pinned batch", is_worker=False)
    if "pinning" in scene.refused and pinned:
        raise Wrong("batches came from pinned memory, which was refused")
    if "pinning" not in scene.refused and pinned != decoding:
        raise Wrong("no batch of a process came from pinned memory")


def refused(done: Done) -> dict[str, str]:
    """Return the fast paths that were refused, with their reasons, as report.json has them. Raises Wrong without the field."""
    report = json.loads((done.out / "report.json").read_text(encoding="utf-8"))
    if "refused" not in report:
        raise Wrong("report.json has no field `refused`")
    found: dict[str, str] = report["refused"]
    return found


def compare(expected: Sequence[str], found: Sequence[str]) -> None:
    """Raise Wrong unless the rows are equal."""
    if len(found) != len(expected):
        raise Wrong(f"{len(found)} rows, not {len(expected)}")
    for ours, theirs in zip(found, expected, strict=True):
        if ours != theirs:
            raise Wrong(f"a row differs from the CPU's: {ours} is not {theirs}")


def rows_of(out: Path) -> list[str]:
    """Return the rows of an output folder, in order of their files."""
    return sorted((out / "transcripts.jsonl").read_text(encoding="utf-8").splitlines())


def make_clips(folder: Path, number: int) -> None:
    """Write short clips of speech, of which a few are different."""
    import soundfile

    samples, rate_hz = soundfile.read(SPEECH, dtype="int16")
    folder.mkdir(parents=True)
    for index in range(number):
        which = index % _DIFFERENT
        if which == index:
            soundfile.write(folder / f"{index:03}.wav", samples[4000 * which :][: 6000 + 500 * which], rate_hz)
        else:
            (folder / f"{index:03}.wav").hardlink_to(folder / f"{which:03}.wav")


def make_model(folder: Path) -> None:
    """Write a TDT model with random weights that is as small as the kernels allow: they are interpreted."""
    import torch

    from fastscribe.checkpoint import native_writer
    from scripts import random_checkpoint, shapes

    tiny = shapes.SHAPES["tiny"]
    encoder = replace(
        tiny.encoder,
        num_mels=8,
        num_layers=2,
        d_model=16,
        num_heads=1,
        ff_hidden=32,
        conv_kernel=5,
        subsampling_channels=8,
    )
    shapes.SHAPES["rehearsal"] = replace(tiny, features=replace(tiny.features, num_mels=8), encoder=encoder)
    shutil.rmtree(folder, ignore_errors=True)
    native_writer.write(random_checkpoint.random_checkpoint("rehearsal"), folder, torch.float32)


def parse(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_rehearsal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [scene.name for scene in SCENES]
    parser.add_argument("--scenes", help=f"of {', '.join(names)}, tests (default all)")
    parser.add_argument(
        "--python",
        help="a Python with fastscribe installed, which is run, without scene tests (default: this checkout's)",
    )
    parser.add_argument("--keep", type=Path, help="folder for the files, which are kept (default: a temporary one)")
    arguments = parser.parse_args(given)
    if arguments.scenes is None:
        arguments.scenes = names if arguments.python else [*names, "tests"]
    else:
        arguments.scenes = arguments.scenes.split(",")
    if arguments.python and "tests" in arguments.scenes:
        parser.error("--scenes tests: the tests import this checkout, not what --python has")
    if unknown := set(arguments.scenes) - {*names, "tests"}:
        parser.error(f"--scenes: no such scene: {', '.join(sorted(unknown))}")
    return arguments


def main(given: Sequence[str] = tuple(sys.argv[1:]), say: Callable[[str], None] = print) -> None:
    arguments = parse(given)
    with tempfile.TemporaryDirectory(prefix="gpu_rehearsal.") as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        rehearsal = Rehearsal(arguments.python or sys.executable, arguments.python is None, folder, say)
        rehearsal.prepare()
        scenes = {scene.name: scene for scene in SCENES}
        for name in arguments.scenes:
            start = time.monotonic()
            try:
                rehearsal.tests() if name == "tests" else rehearsal.run(scenes[name])
            except Wrong as wrong:
                say(f"gpu_rehearsal: {name}: {wrong}")
                sys.exit(1)
            about = CUDA_TESTS if name == "tests" else scenes[name].about
            say(f"{name:8} {time.monotonic() - start:5.0f} s  {about}")
    if arguments.python:
        say("tests    left out: they import this checkout, not what --python has")
    say("gpu_rehearsal: rows are equal to a CPU's, and nothing was refused that should not be")
