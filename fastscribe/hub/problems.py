"""What goes wrong with the hub, each in one line that says what to do."""

from __future__ import annotations

import errno
import math
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from fastscribe.errors import CheckpointError, HubUnreachable, first_line
from fastscribe.hub.name import HubName

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_ANOTHER_WAY = "or download the model elsewhere and give its path"
_RATE_LIMIT = re.compile(r";\s*t=(\d+)")  # of the header RateLimit: seconds until the next request is welcome
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class HubBusy(HubUnreachable):
    """The hub answered 429 or 5xx: worth another attempt.

    Attributes:
        retry_after_s: the wait that the hub asks for, if it does.
    """

    def __init__(self, name: HubName, reason: str, cure: str, retry_after_s: float | None) -> None:
        super().__init__(name, reason, cure)
        self.retry_after_s = retry_after_s


class NotAHub(HubUnreachable):
    """Something answered that is no hub: a log-in page of a network, or a wrong HF_ENDPOINT."""

    def __init__(self, name: HubName, problem: str) -> None:
        reason = f"the answer is not that of a Hugging Face hub ({problem[:200]})"
        super().__init__(name, reason, "check HF_ENDPOINT, the proxy, and whether the network wants a log-in")


@contextmanager
def translated(library: Any, name: HubName) -> Iterator[None]:
    """Turns errors of huggingface_hub and its HTTP library into CheckpointError, HubBusy and HubUnreachable."""
    http_error = library.errors.HfHubHTTPError
    transport_errors = http_error.__mro__[1]  # HTTPError of httpx, above its transport's errors too, or of requests
    try:
        yield
    except CheckpointError:
        raise
    except http_error as error:
        raise _refused(library, name, error.response) from error
    except (transport_errors, ConnectionError, TimeoutError) as error:
        raise _unreachable(library, name, error) from error
    except OSError as error:
        if not type(error).__module__.startswith("requests"):
            raise
        raise _unreachable(library, name, error) from error


def _refused(library: Any, name: HubName, response: Any) -> CheckpointError:
    """By the status, because the library's exception for 401 depends on its version and on the address."""
    status, headers, hub = response.status_code, response.headers, library.constants.ENDPOINT
    code, message = headers.get("X-Error-Code"), headers.get("X-Error-Message") or "no reason given"
    page = f"{hub}/{name.repo}"
    if status == 429:
        wait_s = _retry_after_s(headers)
        when = "later" if wait_s is None else f"in {wait_s:.0f} s"
        cure = f"try again {when}; with an account the limit is higher: {_LOG_IN}"
        return HubBusy(name, "too many requests to the Hugging Face hub (429)", cure, wait_s)
    if status >= 500 or status == 408:
        cure = f"try again later (https://status.huggingface.co), {_ANOTHER_WAY}"
        return HubBusy(name, f"the Hugging Face hub fails ({status})", cure, _retry_after_s(headers))
    if code == "GatedRepo":
        problem = f"the model is gated ({status}): accept its licence at {page}, then {_LOG_IN}"
    elif code == "RevisionNotFound":
        problem = f"the model has no revision {name.revision} ({status}): {page}/tree/main lists its branches and tags"
    elif status == 404:
        problem = f"neither a path here nor a model on the Hugging Face hub ({hub}, 404): check the spelling"
    elif status == 401 and _has_token(library):
        problem = f"the Hugging Face hub rejects the token (401): {_LOG_IN}, with a token that may read {page}"
    elif status == 401:
        problem = (
            f"neither a path here nor a public model on the Hugging Face hub ({hub}, 401): check the spelling; if the "
        )
        problem += f"model is private, {_LOG_IN}"
    elif status == 403:
        problem = f"the Hugging Face hub forbids access (403, {message}): ask for it at {page}, then {_LOG_IN}"
    else:
        problem = f"the Hugging Face hub ({hub}) rejects the request ({status}, {message}): see {page}"
    return CheckpointError(name, problem)


def _has_token(library: Any) -> bool:
    return "authorization" in {key.lower() for key in library.utils.build_hf_headers()}


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the hub asks to wait: by Retry-After (seconds or a date), or by RateLimit."""
    value = headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, math.ceil(parsedate_to_datetime(value).timestamp() - time.time()))
    except (ValueError, TypeError, OverflowError):
        limit = _RATE_LIMIT.search(headers.get("RateLimit", ""))
    return None if limit is None else float(limit[1][:9])


def _unreachable(library: Any, name: HubName, error: BaseException) -> HubUnreachable:
    hub = library.constants.ENDPOINT
    causes = list(_causes(error))

    def any_is(kind: type[BaseException] | str) -> bool:
        return any(
            kind in type(cause).__name__ if isinstance(kind, str) else isinstance(cause, kind) for cause in causes
        )

    if any_is("ProxyError"):
        reason, cure = f"the proxy does not pass requests on to {hub}", "check HTTPS_PROXY and NO_PROXY"
    elif any_is(socket.gaierror):
        reason, cure = (
            f"the address of {hub} cannot be found",
            "check the network and DNS; behind a proxy, set HTTPS_PROXY",
        )
    elif any_is(ssl.SSLError):
        reason = f"the certificate of {hub} cannot be verified"
        cure = "behind a proxy that opens TLS, name its certificate in SSL_CERT_FILE"
    elif any_is(TimeoutError) or any_is("Timeout"):
        reason = f"{hub} does not answer in time"
        cure = "check the network; HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT allow more seconds"
    elif any_is(ConnectionRefusedError):
        reason, cure = f"{hub} refuses connections", "check HF_ENDPOINT if it is set, and the firewall"
    elif (
        any_is(ConnectionResetError)
        or any_is("RemoteProtocolError")
        or any_is("ChunkedEncodingError")
        or any_is("ReadError")
    ):
        reason, cure = f"the connection to {hub} broke off", "check the network"
    else:
        reason, cure = f"no connection to {hub} ({first_line(error)[:200]})", "check the network"
    return HubUnreachable(name, reason, f"{cure}, {_ANOTHER_WAY}")


def check_endpoint(name: HubName, endpoint: str) -> None:
    """Raises HubUnreachable for an address that each version of huggingface_hub has another exception for."""
    if not endpoint.startswith(("https://", "http://")):
        raise HubUnreachable(
            name, f"HF_ENDPOINT is {endpoint}, which is no address", "unset it, or begin it with https://"
        )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def offline(name: HubName, root: Path) -> CheckpointError:
    problem = (
        f"no such path here, and not in the cache ({root}), and HF_HUB_OFFLINE forbids to download it: "
        f"unset HF_HUB_OFFLINE once, {_ANOTHER_WAY}"
    )
    return CheckpointError(name, problem)


def no_space(name: HubName, root: Path, needed: int, free: int) -> CheckpointError:
    problem = (
        f"needs {needed / 1e9:.2f} GB in {root}, where {free / 1e9:.2f} GB are free: free some, or set HF_HUB_CACHE to a "
        "folder on a larger disk"
    )
    return CheckpointError(name, problem)


def cannot_write(name: HubName, root: Path, error: OSError) -> CheckpointError:
    if error.errno in _FULL:
        cure = "free some space, or set HF_HUB_CACHE to a folder on a larger disk; what has arrived is kept"
    else:
        cure = "set HF_HUB_CACHE to a folder that can be written"
    return CheckpointError(name, f"the cache {root} cannot be written ({error.strerror or error}): {cure}")
