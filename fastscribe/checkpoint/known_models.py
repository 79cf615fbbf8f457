"""Published checkpoints that load: known_models.yaml as values, and which of them are in the Hugging Face cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from fastscribe.checkpoint import hub
from fastscribe.checkpoint.hub_name import DEFAULT, LARGE_MODEL, PACKAGED
from fastscribe.errors import CheckpointError

_SAME_BUT_A_LETTER = 0.9  # similarity of long names
_TABLE = Path(__file__).with_name("known_models.yaml")
_DECODERS = {"tdt": "TDT", "rnnt": "RNN-T", "ctc": "CTC", "aed": "attention"}


@dataclass(frozen=True)
class KnownModel:
    """A row of the table; None is a value that is not known.

    Attributes:
        name: The name that it was published under.
        hub: Its name on the Hugging Face hub.
        decoders: Its heads, as DecoderName; the first is the default.
        sources: Where each value was read, by field.
    """

    name: str
    hub: str | None
    decoders: tuple[str, ...]
    languages: str | None
    licence: str | None
    parameters_millions: int | None
    download_gb: float | None
    sources: Mapping[str, str]

    @property
    def family(self) -> str:
        """The kind of model in words."""
        return " and ".join(_DECODERS[decoder] for decoder in self.decoders)

    def cached(self) -> Path | None:
        """Return the packaged model, or the complete copy in the Hugging Face cache, if any. Needs no network."""
        if self.name == DEFAULT:
            return PACKAGED
        name = hub.HubName.parse(self.hub) if self.hub else None
        return hub.cached(name) if name else None


def known_models() -> list[KnownModel]:
    """Return the table, in its order."""
    rows = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return [KnownModel(**{**row, "decoders": tuple(row["decoders"])}) for row in rows]


def nearest(word: str) -> str | None:
    """Return the name on the hub of the model that a word stands for most likely: one that has it, or is spelt like it."""
    names = [LARGE_MODEL, *(model.hub for model in known_models() if model.hub)]
    last = {name.rpartition("/")[2].lower(): name for name in names}
    found = [name for name in names if word.lower() in name.lower()]
    found += [last[one] for one in get_close_matches(word.lower(), last, 1)]
    return found[0] if found else None


def download(name: hub.HubName, say: Callable[[str], None], **settings: Any) -> Path:
    """Call hub.download(). If it fails for a name that is spelt nearly like one of the table, a line has that one."""
    try:
        return hub.download(name, say, **settings)
    except CheckpointError:
        names = [model.hub for model in known_models() if model.hub]
        close = get_close_matches(name.repo, names, 1, _SAME_BUT_A_LETTER)
        if close and name.repo not in names:
            say(f"{name}: did you mean {close[0]}?")
        raise


def hub_name(name: str) -> hub.HubName:
    """Return the name on the hub of a model: one of the table, or organisation/name[@revision]. Raises CheckpointError."""
    models = known_models()
    plain, _, revision = name.partition("@")
    known = next((model for model in models if model.name == plain), None)
    if known is not None and known.hub is None:
        raise CheckpointError(name, "its place on the Hugging Face hub is not known: give organisation/name")
    full = known.hub + (f"@{revision}" if revision else "") if known and known.hub else name
    parsed = hub.HubName.parse(full)
    if parsed is None:
        close = nearest(plain)
        hint = f"did you mean {close}? " if close else ""
        raise CheckpointError(
            name, f"no such model; {hint}`fastscribe models` lists names; others are organisation/name"
        )
    return parsed
