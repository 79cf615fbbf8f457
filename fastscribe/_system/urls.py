"""The text of URLs: what is one, and its parts. Nothing is requested."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import quote, unquote

# Two characters at least, so that no Windows drive is a scheme.
_URL = re.compile(r"(?!file:)([a-z][a-z0-9+.-]+)://", re.IGNORECASE)  # file: is a path (audio/input_names.py)
_ROOT = re.compile(r"[^/]*//[^/?#]*")
WEB = ("http", "https")


def is_url(text: str) -> bool:
    """Return True for a scheme followed by ://, but file://. Windows drive letters and names such as "a:b.wav" are no URLs.

    >>> is_url("s3://bucket/a.wav"), is_url("C://a.wav"), is_url("a:b.wav"), is_url("file:///a.wav")
    (True, False, False, False)
    """
    return _URL.match(text) is not None


def key_of(url: str) -> str:
    """Return the path below the bucket or host, without "/" before it and, of a web address, without its query.

    >>> key_of("s3://bucket/a/b?.wav"), key_of("https://host/a%20b.mp3?signature=x")
    ('a/b?.wav', 'a%20b.mp3')
    """
    key = url[root_of(url) :].lstrip("/")
    return re.split(r"[?#]", key)[0] if is_web(url) else key


def location_of(url: str) -> str:
    """Return bucket or host and key, without the scheme, credentials and query.

    >>> location_of("s3://bucket/a/b.wav"), location_of("https://me:secret@host/a.mp3?signature=x")
    ('bucket/a/b.wav', 'host/a.mp3')
    """
    return url[: root_of(url)].partition("://")[2].rpartition("@")[2] + "/" + key_of(url)


def name_of(url: str) -> str:
    """Return the last part of the path, of a web address without its escapes."""
    name = key_of(url).rstrip("/").rpartition("/")[2]
    return unquote(name) if is_web(url) else name


def join_url(base: str, path: str) -> str:
    """Return the URL of a path that is relative to the folder of `base`. A query of `base` is dropped.

    >>> join_url("s3://bucket/lists/a.jsonl", "../clips/b c.wav")
    's3://bucket/clips/b c.wav'
    """
    root = base[: root_of(base)]
    joined = posixpath.normpath(posixpath.join("/", posixpath.dirname(key_of(base)), path))
    return root + (quote(joined) if is_web(base) else joined)


def root_of(url: str) -> int:
    """Return where the path of a URL begins."""
    match = _ROOT.match(url)
    assert match is not None, url
    return match.end()


def is_web(url: str) -> bool:
    """Return True for an address of a web server."""
    return url.partition(":")[0].lower() in WEB
