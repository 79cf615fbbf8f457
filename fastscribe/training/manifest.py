"""Read training manifests: NeMo's JSON lines (audio_filepath, duration, text, optionally offset), or a folder.

A folder holds recordings with a text file of the same name beside each (`a.wav`, `a.txt`).

A wrong row (no JSON, no duration, a missing recording) is an error that names the line, because the user has to correct it.
An unusable row (no text, too long, too many tokens a second) is left out and counted by reason. In a folder the headers of
recordings are read; nothing else of them is opened. No tensors.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe._system.safe_open import safe_read
from fastscribe.audio.failures import system_problem
from fastscribe.audio.folders import walk
from fastscribe.audio.formats import CONTAINER_EXTENSIONS, is_audio_name
from fastscribe.audio.json_lines import NotJsonLines, numbered_rows
from fastscribe.audio.manifest import parse_row, row_source
from fastscribe.audio.probe import probe
from fastscribe.config import Options
from fastscribe.errors import AudioError, ManifestError, UsageError
from fastscribe.training.bpe import clean_text
from fastscribe.types import Source

# An example's ids, or None where the vocabulary cannot write its text.
Encode = Callable[["Example"], "tuple[int, ...] | None"]
# What a row asks an attention decoder for; None for other models. Raises ValueError that says what is wrong with the row.
ReadRequest = Callable[[Mapping[str, Any]], "Request | None"]
_MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True)
class Request:
    """What an attention decoder's prompt asks for. Languages are the checkpoint's own names."""

    source_language: str
    target_language: str
    pnc: bool = True

    @property
    def options(self) -> Options:
        """The options of `transcribe` that ask for this."""
        return Options(language=self.source_language, target_language=self.target_language, pnc=self.pnc)


@dataclass(frozen=True)
class Example:
    """One span of a recording and its transcript. `text` is cleaned; `tokens` is empty until `tokenise`."""

    path: str  # the file to open
    text: str
    duration_s: float
    offset_s: float = 0.0
    tokens: tuple[int, ...] = ()
    repeat: float = 1.0  # how often an epoch has it: its manifest's weight
    request: Request | None = None  # what an attention decoder is asked for


@dataclass(frozen=True)
class ManifestPart:
    """A manifest. Raises UsageError.

    Attributes:
        repeat: how often an epoch repeats it; 0.5 is every other example.
        decides: of several manifests to validate with, those that decide decide which model is best; if none does, all do.
    """

    path: str
    repeat: float = 1.0
    decides: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.repeat < math.inf:
            raise UsageError(f"{self.path}: repeat {self.repeat!r}: not a number above 0")


@dataclass(frozen=True)
class ExampleLimits:
    """Limits of usable examples. Raises UsageError."""

    min_duration_s: float = 0.3
    max_duration_s: float = 30.0
    max_tokens: int | None = None
    max_tokens_per_s: float = 25.0  # twice an encoder's usual 12.5 frames a second, faster than speech
    extra_tokens: int = 0  # of each example, which are not its text's: prompt and end of an attention decoder

    def __post_init__(self) -> None:
        if not 0 <= self.min_duration_s <= self.max_duration_s < math.inf:
            problem = "not 0 <= min_duration_s <= max_duration_s"
            raise UsageError(
                f"min_duration_s {self.min_duration_s!r}, max_duration_s {self.max_duration_s!r}: {problem}"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens {self.max_tokens!r}: not a number from 1")
        if not self.max_tokens_per_s > 0:
            raise UsageError(f"max_tokens_per_s {self.max_tokens_per_s!r}: not a number above 0")


class LeftOut(NamedTuple):
    examples: int
    duration_s: float


@dataclass(frozen=True)
class Corpus:
    examples: tuple[Example, ...]
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)  # by reason

    @property
    def duration_s(self) -> float:
        return sum(example.duration_s for example in self.examples)

    def __str__(self) -> str:
        """Summarise the corpus in one line."""
        kept = f"{len(self.examples):,} examples, {self.duration_s / 3600:.2f} h"
        reasons = (
            f"{out.examples:,} {reason}" + (f" ({out.duration_s / 60:.1f} min)" if out.duration_s else "")
            for reason, out in self.left_out.items()
        )
        return f"{kept}; left out: {', '.join(reasons)}" if self.left_out else kept


def _no_request(row: Mapping[str, Any]) -> None:
    return None


def read_manifests(
    parts: Iterable[ManifestPart],
    limits: ExampleLimits,
    purpose: str = "train on",
    read_request: ReadRequest = _no_request,
) -> Corpus:
    """Read every usable row of all manifests in order, without tokens.

    Args:
        purpose: what the manifests are for, in error messages.
        read_request: reads what a row asks an attention decoder for.

    Raises:
        UsageError: a manifest cannot be read, or no row is usable.
        ManifestError: a row is wrong.
    """
    examples = [
        example
        for part in parts
        for example in (_folder_examples if os.path.isdir(part.path) else _examples)(part, read_request)
    ]
    corpus = _filter_out(((example, _why_unusable(example, limits)) for example in examples), {})
    if not corpus.examples:
        raise UsageError(f"nothing to {purpose}: {corpus}")
    return corpus


def tokenise(corpus: Corpus, encode: Encode, limits: ExampleLimits) -> Corpus:
    """Add tokens, and leave out examples with too many. Raises UsageError if none is left."""
    encoded = ((example, encode(example)) for example in corpus.examples)
    with_reasons = (
        (replace(example, tokens=ids or ()), _why_tokens_unusable(example, ids, limits)) for example, ids in encoded
    )
    tokenised = _filter_out(with_reasons, corpus.left_out)
    if not tokenised.examples:
        raise UsageError(f"nothing to train on: {tokenised}")
    return tokenised


def _filter_out(with_reasons: Iterable[tuple[Example, str | None]], left_out: Mapping[str, LeftOut]) -> Corpus:
    """Keep the examples without a reason against them, and add the reasons to those counted before."""
    kept, reasons = [], dict(left_out)
    for example, reason in with_reasons:
        if reason is None:
            kept.append(example)
        else:
            before = reasons.get(reason, LeftOut(0, 0.0))
            reasons[reason] = LeftOut(before.examples + 1, before.duration_s + example.duration_s)
    return Corpus(tuple(kept), reasons)


def _why_unusable(example: Example, limits: ExampleLimits) -> str | None:
    if not example.text:
        return "without text"
    if example.duration_s < limits.min_duration_s:
        return f"shorter than {limits.min_duration_s:g} s"
    if example.duration_s > limits.max_duration_s:
        return f"longer than {limits.max_duration_s:g} s"
    return None


def _why_tokens_unusable(example: Example, tokens: tuple[int, ...] | None, limits: ExampleLimits) -> str | None:
    if not tokens:
        return "with letters that the vocabulary lacks" if tokens is None else "without text"
    if limits.max_tokens is not None and len(tokens) > limits.max_tokens:
        return f"of more than {limits.max_tokens} tokens"
    if len(tokens) - limits.extra_tokens > limits.max_tokens_per_s * example.duration_s:
        return f"of more than {limits.max_tokens_per_s:g} tokens a second"
    return None


def _examples(part: ManifestPart, read_request: ReadRequest) -> Iterator[Example]:
    try:
        with open(part.path, "rb") as lines:
            for number, line in numbered_rows(lines):
                yield _example(part, number, line, read_request)
    except OSError as error:
        raise UsageError(f"{part.path}: {system_problem(error)}") from error
    except NotJsonLines as error:
        raise UsageError(f"{part.path}: {error}") from None


def _folder_examples(part: ManifestPart, read_request: ReadRequest) -> Iterator[Example]:
    """Yield the paired recordings. Raises UsageError if one or its text cannot be read, or there is no pair."""
    texts = {}
    recordings, containers = [], []
    for name in walk(part.path):
        if isinstance(name, OSError):
            raise UsageError(f"{name.filename}: {system_problem(name)}")
        stem, extension = os.path.splitext(name)
        if extension.lower() == ".txt":
            texts[stem] = os.path.join(part.path, name)
        elif extension[1:].lower() in CONTAINER_EXTENSIONS:
            containers.append((stem, os.path.join(part.path, name)))
        elif is_audio_name(name):
            recordings.append((stem, os.path.join(part.path, name)))
    known = {stem for stem, _ in recordings}
    # A video beside the sound that was taken from it is the same recording.
    recordings += [(stem, path) for stem, path in containers if stem not in known]
    pairs = [(path, texts[stem]) for stem, path in recordings if stem in texts]
    if not pairs:
        raise UsageError(f"{part.path}: no recording here has a .txt of the same name beside it")
    try:
        request = read_request({})
    except ValueError as error:
        raise UsageError(f"{part.path}: {error}") from error
    for path, text_path in pairs:
        yield replace(_paired_example(part, path, text_path), request=request)
    for path in (path for stem, path in recordings if stem not in texts):
        yield Example(path, "", 0.0, repeat=part.repeat)  # counted only: there may be a million, so none is opened


def _paired_example(part: ManifestPart, path: str, text_path: str) -> Example:
    try:
        text = safe_read(Path(text_path), _MAX_TEXT_BYTES).decode("utf-8-sig")
        duration_s = probe(Source(path, path, path)).duration_s
    except AudioError as error:
        raise UsageError(f"{error}; put it right, or take its .txt away") from error
    except OSError as error:
        raise UsageError(f"{text_path}: {system_problem(error)}") from error
    except ValueError as error:
        problem = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(f"{text_path}: {problem}") from error
    return Example(path, clean_text(text), duration_s, repeat=part.repeat)


def _example(part: ManifestPart, number: int, line: bytes, read_request: ReadRequest) -> Example:
    row = parse_row(part.path, number, line)
    source, text = row_source(part.path, number, row), row.get("text")
    if not isinstance(text, str):
        raise ManifestError(part.path, number, "no text" if text is None else f"text is {text!r:.40}, not a string")
    if source.track:
        raise ManifestError(
            part.path, number, f"audio_track {source.track}: training reads the first track: extract this one"
        )
    try:
        request = read_request(row)
    except ValueError as error:
        raise ManifestError(part.path, number, str(error)) from error
    return Example(
        path=_existing_path(part.path, number, source),
        text=clean_text(text),
        duration_s=_duration_s(part.path, number, source),
        offset_s=source.offset_s or 0.0,
        repeat=part.repeat,
        request=request,
    )


def _duration_s(manifest: str, number: int, source: Source) -> float:
    if source.duration_s is None:
        raise ManifestError(manifest, number, "no duration, which planning batches needs")
    return source.duration_s


def _existing_path(manifest: str, number: int, source: Source) -> str:
    try:
        if isinstance(source.file, str) and os.path.isfile(source.file):
            return source.file
    except ValueError:  # a null character in it
        pass
    raise ManifestError(manifest, number, f"no such recording: {source.file!r}")


def repeat_examples(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Repeat each example as often as its manifest says; a fractional repeat adds one at regular intervals."""
    repeated: list[Example] = []
    owed: dict[float, float] = {}
    for example in examples:
        owed[example.repeat] = owed.get(example.repeat, 0.0) + example.repeat
        times = math.floor(owed[example.repeat] + 1e-9)
        owed[example.repeat] -= times
        repeated.extend([example] * times)
    return tuple(repeated)


