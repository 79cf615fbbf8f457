"""The fingerprint of a run into a folder or a store: all that decides its results besides the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastscribe.config import Options, OutputStyle
from fastscribe.results.fingerprint import fingerprint

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
    facts = transcriber.facts
    resolved: dict[str, Any] = {"dtype": facts.dtype, "decoder": facts.decoder_name, "attention": facts.attention}
    resolved |= {"beam": facts.beam} if facts.beam > 1 else {}
    resolved |= transcriber._content_digests()
    resolved |= {"align": True} if transcriber.command == "align" else {}
    config = transcriber._config
    if options.max_utterance_s is None and not config.learnt_on_short:  # cut as with the same number given
        resolved["max_utterance_s"] = config.max_utterance_s
    resolved |= transcriber._language_settings()
    pnc = None if options.pnc else options.pnc  # True is the default of models that have it
    return fingerprint(digest, resolved, replace(options, language=None, target_language=None, pnc=pnc), style)
