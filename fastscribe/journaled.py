"""The fingerprint of a run into a folder or a store: all that decides its results besides the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastscribe.config import Options, OutputStyle

if TYPE_CHECKING:
    from fastscribe.transcriber import Transcriber


def run_fingerprint(transcriber: Transcriber, digest: str, options: Options, style: OutputStyle) -> dict[str, Any]:
    """Return all that decides a run's results besides its inputs.

    Args:
        transcriber: The loaded model.
        digest: Of the model's content.
        options: The run's options.
        style: The formats and their options.
    """
    from fastscribe.results.fingerprint import AS_GIVEN, fingerprint, languages_of

    facts = transcriber._executor.facts
    resolved: dict[str, Any] = {"dtype": facts.dtype, "decoder": facts.decoder_name, "attention": facts.attention}
    resolved |= {"recover_gaps": transcriber._recovers_gaps}
    resolved |= {"beam": facts.beam} if facts.beam > 1 else {}
    resolved |= transcriber._content_digests()
    resolved |= {"align": True} if transcriber.command == "align" else {}
    config = transcriber._config
    if options.max_utterance_s is None and not config.learnt_on_short:  # cut as with the same number given
        resolved["max_utterance_s"] = config.max_utterance_s
    resolved |= transcriber._language_settings()
    pnc = None if options.pnc else options.pnc  # True is the default of models that have it
    found = fingerprint(digest, resolved, replace(options, language=None, target_language=None, pnc=pnc), style)
    given = _languages_as_given(transcriber, options)
    return found if given == languages_of(found) else found | {AS_GIVEN: given}


def _languages_as_given(transcriber: Transcriber, options: Options) -> dict[str, str]:
    """Return the part of a fingerprint about languages as earlier versions wrote it, whose folders go on."""
    from fastscribe.families.conformer.config import language_prompt_of
    from fastscribe.languages import AUTO

    facts, config = transcriber._executor.facts, transcriber._config
    language, target = options.language, options.target_language
    if language == AUTO or not (facts.has_prompt or language_prompt_of(config) is not None):
        given = (target or language) if options.changes_text else None
        language, target = given or facts.language, None
    return {name: tag for name, tag in (("--language", language), ("--target-language", target)) if tag is not None}
