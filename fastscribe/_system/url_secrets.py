"""Passwords and signatures in URLs: hidden in messages, and ignored in what identifies a recording. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

_HIDDEN = "***"
# "user:password@" of any scheme. A password may hold a "/" or "@" that should have been escaped, so all up to the last "@" of
# the path goes, but a usual port is no password. (?!://): not into the next URL.
_PASSWORD = re.compile(
    r"(?<=://)([^/?#@:\s\[]*:)(?!(?:80|443|[1-9]\d{3,4})?(?:[/?#\s]|$))(?:(?:(?!://)[^?#\s])*|(?:(?!://)\S)*)@"
)
# "token@" of web addresses alone: in abfs://container@account it is no secret.
_LOGIN = re.compile(r"(?i)(https?://)[^/?#:\s]+@")
_PARAMETER = re.compile(
    r"(?i)([?&#](?:(?:x-amz-|x-goog-)?(?:signature|credential|security-token)|sig|policy|auth|apikey|awsaccesskeyid"
    r"|(?:[\w-]*[_-])?(?:token|key|secret|jwt|password|passwd|pwd))=)[^&#\s]+"
)


class _Scheme(NamedTuple):
    """How addresses are signed. The parameters change each time an address is signed."""

    signature: str
    one_of: frozenset[str]  # without any of these beside it, "signature" may be anything, such as a recording's name
    parameters: frozenset[str]


_AMZ = frozenset(
    f"x-amz-{one}" for one in ["algorithm", "credential", "date", "expires", "signedheaders", "security-token"]
)
_GOOG = frozenset(f"x-goog-{one}" for one in ["algorithm", "credential", "date", "expires", "signedheaders"])
_SCHEMES = (
    _Scheme("x-amz-signature", _AMZ, _AMZ),
    _Scheme("x-goog-signature", _GOOG, _GOOG),
    _Scheme(  # CloudFront, and the older ones of S3 and Google
        "signature",
        frozenset({"expires", "key-pair-id"}),
        frozenset({"expires", "key-pair-id", "policy", "awsaccesskeyid", "googleaccessid", "x-amz-security-token"}),
    ),
    _Scheme(  # Azure
        "sig",
        frozenset({"sv"}),
        frozenset(["sv", "se", "st", "sp", "sr", "spr", "sip", "skoid", "sktid", "skt", "ske", "sks", "skv"]),
    ),
    _Scheme("sig", frozenset({"expires"}), frozenset({"expires"})),
)


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
    parameters = parts.query.split("&")
    names = {_name(one) for one in parameters}
    signed = {
        name
        for scheme in _SCHEMES
        if scheme.signature in names and scheme.one_of & names
        for name in {scheme.signature, *scheme.parameters}
    }
    query = "&".join(one for one in parameters if _name(one) not in signed)
    return urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, parts.fragment))


def _name(parameter: str) -> str:
    return parameter.partition("=")[0].lower()


def _end_of_sentence(parameter: str) -> str:
    """Return the punctuation and quotes behind a URL in a sentence ("..X-Amz-Signature=0f: no such file")."""
    return parameter[len(parameter.rstrip(":,;.)'\"")) :]
