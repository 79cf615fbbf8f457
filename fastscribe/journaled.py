"""What every run into an output needs, from the command line and from Python: its fingerprint, and results that are written."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastscribe.audio.failures import to_failure
from fastscribe.config import Options, OutputStyle
from fastscribe.errors import OutputError
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.results.outputs import Output
    from fastscribe.transcriber import Transcriber

# These errors stop a run; any other error of an output file makes a Failure of its input.
_DISK_PROBLEMS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


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


def write_result(
    output: Output, result: Transcript | Failure, not_written: Callable[[Transcript], None], where: str
) -> Transcript | Failure:
    """Write a result. Return it, or the Failure that is written in its place if it cannot be written.

    Args:
        output: Where it goes.
        result: The result.
        not_written: Called with a transcript that becomes a Failure.
        where: Name of the output, for messages.

    Raises:
        OutputError: The disk is full or cannot be written.
        BrokenPipeError: The reader of a stream is gone.
    """
    try:
        output.write(result)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in _DISK_PROBLEMS or isinstance(result, Failure):
            raise OutputError(str(error.filename or where), error) from error
        not_written(result)
        return write_result(output, to_failure(result.audio, "write", error), not_written, where)
    return result
