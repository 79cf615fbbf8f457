"""Every rung of the ladder finds the same labels and changes one thing."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fastscribe.types import Batch
from scripts.gpu import ladder
from scripts.gpu.part import QUICK, Part
from scripts.gpu.parts import families, tenfold
from scripts.measurement_log import MeasurementLog
from scripts.shapes import SHAPES
from tests.conftest import AUDIO, MODELS, recognizer, waveform

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("name", ["tdt_demo", "rnnt", "ctc"])
def test_row_by_row_equals_the_shipped_decoder(name: str) -> None:
    shipped, samples_S = recognizer(MODELS / name), waveform(AUDIO / "15_1_00203.flac")
    lengths_B = np.array([len(samples_S), len(samples_S) // 2, len(samples_S) // 3])
    batch = Batch((), np.stack([samples_S] * 3), lengths_B)
    frames = shipped.encode(shipped.features(*shipped.upload(batch)))
    wanted = shipped.read(shipped.submit(frames).numpy(), frames)
    slow = ladder.RowByRow(shipped.model, nullcontext)
    found = slow.read(slow.submit(frames).numpy(), frames)
    assert all(row.token_ids for row in wanted)
    assert [row.token_ids for row in found] == [row.token_ids for row in wanted]
    assert [row.token_frames for row in found] == [row.token_frames for row in wanted]
    assert [row.token_durations for row in found] == [row.token_durations for row in wanted]
    assert np.allclose(sum((row.logprobs for row in found), ()), sum((row.logprobs for row in wanted), ()), atol=1e-3)


def test_each_rung_changes_one_thing() -> None:
    names = {"order", "numbers", "decoding", "graphs", "has_fused_layers"}
    for shape in ("tiny", "tiny-rnnt", "tiny-ctc"):
        ours = [rung for rung in ladder.rungs(SHAPES[shape]) if rung.side == "fastscribe"]
        for before, after in pairwise(ours[:-1]):
            assert sum(getattr(before, name) != getattr(after, name) for name in names) == 1
        assert (ours[-1].order, ours[-1].graphs, ours[-1].has_fused_layers) == ("planned", "auto", True)


def test_known_rungs_are_not_prepared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [{"what": "rung", "shape": "tiny-ctc", "rung": rung.name} for rung in ladder.rungs(SHAPES["tiny-ctc"])]
    notes = MeasurementLog(tmp_path / "rows", 60.0, known)
    monkeypatch.setattr(Part, "load", lambda *_: pytest.fail("a model is loaded"))
    tenfold._climb(Part(torch.device("cpu"), QUICK, tmp_path, notes), "tiny-ctc", {})
    assert not notes.path.exists()


def test_shapes_with_attention_decoders_are_compared(tmp_path: Path) -> None:
    notes = MeasurementLog(tmp_path / "rows", 60.0)
    stage_s = {"copy": 1.0, "features": 1.0, "encode": 2.0, "decode": 1.0}
    rows = {("auto", 8192, "tiny-canary"): {"rtfx": 30.0, "stage_s": stage_s}}
    rows["auto", 8192, "other"] = {"rtfx": 10.0, "stage_s": stage_s | {"decode": 9.0}}
    rows["off", 8192, "other"] = {"rtfx": 10.0, "stage_s": stage_s}  # of the first shape there is no such row
    families._compare_shapes(Part(torch.device("cpu"), QUICK, tmp_path, notes), rows)
    [line] = notes.path.read_text().splitlines()
    for wanted in ('"rtfx_ratio": 3.0', '"decoder_share": 0.25', '"decoder_share_of_other": 0.75', '"over": "other"'):
        assert wanted in line
