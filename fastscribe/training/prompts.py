"""The tokens that an attention decoder (Canary) learns from an example: its prompt, its text and the end token.

The prompt is the one that `transcribe` gives: decode/prompt.py makes both. A manifest row says what it asks for, in NeMo's
fields (source_lang, target_lang, taskname, pnc). A row that asks for what no option of `transcribe` does is an error.

Texts are encoded by the vocabulary of their language: an aggregate has one for each, other tokenizers have one for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from fastscribe.checkpoint.value import Checkpoint
from fastscribe.decode.prompt import Prompt, known_languages, make_prompt
from fastscribe.errors import UsageError
from fastscribe.languages import find_language, language_tag, list_languages, nearest_languages
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.training.bpe import TextChanges, TextEncoder
from fastscribe.training.corpus import Request

_YES, _NO = ("yes", "true", "1", "pnc", "<|pnc|>"), ("no", "false", "0", "nopnc", "<|nopnc|>")
_TRANSCRIBE, _TRANSLATE = (
    ("asr", "transcribe", "<|transcribe|>"),
    ("ast", "translate", "s2t_translation", "<|translate|>"),
)
_SPOKEN, _WRITTEN = ("source_lang", "lang", "language"), ("target_lang",)  # fields of a row, the first that is there
_ANY_LANGUAGE = ""
# What a prompt of the second form says besides, and the only answer that `transcribe` gives to it.
_FIXED = {
    "itn": ("no", "false", "0", "noitn", "<|noitn|>"),
    "timestamp": ("no", "false", "0", "notimestamp", "<|notimestamp|>"),
    "diarize": ("no", "false", "0", "nodiarize", "<|nodiarize|>"),
    "emotion": ("<|emo:undefined|>",),
    "decodercontext": ("",),
}


@dataclass(frozen=True)
class PromptReader:
    """Reads the request of a manifest's row, or of a recording in a folder, whose row is empty.

    Attributes:
        known: the checkpoint's languages.
        language: the language of rows that name none; None: they have to.
        has_fixed: the prompt has the fields of `_FIXED`.
    """

    known: tuple[str, ...]
    language: str | None
    has_fixed: bool

    @classmethod
    def of(cls, checkpoint: Checkpoint, language: str | None) -> PromptReader:
        """Build the reader of a checkpoint with an attention decoder.

        Args:
            checkpoint: the checkpoint.
            language: what the recipe says, a code or an English name.

        Raises:
            ValueError: the checkpoint does not know the language.
        """
        assert checkpoint.config.aed is not None
        reader = cls(known_languages(checkpoint.tokenizer.pieces), None, checkpoint.config.aed.prompt == "canary2")
        return reader if language is None else replace(reader, language=reader.find("data.language", language))

    def __call__(self, row: Mapping[str, Any]) -> Request:
        """Read a row. Raises ValueError that names the field."""
        source = self._language(row, _SPOKEN) or self.language
        if source is None:
            raise ValueError("no source_lang, and the recipe no data.language: this model has to be told the language")
        target = self._language(row, _WRITTEN) or source
        for name, only in _FIXED.items() if self.has_fixed else ():
            if row.get(name) is not None and _word(row[name]) not in only:
                raise ValueError(f"{name} is {row[name]!r:.40}: only {only[0]!r} can be learnt here")
        if "<|" in str(row.get("text")):
            raise ValueError("the text has a control token (<|..|>); give the text alone")
        _check_task(row, source != target)
        return Request(source, target, _pnc(row))

    def find(self, name: str, value: object) -> str:
        """Return the checkpoint's name of a language. Raises ValueError."""
        tag = language_tag(value.removeprefix("<|").removesuffix("|>")) if isinstance(value, str) else None
        found = find_language(tag, self.known) if tag is not None else None
        if found is None:
            some = list_languages(nearest_languages(tag or "", self.known))
            raise ValueError(f"{name}: {value!r:.40} is not a language of this checkpoint, such as {some}")
        return found

    def _language(self, row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
        name = next((name for name in names if row.get(name) is not None), None)
        return None if name is None else self.find(name, row[name])


def _check_task(row: Mapping[str, Any], translates: bool) -> None:
    """Raise ValueError if the row names a task that its languages contradict."""
    for name in ("taskname", "task"):
        if row.get(name) is None:
            continue
        task, languages = _word(row[name]), "two languages" if translates else "one language"
        if task not in (*_TRANSCRIBE, *_TRANSLATE):
            raise ValueError(f"{name} is {row[name]!r:.40}, not asr or ast")
        if (task in _TRANSLATE) != translates:
            raise ValueError(f"{name} is {row[name]!r:.40}, but source_lang and target_lang name {languages}")


def _pnc(row: Mapping[str, Any]) -> bool:
    value = row.get("pnc")
    if value is None:
        return True
    if _word(value) not in (*_YES, *_NO):
        raise ValueError(f"pnc is {value!r:.40}, not yes or no")
    return _word(value) in _YES


def _word(value: object) -> str:
    return str(value).strip().lower()


class PromptedEncoder:
    """A text and its request to tokens, for training.manifest.tokenise(). A checkpoint's prompts have the same length.

    Attributes:
        changes: what it has changed of the texts so far.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises UsageError if the checkpoint cannot encode text."""
        assert checkpoint.config.aed is not None
        self._tokenizer, self._config, self.changes = checkpoint.tokenizer, checkpoint.config.aed, TextChanges()
        self._prompts: dict[Request, Prompt] = {}
        self._models = _language_models(checkpoint)
        self._encoders: dict[str, TextEncoder] = {}

    def __call__(self, text: str, request: Request | None) -> tuple[int, ...] | None:
        """Return the tokens; none for a text without any, None for one with letters that the vocabulary lacks."""
        assert request is not None
        language = request.target_language
        name = _ANY_LANGUAGE if _ANY_LANGUAGE in self._models else find_language(language, tuple(self._models))
        if name is None:
            raise UsageError(f"this checkpoint has no vocabulary of {language}, which it could write")
        first_id, tokenizer = self._models[name]
        if name not in self._encoders:
            self._encoders[name] = TextEncoder(tokenizer, self.changes)
        ids = self._encoders[name](text)
        if not ids:
            return ids
        prompt = self._prompt(request)
        return (*prompt.ids, *(first_id + token_id for token_id in ids), prompt.end_id)

    @cached_property
    def num_prompt(self) -> int:
        """Tokens of a prompt."""
        language = known_languages(self._tokenizer.pieces)[0]
        return len(self._prompt(Request(language, language)).ids)

    def _prompt(self, request: Request) -> Prompt:
        if request not in self._prompts:
            config = self._config
            self._prompts[request] = make_prompt(config.prompt, self._tokenizer, request.options, config.max_tokens)
        return self._prompts[request]


def _language_models(checkpoint: Checkpoint) -> dict[str, tuple[int, Tokenizer]]:
    """Return the first id and the vocabulary of each language of an aggregate; other tokenizers have one for all.

    Raises:
        UsageError: the folder does not hold them, or they do not fit.
    """
    if checkpoint.tokenizer.kind != "aggregate":
        return {_ANY_LANGUAGE: (0, checkpoint.tokenizer)}
    try:
        parts = checkpoint.tokenizer.parts()
    except ValueError as error:
        raise UsageError(f"--init {checkpoint.path}: {error}") from error
    ends = accumulate(len(part.pieces) for part in parts.values())
    return {name: (end - len(part.pieces), part) for end, (name, part) in zip(ends, parts.items(), strict=True)}
