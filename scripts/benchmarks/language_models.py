"""Word error rates and speed of the packaged model with language models from ARPA files (`--lm`).

    python -m scripts.benchmarks.language_models SPEECH --half report --json docs/bench/language_models/cpu.json

SPEECH holds NeMo manifests. The files are made here:

    own         the packaged language model itself, written as ARPA
    tokens      n-grams of up to `--longest` tokens of the texts of `--domain`, in NeMo's encoding

Probabilities follow Witten and Bell (1991). A sentence of `--domain` that shares five words in a row with a tested one, or is
one, is left out. The halves of the tested sentences are those of boost.py: weights are chosen on `choose`, and numbers to
report come from `report`. The encoder runs once. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fastscribe import Options, Transcriber
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.checkpoint.location import locate
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.context.language_model import LanguageModel, Ngrams
from fastscribe.decode import checked
from fastscribe.evaluation.scores import Pair, evaluate
from fastscribe.training.bpe import TextEncoder
from fastscribe.types import AnyArray
from scripts.benchmarks import boost
from scripts.benchmarks.gap_recovery import parser_of, publish

_WINDOW = 5
_NEMO_OFFSET = 100
Ngram = tuple[str, ...]


def witten_bell(
    texts: Iterable[Sequence[str]], units: Iterable[str], longest: int
) -> list[dict[Ngram, tuple[float, float]]]:
    """Return probability and weight of backing off of each n-gram, by length. `units` are those without a text, too."""
    counts: list[Counter[Ngram]] = [Counter() for _ in range(longest + 1)]
    for text in texts:
        whole = ("<s>", *text, "</s>")
        for length in range(1, longest + 1):
            counts[length].update(whole[i : i + length] for i in range(len(whole) - length + 1))
    del counts[1][("<s>",)]
    for unit in ("</s>", "<unk>", *units):
        counts[1][(unit,)] += 1
    total = sum(counts[1].values())
    found = [{ngram: count / total for ngram, count in counts[1].items()}]
    left: dict[Ngram, float] = {}
    for length in range(2, longest + 1):
        seen, kinds = Counter[Ngram](), Counter[Ngram]()
        for ngram, count in counts[length].items():
            seen[ngram[:-1]] += count
            kinds[ngram[:-1]] += 1
        left |= {context: kinds[context] / (seen[context] + kinds[context]) for context in seen}
        shorter = found[-1]
        found.append(
            {
                ngram: (count + kinds[ngram[:-1]] * shorter[ngram[1:]]) / (seen[ngram[:-1]] + kinds[ngram[:-1]])
                for ngram, count in counts[length].items()
            }
        )
    found[0][("<s>",)] = 1e-99
    return [{ngram: (p, left.get(ngram, 1.0)) for ngram, p in part.items()} for part in found]


def write_arpa(ngrams: Sequence[dict[Ngram, tuple[float, float]]], path: Path) -> None:
    with (
        gzip.open(path, "wt", encoding="utf-8", compresslevel=1)
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8") as file
    ):
        file.write("\\data\\\n" + "".join(f"ngram {n}={len(part)}\n" for n, part in enumerate(ngrams, start=1)) + "\n")
        for length, part in enumerate(ngrams, start=1):
            file.write(f"\\{length}-grams:\n")
            for ngram, (probability, backoff) in part.items():
                weight = f"\t{math.log10(backoff):.7f}" if backoff != 1 else ""
                file.write(f"{math.log10(probability):.7f}\t{' '.join(ngram)}{weight}\n")
            file.write("\n")
        file.write("\\end\\\n")


def as_arpa(model: LanguageModel, names: Sequence[str]) -> list[dict[Ngram, tuple[float, float]]]:
    """Return the n-grams of fastscribe's own model: a context's stored tokens, and what it leaves to the shorter one."""
    ngrams: Ngrams = model.ngrams
    all_names = [*names, "<s>"]
    found: list[dict[Ngram, list[float]]] = [defaultdict(lambda: [0.0, 1.0])]
    unigrams = np.exp(ngrams.unigrams_V.astype(np.float64))
    for token, share in enumerate(unigrams.tolist()):
        found[0][(all_names[token],)] = [share, 1.0]
    found[0][("<s>",)] = [1e-99, 1.0]
    parents: list[tuple[int, ...]] = [()]
    rows: dict[tuple[int, ...], AnyArray] = {(): unigrams}
    for contexts in ngrams.lengths:
        ends = np.cumsum(contexts.counts_C)
        named = [(*parents[p], last) for p, last in zip(contexts.parents_C, contexts.last_C.tolist(), strict=True)]
        part: dict[Ngram, list[float]] = {}
        for context, count, end in zip(named, contexts.counts_C, ends, strict=True):
            tokens = contexts.tokens_A[end - count : end]
            own = np.exp(contexts.logprobs_A[end - count : end].astype(np.float64))
            short = context[1:]
            while short not in rows:
                short = short[1:]
            left = max(1 - own.sum(), 1e-6)
            rest = rows[short].copy()
            rest[tokens] = 0
            shorter_left = max(rest.sum(), 1e-6)
            row = rest * (left / shorter_left)
            row[tokens] = own
            rows[context] = row
            names_of = tuple(all_names[i] for i in context)
            found[-1].setdefault(names_of, [0.0, 1.0])[1] = left / shorter_left
            for token, share in zip(tokens.tolist(), own.tolist(), strict=True):
                part[names_of + (all_names[token],)] = [share, 1.0]  # noqa: RUF005
        found.append(part)
        parents = named
    # A context without a probability of its own has the one that it has by backing off.
    for part in found:
        for ngram, values in part.items():
            if values[0] == 0.0:
                ids = tuple(all_names.index(name) for name in ngram)
                context = ids[:-1]
                while context not in rows:
                    context = context[1:]
                values[0] = 1e-99 if ids[-1] == len(names) else float(rows[context][ids[-1]])
    return [{ngram: (p, b) for ngram, (p, b) in part.items()} for part in found if part]


def shared(words: Sequence[str]) -> set[Ngram]:
    return {tuple(words[i : i + _WINDOW]) for i in range(max(1, len(words) - _WINDOW + 1))}


def domain_texts(arguments: Any) -> list[str]:
    tested: set[Ngram] = set()
    for split in arguments.splits:
        for row in boost.rows_of(arguments.speech / f"{split}.jsonl"):
            tested |= shared(boost.words_of(row["text"]))
    rows = [row for name in arguments.domain for row in boost.rows_of(arguments.speech / f"{name}.jsonl")]
    texts = dict.fromkeys(" ".join(row["text"].split()) for row in rows)
    return [text for text in texts if (words := boost.words_of(text)) and not shared(words) & tested]


def measure(arguments: Any) -> list[dict[str, Any]]:
    model = locate(arguments.model or "default", log_to_stderr)
    checkpoint = read_checkpoint(model)
    tokenizer, own = checkpoint.tokenizer, checkpoint.language_model
    assert own is not None
    texts = domain_texts(arguments)
    encoder = TextEncoder(tokenizer)
    names = [chr(_NEMO_OFFSET + token) for token in range(len(tokenizer.pieces))]
    encoded_texts = [[names[i] for i in encoder(text) or ()] for text in texts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_arpa(as_arpa(own, tokenizer.pieces), folder / "own.arpa")
        write_arpa(witten_bell(encoded_texts, names, arguments.longest), folder / "tokens.arpa")
        return _measured(arguments, str(model), folder, len(texts))


def _measured(arguments: Any, model: str, folder: Path, num_texts: int) -> list[dict[str, Any]]:
    sentences = boost.read_half(arguments, Counter())
    audio_s = sum(sentence.duration_s for sentence in sentences)
    ways: list[tuple[str, str | None, float | None]] = [("none", None, 0.0), ("packaged", None, None)]
    ways.append(("packaged as ARPA", "own.arpa", 0.5))
    ways += [("domain, tokens", "tokens.arpa", weight) for weight in arguments.weights or [None]]
    rows: list[dict[str, Any]] = []
    encoded: list[boost.Encoded] = []
    texts_of: dict[str, list[str]] = {}
    for name, file, weight in ways:
        if arguments.only and not any(one in name for one in arguments.only):
            continue
        lm = None if file is None else str(folder / file)
        start = perf_counter()
        options = Options(decoder="tdt", beam=arguments.beam, lm=lm, lm_weight=weight)
        transcriber = Transcriber.load(model, "cpu", "fp32", options, lambda line: None)
        load_s = perf_counter() - start
        if not encoded:
            encoded, encode_s = boost.encode(transcriber._recognizer, sentences)
        pairs, texts, decode_s = [], [], 0.0
        for part in encoded:
            decoder = transcriber._recognizer.decoder
            start = perf_counter()
            found = checked.read(decoder, checked.submit(decoder, part.frames).cpu().numpy(), part.frames)
            decode_s += perf_counter() - start
            for sentence, one in zip(part.sentences, found, strict=True):
                texts.append(transcriber._tokenizer.sentence(one.token_ids))
                pairs.append(Pair(" ".join(sentence.words), " ".join(boost.words_of(texts[-1]))))
        texts_of[name] = texts
        words = evaluate(pairs).total.words
        row = {
            "language_model": name,
            "weight": weight,
            "beam": arguments.beam,
            "half": arguments.half,
            "sentences": len(sentences),
            "audio_s": round(audio_s, 1),
            "texts": num_texts if file not in (None, "own.arpa") else None,
            "wer_percent": round(100 * (words.rate or 0.0), 2),
            "decode_s": round(decode_s, 2),
            "load_s": round(load_s, 2),
            "rtfx": round(audio_s / (encode_s + decode_s), 1),
        }
        if name == "packaged as ARPA" and "packaged" in texts_of:
            row["texts_that_differ"] = sum(a != b for a, b in zip(texts, texts_of["packaged"], strict=True))
        rows.append(row)
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = parser_of(__doc__, ["tdt"], ["tdt"])
    parser.add_argument("--half", choices=("choose", "report"), default="report")
    parser.add_argument("--domain", nargs="+", default=["train_accented", "train_native", "train_synthetic"])
    parser.add_argument("--by-speaker", nargs="+", default=["test_accented"], help="splits that are halved by speakers")
    parser.add_argument("--weights", nargs="+", type=float, help="default: the program's")
    parser.add_argument("--beam", type=int, default=12)
    parser.add_argument("--longest", type=int, default=6)
    parser.add_argument("--only", nargs="+", help="parts of names")
    arguments = parser.parse_args()
    publish(
        "language_models",
        "words wrong over all sentences; times are sums over batches, on a machine with other work",
        arguments,
        measure(arguments),
    )


if __name__ == "__main__":
    main()
