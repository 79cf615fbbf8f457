"""fastscribe, NVIDIA NeMo and Hugging Face transformers in turns: same random weights, same files, same GPU, one run.

Each side is a process of its own that builds its model (not counted) and then waits for its turns. The checkpoint is a
fastscribe folder; the other sides get its weights copied into a model of their own making, so nothing is converted or
stored. Counted is the wall clock from paths to texts; NeMo gets the files longest first. After the last turn each side
says which labels it found, because the text of a random model hides how much two sides agree.

transformers is measured from features on the device to labels, without reading files or making features.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from fastscribe.bench.against.process import Worker

HERE = Path(__file__).resolve().parent
TRAINED = HERE.parent / "tests" / "data"
Labels = list[list[int]]
_ROUNDS = 3
_ONE_IN = 8  # transformers' loop takes seconds a batch: it gets a share of the files
_LONGEST_TURN_S = 150.0  # loading included; a side that takes longer hangs


# --- the sides, each in a process of its own --------------------------------------------------------------------------


def serve() -> None:
    """Settings, then {"command": "run", "labels" or "trained", "batch_size"}, each answered by a line of JSON; all else that
    prints goes to stderr. As fastscribe/bench/against/worker.py does."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    start = time.perf_counter()
    load = {"fastscribe": load_fastscribe, "nemo": load_nemo, "transformers": load_transformers}[settings["side"]]
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
            elif command == "labels":
                answer["labels"] = made.labels(batch_size)
            else:
                answer["texts"] = made.trained(batch_size)
        except Exception as error:  # the other commands may still work
            answer["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        print(json.dumps({"wall_s": time.perf_counter() - start, **answer}), file=replies, flush=True)


@dataclass(frozen=True)
class Side:
    """What a side can do, each at a batch size. `trained` is the texts of the small trained checkpoint, in fp32."""

    labels: Callable[[int], Labels]
    trained: Callable[[int], list[str]]
    info: dict[str, Any]
    run: Callable[[int], object] | None = None  # all files, to texts; None: what `labels` does


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

    def trained(_: int) -> list[str]:
        small = Transcriber.load(settings["trained_model"], settings["device"], "fp32")
        texts = {result.audio.path: result.text for result in small.transcribe(settings["trained_paths"])}
        return [texts[path] for path in settings["trained_paths"]]

    return Side(transcribe, trained, {"version": __version__})


def load_nemo(settings: dict[str, Any]) -> Side:
    import make_nemo_goldens
    import nemo
    import torch
    from nemo.collections.asr.models import ASRModel

    from fastscribe.checkpoint.names import from_nemo

    torch.set_num_threads(int(settings["threads"]))
    config, weights = _checkpoint(settings)
    with tempfile.TemporaryDirectory() as folder:
        model = make_nemo_goldens.build(_spec(config), 0, Path(folder), _english())
    _copy_into(from_nemo(model.state_dict(), config.encoder), weights)
    model = model.to(torch.device(settings["device"]), _dtype(settings))

    def transcribe(batch_size: int, **options: Any) -> Any:
        found = model.transcribe(
            settings["paths"], batch_size=batch_size, num_workers=settings["workers"], verbose=False, **options
        )
        return found[0] if isinstance(found, tuple) else found

    def labels(batch_size: int) -> Labels:
        found = transcribe(batch_size, return_hypotheses=True)
        return [torch.as_tensor(hypothesis.y_sequence).tolist() for hypothesis in found]

    def trained(batch_size: int) -> list[str]:
        small = ASRModel.restore_from(settings["trained_model"], map_location=settings["device"]).eval()
        found = small.transcribe(settings["trained_paths"], batch_size=batch_size, verbose=False)
        return [getattr(item, "text", item) for item in (found[0] if isinstance(found, tuple) else found)]

    return Side(labels, trained, {"version": nemo.__version__, "decoder": _graphs_of(model)}, transcribe)


def _graphs_of(model: Any) -> str:
    """Which of its graph modes NeMo's decoder says that it is in."""
    try:
        computer = model.decoding.decoding.decoding_computer
        return f"{type(computer).__name__}, {computer.cuda_graphs_mode}"
    except AttributeError as error:
        return f"unknown ({error})"


def load_transformers(settings: dict[str, Any]) -> Side:
    import torch
    import transformers

    from fastscribe.checkpoint.names import from_huggingface

    config, weights = _checkpoint(settings)
    device = torch.device(settings["device"])
    model = _transformers_model(transformers, config).eval()
    blank = config.num_labels
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=blank,
        decoder_start_token_id=blank,
        pad_token_id=blank,
        suppress_tokens=[blank + 1 + index for index in range(len(config.durations))],
    )
    _copy_into(from_huggingface(model.state_dict(), config.encoder), weights)
    model = model.to(device, _dtype(settings))
    features = _features(settings["paths"][:: settings["one_in"]], config, device)

    @torch.inference_mode()
    def transcribe(batch_size: int) -> Labels:
        found: Labels = []
        for begin in range(0, len(features), batch_size):
            rows = features[begin : begin + batch_size]
            longest = max(mel_TM.shape[0] for _, mel_TM in rows)
            input_features = torch.zeros(
                len(rows), longest, config.features.num_mels, device=device, dtype=_dtype(settings)
            )
            mask = torch.zeros(len(rows), longest, device=device, dtype=torch.bool)
            for row, (_, mel_TM) in enumerate(rows):
                input_features[row, : len(mel_TM)], mask[row, : len(mel_TM)] = mel_TM, True
            output = model.generate(input_features=input_features, attention_mask=mask)
            ids = getattr(output, "sequences", output)
            found += [[label for label in row if label < config.num_labels] for row in ids.tolist()]
        in_order = sorted(zip((number for number, _ in features), found, strict=True))
        return [row for _, row in in_order]

    def trained(_: int) -> list[str]:
        raise NotImplementedError("not asked of this side")

    return Side(transcribe, trained, {"version": transformers.__version__})


