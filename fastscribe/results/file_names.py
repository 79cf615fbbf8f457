"""Names of the files of a run's inputs, without a format's extension. Pure: result_files.py carries out the renames.

The order of the inputs alone decides the names, so every shard and every run over the same inputs chooses the same ones.
A name changes once at most: when another input that shares it becomes known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fastscribe.results.names import OutputNames, Rename, name_key, names_of

# The run writes report.json, and a shard its report.shard-I-of-N.json; fastscribe speakers writes speakers.json.
_RESERVED = {"json": ("report", "speakers")}
_RESERVED_AT_URLS = ("report",)  # whatever the formats, since the first version that wrote to URLs


class NameChange(NamedTuple):
    """A rename, and what it means for the files of the input that had the old name."""

    rename: Rename
    formats: tuple[str, ...]  # of files to rename; none if the input has no result yet, or belongs to another shard
    is_pending: bool  # the input belongs to this run, and has no result yet


class FileNames:
    """File names of inputs that wait for their result, and what later renames must know of finished ones.

    Not thread-safe: callers hold Ledger.lock.

    Args:
        formats: Formats of the outputs that are a file each.
        is_sharded: True if other shards finish some of the inputs.
        can_rename: False: every name keeps its input's extension (`a.wav.srt`), so that none ever changes.
    """

    def __init__(self, formats: Sequence[str], is_sharded: bool = False, can_rename: bool = True) -> None:
        self._formats, self._is_sharded, self.can_rename = tuple(formats), is_sharded, can_rename
        reserved = [name for format in formats for name in _RESERVED.get(format, ())]
        self._output_names = OutputNames(reserved if can_rename else _RESERVED_AT_URLS)
        self._names: dict[int, str] = {}  # by the input's index
        self._indices: dict[str, int] = {}  # the inverse
        self._previous_names: dict[int, str] = {}  # before the rename, by index
        self._failed_names: set[str] = set()  # of finished inputs that have a JSON file only
        self._renamed_names: set[str] = set()  # of finished inputs whose files have the longer name already
        self._finished: set[int] = set()  # keys of this shard's finished names; unsharded, all others are finished

    def __getitem__(self, index: int) -> str:
        """Return the name of an input that waits for its result; "" if none was reserved."""
        return self._names.get(index, "")

    def take(self, keys: Iterable[int]) -> None:
        """Keep names from inputs, by their name_key."""
        self._output_names.take(keys)

    def reserve(self, id: str, index: int | None) -> list[NameChange]:
        """Choose the name of the next input.

        Args:
            id: The input's id.
            index: The input's position; None if another shard transcribes it.

        Returns:
            Renames that make room for the name.
        """
        name, renames = self._output_names.claim(id) if self.can_rename else (self._output_names.take_full(id), [])
        changes = [self._change(rename) for rename in renames if rename.old not in self._renamed_names]
        if index is not None:
            self._names[index], self._indices[name] = name, index
        return changes

    def _change(self, rename: Rename) -> NameChange:
        index = self._indices.pop(rename.old, None)
        if index is not None:
            self._names[index], self._indices[rename.new] = rename.new, index
            self._previous_names[index] = rename.old
            return NameChange(rename, (), True)
        if self._is_sharded and name_key(rename.old) not in self._finished:
            return NameChange(rename, (), False)
        has_failed = rename.old in self._failed_names
        return NameChange(rename, tuple(one for one in self._formats if one == "json" or not has_failed), False)

    def find(self, id: str, index: int, key: int) -> str | None:
        """Return the name with this key, if the input has it, had it, or gets it once another input shares its name."""
        name, former = self._names[index], self._previous_names.get(index)
        short, full = names_of(id)
        possible = (name, former, full + name.removeprefix(short)) if self.can_rename else (name,)
        return next((one for one in possible if one is not None and name_key(one) == key), None)

    def finish(self, index: int, has_failed: bool) -> None:
        """Note that an input's files have its present name."""
        name = self._names.pop(index, None)
        if name is None:
            return
        del self._indices[name]
        self._previous_names.pop(index, None)
        if has_failed:
            self._failed_names.add(name)
        if self._is_sharded:
            self._finished.add(name_key(name))

    def restore(self, index: int, key: int, has_failed: bool) -> Rename | None:
        """Finish an input whose files an earlier run wrote.

        Args:
            index: The input's position.
            key: name_key of the files' name, which `find` has found.
            has_failed: True if the input failed then.

        Returns:
            The rename that gives the files their name in this run, if they need one.
        """
        name, former = self._names[index], self._previous_names.get(index)
        self.finish(index, has_failed)
        if key == name_key(name):
            return None
        if former is not None and key == name_key(former):
            return Rename(former, name)
        self._renamed_names.add(name)
        return None


def file_formats(formats: Iterable[str]) -> tuple[str, ...]:
    """Return the formats that are a file for each input."""
    return tuple(format for format in formats if format != "jsonl")
