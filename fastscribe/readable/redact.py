"""Find and replace what must not be read: numbers, e-mail addresses, and names of a list. Pure.

Whatever is in doubt is redacted. Words next to each other become one: "[number]" has the time of all digits, and does not
tell how many they were. A number may go over the end of a sentence, and over fillers. Names are those of the user's list
alone: a list can be checked, and guesses from capital letters cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any
from unicodedata import category

from fastscribe.readable.fillers import FILLER_LANGUAGES, is_filler
from fastscribe.readable.number_words import NUMBERS, Numbers, folded
from fastscribe.readable.words import edit_alternatives, edit_segments, join_words, parts_of
from fastscribe.text.joining import join_texts
from fastscribe.types import Failure, Redaction, Transcript, Word

_MAX_LOCAL_PART = 4  # words of an address before "at", where nothing else shows its begin
_ADDRESS_ENDS_BEFORE = """
is am it its at to my me i the address email mail e emails an on ist bin ich die meine adresse es mi la correo le mon
est mia e indirizzo mijn adres meu endereco
"""
_TOP_DOMAINS = """
com net org edu gov info biz io co me us uk de at ch fr es it nl be pt br eu se no dk fi pl ru ca au jp cn
app dev ai tv xyz online site shop store cloud cc int mil mx ar cl gr cz hu ro tr in za nz kr ie lu
"""
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\U0010ffff]")
_NOT_IN_ADDRESS, _DOMAINS = frozenset(_ADDRESS_ENDS_BEFORE.split()), frozenset(_TOP_DOMAINS.split())


@dataclass(frozen=True)
class Redactor:
    """What to redact.

    Attributes:
        language: Of the words for numbers, one of NUMBERS; None: only a text as a whole can be redacted.
        has_numbers: Redact numbers and addresses.
        names: Names, each folded().
        beginnings: Beginnings of names that end between two of their parts: "annemarie" of "Anne-Marie Le Pen".
        wide_names: Names in scripts without spaces, which are looked for inside words.
    """

    language: str | None
    has_numbers: bool
    names: frozenset[str] = frozenset()
    beginnings: frozenset[str] = frozenset()
    wide_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, language: str | None, has_numbers: bool, names: Iterable[str]) -> Redactor:
        """Make a redactor.

        Args:
            language: As the attribute.
            has_numbers: As the attribute.
            names: Names of one or more words.
        """
        beginnings: set[str] = set()
        listed: set[str] = set()
        for name in names:
            *begun, whole = accumulate(map(folded, _parts(name)), initial="")
            listed.add(whole)
            beginnings.update(begun)
        listed, beginnings = listed - {""}, beginnings - {""}
        wide = tuple(name for name in listed if _WITHOUT_SPACES.search(name))
        return cls(
            language if language in NUMBERS else None, has_numbers, frozenset(listed), frozenset(beginnings), wide
        )

    @property
    def _words(self) -> Numbers:
        assert self.language is not None, "numbers of no known language"
        return NUMBERS[self.language]

    def redact(self, transcript: Transcript) -> Transcript:
        """Return the transcript without what is to be redacted: in its words, segments, alternatives and manifest row.

        Its tokens go too: they spell the words. `redacted` lists the places if the times of the words are known.

        Args:
            transcript: Each of its segments has its own words.
        """
        words = transcript.words
        kinds = self._kinds_by_speaker(words)
        by_word = {id(word): kind for word, kind in zip(words, kinds, strict=True)}
        spans = _spans(words, kinds)
        redacted = edit_segments(transcript, lambda own: replaced(own, [by_word[id(word)] for word in own]))
        if self.redact_text(redacted.text) != redacted.text:  # a row's text that is not that of its words
            redacted = replace(redacted, text=join_texts(segment.text for segment in redacted.segments))
        redacted = edit_alternatives(redacted, lambda own: self._alternative(own, spans))
        redacted = replace(redacted, nbest=tuple(replace(one, text=join_words(one.words)) for one in redacted.nbest))
        removed = tuple(
            word for word in redacted.removed_words if not _is_within(word, spans) and self.kinds([word]) == [None]
        )
        audio = replace(transcript.audio, row=self.redact_row(transcript.audio.row))
        known = (
            tuple(sorted([*spans, *(transcript.redacted or ())], key=lambda one: one[1:]))
            if transcript.is_timed
            else None
        )
        return replace(redacted, tokens=(), audio=audio, removed_words=removed, redacted=known)

    def redact_failure(self, failure: Failure) -> Failure:
        """Return a failure with its manifest row redacted, and names in its message, which may quote it. The path stays."""
        names, path = replace(self, has_numbers=False), failure.path
        parts = failure.message.split(path) if path else [failure.message]
        message = path.join(map(names.redact_text, parts))
        return replace(failure, message=message, row=self.redact_row(failure.row))

    def redact_row(self, row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return a manifest row: `text` is redacted as a transcript is, and names in all other texts but the path.

        Known subtitles go: they are the text once more, with markup inside words.
        """
        if row is None:
            return None
        names = replace(self, has_numbers=False)
        return {
            key: value if key == "audio_filepath" else (self if key == "text" else names)._redact_value(value)
            for key, value in row.items()
            if key != "subtitles"
        }

    def _redact_value(self, value: Any) -> Any:
        """Return a value of JSON with its texts redacted; keys of objects stay."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, Mapping):
            return {key: self._redact_value(item) for key, item in value.items()}
        return [self._redact_value(item) for item in value] if isinstance(value, list | tuple) else value

    def redact_text(self, text: str) -> str:
        """Return a text with its lines and spaces as they are, unless something is redacted."""
        if self.has_numbers and self.language is None:  # of a failed recording: its numbers cannot be told
            return "[redacted]"
        words = [Word(word, 0.0, 0.0, 0.0) for word in text.split()]
        kinds = self.kinds(words)
        return join_words(replaced(words, kinds)) if any(kinds) else text

    def kinds(self, words: Sequence[Word]) -> list[str | None]:
        """Return what each of the words of one speaker is."""
        found: list[str | None] = [None] * len(words)
        spoken = [
            " ".join(parts_of(part).core for part in f"{word.text} {word.original or ''}".split()) for word in words
        ]
        if self.has_numbers:
            for at in self._numbers(spoken):
                found[at] = "number"
            for at in self._addresses([word.text for word in words]):
                found[at] = "email"
        for at in self._names(words):
            found[at] = found[at] if found[at] == "email" else "name"
        return found

    def _kinds_by_speaker(self, words: Sequence[Word]) -> list[str | None]:
        """Return what each word is. A speaker's number may go on after another one's words."""
        found: list[str | None] = [None] * len(words)
        for speaker in dict.fromkeys(word.speaker for word in words):
            own = [at for at, word in enumerate(words) if word.speaker == speaker]
            for at, kind in zip(own, self.kinds([words[at] for at in own]), strict=True):
                found[at] = kind
        return found

    def _alternative(self, words: Sequence[Word], spans: Sequence[Redaction]) -> list[Word]:
        """Redact an alternative: what it says itself, and what was said while something of the best text is redacted."""
        kinds = self.kinds(words)
        for at, word in enumerate(words):
            if kinds[at] is None:
                kinds[at] = next((one.kind for one in spans if _overlaps(word, one)), None)
        return replaced(words, kinds)

    def _numbers(self, spoken: Sequence[str]) -> set[int]:
        """Return the positions of number words and of what joins them."""
        language, numbers = self.language or "", self._words

        def joins(text: str) -> bool:
            is_sound = language in FILLER_LANGUAGES and is_filler(text, language)
            return not text or is_sound or folded(text) in numbers.joins

        found: set[int] = set()
        run: list[int] = []
        for at, text in enumerate([*spoken, "."]):
            if any(map(numbers.is_number, text.split())):
                run.append(at)
            elif not (run and joins(text)) or at == len(spoken):
                while run and joins(spoken[run[-1]]) and not numbers.is_number(spoken[run[-1]]):
                    run.pop()
                is_certain = len([one for one in run if not joins(spoken[one])]) > 1
                if is_certain or any(folded(spoken[one]) not in numbers.doubtful for one in run):
                    found.update(run)
                run = []
            else:
                run.append(at)
        return found

    def _addresses(self, texts: Sequence[str]) -> set[int]:
        """Return the positions of the words of e-mail addresses, written or spelled out."""
        cores = [parts_of(text).core for text in texts]
        found = {at for at, text in enumerate(texts) if "@" in text}
        for at, core in enumerate(cores):
            if folded(core) not in self._words.at:
                continue
            end = self._domain_end(cores, at + 1)
            if end is None:
                continue
            first = self._local_part(texts, cores, at)
            found.update(range(first, end))
        return found

    def _domain_end(self, cores: Sequence[str], first: int) -> int | None:
        """Return the end of a domain that begins at a word: "gmail dot com" or "gmail.com"; None if there is none."""
        dot = self._words.dot
        end = None
        for at in range(first, min(first + 8, len(cores))):
            if cores[at].lower().rpartition(".")[2] in _DOMAINS and "." in cores[at]:
                return at + 1
            if at > first and folded(cores[at - 1]) in dot and folded(cores[at]) in _DOMAINS:
                end = at + 1
            elif end is not None and folded(cores[at]) not in dot:
                break
        return end

    def _local_part(self, texts: Sequence[str], cores: Sequence[str], at: int) -> int:
        """Return the first word of an address whose "at" is a word: everything back to a mark or to a word of no address."""
        numbers = self._words
        first = at
        while first > 0 and at - first < 16:
            before = cores[first - 1]
            is_joined = first < at and (folded(before) in numbers.dot or folded(cores[first]) in numbers.dot)
            is_spelled = len(before) == 1 or numbers.is_number(before)
            if not before or parts_of(texts[first - 1]).closing or folded(before) in _NOT_IN_ADDRESS - numbers.dot:
                break
            if not (is_joined or is_spelled) and at - first >= _MAX_LOCAL_PART:
                break
            first -= 1
        return first

    def _names(self, words: Sequence[Word]) -> set[int]:
        """Return the positions of the words of names: however they are spaced, in another case, and without accents."""
        found: set[int] = set()
        forms = [_forms(word) for word in words]
        for at in range(len(words)):
            if forms[at]:
                found.update(range(at, self._name_end(words, forms, at)))
            if any(name in form for name in self.wide_names for form in forms[at]):
                found.add(at)
        return found

    def _name_end(self, words: Sequence[Word], forms: Sequence[set[str]], first: int) -> int:
        """Return the end of the longest name that begins with a word; `first` if none does. It may go over fillers."""
        end, begun = first, {""}
        for at in range(first, len(words)):
            longer = {before + form for before in begun for form in forms[at]}
            if not self.names.isdisjoint(longer):
                end = at + 1
            goes_on = longer & self.beginnings
            begun = goes_on | begun if self._is_between(words[at]) else goes_on
            if not begun:
                break
        return end

    def _is_between(self, word: Word) -> bool:
        """Return True for a word of marks alone, and for a filler."""
        core = parts_of(word.text).core
        has_fillers = self.language in FILLER_LANGUAGES
        return not folded(core) or (has_fillers and is_filler(core, self.language or ""))


def _forms(word: Word) -> set[str]:
    """Return how a word may stand in a list of names: as it is, without a final s, and its parts around marks."""
    forms = set()
    for text in (word.text, *(word.original or "").split(), word.original or ""):
        for part in (text, *_parts(text, "'’"), *_parts(text)):
            letters = folded(part)
            forms |= {letters, letters.removesuffix("s")}
    return forms - {""}


def _parts(text: str, kept: str = "") -> list[str]:
    """Return the stretches of letters and their marks, and of the marks to keep."""
    if text.isalnum():
        return [text]
    return "".join(char if char.isalnum() or char in kept or category(char)[0] == "M" else " " for char in text).split()


def replaced(words: Sequence[Word], kinds: Sequence[str | None]) -> list[Word]:
    """Return words with each stretch of one kind as one word, such as "[number]", with the marks around it."""
    found: list[Word] = []
    for kind, own in _stretches(words, kinds):
        found += own if kind is None else [_mask(own, kind)]
    return found


def _stretches(words: Sequence[Word], kinds: Sequence[str | None]) -> Iterator[tuple[str | None, list[Word]]]:
    """Yield the words of one kind that follow each other. A mark ends a name, but not a number, which may be said in parts."""
    own: list[Word] = []
    own_kind: str | None = None
    for word, kind in zip(words, kinds, strict=True):
        if own and (kind != own_kind or (kind == "name" and parts_of(own[-1].text).closing)):
            yield own_kind, own
            own = []
        own_kind = kind
        own.append(word)
    if own:
        yield own_kind, own


def _mask(words: Sequence[Word], kind: str) -> Word:
    opening, closing = parts_of(words[0].text).opening, parts_of(words[-1].text).closing
    confidence = sum(word.confidence for word in words) / len(words)
    return Word(
        f"{opening}[{kind}]{closing}",
        words[0].start_s,
        max(word.end_s for word in words),
        confidence,
        any(word.missing for word in words),
        words[0].speaker,
    )


def _spans(words: Sequence[Word], kinds: Sequence[str | None]) -> list[Redaction]:
    """Return the times of what is redacted, in order."""
    spans = [
        Redaction(kind, own[0].start_s, max(word.end_s for word in own))
        for kind, own in _stretches(words, kinds)
        if kind is not None
    ]
    return sorted(spans, key=lambda one: one[1:])


def _overlaps(word: Word, span: Redaction) -> bool:
    """Return True if a word and a place share time, or if their times are not known (NaN)."""
    return not (word.start_s >= span.end_s or word.end_s <= span.start_s)


def _is_within(word: Word, spans: Sequence[Redaction]) -> bool:
    return any(_overlaps(word, span) for span in spans)
