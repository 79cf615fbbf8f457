"""The whole report of a run, as --verbose prints it."""

from __future__ import annotations

from fastscribe._system.text_layout import count_of
from fastscribe.cli.terminal import earlier_text
from fastscribe.pipeline.stats import DeviceShare, RunStats


def report_table(stats: RunStats) -> str:
    """Format the report as aligned lines."""
    cost = stats.usd_per_1000_audio_hours
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stats.stage_s.items())
    rows = [
        ("files", f"{stats.files} ({stats.failed} failed){earlier_text(stats)}"),
        ("audio", f"{stats.audio_s / 3600:.3f} h"),
        ("time", f"load {stats.load_s:.2f} s, run {stats.wall_s:.2f} s ({stages})"),
        ("RTFx", f"{stats.rtfx:.1f}"),
        ("gaps", _gaps(stats)),
        ("padding", f"{100 * stats.padding_share:.1f} %"),
        ("peak memory", f"{stats.peak_bytes / 2**30:.2f} GiB"),
        ("device", f"{stats.device}, {stats.dtype}"),
        *((f"no {path}", reason) for path, reason in stats.refused.items()),
        *((one.name, _share_text(one, share)) for one, share in stats.device_shares if len(stats.devices) > 1),
        (
            "cost",
            "unknown (--price-per-hour)"
            if cost is None
            else f"{cost:.2f} USD per 1,000 audio hours ({stats.price_source})",
        ),
    ]
    return "\n".join(f"  {name:<12} {value}" for name, value in rows)


def _share_text(one: DeviceShare, share: float) -> str:
    died = f", died {one.died} time{'s' if one.died > 1 else ''}" if one.died else ""
    batches = count_of(one.batches, "batch")
    return f"{100 * share:.0f} % of the audio ({one.audio_s / 3600:.3f} h in {batches}), busy {one.busy_s:.1f} s{died}"


def _gaps(stats: RunStats) -> str:
    return f"{stats.gaps} ({stats.gap_s:.1f} s)" if stats.gaps else "none"
