"""Time and memory to load a large checkpoint on a CPU, beside a plain read of the same file.

    python -m scripts.benchmarks.load OUT.json [--shape parakeet-tdt-0.6b-v3] [--scratch FOLDER] [--repeats 3]

Makes checkpoints with random weights in a temporary folder: a float32 .nemo file and fastscribe folders in float32 and
bf16 (about 6 GB for 0.6B, deleted at the end). Each measurement is a process of its own after a first load of a tiny model,
so it excludes imports and oneDNN's start. Times are medians over `--repeats`. Files are in the page cache.

`plain_read_s` reads the file into new memory, `plain_read_into_buffer_s` into one buffer of 1 MB repeatedly. `read_s` is
the load without folding, casting and packing of layers. On a busy machine, the processor seconds (`_cpu_s`) are more
reliable. Peak memory is VmHWM beyond the resident memory before the load: Linux only.

Progress goes to stderr; the last line of stdout is the JSON document.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]

DTYPES = ("fp32", "bf16", "int8")
# fastscribe's names of weights -> NeMo's.
NEMO_NAMES = (
    (r"^encoder\.subsampling\.out\.", "encoder.pre_encode.out."),
    (r"\.conv\.norm\.", ".conv.batch_norm."),
    (r"\.conv\.pointwise([12])\.", r".conv.pointwise_conv\1."),
    (r"\.conv\.depthwise\.", ".conv.depthwise_conv."),
    (r"\.norm_self_attn\.", ".norm_self_att."),
    (r"^transducer\.predictor\.embedding\.", "decoder.prediction.embed."),
    (r"^transducer\.predictor\.lstm\.", "decoder.prediction.dec_rnn.lstm."),
    (r"^transducer\.joint\.encoder\.", "joint.enc."),
    (r"^transducer\.joint\.predictor\.", "joint.pred."),
    (r"^transducer\.joint\.output\.", "joint.joint_net.2."),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT.json")
    parser.add_argument("--shape", default="parakeet-tdt-0.6b-v3", help="a transducer's name in scripts/shapes.py")
    parser.add_argument(
        "--scratch", type=Path, help="where to put the checkpoints; those that are there are used again"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "PATH", "DTYPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, path, dtype = arguments.one
        print(json.dumps(MEASUREMENTS[what](Path(path), dtype)))
        return
    if arguments.scratch is not None:
        arguments.scratch.mkdir(parents=True, exist_ok=True)
        document = measure_all(arguments.scratch, arguments.shape, arguments.repeats)
    else:
        with tempfile.TemporaryDirectory() as folder:
            document = measure_all(Path(folder), arguments.shape, arguments.repeats)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


def measure_all(folder: Path, shape: str, repeats: int) -> dict[str, Any]:
    from fastscribe._system.processors import cpu_name

    checkpoints = {
        "nemo_fp32": folder / f"{shape}.nemo",
        "folder_fp32": folder / "fp32",
        "folder_bf16": folder / "bf16",
    }
    if not (folder / "bf16" / "config.json").is_file():
        subprocess.run(
            [sys.executable, "-m", "scripts.benchmarks.load", "--one", "make", str(folder), shape],
            check=True,
            stdout=sys.stderr,
        )
    found: dict[str, Any] = {}
    for name, path in checkpoints.items():
        row: dict[str, Any] = {"file_bytes": weights_file(path).stat().st_size}
        row |= in_fresh_processes("plain", path, "", repeats)
        row["inspect"] = in_fresh_processes("inspect", path, "", max(3, repeats))
        for dtype in DTYPES:
            row[dtype] = in_fresh_processes("load", path, dtype, repeats)
            print(f"{name} {dtype}: {json.dumps(row[dtype])}", file=sys.stderr)
        found[name] = row
    return {
        "benchmark": "load",
        "shape": shape,
        "repeats": repeats,
        "page_cache": "warm",
        "checkpoints": found,
        "cpu": cpu_name(),
        "processors": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def in_fresh_processes(what: str, path: Path, dtype: str, repeats: int) -> dict[str, float]:
    command = [sys.executable, "-m", "scripts.benchmarks.load", "--one", what, str(path), dtype]
    outputs = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout for _ in range(repeats)]
    return median([json.loads(output.splitlines()[-1]) for output in outputs])


def median(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}


def weights_file(path: Path) -> Path:
    return path if path.is_file() else path / "model.safetensors"


def measure_plain(path: Path, _dtype: str) -> dict[str, float]:
    def into_new_memory() -> None:
        weights_file(path).read_bytes()

    def into_buffer() -> None:
        buffer = bytearray(1 << 20)
        with weights_file(path).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    into_buffer()  # fills the page cache
    cpu_before = time.process_time()
    plain_s = seconds(into_new_memory)
    cpu_s = time.process_time() - cpu_before
    return {"plain_read_s": plain_s, "plain_read_cpu_s": cpu_s, "plain_read_into_buffer_s": seconds(into_buffer)}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure_load(path: Path, dtype: str) -> dict[str, float]:
    from fastscribe.families.model import build_model
    from fastscribe.pipeline import model_building
    from fastscribe.transcriber import Transcriber

    Transcriber.load(ROOT / "tests/data/models/hf_tdt_demo", "cpu", dtype)
    gc.collect()
    measure_plain(path, "")
    packing_s = 0.0

    def timed(config: Any, weights: Any, where: object, prepare_: Any) -> Any:
        def prepare_timed_(part_path: str, part: Any) -> None:
            nonlocal packing_s
            packing_s += seconds(lambda: prepare_(part_path, part))

        return build_model(config, weights, where, prepare_timed_)

    mock.patch.object(model_building, "build_model", timed).start()  # this process measures one load and ends
    reset_peak()
    before = resident_bytes("VmRSS")
    start, cpu_before = time.perf_counter(), time.process_time()
    loaded = Transcriber.load(path, "cpu", dtype)
    load_s, load_cpu_s = time.perf_counter() - start, time.process_time() - cpu_before
    peak_bytes, grown_bytes = resident_bytes("VmHWM") - before, resident_bytes("VmRSS") - before
    model_bytes, largest_bytes = tensor_bytes(loaded._recognizer.model), largest_tensor_bytes(path)
    return {
        "load_s": load_s,
        "load_cpu_s": load_cpu_s,
        "fold_cast_pack_s": packing_s,
        "read_s": load_s - packing_s,
        "peak_bytes": peak_bytes,
        "grown_bytes": grown_bytes,
        "model_bytes": model_bytes,
        "largest_tensor_bytes": largest_bytes,
        "peak_less_largest_tensor_by_model": (peak_bytes - largest_bytes) / model_bytes,
    }


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def resident_bytes(field: str) -> int:
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def tensor_bytes(model: Any) -> int:
    """Return the bytes of all tensors in modules, including packed ones."""
    import torch

    held: dict[int, Any] = {}
    for module in model.modules():
        for values in (module.__dict__, module._parameters, module._buffers):
            held |= {id(value): value for value in values.values() if isinstance(value, torch.Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in held.values())


def largest_tensor_bytes(path: Path) -> int:
    """Return the bytes of the largest tensor in the file."""
    from fastscribe.checkpoint.reader import read_checkpoint

    return max(tensor.numel() * tensor.element_size() for tensor in read_checkpoint(path).weights.values())


def measure_inspect(path: Path, _dtype: str) -> dict[str, float]:
    """Measure `inspect` from a small process, because the system's peak includes that of the parent process."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "fastscribe", "inspect", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return {"wall_s": time.perf_counter() - start, "peak_bytes": 1024 * usage.ru_maxrss}


