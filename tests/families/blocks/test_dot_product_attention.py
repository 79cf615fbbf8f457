"""All attention goes through one function, which uses kernels without plans per shape and changes no global settings.

Fake CUDA tensors, which have shapes and strides but no memory, show the calls that a GPU would get. Only the tests marked
`cuda`, at the end, run the memory-efficient kernel.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fastscribe.config import LocalAttention
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.families.blocks import dot_product_attention
from fastscribe.families.blocks.dot_product_attention import BIAS_ALIGNMENT, align_bias, attend
from fastscribe.families.blocks.padding import Padding
from fastscribe.families.canary import attention_decoder as aed
from fastscribe.families.canary.attention_decoder import AttentionDecoder
from fastscribe.families.conformer import attention, operations
from fastscribe.types import Frames
from tests.conftest import ROOT
from tests.decode.test_aed import CONFIGS, LABELS, WIDTH

PACKAGE = ROOT / "fastscribe"
EFFICIENT, MATH = "_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math"


def flags() -> tuple[Any, ...]:
    cuda = torch.backends.cuda
    enabled = (
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
    )
    return *enabled, torch._C._get_sdp_priority_order()


class Spy(TorchDispatchMode):
    """Record the attention operators and their biases. Replaces the memory-efficient kernel, which a CPU lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if "attention" in name:
            self.calls.append((name, args[3]))
        if name == EFFICIENT:
            out, none = torch.ops.aten._scaled_dot_product_attention_math(*args[:4])[0], args[0].new_empty(0)
            return out, none, none, none
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the GPU code path for all tensors, and let torch report that its kernel supports them."""
    monkeypatch.setattr(dot_product_attention, "can_use_efficient_attention", lambda params: True)
    for module in (aed, attention, operations):
        monkeypatch.setattr(module, "attend", dot_product_attention._attend_on_gpu)


def assert_aligned(bias: torch.Tensor) -> None:
    assert bias.stride(-1) == 1
    assert bias.storage_offset() % BIAS_ALIGNMENT == 0
    assert not [stride for stride in bias.stride()[:-1] if stride % BIAS_ALIGNMENT]


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = query.double() @ key.double().transpose(2, 3) / query.shape[-1] ** 0.5 + bias.double()
    return scores.softmax(-1) @ value.double()


@pytest.mark.parametrize("num_queries", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 0, 7), (2, 1, 1, 7), (0, 7)], ids=str)
def test_attend_equals_formula(num_queries: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 3, num_queries, 8, dtype=dtype)
    key, value = torch.randn(2, 2, 3, 7, 8, dtype=dtype)
    bias = torch.randn([size or num_queries for size in shape], dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(
        attend(query, key, value, bias).double(), plain(query, key, value, bias), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("kernel_takes_it", [False, True])
def test_kernel_choice_on_gpu(monkeypatch: pytest.MonkeyPatch, kernel_takes_it: bool) -> None:
    """Uses fake CUDA tensors, which have shapes but no memory."""
    monkeypatch.setattr(dot_product_attention, "can_use_efficient_attention", lambda params: kernel_takes_it)
    before = flags()
    with FakeTensorMode(), Spy() as spy:
        query, key = torch.empty(2, 3, 5, 8, device="cuda"), torch.empty(2, 3, 32, 8, device="cuda")
        assert attend(query, key, key, torch.empty(5, 32, device="cuda")).shape == (2, 3, 5, 8)
    assert [name for name, _ in spy.calls] == [EFFICIENT] * kernel_takes_it
    assert flags() == before


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("num_frames", [1, 15, 16, 17, 33])
def test_encoder_scores_are_aligned(num_frames: int) -> None:
    """Shifted scores are views; those of a window have any storage offset."""
    torch.manual_seed(0)
    lengths_B = torch.tensor([num_frames, num_frames // 2])
    qkv_BTD, positions_HRK, bias_HR = torch.randn(2, num_frames, 48), torch.randn(2, 256, 8), torch.randn(2, 256)
    for name, local in [("all", None), ("window", LocalAttention(7, 5)), ("narrow", LocalAttention(3, 0))]:
        with Spy() as spy:
            found_BTD = operations.rel_attention(qkv_BTD, positions_HRK, bias_HR, lengths_B, local)
        assert {called for called, _ in spy.calls} == {EFFICIENT}, name
        for _, bias in spy.calls:
            assert_aligned(bias)
        with pytest.MonkeyPatch.context() as patch:
            for module in (attention, operations):
                patch.setattr(module, "attend", attend)
            expected_BTD = operations.rel_attention(qkv_BTD, positions_HRK, bias_HR, lengths_B, local)
        torch.testing.assert_close(found_BTD, expected_BTD)


def test_unaligned_storage_offset() -> None:
    """All strides are multiples of 16 but the offset is not; torch would pass it to the kernel without a copy."""
    padding = Padding.of(torch.tensor([192]), 192)
    seen: list[torch.Tensor] = []

    def note(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        seen.append(bias)
        return attend(query, key, value, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attend", note)
        q = torch.zeros(1, 1, 192, 8)
        attention.attend_locally(
            *(q, q, q, lambda queries: torch.zeros(1, 1, len(range(192)[queries]), 145), padding),
            attention.Window.of(LocalAttention(70, 74), 192),
        )
    first = seen[0]
    assert [first.shape[-1] % 16, *(stride % 16 for stride in first.stride()[:-1])] == [0, 0, 0, 0]
    assert first.storage_offset() % 8
    assert_aligned(align_bias(first))
    assert torch.equal(align_bias(first), first)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("config", CONFIGS[:2])
def test_decoder_masks_are_aligned(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Otherwise each layer would copy the mask for each token."""
    monkeypatch.setattr(dot_product_attention.F, "pad", None)
    torch.manual_seed(0)
    model = AttentionDecoder(config, WIDTH, LABELS, 8).eval().requires_grad_(False)
    cache = model.new_cache(3, 21, 19)
    with Spy() as spy:
        model.load_frames_(cache, Frames(torch.randn(3, 20, WIDTH), torch.tensor([20, 3, 0])))
        for positions_Q in (torch.arange(3), torch.tensor([3]), torch.tensor([4])):
            model(torch.zeros(3, len(positions_Q), dtype=torch.long), positions_Q, cache, int(positions_Q[-1]) + 1)
    assert {name for name, _ in spy.calls} == {EFFICIENT}
    for _, bias in spy.calls:
        assert_aligned(bias)


