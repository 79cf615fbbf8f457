"""Every form of the subsampling equals the reference: a sequence of convolutions, each with zeroed padding."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastscribe._system.thread_shares import share
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.families.blocks.forms import pack_linears_
from fastscribe.families.conformer import cpu_subsampling
from fastscribe.families.conformer.cpu_subsampling import FirstConvolutions
from fastscribe.families.conformer.encoder import Encoder, Subsampling
from fastscribe.families.conformer.fused_layers import fuse_
from fastscribe.families.conformer.operations import TORCH
from fastscribe.families.model import optimise_, to_cpu_form_
from tests.conftest import torch_threads
from tests.families.conformer.test_encoder import random_encoder, small_config

CONFIGS = [
    {"subsampling_factor": 8},
    {"subsampling_factor": 8, "num_mels": 33, "subsampling_channels": 9},
    {"subsampling_factor": 4, "subsampling": "striding"},
    {"subsampling_factor": 2},
    {"subsampling_factor": 8, "causal_subsampling": True},
    {"subsampling_factor": 8, "causal_subsampling": True, "num_mels": 33, "subsampling_channels": 9},
    {"subsampling_factor": 4, "causal_subsampling": True, "subsampling": "striding"},
]


def defined(layer: Subsampling, mel_TM: torch.Tensor) -> torch.Tensor:
    """Reference: one recording in float64."""
    x_1CTF = mel_TM.double()[None, None]
    for stage in layer.stages.children():
        for conv in stage.children():
            if isinstance(conv, nn.Conv2d):
                weight, bias = conv.weight.double(), None if conv.bias is None else conv.bias.double()
                if conv.kernel_size == (3, 3):
                    before = 2 if layer.is_causal else 1
                    x_1CTF = F.pad(x_1CTF, (before, 1, before, 1))
                x_1CTF = F.conv2d(x_1CTF, weight, bias, conv.stride, groups=conv.groups)
        x_1CTF = x_1CTF.relu()
    out = F.linear(x_1CTF.transpose(1, 2).flatten(2), layer.out.weight.double(), layer.out.bias.double())
    return out[0].float()


def forms(changes: dict, broken: tuple[int, str] | None = None) -> dict[str, Subsampling]:
    torch.manual_seed(0)
    plain = random_encoder(small_config(**changes))
    if broken is not None:
        stage, parameter = broken
        *_, product, _ = plain.subsampling.stages[stage].children()
        getattr(product, parameter).data.view(-1)[0] = torch.nan
    optimised = deepcopy(plain)
    optimise_(optimised)
    packed, gpu_form, once = deepcopy(optimised), deepcopy(optimised), deepcopy(optimised)
    pack_linears_(packed, torch.float32)
    fuse_(gpu_form, TORCH)
    fuse_(once, replace(TORCH))  # as with Triton's, the first convolution's output is never written
    encoders = {"plain": plain, "optimised": optimised, "packed": packed, "gpu": gpu_form, "written once": once}
    encoders["cpu"] = cpu_form(optimised)
    return {name: encoder.subsampling for name, encoder in encoders.items()}


def cpu_form(optimised: Encoder, dtype: str = "fp32") -> Encoder:
    """The form of wide encoders on a CPU."""
    encoder = deepcopy(optimised)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastscribe.families.conformer.config.MIN_WIDTH_OF_LOOPS", 1)
        to_cpu_form_(encoder, dtype, quantises=False)
    return encoder


def test_narrow_encoders_have_no_loop() -> None:
    narrow = random_encoder(small_config(subsampling_factor=8))
    optimise_(narrow)
    to_cpu_form_(narrow, "fp32", quantises=False)
    assert narrow.subsampling.fused is None


@pytest.mark.parametrize("causal", [False, True])
def test_the_loop_in_16_bits(causal: bool) -> None:
    """It is as near to float32 as torch's operators are, and threads change no bit."""
    optimised = random_encoder(small_config(subsampling_factor=8, causal_subsampling=causal))
    optimise_(optimised)
    plain, ours = deepcopy(optimised).bfloat16().subsampling, cpu_form(optimised, "bf16").subsampling
    mel_BTM, lengths_B = torch.randn(3, 203, 20), torch.tensor([203, 96, 1])
    with torch.inference_mode():
        expected_BTD, out_B = optimised.subsampling(mel_BTM, lengths_B)
        found = [layer(mel_BTM.bfloat16(), lengths_B)[0] for layer in (plain, ours)]
        with torch_threads(3):
            assert torch.equal(ours(mel_BTM.bfloat16(), lengths_B)[0], found[1])
    is_real_BT = torch.arange(expected_BTD.shape[1]) < out_B[:, None]
    of_plain, of_ours = ((one.float() - expected_BTD)[is_real_BT].norm() for one in found)
    assert of_ours <= 1.1 * of_plain


@pytest.mark.parametrize("causal", [False, True])
def test_the_loop_takes_a_length_beyond_the_frames_for_all_of_them(causal: bool) -> None:
    ours = forms({"subsampling_factor": 8, "causal_subsampling": causal})["cpu"]
    mel_BTM = torch.randn(1, 41, 20)
    assert torch.equal(ours(mel_BTM, torch.tensor([60]))[0], ours(mel_BTM, torch.tensor([41]))[0])


