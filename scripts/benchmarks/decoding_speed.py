"""Time of a transducer's decoding by batch and graph mode, on random frames, without an encoder.

The frames are noise that changes as slowly as speech. The joint is tuned on them to 3 to 4 labels per second, so a batch
takes as many loop turns as one of speech. Frame-by-frame greedy decoding of one row is timed too, and every mode must equal
its labels.

Shapes: B batch, T frames, D encoder width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch

from fastscribe.bench.roofline import time_call, wall_ms
from fastscribe.config import ModelConfig
from fastscribe.decode import label_looping
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.greedy import greedy
from fastscribe.families.blocks.heads import Transducer
from fastscribe.types import Frames, Hypothesis
from scripts.random_checkpoint import make_transducer_speak_

_INERTIA = 0.6  # correlation of one frame with the next
_TUNING_ROWS, _TUNING_FRAMES = 32, 100


def random_frames(lengths: Sequence[int], width: int, device: torch.device, seed: int) -> Frames:
    """Return a row for each length, in frames: bf16 on a GPU, else float32."""
    generator = torch.Generator(device).manual_seed(seed)
    noise_TBD = torch.randn(max(lengths), len(lengths), width, generator=generator, device=device)
    for earlier_BD, later_BD in pairwise(noise_TBD):
        later_BD.mul_((1 - _INERTIA**2) ** 0.5).add_(earlier_BD, alpha=_INERTIA)
    lengths_B = torch.tensor(lengths, device=device)
    return Frames(noise_TBD.transpose(0, 1).to(_dtype(device)).contiguous(), lengths_B)


def random_transducer(config: ModelConfig, device: torch.device) -> Transducer:
    """Return a random predictor and joint of the config's shape, tuned to such frames, in their dtype."""
    assert config.predictor is not None and config.joint is not None
    torch.manual_seed(0)
    with torch.no_grad():
        with device:  # no wider: it slows every operation
            transducer = Transducer(
                config.predictor, config.joint, config.durations, config.encoder.d_model, config.blank_id
            )
        transducer.eval().requires_grad_(False)
        frames = random_frames([_TUNING_FRAMES] * _TUNING_ROWS, config.encoder.d_model, device, seed=1)
        make_transducer_speak_(transducer, Frames(frames.frames_BTD.float(), frames.lengths_B), config.frame_s)
    return transducer.to(_dtype(device))


def measure(decoder: Decoder, frames: Frames, device: torch.device) -> dict[str, Any]:
    """Time a batch from frames to hypotheses on the host, and until the device is done."""
    hypotheses = decode(decoder, frames)
    labels = [len(hypothesis.token_ids) for hypothesis in hypotheses]
    whole = time_call(lambda: decode(decoder, frames), device, seconds=0.3, most=40)
    return {
        "labels": sum(labels),
        "labels_of_longest_row": max(labels),
        "us_per_label_of_longest_row": 1000.0 * whole.ms / max(1, max(labels)),
        "device_ms": time_call(lambda: decoder.submit(frames), device, seconds=0.3, most=40).ms,
        **asdict(whole),
    }


def decode(decoder: Decoder, frames: Frames) -> list[Hypothesis]:
    with torch.inference_mode():
        return list(decoder.read(decoder.submit(frames).cpu().numpy(), frames))


def num_turns(transducer: Transducer, frames: Frames) -> int:
    """Return the number of loop turns that the batch takes."""
    network = label_looping.Network.prepare(transducer)
    slots = label_looping.Slots.allocate(network, label_looping.slots_needed(frames))
    state = label_looping.LoopState.allocate(network, len(frames.lengths_B), slots)
    label_looping.load_batch_(network, state, frames)
    turns = 0
    while turns == 0 or bool(state.active):
        label_looping.step(network, state)
        turns += 1
    return turns


def greedy_rate(transducer: Transducer, frames: Frames, device: torch.device) -> tuple[Hypothesis, dict[str, Any]]:
    """Decode the first row frame by frame; return it and its time."""
    frames_TD = frames.frames_BTD[0, : int(frames.lengths_B[0])]
    found: list[Hypothesis] = []
    with device:
        ms = wall_ms(lambda: found.append(greedy(transducer, frames_TD)), device)
    return found[0], {"ms": ms, "labels": len(found[0].token_ids), "frames": len(frames_TD)}


def equal_share(found: Sequence[Hypothesis], wanted: Sequence[Hypothesis]) -> float:
    """Return the share of rows with the same labels at the same frames."""
    same = [a.token_ids == b.token_ids and a.token_frames == b.token_frames for a, b in zip(found, wanted, strict=True)]
    return sum(same) / max(1, len(same))


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32