@pytest.mark.usefixtures("as_on_gpu")
def test_selected_rows_keep_aligned_mask() -> None:
    model = AttentionDecoder(CONFIGS[0], WIDTH, LABELS, 8).requires_grad_(False)
    assert_aligned(model.new_cache(3, 21, 4).rows(torch.tensor([2, 0])).mask_B11T)


@pytest.mark.parametrize("device", ["cpu", "as on a GPU"])
def test_gradients(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """The bias, a product of the queries, has a gradient too. The math kernel replaces the memory-efficient one."""
    torch.manual_seed(0)
    tensors = [part.requires_grad_() for part in torch.randn(3, 2, 3, 7, 8, dtype=torch.double)]
    tensors.append(torch.randn(2, 3, 7, 7, dtype=torch.double, requires_grad=True))
    call = attend if device == "cpu" else dot_product_attention._attend_on_gpu
    ours = torch.autograd.grad(call(*tensors).square().sum(), tensors)
    exact = torch.autograd.grad(plain(*tensors).square().sum(), tensors)
    torch.testing.assert_close(ours, exact)


def test_kernel_saves_for_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def kernel(*args: Any) -> tuple[torch.Tensor]:
        requested.append(args[4])
        return (args[0],)

    monkeypatch.setattr(dot_product_attention, "can_use_efficient_attention", lambda params: True)
    monkeypatch.setattr(torch.ops.aten, EFFICIENT, kernel)
    query = torch.zeros(1, 1, 2, 8)
    bias = torch.zeros(2, 2, requires_grad=True)
    dot_product_attention._attend_on_gpu(query, query, query, bias)
    dot_product_attention._attend_on_gpu(query, query, query, bias.detach())
    with torch.no_grad():
        dot_product_attention._attend_on_gpu(query, query, query, bias)
    assert requested == [True, False, False]


def test_single_attention_call_without_flags() -> None:
    """Applies to the user's process; benchmarks, which count multiplications, run in another one."""
    for path in PACKAGE.rglob("*.py"):
        text, wanted = path.read_text(encoding="utf-8"), re.compile("dot_product.*attention|sdp|Multihead")
        nodes = list(ast.walk(ast.parse(text))) if wanted.search(text) else []
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}  # names for getattr
        names |= {text for text in texts if isinstance(text, str) and text.startswith("_scaled_")}
        named = {name for name in names if wanted.search(name)}
        relative = path.relative_to(PACKAGE).as_posix()
        if relative == "families/blocks/dot_product_attention.py":
            assert named == {"scaled_dot_product_attention", EFFICIENT, MATH}
        elif not relative.startswith("bench/"):
            assert not named, relative


