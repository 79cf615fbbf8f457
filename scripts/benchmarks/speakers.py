"""Diarisation error of dialogues with known turns: fastscribe's, and NeMo's own diariser with the same checkpoint.

    python -m scripts.benchmarks.speakers SPEECH --speakers MODEL.nemo --nemo-python PYTHON --json docs/bench/speakers/der.json

SPEECH is a NeMo manifest with a `speaker` in each row. Dialogues are of two to four of its speakers, in random order, with
-0.5 to 1 s between their utterances, over noise at -70 dB. PYTHON is that of an environment with nemo_toolkit[asr], whose
`diarize()` runs on one file at a time. The scores are those of the extra eval-speakers: the diarisation error rate
(pyannote.metrics), with a collar of 0.25 s on either side and without one, and cpWER (meeteval), of the words that fastscribe
gives to speakers.

With a checkpoint of random weights all rates are bad: what counts is that both tools have the same. `--dtypes` has rows for
more dtypes than fp32. `--loops` gives narrow models the layers of wide ones (conformer/cpu_layers.py), to measure those.

Progress goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile

from fastscribe import Options, Transcriber, Transcript
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.checkpoint.location import locate
from fastscribe.evaluation.scores import normalizer
from fastscribe.families.conformer import config as conformer_config
from fastscribe.types import Turn
from scripts.benchmarks.gap_recovery import publish

if TYPE_CHECKING:
    from pyannote.core import Annotation

RATE = 16_000
PAUSE_S = (-0.5, 1.0)
NOISE = 10 ** (-70 / 20)
COLLARS_S = (0.0, 0.25)
SEED = 20_261_123
# Runs with NeMo's Python: the checkpoint, then recordings; prints a JSON object of turns by recording.
NEMO = """
import json, sys
from nemo.collections.asr.models import SortformerEncLabelModel
model = SortformerEncLabelModel.restore_from(sys.argv[1], map_location="cpu").eval()
found = {}
for path in sys.argv[2:]:
    [lines] = model.diarize(audio=[path], batch_size=1, verbose=False)
    found[path] = [(float(start), float(end), name) for start, end, name in map(str.split, lines)]
