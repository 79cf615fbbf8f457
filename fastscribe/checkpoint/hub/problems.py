"""Errors of the hub as one line each: what, where, what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastscribe.checkpoint.hub_name import HubName
from fastscribe.errors import CheckpointError, HubUnreachable, first_line

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_ANOTHER_WAY = "or download the model elsewhere and give its path"
_RATE_LIMIT = re.compile(r";\s*t=(\d+)")  # in the header RateLimit: seconds until the limit resets
_LARGER_DISK = "free some space, or set HF_HUB_CACHE to a folder on a larger disk"

# By X-Error-Code, else by the status: huggingface_hub's exception for a status depends on its version.
_REFUSALS = {
    "GatedRepo": f"the model is gated ({{status}}): accept its licence at {{page}}, then {_LOG_IN}",
    "RevisionNotFound": "the model has no revision {revision} ({status}): {page}/tree/main lists its branches and tags",
    "rejected token": f"the Hugging Face hub rejects the token (401): {_LOG_IN}, with a token that may read {{page}}",
    401: "neither a path here nor a public model on the Hugging Face hub ({hub}, 401): check the spelling; "
    f"if the model is private, {_LOG_IN}",
    403: f"the Hugging Face hub forbids access (403, {{message}}): ask for it at {{page}}, then {_LOG_IN}",
    404: "neither a path here nor a model on the Hugging Face hub ({hub}, 404): check the spelling",
}
_OTHER_REFUSAL = "the Hugging Face hub ({hub}) rejects the request ({status}, {message}): see {page}"

# Exception names of any cause, reason, what to do. The first match counts.
_CONNECTION_PROBLEMS = (
    ("ProxyError", "the proxy does not pass requests on to {hub}", "check HTTPS_PROXY and NO_PROXY"),
    ("gaierror", "the address of {hub} cannot be found", "check the network and DNS; behind a proxy, set HTTPS_PROXY"),
    ("SSL", "the certificate of {hub} cannot be verified", "name the certificate of a TLS proxy in SSL_CERT_FILE"),
    ("Timeout", "{hub} does not answer in time", "check the network; HF_HUB_ETAG_TIMEOUT allows more seconds"),
    ("ConnectionRefused", "{hub} refuses connections", "check HF_ENDPOINT if it is set, and the firewall"),
    ("UnsupportedProtocol", "HF_ENDPOINT is {hub}, which is no address", "unset it, or begin it with https://"),
    ("ConnectionReset|RemoteProtocol|ReadError", "the connection to {hub} broke off", "check the network"),
    ("", "no connection to {hub} ({error})", "check the network"),
)


class HubBusy(HubUnreachable):
    """The hub answered 429 or 5xx, so a retry makes sense.

    Attributes:
        retry_after_s: value of Retry-After, if given.
    """

    def __init__(self, name: HubName, reason: str, cure: str, retry_after_s: float | None) -> None:
        super().__init__(name, reason, cure)
        self.retry_after_s = retry_after_s


@contextmanager
def translate_errors(library: Any, name: HubName) -> Iterator[None]:
    """Convert exceptions of huggingface_hub and its libraries to CheckpointError, HubBusy and HubUnreachable."""
    try:
        yield
    except Exception as error:
        raise _translate(library, name, error) from error


def _translate(library: Any, name: HubName, error: Exception) -> CheckpointError:
    causes, cache, reason = list(_causes(error)), library.constants.HF_HUB_CACHE, first_line(error)[:200]
    for cause in causes:
        if isinstance(cause, library.errors.HfHubHTTPError):
            return _refused(library, name, cause.response)
    transport_error = library.errors.HfHubHTTPError.__mro__[1]  # HTTPError of the HTTP library, whichever it is
    if any(isinstance(cause, (transport_error, ConnectionError, TimeoutError)) for cause in causes):
        return _unreachable(library, name, causes)
    if isinstance(error, UserWarning):
        return CheckpointError(name, f"{error} {_LARGER_DISK}")
    if isinstance(error, OSError) and error.errno is not None:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        cure = _LARGER_DISK if is_full else "set HF_HUB_CACHE to a folder that can be written"
        return CheckpointError(name, f"the cache {cache} cannot be written ({error.strerror}): {cure}")
    other_json = (library.errors.FileMetadataError, AttributeError, LookupError, TypeError, ValueError)
    if any(isinstance(cause, other_json) for cause in causes):
        cure = "check HF_ENDPOINT, the proxy, and whether the network wants a log-in"
        return HubUnreachable(name, f"the answer is not that of a Hugging Face hub ({reason})", cure)
    return HubUnreachable(name, f"the download failed ({reason})", "try again; HF_HUB_DISABLE_XET=1 takes plain HTTP")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _refused(library: Any, name: HubName, response: Any) -> CheckpointError:
    status, headers, hub = response.status_code, response.headers, library.constants.ENDPOINT
    if status == 429:
        wait_s = _retry_after_s(headers)
        when = "later" if wait_s is None else f"in {wait_s:.0f} s"
        cure = f"try again {when}; with an account the limit is higher: {_LOG_IN}"
        return HubBusy(name, "too many requests to the Hugging Face hub (429)", cure, wait_s)
    if status >= 500 or status == 408:
        cure = f"try again later (https://status.huggingface.co), {_ANOTHER_WAY}"
        return HubBusy(name, f"the Hugging Face hub fails ({status})", cure, _retry_after_s(headers))
    key = headers.get("X-Error-Code")
    if key not in _REFUSALS:
        has_token = any(header.lower() == "authorization" for header in library.utils.build_hf_headers())
        key = "rejected token" if status == 401 and has_token else status
    message = headers.get("X-Error-Message") or "no reason given"
    facts = {"status": status, "hub": hub, "page": f"{hub}/{name.repo}", "revision": name.revision, "message": message}
    return CheckpointError(name, _REFUSALS.get(key, _OTHER_REFUSAL).format(**facts))


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After", "").strip()
    limit = _RATE_LIMIT.search(headers.get("RateLimit", ""))
    return float(value[:9]) if value.isdigit() else float(limit[1][:9]) if limit else None


def _unreachable(library: Any, name: HubName, causes: list[BaseException]) -> HubUnreachable:
    names = " ".join(type(cause).__name__ for cause in causes)
    reason, cure = next((reason, cure) for kind, reason, cure in _CONNECTION_PROBLEMS if re.search(kind, names))
    facts = {"hub": library.constants.ENDPOINT, "error": first_line(causes[0])[:200]}
    return HubUnreachable(name, reason.format(**facts), f"{cure}, {_ANOTHER_WAY}")


def offline(library: Any, name: HubName) -> CheckpointError:
    problem = (
        f"no such path here, and not in the cache ({library.constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE forbids to "
        f"download it: unset HF_HUB_OFFLINE once, {_ANOTHER_WAY}"
    )
    return CheckpointError(name, problem)
