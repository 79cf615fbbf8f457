"""The letters that a language is written with, for models that write several languages with one vocabulary. Pure.

Letters are those of Unicode's CLDR 48.2 (characters.json): the exemplar characters of the language and the auxiliary ones,
which foreign words and names in it have: é in English, q in Polish. Digits, punctuation, symbols and accents that stand alone
(combining marks) belong to every language. So do letters of no script, such as the ordinals ª and º.

For languages in other scripts than Latin, Cyrillic and Greek, the script alone counts.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache

# Languages and their small letters. Latin has a to z in all of them.
_LATIN = """
af àáâãäåæçèéêëìíîïòóôöùúûüý
az çöüğİışə
bs,hr ćčđšž
ca àáâãäåæçèéêëìíîïñòóôöøùúûüÿāăēĕīĭŀōŏœūŭ
cs àáâãäåæçèéêëìíîïñòóôöøùúûüýÿāăčďēĕěīĭľłňōŏœŕřšťūŭůž
cy àáâãäåæçèéêëìíîïñòóôöøùúûüýÿāăēĕīĭōŏœūŭŵŷẁẃẅỳ
da àáâäåæçèéêëíîïñóôöøùúûüÿœǿ
de,lb,tr ßàáâãäåæçèéêëìíîïñòóôöøùúûüÿāăēĕğīĭİıōŏœşūŭ
en,eu,id,su,uz,zu àáâãäåæçèéêëìíîïñòóôöøùúûüÿāăēĕīĭōŏœūŭ
eo ĉĝĥĵŝŭ
es àáâãäåæçèéêëìíîïñòóôöøùúûüýÿāăēĕīĭōŏœūŭ
et àáâãäåæçèéêëìíîïñòóôõöøùúûüāēīōŏœšūž
fi ßàáâãäåæçèéêëíîïðñòóôõöøùúûüýþÿāăąćċčďđēėęěğģħīįİıķĺļľłńņňŋőœŕřśŝşšţťŧūůűųźżžǥǧǩǯșțȟʒ
fr ßàáâãäåæçèéêëìíîïñòóôõöøùúûüÿāćēīĳœřšſǔ
ga áåéíóúċġḃḋḟṁṗṡṫ
gl àáâãäåæçèéêëìíîïñòóôõöøùúûüāăēĕīĭōŏœūŭɑ
ha àáâèéêìíîòóôùúûƙƴɓɗ
hu àáâãäåæçèéêëìíîïñòóôöøùúûüÿāăēĕīĭōŏőœūŭű
is áæéíðóöúýþ
it ßàáâãäåæçèéêëìíîïñòóôõöøùúûüÿœ
jv âåèéêìòù
lt àáãèéìíñòóõùúąčėęĩįšũūųžẽ
lv āčēģīķļņōŗšūž
ms,rw,so,sw
mt àèìòùċġħż
nb,nn,no àáãäåæçèéêíñòóôöøúüčđńŋšŧžǎ
nl àáâãäåæçèéêëíîïñóôöøùúûüýÿœ
pl ßàâäåæçèéêëîïóôöùûüÿąćęłńœśźż
pt àáâãäåæçèéêëìíîïñòóôõöøùúûüÿāăēĕīĭōŏœūŭ
ro àáâäåçèéêëîñöüăşţșț
sk àáâäåæçèéêëìíîïñòóôöøùúûüýÿāăčďēĕīĭĺľňōŏőœŕřšťūŭűž
sl àáâäåæçèéêëìíîïñòóôöøùúûüÿāăćčđēĕīĭōŏœšūŭž
sq çë
sr-Latn åćčđšž
sv àáâãäåæçèéëíîïñóöøúüÿāī
tk äçöüýňşž
fil,tl àáâèéêìíîñòóôùúû
vi àáâãèéêìíòóôõùúýăđĩũơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ
yo àáèéìíòóùúńǹḿṣẹọ
"""
_CYRILLIC = """
az-Cyrl абвгдежзийклмнопрстуфхцчшщъыьэюяјғҝүҹһәө
ba абвгдежзийклмнопрстуфхцчшщъыьэюяёғҙҡңҫүһәө
be абвгдежзйклмнопрстуфхцчшыьэюяёіў
bg абвгдежзийклмнопрстуфхцчшщъыьэюяѐёѝѣѫ
bs-Cyrl,sr-Cyrl абвгдежзиклмнопрстуфхцчшђјљњћџ
kk абвгдежзийклмнопрстуфхцчшщъыьэюяёіғқңүұһәө
ky абвгдежзийклмнопрстуфхцчшщъыьэюяёңүө
mk абвгдежзиклмнопрстуфхцчшѐѓѕјљњќѝџ
mn абвгдежзийклмнопрстуфхцчшщъыьэюяёҗүһӊәө
ru абвгдежзийклмнопрстуфхцчшщъыьэюяё
tg абвгдежзийклмнопрстуфхцчшщъыьэюяёғқҳҷӣӯ
tt абвгдежзийклмнопрстуфхцчшщъыьэюяёғҗқңүһәө
uk абвгдежзийклмнопрстуфхцчшщъыьэюяёєіїґ
uz-Cyrl абвгдежзийклмнопрстуфхцчшщъыьэюяёўғқҳ
"""
_GREEK = """
el ΐάέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώἀἁἂἃἄἅἆἇἐἑἒἓἔἕἠἡἢἣἤ\
ἥἦἧἰἱἲἳἴἵἶἷὂὃὄὐὑὒὓὔὕὖὗὢὣὤὥὦὧὰὲὴὶὸὺὼᾶῆῒῖῗῢῦῧῶ
"""
# Scripts, by the first word of the Unicode names of their letters, and the languages that they alone are for.
_SCRIPTS = """
ETHIOPIC am; ARABIC ar fa ks ps sd ug ur; BENGALI as bn mni; DEVANAGARI brx doi hi kok mai mr ne sa; GUJARATI gu;
HEBREW he yi; ARMENIAN hy; CJK,HIRAGANA,KATAKANA,KATAKANA-HIRAGANA,IDEOGRAPHIC ja; GEORGIAN ka; KHMER km; KANNADA kn;
HANGUL,CJK ko; LAO lo; MALAYALAM ml; MYANMAR my; ORIYA or; GURMUKHI pa; OL sat; SINHALA si; TAMIL ta; TELUGU te; THAI th;
CJK,IDEOGRAPHIC zh
"""
_NO_SCRIPT = frozenset(("COMBINING", "FEMININE", "MASCULINE", "MICRO", "MODIFIER", "VARIATION"))


@dataclass(frozen=True)
class Alphabet:
    """The letters of a language, large and small; or, if `letters` is None, all letters of its scripts."""

    letters: frozenset[str] | None
    scripts: frozenset[str] = frozenset()

    def has(self, character: str) -> bool:
        """Return False for a letter or a letter's sign that the language does not have."""
        if self.letters is not None and character in self.letters:
            return True
        if unicodedata.category(character)[0] not in "LM":
            return True
        script = unicodedata.name(character, "").partition(" ")[0]
        return script in _NO_SCRIPT or script in self.scripts

    def has_all(self, text: str) -> bool:
        return all(map(self.has, text))


