"""fastscribe and NVIDIA NeMo in alternation: same random weights, same files, same GPU, one run.

Each side is a process that loads its model first (not counted) and then waits for its turns: fastscribe its folder, NeMo the
archive that was written of it. A turn is the wall clock from paths to texts; NeMo gets the longest files first. After the last
turn both sides report their labels, because texts of a random model are a poor measure of agreement.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import IO, Any

from fastscribe.bench.result import describe_error
from scripts.gpu.processes import Worker, answer

Labels = list[list[int]]
COMMAND = (sys.executable, "-m", "scripts.gpu.turns")
_ROUNDS = 3
_MAX_TURN_S = 150.0  # loading included; a side that takes longer hangs
# What NeMo says when its decoder is not at its fastest.
_FALLBACK = re.compile(
    r"\bfall(ing|s)? back|conditional node|cuda graphs?.*(disabled|not |unsupported)|NO_WHILE_LOOPS|NO_GRAPHS", re.I
)


# --- the sides, each in a process of its own --------------------------------------------------------------------------


def serve() -> None:
    """Answer settings, then commands {"command": "run" or "labels", "batch_size"}."""
    loaded: list[Side] = []

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        start, found = time.perf_counter(), dict[str, Any]()
        if not loaded:
            loaded.append({"fastscribe": load_fastscribe, "nemo": load_nemo}[request["side"]](request))
            return {"load_s": time.perf_counter() - start, **loaded[0].info}
        try:
            if request["command"] == "run":
                loaded[0].run(request["batch_size"])
            else:
                found["labels"] = loaded[0].labels(request["batch_size"])
        except Exception as error:  # the other commands may still work
            found["error"] = describe_error(error)
        return {"wall_s": time.perf_counter() - start, **found}

    answer(reply)


@dataclass(frozen=True)
class Side:
    """A side's commands, each for a batch size."""

    labels: Callable[[int], Labels]
    run: Callable[[int], object]  # all files, to texts
    info: dict[str, Any]


def load_fastscribe(settings: dict[str, Any]) -> Side:
    from fastscribe import Failure, Transcriber, __version__

    transcriber = Transcriber.load(settings["model"], settings["device"], settings["dtype"])

    def transcribe(_: int) -> Labels:
        found: dict[str, list[int]] = {}
        for result in transcriber.transcribe(settings["paths"]):
            if isinstance(result, Failure):
                raise SystemExit(f"{result.path}: {result.message}")
            found[result.audio.path] = [token.id for token in result.tokens]
        return [found[path] for path in settings["paths"]]

    return Side(transcribe, transcribe, {"version": __version__})


def load_nemo(settings: dict[str, Any]) -> Side:
    import nemo
    import torch

    torch.set_num_threads(int(settings["threads"]))
    dtype = torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32
    model = nemo_model(Path(settings["archive"])).to(torch.device(settings["device"]), dtype)

    def transcribe(batch_size: int, **options: Any) -> Any:
        found = model.transcribe(
            settings["paths"], batch_size=batch_size, num_workers=settings["workers"], verbose=False, **options
        )
        return found[0] if isinstance(found, tuple) else found

    def labels(batch_size: int) -> Labels:
        found = transcribe(batch_size, return_hypotheses=True)
        return [torch.as_tensor(hypothesis.y_sequence).tolist() for hypothesis in found]

    return Side(labels, transcribe, {"version": nemo.__version__, "decoder": graphs_of(model)})


def nemo_model(archive: Path) -> Any:
    """Return NeMo's model of an archive, in float32 on the CPU."""
    from nemo.collections.asr.models import ASRModel

    model: Any = ASRModel.restore_from(str(archive), map_location="cpu").eval()
    model.freeze()
    model.preprocessor.featurizer.dither, model.preprocessor.featurizer.pad_to = 0.0, 0
    return model


def graphs_of(model: Any) -> str:
    """The graph mode that NeMo's decoder reports."""
    try:
        computer = model.decoding.decoding.decoding_computer
        return f"{type(computer).__name__}, {computer.cuda_graphs_mode}"
    except AttributeError as error:
        return f"unknown ({error})"


# --- the part: both sides in turns -------------------------------------------------------------------------------


