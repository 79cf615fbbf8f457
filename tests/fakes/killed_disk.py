"""A run of the writing code alone, with made-up transcripts. power_cut.py makes the states that a kill could leave."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from fastscribe.config import OUTPUT_FORMATS, OutputStyle
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.journal import NO_STATE, read_entries
from fastscribe.results.output import open_journaled
from fastscribe.results.paths import Paths
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.types import AudioInfo, Failure, Segment, Source, Transcript, Word

STYLE, EVERY_FORMAT, ROWS_ALONE = OutputStyle(("jsonl", "txt", "json")), OutputStyle(OUTPUT_FORMATS), OutputStyle()


def sources(*paths: Path) -> list[Source | Failure]:
    """Sources whose ids are their names, so files of other folders may have the same. A missing one is a Failure."""
    found: list[Source | Failure] = []
    for index, path in enumerate(paths):
        if path.exists():
            found.append(Source(str(path), str(path), path.name, index=index))
        else:
            found.append(Failure(str(path), path.name, "input", "AudioError", "no such file", None, index))
    return found


def result_of(source: Source | Failure) -> Transcript | Failure:
    """A transcript of the file's content; `bad` fails."""
    if isinstance(source, Failure):
        return source
    text = Path(source.file).read_text()
    if text == "bad":
        return Failure(source.path, source.id, "load", "AudioError", "broken", None, source.index)
    audio = AudioInfo(source.path, source.id, 16_000, 1, 16_000 * len(text), index=source.index)
    segment = Segment(text, 0.0, 1.0, 0.9, (Word(text, 0.0, 1.0, 0.9),))
    return Transcript(audio, text, (segment,), ())


def run(
    folder: Path,
    inputs: Sequence[Source | Failure],
    order: random.Random,
    *,
    shard: Shard = UNSHARDED,
    style: OutputStyle = STYLE,
    not_made: list[OSError] | None = None,
    **options: Any,
) -> list[str]:
    """Finish inputs in a random order, and flush now and then. Return the paths finished now, and add to `not_made`."""
    written = []
    with open_journaled(folder, OutputRun(style, {"model": "m"}, shard, **options), str) as output:
        expected = [source for source in inputs if output.ledger.expect(source)]
        ledger = output.ledger
        found = [source for source in expected if not ledger.skip(source)]
        for source in order.sample(found, len(found)):
            output.write(result_of(source))
            written.append(source.path)
            if order.random() < 0.5:
                output.flush()
    if not_made is not None:
        not_made += output.not_made
    return written


def state_of(folder: Path, ordered: bool) -> dict[str, Any]:
    """All results that must not depend on kills. Checks the journal too."""
    paths = Paths(folder, "")
    rows = paths.rows.read_bytes()
    entries = list(read_entries(paths.journal))
    assert [0, *(entry.end for entry in entries)] == [*(entry.begin for entry in entries), len(rows)]  # no gap, no rest
    assert len({entry.key for entry in entries}) == len(entries)
    assert all(entry.state != NO_STATE and not entry.former for entry in entries)
    listed = [(rows[entry.begin : entry.end], entry.failed, entry.key, entry.order) for entry in entries]
    assert all(("error" in json.loads(row)) == failed for row, failed, *_ in listed)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in (paths.rows.name, paths.journal.name, paths.lock.name):
        del files[name]
    marks = {
        f"{entry.name}.{format}": (mark.size, mark.crc) for entry in entries for format, mark in entry.files.items()
    }
    is_own = {file: (len(files[file]), crc32(files[file])) == mark for file, mark in marks.items()}
    order = [(row, key) for row, _, key, _ in listed]
    return {"files": files, "is_own": is_own, "rows": order if ordered else sorted(order)}
