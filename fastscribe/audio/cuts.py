"""Lhotse's cuts, and its recordings: rows of manifests that Lhotse writes, as rows with NeMo's names.

Lhotse is not needed. A cut is read if it is a span of one file. A mix, padding, or a change of speed or volume that Lhotse
would compute has to be exported first (CutSet.to_shar).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastscribe.audio.manifest import NUMBERS
from fastscribe.errors import ManifestError

_READABLE_TYPES = ("MonoCut", "MultiCut")
_EXPORT = "export it with CutSet.to_shar"


def is_of_lhotse(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of Lhotse's: a cut of any type (a MixedCut has no start), a recording or a supervision."""
    if "audio_filepath" in row:
        return False
    return str(row.get("type", "")).endswith("Cut") or "sources" in row or "recording_id" in row


def in_shar(row: Mapping[str, Any]) -> bool:
    """Whether the recording of a readable row lies in the tar beside its manifest."""
    return not row["audio_filepath"]


def read_cut(manifest: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the row of a cut or a recording says, with NeMo's names before its own.

    Its text is that of its supervisions in order, its language that of the first. Custom fields are fields of the row, those of
    the cut before those of its first supervision. In a Shar folder audio_filepath is empty. Raises ManifestError.
    """
    try:
        return _read_cut(row) if str(row.get("type", "")).endswith("Cut") else _read_recording(row)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = str(error) if type(error) is ValueError else f"not a cut as Lhotse writes it: {error!r:.60}"
        raise ManifestError(manifest, number, problem) from error


def _read_recording(row: Mapping[str, Any]) -> dict[str, Any]:
    if "sources" not in row:
        raise ValueError("one of Lhotse's supervisions, which names no file: give the cuts, or the recordings")
    source = _source(row)
    return {"audio_filepath": _path(source), **row}


def _read_cut(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["type"] not in _READABLE_TYPES:
        raise ValueError(f"a {row['type']}: {_EXPORT}, or save_audios, first")
    if "recording" not in row:
        raise ValueError("a cut without a recording, of features alone")
    source = _source(row["recording"])
    channel = _channel(row.get("channel"), list(source["channels"]))
    offset_s, duration_s = float(row["start"]), float(row["duration"])
    if not (0 <= offset_s < float("inf") and 0 < duration_s < float("inf")):
        raise ValueError(f"start {offset_s}, duration {duration_s}: not seconds")
    place: dict[str, Any] = {"audio_filepath": _path(source), "duration": duration_s}
    if offset_s:
        place["offset"] = offset_s
    if channel is not None:
        place["audio_channel"] = channel
    return {**place, **_fields(row), **row, **place}


def _source(recording: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one file of a recording."""
    source: Mapping[str, Any]
    (source, *others) = recording["sources"]
    if others or source["type"] not in ("file", "shar", "url"):
        kind = "several sources" if others else f"a source of type {source['type']!r}"
        raise ValueError(f"its recording has {kind}: one file is read")
    if recording.get("transforms"):
        raise ValueError(f"its recording has transforms that are still to be computed: {_EXPORT} first")
    return source


def _path(source: Mapping[str, Any]) -> str:
    return "" if source["type"] == "shar" else str(source["source"])


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return text, language and custom fields of a cut."""
    supervisions = sorted(row["supervisions"], key=lambda one: one["start"])
    first: Mapping[str, Any] = next(iter(row["supervisions"]), {})
    fields = {} if first.get("language") is None else {"language": first["language"]}
    for custom in (first.get("custom"), row.get("custom")):
        if custom is not None and not isinstance(custom, Mapping):
            raise ValueError(f"custom is {custom!r:.40}, not an object")
        fields.update({key: value for key, value in (custom or {}).items() if key not in (*NUMBERS, "audio_filepath")})
    texts = [str(one["text"]) for one in supervisions if one.get("text") is not None]
    return {**fields, "text": " ".join(texts)} if texts else fields


def _channel(wanted: Any, held: list[int]) -> int | None:
    """Return which of a file's channels a cut is of; None: all. Raises ValueError if it is of some."""
    channels = wanted if isinstance(wanted, list) else held if wanted is None else [wanted]
    if sorted(channels) == sorted(held):
        return None
    if len(channels) != 1 or channels[0] not in held:
        raise ValueError(f"channel {wanted!r:.40} of a file with {held!r:.40}: one channel or all of them are read")
    return held.index(channels[0])
