"""How a run's validation is scored: which normaliser prepares the texts, and whether words or characters decide. Pure.

Whisper's English normaliser drops the marks of other scripts and the accents of other languages, and languages that write no
spaces have no words to count. So both follow the language: the recipe's, else that of a model that knows one only, else the
script of the texts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fastscribe.errors import UsageError
from fastscribe.evaluation.scores import NORMALIZERS, NormalizerName
from fastscribe.languages import language_tag

Metric = Literal["wer", "cer"]
METRIC_NAMES: dict[Metric, str] = {"wer": "word error rate", "cer": "character error rate"}
_WITHOUT_SPACES = {"bo", "dz", "hak", "ja", "km", "lo", "my", "nan", "th", "wuu", "yue", "zh"}
_TWO_LETTERS = {  # of the languages that are scored in a way of their own
    **{"eng": "en", "chi": "zh", "cmn": "zh", "zho": "zh", "jpn": "ja", "tha": "th", "lao": "lo", "khm": "km"},
    **{"bur": "my", "mya": "my", "bod": "bo", "tib": "bo", "dzo": "dz"},
}
_SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "KHMER", "LAO", "MYANMAR", "THAI", "TIBETAN")
_MAX_LETTERS = 100_000  # looked at to find the script
_ENGLISH_SHARE = 0.99  # of the letters are ASCII


@dataclass(frozen=True)
class ValidationSet:
    """One manifest of several to validate with, and whether it decides which model is best.

    One of `non_speech` has no error rate. What is written for it counts as inserted words in that of all sets.
    """

    name: str
    num_examples: int
    decides: bool
    non_speech: bool = False


@dataclass(frozen=True)
class Scoring:
    """The normaliser, the rate that decides which model is best, and whether spaces count as characters."""

    normalizer: NormalizerName = "whisper-en"
    metric: Metric = "wer"
    has_spaces: bool = True

    def __str__(self) -> str:
        return f"{METRIC_NAMES[self.metric]}, {NORMALIZERS[self.normalizer].said}"


def rating_of(scoring: Scoring, sets: Sequence[ValidationSet] = ()) -> str:
    """Return what the rate that decides is of: rates of different ratings cannot be compared."""
    return repr((scoring, [one.name for one in sets if not one.decides]))


def choose_scoring(
    language: str | None,
    normalizer: NormalizerName | Literal["auto"],
    metric: Metric | Literal["auto"],
    known: Sequence[str],
    texts: Iterable[str],
) -> Scoring:
    """Return how to score.

    Args:
        language: the language of the texts, a code or an English name; None: not stated.
        normalizer: "auto": whisper-en for English, else unicode.
        metric: "auto": "cer" for languages that write no spaces, else "wer".
        known: languages that the model to start from states.
        texts: the references; looked at if no language is known.

    Raises:
        UsageError: `language` names no language.
    """
    tag = language_tag(language) if language is not None else None
    if language is not None and tag is None:
        raise UsageError(f"data.language: {language!r} is no language code (en, hi, pt-BR) or English name")
    if tag is None and is_one_language(known):
        tag = known[0]
    if tag is not None:
        code = tag.partition("-")[0]
        code = _TWO_LETTERS.get(code, code)
        is_english, has_spaces = code == "en", code not in _WITHOUT_SPACES
    else:
        is_english, has_spaces = _by_script(texts)
    return Scoring(
        ("whisper-en" if is_english else "unicode") if normalizer == "auto" else normalizer,
        ("wer" if has_spaces else "cer") if metric == "auto" else metric,
        has_spaces,
    )


def is_one_language(known: Sequence[str]) -> bool:
    """Return True if a model knows one language, in one region or several."""
    return len({one.partition("-")[0] for one in known}) == 1


def _by_script(texts: Iterable[str]) -> tuple[bool, bool]:
    """Return whether the letters are those of English, and whether their script separates words."""
    num_letters = num_ascii = num_unspaced = 0
    for text in texts:
        for letter in filter(str.isalpha, text):
            num_letters += 1
            num_ascii += letter.isascii()
            num_unspaced += not letter.isascii() and unicodedata.name(letter, "").startswith(_SCRIPTS_WITHOUT_SPACES)
        if num_letters >= _MAX_LETTERS:
            break
    return num_ascii >= _ENGLISH_SHARE * num_letters, num_unspaced <= num_letters / 2
