"""What of a text is spoken, and by whom. Pure.

Markup, sounds in brackets, music signs, the dash before a line, and times and speakers' names before lines are shown but not
spoken. What stands before a colon may be a name or words (`Anna: Hi.`, `Remember: never ..`): capitals and how often it comes
tell, as _labels() says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from fastscribe.results.formats.cue_markup import (
    DASHES,
    LEADING_MARKS,
    MUSIC,
    OTHER_BRACKETS,
    SOUNDS,
    SQUARE_BRACKETS,
)

_NO_LETTER = "\u2060"  # a word joiner
_BRACKETS = re.compile(rf"{SQUARE_BRACKETS}|({OTHER_BRACKETS})")
_MAX_SOUND_WORDS = 4  # in a line in round brackets; more may be spoken
_MARKS = frozenset(DASHES + MUSIC + "*~_•…<>|/\\.,:;!?\"'")
_LEADING = re.compile(rf"\A[{LEADING_MARKS}\s]+")
_CLOCK = r"\d{1,3}(?::\d\d){1,2}(?:[.,]\d{1,3})?"  # as other tools and people write when a line begins
_TIME = re.compile(rf"\A[\[(]{_CLOCK}[\])]\s*")
# A name with a colon, and perhaps a time before it; or a name and a time that are the whole line. A bold name may have a colon.
_LABEL = re.compile(
    r"(\*\*[^\n]{1,36}?\*\*|[^:：\n]{1,40}?)"
    rf"(?:\s*([\[(]{_CLOCK}[\])]\s*)?(?::(?=\s|$)|：)|(?:\s*[\[(]|\s\s+)({_CLOCK})[\])]?\s*$)"
)
_MAX_LABEL_WORDS = 6  # The Right Honourable John Smith MP
# In Markdown: a name, whose colon may be bold too, emphasis but that of names, and characters that are no markup.
_BOLD_NAME = re.compile(r"\A\*\*((?:\\.|[^*\\\n]){1,36}?)(?:\*\*:|:\*\*)(?!\S)")
_HEADING = re.compile(r"#{1,6}\s")
_EMPHASIS = re.compile(
    r"(\\.|^\*\*(?:\\.|[^*\\\n]){1,36}\*\*:(?!\S))|(?<!\*)(\*{1,3})(?![\s*])([^*\\\n]*(?:\\.[^*\\\n]*){0,99})(?<!\s)\2(?!\*)"
    r"|(?<!\w)(_{1,3})(?![\s_])([^_\\\n]*(?:\\.[^_\\\n]*){0,99})(?<!\s)\4(?!\w)",
    re.MULTILINE,
)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_OWN_NAME = re.compile(r"(?i:channel|speaker) \d+")  # of a speaker without a name: ours (--speakers), or another tool's


def spoken_cues(cues: Sequence[Sequence[str]], names: Sequence[Sequence[str]]) -> tuple[list[str], list[str | None]]:
    """Return the words of each cue, separated by single spaces, and its speaker's name: "" without one, None if it has several.

    `names` are those in the markup of each. In cues without any, they stand before lines.
    """
    texts = [SOUNDS.sub(" ", SOUNDS.sub(" ", "\n".join(lines))) for lines in cues]  # twice: ([music])
    lines = [[_LEADING.sub("", line) for line in one.split("\n")] for one in texts]
    unnamed = [one for own, one in zip(names, lines, strict=True) if not own]
    unnamed_lines = [line for one in unnamed for line in one if line]
    first = _LABEL.match(unnamed_lines[0]) if unnamed_lines else None
    labels = _labels(unnamed_lines, len(unnamed), begins_with_name=first is not None and first[0].endswith(":"))
    words, speakers = list[str](), list[str | None]()
    for own, one in zip(names, lines, strict=True):
        words.append(" ".join(word for line in one for word in _words(line, set(own) or labels)))
        speakers.append(_name_in(own or [_parted(line, labels)[0] for line in one if line]))
    return words, speakers


def _name_in(names: Sequence[str]) -> str | None:
    """Return the name of a cue's speaker, of the names of its lines; None if they have several."""
    return None if set(names) - {"", *names[:1]} else "".join(names[:1])


def without_markup(text: str) -> str:
    """Return Markdown without headings, times and emphasis but that of names. Lines keep their numbers.

    The only bold name of a text is emphasis, unless a time stands before it.
    """
    lines = ["" if _HEADING.match(line) else line for line in text.splitlines()]
    untimed = [_TIME.sub("", line) for line in lines]
    is_timed = [line != own for line, own in zip(lines, untimed, strict=True) if _BOLD_NAME.match(own)]
    name = r"\1:" if is_timed == [False] else r"**\1**:"
    text = "\n".join(_BOLD_NAME.sub(name, line) for line in untimed)
    for _ in range(2):  # italics in bold
        text = _EMPHASIS.sub(r"\1\3\5", text)
    return _ESCAPED.sub(r"\1", text)


