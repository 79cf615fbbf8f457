"""How much of a text `fastscribe align` hears: of the right one, of one with a line that nobody speaks, of another recording's.

    python -m scripts.benchmarks.unspoken_texts test_native.jsonl --json docs/bench/align/unspoken-native.json

Clips of a manifest are joined with 1 to 3 s of faint noise between them, and each is a line of the text. `refused` counts texts
that would fail, and `left_out` lines that would have no cue, whatever the number of their words.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from fastscribe import Aligner, Failure
from fastscribe.alignment import text_aligner
from fastscribe.alignment.text_aligner import how_heard
from fastscribe.bench.result import document, leave
from fastscribe.types import Float32Array

MOST = text_aligner.MAX_HEARD_OF_LINE
RATE = 16_000
_PAUSE_S, _NOISE = (1.0, 3.0), 1e-4
_SIZES = (1, 5, 20, 60)  # clips of a recording; the last ones are longer than a window


def join(rows: list[dict[str, Any]], folder: Path, out: Path) -> None:
    """Write the recording and its text, OUT/joined.flac and .txt."""
    rng, parts = np.random.default_rng(0), list[Float32Array]()
    for row in rows:
        clip_S, rate = soundfile.read(folder / row["audio_filepath"], dtype="float32")
        assert rate == RATE, row["audio_filepath"]
        pause_S = (_NOISE * rng.standard_normal(int(rng.uniform(*_PAUSE_S) * RATE))).astype(np.float32)
        parts += [clip_S, pause_S]
    soundfile.write(out / "joined.flac", np.concatenate(parts), RATE)
    (out / "joined.txt").write_text("\n".join(" ".join(row["text"].split()) for row in rows), encoding="utf-8")


def recordings(rows: list[dict[str, Any]], folder: Path, out: Path) -> list[tuple[str, int, int | None]]:
    """Write recordings and a manifest of them with three texts each, OUT/texts.jsonl.

    Return of each row the kind of its text, the number of clips, and the number of the line that nobody speaks.
    """
    kinds, written = list[tuple[str, int, int | None]](), []
    for size in _SIZES:
        groups = [rows[begin : begin + size] for begin in range(0, len(rows) - size + 1, size)]
        for number, group in enumerate(groups):
            place = out / f"{size}-{number}"
            place.mkdir()
            join(group, folder, place)
            lines = (place / "joined.txt").read_text(encoding="utf-8").split("\n")
            other = [" ".join(row["text"].split()) for row in rows if row not in group][-size:]
            more = [*lines[: size // 2], other[0], *lines[size // 2 :]]
            half = lines[: size // 2] + other[: size - size // 2]
            for kind, text in (
                ("right", lines),
                ("with a line more", more),
                ("half another", half),
                ("another", other),
            ):
                kinds.append((kind, size, size // 2 + 1 if text is more else None))
                written.append({"audio_filepath": str(place / "joined.flac"), "text": "\n".join(text)})
        rows = rows[::-1]  # other neighbours
    (out / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written), encoding="utf-8")
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--model", default="default")
    parser.add_argument("--json", type=Path, help="store the result here too")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.manifest.read_text(encoding="utf-8").splitlines()]
    rows = random.Random(0).sample(rows, min(120, len(rows)))
    text_aligner.MIN_WORDS, text_aligner.MAX_HEARD_OF_LINE = (
        sys.maxsize,
        0.0,
    )  # to see what would be refused, or left out
    with tempfile.TemporaryDirectory() as folder:
        kinds = recordings(rows, arguments.manifest.parent, Path(folder))
        found = list(Aligner.load(arguments.model, "cpu").align(f"{folder}/texts.jsonl", ordered=True))
    heard: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for (kind, size, unspoken), result in zip(kinds, found, strict=True):
        if isinstance(result, Failure):  # too short for a text of more words
            continue
        heard.setdefault((kind, size), []).append(how_heard([not word.missing for word in result.words]))
        for segment in result.segments if kind in ("right", "with a line more") and size > 1 else ():
            line = "unspoken line" if segment.line == unspoken else "line"
            heard.setdefault((line, size), []).append(how_heard([not word.missing for word in segment.words]))
    measured = [
        {
            "text": kind,
            "clips": size,
            "number": len(values),
            "refused": sum(
                heard <= text_aligner.MAX_HEARD and rows < text_aligner.MIN_IN_ROWS for heard, rows in values
            ),
            "left_out": sum(heard <= MOST for heard, _ in values),
            **{
                f"{what}_{percent}_percent": float(np.nanpercentile(column, percent))
                for what, column in zip(("heard", "in_rows"), np.array(values).T, strict=True)
                for percent in (0, 5, 50, 95, 100)
            },
        }
        for (kind, size), values in sorted(heard.items())
    ]
    settings = {"manifest": arguments.manifest.name, "model": arguments.model, "rows": measured}
    leave(document("unspoken_texts", torch.device("cpu"), settings, ["text", "clips"]), arguments.json)


if __name__ == "__main__":
    main()
