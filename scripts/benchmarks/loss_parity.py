"""Compare the transducer losses with other libraries: the same logits, their losses and gradients.

    PYTHON -m scripts.benchmarks.loss_parity [--device cuda]

The other libraries are those of PYTHON's environment: torchaudio (RNN-T), NeMo (RNN-T and TDT) and fast_rnnt (RNN-T). It also
needs torch and numba, but no fastscribe. NeMo's TDT loss runs on a GPU; on a CPU its slow plain-torch form replaces it,
without FastEmit and clamp. Each line is one case: the largest relative difference of an utterance's loss, and the largest
difference of a gradient. The last line of stdout is one JSON document. The exit code is 1 if anything differs by more than
rounding, and 2 if there is no other library.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from fastscribe.training import TransducerLossConfig, transducer_loss

MAX_LOSS, MAX_GRADIENT = 1e-5, 5e-4  # theirs sum hundreds of log-probabilities in float32
FRAMES, LABELS, TOKENS = (60, 43, 20, 1), (25, 30, 0, 4), 129
RNNT = TransducerLossConfig()
TDT = TransducerLossConfig(durations=(0, 1, 2, 3, 4))
Loss = Callable[[torch.Tensor], torch.Tensor]


def problem(num_durations: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return logits, labels, frame lengths and label lengths; blank is the last token, as in NeMo's TDT."""
    torch.manual_seed(0)
    labels_BU = torch.randint(0, TOKENS - 1, (len(LABELS), max(LABELS)))
    logits_BTUV = torch.randn(len(FRAMES), max(FRAMES), max(LABELS) + 1, TOKENS + num_durations)
    return tuple(x.to(device) for x in (logits_BTUV, labels_BU, torch.tensor(FRAMES), torch.tensor(LABELS)))


def of_logits(loss: Callable[..., torch.Tensor], *arguments: Any, **options: Any) -> Loss:
    return lambda logits_BTUV: loss(logits_BTUV, *arguments, **options)


def torchaudio_cases(device: str) -> Iterator[tuple[str, TransducerLossConfig, Loss]]:
    from torchaudio.functional import rnnt_loss

    _, labels, frame_lengths, label_lengths = (x.int() for x in problem(0, device))
    for clamp in (None, 0.02):
        config = TransducerLossConfig(clamp=clamp)
        options = {"blank": TOKENS - 1, "clamp": clamp or -1, "reduction": "none"}
        yield "RNN-T", config, of_logits(rnnt_loss, labels, frame_lengths, label_lengths, **options)


def nemo_cases(device: str) -> Iterator[tuple[str, TransducerLossConfig, Loss]]:
    from nemo.collections.asr.losses.rnnt_pytorch import TDTLossPytorch
    from nemo.collections.asr.parts.numba.rnnt_loss.rnnt_pytorch import RNNTLossNumba, TDTLossNumba

    labels_and_lengths = problem(0, device)[1:]
    clamps = ((0.0, 0.02),) if device == "cuda" else ()  # on a CPU it bounds the log-probabilities' gradient instead
    for fastemit, clamp in ((0.0, None), (0.01, None), *clamps):
        config = TransducerLossConfig(fastemit=fastemit, clamp=clamp)
        loss = RNNTLossNumba(TOKENS - 1, "none", fastemit_lambda=fastemit, clamp=clamp or -1)
        yield "RNN-T", config, of_logits(loss, *labels_and_lengths)
    for sigma, fastemit, durations in ((0.0, 0.0, TDT.durations), (0.05, 0.0, (0, 1, 2)), (0.05, 0.01, TDT.durations)):
        config = TransducerLossConfig(durations=durations, sigma=sigma, fastemit=fastemit)
        if device == "cuda":
            loss = TDTLossNumba(TOKENS - 1, list(durations), "none", fastemit_lambda=fastemit, sigma=sigma)
            yield "TDT", config, of_logits(loss, *labels_and_lengths)
        elif not fastemit:
            loss = TDTLossPytorch(TOKENS - 1, list(durations), reduction="none", sigma=sigma)
            yield "TDT (plain torch)", config, of_logits(loss, *labels_and_lengths)


def fast_rnnt_cases(device: str) -> Iterator[tuple[str, TransducerLossConfig, Loss]]:
    import fast_rnnt

    _, labels, frame_lengths, label_lengths = problem(0, device)
    zeros = torch.zeros_like(frame_lengths)
    boundary = torch.stack([zeros, zeros, label_lengths, frame_lengths], dim=1)
    options = {"termination_symbol": TOKENS - 1, "boundary": boundary, "reduction": "none"}
    yield "RNN-T", RNNT, lambda x: fast_rnnt.rnnt_loss(x, labels, **options)


LIBRARIES = {"torchaudio": torchaudio_cases, "nemo": nemo_cases, "fast_rnnt": fast_rnnt_cases}


def losses_and_gradient(
    loss: Loss, logits_BTUV: torch.Tensor, weight_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_BTUV = logits_BTUV.clone().requires_grad_()
    losses_B = loss(logits_BTUV)
    (gradient_BTUV,) = torch.autograd.grad((losses_B * weight_B).sum(), logits_BTUV)
    return losses_B.detach(), gradient_BTUV


def compare(library: str, device: str) -> Iterator[dict[str, Any]]:
    for kind, config, theirs in LIBRARIES[library](device):
        logits_BTUV, *said = problem(len(config.durations), device)
        weight_B = torch.tensor([1.0, 0.5, 2.0, 1.0], device=device)

        def ours(x: torch.Tensor, said: Any = said, config: Any = config) -> torch.Tensor:
            return transducer_loss(x, *said, blank_id=TOKENS - 1, config=config, reduction="none")

        losses_B, gradient = losses_and_gradient(ours, logits_BTUV, weight_B)
        their_losses_B, their_gradient = losses_and_gradient(theirs, logits_BTUV, weight_B)
        yield {
            "library": library,
            "loss": kind,
            "options": {k: v for k, v in vars(config).items() if v},
            "ours": [round(x, 4) for x in losses_B.tolist()],
            "theirs": [round(x, 4) for x in their_losses_B.tolist()],
            "loss_difference": float(((losses_B - their_losses_B).abs() / losses_B.abs()).max()),
            "gradient_difference": float((gradient - their_gradient).abs().max()),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    rows = []
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            print(f"{library}: not installed here", file=sys.stderr)
            continue
        on_cpu = mock.patch.object(
            torch.Tensor, "cuda", lambda x: x
        )  # NeMo's plain form asks for a GPU it can do without
        with warnings.catch_warnings(), on_cpu if device == "cpu" else mock.MagicMock():
            warnings.simplefilter("ignore")
            try:
                for row in compare(library, device):
                    rows.append(row)
                    print(
                        f"{library:10} {row['loss']:18} {row['options']!s:60} loss {row['loss_difference']:.1e}", end=""
                    )
                    print(f"  gradient {row['gradient_difference']:.1e}  {row['ours']} {row['theirs']}", flush=True)
            except (ImportError, OSError) as error:
                print(f"{library}: cannot be imported: {error}", file=sys.stderr)
    print(json.dumps({"device": device, "torch": torch.__version__, "cases": rows}))
    differs = any(row["loss_difference"] > MAX_LOSS or row["gradient_difference"] > MAX_GRADIENT for row in rows)
    return 2 if not rows else int(differs)


if __name__ == "__main__":
    sys.exit(main())