def make(folder: Path, shape: str) -> dict[str, float]:
    """Write a checkpoint of noise: loading does not depend on the weights' values."""
    import torch

    from fastscribe.checkpoint import native_writer
    from fastscribe.checkpoint.reader import Checkpoint
    from fastscribe.families.model import Model
    from scripts.random_checkpoint import random_tokenizer
    from scripts.shapes import SHAPES

    config = SHAPES[shape]
    with torch.device("meta"):
        expected = Model(config).state_dict()
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.rand(tensor.shape, generator=generator).add_(0.5).mul_(0.02)
        if tensor.is_floating_point()
        else torch.zeros((), dtype=torch.long)
        for name, tensor in expected.items()
    }
    checkpoint = Checkpoint(folder, "fastscribe", config, random_tokenizer(config), weights, has_random_weights=True)
    write_nemo(replace(checkpoint, weights=weights), folder / f"{shape}.nemo")
    native_writer.write(checkpoint, folder / "fp32", torch.float32)
    native_writer.write(checkpoint, folder / "bf16", torch.bfloat16)
    return {}


def write_nemo(checkpoint: Any, path: Path) -> None:
    import torch
    import yaml

    state = {nemo_name(name): in_nemo_shape(name, tensor) for name, tensor in checkpoint.weights.items()}
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        weights = Path(scratch) / "model_weights.ckpt"
        torch.save(state, weights)
        with tarfile.open(path, "w:") as archive:
            text = yaml.safe_dump(nemo_config(checkpoint.config)).encode()
            member = tarfile.TarInfo("./model_config.yaml")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
            archive.add(weights, arcname="./model_weights.ckpt")


