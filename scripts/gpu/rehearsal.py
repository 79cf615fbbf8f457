"""Run the command on a simulated GPU, in its real processes, and compare its rows with those of a CPU.

    scripts/gpu_rehearsal [SCENE..]

Needs no GPU. The coordinator, the devices' processes and the helpers are the command's own; tests/fakes/gpu_processes gives
each of them a torch with a simulated CUDA device, which is strict about where tensors are. Triton kernels are interpreted.
The model has random weights and float32, so that rows are equal byte for byte. No fast path may be refused. It ends with 1 at
the first wrong thing. It says nothing about the speed of a GPU, the order of its streams, or compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
    """Runs scenes in a folder, where it makes the model and the clips."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[int, list[str]] = {}  # of a CPU, by the number of clips
        make_model(folder / "model")

    def run(self, scene: Scene) -> None:
        """Run a scene. Raises Wrong."""
        if scene.clips not in self._rows:
            make_clips(self._clips(scene), scene.clips)
            done = self._command(replace(scene, name=f"cpu-{scene.clips}", arguments=("--device", "cpu")), None)
            self._rows[scene.clips] = rows_of(done.out)
            check_expected(scene, self._rows[scene.clips])
        check(scene, self._command(scene, scene.gpus), self._rows[scene.clips])

    def _clips(self, scene: Scene) -> Path:
        return self._folder / f"clips-{scene.clips}"

    def _command(self, scene: Scene, simulated: dict[str, Any] | None) -> Done:
        out, events = self._folder / "out" / scene.name, self._folder / f"{scene.name}.events"
        command = ["fastscribe", "transcribe", str(self._clips(scene)), "-m", str(self._folder / "model")]
        command += ["--dtype", "fp32", "-o", str(out), "--no-progress", *scene.arguments]
        done = run_module(command, simulated, events)
        return Done(done.returncode, done.stderr, out, read_rows(events))


def run_tests(folder: Path) -> None:
    """Run the tests of the devices' processes, which are marked cuda, on the simulated GPU. Raises Wrong."""
    command = ["pytest", "-p", "no:cacheprovider", CUDA_TESTS]
    done = run_module(command, {"interpreted_frames": 0}, folder / "tests.events")
    last = done.stdout.strip().splitlines()[-1:]
    if done.returncode != 0 or "passed" not in "".join(last) or "skipped" in "".join(last):
        raise Wrong(f"{CUDA_TESTS}: exit code {done.returncode}: {done.stdout[-1500:]}{done.stderr[-500:]}")


def run_module(
    command: Sequence[str], simulated: dict[str, Any] | None, events: Path
) -> subprocess.CompletedProcess[str]:
    """Run `python -m command` of the checkout, with simulated GPUs that write their events, or with a CPU alone."""
    paths, env = [str(ROOT)], dict(os.environ)
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if simulated is not None:
        paths.insert(0, str(SITE))
        files = {"events": str(events), "once": str(events.with_suffix(".once"))}
        env |= {"SIMULATED_GPU": json.dumps(simulated | files), "TRITON_INTERPRET": "1"}
    env["PYTHONPATH"] = os.pathsep.join(paths)
    given: dict[str, Any] = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "timeout": _TIMEOUT_S}
    try:
        return subprocess.run([sys.executable, "-m", *command], **given)
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
    native_writer.write(random_checkpoint.random_checkpoint("rehearsal"), folder, torch.float32)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="gpu_rehearsal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    scenes = {scene.name: scene for scene in SCENES}
    names = [*scenes, "tests"]
    parser.add_argument(
        "scenes", nargs="*", metavar="SCENE", default=names, help=f"of {', '.join(names)} (default all)"
    )
    wanted = parser.parse_args(given).scenes
    if unknown := set(wanted) - set(names):
        parser.error(f"no such scene: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="gpu_rehearsal.") as folder:
        rehearsal = Rehearsal(Path(folder).resolve())
        for name in wanted:
            start = time.monotonic()
            try:
                run_tests(Path(folder)) if name == "tests" else rehearsal.run(scenes[name])
            except Wrong as wrong:
                print(f"gpu_rehearsal: {name}: {wrong}")
                sys.exit(1)
            about = CUDA_TESTS if name == "tests" else scenes[name].about
            print(f"{name:8} {time.monotonic() - start:5.0f} s  {about}", flush=True)
    print("gpu_rehearsal: rows are equal to a CPU's, and nothing was refused that should not be")
