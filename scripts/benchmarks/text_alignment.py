"""Measure forced alignment of texts: errors in a text that it finds, and the drift of a long recording.

    python -m scripts.benchmarks.text_alignment errors MANIFEST --clips 100 --json docs/bench/align/errors.json
    python -m scripts.benchmarks.text_alignment drift MANIFEST --seconds 3600 --json docs/bench/align/drift.json

`errors` takes a word out of each clip's text, and in another pass puts a word of another clip into it. A missing word is found
if it is marked; a word taken out is found if its place is listed as speech that is not in the text. `moved` is the share of the
other words whose times differ by more than 0.1 s from those with the right text. `drift` joins clips, with half a second of
silence between them, aligns the whole with the joined text, and compares the words' times with those of each clip by itself.

The packaged model, or --model. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from datetime import date
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import soundfile

from fastscribe import Transcript
from fastscribe._system.processors import cpu_name
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.alignment.aligner import Aligner
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.bench import machine
from fastscribe.checkpoint.location import locate
from fastscribe.types import Source, Word

ROOT = Path(__file__).resolve().parents[2]
RATE = 16_000
PAUSE_S = 0.5
MOVED_S = 0.1
SEED = 20_261_123


class Clips:
    """Some clips of a manifest, shuffled."""

    def __init__(self, manifest: Path, scratch: Path) -> None:
        self._folder, self._scratch = manifest.parent, scratch
        self.rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        random.Random(SEED).shuffle(self.rows)

    def aligned(self, aligner: Aligner, texts: Sequence[str]) -> dict[int, Transcript]:
        """Return the results of the first clips with these texts, by position, without those that failed."""
        lines = [
            {"audio_filepath": str((self._folder / row["audio_filepath"]).resolve()), "text": text}
            for row, text in zip(self.rows, texts, strict=False)
        ]
        manifest = self._scratch / "texts.jsonl"
        manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return {found.index: found for found in aligner.align(str(manifest)) if isinstance(found, Transcript)}

    def samples(self, position: int) -> Any:
        path = str(self._folder / self.rows[position]["audio_filepath"])
        audio = probe(Source(path, path, path))
        return read(audio, 0, audio.num_samples, sample_rate=RATE)


def errors(clips: Clips, aligner: Aligner, num_clips: int) -> dict[str, Any]:
    rng = random.Random(SEED)
    texts = [row["text"].split() for row in clips.rows[:num_clips]]
    pool = list(chain.from_iterable(texts))
    removed = [rng.randrange(len(words)) for words in texts]
    added = [rng.randrange(len(words) + 1) for words in texts]
    plain = clips.aligned(aligner, [" ".join(words) for words in texts])
    shorter = clips.aligned(
        aligner, [" ".join(words[:at] + words[at + 1 :]) for words, at in zip(texts, removed, strict=True)]
    )
    longer = clips.aligned(
        aligner,
        [" ".join([*words[:at], rng.choice(pool), *words[at:]]) for words, at in zip(texts, added, strict=True)],
    )
    return {
        "clips": len(plain),
        "words": sum(len(found.words) for found in plain.values()),
        "right_text_missing_words": sum(word.missing for found in plain.values() for word in found.words),
        "right_text_other_speech": sum(len(found.gaps) for found in plain.values()),
        "word_not_spoken": _found_missing(plain, longer, added),
        "word_not_in_text": _found_other(plain, shorter, removed),
    }


def _found_missing(
    plain: dict[int, Transcript], longer: dict[int, Transcript], added: Sequence[int]
) -> dict[str, float]:
    hits = marked = num_words = moved = 0
    for index, found in longer.items():
        words = list(found.words)
        hits += words.pop(added[index]).missing
        marked += sum(word.missing for word in found.words)
        num_words += len(words)
        moved += sum(_difference_s(*pair) > MOVED_S for pair in zip(words, plain[index].words, strict=True))
    return {"recall": hits / len(longer), "precision": hits / max(1, marked), "moved": moved / num_words}


def _found_other(
    plain: dict[int, Transcript], shorter: dict[int, Transcript], removed: Sequence[int]
) -> dict[str, float]:
    hits = listed = num_words = moved = 0
    for index, found in shorter.items():
        words = list(plain[index].words)
        spoken = words.pop(removed[index])
        is_there = [gap.start_s < spoken.end_s and gap.end_s > spoken.start_s for gap in found.gaps]
        hits += any(is_there)
        listed += any(is_there) + len(is_there) - sum(is_there)
        num_words += len(words)
        moved += sum(_difference_s(*pair) > MOVED_S for pair in zip(words, found.words, strict=True))
    return {"recall": hits / len(shorter), "precision": hits / max(1, listed), "moved": moved / num_words}


def _difference_s(left: Word, right: Word) -> float:
    return max(abs(left.start_s - right.start_s), abs(left.end_s - right.end_s))


def drift(clips: Clips, aligner: Aligner, seconds: float, scratch: Path) -> dict[str, Any]:
    starts_s: list[float] = []
    now, position = 0, 0
    with soundfile.SoundFile(scratch / "joined.flac", "w", RATE, 1, "PCM_16") as joined:
        while now < seconds * RATE and position < len(clips.rows):
            samples = clips.samples(position)
            joined.write(samples)
            joined.write(np.zeros(round(PAUSE_S * RATE), samples.dtype))
            starts_s.append(now / RATE)
            now += len(samples) + round(PAUSE_S * RATE)
            position += 1
    texts = [row["text"] for row in clips.rows[:position]]
    alone = clips.aligned(aligner, texts)
    (scratch / "joined.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    begin_s = perf_counter()
    (whole,) = aligner.align(str(scratch / "joined.flac"), scratch / "joined.txt")
    wall_s = perf_counter() - begin_s
    assert isinstance(whole, Transcript), whole
    words = iter(whole.words)
    starts, ends, borders, num_missing = [], [], 0, 0
    for index, text in enumerate(texts):
        for number in range(len(text.split())):
            word = next(words)
            if index not in alone or word.missing or alone[index].words[number].missing:
                num_missing += 1
                continue
            reference = alone[index].words[number]
            starts.append(abs(word.start_s - starts_s[index] - reference.start_s))
            ends.append(abs(word.end_s - starts_s[index] - reference.end_s))
            borders += not starts_s[index] - PAUSE_S <= word.start_s <= starts_s[index] + alone[index].audio.duration_s
    stages = aligner.progress.stopwatch.seconds
    return {
        "audio_s": now / RATE,
        "clips": position,
        "words": len(whole.words),
        "words_compared": len(starts),
        "words_missing_in_either": num_missing,
        "words_outside_their_clip": borders,
        "start_difference_s": _summary(starts),
        "end_difference_s": _summary(ends),
        "wall_s": wall_s,
        "rtfx": now / RATE / wall_s,
        "encode_s": stages.get("encode", 0.0),
        "align_s": stages.get("align", 0.0),
    }


def _summary(differences_s: Sequence[float]) -> dict[str, float]:
    median_s, late_s, rare_s = np.percentile(differences_s, (50, 95, 99)).tolist()
    mean_s, max_s = float(np.mean(differences_s)), float(np.max(differences_s))
    return {"mean": mean_s, "median": median_s, "95_percent": late_s, "99_percent": rare_s, "max": max_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("errors", "drift"))
    parser.add_argument("manifest", type=Path, metavar="MANIFEST")
    parser.add_argument("--clips", type=int, default=100, help="clips of errors")
    parser.add_argument("--seconds", type=float, default=3600.0, help="length of the joined recording of drift")
    parser.add_argument("--model", help="model with a CTC head; default: the packaged one")
    parser.add_argument("--json", type=Path, help="also write the document to this file")
    arguments = parser.parse_args()
    aligner = Aligner.load(locate(arguments.model, log_to_stderr), "cpu", "fp32")
    with tempfile.TemporaryDirectory() as folder:
        clips = Clips(arguments.manifest, Path(folder))
        if arguments.what == "errors":
            found = errors(clips, aligner, arguments.clips)
        else:
            found = drift(clips, aligner, arguments.seconds, Path(folder))
    document = {
        "benchmark": f"text_alignment {arguments.what}",
        "manifest": arguments.manifest.name,
        "model": arguments.model or "default",
        "device": cpu_name(),
        "dtype": "fp32",
        "date": date.today().isoformat(),
        "versions": machine.versions(),
        "commit": machine.commit(ROOT),
        **found,
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
