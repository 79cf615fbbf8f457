"""Options of `fastscribe transcribe` for phrases and language models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from fastscribe.cli.app import local_file, options_in
from fastscribe.cli.room_options import AddedOptions
from fastscribe.cli.run_hooks import RunHook
from fastscribe.cli.terminal import say
from fastscribe.config import MAX_LM_WEIGHT, Options
from fastscribe.context.phrases import given_phrases

_decoding_option = options_in("Model and decoding")


def _of_transcribe(
    boost: Annotated[
        list[Path] | None,  # in the environment, list[str] would split phrases at spaces
        _decoding_option(
            "--boost",
            metavar="FILE|PHRASE",
            everyday=True,
            help="Phrases to prefer: names, terms.\fA text file with a phrase a line, in UTF-8; or phrases themselves, with "
            'commas between: "Rice Stadium,Norfolk". Repeat it for more. A file of that name counts first. A tab and a number '
            "after a phrase are its weight, up to 10: 1 is the usual one, and above 5 phrases are also written where they are "
            "not spoken. A manifest's row may have phrases of its own in a field boost.",
        ),
    ] = None,
    lm: Annotated[
        Path | None,
        _decoding_option(
            "--lm",
            metavar="FILE",
            callback=local_file,
            help="N-gram language model for the beam.\fAn ARPA file, also gzipped, of the model's tokens (NeMo's script for "
            "KenLM), or a language_model.safetensors.gz. For RNN-T and TDT; the beam is 8 if --beam does not say.",
        ),
    ] = None,
    lm_weight: Annotated[
        float | None,
        _decoding_option(
            "--lm-weight",
            min=0,
            max=MAX_LM_WEIGHT,
            help="Its weight beside the audio.\f0: none. Default: what the language model names, or 0.2.",
        ),
    ] = Options.lm_weight,
) -> RunHook:

    return RunHook(
        boost=given_phrases(map(str, boost or ()), say),
        lm=None if lm is None else os.path.abspath(lm),
        lm_weight=lm_weight,
    )


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--timestamps")}
