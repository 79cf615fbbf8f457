"""The page of one run of `fastscribe transcribe`: what failed, what came out of it, where the time went, what deserves a look.

It describes this run; of earlier runs in the same folder it gives the totals. It is made from a mapping:

    {"command", "started", "status", "model", "settings": {..},
     "report": RunStats.to_json(), "recorded": RunRecorder.data()}

`status` is "finished", or the way in which the run ended early; then the report counts the work up to then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fastscribe._system.text_layout import count_of
from fastscribe.audio.formats import left_out_line
from fastscribe.report import markup
from fastscribe.report.markup import Html

FINISHED = "finished"
_STAGES = ("wait_for_audio", "copy", "features", "encode", "decode", "assemble", "write")  # in the order of the path
_MIN_STEPS, _MAX_STEPS = 8, 96  # of the speed over time
_OPEN_FAILURES = 20  # rows; more can be folded out


def render(run: Mapping[str, Any]) -> str:
    """Return the page."""
    report, recorded = run["report"], run["recorded"]
    versions = [f"{name} {version}" for name, version in report["versions"].items() if version is not None]
    facts = (run["started"], run["model"], report["device"], report["dtype"], *versions)
    status = None if run["status"] == FINISHED else f"{run['status']}: this is what was done by then"
    sections = [*_failures(recorded["failures"], report["files"]), markup.tiles(_figures(report))]
    sections += [markup.paragraph(words) for words in _about_the_run(report)]
    sections += [*_to_look_at(recorded), *_stages(report), *_speed(recorded["audio_over_time"]), *_devices(report)]
    settings = markup.listed((name, str(value)) for name, value in run["settings"].items())
    sections.append(markup.section("Settings", settings))
    sections.append(markup.section("Command", markup.code(run["command"])))
    return markup.page("fastscribe: a transcription run", facts, status, sections)


def _failures(failures: Mapping[str, Any], num_files: int) -> Iterator[Html]:
    by_stage, first = failures["by_stage"], failures["first"]
    if not first:
        return
    num_failed = sum(by_stage.values())
    rows = [(path, f"{stage}: {message}") for path, stage, message in first]
    content = [markup.listed(rows[:_OPEN_FAILURES])]
    if len(by_stage) > 1:
        content.insert(0, markup.paragraph(", ".join(f"{failed:,} in {stage}" for stage, failed in by_stage.items())))
    if len(rows) > _OPEN_FAILURES:
        more = markup.listed(rows[_OPEN_FAILURES:])
        content.append(markup.folded(f"{len(rows) - _OPEN_FAILURES} more", more))
    if num_failed > len(rows):
        content.append(markup.paragraph(f"Those that failed after the first {len(rows)} are not listed here."))
    yield markup.section(f"{num_failed:,} of {count_of(num_files, 'file')} failed", *content, alarm=True)


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    cost = report["usd_per_1000_audio_hours"]
    yield "Audio", duration(report["audio_s"]), f"in {count_of(report['files'] - report['failed'], 'file')}"
    yield "Time", duration(report["wall_s"]), f"and {duration(report['load_s'])} to load the model"
    yield "RTFx", number(report["rtfx"]), "audio seconds a second"
    if cost is None:
        yield "Cost", "unknown", "--price-per-hour says what an hour is"
    else:
        priced = f"at {number(report['usd_per_hour'])} USD an hour ({report['price_source']})"
        yield "Cost", f"{cost:,.2f} USD", f"per 1,000 audio hours, {priced}"
    yield "Padding", f"{report['padding_share']:.1%}", "of the frames computed"
    yield "Peak memory", memory(report["peak_bytes"]), ""


def _about_the_run(report: Mapping[str, Any]) -> Iterator[str]:
    totals = report["totals"]
    if report["skipped"]:
        failed = f", of which {report['failed_before']:,} had failed" if report["failed_before"] else ""
        yield f"This page is about this run. Earlier runs had done {count_of(report['skipped'], 'file')} already{failed}."
    if totals is not None and (report["skipped"] or totals["files"] != report["files"]):
        held = (
            f"{count_of(totals['files'], 'file')} ({totals['failed']:,} failed), {duration(totals['audio_s'])} of audio"
        )
        yield f"Of all runs the folder holds {held}."
    for path, reason in report["refused"].items():
        yield f"This machine refused a fast path, {path}: {reason}."
    if report["left_out"]:
        yield f"{left_out_line(report['left_out'])}: not audio by their names."
    if report["gaps"]:
        yield f"Speech without words: {count_of(report['gaps'], 'stretch')}, {duration(report['gap_s'])}."


def _to_look_at(recorded: Mapping[str, Any]) -> Iterator[Html]:
    """Yield the recordings that deserve a look."""
    rows = [(path, f"{duration(gap_s)} of speech without words") for path, gap_s in recorded["wordless"]]
    rows += [(path, f"no words in {duration(duration_s)}") for path, duration_s in recorded["silent"]]
    for path, confidence, num in recorded["uncertain"]:
        rows.append((path, f"mean confidence {confidence:.2f} of {count_of(num, 'word')}"))
    if rows:
        note = markup.paragraph(
            "Those with the most speech without words, without any word, and of the lowest confidence."
        )
        yield markup.section("Files to look at", note, markup.listed(rows))


def _stages(report: Mapping[str, Any]) -> Iterator[Html]:
    stage_s = report["stage_s"]
    names = [*(name for name in _STAGES if name in stage_s), *(name for name in stage_s if name not in _STAGES)]
    if not any(stage_s.values()):
        return
    bars = markup.bars([(name.replace("_", " "), stage_s[name], duration(stage_s[name])) for name in names])
    note = "The sum may differ from the run's time: on a GPU stages overlap, and what is in no stage is not here."
    yield markup.section("Where the time went", bars, markup.paragraph(note))


def _speed(points: Sequence[tuple[float, float]]) -> Iterator[Html]:
    """Yield the speed over time: the audio between two points by the time between them."""
    kept = [*points[:: -(-len(points) // _MAX_STEPS)], points[-1]]
    steps = [(start, end) for start, end in pairwise(kept) if end[0] > start[0]]
    if len(steps) >= _MIN_STEPS:
        rates = [(end[1] - start[1]) / (end[0] - start[0]) for start, end in steps]
        label = f"Audio decoded a second, from {number(min(rates))} to {number(max(rates))}"
        ends_s = [end[0] for _, end in steps]
        chart = markup.curve(label, rates, ends_s, f"RTFx, up to {number(max(rates))}", duration(ends_s[-1]))
        yield markup.section("Speed over time", chart)


def _devices(report: Mapping[str, Any]) -> Iterator[Html]:
    """Yield what each of several devices has done."""
    headings = ("device", "of the audio", "batches", "utterances", "busy", "peak memory", "died")
    rows = [
        (
            f"{one['name']}: {one['device']}",
            f"{one['audio_share']:.1%}",
            f"{one['batches']:,}",
            f"{one['utterances']:,}",
            duration(one["busy_s"]),
            memory(one["peak_bytes"]),
            f"{one['died']:,}",
        )
        for one in report["devices"]
    ]
    if rows:
        yield markup.section("Devices", markup.table("Devices", headings, rows))


# Format numbers for people. Pure.


def number(value: float) -> str:
    """Format with three significant digits, and all digits before the point.

    >>> number(12345.6), number(3.14159), number(0.00123), number(0)
    ('12,346', '3.14', '0.00123', '0')
    """
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 0.001:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(0.1234), duration(75), duration(7322), duration(360_000)
    ('0.123 s', '1 min 15 s', '2 h 2 min', '100 h')
    """
    if seconds < 59.5:
        return f"{round(seconds, 3):.3g} s"
    minutes, left_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_s} s"
    return f"{minutes // 60:,} h {minutes % 60} min" if minutes < 6000 else f"{number(seconds / 3600)} h"


def memory(num_bytes: int) -> str:
    return f"{number(num_bytes / 2**30)} GiB"
