"""Each way to make batches of training keeps its limits, and pads less than the one before."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastscribe.training.buckets import Bucket
from scripts.benchmarks import training_batches
from scripts.benchmarks.training_batches import WAYS, Comparison, Corpus

CPU = torch.device("cpu")


def test_ways_pad_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus.of(3000)
    found = Comparison(None, CPU, corpus, num_buckets=6, num_steps=2, most_rows=1024)
    monkeypatch.setattr(
        Comparison, "search", lambda self, buckets: tuple(int(300 / bucket.max_duration_s) for bucket in buckets)
    )
    rows = []
    for way in WAYS:
        plan = found.plan(way)
        assert sorted(np.concatenate(plan.batches).tolist()) == list(range(3000)), "an epoch has every recording once"
        assert all(found._padded_s(batch) <= 300 for batch in plan.batches)
        rows.append(found._facts(plan.batches))
    shares = [row["padding_share"] for row in rows]
    assert shares[0] > 0.3 and shares[0] > shares[1] >= shares[2] - 0.01 and shares[1] < 0.25
    assert rows[2]["padding_share_with_tokens"] < rows[1]["padding_share_with_tokens"]
    assert rows[1]["batch_rows"] > 2 * rows[0]["batch_rows"]


def test_batch_sizes_are_searched_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, float]] = []

    def fits(network: str, config: str, accumulates: bool, bucket: Bucket, rows: int) -> bool:
        tried.append((network, bucket.max_duration_s))
        return rows <= 10

    monkeypatch.setattr(training_batches.batch_search, "fits", fits)
    corpus = Corpus.of(12)
    comparison = Comparison(SimpleNamespace(network="network", config="config"), CPU, corpus, 2, 1, 1024)
    plan = comparison.plan(WAYS[0])
    assert plan.sizes == (9,) and [len(batch) for batch in plan.batches] == [6, 6]  # a tenth less than fits
    assert set(tried) == {("network", float(corpus.durations_s.max()))}
