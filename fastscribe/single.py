"""fastscribe.transcribe() and fastscribe.probe(): one recording in one call. The model stays loaded; torch comes with it."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.audio.failures import to_failure
from fastscribe.audio.formats import MAGIC, list_kind
from fastscribe.audio.given import Audio, is_one, sources
from fastscribe.audio.probe import probe as read_header
from fastscribe.checkpoint.hub_name import LARGE_MODEL
from fastscribe.checkpoint.location import PACKAGED_NAME, is_packaged, why_beyond
from fastscribe.config import Options, check_load
from fastscribe.errors import AudioError, UsageError
from fastscribe.types import AudioInfo, Failure, Source, Transcript

if TYPE_CHECKING:
    from fastscribe.audio.given import Input
    from fastscribe.transcriber import Transcriber

Found = TypeVar("Found", Source, Transcript)

_DEFAULTS = Options()
_ADVICE = "fastscribe.transcribe() takes one recording; Transcriber.load(..).transcribe(..) takes any number"
_lock = Lock()


def transcribe(
    audio: Input,
    model: str | os.PathLike[str] = "default",
    device: str = "auto",
    dtype: str = "auto",
    options: Options = _DEFAULTS,
) -> Transcript:
    """Transcribe one recording.

    The model stays loaded for the next call with the same settings, until one with others. Calls from several threads wait
    for each other. Lines on stderr say that the packaged model is loaded, and which recordings are beyond it.

    Args:
        audio: One recording, as Transcriber.transcribe() takes it.
        model: As for Transcriber.load(). "default" is the packaged one: small, for English.
        device: As for Transcriber.load().
        dtype: As for Transcriber.load().
        options: As for Transcriber.load().

    Returns:
        The transcript. Times are in seconds.

    Raises:
        AudioError: The recording cannot be read or transcribed.
        UsageError: Several recordings: a folder, a pattern, a manifest or a list. Also as Transcriber.load().
        CheckpointError: As Transcriber.load().
    """
    _check_one(audio)
    model = check_load(model, device, dtype, options)
    with _lock:
        transcriber = _loaded(model, device, dtype, options)
        transcriber._refresh()
        with closing(transcriber.transcribe(audio)) as results:
            found = list(islice(results, 2))
    result = _only(found)
    is_usual = is_packaged(model) and options.beam is None and options.decoder is None
    if is_usual and (why := why_beyond(result)) is not None:
        large = f'fastscribe.transcribe(.., model="{LARGE_MODEL}")'
        log_to_stderr(f"{result.audio.path} is beyond {PACKAGED_NAME} ({why}); with a large one: {large}")
    return result


def probe(audio: Input) -> AudioInfo:
    """Read a recording's header, before a program transcribes it or refuses it for its length.

    Of formats that state no length (AAC, MPEG-TS), the whole recording is read. No model is loaded.

    Args:
        audio: One recording, as Transcriber.transcribe() takes it. A file object that cannot seek is read to its end.

    Returns:
        What its header says: `duration_s`, `sample_rate`, `channels` and so on.

    Raises:
        AudioError: The recording cannot be read.
        UsageError: Several recordings, as of transcribe().
    """
    _check_one(audio)
    source = _only(list(islice(sources([audio], Counter()), 2)))
    try:
        return read_header(source)
    except AudioError as error:
        raise _error_of(to_failure(source, "probe", error)) from error


def _only(found: list[Found | Failure]) -> Found:
    """Return the one that was found, of which an input may have had none or several."""
    if len(found) != 1:
        raise UsageError(f"{'several recordings' if found else 'no recording'}: {_ADVICE}")
    [one] = found
    if isinstance(one, Failure):
        raise _error_of(one)
    return one


def _error_of(failure: Failure) -> AudioError:
    return AudioError(failure.path, failure.message, failure.may_pass)


@lru_cache(maxsize=1)
def _loaded(model: str | Path, device: str, dtype: str, options: Options) -> Transcriber:
    from fastscribe import Transcriber

    if is_packaged(model):
        log_to_stderr(f'{PACKAGED_NAME} is loaded; a large one is more accurate: model="{LARGE_MODEL}"')
    return Transcriber.load(model, device, dtype, options)


def _check_one(audio: object) -> None:
    """Raise UsageError for an input that names several recordings."""
    if not is_one(audio):
        raise UsageError(f"{type(audio).__name__}: several recordings: {_ADVICE}")
    data = audio.data if isinstance(audio, Audio) else audio
    if not isinstance(data, (str, os.PathLike)):
        return
    path = os.fsdecode(data)
    is_pattern = MAGIC.search(path) is not None and not os.path.lexists(path)
    kinds = {
        "a folder": os.path.isdir(path),
        "a pattern": is_pattern and "://" not in path,
        "a list of recordings": list_kind(path) != "",
        "a list of paths": path == "-",
    }
    for kind, applies in kinds.items():
        if applies:
            raise UsageError(f"{path} is {kind}: {_ADVICE}")
