"""`--align-with` of `fastscribe transcribe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastscribe.cli.app import options_in
from fastscribe.cli.room_options import AddedOptions
from fastscribe.cli.run_part import FindModel, RunPart

_decoding_option = options_in("Model and decoding")


class AlignWithPart(RunPart):
    """Takes word times from another model."""

    def fields(self, find_model: FindModel) -> Mapping[str, Any]:
        """Return the option's field, with the model's path."""
        return {name: find_model(model) for name, model in self._fields.items()}


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
) -> RunPart | None:
    return None if align_with is None else AlignWithPart(align_with=align_with)


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--timestamps")}
