"""Sentences from books, WordNet and manifests, in the spelling of the packaged model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

WORDNET = Path("/usr/share/wordnet")  # Debian's wordnet-base
MAX_WORDS = 25
IN_A_ROW = 5
_SENTENCE_END = re.compile(r"(?<=[.?!])(?<!\b[A-Z]\.)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)[\"')”’]*(?:\s+|$)")


def apart(found: Iterable[str], manifests: Iterable[Path]) -> Iterator[str]:
    """Yield the sentences that share no five consecutive words with a text of the manifests."""
    kept_back = {words for manifest in manifests for text in texts_of(manifest) for words in in_a_row(text)}
    return (text for text in found if kept_back.isdisjoint(in_a_row(text)))


def texts_of(manifest: Path) -> Iterator[str]:
    for line in manifest.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["text"]


def in_a_row(text: str) -> set[tuple[str, ...]]:
    """
    >>> sorted(in_a_row("It's the house that Jack built."))
    [('its', 'the', 'house', 'that', 'jack'), ('the', 'house', 'that', 'jack', 'built')]
    >>> in_a_row("The house.")
    {('the', 'house')}
    """
    words = re.sub(r"[^a-z ]", "", text.lower().replace("-", " ")).split()
    return {tuple(words[start : start + IN_A_ROW]) for start in range(max(1, len(words) - IN_A_ROW + 1))}


def examples() -> Iterator[str]:
    """Yield WordNet's example sentences."""
    for name in ("noun", "verb", "adj", "adv"):
        for found in re.findall(r'"([^"]*)"', (WORDNET / f"data.{name}").read_text(encoding="utf-8")):
            if is_plain(text := simpler(found)):
                yield sentence(text)


def nouns() -> set[str]:
    """Return WordNet's nouns; those of several words have underscores between them."""
    lines = (WORDNET / "index.noun").read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines if not line.startswith(" ")}  # its licence is indented


def written(books: list[Path]) -> Iterator[str]:
    for book in books:
        for paragraph in re.split(r"\n\s*\n", book.read_text(encoding="utf-8")):
            for found in _SENTENCE_END.split(paragraph.strip()):
                text = simpler(found)
                if text[-1:] in {".", "?", "!"}:
                    yield from (sentence(part) for part in parts(text) if is_plain(part))


def parts(text: str) -> list[str]:
    """What is too long for one breath, cut at its commas.

    >>> parts("It was late, and " + "very " * 24 + "dark.")[0]
    'It was late'
    """
    found: list[str] = []
    for clause in text.split(", "):
        if found and len(found[-1].split()) + len(clause.split()) <= MAX_WORDS:
            found[-1] += f", {clause}"
        else:
            found.append(clause)
    return found


def simpler(text: str) -> str:
    """
    >>> simpler('_Surely_; "not  all"--some')
    'Surely, not all, some'
    """
    text = text.replace("’", "'").replace("`", "'")
    text = re.sub(r'["“”‘_()]', " ", text)
    text = re.sub(r"\s*(,|;|:|--+|—)[\s,;:—-]*(?=\s|\w|$)", ", ", text)
    return re.sub(r"\s+", " ", re.sub(r"(^|\s)'(?=\w)", " ", text)).strip(" ,-'")


def is_plain(text: str) -> bool:
    """Return True for three or more words that a synthesiser reads as they are written."""
    words = text.split()
    is_letters = re.fullmatch(r"[A-Za-z][A-Za-z ,'.?!-]*", text) and "--" not in text and ".." not in text
    return (
        bool(is_letters)
        and 3 <= len(words) <= MAX_WORDS
        and not any(len(word) > 1 and word.isupper() for word in words)
    )


def sentence(text: str) -> str:
    """
    >>> sentence("the dog barked")
    'The dog barked.'
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
