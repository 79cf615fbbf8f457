"""Samples without a header, as telephone systems store them: their names, and the ffmpeg command that makes a WAV file of each.

They are not read, because nothing in them says what they are, and a wrong guess is noise. Nothing is opened here.
"""

from __future__ import annotations

import os
import shlex

from fastscribe.audio.formats import extension

_SLN = {f"sln{thousands}": f"-f s16le -ar {rate}" for thousands, rate in ((8, 8000), (12, 12000), (16, 16000), (24, 24000),
        (32, 32000), (44, 44100), (48, 48000), (96, 96000), (192, 192000))}  # fmt: skip
_MULAW, _ALAW = "-f mulaw -ar 8000", "-f alaw -ar 8000"
# What ffmpeg has to be told of each, by extension
TELEPHONE = {
    **dict.fromkeys(("ulaw", "mulaw", "pcmu"), _MULAW),
    **dict.fromkeys(("alaw", "pcma"), _ALAW),
    **dict.fromkeys(("sln", "slin"), "-f s16le -ar 8000"),
    **_SLN,
    "g722": "-f g722",
    **dict.fromkeys(("g723", "g723_1", "g7231"), "-f g723_1"),
    "g726": "-f g726 -code_size 4",
    **{f"g726-{kbits}": f"-f g726 -code_size {kbits // 8}" for kbits in (16, 24, 32, 40)},
    "g729": "-f g729",
    "gsm": "-f gsm",
    "sbc": "-f sbc",
    "msbc": "-f msbc",
    "vox": "-f u8 -ar 8000 -c:a adpcm_ima_oki",
}
# These may be something else, or have any rate.
_OTHERS = {
    "ul": _MULAW,
    "mu": _MULAW,
    "al": _ALAW,
    **dict.fromkeys(("raw", "pcm", "sw", "s16", "s16le"), "-f s16le -ar 16000"),
}


def headerless_problem(path: str) -> str | None:
    """Return what is wrong with a file that has no header by its name, with the command that helps; None for other names."""
    options = TELEPHONE.get(extension(path))
    guess = _OTHERS.get(extension(path))
    if options is None and guess is None:
        return None
    wav = os.path.splitext(os.path.basename(path))[0] + ".wav"
    command = f"ffmpeg {options or guess} -i {shlex.quote(path)} {shlex.quote(wav)}"
    unsure = "" if options else " (with its own sample type and rate)"
    return f"samples without a header are not read: make a WAV file of it: {command}{unsure}"