def _features(paths: Sequence[str], config: Any, device: Any) -> list[tuple[int, Any]]:
    """Each file's number and float32 features [T, M], longest first, on the device."""
    import soundfile
    import torch

    from fastscribe.features import LogMel

    log_mel = LogMel(config.features).to(device)
    found = []
    for number, path in enumerate(paths):
        samples_BS = torch.from_numpy(soundfile.read(path, dtype="int16")[0])[None].to(device)
        mel_BMT = log_mel(samples_BS, torch.tensor([samples_BS.shape[1]], device=device)).mel_BMT
        found.append((number, mel_BMT[0].t()))
    return sorted(found, key=lambda item: -len(item[1]))


def _transformers_model(transformers: Any, config: Any) -> Any:
    encoder = config.encoder
    return transformers.ParakeetForTDT(
        transformers.ParakeetTDTConfig(
            vocab_size=config.num_labels + 1,
            blank_token_id=config.num_labels,
            decoder_hidden_size=config.predictor.hidden,
            num_decoder_layers=config.predictor.num_layers,
            max_symbols_per_step=config.joint.max_symbols,
            durations=list(config.durations),
            encoder_config={
                "num_mel_bins": encoder.num_mels,
                "num_hidden_layers": encoder.num_layers,
                "hidden_size": encoder.d_model,
                "num_attention_heads": encoder.num_heads,
                "num_key_value_heads": encoder.num_heads,
                "intermediate_size": encoder.ff_hidden,
                "conv_kernel_size": encoder.conv_kernel,
                "attention_bias": encoder.use_bias,
                "convolution_bias": encoder.use_bias,
                "scale_input": encoder.xscaling,
                "subsampling_factor": encoder.subsampling_factor,
                "subsampling_conv_channels": encoder.subsampling_channels,
            },
        )
    )


def _dtype(settings: dict[str, Any]) -> Any:
    import torch

    return torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32


