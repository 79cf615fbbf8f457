"""A run of the writing code alone, with made-up transcripts. power_cut.py makes the states that a kill could leave."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastscribe.results.entries import load_entries_and_names, read_entries, read_lines
from fastscribe.results.output_run import OutputRun

from fastscribe.config import OUTPUT_FORMATS, OutputStyle
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
    **options: Any,
) -> list[str]:
    """Announce inputs in order, look them up and finish them at random. Returns the paths finished now."""
    written = []
    with open_journaled(folder, OutputRun(style, {"model": "m"}, shard, **options)) as output:
        new, expected, found = list(inputs), [], []
        while new or expected or found:
            stage = order.choice([stage for stage in (new, expected, found) if stage])
            source = stage.pop(0 if stage is new else order.randrange(len(stage)))
            if stage is new:
                if output.ledger.expect(source):
                    expected.append(source)
            elif stage is expected:
                if not output.ledger.is_done(source):
                    found.append(source)
            else:
                output.write(result_of(source))
                written.append(source.path)
    return written


def state_of(folder: Path, ordered: bool, suffix: str = "") -> dict[str, Any]:
    """All results that must not depend on kills. Checks the journal too."""
    paths = Paths(folder, suffix)
    rows = paths.rows.read_bytes()
    entries = [entry for entry, _ in read_entries(paths.journal)]
    assert len(paths.journal.read_bytes().splitlines()) == 1 + sum(1 for _ in read_lines(paths.journal))
    assert [0, *(entry.end for entry in entries)] == [*(entry.begin for entry in entries), len(rows)]  # no gap, no rest
    assert len({entry.key for entry in entries}) == len(entries)
    listed = [(rows[entry.begin : entry.end], entry.failed, entry.key, entry.order) for entry in entries]
    assert all(("error" in json.loads(row)) == failed for row, failed, *_ in listed)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in (paths.rows.name, paths.journal.name, paths.lock.name):
        del files[name]
    new_names = load_entries_and_names(paths.journal)[1]
    for place, entry in enumerate(entries):
        name = new_names.get(place, entry.name)
        sizes = {format: len(files[f"{name}.{format}"]) for format in entry.sizes}
        assert sizes == entry.sizes and not (entry.failed and sizes.keys() - {"json"})
    order = [(row, key) for row, _, key, _ in listed]
    return {"files": files, "rows": order if ordered else sorted(order)}
