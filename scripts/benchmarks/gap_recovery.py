"""Word error rates with --recover-gaps and --no-recover-gaps, on short recordings and on long ones joined from them.

    python -m scripts.benchmarks.gap_recovery SPEECH --decoders ctc --json docs/bench/gaps/cpu-ctc.json

SPEECH holds a NeMo manifest per split. Each split gives four kinds of recordings, at 16 kHz:

    short   the split's utterances
    joined  utterances in the manifest's order, joined into recordings of about five minutes
    levels  the same at changing levels (0, -12 or -24 dB an utterance), with pauses of half a second to four seconds
    noise   the same pauses, and pink noise 10 dB below the speech over half of the utterances and the pauses before them

Each decoder of the packaged model decodes each kind both ways. Rates are of words after Whisper's English normaliser. The
interval is a paired bootstrap over recordings (95 %, percentiles) of the rate with recovery less the rate without.
`search_cpu_s` is the processor time of the search for speech without words, which both ways include.

Tables and progress go to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import process_time, thread_time
from typing import Any
from unittest.mock import patch

import numpy as np
import soundfile

from fastscribe import Options, Transcriber, Transcript
from fastscribe._system.processors import cpu_name, usable_processors
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.bench import machine
from fastscribe.checkpoint.location import locate
from fastscribe.evaluation.scores import Edits, Pair, evaluate, normalizer
from fastscribe.segmentation import gaps
from fastscribe.segmentation.gaps import find_clear_speech
from fastscribe.types import AnyArray, Utterance, Word

ROOT = Path(__file__).resolve().parents[2]

RATE = 16_000
LONG_S = 300.0  # a joined recording ends after the utterance that passes this
KINDS = ("short", "joined", "levels", "noise")
DECODERS = {
    "tdt": Options(decoder="tdt"),
    "tdt --beam 1": Options(decoder="tdt", beam=1),
    "ctc": Options(decoder="ctc"),
}
LEVELS_DB = (0.0, -12.0, -24.0)
SNR_DB = 10.0
PAUSE_S = (0.5, 4.0)
RESAMPLES = 10_000
SEED = 20_261_122


@dataclass(frozen=True)
class Recording:
    path: Path
    reference: str


@dataclass(frozen=True)
class Run:
    """Transcripts in the order of the recordings, and the run's times."""

    transcripts: tuple[Transcript, ...]
    cpu_s: float  # processor time of all threads
    search_cpu_s: float  # the part of it that reads spans without words and looks for speech there


