"""The page of one run of `fastscribe transcribe`: its work, speed, time by stage, padding and failures.

It describes this run; of earlier runs in the same folder it gives the totals. It is made from a mapping:

    {"command", "started", "status", "model", "settings": {..}, "frame_s",
     "report": RunStats.to_json(), "recorded": RunRecorder.data()}

`status` is "finished", or the way in which the run ended early; then the report counts the work up to then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

from fastscribe.audio.formats import left_out_line
from fastscribe.report import markup, svg
from fastscribe.report.figures import UNKNOWN, duration, number, share, size
from fastscribe.report.markup import Html
from fastscribe.report.recorder import even_indices, merge_pairs

FINISHED = "finished"
_STAGES = ("wait_for_audio", "copy", "features", "encode", "decode", "assemble", "write")  # in the order of the path
_MAX_STEPS = 128  # steps of the speed over time
_BATCHES_A_STEP = 2.0  # minimum; with fewer, the steps show the ends of batches instead of the speed
_MAX_BLOCKS = 32  # batches in the picture
_OPEN_FAILURES = 20  # rows; more can be folded out
_TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def render(run: Mapping[str, Any]) -> str:
    report, recorded = run["report"], run["recorded"]
    body = [markup.tiles(_figures(report))]
    body += [markup.paragraph(words) for words in _about_the_run(run)]
    body += _speed(recorded, report) + _stages(report) + _padding(recorded["batches"], report, run["frame_s"])
    body += _devices(report) + _files(recorded, report) + _confidence(recorded["word_confidences"])
    body.append(markup.section("Settings", markup.facts((name, str(value)) for name, value in run["settings"].items())))
    body.append(markup.section("Report", markup.facts(_flat(report))))
    body.append(markup.section("Command", markup.command(run["command"])))
    facts = (run["started"], f"{report['device']}, {report['dtype']}", run["model"])
    return markup.page("fastscribe: a transcription run", facts, _status(run), body)


def _status(run: Mapping[str, Any]) -> str | None:
    if run["status"] != FINISHED:
        return f"{run['status']}: this is what was done by then"
    failed = run["report"]["failed"]
    return f"{_files_of(failed)} failed" if failed else None


def _files_of(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    cost = report["usd_per_1000_audio_hours"]
    yield "RTFx", number(report["rtfx"]), "audio seconds a second"
    yield "Audio", _hours(report["audio_s"]), f"in {_files_of(report['files'] - report['failed'])}"
    yield "Time", duration(report["wall_s"]), f"and {duration(report['load_s'])} to load the model"
    yield "Failed", f"{report['failed']:,}", f"of {_files_of(report['files'])}"
    yield "Padding", share(report["padding_share"]), "of the frames computed"
    yield "Peak memory", size(report["peak_bytes"]), ""
    if cost is None:
        yield "Cost", "unknown", "--price-per-hour says what an hour is"
    else:
        yield "Cost", f"{cost:,.2f} USD", f"per 1,000 audio hours, at {number(report['usd_per_hour'])} USD an hour"


def _hours(seconds: float) -> str:
    return duration(seconds) if seconds < 3600 else f"{number(seconds / 3600)} h"


def _about_the_run(run: Mapping[str, Any]) -> Iterator[str]:
    report, totals = run["report"], run["report"]["totals"]
    if report["skipped"]:
        failed = f", {_files_of(report['failed_before'])} of which had failed" if report["failed_before"] else ""
        yield f"This page is about this run. Earlier runs had done {_files_of(report['skipped'])} already{failed}."
    if totals is not None and (report["skipped"] or totals["files"] != report["files"]):
        audio = _hours(totals["audio_s"])
        yield f"Of all runs the folder holds {_files_of(totals['files'])} ({totals['failed']:,} failed), {audio} of audio."
    for path, reason in report["refused"].items():
        yield f"This machine refused a fast path, {path}: {reason}."
    if report["left_out"]:
        yield f"{left_out_line(report['left_out'])}: not audio by their names."
    if report["gaps"]:
        yield f"Speech without words: {report['gaps']:,} stretches, {duration(report['gap_s'])}."


def _speed(recorded: Mapping[str, Any], report: Mapping[str, Any]) -> list[Html]:
    series = recorded["series"]
    bins = _merged_bins(series, recorded["batches"]["count"])
    if not any(bins["audio_s"]):
        return []
    width_s = bins["width_s"]
    ends = [(index + 1) * width_s for index in range(len(bins["audio_s"]))]
    last_s = min(max(report["wall_s"] - ends[-1] + width_s, 0.05 * width_s), width_s)  # the last bin is shorter
    ends[-1] += last_s - width_s
    widths = [*[width_s] * (len(ends) - 1), last_s]
    rates = [audio_s / width for audio_s, width in zip(bins["audio_s"], widths, strict=True)]
    scale, unit = next((scale, unit) for scale, unit in _TIME_UNITS if ends[-1] >= 2 * scale or scale == 1.0)
    caption = svg.Caption(
        "RTFx over time",
        f"Audio decoded in each {duration(width_s)} of the run: from {number(min(rates))} to {number(max(rates))} seconds "
        f"a second, {number(report['rtfx'])} on average over the whole run.",
    )
    shown_ends = [end / scale for end in ends]
    picture = svg.area(caption, "RTFx", rates, shown_ends, f"{unit} since the start", report["rtfx"])
    done = list(accumulate(bins["files"]))
    rows = [
        (round(end, 2), round(rate, 1), int(files), int(total), int(failed))
        for end, rate, files, total, failed in zip(ends, rates, bins["files"], done, bins["failed"], strict=True)
    ]
    headings = ("until, s", "RTFx", "files done", "files in all", "failed")
    note = f"Audio decoded a second of the run, in steps of {duration(width_s)}."
    return [markup.section("Speed", markup.figure(caption.title, note, picture, headings, rows))]


def _merged_bins(series: Mapping[str, Any], num_batches: int) -> dict[str, Any]:
    """Merge bins until they are few and nearly every bin contains the end of a batch."""
    bins = dict(series)
    names = [name for name in bins if name != "width_s"]
    most = min(_MAX_STEPS, max(8, int(num_batches / _BATCHES_A_STEP)))
    while len(bins["audio_s"]) > most:
        bins |= {name: merge_pairs(bins[name]) for name in names} | {"width_s": 2 * bins["width_s"]}
    return bins


def _stages(report: Mapping[str, Any]) -> list[Html]:
    known = [*_STAGES, *(name for name in report["stage_s"] if name not in _STAGES)]
    stage_s = {name: report["stage_s"][name] for name in known if report["stage_s"].get(name, 0.0) > 0}
    total_s = sum(stage_s.values())
    if not total_s:
        return []
    longest = max(stage_s, key=lambda name: stage_s[name])
    caption = svg.Caption(
        "Time by stage",
        f"The stages' own times, {duration(total_s)} in all; {longest.replace('_', ' ')} took the most, "
        f"{share(stage_s[longest] / total_s)}.",
    )
    names = [name.replace("_", " ") for name in stage_s]
    picture = svg.stacks(caption, [""], names, [[seconds / total_s for seconds in stage_s.values()]])
    rows = [
        (name, round(seconds, 3), round(100 * seconds / total_s, 1))
        for name, seconds in zip(names, stage_s.values(), strict=True)
    ]
    note = "The sum may differ from the run's time: on a GPU stages overlap, and what is in no stage is not here."
    figure = markup.figure(caption.title, note, picture, ("stage", "seconds", "share, %"), rows)
    return [markup.section("Where the time went", figure)]


def _devices(report: Mapping[str, Any]) -> list[Html]:
    """What each of several devices has done."""
    if not report["devices"]:
        return []
    headings = ("device", "audio", "audio, s", "batches", "utterances", "busy, s", "peak memory", "died")
    rows = [
        (
            f"{one['name']}: {one['device']}",
            share(one["audio_share"]),
            *(one[name] for name in ("audio_s", "batches", "utterances", "busy_s")),
            size(one["peak_bytes"]),
            one["died"],
        )
        for one in report["devices"]
    ]
    return [markup.section("Devices", markup.table("Devices", headings, rows))]


def _padding(batches: Mapping[str, Any], report: Mapping[str, Any], frame_s: float) -> list[Html]:
    every = batches["kept"]
    if not every:
        return []
    kept = [every[index] for index in even_indices(len(every), _MAX_BLOCKS)]
    shown = "Every batch" if len(kept) == batches["count"] else f"{len(kept)} of {batches['count']:,} batches"
    note = (
        f"{shown}, in order; {share(report['padding_share'])} of all frames computed in the run were padding. "
        f"A frame is {number(round(1000 * frame_s, 1))} ms."
    )
    pictures = markup.panels([("Shape, to scale", _shapes(kept)), ("Padding of each batch", _fills(kept))])
    headings = ("batch", "rows", "longest, frames", "longest, s", "audio, frames", "padding, %")
    rows = [
        (
            batch["number"],
            batch["rows"],
            batch["longest_frames"],
            round(batch["longest_frames"] * frame_s, 2),
            batch["real_frames"],
            round(100 * (1 - batch["real_frames"] / max(1, batch["rows"] * batch["longest_frames"])), 1),
        )
        for batch in kept
    ]
    return [markup.section("Batches", markup.figure("Batch shapes and padding", note, pictures, headings, rows))]


def _shapes(batches: Sequence[Mapping[str, Any]]) -> Html:
    rows = [batch["rows"] for batch in batches]
    caption = svg.Caption(
        "Rows and frames of batches",
        f"Batches side by side, as wide as they have rows and as high as their longest: {min(rows):,} to {max(rows):,} rows, "
        f"{number(median(rows))} in the middle, and up to {max(batch['longest_frames'] for batch in batches):,} frames.",
    )
    blocks = [svg.Block(f"{batch['number']:,}", batch["rows"], batch["lengths"]) for batch in batches]
    return svg.padding_map(caption, "encoder frames", "batch, as wide as it has rows", blocks)


def _fills(batches: Sequence[Mapping[str, Any]]) -> Html:
    caption = svg.Caption(
        "Padding of batches",
        "Each batch as wide and as high as the next: its rows from the longest to the shortest, as shares of the longest.",
    )
    blocks = [
        svg.Block(f"{batch['number']:,}", 1.0, [100 * length / batch["longest_frames"] for length in batch["lengths"]])
        for batch in batches
        if batch["longest_frames"]
    ]
    return svg.padding_map(caption, "% of the longest row", "batch, each as wide", blocks) if blocks else Html("")


def _files(recorded: Mapping[str, Any], report: Mapping[str, Any]) -> list[Html]:
    found = []
    slowest = [file for file in recorded["slowest"] if file["seconds"] > 0]
    if slowest:
        rows = [
            (
                file["path"],
                round(file["audio_s"], 2),
                round(file["seconds"], 3),
                round(file["audio_s"] / file["seconds"], 1),
            )
            for file in slowest
        ]
        note = "A file's time is its share of its batches' time, which all rows of a batch have evenly."
        headings = ("file", "audio, s", "time, s", "RTFx")
        numbers = markup.table("The files that took longest", headings, rows)
        found.append(markup.section("Slowest files", markup.paragraph(note), numbers))
    if recorded["failures"]["first"]:
        found.append(markup.section("Failed files", *_failures(recorded["failures"], report["files"])))
    return found


def _failures(failures: Mapping[str, Any], num_files: int) -> Iterator[Html]:
    count = sum(failures["by_stage"].values())
    stages = ", ".join(f"{failed:,} in {stage}" for stage, failed in failures["by_stage"].items())
    yield markup.paragraph(f"{_files_of(count)} of {num_files:,} failed: {stages}.")
    headings = ("file", "stage", "why")
    rows = [(failure["path"], failure["stage"], failure["message"]) for failure in failures["first"]]
    yield markup.table("The first that failed", headings, rows[:_OPEN_FAILURES])
    if len(rows) > _OPEN_FAILURES:
        more = markup.table("Those that failed next", headings, rows[_OPEN_FAILURES:])
        yield markup.folded(f"{len(rows) - _OPEN_FAILURES} more", more)
    if count > len(rows):
        yield markup.paragraph(f"{_files_of(count - len(rows))} that failed later are not listed here.")


def _confidence(counts: Sequence[int]) -> list[Html]:
    total = sum(counts)
    if not total:
        return []
    edges = [index / len(counts) for index in range(len(counts) + 1)]
    low = sum(counts[: len(counts) // 2])
    caption = svg.Caption(
        "Word confidence",
        f"{total:,} words; {share(counts[-1] / total)} between {edges[-2]:.2f} and 1, {share(low / total)} below 0.5.",
    )
    picture = svg.columns(caption, "% of words", [100 * count / total for count in counts], edges, "confidence")
    rows = [
        (f"{edge:.2f} to {later:.2f}", count, round(100 * count / total, 2))
        for edge, later, count in zip(edges, edges[1:], counts, strict=False)
    ]
    note = "A word's confidence is the mean probability of its tokens."
    figure = markup.figure(caption.title, note, picture, ("confidence", "words", "share, %"), rows)
    return [markup.section("Confidence", figure)]


def _flat(report: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Flatten report.json to a line per figure; the devices have a table."""
    for name, value in report.items():
        if not before and name == "devices":
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            shown = round(value, 4) if isinstance(value, float) else value
            yield before + name, UNKNOWN if value is None else str(shown)
