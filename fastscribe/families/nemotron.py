"""Nemotron's streaming models. They are FastConformers, and some get the language to write: the table and choice of languages.

NeMo's class of those with a language prompt is EncDecRNNTBPEModelWithPrompt. transformers' classes are NemotronAsrStreaming and
Nemotron3_5Asr, the second with a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastscribe.checkpoint.huggingface import extractor_of
from fastscribe.checkpoint.value import Section
from fastscribe.config import EncoderSettings, ModelConfig
from fastscribe.errors import UnsupportedCheckpoint, UsageError
from fastscribe.families.conformer.config import EncoderConfig, LanguagePromptConfig
from fastscribe.families.conformer.huggingface import encoder_config, our_names, read_model, transcriber_config
from fastscribe.languages import AUTO, language_tag, list_languages, nearest_languages

__all__ = ["AUTO", "choose_language", "known_languages", "language_prompt", "our_names", "read_config", "read_model"]

_MAX_NAME = 32  # characters


def language_prompt(
    section: Section, num_prompts: int, hidden: int, languages: Mapping[str, Any], default: str | int
) -> LanguagePromptConfig:
    """Make the config of a prompt.

    Args:
        section: where it was read, for messages.
        num_prompts: length of the one-hot.
        hidden: width between the two layers.
        languages: index by language.
        default: the index, or the language, that the model is told unless the user names one.

    Returns:
        The config.

    Raises:
        UnsupportedCheckpoint: a language has no index in the one-hot, or the default is no language.
    """
    for name, index in languages.items():
        if type(index) is not int or not 0 <= index < num_prompts or len(name) > _MAX_NAME:
            key = section.path(f"prompt_dictionary.{name[:_MAX_NAME]}")
            raise UnsupportedCheckpoint(section.where, key, index, f"0 to {num_prompts - 1}")
    index = languages.get(default) if isinstance(default, str) else default
    if index is None or not 0 <= index < num_prompts:
        raise UnsupportedCheckpoint(section.where, section.path("prompt_dictionary"), "no auto", "one with auto")
    return LanguagePromptConfig(num_prompts, hidden, dict(languages), index)


def known_languages(prompt: LanguagePromptConfig) -> tuple[str, ...]:
    """Return the tags of the languages, without spellings that are none."""
    return tuple(name for name in prompt.languages if language_tag(name) == name)


def choose_language(prompt: LanguagePromptConfig, language: str | None) -> int:
    """Return the index of a language.

    Args:
        prompt: the checkpoint's languages.
        language: a tag (fastscribe/languages.py); None or "auto": the model's default.

    Returns:
        The index. A language without region is its only region's, if the table has no entry without.

    Raises:
        UsageError: the table lacks the language, or has several regions of it.
    """
    if language is None or language == AUTO:
        return prompt.index
    if language in prompt.languages:
        return prompt.languages[language]
    known = known_languages(prompt)
    regions = [name for name in known if name.partition("-")[0] == language.partition("-")[0]]
    indices = {prompt.languages[name] for name in regions}
    if "-" not in language and len(indices) == 1:
        return indices.pop()
    raise UsageError(
        f"--language {language}: not one of this checkpoint's {len(known)} languages; the nearest: "
        f"{list_languages(nearest_languages(language, known))}, or {AUTO}"
    )


def with_language_prompt(encoder: EncoderSettings, config: Section) -> EncoderSettings:
    """Return the encoder's settings with the prompt of the whole config, if it has one. Raises UnsupportedCheckpoint."""
    section = config.part("model_defaults", optional=True)
    if not isinstance(encoder, EncoderConfig) or not section.choose(
        "initialize_prompt_feature", False, (True, False, None)
    ):
        return encoder
    languages = section.part("prompt_dictionary").values
    if "False" in languages:  # YAML's reading of the Norwegian `no`
        languages["no"] = languages.pop("False")
    num_prompts = section.positive("num_prompts", 128)
    prompt = language_prompt(section, num_prompts, 2 * encoder.d_model, languages, AUTO)
    return replace(encoder, language_prompt=prompt)


def read_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    extractor = extractor_of(processor)
    encoder = encoder_config(section.part("encoder_config"), is_streaming=True)
    if section.values["model_type"] == "nemotron3_5_asr":
        encoder = replace(encoder, language_prompt=_prompt_of_folder(section, processor))
    return transcriber_config(section, encoder, extractor, has_ctc=False, has_durations=False, is_streaming=True)


def _prompt_of_folder(section: Section, processor: Section) -> LanguagePromptConfig:
    languages = processor.part("prompt_dictionary").values
    num_prompts, hidden = section.positive("num_prompts", 128), section.positive("prompt_intermediate_size", 2048)
    processor.choose("num_prompts", num_prompts, (num_prompts,))
    default = section.get("default_prompt_id", 101)
    return language_prompt(processor, num_prompts, hidden, languages, default)