def odd_views(dtype: torch.dtype) -> list[torch.Tensor]:
    """Biases for [2, 3, 33, 40] scores: contiguous, broadcast, shifted scores, and windows with any storage offset."""
    whole = torch.randn(2, 3, 33, 40, dtype=dtype)
    shifted = torch.randn(2, 3, 33, 73, dtype=dtype)[..., 3:43]
    window = torch.randn(2 * 3 * 33 * 48 + 5, dtype=dtype)[5:].view(2, 3, 33, 48)[..., :40]
    return [whole, torch.randn(2, 1, 1, 40, dtype=dtype), torch.randn(33, 40, dtype=dtype), shifted, window]


def on_gpu(view: torch.Tensor) -> torch.Tensor:
    """Copy to the GPU with the same strides and offset."""
    cache = torch.empty(view.untyped_storage().nbytes() // view.element_size(), dtype=view.dtype, device="cuda")
    cache.copy_(torch.as_strided(view, cache.shape, (1,), 0))
    return cache.as_strided(view.shape, view.stride(), view.storage_offset())


@pytest.mark.cuda
@pytest.mark.parametrize("width", [8, 64, 128, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("view", range(5))
def test_gpu_kernel_and_gradients(view: int, dtype: torch.dtype, width: int) -> None:
    """Compare with float64. A head width of 5 uses the math kernel."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, size, width, dtype=dtype) for size in (33, 40, 40)] + [odd_views(dtype)[view]]
    ours = [on_gpu(tensor).requires_grad_() for tensor in tensors]
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    weight = torch.randn(2, 3, 33, width, dtype=dtype)
    with no_tf32(torch.device("cuda")):
        found, expected = attend(*ours), plain(*exact)
        gradients = torch.autograd.grad((found * weight.cuda()).sum(), ours)
    wanted = torch.autograd.grad((expected * weight.double()).sum(), exact)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for got, right in zip((found, *gradients), (expected, *wanted), strict=True):
        assert got.shape == right.shape
        error, largest = (got.detach().cpu().double() - right).abs().max(), float(right.detach().abs().max())
        assert error < tolerance * max(1.0, largest)


@pytest.mark.cuda
@pytest.mark.parametrize("local", [None, LocalAttention(7, 5), LocalAttention(3, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_frames", [1, 15, 16, 33, 250])
def test_gpu_encoder_attention_without_triton(
    num_frames: int, dtype: torch.dtype, local: LocalAttention | None
) -> None:
    """Compare with float64 on the CPU."""
    torch.manual_seed(num_frames)
    lengths_B = torch.tensor([num_frames, num_frames // 2])
    shapes = (2, num_frames, 3 * 128), (2, 512, 64)
    given = [torch.randn(*shape, dtype=dtype) for shape in shapes]
    bias_HR = torch.randn(2, 512)
    with no_tf32(torch.device("cuda")):
        found_BTD = operations.rel_attention(*(part.cuda() for part in (*given, bias_HR, lengths_B)), local)
    exact_BTD = operations.rel_attention(*(part.double() for part in (*given, bias_HR)), lengths_B, local)
    is_real_BT = torch.arange(num_frames) < lengths_B[:, None]
    assert found_BTD.isfinite().all()
    error = (found_BTD.cpu().double() - exact_BTD)[is_real_BT].abs().max()
    assert error < (1e-4 if dtype == torch.float32 else 4e-2) * max(1.0, float(exact_BTD.abs().max()))