def _checkpoint(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    from fastscribe.checkpoint import read_checkpoint

    checkpoint = read_checkpoint(settings["model"])
    return checkpoint.config, dict(checkpoint.weights)


def _copy_into(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Writes our weights into the memory of another implementation's, which go by our names. All must be there."""
    theirs = {name: tensor for name, tensor in theirs.items() if tensor.is_floating_point()}
    if theirs.keys() != ours.keys():
        raise ValueError(f"names differ: {sorted(theirs.keys() ^ ours.keys())[:6]}")
    for name, tensor in theirs.items():
        tensor.copy_(ours[name])


def _spec(config: Any) -> Any:
    """make_nemo_goldens' description of the same shape."""
    from make_nemo_goldens import Spec

    encoder, predictor, joint = config.encoder, config.predictor, config.joint
    return Spec(
        "model",
        vocabulary=config.num_labels,
        durations=config.durations,
        max_symbols=joint.max_symbols,
        pred_hidden=predictor.hidden,
        pred_layers=predictor.num_layers,
        joint_hidden=joint.hidden,
        activation=joint.activation,
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


# --- the part that lets them take turns -------------------------------------------------------------------------------


def ask(worker: Worker, command: str, batch_size: int) -> dict[str, Any]:
    answer = worker.ask({"command": command, "batch_size": batch_size})
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def take_turns(notes: Any, model: Path, paths: Sequence[Path], device: str, batch_sizes: Sequence[int]) -> None:
    """One warm-up turn each, then _ROUNDS rounds; rows go to `notes`, a side that cannot run with its reason."""
    lengths_s = _durations_s(paths)
    ordered = sorted(paths, key=lambda path: -lengths_s[path])
    cores = len(os.sched_getaffinity(0))
    settings = {"model": str(model), "device": device, "paths": [str(path) for path in ordered]}
    settings["dtype"] = "bf16" if device != "cpu" else "fp32"
    settings |= {"trained_model": str(TRAINED / "models" / "tdt_demo" / "model.nemo")}
    settings["trained_paths"] = [str(path) for path in sorted((TRAINED / "audio").glob("[01]*.flac"))]
    settings["one_in"] = _ONE_IN if device != "cpu" else 2
    settings |= {"threads": max(1, cores // 2), "workers": min(8, cores)}
    workers: dict[str, Worker] = {}
    try:
        for side in ("fastscribe", "nemo"):
            _start(notes, workers, side, settings)
        _play(notes, workers, [(side, size) for size in batch_sizes for side in workers], sum(lengths_s.values()))
        _compare(notes, workers, list(workers), batch_sizes[0])
        _start(notes, workers, "transformers", settings)
        if "transformers" in workers:
            few_s = sum(lengths_s[path] for path in ordered[:: settings["one_in"]])
            _play(notes, workers, [("transformers", batch_sizes[0])], few_s)
            _compare(notes, workers, ["transformers"], batch_sizes[0])
    finally:
        for side, worker in workers.items():
            notes.write({"what": "fallback_lines", "side": side, "lines": worker.fallback_lines()})
            print(f"--- {side}\n{worker.said()[-6000:]}", flush=True)
            worker.stop()


def _start(notes: Any, workers: dict[str, Worker], side: str, settings: dict[str, Any]) -> None:
    def call() -> dict[str, Any]:
        workers[side] = Worker(Path(sys.executable), settings | {"side": side}, Path(__file__), _LONGEST_TURN_S)
        return workers[side].info

    notes.measure({"what": "start", "side": side}, call, needs_s=20.0)


def _durations_s(paths: Sequence[Path]) -> dict[Path, float]:
    import soundfile

    infos = {path: soundfile.info(path) for path in paths}
    return {path: info.frames / info.samplerate for path, info in infos.items()}


def _play(notes: Any, workers: dict[str, Worker], turns: Sequence[tuple[str, int]], audio_s: float) -> None:
    """A warm-up and _ROUNDS rounds of all turns (side, batch size), then a row for each with the median."""
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


def _compare(notes: Any, workers: dict[str, Worker], sides: Sequence[str], batch_size: int) -> None:
    """How many labels of the random model, and how many texts of the trained one in fp32, are fastscribe's too."""
    from fastscribe.bench.agreement import compare
    from fastscribe.types import Hypothesis

    @cache
    def labels(side: str) -> list[Hypothesis]:
        return [Hypothesis(token_ids=tuple(row)) for row in ask(workers[side], "labels", batch_size)["labels"]]

    @cache
    def texts(side: str) -> list[str]:
        return ask(workers[side], "trained", 4)["texts"]

    def compare_labels(side: str) -> dict[str, Any]:
        wanted = labels("fastscribe")
        step = len(wanted) // len(labels(side))
        return compare(labels(side), wanted[::step][: len(labels(side))])

    def compare_texts(side: str) -> dict[str, Any]:
        same = sum(a == b for a, b in zip(texts(side), texts("fastscribe"), strict=True))
        return {"equal_texts_share": same / len(texts(side)), "recordings": len(texts(side))}

    for side in sides:
        key = {"what": "agreement", "side": side, "against": "fastscribe"}
        notes.measure(key | {"model": "random"}, partial(compare_labels, side), needs_s=5.0)
        if side != "transformers":
            notes.measure(key | {"model": "trained, fp32"}, partial(compare_texts, side), needs_s=5.0)


if __name__ == "__main__":
    from fastscribe.openmp import wait_politely

    wait_politely()
    serve()
