"""Recall of rare words with --boost, words that it wrote wrongly, and its cost in speed.

    python -m scripts.benchmarks.boost SPEECH --half report --json docs/bench/boost/cpu.json

SPEECH holds NeMo manifests. Rare are words of five letters or more that stand at most twice in the texts of `--seen`, which the
model learnt from. The rare words of the tested sentences are the phrases to find. Rare words and pairs of words of `--seen`
that no tested sentence has fill a list up:

    10, 100         a list for each sentence: its own rare words and others, as in a manifest's `boost` field
    1,000, 10,000   one list for all: the rare words of all sentences and others

The sentences are divided into halves: by speakers where `--by-speaker` names the split, else in turns. The weight is chosen on
the half `choose`; numbers to report come from the half `report`.

A false insertion is a single word of the list that the text has more often than the reference, per 1,000 words of references.
The encoder runs once. Each batch is decoded without and with the list, by turns: `decode_ratio` is the quotient of the sums,
and RTFx counts the encoder's time too. `prepare_s` is the time for the lists. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import soundfile

from fastscribe import Options, Transcriber
from fastscribe.context import booster
from fastscribe.context.booster import Booster
from fastscribe.decode import checked
from fastscribe.evaluation.scores import Pair, evaluate
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import AudioInfo, Batch, Frames, Phrase, Utterance
from scripts.benchmarks.gap_recovery import DECODERS, RATE, parser_of, publish
from tests.helpers.collate import collate

SIZES = (10, 100, 1_000, 10_000)
LARGEST_LIST_PER_ROW = 100
BATCH_ROWS = 16
MAX_SEEN, MIN_LETTERS = 2, 5
SEED = 20_261_123


@dataclass(frozen=True)
class Sentence:
    path: Path
    duration_s: float
    words: tuple[str, ...]
    rare: tuple[str, ...]


@dataclass(frozen=True)
class Encoded:
    sentences: tuple[Sentence, ...]
    batch: Batch
    frames: Frames


def words_of(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+", text.lower().replace("'", "")))


def rows_of(manifest: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]


def read_half(arguments: Any, counts: Mapping[str, int]) -> list[Sentence]:
    """Return the chosen half of the splits."""
    found = []
    for split in arguments.splits:
        rows = rows_of(arguments.speech / f"{split}.jsonl")
        speakers = sorted({row["speaker"] for row in rows})
        first = set(speakers[::2])
        for place, row in enumerate(rows):
            is_first = row["speaker"] in first if split in arguments.by_speaker else place % 2 == 0
            if is_first == (arguments.half == "choose"):
                words = words_of(row["text"])
                path = arguments.speech / row["audio_filepath"]
                found.append(Sentence(path, row["duration"], words, tuple(sorted(filter(is_rare(counts), set(words))))))
    return sorted(found, key=lambda sentence: -sentence.duration_s)


def is_rare(counts: Mapping[str, int]) -> Any:
    return lambda word: len(word) >= MIN_LETTERS and counts.get(word, 0) <= MAX_SEEN


def others(texts: Sequence[tuple[str, ...]], counts: Mapping[str, int], tested: set[str]) -> list[str]:
    """Return phrases to fill lists up with: rare words, then pairs of words."""
    single = sorted(word for word in counts if is_rare(counts)(word) and word not in tested)
    pairs = sorted({f"{one} {two}" for words in texts for one, two in pairwise(words) if len(one + two) > 7})
    shuffle = random.Random(SEED).shuffle
    shuffle(single)
    shuffle(pairs)
    return single + pairs


def encode(recognizer: Recognizer, sentences: Sequence[Sentence]) -> tuple[list[Encoded], float]:
    found, seconds = [], 0.0
    for first in range(0, len(sentences), BATCH_ROWS):
        rows = tuple(sentences[first : first + BATCH_ROWS])
        waves = [soundfile.read(row.path, dtype="float32")[0] for row in rows]
        utterances = [
            Utterance(AudioInfo(str(row.path), "", RATE, 1, len(wave)), 0, len(wave))
            for row, wave in zip(rows, waves, strict=True)
        ]
        batch = collate(utterances, waves)
        start = perf_counter()
        frames = recognizer.encode(recognizer.features(*recognizer.upload(batch)))
        seconds += perf_counter() - start
        found.append(Encoded(rows, replace(batch, samples_BS=np.zeros((0, 0), np.float32)), frames))
    return found, seconds


class Lists:
    """The lists of one size."""

    def __init__(self, size: int, sentences: Sequence[Sentence], fill: Sequence[str], transcriber: Transcriber) -> None:
        self.size = size
        self.fill = fill
        common = sorted({word for sentence in sentences for word in sentence.rare})
        self.common = tuple(common + list(fill[: max(0, size - len(common))])) if size > LARGEST_LIST_PER_ROW else ()
        start = perf_counter()
        self.booster = Booster(
            tuple(map(Phrase, self.common)), transcriber._tokenizer, "", transcriber._recognizer.device, print
        )
        self.prepare_s = perf_counter() - start

    def of(self, sentence: Sentence) -> tuple[str, ...]:
        if self.common:
            return self.common
        some = random.Random(str(sentence.path.name)).sample(self.fill, max(0, self.size - len(sentence.rare)))
        return (*sentence.rare, *some)

    def with_boost(self, encoded: Encoded) -> Frames:
        """Return the frames with the phrases; counts the time."""
        utterances = encoded.batch.utterances
        if not self.common:
            utterances = tuple(
                replace(utterance, audio=replace(utterance.audio, boost=tuple(map(Phrase, self.of(sentence)))))
                for utterance, sentence in zip(utterances, encoded.sentences, strict=True)
            )
        start = perf_counter()
        boost = self.booster.boost(replace(encoded.batch, utterances=utterances))
        self.prepare_s += perf_counter() - start
        return replace(encoded.frames, boost=boost)


@dataclass
class Tally:
    """What one way to decode has written."""

    pairs: list[Pair]
    occurrences: int = 0
    found: int = 0
    inserted: int = 0
    decode_s: float = 0.0

    def add(self, sentence: Sentence, words: tuple[str, ...], listed: set[str]) -> None:
        there, written = Counter(sentence.words), Counter(words)
        self.pairs.append(Pair(" ".join(sentence.words), " ".join(words)))
        self.occurrences += sum(there[word] for word in sentence.rare)
        self.found += sum(min(there[word], written[word]) for word in sentence.rare)
        self.inserted += sum(max(0, written[word] - there[word]) for word in written.keys() & listed)

    def to_json(self, audio_s: float, encode_s: float) -> dict[str, Any]:
        words = evaluate(self.pairs).total.words
        return {
            "wer_percent": round(100 * (words.rate or 0.0), 2),
            "recall_percent": round(100 * self.found / max(1, self.occurrences), 1),
            "false_insertions_per_1000_words": round(
                1000 * self.inserted / sum(len(pair.reference.split()) for pair in self.pairs), 2
            ),
            "decode_s": round(self.decode_s, 2),
            "rtfx": round(audio_s / (encode_s + self.decode_s), 1),
        }


def decode(transcriber: Transcriber, frames: Frames, tally: Tally) -> list[tuple[str, ...]]:
    decoder, tokenizer = transcriber._recognizer.decoder, transcriber._tokenizer
    start = perf_counter()
    hypotheses = checked.read(decoder, checked.submit(decoder, frames).cpu().numpy(), frames)
    tally.decode_s += perf_counter() - start
    return [words_of(tokenizer.sentence(one.token_ids)) for one in hypotheses]


def compare(transcriber: Transcriber, encoded: Sequence[Encoded], lists: Lists) -> tuple[Tally, Tally]:
    """Decode every batch without and with the lists, by turns."""
    without, boosted = Tally([]), Tally([])
    for turn, part in enumerate(encoded):
        ways = [(without, part.frames), (boosted, lists.with_boost(part))]
        for tally, frames in ways if turn % 2 else reversed(ways):
            for sentence, words in zip(part.sentences, decode(transcriber, frames, tally), strict=True):
                tally.add(sentence, words, {phrase for phrase in lists.of(sentence) if " " not in phrase})
    return without, boosted


def measure(arguments: Any) -> list[dict[str, Any]]:
    texts = [words_of(row["text"]) for name in arguments.seen for row in rows_of(arguments.speech / f"{name}.jsonl")]
    counts = Counter(word for words in texts for word in words)
    tested = {
        word
        for split in arguments.splits
        for row in rows_of(arguments.speech / f"{split}.jsonl")
        for word in words_of(row["text"])
    }
    fill = others(texts, counts, tested)
    sentences = read_half(arguments, counts)
    model, audio_s = arguments.model or "default", sum(sentence.duration_s for sentence in sentences)
    rows = []
    encoded: list[Encoded] = []
    for name in arguments.decoders:
        options = DECODERS[name]
        transcriber = Transcriber.load(model, "cpu", "fp32", Options(decoder=options.decoder, beam=options.beam))
        if not encoded:  # one encoder for all heads
            encoded, encode_s = encode(transcriber._recognizer, sentences)
        for weight in arguments.weights or [booster.WEIGHT]:
            booster.WEIGHT = weight
            for size in arguments.sizes:
                lists = Lists(size, sentences, fill, transcriber)
                without, boosted = compare(transcriber, encoded, lists)
                rows.append(
                    {
                        "decoder": name,
                        "weight": weight,
                        "phrases": size,
                        "lists": "one for all" if lists.common else "one for each sentence",
                        "half": arguments.half,
                        "sentences": len(sentences),
                        "audio_s": round(audio_s, 1),
                        "rare_words": boosted.occurrences,
                        "without": without.to_json(audio_s, encode_s),
                        "with": boosted.to_json(audio_s, encode_s),
                        "prepare_s": round(lists.prepare_s, 2),
                        "decode_ratio": round(boosted.decode_s / without.decode_s, 2),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = parser_of(__doc__, list(DECODERS), list(DECODERS))
    parser.add_argument("--half", choices=("choose", "report"), default="report")
    parser.add_argument("--seen", nargs="+", default=["train_native", "train_accented", "train_synthetic"])
    parser.add_argument("--by-speaker", nargs="+", default=["test_accented"], help="splits that are halved by speakers")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--weights", nargs="+", type=float, help="default: the program's")
    arguments = parser.parse_args()
    publish(
        "boost",
        "recall of rare words, and words of the lists that no reference has, over all sentences; times are sums over batches "
        "that are decoded without and with phrases by turns, on a machine with other work",
        arguments,
        measure(arguments),
    )


if __name__ == "__main__":
    main()