def test_threads_share_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[int] = []
    monkeypatch.setattr(cpu_subsampling, "share", lambda parts, work: shares.append(len(parts)) or share(parts, work))
    with torch_threads(3):
        forms({"subsampling_factor": 8})["cpu"](torch.randn(2, 40, 20), torch.tensor([40, 7]))
    assert shares == [3]


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_forms_equal_reference(changes: dict) -> None:
    by_form = forms(changes)
    # A loop that silently left all to torch's operators would equal the reference.
    is_covered = changes.get("subsampling") != "striding" and changes["subsampling_factor"] > 2
    assert isinstance(by_form["cpu"].fused, FirstConvolutions) is is_covered and by_form["packed"].fused is None
    lengths_B = torch.cat([torch.arange(1, 27), torch.tensor([40, 40, 39])])
    num_mels = changes.get("num_mels", 20)
    mel_BTM = torch.randn(len(lengths_B), 40, num_mels) * (torch.arange(40) < lengths_B[:, None])[..., None]
    expected = [defined(by_form["plain"], mel_TM[:n]) for mel_TM, n in zip(mel_BTM, lengths_B.tolist(), strict=True)]
    for name, layer in by_form.items():
        for learns in (False, True):
            if learns and name != "plain":
                continue
            layer.train(learns).requires_grad_(learns)
            found_BTD, found_lengths_B = layer(mel_BTM, lengths_B)
            assert found_lengths_B.tolist() == [len(row) for row in expected], name
            for found_TD, row in zip(found_BTD, expected, strict=True):
                torch.testing.assert_close(found_TD[: len(row)], row, atol=2e-5, rtol=1e-4)


def test_gradient_equals_reference() -> None:
    layer = forms({"subsampling_factor": 4})["plain"].requires_grad_()
    lengths = [13, 12, 5]
    mel_BTM = torch.randn(3, 13, 20) * (torch.arange(13) < torch.tensor(lengths)[:, None])[..., None]
    found_BTD, _ = layer(mel_BTM, torch.tensor(lengths))
    rows = [defined(layer, mel_TM[:length]) for mel_TM, length in zip(mel_BTM, lengths, strict=True)]
    parameters = list(layer.parameters())
    ours = torch.autograd.grad(sum(found_BTD[i, : len(row)].square().sum() for i, row in enumerate(rows)), parameters)
    exact = torch.autograd.grad(sum(row.square().sum() for row in rows), parameters)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.calls.append((func.overloadpacket.__name__, args))
        return func(*args, **(kwargs or {}))


def test_gpu_form_operations() -> None:
    """Only one frame of padding per row is written, and no bias is added separately."""
    layer = forms({"subsampling_factor": 8})["gpu"]
    with Operators() as seen, torch.no_grad():
        layer(torch.randn(2, 40, 20), torch.tensor([40, 7]))
    convolutions = [args for name, args in seen.calls if name == "convolution"]
    assert [(weight.shape[1], bias) for _, weight, bias, *_ in convolutions] == [(1, None)] * 2
    names = [name for name, _ in seen.calls]
    assert names.count("addmm") == 4
    assert not {"masked_fill", "masked_fill_"} & set(names)
    for name, args in seen.calls:
        if name == "index_put_":
            assert args[2].shape[0] == 2
            assert args[2].dim() == 3


@pytest.mark.parametrize("place", ["input", "weight", "bias"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_nan_stays(place: str, stage: int) -> None:
    """In every form: a ReLU that turns NaN into 0 would hide damaged weights."""
    by_form = forms({"subsampling_factor": 8}, broken=None if place == "input" else (stage, place))
    mel_BTM = torch.randn(2, 40, 20)
    if place == "input":
        mel_BTM[0, 8] = torch.nan
    for name, layer in by_form.items():
        out_BTD, _ = layer(mel_BTM, torch.tensor([40, 40]))
        assert out_BTD[0].isnan().any(), name


def test_fold_16_bit_weights() -> None:
    """optimise_ runs before the cast, so that biases are folded in float32."""
    encoder = random_encoder(small_config(subsampling_factor=8)).to(torch.bfloat16)
    assert isinstance(encoder, Encoder)
    encoder.subsampling.optimise_()
    encoder.to(torch.bfloat16)
    out_BTD, _ = encoder.subsampling(torch.randn(2, 17, 20).bfloat16(), torch.tensor([17, 3]))
    assert out_BTD.dtype == torch.bfloat16
    assert out_BTD.isfinite().all()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_gpu_form_on_gpu(changes: dict, dtype: torch.dtype) -> None:
    """Compare both with the plain form in float32 on the CPU, at lengths of all remainders and zero."""
    by_form = forms(changes)
    lengths_B = torch.tensor([203, 96, 17, 16, 15, 1, 0])
    mel_BTM = torch.randn(7, 203, changes.get("num_mels", 20))
    expected_BTD, expected_B = by_form["plain"](mel_BTM, lengths_B)
    is_real_BT = torch.arange(expected_BTD.shape[1]) < expected_B[:, None]
    tolerance = (1e-5 if dtype == torch.float32 else 3e-2) * max(1.0, float(expected_BTD.abs().max()))
    for name in ("plain", "gpu"):
        layer = by_form[name].to("cuda", dtype)
        with no_tf32(torch.device("cuda")), torch.inference_mode():
            found_BTD, found_B = layer(mel_BTM.to("cuda", dtype), lengths_B.cuda())
        assert torch.equal(found_B.cpu(), expected_B)
        assert (found_BTD.cpu().float() - expected_BTD)[is_real_BT].abs().max() < tolerance, name