def read_split(manifest: Path, max_hours: float) -> list[tuple[AnyArray, str]]:
    """Return samples and texts; of a larger split, evenly picked utterances."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    share = max_hours * 3600 / sum(row["duration"] for row in rows)
    if share < 1:
        rows = [row for place, row in enumerate(rows) if int(place * share) < int((place + 1) * share)]
    found = []
    for row in rows:
        samples, rate = soundfile.read(manifest.parent / row["audio_filepath"], dtype="float32")
        assert rate == RATE and samples.ndim == 1, row["audio_filepath"]
        found.append((samples, row["text"]))
    return found


def make_recordings(split: Sequence[tuple[AnyArray, str]], kind: str, folder: Path) -> list[Recording]:
    folder.mkdir()
    made = []
    for place, group in enumerate(groups(split, 0.0 if kind == "short" else LONG_S)):
        path = folder / f"{place:04d}.wav"
        samples = np.concatenate(changed([samples for samples, _ in group], kind, np.random.default_rng((SEED, place))))
        soundfile.write(path, np.clip(samples, -1, 1), RATE, subtype="PCM_16")
        made.append(Recording(path, " ".join(text for _, text in group)))
    return made


def groups(split: Sequence[tuple[AnyArray, str]], least_s: float) -> Iterator[list[tuple[AnyArray, str]]]:
    """Group neighbours that together last `least_s`; the last group may be shorter."""
    group: list[tuple[AnyArray, str]] = []
    for utterance in split:
        group.append(utterance)
        if sum(len(samples) for samples, _ in group) >= least_s * RATE:
            yield group
            group = []
    if group:
        yield group


def changed(utterances: Sequence[AnyArray], kind: str, rng: np.random.Generator) -> list[AnyArray]:
    if kind in ("short", "joined"):
        return list(utterances)
    made = []
    for samples in utterances:
        pause = np.zeros(int(rng.uniform(*PAUSE_S) * RATE), np.float32)
        stretch = np.concatenate([pause, samples])
        if kind == "levels":
            stretch = stretch * 10 ** (rng.choice(LEVELS_DB) / 20)
        elif rng.random() < 0.5:
            noise = pink(len(stretch), rng)
            stretch = stretch + noise * np.sqrt(np.mean(samples**2) / np.mean(noise**2)) * 10 ** (-SNR_DB / 20)
        made.append(stretch.astype(np.float32))
    return made


def pink(num_samples: int, rng: np.random.Generator) -> AnyArray:
    """Return noise whose power falls by 3 dB per octave from 20 Hz."""
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(np.fft.rfftfreq(num_samples, 1 / RATE), 20.0)), num_samples)


def transcribe(transcriber: Transcriber, recordings: Sequence[Recording]) -> Run:
    start, searches_s = process_time(), []

    def timed_search(*arguments: Any) -> list[Utterance]:
        search_start = thread_time()
        found = find_clear_speech(*arguments)
        searches_s.append(thread_time() - search_start)
        return found

    found: dict[int, Transcript] = {}
    with patch.object(gaps, "find_clear_speech", timed_search):
        for result in transcriber.transcribe([recording.path for recording in recordings]):
            if not isinstance(result, Transcript):
                raise SystemExit(f"{result.path}: {result.message}")
            found[result.audio.index] = result
    return Run(tuple(found[place] for place in range(len(recordings))), process_time() - start, sum(searches_s))


def edits(recordings: Sequence[Recording], run: Run) -> list[Edits]:
    """Return the word edits of each recording."""
    normalize = normalizer("whisper-en")
    pairs = [
        Pair(normalize(recording.reference), normalize(transcript.text), (str(place),))
        for place, (recording, transcript) in enumerate(zip(recordings, run.transcripts, strict=True))
    ]
    by_recording = evaluate(pairs, num_group_fields=1).groups[0]
    return [by_recording[str(place)].words for place in range(len(recordings))]


def compare(recordings: Sequence[Recording], without: Run, recovered: Run) -> dict[str, Any]:
    for one_pass, transcript in zip(without.transcripts, recovered.transcripts, strict=True):
        kept = [word for segment in transcript.segments if not segment.recovered for word in segment.words]
        same = [timed(word) for word in kept] == [timed(word) for word in one_pass.words]
        assert same, f"{transcript.audio.path}: recovery changed words of the first pass"
    segments = [segment for transcript in recovered.transcripts for segment in transcript.segments if segment.recovered]
    edits_without, edits_recovered = edits(recordings, without), edits(recordings, recovered)
    return {
        "recordings": len(recordings),
        "audio_s": round(sum(transcript.audio.duration_s for transcript in without.transcripts), 1),
        "recordings_with_recovered_words": sum(
            any(segment.recovered for segment in transcript.segments) for transcript in recovered.transcripts
        ),
        "recovered_words": sum(len(segment.words) for segment in segments),
        "recovered_s": round(sum(segment.end_s - segment.start_s for segment in segments), 1),
        "gaps_listed_without": sum(len(transcript.gaps) for transcript in without.transcripts),
        "gaps_listed_with": sum(len(transcript.gaps) for transcript in recovered.transcripts),
        "without": counts(sum(edits_without, Edits())),
        "with": counts(sum(edits_recovered, Edits())),
        **difference(edits_without, edits_recovered),
        "cpu_s_without": round(without.cpu_s, 2),
        "cpu_s_with": round(recovered.cpu_s, 2),
        "search_cpu_s": round(without.search_cpu_s, 3),
    }


def timed(word: Word) -> tuple[str, float, float]:
    return word.text, word.start_s, word.end_s  # confidences may differ in their last bits, as batches do


def counts(total: Edits) -> dict[str, Any]:
    return {
        "words": total.units,
        "right": total.units - total.substitutions - total.deletions,
        "substitutions": total.substitutions,
        "deletions": total.deletions,
        "insertions": total.insertions,
        "wer": round(total.rate or 0.0, 6),
    }


def difference(without: Sequence[Edits], recovered: Sequence[Edits]) -> dict[str, Any]:
    """Return the rate with recovery less the rate without, in percentage points, and its interval."""
    words = np.array([each.units for each in without])
    more_errors = np.array([b.errors - a.errors for a, b in zip(without, recovered, strict=True)])
    picked = np.random.default_rng(SEED).integers(len(words), size=(RESAMPLES, len(words)))
    resampled = 100 * more_errors[picked].sum(1) / np.maximum(1, words[picked].sum(1))
    low, high = np.percentile(resampled, (2.5, 97.5))
    return {
        "wer_difference_points": round(100 * float(more_errors.sum() / words.sum()), 4),
        "interval_95_points": [round(float(low), 4), round(float(high), 4)],
        "recordings_better": int((more_errors < 0).sum()),
        "recordings_worse": int((more_errors > 0).sum()),
    }


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    model, rows = str(locate(arguments.model, log_to_stderr)), []
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for split in arguments.splits:
            utterances = read_split(arguments.speech / f"{split}.jsonl", arguments.max_hours)
            for kind in KINDS:
                made[split, kind] = make_recordings(utterances, kind, Path(folder) / f"{split}-{kind}")
        for decoder in arguments.decoders:
            both = [load(model, decoder, recover) for recover in (False, True)]
            for (split, kind), recordings in made.items():
                runs = [transcribe(transcriber, recordings) for transcriber in both]
                rows.append({"split": split, "kind": kind, "decoder": decoder} | compare(recordings, *runs))
                print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def load(model: str, decoder: str, recover: bool) -> Transcriber:
    options = DECODERS[decoder]
    chosen = Options(decoder=options.decoder, beam=options.beam, recover_gaps=recover)
    return Transcriber.load(model, device="cpu", dtype="fp32", options=chosen)


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'split':16}{'kind':8}{'decoder':14}{'without':>9}{'with':>9}{'points':>8}  {'95 %':18}{'words':>6}{'right':>6}"
    ]
    for row in rows:
        low, high = row["interval_95_points"]
        lines.append(
            f"{row['split']:16}{row['kind']:8}{row['decoder']:14}{row['without']['wer']:9.2%}{row['with']['wer']:9.2%}"
            f"{row['wer_difference_points']:8.2f}  {f'{low:.2f} to {high:.2f}':18}{row['recovered_words']:6}"
            f"{row['with']['right'] - row['without']['right']:6}"
        )
    return "\n".join(lines)


def parser_of(description: str | None, decoders: Sequence[str], chosen: Sequence[str]) -> argparse.ArgumentParser:
    """Make a parser with the options that benchmarks over a folder of speech share.

    Args:
        description: The benchmark's docstring.
        decoders: Names of the decoders there are.
        chosen: Names of those that are measured by default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, metavar="SPEECH", help="folder of manifests")
    parser.add_argument("--splits", nargs="+", default=["test_native", "test_accented"])
    parser.add_argument("--decoders", nargs="+", default=list(chosen), choices=list(decoders))
    parser.add_argument("--model", help="default: the packaged one")
    parser.add_argument(
        "--max-hours", type=float, default=1.0, help="of each split; of a larger one, evenly picked utterances"
    )
    parser.add_argument("--json", type=Path, help="store the JSON document here too")
    return parser


def publish(benchmark: str, statistic: str, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Print the JSON document of a benchmark, and store it where `--json` says."""
    document = {
        "benchmark": benchmark,
        "date": date.today().isoformat(),
        "hardware": f"{cpu_name()}, {usable_processors()} cores",
        "dtype": getattr(arguments, "dtype", None) or "fp32",
        "model": arguments.model or "packaged",
        "statistic": statistic,
        "commit": machine.commit(ROOT),
        "versions": machine.versions(),
        "results": rows,
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


def main() -> None:
    arguments = parser_of(__doc__, list(DECODERS), list(DECODERS)).parse_args()
    rows = measure(arguments)
    print(table(rows))
    publish(
        "gaps",
        "word error rates of all words after Whisper's English normaliser; difference with less without, its "
        f"interval from {RESAMPLES} paired resamples of the recordings",
        arguments,
        rows,
    )


if __name__ == "__main__":
    main()
