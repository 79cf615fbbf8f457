"""The CPU's layers equal the plain ones in every dtype, keep recordings apart, and hide no NaN."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch

from fastscribe._system.float_bits import as_numpy, float32_copy
from fastscribe._system.thread_shares import together
from fastscribe.families.blocks.int8 import int8_problem, quantise_rows
from fastscribe.families.blocks.row_kernels import kernels
from fastscribe.families.conformer import cpu_layers
from fastscribe.families.conformer.cpu_layers import CpuLayers, PlainBranch, Stream, conformer_for_cpu_
from fastscribe.families.conformer.encoder import Encoder, Layers
from fastscribe.families.model import optimise_, to_cpu_form_, torch_dtype
from tests.conftest import MODELS, recognizer, torch_threads
from tests.families.conformer.test_encoder import VARIANTS, random_encoder, small_config

needs_int8 = pytest.param("int8", marks=pytest.mark.skipif(int8_problem() is not None, reason=str(int8_problem())))
DTYPES = ["fp32", "bf16", needs_int8]
LENGTHS = [23, 9, 1, 0]


def plain_form(dtype: str, **changes: Any) -> Encoder:
    """A small encoder with the plain layers, in its final dtype; the same weights at every call."""
    encoder = random_encoder(small_config(**changes))
    optimise_(encoder)
    to_cpu_form_(encoder, dtype, quantises=True)
    return encoder


def cpu_form(dtype: str, **changes: Any) -> Encoder:
    """The same encoder with the CPU's layers."""
    encoder = plain_form(dtype, **changes)
    encoder.layers = CpuLayers(encoder.layers)
    return encoder


