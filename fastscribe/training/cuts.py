"""Lhotse's cuts: rows of a CutSet manifest, and Shar folders, whose recordings lie in tar archives.

Lhotse is not needed. A cut is read if it is a span of one file. A mix, padding, or a change of speed or volume that Lhotse
would compute has to be exported first (CutSet.to_shar).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from fastscribe.errors import ManifestError, UsageError
from fastscribe.training.archives import Member, members, number_of

_READABLE_TYPES = ("MonoCut", "MultiCut")


class CutAudio(NamedTuple):
    """What a cut names.

    Attributes:
        path: of the file, as the row gives it; empty in a Shar folder.
        text: those of its supervisions in order.
        channel: None: the mean of all.
    """

    path: str
    offset_s: float
    duration_s: float
    text: str | None
    channel: int | None


def is_cut(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of Lhotse's, of any type: a MixedCut has no start."""
    return "audio_filepath" not in row and str(row.get("type", "")).endswith("Cut")


def read_cut(manifest: str, number: int, row: Mapping[str, Any]) -> CutAudio:
    """Return what the row of a cut names. Raises ManifestError."""
    try:
        return _read_cut(row)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = str(error) if type(error) is ValueError else f"not a cut as Lhotse writes it: {error!r:.60}"
        raise ManifestError(manifest, number, problem) from error


def fields_of_cut(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the row of a readable cut says besides: its own fields, over those of its first supervision, its language.

    Raises ValueError.
    """
    supervision: Mapping[str, Any] = next(iter(row["supervisions"]), {})
    fields = {"language": supervision.get("language"), "text": supervision.get("text")}
    for custom in (supervision.get("custom"), row.get("custom")):
        if custom is not None and not isinstance(custom, Mapping):
            raise ValueError(f"custom is {custom!r:.40}, not an object")
        fields.update(custom or {})
    return fields


def _read_cut(row: Mapping[str, Any]) -> CutAudio:
    if row["type"] not in _READABLE_TYPES:
        raise ValueError(f"a {row['type']}: export it with CutSet.to_shar, or save_audios, first")
    recording = row["recording"]
    (source, *others) = recording["sources"]
    if others or source["type"] not in ("file", "shar"):
        kind = "several sources" if others else f"a source of type {source['type']!r}"
        raise ValueError(f"its recording has {kind}: one file is read")
    if recording.get("transforms"):
        raise ValueError(
            "its recording has transforms that are still to be computed: export it with CutSet.to_shar first"
        )
    texts = [
        str(one["text"])
        for one in sorted(row["supervisions"], key=lambda one: one["start"])
        if one.get("text") is not None
    ]
    channel = _channel(row.get("channel"), list(source["channels"]))
    offset_s, duration_s = float(row["start"]), float(row["duration"])
    if not (0 <= offset_s < float("inf") and 0 < duration_s < float("inf")):
        raise ValueError(f"start {offset_s}, duration {duration_s}: not seconds")
    return CutAudio(str(source["source"]), offset_s, duration_s, " ".join(texts) if texts else None, channel)


def _channel(wanted: Any, held: list[int]) -> int | None:
    """Return which of a file's channels a cut is of; None: all. Raises ValueError if it is of some."""
    channels = wanted if isinstance(wanted, list) else held if wanted is None else [wanted]
    if sorted(channels) == sorted(held):
        return None
    if len(channels) != 1 or channels[0] not in held:
        raise ValueError(f"channel {wanted!r:.40} of a file with {held!r:.40}: one channel or all of them are read")
    return held.index(channels[0])


def shar_manifests(folder: str) -> list[str]:
    """Return the manifests of a Shar folder in order; none if it is no such folder."""
    start = os.path.join(glob.escape(folder), "cuts.*.jsonl")
    return sorted([*glob.glob(start), *glob.glob(start + ".gz")])


def shar_members(manifest: str) -> dict[str, Member]:
    """Index the recordings beside a Shar manifest by the id of their cut. Raises UsageError."""
    folder, number = os.path.dirname(manifest), number_of(manifest)
    found = [
        path for path in glob.glob(os.path.join(glob.escape(folder), "recording.*.tar")) if number_of(path) == number
    ]
    if len(found) != 1:
        raise UsageError(f"{manifest}: no recording.*.tar beside it with the same number")
    named = members(found[0])
    return {
        os.path.splitext(name)[0]: member for name, member in named.items() if not name.endswith((".json", ".nodata"))
    }
