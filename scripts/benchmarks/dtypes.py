"""Effect of a dtype on the text: tokens that differ from float32's, on a CPU, by model and set of recordings.

    python -m scripts.benchmarks.dtypes --models tests/data/models/tdt_demo/model.nemo -- tests/data/audio speech/test.jsonl

A set is any input of `fastscribe transcribe`: a file, a folder, a quoted glob or a manifest. The figures are the edits
(insertions, deletions, substitutions) from float32's tokens to the other dtype's, relative to float32's tokens, and the
recordings whose text changed; the texts go to stderr. fp8 is emulated: the same rounding as on a GPU, multiplied in
float32, with bf16 elsewhere.

Tables and progress go to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fastscribe import Failure, Transcriber, Transcript
from fastscribe._system import processors
from fastscribe.families.blocks.fp8 import quantise_fp8_
from fastscribe.families.blocks.packed import pack_linears_
from fastscribe.families.model import Model
from fastscribe.pipeline import recognizer
from scripts.benchmarks.agreement import edit_distance

DTYPES = ("bf16", "int8", "fp8")


def load(model: str, dtype: str) -> Transcriber:
    if dtype != "fp8":
        return Transcriber.load(model, device="cpu", dtype=dtype)

    def quantise_and_pack_(built: Model, dtype: torch.dtype) -> None:
        quantise_fp8_(built.encoder)
        pack_linears_(built, dtype)

    # The recognizer refuses fp8 without a GPU, where it gains nothing; packing is the last thing it does to a model.
    with patch.object(recognizer, "pack_linears_", quantise_and_pack_):
        return Transcriber.load(model, device="cpu", dtype="bf16")


def transcribe(transcriber: Transcriber, recordings: str) -> dict[str, Transcript]:
    """Return transcripts by recording id. Exit if a recording fails, because the set would not be comparable."""
    found = {}
    for result in transcriber.transcribe(recordings):
        if isinstance(result, Failure):
            raise SystemExit(f"{result.path}: {result.message}")
        found[result.audio.id] = result
    return found


def compare(references: dict[str, Transcript], others: dict[str, Transcript]) -> dict[str, Any]:
    """Compare transcripts by id; both sides have the same ids."""
    pairs = [(reference, others[name]) for name, reference in references.items()]
    ids = [([token.id for token in a.tokens], [token.id for token in b.tokens]) for a, b in pairs]
    num_tokens, num_edits = sum(len(a) for a, _ in ids), sum(edit_distance(b, a) for a, b in ids)
    changed = [(a, b) for a, b in pairs if a.text != b.text]
    for a, b in changed:
        print(f"{a.audio.id}\n  fp32:  {a.text}\n  other: {b.text}", file=sys.stderr)
    return {
        "recordings": len(pairs),
        "fp32_tokens": num_tokens,
        "token_edits": num_edits,
        "token_difference_rate": round(num_edits / max(1, num_tokens), 6),
        "changed_texts": len(changed),
        "changed_ids": [a.audio.id for a, _ in changed],
    }


def measure(model: str, sets: Sequence[str], dtypes: Sequence[str]) -> list[dict[str, Any]]:
    transcriber = load(model, "fp32")
    references = {name: transcribe(transcriber, name) for name in sets}
    rows = []
    for dtype in dtypes:
        transcriber = load(model, dtype)
        for name in sets:
            print(f"{model} {dtype} {name}", file=sys.stderr)
            found = compare(references[name], transcribe(transcriber, name))
            rows.append({"model": model, "dtype": dtype, "set": name} | found)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    widths = [max(len(row[key]) for row in rows) + 2 for key in ("model", "set", "dtype")]
    lines = ["".join(f"{key:{width}}" for key, width in zip(("model", "set", "dtype"), widths, strict=True))]
    lines[0] += f"{'tokens':>8}{'edits':>7}{'rate':>9}{'texts changed':>17}"
    for row in rows:
        names = "".join(f"{row[key]:{width}}" for key, width in zip(("model", "set", "dtype"), widths, strict=True))
        changed = f"{row['changed_texts']} of {row['recordings']}"
        lines.append(
            f"{names}{row['fp32_tokens']:8}{row['token_edits']:7}{row['token_difference_rate']:9.3%}{changed:>17}"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET", help="recordings")
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL", help="checkpoints")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help=f"default {','.join(DTYPES)}")
    parser.add_argument("--json", type=Path, help="store the JSON document here too")
    arguments = parser.parse_args()
    arguments.dtypes = arguments.dtypes.split(",")
    if not set(arguments.dtypes) <= set(DTYPES):
        parser.error(f"--dtypes: some of {', '.join(DTYPES)}, with commas")
    return arguments


def main() -> None:
    arguments = parse()
    rows = [row for model in arguments.models for row in measure(model, arguments.sets, arguments.dtypes)]
    document = {
        "measurement": "tokens that differ from fp32's, by edit distance over fp32's tokens; on a CPU, fp8 emulated",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cpu": processors.cpu_name(),
        "torch": torch.__version__,
        "results": rows,
    }
    print(table(rows))
    line = json.dumps(document, ensure_ascii=False)
    if arguments.json:
        arguments.json.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
