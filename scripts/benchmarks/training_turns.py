"""Training steps in turns: fastscribe, fastscribe with gradient checkpointing, and NeMo, on the same batch of noise.

    python -m scripts.benchmarks.training_turns --shape parakeet-rnnt-0.6b --layers 4 --against nemo --json turns.json

A step is forward, loss, backward and AdamW in float32 without dropout, averaging and clipping. NeMo must be installed beside
fastscribe; it gets the same weights, through a .nemo file that fastscribe writes, so that its first loss is the same. Its TDT
loss needs a GPU (the plain torch form for debugging takes minutes a step), so RNN-T and CTC are compared. Steps alternate, so
that a busy machine slows all alike; processor time is that of all threads. `saved_bytes` is exact: what the forward pass keeps
for the backward pass, weights excluded. It is no peak: a backward pass needs memory of its own.
"""

from __future__ import annotations

import logging
import string
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Annotated, Any

from fastscribe.bench.result import JsonFile, result
from fastscribe.cli import main
from fastscribe.cli.app import new_app, option
from fastscribe.cli.terminal import show
from fastscribe.errors import UsageError

if TYPE_CHECKING:
    import torch

    from fastscribe.config import ModelConfig
    from fastscribe.training.network import Targets
    from fastscribe.types import Features

PROGRAM = "python -m scripts.benchmarks.training_turns"
app = new_app()
_CASE = ("whose", "layers", "batch_size", "sequence_s")
_STATISTIC = (
    "step_cpu_ms, step_ms: medians over the turns of processor time and wall time; vs_first: ratio of the former"
)
_NEMO = "nemo"
Step = Callable[[], "torch.Tensor"]  # makes a step and returns its loss per label


