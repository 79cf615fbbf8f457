"""Words for numbers in several languages, and the words that join them. Pure.

A word counts if it is made of the parts of its language alone: "dreiundzwanzig", "twenty-three". Accents and hyphens do
not count.
Some of these words have other meanings too; alone they are no number (Numbers.doubtful).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    """Words of a language.

    Attributes:
        pattern: Matches a number word.
        doubtful: Number words that alone are another word, such as "one" and "second".
        joins: Words inside a number: "and", "point", "double".
        at: How "@" is said.
        dot: How "." is said.
    """

    pattern: re.Pattern[str]
    doubtful: frozenset[str]
    joins: frozenset[str]
    at: frozenset[str]
    dot: frozenset[str]

    @classmethod
    def of(cls, parts: str, doubtful: str, joins: str, at: str, dot: str, endings: str = "") -> Numbers:
        """Make it of lists of words with spaces between them; `endings` are those of ordinals."""
        found = sorted(map(folded, parts.split()), key=len, reverse=True)
        joins = f"{joins} {dot} plus dash minus"
        sets = (frozenset(map(folded, text.split())) for text in (doubtful, joins, at, dot))
        return cls(re.compile(f"(?:{'|'.join(found)})+(?:{'|'.join(endings.split())})?"), *sets)

    def is_number(self, word: str) -> bool:
        """Return True if a word, without marks around it, is a number in figures or in letters, or has one: "ten-year-old"."""
        parts = [folded(part) for part in _APART.split(word)]
        has_part = len(parts) > 1 and any(self._is_spelled(part) and part not in self.doubtful for part in parts)
        return has_part or self._is_spelled(folded(word)) or any(map(str.isnumeric, word))

    def _is_spelled(self, letters: str) -> bool:
        return letters not in self.joins and self.pattern.fullmatch(letters) is not None


_APART = re.compile(r"\W+")


def folded(text: str) -> str:
    """Return a text in small letters, without accents, hyphens and apostrophes."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


NUMBERS: Mapping[str, Numbers] = {
    "de": Numbers.of(
        "null ein eins zwei zwo drei vier fünf sechs sieben acht neun zehn elf zwölf sech sieb zig ßig dreißig "
        "zwanzig und hundert tausend million millionen milliarde milliarden erste ersten dritte dritten "
        "achte achten achter achtes",
        "ein ersten erste zig",
        "und komma doppel punkt strich schrägstrich",
        "at ät et klammeraffe",
        "punkt dot",
        "te ten ter tes ste sten ster stes",
    ),
    "en": Numbers.of(
        "zero oh nought one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred "
        "hundreds thousand thousands million millions billion billions trillion first second third fourth fifth "
        "sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth "
        "eighteenth nineteenth twentieth thirtieth fortieth fiftieth sixtieth seventieth eightieth ninetieth hundredth "
        "twenties thirties forties fifties sixties seventies eighties nineties",
        "oh ohs one ones first firsts second seconds third thirds hundreds thousands millions billions",
        "and point double triple hyphen slash",
        "at",
        "dot",
        "s es th ths",
    ),
    "es": Numbers.of(
        "cero uno una un dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieci "
        "veinte veinti treinta cuarenta cincuenta sesenta setenta ochenta noventa cien ciento cientos cientas "
        "quinientos quinientas sete nove mil millón millones primero segundo tercero",
        "un una uno primero segundo tercero sete nove cientos cientas",
        "y coma punto doble guion barra",
        "arroba",
        "punto",
    ),
    "fr": Numbers.of(
        "zéro un une deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize vingt "
        "vingts trente quarante cinquante soixante septante huitante nonante cent cents mille million millions "
        "milliard milliards et premier deuxième troisième",
        "un une neuf premier deuxième troisième",
        "et virgule double tiret",
        "arobase arobas",
        "point",
    ),
    "it": Numbers.of(
        "zero uno una un due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici "
        "quindici sedici diciassette diciotto diciannove venti vent trenta trent quaranta quarant cinquanta "
        "cinquant sessanta sessant settanta settant ottanta ottant novanta novant cento cent mille mila milione "
        "milioni miliardo miliardi primo secondo terzo",
        "un una uno sei primo secondo terzo cent",
        "e virgola punto doppio trattino",
        "chiocciola at",
        "punto",
    ),
    "nl": Numbers.of(
        "nul een één twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien twintig dertig "
        "veertig vijftig zestig zeventig tachtig negentig en honderd duizend miljoen miljard eerste tweede derde",
        "een eerste tweede derde",
        "en komma punt dubbel streepje",
        "apenstaartje at",
        "punt",
        "de ste",
    ),
    "pt": Numbers.of(
        "zero um uma dois duas três quatro cinco seis meia sete oito nove dez onze doze treze catorze quatorze "
        "quinze dezesseis dezasseis dezessete dezassete dezoito dezenove dezanove vinte trinta quarenta cinquenta "
        "sessenta setenta oitenta noventa cem cento duzentos duzentas trezentos trezentas quatrocentos quinhentos "
        "seiscentos setecentos oitocentos novecentos mil milhão milhões primeiro segundo terceiro",
        "um uma meia primeiro segundo terceiro",
        "e vírgula ponto duplo traço hífen",
        "arroba",
        "ponto",
    ),
}