def without_sounds(text: str) -> str:
    """Return a text of as many words, in which sounds have no letters.

    These are text in square brackets, and a line of other brackets alone with a few words.
    """

    def without_letters(found: re.Match[str]) -> str:
        return found[0] if found[1] and not is_sound else re.sub(r"\S", _NO_LETTER, found[0])

    lines = list[str]()
    for line in text.splitlines():
        is_alone = not any(map(str.isalnum, _BRACKETS.sub("", line)))
        is_sound = is_alone and len(line.split()) <= _MAX_SOUND_WORDS
        lines.append(_BRACKETS.sub(without_letters, line))
    return "\n".join(lines)


def untimed_lines(text: str) -> list[str]:
    """Return the lines of a text without the times before them."""
    return [_TIME.sub("", line.lstrip()) for line in text.splitlines()]


def without_names(text: str) -> tuple[str, list[str | None]]:
    """Return a text without the speakers' names before its lines, as `-f txt` writes them, and who speaks each line.

    A name may be bold, as `-f md` writes it, or stand on a line of its own. A line without one is of the speaker before. None:
    before the first name, and a sound without a name, unless the speaker goes on in the next line. Times before lines and
    names, and behind names, are left out too.
    """
    lines = untimed_lines(text)
    num_spoken = sum(any(map(str.isalnum, _BRACKETS.sub("", _unlabelled(line)))) for line in lines)
    labels = _labels(lines, max(2, num_spoken))
    speaker, speakers = None, []
    parted = [_parted(line, labels) for line in lines]
    for (name, own), (next_name, after) in pairwise([*parted, ("", "")]):
        speaker = _LEADING.sub("", name).removesuffix("**") or speaker
        is_sound = own and not name and not any(map(str.isalnum, without_sounds(own)))
        speakers.append(None if is_sound and (next_name or not after) else speaker)
    return "\n".join(own for _, own in parted), speakers


def _parted(line: str, labels: set[str]) -> tuple[str, str]:
    """Return the speaker's name before a line, "" without one, and the rest of the line."""
    label = _LABEL.match(line)
    return (label[1], line[label.end() :].lstrip()) if label and label[1] in labels else ("", line)


def _unlabelled(line: str) -> str:
    """Return a line without what may be a name."""
    label = _LABEL.match(line)
    return line[label.end() if label else 0 :].lstrip()


def _labels(lines: Sequence[str], num_lines: int, begins_with_name: bool = False) -> set[str]:
    """Return the speakers' names among what stands before a colon at the begin of a line. Of cues, the first may have one.

    If names are bold, only these are names.
    """
    found = [label for line in lines if (label := _LABEL.match(line))]
    counts = Counter(label[1] for label in found)
    timed = [label[1] for label in found if label[2] or label[3]]
    if bold := {label for label in counts if label.startswith("**") and label.endswith("**")}:
        return bold
    names = {label for label in counts if len(label.split()) <= _MAX_LABEL_WORDS and any(map(str.isalpha, label))}
    if len(found) >= num_lines > 1:  # as our own texts of dialogues are
        return names
    has_capitals = any(text != text.lower() for text in map(_unlabelled, lines))
    words = {
        label[1] for label in found if has_capitals and _unlabelled(label.string)[:1].islower()
    }  # Remember: never ..
    # The minutes of a call, say, with a name before each line; or the subtitles of a dialogue.
    is_named = len(found) * 2 > num_lines or (begins_with_name and len(counts) > 1)
    if len(counts) == len(found):  # each comes once
        is_named = is_named and len(found) > 1 and not words
    repeated = {label for label in names if counts[label] > 1}
    named = names if is_named else set(timed if len(timed) > 1 else ())
    if sum(_is_label(label, True, False) for label in repeated) > 1:  # others may say something once
        named = named | (names - repeated - words)
    return {label for label in names if _is_label(label, label in repeated, label in named)}


def _is_label(label: str, is_repeated: bool, is_named: bool) -> bool:
    """Return True for a speaker's name: one of our own, in capitals, without small initials, or one of a text full of names.

    Words that come again, such as "he said", are names in such a text alone; so are those of a script without capitals.
    """
    if label.isupper() or _OWN_NAME.fullmatch(label):
        return True
    is_small = [word[0].islower() for word in label.split()]
    if any(is_small):  # of Ursula von der Leyen neither the first nor the last
        return is_named and (is_repeated or not (is_small[0] or is_small[-1]))
    return is_named or (is_repeated and label != label.lower())


def _words(line: str, labels: set[str]) -> list[str]:
    return [word.strip(MUSIC[:-1]) for word in _parted(line, labels)[1].split() if not _MARKS.issuperset(word)]
