"""The weight from which --boost writes a phrase that is not spoken.

    python -m scripts.benchmarks.boost_weights SPEECH --json docs/bench/boost/weights.json

Each sentence gets a list of one phrase, with every weight. Once it is a phrase that the speaker does not say: a rare word, and
in every other sentence a pair of words. Once it is a rare word that the speaker says. Sentences, phrases and decoders are those
of boost.py.

`inserted_percent` is the share of sentences whose text has the phrase that is not spoken; `copies` is how often such a text has
it, in the mean; `wer_percent` is of all sentences with that list. `found_percent` is the share whose text has the word that is
spoken. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastscribe import Options, Transcriber
from fastscribe.context.booster import Booster
from fastscribe.evaluation.scores import Pair, evaluate
from fastscribe.types import Phrase
from scripts.benchmarks.boost import Encoded, Sentence, Tally, decode, encode, others, read_half, rows_of, words_of
from scripts.benchmarks.gap_recovery import DECODERS, parser_of, publish

WEIGHTS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 50.0, 100.0)


def texts_with(
    transcriber: Transcriber, encoded: Sequence[Encoded], phrases: dict[Sentence, str], weight: float
) -> dict[Sentence, tuple[str, ...]]:
    """Return the words of each sentence that has a phrase, with the phrase at a weight."""
    booster = Booster((), transcriber._tokenizer, "", transcriber._recognizer.device, print)
    found: dict[Sentence, tuple[str, ...]] = {}
    for part in encoded:
        own = [(Phrase(phrases[one], weight),) if weight and one in phrases else () for one in part.sentences]
        utterances = tuple(
            replace(one, audio=replace(one.audio, boost=boost))
            for one, boost in zip(part.batch.utterances, own, strict=True)
        )
        frames = replace(part.frames, boost=booster.boost(replace(part.batch, utterances=utterances)))
        found |= zip(part.sentences, decode(transcriber, frames, Tally([])), strict=True)
    return {sentence: words for sentence, words in found.items() if sentence in phrases}


def num_copies(words: Sequence[str], phrase: str) -> int:
    return f" {' '.join(words)} ".replace(" ", "  ").count(f" {phrase.replace(' ', '  ')} ")


def row_of(transcriber: Transcriber, encoded: Sequence[Encoded], fill: Sequence[str], weight: float) -> dict[str, Any]:
    sentences = [sentence for part in encoded for sentence in part.sentences]
    single, pairs = ([one for one in fill if (" " in one) is is_pair] for is_pair in (False, True))
    unspoken = {one: (pairs if number % 2 else single)[number] for number, one in enumerate(sentences)}
    unspoken = {one: phrase for one, phrase in unspoken.items() if not num_copies(one.words, phrase)}
    spoken = {one: one.rare[0] for one in sentences if one.rare}
    texts = texts_with(transcriber, encoded, unspoken, weight)
    copies = [count for one, words in texts.items() if (count := num_copies(words, unspoken[one]))]
    heard = texts_with(transcriber, encoded, spoken, weight)
    rate = evaluate([Pair(" ".join(one.words), " ".join(words)) for one, words in texts.items()]).total.words.rate
    return {
        "weight": weight,
        "sentences": len(texts),
        "inserted_percent": round(100 * len(copies) / len(texts), 1),
        "copies": round(sum(copies) / max(1, len(copies)), 2),
        "wer_percent": round(100 * (rate or 0.0), 1),
        "spoken": len(heard),
        "found_percent": round(100 * sum(spoken[one] in words for one, words in heard.items()) / max(1, len(heard)), 1),
    }


def measure(arguments: Any) -> list[dict[str, Any]]:
    texts = [words_of(row["text"]) for name in arguments.seen for row in rows_of(arguments.speech / f"{name}.jsonl")]
    counts = Counter(word for words in texts for word in words)
    sentences = read_half(arguments, counts)[:: arguments.every]
    tested = {word for sentence in sentences for word in sentence.words}
    fill = others(texts, counts, tested)
    rows: list[dict[str, Any]] = []
    encoded: list[Encoded] = []
    for name in arguments.decoders:
        options = DECODERS[name]
        transcriber = Transcriber.load(
            arguments.model or "default", "cpu", "fp32", Options(decoder=options.decoder, beam=options.beam)
        )
        encoded = encoded or encode(transcriber._recognizer, sentences)[0]
        for weight in arguments.weights:
            rows.append({"decoder": name, **row_of(transcriber, encoded, fill, weight)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = parser_of(__doc__, list(DECODERS), list(DECODERS))
    parser.add_argument("--half", choices=("choose", "report"), default="choose")
    parser.add_argument("--seen", nargs="+", default=["train_native", "train_accented", "train_synthetic"])
    parser.add_argument("--by-speaker", nargs="+", default=["test_accented"], help="splits that are halved by speakers")
    parser.add_argument("--weights", nargs="+", type=float, default=WEIGHTS)
    parser.add_argument("--every", type=int, default=4, help="take each N-th sentence of the half")
    arguments = parser.parse_args()
    publish(
        "boost weights",
        "shares of sentences, each with a list of one phrase; words wrong after Whisper's English normaliser",
        arguments,
        measure(arguments),
    )


if __name__ == "__main__":
    main()
