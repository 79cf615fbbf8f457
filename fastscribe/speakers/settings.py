"""Options of speakers: which values and which combinations are possible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastscribe.config import CHANNELS, Options, streaming_text, whole_number
from fastscribe.errors import OptionError

# NeMo's names of a streaming speaker model's settings, in frames of its encoder: field of SpeakerCacheConfig, least value.
STREAMING_SETTINGS = {
    "chunk_len": ("chunk_frames", 1),
    "chunk_left_context": ("left_frames", 0),
    "chunk_right_context": ("right_frames", 0),
    "fifo_len": ("queue_frames", 0),
    "spkcache_len": ("cache_frames", 1),
    "spkcache_update_period": ("update_frames", 1),
}
MAX_SPEAKER_FRAMES = 1 << 16  # of a speaker cache, its queue or a chunk


def check_options(options: Options) -> None:
    """Check options of which one is about speakers, and bring `speaker_streaming` into its one form. Raises OptionError."""
    if options.speaker_streaming is not None:
        object.__setattr__(options, "speaker_streaming", _streaming(options.speaker_streaming))
    if options.speakers is not None and not options.speakers:
        raise OptionError("speakers", options.speakers, f"neither {CHANNELS} nor a speaker model")
    if options.speakers == CHANNELS and options.channel is not None:
        raise OptionError("channel", options.channel, "speakers takes all channels: leave one of the two out")
    if options.speakers is not None and options.rttm is not None:
        raise OptionError("rttm", options.rttm, "speakers finds them too: leave one of the two out")
    if options.voices is not None and options.speakers is None and options.rttm is None:
        raise OptionError("voices", options.voices, "nothing says who speaks: give speakers or rttm too")
    if options.speaker_streaming is not None and options.speakers in (None, CHANNELS):
        problem = "it is for a speaker model, and speakers names none"
        raise OptionError("speaker_streaming", streaming_text(options.speaker_streaming), problem)
    if options.speaker_names is None:
        return
    if options.speakers is None:
        raise OptionError("speaker_names", ",".join(options.speaker_names), "speakers is not given")
    check_names(options.speaker_names)


def check_names(names: Sequence[str]) -> None:
    """Raise OptionError for speakers' names that files cannot have, which have each on a line."""
    if not names:
        raise OptionError("speaker_names", names, "there is no name")
    for name in names:
        problem = ""
        if not name.strip() or not name.isprintable() or name != name.strip():
            problem = "a name is empty, or has spaces around it or characters that cannot be printed"
        elif names.count(name) > 1:
            problem = f"names {name} twice"
        elif re.fullmatch(r"(channel|speaker) [0-9]+", name):
            problem = f"{name} is the name of a {name.split()[0]} without one"
        if problem:
            raise OptionError("speaker_names", ",".join(names), problem)


def parse_streaming(text: str) -> list[tuple[str, int | str]]:
    """Divide `chunk_len=340,fifo_len=40` into pairs for Options, which refuses what is no number. Raises OptionError."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if not all(equals for _, equals, _ in pairs):
        problem = "not settings such as chunk_len=340,fifo_len=40"
        raise OptionError("speaker_streaming", text, problem, names_options=False)
    return [(name.strip(), _number_in(value.strip())) for name, _, value in pairs]


def _number_in(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _streaming(given: Any) -> tuple[tuple[str, int], ...]:
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        pairs = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise OptionError("speaker_streaming", given, "not a mapping of names to frames") from None
    found: dict[str, int] = {}
    for name, value in pairs:
        if not isinstance(name, str) or name not in STREAMING_SETTINGS:
            problem = f"not one of {', '.join(STREAMING_SETTINGS)}"
            raise OptionError("speaker_streaming", name, problem, names_options=False)
        if name in found:
            raise OptionError("speaker_streaming", name, "named twice")
        (_, least), number = STREAMING_SETTINGS[name], whole_number(value)
        if type(number) is not int or not least <= number <= MAX_SPEAKER_FRAMES:
            problem = f"not a number of frames from {least} to {MAX_SPEAKER_FRAMES:,}"
            raise OptionError("speaker_streaming", f"{name}={value}", problem)
        found[name] = number
    if not found:
        raise OptionError("speaker_streaming", given, "there is no setting")
    return tuple((name, found[name]) for name in STREAMING_SETTINGS if name in found)
