"""Make the language model for beam search from texts and add it to a model's folder.

    python -m scripts.default_model.make_language_model MODEL --texts BOOK.txt.. --manifests TRAIN.jsonl..
        [--wordnet] [--without MANIFEST..]

Counts the sentences of plain texts (UTF-8, an empty line between paragraphs), of WordNet's examples and of manifests (these
--times times) in MODEL's tokens, and writes MODEL/language_model.safetensors.gz. MODEL is a fastscribe folder. Sentences that
share five consecutive words with a text of --without are skipped: name the test sets there. --weight and --bonus set the
model's influence on beam search; tune them on held-out recordings. A smaller --least-gain makes a larger file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from fastscribe.checkpoint.native import LANGUAGE_MODEL_FILE
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.context import language_model
from fastscribe.context.language_model import Fusion, LanguageModel
from fastscribe.errors import FastscribeError
from fastscribe.training.bpe import TextEncoder
from scripts.default_model import ngrams, sentences


def main() -> None:
    arguments = parsed()
    try:
        checkpoint = read_checkpoint(arguments.model)
        if checkpoint.source != "fastscribe":
            sys.exit(f"{arguments.model}: not a folder of fastscribe's own: fastscribe convert makes one")
        path = arguments.model / LANGUAGE_MODEL_FILE
        path.write_bytes(made(arguments, checkpoint, path))
    except (FastscribeError, OSError, ValueError) as error:
        sys.exit(str(error))


def made(arguments: argparse.Namespace, checkpoint: Checkpoint, path: Path) -> bytes:
    """Return the file's content. Raise ValueError or CheckpointError if it could not be read again."""
    encoder, num_tokens = TextEncoder(checkpoint.tokenizer), checkpoint.config.num_labels
    encoded = map(encoder, sentences.apart(gathered(arguments), arguments.without))
    texts = [tokens for tokens in encoded if tokens]
    if not texts:
        raise ValueError("no text that this model could write: name some with --texts or --manifests, or --wordnet")
    print(f"{len(texts):,} texts, {sum(map(len, texts)):,} tokens", file=sys.stderr)
    counted = ngrams.counted(texts, num_tokens, arguments.longest, arguments.least_gain)
    fusion = Fusion(arguments.weight, arguments.bonus, arguments.beam)
    content = language_model.serialize(LanguageModel(counted, fusion))
    language_model.parse(content, path, num_tokens)
    print(f"{counted.count:,} n-grams, {len(content):,} bytes", file=sys.stderr)
    return content


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, nargs="+", default=[])
    parser.add_argument("--manifests", type=Path, nargs="+", default=[])
    parser.add_argument("--times", type=int, default=3, help="that a manifest's texts count")
    parser.add_argument("--wordnet", action="store_true", help="its examples, too")
    parser.add_argument("--without", type=Path, nargs="+", default=[], metavar="MANIFEST")
    parser.add_argument("--longest", type=int, default=7, help="context, in tokens")
    parser.add_argument("--least-gain", type=float, default=8.0, help="nats over all texts that an n-gram is kept for")
    parser.add_argument("--weight", type=float, default=0.5)
    parser.add_argument("--bonus", type=float, default=0.6)
    parser.add_argument("--beam", type=int, default=24)
    return parser.parse_args()


def gathered(arguments: argparse.Namespace) -> Iterator[str]:
    yield from sentences.written(arguments.texts)
    if arguments.wordnet:
        yield from sentences.examples()
    for manifest in arguments.manifests:
        for text in sentences.texts_of(manifest):
            yield from [text] * arguments.times


if __name__ == "__main__":
    main()
