"""One side of a comparison, run by its path under that side's own Python: standard library and the peer, nothing else.

The first line on stdin is a JSON object of settings: side, model, device, dtype, threads, paths (longest first), alone (the
path of one recording), packages (whose versions are told) and root (where fastscribe lies). The answer, when the model is
loaded, is {"load_s", "load_cpu_s", "dtype", "versions"}. Then each line {"batch_size": N, "alone": false} is a turn: all
files, or the lone one, from paths to texts, answered by {"wall_s", "cpu_s", "texts"}, and "batch_frames" where the side has
a budget of its own, and fastscribe's "refused" (Transcriber.refused_paths), or, where the turn failed and the next may not,
{"error"}. Whatever else prints goes to stderr. The process ends when stdin does.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import wave
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import Any

Settings = dict[str, Any]
About = dict[str, Any]
Transcribe = Callable[[list[str], Any], list[str]]  # paths, batch size (an int or None) -> their texts, in their order

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its modules are not top-level packages


def serve() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper
    settings = json.loads(sys.stdin.readline())
    start_s, start_cpu_s = time.perf_counter(), cpu_s()
    transcribe, about = LOADERS[settings["side"]](settings)
    spent = {"load_s": time.perf_counter() - start_s, "load_cpu_s": cpu_s() - start_cpu_s}
    loaded = {**spent, "versions": versions(settings["packages"]), **about}
    print(json.dumps(loaded), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        found = turn(transcribe, [settings["alone"]] if request["alone"] else settings["paths"], request["batch_size"])
        own = {} if "error" in found else {key: about[key] for key in ("batch_frames", "refused") if key in about}
        print(json.dumps(found | own), file=replies, flush=True)


def turn(transcribe: Transcribe, paths: list[str], batch_size: int | None) -> dict[str, Any]:
    start_s, start_cpu_s = time.perf_counter(), cpu_s()
    try:
        texts = transcribe(paths, batch_size)
    except Exception as error:  # out of memory at this batch size, say: the others may still do
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    return {"wall_s": time.perf_counter() - start_s, "cpu_s": cpu_s() - start_cpu_s, "texts": list(texts)}


def cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def batches(items: list[str], size: int) -> list[list[str]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


# --- the sides: settings -> (what a turn does, the dtype it is done in ..) --------------------------------------------


def load_fastscribe(settings: Settings) -> tuple[Transcribe, About]:
    """Its own batches, whatever batch size a turn has; as always with words and their times."""
    sys.path.insert(0, settings["root"])
    from fastscribe import Failure, Transcriber
    from fastscribe.bench.model_name import about as about_model

    transcriber = Transcriber.load(settings["model"], settings["device"], settings["dtype"])
    about: About = {"dtype": transcriber._recognizer.dtype, **about_model(transcriber)}
    about["refused"] = transcriber.refused_paths

    def transcribe(paths: list[str], _: int | None) -> list[str]:
        texts: dict[int, str] = {}
        for result in transcriber.transcribe(paths):
            if isinstance(result, Failure):
                raise RuntimeError(f"{result.path}: {result.message}")
            texts[result.audio.index] = result.text
        about["batch_frames"] = round(transcriber._engine.budget.frames)
        about["refused"] = transcriber.refused_paths
        return [texts[index] for index in range(len(paths))]

    return transcribe, about


def load_nemo(settings: Settings) -> tuple[Transcribe, About]:
    """`transcribe()` with the checkpoint's own decoding and without timestamps."""
    import torch
    from nemo.collections.asr.models import ASRModel

    torch.set_num_threads(settings["threads"])
    model = ASRModel.restore_from(settings["model"], map_location=torch.device(settings["device"])).eval()
    if settings["dtype"] == "bf16":
        model = model.to(torch.bfloat16)

    def transcribe(paths: list[str], batch_size: int) -> list[str]:
        found = model.transcribe(paths, batch_size=batch_size, verbose=False)
        found = found[0] if isinstance(found, tuple) else found
        return [getattr(item, "text", item) for item in found]

    return transcribe, {"dtype": settings["dtype"]}


def load_transformers(settings: Settings) -> tuple[Transcribe, About]:
    """Its own reading of files, its processor and `generate()`, a batch after another."""
    import torch
    import transformers
    from transformers.audio_utils import load_audio

    torch.set_num_threads(settings["threads"])
    dtype = torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32
    config = transformers.AutoConfig.from_pretrained(settings["model"])
    processor = transformers.AutoProcessor.from_pretrained(settings["model"])
    model = getattr(transformers, config.architectures[0]).from_pretrained(settings["model"], dtype=dtype)
    model = model.to(settings["device"]).eval()
    rate = processor.feature_extractor.sampling_rate
    language = {"language": "en"} if config.model_type == "cohere_asr" else {}  # its processor writes the prompt

    @torch.inference_mode()
    def transcribe(paths: list[str], batch_size: int) -> list[str]:
        texts: list[str] = []
        for some in batches(paths, batch_size):
            waves = [load_audio(path, sampling_rate=rate) for path in some]
            given = processor(audio=waves, sampling_rate=rate, return_tensors="pt", **language)
            parts = {"audio_chunk_index": given.pop("audio_chunk_index"), **language} if language else {}
            given, limits = given.to(settings["device"], dtype), {}
            if language:
                prompt = given["decoder_input_ids"]
                model.generation_config.decoder_start_token_id = int(prompt[0, 0])  # else another token comes before it
                limits = {"max_new_tokens": config.max_position_embeddings - prompt.shape[1]}
            found = model.generate(**given, **limits)
            texts += processor.decode(getattr(found, "sequences", found), skip_special_tokens=True, **parts)
        return texts

    return transcribe, {"dtype": settings["dtype"]}