class SideProcess:
    """A side's process. `info` is what it said of itself when its model was loaded.

    Raises RuntimeError, with the last line of its stderr, where it ends or takes longer than _MAX_TURN_S to answer.
    """

    def __init__(self, settings: dict[str, Any], command: Sequence[str] = COMMAND) -> None:
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(settings["threads"]))
        env = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | threads | {"TOKENIZERS_PARALLELISM": "false"}
        self._worker = Worker.start(command, env, self._messages)
        try:
            self.info = self.ask(settings)
        except BaseException:
            self.stop()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._worker.run(request, _MAX_TURN_S)
        if "status" in answer:
            last = (self.said().strip() or "no word").splitlines()[-1].strip()[:300]
            raise RuntimeError(f"its process {answer['status']}: {last}")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def said(self) -> str:
        self._messages.seek(0)
        return self._messages.read().decode(errors="backslashreplace")

    def fallback_lines(self) -> list[str]:
        """What it said of being slower than it might be."""
        found = [line.strip()[:300] for line in self.said().splitlines() if _FALLBACK.search(line)]
        return list(dict.fromkeys(found))[:8]

    def stop(self) -> None:
        self._worker.end()
        self._messages.close()


def take_turns(
    notes: Any, model: Path, archive: Path, paths: Sequence[Path], device: str, batch_sizes: Sequence[int]
) -> None:
    """Run a warm-up turn each, then _ROUNDS rounds. Rows go to `notes`; a side that cannot run is a row with its error."""
    lengths_s = _durations_s(paths)
    ordered = sorted(paths, key=lambda path: -lengths_s[path])
    cores = len(os.sched_getaffinity(0))
    settings = {
        "model": str(model),
        "archive": str(archive),
        "device": device,
        "paths": [str(path) for path in ordered],
    }
    settings["dtype"] = "bf16" if device != "cpu" else "fp32"
    settings |= {"threads": max(1, cores // 2), "workers": min(8, cores)}
    workers: dict[str, SideProcess] = {}
    try:
        for side in ("fastscribe", "nemo"):
            _start(notes, workers, side, settings)
        _take_turns(notes, workers, [(side, size) for size in batch_sizes for side in workers], sum(lengths_s.values()))
        _compare(notes, workers, batch_sizes[0])
    finally:
        for side, worker in workers.items():
            notes.write({"what": "fallback_lines", "side": side, "lines": worker.fallback_lines()})
            print(f"--- {side}\n{worker.said()[-6000:]}", flush=True)
            worker.stop()


def _start(notes: Any, workers: dict[str, SideProcess], side: str, settings: dict[str, Any]) -> None:
    def call() -> dict[str, Any]:
        workers[side] = SideProcess(settings | {"side": side})
        return workers[side].info

    notes.measure({"what": "start", "side": side}, call, needs_s=20.0)


def _durations_s(paths: Sequence[Path]) -> dict[Path, float]:
    import soundfile

    infos = {path: soundfile.info(path) for path in paths}
    return {path: info.frames / info.samplerate for path, info in infos.items()}


def _take_turns(notes: Any, workers: dict[str, SideProcess], turns: Sequence[tuple[str, int]], audio_s: float) -> None:
    """Run a warm-up and _ROUNDS rounds of all turns (side, batch size), then write a row for each with its median."""
    walls: dict[tuple[str, int], list[float]] = {}
    for number in range(_ROUNDS + 1):
        for side, size in turns:
            key = {"what": "turn", "side": side, "batch_size": size, "round": number}
            row = notes.measure(key, partial(workers[side].ask, {"command": "run", "batch_size": size}), needs_s=5.0)
            if row is not None and number > 0:
                walls.setdefault((side, size), []).append(row["wall_s"])
    for (side, size), seconds in walls.items():
        row = {"what": "side", "side": side, "batch_size": size, "median_s": median(seconds), "runs": len(seconds)}
        notes.write(row | {"min_s": min(seconds), "max_s": max(seconds), "rtfx": audio_s / median(seconds)})


def _compare(notes: Any, workers: dict[str, SideProcess], batch_size: int) -> None:
    """Compare the labels of both sides with fastscribe's."""
    from fastscribe.types import Hypothesis
    from scripts.benchmarks.agreement import compare

    request = {"command": "labels", "batch_size": batch_size}

    @cache
    def labels(side: str) -> list[Hypothesis]:
        return [Hypothesis(token_ids=tuple(row)) for row in workers[side].ask(request)["labels"]]

    for side in workers:
        key = {"what": "agreement", "side": side, "against": "fastscribe", "model": "random"}
        notes.measure(key, lambda side=side: compare(labels(side), labels("fastscribe")), needs_s=5.0)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    from fastscribe._system.process_settings import limit_openmp_spin

    limit_openmp_spin()
    serve()
