"""`fastscribe bench`: measurements of this machine, one file per command."""

from __future__ import annotations

from fastscribe.bench.commands import cost, diff, latency, throughput

__all__ = ["cost", "diff", "latency", "throughput"]