def load_faster_whisper(settings: Settings) -> tuple[Transcribe, About]:
    """A file after another, since it has no batches across files; from a batch size of 2 on its batched pipeline."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    device, _, index = settings["device"].partition(":")
    compute_types = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
    model = WhisperModel(
        settings["model"],
        device=device,
        device_index=int(index or 0),
        compute_type=compute_types[settings["dtype"]],
        cpu_threads=settings["threads"],
    )
    batched = BatchedInferencePipeline(model)

    def text(path: str, batch_size: int) -> str:
        segments, _ = model.transcribe(path) if batch_size == 1 else batched.transcribe(path, batch_size=batch_size)
        return " ".join(segment.text.strip() for segment in segments)

    found = model.model.compute_type  # where the device lacks what was asked for, CTranslate2 takes another
    dtype = next((ours for ours, theirs in compute_types.items() if theirs == found), found)
    return lambda paths, batch_size: [text(path, batch_size) for path in paths], {"dtype": dtype}


def load_onnx_asr(settings: Settings) -> tuple[Transcribe, About]:
    """A model's name, or a folder whose config.json has its type. int8 where that was asked for, else float32."""
    import onnx_asr
    import onnxruntime

    wanted = "CUDAExecutionProvider" if settings["device"].startswith("cuda") else "CPUExecutionProvider"
    if wanted not in onnxruntime.get_available_providers():
        raise RuntimeError(f"this onnxruntime has no {wanted}: pip install onnxruntime-gpu")
    index = int(settings["device"].partition(":")[2] or 0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    name, folder = settings["model"], None
    if os.path.isdir(name):
        with open(os.path.join(name, "config.json"), encoding="utf-8") as config:
            name, folder = json.load(config)["model_type"], name
    dtype = "int8" if settings["dtype"] == "int8" else "fp32"
    model = onnx_asr.load_model(
        name,
        folder,
        quantization="int8" if dtype == "int8" else None,
        sess_options=options,
        providers=[(wanted, {"device_id": index})] if wanted.startswith("CUDA") else [wanted],
    )

    def transcribe(paths: list[str], batch_size: int) -> list[str]:
        return [text for some in batches(paths, batch_size) for text in model.recognize(some)]

    return transcribe, {"dtype": dtype}


def load_sherpa_onnx(settings: Settings) -> tuple[Transcribe, About]:
    """A folder of its published names, or exporter.py's. int8 where that was asked for, else float32; greedy, as by default."""
    import numpy as np
    import sherpa_onnx

    folder, dtype = settings["model"], "int8" if settings["dtype"] == "int8" else "fp32"
    features, suffix = 80, ".int8.onnx" if dtype == "int8" else ".onnx"
    with suppress(FileNotFoundError), open(os.path.join(folder, "config.json"), encoding="utf-8") as config:
        features = json.load(config)["features_size"]  # graphs may say another number, which then counts
    kinds = sherpa_onnx.OfflineRecognizer
    is_ctc = os.path.exists(os.path.join(folder, "model.onnx")) or os.path.exists(
        os.path.join(folder, "model.int8.onnx")
    )
    parts = ("model",) if is_ctc else ("encoder", "decoder", "joiner")
    recognizer = (kinds.from_nemo_ctc if is_ctc else partial(kinds.from_transducer, model_type="nemo_transducer"))(
        **{part: os.path.join(folder, part + suffix) for part in parts},
        tokens=os.path.join(folder, "tokens.txt"),
        num_threads=settings["threads"],
        provider=settings["device"].partition(":")[0],
        feature_dim=features,
    )

    def stream(path: str) -> Any:
        with wave.open(path) as file:
            rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        opened = recognizer.create_stream()
        opened.accept_waveform(rate, samples.astype(np.float32) / 32768)
        return opened

    def transcribe(paths: list[str], batch_size: int) -> list[str]:
        texts: list[str] = []
        for some in batches(paths, batch_size):
            streams = [stream(path) for path in some]
            recognizer.decode_streams(streams)
            texts += [one.result.text for one in streams]
        return texts

    return transcribe, {"dtype": dtype}


LOADERS = {
    "fastscribe": load_fastscribe,
    "nemo": load_nemo,
    "transformers": load_transformers,
    "faster-whisper": load_faster_whisper,
    "onnx-asr": load_onnx_asr,
    "sherpa-onnx": load_sherpa_onnx,
}

if __name__ == "__main__":
    serve()
