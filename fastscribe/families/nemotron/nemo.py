"""NeMo's EncDecRNNTBPEModelWithPrompt: the language prompt in model_config.yaml."""

from __future__ import annotations

from dataclasses import replace

from fastscribe.checkpoint.value import Section
from fastscribe.config import EncoderSettings
from fastscribe.families.conformer.config import EncoderConfig, LanguagePromptConfig
from fastscribe.families.nemotron.languages import AUTO, language_prompt


def with_language_prompt(encoder: EncoderSettings, config: Section) -> EncoderSettings:
    """Return the encoder's settings with the prompt of the whole config, if it has one. Raises UnsupportedCheckpoint."""
    if not isinstance(encoder, EncoderConfig):
        return encoder
    return replace(encoder, language_prompt=_language_prompt(config, encoder.d_model))


def _language_prompt(config: Section, d_model: int) -> LanguagePromptConfig | None:
    """Return the prompt of a model of class EncDecRNNTBPEModelWithPrompt, None if it has none."""
    section = config.part("model_defaults", optional=True)
    if not section.choose("initialize_prompt_feature", False, (True, False, None)):
        return None
    languages = section.part("prompt_dictionary").values
    if "False" in languages:  # YAML's reading of the Norwegian `no`
        languages["no"] = languages.pop("False")
    return language_prompt(section, section.positive("num_prompts", 128), 2 * d_model, languages, AUTO)
