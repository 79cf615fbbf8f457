"""transformers' NemotronAsrStreaming and Nemotron3_5Asr: streaming Parakeets, the second told which language to write."""

from __future__ import annotations

from dataclasses import replace

from fastscribe.checkpoint.huggingface import extractor_of
from fastscribe.checkpoint.value import Section
from fastscribe.config import ModelConfig
from fastscribe.families.conformer.config import LanguagePromptConfig
from fastscribe.families.conformer.huggingface import encoder_config, our_names, read_model, transcriber_config
from fastscribe.families.nemotron.languages import language_prompt

__all__ = ["our_names", "read_config", "read_model"]


def read_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    extractor = extractor_of(processor)
    encoder = encoder_config(section.part("encoder_config"), is_streaming=True)
    if section.values["model_type"] == "nemotron3_5_asr":
        encoder = replace(encoder, language_prompt=_language_prompt(section, processor))
    return transcriber_config(section, encoder, extractor, has_ctc=False, has_durations=False, is_streaming=True)


def _language_prompt(section: Section, processor: Section) -> LanguagePromptConfig:
    languages = processor.part("prompt_dictionary").values
    num_prompts, hidden = section.positive("num_prompts", 128), section.positive("prompt_intermediate_size", 2048)
    processor.choose("num_prompts", num_prompts, (num_prompts,))
    default = section.get("default_prompt_id", 101)
    return language_prompt(processor, num_prompts, hidden, languages, default)
