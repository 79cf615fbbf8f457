"""Builds the decoder of RNN-T and TDT models: greedy or with a beam, on a GPU or a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastscribe.config import GraphMode
from fastscribe.decode.decoder import Decoder, Parts, check_graph_mode
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.families.blocks.transducer import Transducer


def build(parts: Parts) -> Decoder:
    """Build the decoder.

    Raises:
        CheckpointError: The joint network makes numbers that are not finite.
        UsageError: The graph mode is unavailable.
    """
    model, options = parts.model, parts.options
    assert model.transducer is not None
    if not _is_finite(model.transducer, model.config.encoder.d_model):
        path = parts.checkpoint.path
        raise CheckpointError(path, "its joint network makes numbers that are not finite: damaged weights")
    if (options.beam or 1) > 1:
        return _build_beam(parts, model.transducer)
    is_wide = model.config.encoder.has_loops
    return build_greedy(model.transducer, parts.device, options.cuda_graphs, parts.say, is_wide=is_wide)


def _build_beam(parts: Parts, transducer: Transducer) -> Decoder:
    from fastscribe.decode.batched_beam import BeamDecoder
    from fastscribe.decode.label_looping import Network

    options = parts.options
    if options.cuda_graphs not in ("auto", "off"):
        raise UsageError(
            f"--cuda-graphs {options.cuda_graphs}: a beam is searched without graphs: auto or off, or --beam 1"
        )
    return BeamDecoder(Network.prepare(transducer), options.beam or 1, parts.fused, has_nbest=options.nbest is not None)


def build_greedy(
    transducer: Transducer, device: torch.device, mode: GraphMode, say: Callable[[str], None], *, is_wide: bool = False
) -> Decoder:
    """Build the greedy decoder of a model, which must stay on its device in its dtype.

    Args:
        transducer: The model.
        device: The model's device; every mode but `auto` and `off` needs a CUDA device.
        mode: The `--cuda-graphs` option.
        say: With `auto`, gets one line for each better mode that is unavailable, here or at the first batch.
        is_wide: On a CPU, decode with loops that numba compiles.

    Raises:
        UsageError: The mode is unavailable. On a GPU the decoder may also raise it at the first batch.
    """
    check_graph_mode(mode, device)
    if device.type == "cuda":
        from fastscribe.decode import transducer_graphs

        return transducer_graphs.build_on_gpu(transducer, device, mode, say)
    from fastscribe.decode.label_looping import LabelLooping, Network

    if is_wide and device.type == "cpu":
        from fastscribe.decode.cpu_looping import CpuLooping

        return CpuLooping(Network.prepare(transducer))
    return LabelLooping(Network.prepare(transducer))


@torch.inference_mode()
def _is_finite(transducer: Transducer, width: int) -> bool:
    """Return True if a frame of zeros yields finite logits. An infinite blank would win every frame: an empty text."""
    like = transducer.predictor.embedding.weight
    output_BH, _ = transducer.predictor.step(
        like.new_tensor([transducer.blank_id]).long(), transducer.predictor.initial_state(1)
    )
    encoded_1J = transducer.joint.encoder(like.new_zeros(1, width))
    return bool(transducer.joint(encoded_1J, transducer.joint.predictor(output_BH)).isfinite().all())
