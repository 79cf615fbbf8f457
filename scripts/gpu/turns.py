"""fastscribe and NVIDIA NeMo in alternation: same random weights, same files, same GPU, one run.

Each side is a process that loads its model first (not counted) and then waits for its turns. The checkpoint is a fastscribe
folder; NeMo builds its own model of that shape, and the weights are copied in. A turn is the wall clock from paths to texts;
NeMo gets the longest files first. After the last turn both sides report their labels, because texts of a random model are a
poor measure of agreement.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from threading import Timer
from typing import IO, Any

Labels = list[list[int]]
_ROUNDS = 3
_MAX_TURN_S = 150.0  # loading included; a side that takes longer hangs
_GOODBYE_S = 10.0
# What NeMo says when its decoder is not at its fastest.
_FALLBACK = re.compile(
    r"\bfall(ing|s)? back|conditional node|cuda graphs?.*(disabled|not |unsupported)|NO_WHILE_LOOPS|NO_GRAPHS", re.I
)


# --- the sides, each in a process of its own --------------------------------------------------------------------------


def serve() -> None:
    """Read settings, then commands {"command": "run", "labels", "batch_size"}; answer each with a line of JSON.

    All other output goes to stderr.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    start = time.perf_counter()
    load = {"fastscribe": load_fastscribe, "nemo": load_nemo}[settings["side"]]
    made = load(settings)
    print(json.dumps({"load_s": time.perf_counter() - start, **made.info}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        command, batch_size = request["command"], request["batch_size"]
        start = time.perf_counter()
        answer: dict[str, Any] = {}
        try:
            if command == "run":
                made.labels(batch_size) if made.run is None else made.run(batch_size)
            else:
                answer["labels"] = made.labels(batch_size)
        except Exception as error:  # the other commands may still work
            answer["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        print(json.dumps({"wall_s": time.perf_counter() - start, **answer}), file=replies, flush=True)


@dataclass(frozen=True)
class Side:
    """A side's commands, each for a batch size."""

    labels: Callable[[int], Labels]
    info: dict[str, Any]
    run: Callable[[int], object] | None = None  # all files, to texts; None: use `labels`


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

    return Side(transcribe, {"version": __version__})


def load_nemo(settings: dict[str, Any]) -> Side:
    import nemo
    import torch

    torch.set_num_threads(int(settings["threads"]))
    config, weights = _checkpoint(settings)
    with tempfile.TemporaryDirectory() as folder:
        model = nemo_model(config, weights, Path(folder))
    model = model.to(torch.device(settings["device"]), _dtype(settings))

    def transcribe(batch_size: int, **options: Any) -> Any:
        found = model.transcribe(
            settings["paths"], batch_size=batch_size, num_workers=settings["workers"], verbose=False, **options
        )
        return found[0] if isinstance(found, tuple) else found

    def labels(batch_size: int) -> Labels:
        found = transcribe(batch_size, return_hypotheses=True)
        return [torch.as_tensor(hypothesis.y_sequence).tolist() for hypothesis in found]

    return Side(labels, {"version": nemo.__version__, "decoder": graphs_of(model)}, transcribe)


def nemo_model(config: Any, weights: dict[str, Any], folder: Path) -> Any:
    """Return NeMo's model of this shape with these weights, in float32 on the CPU. `folder` holds its tokenizer meanwhile."""
    from scripts.goldens import common

    model = common.build(_spec(config), 0, folder, _english())
    copy_into_nemo(model.state_dict(), config.encoder, weights)
    return model


def graphs_of(model: Any) -> str:
    """The graph mode that NeMo's decoder reports."""
    try:
        computer = model.decoding.decoding.decoding_computer
        return f"{type(computer).__name__}, {computer.cuda_graphs_mode}"
    except AttributeError as error:
        return f"unknown ({error})"


def _dtype(settings: dict[str, Any]) -> Any:
    import torch

    return torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32


def _checkpoint(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    from fastscribe.checkpoint.reader import read_checkpoint

    checkpoint = read_checkpoint(settings["model"])
    return checkpoint.config, dict(checkpoint.weights)


def copy_into_nemo(theirs: dict[str, Any], encoder: Any, ours: dict[str, Any]) -> None:
    """Copy our weights into the tensors of a NeMo model's state dict. Raise ValueError if names differ."""
    from fastscribe.checkpoint.lazy_weights import COUNTER_SUFFIX, sources_of
    from fastscribe.checkpoint.names import from_nemo

    # In-memory sources read as the tensors themselves, in our shapes.
    has_transformer = any(name.startswith("transf_decoder.") for name in theirs)
    renamed = from_nemo(sources_of(theirs), encoder, has_transformer).items()
    kept = {name: source.read() for name, source in renamed if not name.endswith(COUNTER_SUFFIX)}
    if kept.keys() != ours.keys():
        raise ValueError(f"names differ: {sorted(kept.keys() ^ ours.keys())[:6]}")
    for name, tensor in kept.items():
        tensor.copy_(ours[name])


def _spec(config: Any) -> Any:
    """Return the goldens' description of the same shape."""
    from scripts.goldens.common import Spec

    encoder, predictor, joint = config.encoder, config.predictor, config.joint
    heads: dict[str, Any] = {"has_transducer": False, "has_ctc": True}
    if joint is not None:
        heads = {"durations": config.durations, "max_symbols": joint.max_symbols, "activation": joint.activation}
        heads |= {"pred_hidden": predictor.hidden, "pred_layers": predictor.num_layers, "joint_hidden": joint.hidden}
    return Spec(
        "model",
        vocabulary=config.num_labels,
        **heads,
        mels=encoder.num_mels,
        d_model=encoder.d_model,
        heads=encoder.num_heads,
        layers=encoder.num_layers,
        ff_factor=encoder.ff_hidden // encoder.d_model,
        kernel=encoder.conv_kernel,
        conv_norm=encoder.conv_norm,
        use_bias=encoder.use_bias,
        xscaling=encoder.xscaling,
        subsampling=encoder.subsampling,
        factor=encoder.subsampling_factor,
        channels=encoder.subsampling_channels,
    )


def _english() -> str:
    from pydoc_data import topics

    return "\n".join(topics.topics.values())  # Python's own manual: enough for a thousand pieces


# --- the part: both sides in turns -------------------------------------------------------------------------------


class Worker:
    """A side's process. `info` is what it said of itself when its model was loaded.

    Raises RuntimeError, with the last line of its stderr, where it ends or takes longer than _MAX_TURN_S to answer.
    """

    def __init__(self, settings: dict[str, Any], program: Path = Path(__file__)) -> None:
        self._messages: IO[str] = tempfile.TemporaryFile("a+", errors="backslashreplace")  # noqa: SIM115 - closed in stop()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(settings["threads"]))
        self._process = subprocess.Popen(
            [sys.executable, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            encoding="utf-8",
            env={"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | threads | {"TOKENIZERS_PARALLELISM": "false"},
        )
        try:
            self.info = self.ask(settings)
        except BaseException:
            self.stop()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        watch = Timer(_MAX_TURN_S, self._process.kill)
        watch.start()
        try:
            with suppress(BrokenPipeError):
                print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            last = (self.said().strip() or "no word").splitlines()[-1].strip()[:300]
            raise RuntimeError(f"its process ended with code {self._process.wait()}: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def said(self) -> str:
        self._messages.seek(0)
        return self._messages.read()

    def fallback_lines(self) -> list[str]:
        """What it said of being slower than it might be."""
        found = [line.strip()[:300] for line in self.said().splitlines() if _FALLBACK.search(line)]
        return list(dict.fromkeys(found))[:8]

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._messages.close()


def ask(worker: Worker, command: str, batch_size: int) -> dict[str, Any]:
    answer = worker.ask({"command": command, "batch_size": batch_size})
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def take_turns(notes: Any, model: Path, paths: Sequence[Path], device: str, batch_sizes: Sequence[int]) -> None:
    """Run a warm-up turn each, then _ROUNDS rounds. Rows go to `notes`; a side that cannot run is a row with its error."""
    lengths_s = _durations_s(paths)
    ordered = sorted(paths, key=lambda path: -lengths_s[path])
    cores = len(os.sched_getaffinity(0))
    settings = {"model": str(model), "device": device, "paths": [str(path) for path in ordered]}
    settings["dtype"] = "bf16" if device != "cpu" else "fp32"
    settings |= {"threads": max(1, cores // 2), "workers": min(8, cores)}
    workers: dict[str, Worker] = {}
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


def _start(notes: Any, workers: dict[str, Worker], side: str, settings: dict[str, Any]) -> None:
    def call() -> dict[str, Any]:
        workers[side] = Worker(settings | {"side": side})
        return workers[side].info

    notes.measure({"what": "start", "side": side}, call, needs_s=20.0)


def _durations_s(paths: Sequence[Path]) -> dict[Path, float]:
    import soundfile

    infos = {path: soundfile.info(path) for path in paths}
    return {path: info.frames / info.samplerate for path, info in infos.items()}


def _take_turns(notes: Any, workers: dict[str, Worker], turns: Sequence[tuple[str, int]], audio_s: float) -> None:
    """Run a warm-up and _ROUNDS rounds of all turns (side, batch size), then write a row for each with its median."""
    walls: dict[tuple[str, int], list[float]] = {}
    for number in range(_ROUNDS + 1):
        for side, size in turns:
            key = {"what": "turn", "side": side, "batch_size": size, "round": number}
            row = notes.measure(key, partial(ask, workers[side], "run", size), needs_s=5.0)
            if row is not None and number > 0:
                walls.setdefault((side, size), []).append(row["wall_s"])
    for (side, size), seconds in walls.items():
        row = {"what": "side", "side": side, "batch_size": size, "median_s": median(seconds), "runs": len(seconds)}
        notes.write(row | {"min_s": min(seconds), "max_s": max(seconds), "rtfx": audio_s / median(seconds)})


def _compare(notes: Any, workers: dict[str, Worker], batch_size: int) -> None:
    """Compare the labels of both sides with fastscribe's."""
    from fastscribe.types import Hypothesis
    from scripts.benchmarks.agreement import compare

    @cache
    def labels(side: str) -> list[Hypothesis]:
        return [Hypothesis(token_ids=tuple(row)) for row in ask(workers[side], "labels", batch_size)["labels"]]

    for side in workers:
        key = {"what": "agreement", "side": side, "against": "fastscribe", "model": "random"}
        notes.measure(key, lambda side=side: compare(labels(side), labels("fastscribe")), needs_s=5.0)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    from fastscribe._system.openmp import limit_openmp_spin

    limit_openmp_spin()
    serve()