def stream(dtype: str, width: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(len(LENGTHS), max(LENGTHS), width).to(torch_dtype(dtype)), torch.tensor(LENGTHS)


def frames(encoder: Encoder, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """The real frames of all recordings, in float32."""
    with torch.inference_mode():
        out_BTD = encoder.layers(x_BTD.clone(), lengths_B)
    is_real_BT = torch.arange(x_BTD.shape[1]) < lengths_B[:, None]
    return out_BTD[is_real_BT].float()


def errors(exact: Encoder, forms: Iterable[Encoder], x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> list[float]:
    """How far the frames of each form are from those of float32, as a share of these."""
    expected = frames(exact, x_BTD.float(), lengths_B)
    return [float((frames(form, x_BTD, lengths_B) - expected).norm() / expected.norm()) for form in forms]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_to_the_plain_layers(dtype: str, changes: dict[str, Any]) -> None:
    """16-bit and 8-bit results are compared with float32's: ours are not farther from them than the plain layers'."""
    exact, plain, ours = plain_form("fp32", **changes), plain_form(dtype, **changes), cpu_form(dtype, **changes)
    of_plain, of_ours = errors(exact, (plain, ours), *stream(dtype))
    assert of_ours <= (1e-5 if dtype == "fp32" else 1.1 * of_plain + 1e-3)


def test_arrays_of_weights_are_copies() -> None:
    """A weight's memory may be its file's."""
    weight = torch.ones(4)
    array = float32_copy(weight)
    weight.zero_()
    assert array.tolist() == [1, 1, 1, 1]


def test_what_the_loops_cover() -> None:
    """A form that silently fell back to the plain branches would pass every other test."""
    plain_attention = [changes.get("attention") is not None for changes in VARIANTS]
    plain_convolution = [changes.get("conv_norm") == "layer_norm" for changes in VARIANTS]
    for changes, *expected in zip(VARIANTS, plain_attention, plain_convolution, strict=True):
        layer = cpu_form("fp32", **changes).layers.layers[0]
        assert [isinstance(branch, PlainBranch) for branch in (layer.self_attn, layer.conv)] == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_recordings_do_not_depend_on_each_other(dtype: str) -> None:
    ours = cpu_form(dtype)
    x_BTD, lengths_B = stream(dtype)
    other_BTD = x_BTD.clone()
    other_BTD[1:] = 50.0 * torch.randn_like(other_BTD[1:])
    assert torch.equal(frames(ours, x_BTD, lengths_B)[:23], frames(ours, other_BTD, lengths_B)[:23])
    longer_BTD = torch.cat([x_BTD, torch.full_like(x_BTD[:, :5], 7.0)], dim=1)  # padding is arbitrary
    longer = frames(ours, longer_BTD, lengths_B)
    torch.testing.assert_close(
        longer, frames(ours, x_BTD, lengths_B), atol=2e-2 if dtype != "fp32" else 1e-5, rtol=2e-2
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_every_frame_of_its_recording(dtype: str, value: float) -> None:
    ours = cpu_form(dtype)
    x_BTD, lengths_B = stream(dtype)
    x_BTD[1, 4, 5] = value
    assert torch.equal(
        frames(ours, x_BTD, lengths_B).isnan().all(dim=1), torch.tensor([False] * 23 + [True] * 9 + [False])
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of a loop nor those that have a share of the rows each."""
    ours = cpu_form(dtype)
    alone = frames(ours, *stream(dtype))
    monkeypatch.setattr(cpu_layers, "MIN_ELEMENTS", 1)
    for threads, min_rows, num_shares in ((5, 1000, 0), (5, 1, 4), (2, 16, 2)):
        started: list[int] = []
        monkeypatch.setattr(cpu_layers, "_MIN_ROWS", min_rows)
        monkeypatch.setattr(
            cpu_layers, "together", lambda count, work, s=started: s.append(count) or together(count, work)
        )
        with torch_threads(threads):
            assert torch.equal(frames(ours, *stream(dtype)), alone)
            assert torch.get_num_threads() == threads
        assert started == [num_shares] * bool(num_shares)


def test_threads_hold_no_more_scores_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one head: where its scores take all of that, one thread goes through the layers."""
    ours, held, most = cpu_form("fp32"), [], []
    alone, mix, lock = frames(ours, *stream("fp32")), cpu_layers.CpuAttention._mix, Lock()
    per_head = Stream(*stream("fp32"), None).groups(4)[0].scores_per_head

    def counted(self: Any, part: Stream, group: Any, some: slice) -> None:
        size = group.scores_per_head * (some.stop - some.start)
        with lock:
            held.append(size)
            most.append(sum(held))
        sleep(0.01)
        mix(self, part, group, some)
        with lock:
            held.remove(size)

    monkeypatch.setattr(cpu_layers.CpuAttention, "_mix", counted)
    monkeypatch.setattr(cpu_layers, "_MIN_ROWS", 1)
    for limit, expected in ((1, 1), (2 * per_head, 2), (3 * per_head, 3), (5 * per_head, 4)):
        monkeypatch.setattr(cpu_layers, "_MAX_SCORES", limit)
        most.clear()
        with torch_threads(4):
            assert torch.equal(frames(ours, *stream("fp32")), alone)
        assert max(most) == expected * per_head


@pytest.mark.parametrize("min_rows", [1, 1000])  # shares; one thread for few scores
def test_threads_that_begin_meanwhile_have_the_usual_number(min_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, found, mix = cpu_form("fp32"), [], cpu_layers.CpuAttention._mix

    def asks(*arguments: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            found.append((torch.get_num_threads(), pool.submit(torch.get_num_threads).result()))
        mix(*arguments)

    monkeypatch.setattr(cpu_layers.CpuAttention, "_mix", asks)
    monkeypatch.setattr(cpu_layers, "_MIN_ROWS", min_rows)
    with torch_threads(4):
        frames(ours, *stream("fp32"))
    assert set(found) == {(1, 4)}


def test_an_interpreter_that_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = cpu_form("fp32")
    alone = frames(ours, *stream("fp32"))
    monkeypatch.setattr(cpu_layers, "_MIN_ROWS", 1)
    monkeypatch.setattr(cpu_layers, "together", lambda count, work: False)
    with torch_threads(2):
        assert torch.equal(frames(ours, *stream("fp32")), alone)


def test_groups_of_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recording that is not empty is in one of them, with neighbours unless they are much shorter. No result changes."""
    lengths = np.array([0, 400, 390, 380, 40, 38, 0, 41, 36, 0, 400])
    assert cpu_layers.similar_lengths(lengths) == [slice(1, 4), slice(4, 9), slice(10, 11)]
    assert cpu_layers.similar_lengths(np.zeros(3, np.int64)) == []
    ours = cpu_form("fp32")
    together_ = frames(ours, *stream("fp32"))
    monkeypatch.setattr(cpu_layers, "_MAX_EXTRA_PAIRS", 0)
    torch.testing.assert_close(frames(ours, *stream("fp32")), together_, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_levels_are_those_of_the_reference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x_HBTK = torch.randn(3, 2, 5, 8).mul_(10.0 ** torch.randint(-6, 6, (1, 2, 5, 1))).to(dtype)
    x_HBTK[:, 1, 3] = 0
    levels_RD, scale_R = np.empty((10, 24), np.uint8), np.empty(10, np.float32)
    join = kernels(str(dtype).removeprefix("torch."), "levels")["join_heads"]
    recording_R, first_B = np.repeat(np.arange(2), 5), np.array([0, 5])
    join(as_numpy(x_HBTK), 0, recording_R, first_B, levels_RD, scale_R, np.empty((1, 24), np.float32), 0, 10)
    expected_RD, expected_R1 = quantise_rows(x_HBTK.permute(1, 2, 0, 3).flatten(0, 1).flatten(1).float())
    assert np.array_equal(levels_RD, expected_RD.numpy())
    np.testing.assert_allclose(scale_R, expected_R1[:, 0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("stores", ["plain", "levels"])
def test_activation_of_every_magnitude(stores: str) -> None:
    sizes = [0.0, 1e-30, 1e-3, 1.0, 20.0, 79.0, 80.5, 88.5, 100.0, 177.0, 354.0, 1e4, 1e20]
    x_RN = torch.tensor([[sign * size] for size in sizes for sign in (1, -1)])
    num_rows = len(x_RN)
    out_RN, scale_R = (
        np.empty((num_rows, 1), np.float32 if stores == "plain" else np.uint8),
        np.empty(num_rows, np.float32),
    )
    neutral = (np.ones(num_rows, np.float32), np.zeros(1, np.float32))
    scratch = np.empty((1, 1), np.float32)
    kernels("float32", stores)["activate"](x_RN.numpy(), *neutral, out_RN, scale_R, scratch, 0, num_rows)
    ours_RN = out_RN if stores == "plain" else (out_RN.astype(np.float32) - 128) * scale_R[:, None]
    np.testing.assert_allclose(ours_RN, torch.nn.functional.silu(x_RN).numpy(), rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_activations(dtype: str) -> None:
    """Gates and activations of hundreds, beyond the range of float32's exponential."""
    exact, plain, ours = plain_form("fp32"), plain_form(dtype), cpu_form(dtype)
    for layers in (exact.layers, plain.layers):
        for layer in layers.children():
            layer.norm_conv.weight.mul_(300.0)
            layer.norm_feed_forward1.weight.mul_(300.0)
    for layer in ours.layers.layers:
        layer._norm_conv.weight_D *= 300.0
    for norm in ours.layers._norms:
        norm.weight_D *= 300.0
    of_plain, of_ours = errors(exact, (plain, ours), *stream(dtype))
    assert of_ours <= (1e-4 if dtype == "fp32" else 1.3 * of_plain + 1e-3)


def test_several_threads_may_use_one_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_layers, "MIN_ELEMENTS", 1)
    ours = cpu_form("fp32")
    x_BTD, lengths_B = stream("fp32")
    expected = frames(ours, x_BTD, lengths_B)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: frames(ours, x_BTD, lengths_B), range(12)))
    assert all(torch.equal(one, expected) for one in found)


@pytest.mark.parametrize("blocks", [2, 3, 23])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_queries(dtype: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own positions, also the last one, which is shorter."""
    exact, ours = plain_form("fp32"), cpu_form(dtype)
    x_BTD, lengths_B = stream(dtype)
    [error_of_whole] = errors(exact, [ours], x_BTD, lengths_B)
    monkeypatch.setattr(cpu_layers, "_QUERY_BLOCKS", blocks)
    monkeypatch.setattr(cpu_layers, "_MIN_QUERIES", 1)
    assert Stream(x_BTD, lengths_B, None).groups(4)[0].block == -(-23 // blocks)
    [error] = errors(exact, [ours], x_BTD, lengths_B)
    assert error <= (1e-5 if dtype == "fp32" else 1.1 * error_of_whole + 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kept_table_of_positions_changes_no_bit(dtype: str) -> None:
    """A wide encoder's: there a product's last bits in bf16 depend on its number of rows."""
    ours, tables = cpu_form(dtype, d_model=512, num_layers=1, num_heads=8), []
    torch.manual_seed(1)
    batches = [(torch.randn(1, n, 512).to(torch_dtype(dtype)), torch.tensor([n])) for n in (31, 126, 250)]
    first = []
    for batch in batches:
        first.append(frames(ours, *batch))
        tables.append(ours.layers.layers[0].self_attn._kept_table_HKP)
    assert all(torch.equal(frames(ours, *batch), before) for batch, before in zip(batches, first, strict=True))
    middle = tables[-1].shape[2] // 2
    for table_HKP in tables:
        reach = table_HKP.shape[2] // 2
        assert torch.equal(table_HKP, tables[-1][:, :, middle - reach : middle + table_HKP.shape[2] - reach])


def test_narrow_encoders_keep_the_plain_layers() -> None:
    for width, form in ((256, Layers), (512, CpuLayers)):
        encoder = random_encoder(small_config(d_model=width, num_layers=1))
        optimise_(encoder)
        conformer_for_cpu_(encoder)
        assert type(encoder.layers) is form


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[1], [4, 4], [0, 1]], ids=str)
def test_short_and_empty_recordings(lengths: list[int], causal: bool) -> None:
    plain, ours = plain_form("fp32", causal_conv=causal), cpu_form("fp32", causal_conv=causal)
    x_BTD, lengths_B = torch.randn(len(lengths), max(lengths), 32), torch.tensor(lengths)
    torch.testing.assert_close(frames(ours, x_BTD, lengths_B), frames(plain, x_BTD, lengths_B), atol=1e-5, rtol=1e-4)


def test_batches_of_wide_encoders_may_have_more_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their layers do not compute it."""
    made = recognizer(MODELS / "tdt_demo")
    narrow = made.choose_budget()
    wide = replace(made.model.config.encoder, d_model=512)
    monkeypatch.setattr(made.model, "config", replace(made.model.config, encoder=wide))
    assert narrow.max_padding == 0.05 < made.choose_budget().max_padding
