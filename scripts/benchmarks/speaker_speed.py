"""Speed of a run that tells speakers apart, beside the same run without speakers: wall clock and processor time.

    python -m scripts.benchmarks.speaker_speed SPEECH --model MODEL --speakers SPEAKER_MODEL --dtype bf16 --json FILE

SPEECH is a manifest of which scripts/benchmarks/speakers.py mixes dialogues. The two runs take turns, in one process in which
both are loaded. Loading, and a first run of both, do not count. `--json` adds the row of a processor, a speaker model, a dtype
and a number of dialogues to what the file has.

Progress goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from fastscribe import Options, Transcriber, Transcript
from fastscribe._system.processors import cpu_name, instruction_names, usable_processors
from fastscribe.bench import machine
from fastscribe.speakers.settings import parse_streaming
from scripts.benchmarks.gap_recovery import ROOT, publish
from scripts.benchmarks.speakers import make_dialogues


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    dialogues = make_dialogues(arguments.speech, folder, arguments.dialogues, arguments.length_s)
    paths = [path for path, _, _ in dialogues]
    streaming = None if arguments.speaker_streaming is None else parse_streaming(arguments.speaker_streaming)
    chosen: dict[str, Any] = {"speakers": arguments.speakers, "speaker_streaming": streaming}
    kinds = {"without": Options(), "with": Options(**chosen)}
    loaded = {
        kind: Transcriber.load(arguments.model, "cpu", arguments.dtype, options, lambda line: None)
        for kind, options in kinds.items()
    }
    wall_s, processor_s, audio_s = defaultdict(list), defaultdict(list), 0.0
    for turn in range(arguments.turns + 1):
        for kind, transcriber in loaded.items():
            wall, processor = perf_counter(), process_time()
            results = list(transcriber.transcribe(paths[:1] if turn == 0 else paths))
            wall, processor = perf_counter() - wall, process_time() - processor
            print(f"turn {turn} {kind}: {wall:.2f} s, processor {processor:.2f} s", file=sys.stderr, flush=True)
            if turn:
                wall_s[kind].append(round(wall, 3))
                processor_s[kind].append(round(processor, 3))
                audio_s = sum(one.audio.duration_s for one in results if isinstance(one, Transcript))
    row: dict[str, Any] = {
        "speakers": arguments.name or Path(arguments.speakers).stem,
        **({} if streaming is None else {"speaker_streaming": arguments.speaker_streaming}),
        "dtype": arguments.dtype,
        "dialogues": len(paths),
        "hardware": f"{cpu_name()} ({instruction_names()}), {usable_processors()} cores",
        "commit": machine.commit(ROOT),
        "audio_s": round(audio_s, 1),
    }
    for name, seconds in (("wall", wall_s), ("processor", processor_s)):
        medians = {kind: statistics.median(seconds[kind]) for kind in kinds}
        row |= {f"{name}_s_{kind}": seconds[kind] for kind in kinds}
        row[f"{name}_speed_with_speakers_percent"] = round(100 * medians["without"] / medians["with"], 1)
    row["rtfx_without"] = round(audio_s / statistics.median(wall_s["without"]), 1)
    row["rtfx_with"] = round(audio_s / statistics.median(wall_s["with"]), 1)
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, metavar="SPEECH", help="manifest with speakers")
    parser.add_argument("--model", required=True, help="transcription model")
    parser.add_argument("--speakers", required=True, metavar="MODEL", help="speaker model")
    parser.add_argument("--speaker-streaming", metavar="NAME=N,...", help="settings in place of the speaker model's")
    parser.add_argument("--name", metavar="WORDS", help="what the speaker model is called in the results")
    parser.add_argument("--dtype", required=True, choices=("fp32", "bf16", "int8"))
    parser.add_argument("--dialogues", type=int, default=2, metavar="N")
    parser.add_argument("--length-s", type=float, default=110.0, metavar="SECONDS", help="of a dialogue, about")
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(arguments, Path(folder))
    rows = []
    if arguments.json is not None and arguments.json.exists():
        stored = json.loads(arguments.json.read_text())["results"]
        keys = ("hardware", "speakers", "speaker_streaming", "dtype", "dialogues")
        rows = [one for one in stored if any(one.get(key) != row.get(key) for key in keys)]
    publish("speed with and without speakers", "seconds of each turn; medians for the shares", arguments, [*rows, row])


if __name__ == "__main__":
    main()