def nemo_name(name: str) -> str:
    stage = re.match(r"encoder\.subsampling\.stages\.(\d+)\.(\d+)\.(.*)", name)
    if stage:  # NeMo numbers convolutions and activations in one row: 0, 2, 3, 5, 6 ..
        number, conv = int(stage[1]), int(stage[2])
        return f"encoder.pre_encode.conv.{0 if number == 0 else 3 * number - 1 + conv}.{stage[3]}"
    for pattern, replacement in NEMO_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def in_nemo_shape(name: str, tensor: Any) -> Any:
    return tensor.unsqueeze(-1) if re.search(r"\.conv\.pointwise[12]\.weight$", name) else tensor


def nemo_config(config: Any) -> dict[str, Any]:
    encoder, features = config.encoder, config.features
    labels = [f"label{number}" for number in range(config.num_labels)]
    durations = list(config.durations)
    return {
        "target": "nemo.collections.asr.models.rnnt_models.EncDecRNNTModel",
        "random_weights": True,
        "labels": labels,
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": features.sample_rate,
            "window_size": features.win_length / features.sample_rate,
            "window_stride": features.hop_length / features.sample_rate,
            "features": features.num_mels,
            "n_fft": features.n_fft,
        },
        "encoder": {
            "_target_": "nemo.collections.asr.modules.ConformerEncoder",
            "feat_in": encoder.num_mels,
            "n_layers": encoder.num_layers,
            "d_model": encoder.d_model,
            "n_heads": encoder.num_heads,
            "ff_expansion_factor": encoder.ff_hidden // encoder.d_model,
            "conv_kernel_size": encoder.conv_kernel,
            "conv_norm_type": encoder.conv_norm,
            "use_bias": encoder.use_bias,
            "xscaling": encoder.xscaling,
            "subsampling": encoder.subsampling,
            "subsampling_factor": encoder.subsampling_factor,
            "subsampling_conv_channels": encoder.subsampling_channels,
            "self_attention_model": "rel_pos",
        },
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder",
            "prednet": {"pred_hidden": config.predictor.hidden, "pred_rnn_layers": config.predictor.num_layers},
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint",
            "num_extra_outputs": len(durations),
            "jointnet": {"joint_hidden": config.joint.hidden, "activation": config.joint.activation},
        },
        "decoding": {"model_type": "tdt", "durations": durations} if durations else {"model_type": "rnnt"},
    }


MEASUREMENTS: dict[str, Callable[[Path, str], dict[str, float]]] = {
    "plain": measure_plain,
    "load": measure_load,
    "inspect": measure_inspect,
    "make": make,
}

if __name__ == "__main__":
    main()