def find_alphabet(tag: str) -> Alphabet | None:
    """Return the alphabet of a language in the script that its tag names (uz-Cyrl), else of its code; None if not known."""
    code, *rest = tag.split("-")
    with_scripts = (f"{code}-{part.title()}" for part in rest)
    return next((_alphabets()[name] for name in (*with_scripts, code) if name in _alphabets()), None)


@cache
def _alphabets() -> dict[str, Alphabet]:
    found: dict[str, Alphabet] = {}
    for table, shared in ((_LATIN, "abcdefghijklmnopqrstuvwxyz"), (_CYRILLIC, ""), (_GREEK, "")):
        for line in table.split("\n")[1:-1]:
            languages, _, letters = line.partition(" ")
            small = letters + shared
            # Not the capitals of more than one character, such as SS for ß.
            capitals = {"ẞ" if letter == "ß" else letter.upper() for letter in small}
            alphabet = Alphabet(frozenset(small).union(capital for capital in capitals if len(capital) == 1))
            found |= dict.fromkeys(languages.split(","), alphabet)
    for entry in _SCRIPTS.split(";"):
        scripts, *tags = entry.split()
        found |= dict.fromkeys(tags, Alphabet(None, frozenset(scripts.split(","))))
    # Serbian is written in both scripts.
    latin, cyrillic = found["sr-Latn"].letters, found["sr-Cyrl"].letters
    assert latin is not None and cyrillic is not None
    return found | {"sr": Alphabet(latin | cyrillic)}