print(json.dumps(found))
"""

Dialogue = tuple[str, list[Turn], dict[str, list[str]]]  # path, true turns, texts by speaker


def make_dialogues(manifest: Path, folder: Path, number: int, length_s: float) -> list[Dialogue]:
    """Write dialogues of about `length_s` seconds."""
    by_speaker: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, manifest.read_text().splitlines()):
        by_speaker.setdefault(row["speaker"], []).append(row)
    random, found = np.random.default_rng(SEED), []
    for dialogue in range(number):
        names = sorted(by_speaker, key=lambda name: len(by_speaker[name]), reverse=True)[:24]
        names = random.choice(names, min(len(names), 2 + dialogue % 3), replace=False).tolist()
        at_s, placed, turns = 0.0, [], []
        texts: dict[str, list[str]] = {name: [] for name in names}
        while at_s < length_s:
            name = names[int(random.integers(len(names)))]
            row = by_speaker[name][int(random.integers(len(by_speaker[name])))]
            samples, _ = soundfile.read(manifest.parent / row["audio_filepath"], dtype="float32")
            placed.append((round(at_s * RATE), samples))
            turns.append(Turn(at_s, at_s + len(samples) / RATE, name))
            texts[name].append(row["text"])
            at_s = max(0.0, at_s + len(samples) / RATE + random.uniform(*PAUSE_S))
        mixed = random.normal(0, NOISE, max(begin + len(samples) for begin, samples in placed))
        for begin, samples in placed:
            mixed[begin : begin + len(samples)] += samples
        path = folder / f"dialogue-{dialogue:03d}.wav"
        soundfile.write(path, np.clip(mixed, -1, 1), RATE, subtype="PCM_16")
        found.append((str(path), turns, texts))
    return found


def error_rates(dialogues: Sequence[Dialogue], found: Mapping[str, Sequence[Turn]]) -> dict[str, float]:
    """Return the diarisation error rates of all dialogues together, in percent."""
    from pyannote.core import Segment
    from pyannote.metrics.diarization import DiarizationErrorRate

    rates = {}
    for collar_s in COLLARS_S:
        rate = DiarizationErrorRate(collar=2 * collar_s)  # its collar is that of both sides together
        for path, turns, _ in dialogues:
            rate(annotation(turns), annotation(found[path]), uem=Segment(0, soundfile.info(path).duration))
        rates[f"der_collar_{collar_s:g}s_percent"] = round(100 * abs(rate), 3)
    return rates


def annotation(turns: Sequence[Turn]) -> Annotation:
    from pyannote.core import Annotation, Segment

    made = Annotation()
    for number, turn in enumerate(turns):
        made[Segment(turn.start_s, turn.end_s), number] = turn.speaker
    return made.support()


def cp_wer(dialogues: Sequence[Dialogue], found: Mapping[str, Transcript]) -> float:
    """Return the concatenated minimum-permutation word error rate of all dialogues together, in percent."""
    from meeteval.wer import combine_error_rates, cp_word_error_rate

    normalize, rates = normalizer("whisper-en"), []
    for path, _, texts in dialogues:
        said: dict[str, list[str]] = {}
        for word in found[path].words:
            said.setdefault(word.speaker or "", []).append(word.text)
        reference = {name: normalize(" ".join(parts)) for name, parts in texts.items()}
        words = {name: normalize(" ".join(parts)) for name, parts in said.items()}
        rates.append(cp_word_error_rate(reference, words, reference_sort=False, hypothesis_sort=False))
    return round(100 * float(combine_error_rates(rates).error_rate), 2)


def of_nemo(python: str, model: str, dialogues: Sequence[Dialogue]) -> dict[str, list[Turn]]:
    command = [python, "-c", NEMO, model, *(path for path, _, _ in dialogues)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    stored = json.loads(done.stdout.splitlines()[-1])
    return {path: [Turn(*turn) for turn in turns] for path, turns in stored.items()}


def of_fastscribe(arguments: argparse.Namespace, dtype: str, paths: Sequence[str]) -> dict[str, Transcript]:
    options = Options(speakers=arguments.speakers)
    found = {}
    with Transcriber.load(
        locate(arguments.model, log_to_stderr), device="cpu", dtype=dtype, options=options
    ) as transcriber:
        for result in transcriber.transcribe(paths):
            assert isinstance(result, Transcript), result
            found[result.audio.path] = result
    return found


def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    dialogues = make_dialogues(arguments.speech, folder, arguments.dialogues, arguments.length_s)
    paths = [path for path, _, _ in dialogues]
    hours = round(sum(soundfile.info(path).duration for path in paths) / 3600, 3)
    named = {"dialogues": len(paths), "length_s": arguments.length_s, "hours": hours}
    if arguments.loops:
        conformer_config.MIN_WIDTH_OF_LOOPS = 1
    rows = []
    for dtype in arguments.dtypes:
        found = of_fastscribe(arguments, dtype, paths)
        own = error_rates(dialogues, {path: result.turns for path, result in found.items()})
        tool = {"tool": "fastscribe", "dtype": dtype, "loops": arguments.loops and dtype != "fp32"}
        rows.append({**tool, **named, **own, "cp_wer_percent": cp_wer(dialogues, found)})
    if arguments.nemo_python is not None:
        rows.append(
            {
                "tool": "nemo",
                "dtype": "fp32",
                **named,
                **error_rates(dialogues, of_nemo(arguments.nemo_python, arguments.speakers, dialogues)),
            }
        )
    true = {path: [Turn(*turn) for turn in turns] for path, turns, _ in dialogues}
    rows.append({"tool": "the true turns", **named, **error_rates(dialogues, true)})
    for row in rows:
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, metavar="SPEECH", help="NeMo manifest with speakers")
    parser.add_argument("--speakers", required=True, metavar="MODEL", help="Sortformer, a .nemo file")
    parser.add_argument("--model", default="default", help="transcription model")
    parser.add_argument("--nemo-python", metavar="PYTHON", help="of an environment with NeMo")
    parser.add_argument("--dialogues", type=int, default=12, metavar="N")
    parser.add_argument("--length-s", type=float, default=80.0, metavar="SECONDS", help="of a dialogue, about")
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=("fp32", "bf16", "int8"), metavar="DTYPE")
    parser.add_argument("--loops", action="store_true", help="layers of wide models in bf16 and int8")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(arguments, Path(folder))
    statistic = "diarisation error rates of all dialogues together, in percent; one run"
    publish("speakers", statistic, arguments, rows)


if __name__ == "__main__":
    main()
