"""Files from the hub into the cache: resumed where an earlier download stopped, checked, and renamed into place when whole."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from fastscribe.errors import CheckpointError, HubUnreachable
from fastscribe.hub import problems
from fastscribe.hub.cache import Cache
from fastscribe.hub.name import HubName

RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0)
MAX_RETRY_AFTER_S = 120.0  # a hub that asks for more is not waited for
_CHUNK_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16  # of an answer; what a cut connection may lose
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RemoteFile:
    """Attributes:
    path: below the repository's root.
    num_bytes: None where the hub does not say.
    sha256: of the content, where the hub says so: it does for large files.
    """

    path: str
    num_bytes: int | None
    sha256: str | None

    @classmethod
    def of(cls, sibling: Any) -> RemoteFile:
        """Check the types of a file's entry in huggingface_hub's listing."""
        sha256 = getattr(sibling.lfs, "sha256", None)
        is_sha256 = isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None
        num_bytes = sibling.size if type(sibling.size) is int and sibling.size >= 0 else None
        return cls(str(sibling.rfilename), num_bytes, sha256 if is_sha256 else None)

    def content(self, commit: str) -> str:
        """What the file holds, in words: another commit may hold the same."""
        return self.sha256 or f"{commit}/{self.path}"


def with_retries(
    action: Callable[[], _Result], name: HubName, say: Callable[[str], None], sleep: Callable[[float], None]
) -> _Result:
    """Run `action` again, after a growing wait, while the hub answers 429 or 5xx. Raises what the last attempt raised."""
    for attempt, delay_s in enumerate(RETRY_DELAYS_S, 1):
        try:
            return action()
        except problems.HubBusy as busy:
            _wait(busy, attempt, delay_s, name, say, sleep)
    return action()


def _wait(
    problem: HubUnreachable,
    attempt: int,
    delay_s: float,
    name: HubName,
    say: Callable[[str], None],
    sleep: Callable[[float], None],
) -> None:
    """Raises the problem where the hub asks for a longer wait than a person would stand."""
    asked_s = problem.retry_after_s if isinstance(problem, problems.HubBusy) else None
    wait_s = delay_s if asked_s is None else asked_s
    if wait_s > MAX_RETRY_AFTER_S:
        raise problem
    say(f"{name}: {problem.reason}; attempt {attempt + 1} of {len(RETRY_DELAYS_S) + 1} in {wait_s:.0f} s")
    sleep(wait_s)


class _Cut(HubUnreachable):
    """The answer ended before the file did."""


class Transfer:
    """Downloads files of one commit.

    Args:
        library: huggingface_hub.
        name: the model, for messages.
        commit: every file is asked for at this commit.
        cache: where files go.
        say: takes a line for each wait.
        sleep: waits, in seconds.
    """

    def __init__(
        self,
        library: Any,
        name: HubName,
        commit: str,
        cache: Cache,
        say: Callable[[str], None],
        sleep: Callable[[float], None],
    ) -> None:
        self._library, self._name, self._commit, self._cache = library, name, commit, cache
        self._say, self._sleep = say, sleep
        self._headers: Mapping[str, str] = {
            **library.utils.build_hf_headers(),
            "Accept-Encoding": "identity",  # lengths and ranges are then the file's own
        }

    def fetch(self, files: list[RemoteFile], progress: Callable[[int], None]) -> None:
        """Download the files, one after the other; `progress` takes the bytes of all of them so far."""
        before = 0
        for file in files:
            with self._cache.writing():
                before += self._fetch(file, lambda num_bytes, before=before: progress(before + num_bytes))  # type: ignore[misc]

    def _fetch(self, file: RemoteFile, progress: Callable[[int], None]) -> int:
        """Returns the file's size."""
        known = None if file.sha256 is None else self._cache.blob(file.sha256)
        if known is None or not known.is_file():  # another commit may have had the same content
            with self._locked(self._cache.partial(file.content(self._commit))) as (partial, path):
                if not self._cache.has(self._commit, file.path):
                    known = self._complete(file, partial, path, progress)
                    self._cache.link(self._commit, file.path, known)
        else:
            self._cache.link(self._commit, file.path, known)
        num_bytes = (self._cache.snapshot(self._commit) / file.path).stat().st_size
        progress(num_bytes)
        return num_bytes

    @contextmanager
    def _locked(self, path: Path) -> Iterator[tuple[IO[bytes], Path]]:
        """Open the unfinished download, which no other process then adds to.

        Without locks (some network file systems) two processes write the same bytes to the same places.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o666), "r+b") as partial:
            try:
                fcntl.flock(partial, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._say(f"{self._name}: another process is downloading it; waiting")
                fcntl.flock(partial, fcntl.LOCK_EX)
            except OSError:
                pass
            try:
                yield partial, path
            finally:
                partial.flush()
                if os.fstat(partial.fileno()).st_size == 0:
                    path.unlink(missing_ok=True)

    def _complete(self, file: RemoteFile, partial: IO[bytes], path: Path, progress: Callable[[int], None]) -> Path:
        """Fill the unfinished download and give it its final name, which is returned."""
        attempt = 0
        while True:
            start = partial.seek(0, os.SEEK_END)
            try:
                blob = self._stream(file, partial, progress)
                break
            except problems.NotAHub:
                raise
            except HubUnreachable as problem:
                attempt = 0 if partial.seek(0, os.SEEK_END) > start else attempt
                if attempt == len(RETRY_DELAYS_S):
                    raise
                _wait(problem, attempt + 1, RETRY_DELAYS_S[attempt], self._name, self._say, self._sleep)
                attempt += 1
        if not blob.is_file():
            self._check(file, partial)
            partial.flush()
            os.fsync(partial.fileno())
            os.replace(path, blob)
        else:
            path.unlink(missing_ok=True)
        return blob

    def _stream(self, file: RemoteFile, partial: IO[bytes], progress: Callable[[int], None]) -> Path:
        """Make one request for what is missing. Returns the name that the content has in the cache."""
        done = partial.seek(0, os.SEEK_END)
        with problems.translated(self._library, self._name), self._response(file, done) as (response, chunks):
            if response.status_code == 416:  # the unfinished download is no beginning of this file
                partial.truncate(0)
                raise _Cut(self._name, f"{file.path} is not as it was; it starts again", "try again")
            self._library.utils.hf_raise_for_status(response)
            first, end = _range(response)
            if first != done:
                partial.truncate(first)
            if first > done:
                raise problems.NotAHub(self._name, "it sends another part of the file than asked for")
            blob = self._blob(file, response)
            if blob.is_file():
                return blob
            done = partial.seek(first)
            for chunk in chunks:
                if end is not None and done + len(chunk) > end:
                    raise problems.NotAHub(self._name, f"it sends more of {file.path} than the file is long")
                partial.write(chunk)
                done += len(chunk)
                progress(done)
            partial.flush()
        if end is not None and done < end:
            raise _Cut(self._name, f"the connection ended at {done:,} of {end:,} bytes of {file.path}", "try again")
        return blob

    @contextmanager
    def _response(self, file: RemoteFile, start: int) -> Iterator[tuple[Any, Iterator[bytes]]]:
        """Ask for the file from byte `start` on, by either HTTP library that huggingface_hub has used."""
        constants, session = self._library.constants, self._library.utils.get_session()
        url = f"{constants.ENDPOINT}/{self._name.repo}/resolve/{self._commit}/{quote(file.path)}"
        headers = {**self._headers, "Range": f"bytes={start}-"} if start else self._headers
        timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        if callable(session.stream):  # httpx, since huggingface_hub 1.0
            with session.stream("GET", url, headers=headers, timeout=timeout_s, follow_redirects=True) as response:
                yield response, response.iter_bytes()
        else:  # requests
            with session.get(url, headers=headers, timeout=timeout_s, stream=True) as response:
                yield response, response.iter_content(_PIECE_BYTES)

    def _blob(self, file: RemoteFile, response: Any) -> Path:
        """Where the content belongs: by its checksum, which the hub sends with the answer or with the redirect before it."""
        headers = [each.headers for each in (*response.history, response)]
        tags = [each.get(name) for name in ("X-Linked-ETag", "ETag") for each in headers]
        unnamed = hashlib.sha256(file.content(self._commit).encode("utf-8", "surrogatepass")).hexdigest()
        tag = next((tag for tag in (file.sha256, *tags) if tag), unnamed)  # some mirrors send none
        blob = self._cache.blob(tag.removeprefix("W/").strip('"'))
        if blob is None:
            raise problems.NotAHub(self._name, f"no usable ETag for {file.path}")
        return blob

    def _check(self, file: RemoteFile, partial: IO[bytes]) -> None:
        """Raises CheckpointError, after discarding the download, where the content is not what the hub announced."""
        if file.sha256 is None:
            return
        partial.seek(0)
        digest = hashlib.sha256()
        while chunk := partial.read(_CHUNK_BYTES):
            digest.update(chunk)
        if digest.hexdigest() != file.sha256:
            partial.truncate(0)
            problem = (
                f"{file.path} arrived damaged (its SHA-256 is not the hub's) and was discarded; run the command again"
            )
            raise CheckpointError(self._name, problem)


def _range(response: Any) -> tuple[int, int | None]:
    """The first byte of an answer within the file, and the file's size, None where the answer does not say."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code == 206 and found:
        return int(found[1]), int(found[2])
    length = response.headers.get("Content-Length", "")
    is_encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    return 0, int(length) if length.isdigit() and not is_encoded else None
