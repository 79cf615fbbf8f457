"""`--align-with` of `fastscribe transcribe`."""

from __future__ import annotations

from typing import Annotated

from fastscribe.cli.app import options_in
from fastscribe.cli.room_options import AddedOptions
from fastscribe.cli.run_hooks import RunHook

_decoding_option = options_in("Model and decoding")


def _of_transcribe(
    align_with: Annotated[
        str | None,
        _decoding_option(
            "--align-with",
            metavar="MODEL",
            help="Take word times from this CTC model.\fCTC or hybrid: forced alignment of the text with its CTC head, for "
            "models that write no times. It costs the time of its encoder.",
        ),
    ] = None,
) -> RunHook | None:
    return None if align_with is None else RunHook(align_with=align_with)


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--timestamps")}
