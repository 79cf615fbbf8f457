"""`fastscribe bench`: measurements of this machine, a file a command."""

from __future__ import annotations

from fastscribe.cli.bench import cost, decoder, diff, latency, leaderboard, loss, throughput, train

__all__ = ["cost", "decoder", "diff", "latency", "leaderboard", "loss", "throughput", "train"]
