"""Turn URLs (objects, folders and patterns in a store, files on web servers) into Sources.

A folder is listed page by page, and its objects come in byte order of their keys, so that a million of them need no memory.
The listing gives each object's size and version; a URL that names one object costs no request here, and the probe finds out
whether it exists. No object of a folder is opened to tell what it is, for each would cost a request: its name decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fastscribe._system import remote
from fastscribe._system.urls import key_of, name_of
from fastscribe.audio.failures import input_failure, is_utf8, relative_id
from fastscribe.audio.folders import match_depth, split_pattern
from fastscribe.audio.formats import (
    MAGIC,
    NOT_OPENED,
    Found,
    Manifest,
    count_left_out,
    is_audio_name,
    is_other_name,
    list_kind,
)
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.errors import UsageError
from fastscribe.types import Source


def expand_url(url: str, left_out: Counter[str], has_patterns: bool) -> Iterator[Found]:
    """Yield the recordings that a URL names.

    Args:
        url: An object, a folder, a list, or a pattern such as s3://bucket/**/*.flac.
        left_out: Counts the objects of folders and patterns that are not taken for audio, by kind (".docx").
        has_patterns: Wildcards have a meaning. They have none for web servers, which list nothing.
    """
    if not is_utf8(url):
        yield input_failure(url, "URL is not valid UTF-8")
        return
    try:
        if not remote.store_for(url).lists:
            yield from _one(url)
        elif has_patterns and MAGIC.search(key_of(url)) and not _exists(url):
            yield from _from_pattern(url, left_out)
        elif not url.endswith("/") and (is_audio_name(url) or list_kind(url)):
            yield from _one(url)
        else:
            yield from _from_folder(url, left_out)
    except (remote.RemoteError, UsageError) as error:
        yield input_failure(url, str(error))


def _one(url: str, found: remote.RemoteObject | None = None, name: str = "") -> Iterator[Found]:
    """Sources of one object; `name` is the base of its id, without a folder's own name."""
    if list_kind(url):
        yield Manifest(url)
    else:
        yield Source(path=url, file=RemoteFile(url, found), id=relative_id(name or name_of(url)))


def _exists(url: str) -> bool:
    try:
        remote.stat_object(url)
    except FileNotFoundError:
        return False
    return True


def _from_folder(url: str, left_out: Counter[str]) -> Iterator[Found]:
    """Sources below a folder; if nothing is below it, it may be an object without a usual extension."""
    has_objects = has_audio = False
    for found, name in _below(url):
        has_objects = True
        if is_audio_name(name):
            has_audio = True
            yield from _one(found.url, found, name)
        else:
            count_left_out(left_out, name, "" if is_other_name(name) else NOT_OPENED)
    if has_audio:
        return
    if has_objects:
        yield input_failure(url, "no audio in this folder")
    elif not url.endswith("/") and key_of(url) and _exists(url):
        yield from _one(url)
    else:
        yield input_failure(url, "no such object, and no folder with objects")


def _below(url: str) -> Iterator[tuple[remote.RemoteObject, str]]:
    """Yield the visible objects below a folder with their paths below it."""
    skip = len(url.rstrip("/")) + 1
    for found in remote.list_objects(url):
        name = found.url[skip:]
        is_hidden = name.startswith(".") or "/." in name
        # Some tools store a folder as an empty object, whose "/" not every listing has.
        is_folder = name.endswith("/") or not (found.size or is_audio_name(name) or list_kind(name))
        if name and not is_folder and not is_hidden:
            yield found, name


def _from_pattern(url: str, left_out: Counter[str]) -> Iterator[Found]:
    root = url[: len(url) - len(key_of(url))]
    prefix, patterns = split_pattern(key_of(url), lambda folder: any(True for _ in remote.list_objects(root + folder)))
    empty = True
    for found, name in _below(root + prefix):
        names = name.split("/")
        depth = match_depth(names, patterns)
        is_named = depth == len(names) and patterns[-1] not in ("*", "**")
        if depth is not None and (is_named or is_audio_name(name)):
            empty = False
            yield from _one(found.url, found, name)
        elif depth is not None:
            count_left_out(left_out, name, "" if is_other_name(name) else NOT_OPENED)
    if empty:
        yield input_failure(url, "no such object, and nothing matches it as a pattern")
