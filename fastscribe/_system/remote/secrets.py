"""Passwords and signatures in URLs: hidden in messages, and ignored in what identifies a recording. Pure."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

_HIDDEN = "***"
# "user:password@" of any scheme. A password may hold a "/" that should have been escaped, but a port is no password.
_PASSWORD = re.compile(r"(?<=://)([^/?#@:\s\[]*:)(?!\d*(?:[/?#\s]|$))(?:[^/?#\s]*|\S*)@")
# "token@" of web addresses alone: in abfs://container@account it is no secret.
_LOGIN = re.compile(r"(?i)(https?://)[^/?#@:\s]+@")
_PARAMETER = re.compile(
    r"(?i)([?&](?:(?:x-amz-|x-goog-)?(?:signature|credential|security-token)|sig|policy|(?:[\w-]*[_-])?token|auth"
    r"|(?:[\w-]*[_-])?key|apikey|awsaccesskeyid|password|passwd|secret)=)[^&#\s]+"
)
# The parameters of a signature, which change each time an address is signed: S3, Google and CloudFront.
_SIGNED = re.compile(
    r"x-amz-(algorithm|credential|date|expires|signedheaders|signature|security-token)"
    r"|x-goog-(algorithm|credential|date|expires|signedheaders|signature)|awsaccesskeyid|googleaccessid|signature|expires"
    r"|policy|key-pair-id|sig"
)
_SIGNATURES = {"x-amz-signature", "x-goog-signature", "signature", "sig"}
# Azure's names are short, so they count only where both "sig" and "sv" are among them.
_AZURE = frozenset({"sv", "se", "st", "sp", "sr", "spr", "sip", "skoid", "sktid", "skt", "ske", "sks", "skv"})


def hide_secrets(text: str) -> str:
    """Return a message with the passwords, tokens and signatures of its URLs replaced by "***".

    >>> hide_secrets("https://me:word@host/a.wav?part=1&X-Amz-Signature=0f: no such file")
    'https://me:***@host/a.wav?part=1&X-Amz-Signature=***: no such file'
    """
    if "://" not in text:
        return text
    text = _LOGIN.sub(rf"\1{_HIDDEN}@", _PASSWORD.sub(rf"\1{_HIDDEN}@", text))
    return _PARAMETER.sub(lambda found: found[1] + _HIDDEN + _end_of_sentence(found[0]), text)


def unsigned(url: str) -> str:
    """Return a web address without its login and its signature: the same each time it is signed.

    >>> unsigned("https://me:word@host/a.wav?part=1&X-Amz-Date=2026&X-Amz-Signature=0f")
    'https://host/a.wav?part=1'
    """
    if not url.lower().startswith(("http://", "https://")):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address
        return url
    query, parameters = parts.query, parts.query.split("&")
    names = {_name(one) for one in parameters}
    if names & _SIGNATURES:
        is_azure = {"sig", "sv"} <= names
        query = "&".join(one for one in parameters if not _is_signature(_name(one), is_azure))
    return urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, parts.fragment))


def _name(parameter: str) -> str:
    return parameter.partition("=")[0].lower()


def _is_signature(name: str, is_azure: bool) -> bool:
    return _SIGNED.fullmatch(name) is not None or (is_azure and name in _AZURE)


def _end_of_sentence(parameter: str) -> str:
    """Return the punctuation and quotes behind a URL in a sentence ("..X-Amz-Signature=0f: no such file")."""
    return parameter[len(parameter.rstrip(":,;.)'\"")) :]
