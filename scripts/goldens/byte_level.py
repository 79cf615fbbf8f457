"""Write a small byte-level BPE, and its tokens of words at the beginning of a text and inside one.

python -m scripts.goldens byte_level OUT.json    # with tokenizers
"""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SENTENCES = (
    "the harbour lay quiet before sunrise and only the ferry lamps moved across the water",
    "it's what they'd say: we'll never know, i'm sure, and you're late; don't wait",
    "the café at the naïve señor's door had 42 tables in 1984",
)
WORDS = """
the harbour quiet sunrise ferry water they'd we'll i'm don't café naïve señor's 1984 x y2k rock'n'roll 'twas
sure, late; (door) -- ... 3.14 x² Straße 漢字 O'Neill's mother-in-law you're!
""".split()  # noqa: SIM905


def main(out: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    found = {
        "tokenizers": tokenizers.__version__,
        "tokenizer": json.loads(tokenizer.to_str()),
        "first": {word: tokenizer.encode(word).ids for word in [*WORDS, "forty two"]},
        "later": {word: tokenizer.encode(f" {word}").ids for word in [*WORDS, "forty two"]},
    }
    content = json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n"
    out.write_text(content, encoding="utf-8")