@app.command(epilog=f"Example: {PROGRAM} --shape parakeet-rnnt-0.6b --layers 4 --gradient-checkpointing")
def training_turns(
    shape: Annotated[str, option("--shape", help="A published model's shape by its name.")] = "parakeet-rnnt-0.6b",
    layers: Annotated[int, option("--layers", min=1, help="Layers of its encoder.")] = 4,
    d_model: Annotated[int | None, option("--d-model", min=16, help="Another width of its encoder.")] = None,
    batch_size: Annotated[int, option("--batch-size", min=1, help="Sequences of the batch.")] = 4,
    sequence_s: Annotated[float, option("--sequence-s", min=0.5, max=600.0, help="Length of a sequence.")] = 8.0,
    turns: Annotated[int, option("--turns", min=1, help="Steps of each, after two that do not count.")] = 7,
    gradient_checkpointing: Annotated[
        bool, option("--gradient-checkpointing", help="Measure fastscribe with it too.")
    ] = False,
    against: Annotated[str | None, option("--against", help="nemo: measure NeMo too.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure training steps in turns: processor time, wall time and memory."""
    import torch

    from fastscribe.families.conformer.config import EncoderConfig
    from fastscribe.training.data import check_trainable
    from scripts.benchmarks.training_speed import Case, _noise
    from scripts.shapes import SHAPES

    if against not in (None, _NEMO):
        raise UsageError(f"--against {against}: only {_NEMO}")
    config = SHAPES[shape]
    if against is not None and config.durations:
        raise UsageError(f"--against {against}: its TDT loss needs a GPU: compare an RNN-T or CTC shape")
    check_trainable(config, shape)
    assert isinstance(config.encoder, EncoderConfig)
    width = d_model or config.encoder.d_model
    config = replace(config, encoder=replace(config.encoder, num_layers=layers, d_model=width, ff_hidden=4 * width))
    features, targets = _noise(config, torch.device("cpu"), Case(batch_size, "fp32", 1, sequence_s))
    steps = {"fastscribe": _own_step(config, features, targets, False)}
    if gradient_checkpointing:
        steps["fastscribe, gradient checkpointing"] = _own_step(config, features, targets, True)
    if against is not None:
        steps[_NEMO] = _nemo_step(config, features, targets)
    case = {"layers": layers, "batch_size": batch_size, "sequence_s": sequence_s}
    with result("training_turns", torch.device("cpu"), _CASE, json_file, PROGRAM) as found:
        found |= {"model": shape, "d_model": width, "dtype": "fp32", "turns": turns, "statistic": _STATISTIC}
        found["threads"] = torch.get_num_threads()
        for row in _measured(steps, turns):
            found["rows"].append(row | case)
            times = f"{row['step_cpu_ms']:.0f} ms of processor time, x {row['vs_first']:.2f}"
            show(f"{row['whose']}: {times}, {row['saved_bytes'] / 1e6:.0f} MB saved, loss {row['first_loss']:.4f}")


def _measured(steps: dict[str, Step], turns: int) -> list[dict[str, Any]]:
    first = {whose: float(step()) for whose, step in steps.items()}
    saved = {whose: _saved_bytes(step) for whose, step in steps.items()}
    times: dict[str, list[tuple[float, float]]] = {whose: [] for whose in steps}
    for turn in range(turns):
        order = list(steps) if turn % 2 == 0 else list(reversed(steps))
        for whose in order:
            start, start_cpu = perf_counter(), process_time()
            steps[whose]()
            times[whose].append((process_time() - start_cpu, perf_counter() - start))
    rows: list[dict[str, Any]] = []
    for whose in steps:
        cpu_s, wall_s = (median(values) for values in zip(*times[whose], strict=True))
        row = {"whose": whose, "step_cpu_ms": round(1000 * cpu_s, 1), "step_ms": round(1000 * wall_s, 1)}
        row["vs_first"] = round(row["step_cpu_ms"] / rows[0]["step_cpu_ms"], 3) if rows else 1.0
        rows.append(row | {"saved_bytes": saved[whose], "first_loss": round(first[whose], 5)})
    return rows


def _saved_bytes(step: Step) -> int:
    """Return the bytes that the step's forward pass keeps, each memory once, without leaves such as weights."""
    import torch

    sizes: dict[int, int] = {}
    kept = []  # memory that was freed and used again would count once

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_leaf or not tensor.requires_grad:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(sizes.values())


def _own_step(config: ModelConfig, features: Features, targets: Targets, is_checkpointed: bool) -> Step:
    import torch

    from fastscribe.families.conformer.encoder import Encoder
    from fastscribe.training.gradient_checkpointing import checkpoint_encoder
    from fastscribe.training.loss.config import TransducerLossConfig
    from fastscribe.training.network import Network, new_model
    from fastscribe.training.recipe import OptimiserRecipe
    from fastscribe.training.weights import Weights

    model = new_model(config, seed=0)
    recipe = OptimiserRecipe(learning_rate=1e-5, warmup_steps=0, ema=0.0, clip_norm=None)
    weights = Weights(model, torch.float32, recipe)
    network = Network(model, TransducerLossConfig(config.durations), 0.0, dropout=0.0).train()
    assert isinstance(model.encoder, Encoder)
    if is_checkpointed:
        checkpoint_encoder(model.encoder)

    def step() -> torch.Tensor:
        loss: torch.Tensor = network(features, targets, 1.0)["loss"]
        loss.backward()
        weights.step(0.0)
        return loss.detach()

    return step


def _nemo_step(config: ModelConfig, features: Features, targets: Targets) -> Step:
    """Return NeMo's step, as EncDecRNNTBPEModel and EncDecCTCModelBPE make it."""
    import torch

    model = _nemo_model(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.98), weight_decay=1e-2)
    labels_BU, label_lengths_B = targets.labels_BU, targets.lengths_B

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        encoded, lengths_B = model.encoder(audio_signal=features.mel_BMT, length=features.lengths_B)
        if config.joint is None:
            log_probs = model.decoder(encoder_output=encoded)
            summed = model.loss(
                log_probs=log_probs, targets=labels_BU, input_lengths=lengths_B, target_lengths=label_lengths_B
            )
            loss = summed * len(labels_BU) / label_lengths_B.sum()  # NeMo's is a mean over recordings
        else:
            decoded, target_lengths_B, _ = model.decoder(targets=labels_BU, target_length=label_lengths_B)
            loss, *_ = model.joint(
                encoder_outputs=encoded,
                decoder_outputs=decoded,
                encoder_lengths=lengths_B,
                transcripts=labels_BU,
                transcript_lengths=target_lengths_B,
                compute_wer=False,
            )
        loss.backward()
        optimiser.step()
        detached: torch.Tensor = loss.detach()
        return detached

    return step


def _nemo_model(config: ModelConfig) -> Any:
    import numpy as np
    import torch

    logging.disable(logging.WARNING)
    from nemo.collections.asr.models import ASRModel

    from fastscribe.checkpoint import nemo_export
    from fastscribe.checkpoint.reader import Checkpoint
    from fastscribe.text.tokenizer import from_sentencepiece
    from fastscribe.training.bpe import train_vocabulary
    from fastscribe.training.network import new_model

    weights = {name: tensor.detach() for name, tensor in new_model(config, seed=0).state_dict().items()}
    letters = np.random.default_rng(0).choice(list(string.ascii_lowercase), (20 * config.num_labels, 6))
    vocabulary = train_vocabulary([" ".join(map("".join, letters))], config.num_labels, "bpe")
    checkpoint = Checkpoint(Path("random"), "fastscribe", config, from_sentencepiece(vocabulary), weights)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.nemo"
        nemo_export.write(checkpoint, path, torch.float32)
        model = ASRModel.restore_from(str(path), map_location="cpu").train().requires_grad_(True)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.LSTM):
            module.dropout = 0.0
    return model


if __name__ == "__main__":
    main(app)