def count_by_share(examples: Sequence[Example], *, seed: int, share: float) -> int:
    """Return how many examples `split_validation` would take by that share; for few sentences often none."""
    return sum(_hash_fraction(_sentence(example.text), seed) < share for example in examples)


def has_two_sentences(examples: Sequence[Example]) -> bool:
    """Return True if `split_validation` can leave examples on both sides."""
    return len({_sentence(example.text) for example in examples}) > 1


def split_validation(
    examples: Sequence[Example], *, seed: int, share: float | None = None, count: int | None = None
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split the examples so that no sentence is on both sides, whatever its speaker, case and punctuation.

    The side of a sentence depends on the sentence and the seed. With `share`, a corpus added later moves none.

    Args:
        share: share of the sentences, approximately. Give this or `count`.
        count: maximum number of examples, as whole sentences; if every sentence has more, the rarest one is taken.

    Returns:
        (training, validation).

    Raises:
        UsageError: either side would be empty.
    """
    if (share is None) == (count is None):
        raise UsageError("a validation set needs either a share or a count")
    keys = [_sentence(example.text) for example in examples]
    hashes = {key: _hash_fraction(key, seed) for key in keys}
    if count is not None:
        chosen = _whole_sentences(Counter(keys), hashes, count)
    else:
        chosen = {key for key in hashes if hashes[key] < (share or 0)}
    training = tuple(example for example, key in zip(examples, keys, strict=True) if key not in chosen)
    validation = tuple(example for example, key in zip(examples, keys, strict=True) if key in chosen)
    if not training or not validation:
        requested = f"share {share}" if count is None else f"count {count}"
        raise UsageError(f"validation {requested} of {len(examples)} examples leaves none on one side")
    return training, validation


def _whole_sentences(sizes: Mapping[str, int], hashes: Mapping[str, float], count: int) -> set[str]:
    if count < 1:
        return set()
    chosen: set[str] = set()
    for key in sorted(sizes, key=lambda key: (hashes[key], key)):
        if sizes[key] <= count:
            chosen.add(key)
            count -= sizes[key]
    return chosen or set(sorted(sizes, key=lambda key: (sizes[key], hashes[key], key))[:1])


def _sentence(text: str) -> str:
    """The letters and digits of a text, which identify its sentence."""
    return "".join(char for char in text.casefold() if char.isalnum())


def _hash_fraction(key: str, seed: int) -> float:
    """Hash a sentence to [0, 1), the same in every run."""
    digest = hashlib.blake2b(key.encode(), digest_size=8, key=f"{seed}".encode()).digest()
    return int.from_bytes(digest, "big") / 2**64
