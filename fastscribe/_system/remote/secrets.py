"""Passwords and signatures in URLs: hidden in what people read, and left out of what identifies a recording. Pure."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

_LOGIN = re.compile(r"(?<=://)([^/?#@\s:]*)(:?)[^/?#\s]*@")
_SECRET = re.compile(
    r"(?i)([?&](?:(?:x-amz-|x-goog-)?(?:signature|credential|security-token)|sig|policy|(?:[\w-]*[_-])?token|auth"
    r"|(?:[\w-]*[_-])?key|awsaccesskeyid|password|passwd|secret)=)[^&#\s]+"
)
_HIDDEN = "***"
# Parameters of a signature, which are others each time that an address is signed: S3, Google, CloudFront. Azure's names are
# short, so they count only beside its "sig".
_SIGNED = re.compile(
    r"(?i)x-amz-(algorithm|credential|date|expires|signedheaders|signature|security-token)"
    r"|x-goog-(algorithm|credential|date|expires|signedheaders|signature)|awsaccesskeyid|googleaccessid|signature|expires"
    r"|policy|key-pair-id"
)
_SIGNATURES = ("x-amz-signature", "x-goog-signature", "signature", "sig")
_AZURE = frozenset({"sig", "sv", "se", "st", "sp", "sr", "spr", "sip", "skoid", "sktid", "skt", "ske", "sks", "skv"})


def hide_secrets(text: str) -> str:
    """Return a message with the passwords, tokens and signatures of its URLs replaced by "***".

    >>> hide_secrets("https://me:word@host/a.wav?part=1&X-Amz-Signature=0f: no such file")
    'https://me:***@host/a.wav?part=1&X-Amz-Signature=***: no such file'
    """
    if "://" not in text:
        return text
    text = _LOGIN.sub(lambda found: (f"{found[1]}:" if found[2] else "") + f"{_HIDDEN}@", text)
    return _SECRET.sub(lambda found: found[1] + _HIDDEN + _end_of_sentence(found[0]), text)


def unsigned(url: str) -> str:
    """Return a web address without its login and its signature, the same for each time that it is signed.

    >>> unsigned("https://me:word@host/a.wav?part=1&X-Amz-Date=2026&X-Amz-Signature=0f")
    'https://host/a.wav?part=1'
    """
    if not url.lower().startswith(("http://", "https://")):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address
        return url
    query = parts.query
    if any(_name(one) in _SIGNATURES for one in query.split("&")):
        query = "&".join(one for one in query.split("&") if not _is_signature(_name(one), "sig=" in query))
    return urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, parts.fragment))


def _name(parameter: str) -> str:
    return parameter.partition("=")[0].lower()


def _is_signature(name: str, is_azure: bool) -> bool:
    return _SIGNED.fullmatch(name) is not None or (is_azure and name in _AZURE)


def _end_of_sentence(parameter: str) -> str:
    """Return the marks behind a URL within a sentence ("..X-Amz-Signature=0f: no such file")."""
    return parameter[len(parameter.rstrip(":,;.)")) :]
