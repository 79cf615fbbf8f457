"""Names of languages, and whether a model knows one. The only place that reads what users write for a language.

A tag is BCP 47's: an ISO 639 code in lower case, and perhaps a region ("en", "pt-BR").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fastscribe.errors import UsageError

AUTO = "auto"  # for a language: the model finds it
SPOKEN_KEYS = ("lang", "language", "source_lang")  # of rows of NeMo's manifests, and of the spoken language in Canary's
_TAG = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{2,8})*", re.IGNORECASE)
_MAX_SHOWN = 30  # languages in a message
_NEAREST = 8  # languages in a message about one that is not there
# English names of the languages of published speech models.
_NAMES = """
af Afrikaans, am Amharic, ar Arabic, as Assamese, az Azerbaijani, ba Bashkir, be Belarusian, bg Bulgarian, bn Bengali,
brx Bodo, bs Bosnian, ca Catalan, cs Czech, cy Welsh, da Danish, de German, doi Dogri, el Greek, en English, eo
Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, fi Finnish, fr French, ga Irish, gl Galician, gu Gujarati,
ha Hausa, he Hebrew, hi Hindi, hr Croatian, hu Hungarian, hy Armenian, id Indonesian, is Icelandic, it Italian, ja
Japanese, jv Javanese, ka Georgian, kk Kazakh, km Khmer, kn Kannada, ko Korean, kok Konkani, ks Kashmiri, ky Kyrgyz, la
Latin, lb Luxembourgish, lo Lao, lt Lithuanian, lv Latvian, mai Maithili, mk Macedonian, ml Malayalam, mn Mongolian,
mni Manipuri, mr Marathi, ms Malay, mt Maltese, my Burmese, ne Nepali, nl Dutch, no Norwegian, or Odia, pa Punjabi, pl
Polish, ps Pashto, pt Portuguese, ro Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit, sat Santali, sd Sindhi, si
Sinhala, sk Slovak, sl Slovenian, so Somali, sq Albanian, sr Serbian, su Sundanese, sv Swedish, sw Swahili, ta Tamil,
te Telugu, tg Tajik, th Thai, tk Turkmen, tl Tagalog, tr Turkish, tt Tatar, ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek,
vi Vietnamese, yi Yiddish, yo Yoruba, zh Chinese, zh Mandarin, zu Zulu
"""
_CODES = {name.casefold(): code for code, name in (entry.split() for entry in _NAMES.split(","))}


def written_language(given: Iterable[str | None], known: Sequence[str]) -> str | None:
    """Return the tag of the language that a run writes; None: the model chooses, or it is not known.

    Args:
        given: The run's --target-language and --language.
        known: Tags of the model's languages; empty if it does not state them.
    """
    chosen = [tag for tag in given if tag not in (None, AUTO)]
    return next(iter([*chosen, *(known if len(known) == 1 else ())]), None)


def language_tag(text: str) -> str | None:
    """Return the tag of a code or an English name: "en" for en, EN and English, "en-US" for en_us; None for other text."""
    text = text.strip()
    if text.casefold() in _CODES:
        return _CODES[text.casefold()]
    if not _TAG.fullmatch(text):
        return None
    code, *rest = text.replace("_", "-").split("-")
    return "-".join((code.lower(), *(part.upper() if len(part) == 2 else part for part in rest)))


def names_language(row: Mapping[str, Any] | None) -> bool:
    """Return True if a field of a manifest's row says which language is spoken."""
    return any((row or {}).get(key) not in (None, "") for key in SPOKEN_KEYS)


def find_language(tag: str, known: Sequence[str]) -> str | None:
    """Return the language of `known` that a tag means: the same tag, else one that differs in the region only."""
    return next((one for one in known if one == tag), None) or next(
        (one for one in known if one.partition("-")[0] == tag.partition("-")[0]), None
    )


def nearest_languages(tag: str, known: Sequence[str]) -> Sequence[str]:
    """Return the languages of `known` for a message about one that is not there: those most like it, else the first."""
    regions = [one for one in known if one.partition("-")[0] == tag.partition("-")[0]]
    return regions or get_close_matches(tag, known, _NEAREST, 0.5) or known[:_NEAREST]


def list_languages(known: Sequence[str]) -> str:
    """Return languages for a message."""
    return ", ".join(known[:_MAX_SHOWN]) + (" .." if len(known) > _MAX_SHOWN else "")


def check_languages(
    language: str | None,
    target_language: str | None,
    known: Sequence[str],
    say: Callable[[str], None],
    *,
    is_followed: bool = False,
    num_excluded: int | None = None,
    num_tokens: int = 0,
) -> None:
    """Check the languages that were given for a model that takes none: it writes the language that it hears.

    If it knows several languages, or does not state them, the language leaves out tokens (context/language_filter.py).

    Args:
        language: Tag of the spoken language; None: not given, which AUTO is the same as.
        target_language: Tag of the language to write; None: not given.
        known: Tags of the model's languages; empty if it does not state them.
        say: Receives a line that says what a language does, unless it is the model's only one.
        is_followed: The option changes something else, so there is no line if it leaves out no token.
        num_excluded: Number of tokens that the language leaves out; None: its letters are not known.
        num_tokens: Of the vocabulary.

    Raises:
        UsageError: The model does not know the language, or would have to translate.
    """
    language = None if language == AUTO else language
    for name, tag in (("--language", language), ("--target-language", target_language)):
        if tag is not None and known and find_language(tag, known) is None:
            raise UsageError(f"{name} {tag}: this model knows {list_languages(known)} only")
    spoken = [language or "", *(known if len(known) == 1 else ())]
    if target_language is not None and find_language(target_language, spoken) is None:
        raise UsageError(f"--target-language {target_language}: this model does not translate; Canary models do")
    if language is None or len(known) == 1 or (is_followed and not num_excluded):
        return
    unchecked = "" if known else "; not checked, because this model does not state its languages"
    if num_excluded:
        say(
            f"--language {language}: {num_excluded:,} of {num_tokens:,} tokens are left out, which texts in {language} do "
            f"not have{unchecked}"
        )
    else:
        reason = "its letters are not known here" if num_excluded is None else "it leaves out no token of this model"
        say(f"--language {language}: changes nothing, because {reason}{unchecked}")
