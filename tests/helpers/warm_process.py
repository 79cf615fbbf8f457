"""Run commands in forks of one process that has imported torch, which saves each the two seconds of imports.

Exit code, stdout and stderr are those of `python -m fastscribe`. A fork runs the exit handlers but skips Python's teardown of
modules. Tests of signals, terminals, closed streams, start-up and the end of the interpreter start a process from nothing
instead.

python -m tests.helpers.warm_process FD    serves requests on a connection until the other end closes
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]

TIMEOUT_S = 100
PRELOADED = (
    "resource",
    "rich.progress",
    "sentencepiece",
    "fastscribe._system.standard_streams",
    "fastscribe.alignment.aligner",
    "fastscribe.audio.flac_frames",
    "fastscribe.audio.tags",
    "fastscribe.checkpoint.exchange",
    "fastscribe.checkpoint.native",
    "fastscribe.checkpoint.nemo",
    "fastscribe.checkpoint.packaged_model",
    "fastscribe.cli.completion",
    "fastscribe.cli.input_count",
    "fastscribe.cli.long_help",
    "fastscribe.cli.models",
    "fastscribe.cli.packaged_model",
    "fastscribe.cli.transcribe",
    "fastscribe.context.language_model",
    "fastscribe.decode.batched_beam",
    "fastscribe.decode.fast_predictor",
    "fastscribe.decode.label_looping",
    "fastscribe.dry_run",
    "fastscribe.families.conformer.family",
    "fastscribe.families.conformer.nemo",
    "fastscribe.pipeline.local",
    "fastscribe.pipeline.recognizer",
    "fastscribe.ray.run",
    "fastscribe.results.export",
    "fastscribe.results.formats.cue_files",
    "fastscribe.results.merge_objects",
    "fastscribe.results.output",
    "fastscribe.results.outputs",
    "fastscribe.results.rows",
    "fastscribe.results.storage_folder",
    "fastscribe.results.storage_object",
    "fastscribe.results.stream",
    "fastscribe.transcriber",
)
OPTIONAL = ("pydantic.plugin._loader", "pydantic.type_adapter", "typer._adapters")  # some versions of typer use them
UNWANTED = ("huggingface_hub",)  # reads the environment when it is imported


@dataclass(frozen=True)
class Limits:
    """Limits of a confined command."""

    growth_bytes: int
    """Address space beyond that of the warm process."""
    file_bytes: int
    """Size of any file that it writes."""
    seconds: int


@dataclass(frozen=True)
class Request:
    arguments: list[str]
    stdin: bytes
    environment: dict[str, str]
    folder: str
    limits: Limits | None


class WarmProcess:
    """Runs one command at a time. Starts with the first command. `close` ends it; a later command starts another one."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def run(
        self,
        *arguments: object,
        stdin: str = "",
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        limits: Limits | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command, as subprocess.run(.., capture_output=True, text=True) would.

        Raises:
            subprocess.TimeoutExpired: The command took more than 100 s.
        """
        request = Request(
            arguments=list(map(str, arguments)),
            stdin=stdin.encode(),
            environment=dict(os.environ if env is None else env),
            folder=str(cwd or Path.cwd()),
            limits=limits,
        )
        if sys.platform != "linux":  # forks of a process with threads are not safe on macOS, and Windows has none
            return _fresh(request)
        process, connection = self._running = self._running or _started()
        in_time = True
        try:
            connection.send(request)
            in_time = connection.poll(TIMEOUT_S)
            if not in_time:
                os.killpg(process.pid, signal.SIGKILL)
            code, stdout, stderr = connection.recv()
        except (EOFError, ConnectionError):
            problem = self.close()
            if in_time:
                raise RuntimeError(f"the warm process ended: {problem}") from None
            raise subprocess.TimeoutExpired(request.arguments, TIMEOUT_S) from None
        return subprocess.CompletedProcess(request.arguments, code, _text(stdout), _text(stderr))

    def close(self) -> str:
        """End the warm process and return what it wrote to stderr."""
        if self._running is None:
            return ""
        process, connection = self._running
        self._running = None
        connection.close()
        return process.communicate()[1].decode()


def _fresh(request: Request) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    assert request.limits is None, "only Linux's processes are confined"
    return subprocess.run(
        [sys.executable, "-m", "fastscribe", *request.arguments],
        input=request.stdin.decode(),
        env=request.environment,
        cwd=request.folder,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )


def _started() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.warm_process", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # as a command has it: Python looks once whether a stream is a pipe
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a Ctrl-C for pytest is none for it
        )
    return process, Connection(ours.detach())


def _text(content: bytes) -> str:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()


WARM = WarmProcess()


# In the warm process


def main() -> None:
    from fastscribe._system.openmp import limit_openmp_spin

    limit_openmp_spin()
    for module in PRELOADED:
        importlib.import_module(module)
    for module in OPTIONAL:
        with suppress(ImportError):
            importlib.import_module(module)
    assert not set(UNWANTED) & set(sys.modules)
    gc.freeze()  # or each fork would copy what its garbage collector looks at
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # of torch's libraries: a third of a fork's time
    request = _next_command(Connection(int(sys.argv[1])))
    if request is not None:
        _run(request)


def _next_command(connection: Connection) -> Request | None:
    """Return each fork's request; in the warm process None, at the end."""
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            return None
        (stdin, to_stdin), (stdout, its_stdout), (stderr, its_stderr) = os.pipe(), os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy has idle threads, which forks do without
            child = os.fork()
        if child == 0:
            for number, end in enumerate((stdin, its_stdout, its_stderr)):
                os.dup2(end, number)
            for end in (stdin, to_stdin, stdout, its_stdout, stderr, its_stderr):
                os.close(end)
            connection.close()
            _adopt(request)
            return request
        for end in (stdin, its_stdout, its_stderr):
            os.close(end)
        printed, said = _exchanged(request.stdin, to_stdin, stdout, stderr)
        connection.send((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed, said))


def _run(request: Request) -> NoReturn:
    code = 1
    try:
        sys.argv = ["fastscribe", *request.arguments]
        runpy.run_module("fastscribe", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _adopt(request: Request) -> None:
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    if request.limits is not None:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + request.limits.growth_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_FSIZE, (request.limits.file_bytes, request.limits.file_bytes))
        signal.alarm(request.limits.seconds)


def _exchanged(given: bytes, to_stdin: int, *outputs: int) -> list[bytes]:
    """Return everything from each of the outputs until it is closed, while stdin gets the input."""
    found = {output: bytearray() for output in outputs}
    with selectors.DefaultSelector() as selector:
        selector.register(to_stdin, selectors.EVENT_WRITE)
        for output in outputs:
            selector.register(output, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if key.fd == to_stdin:
                    try:
                        given = given[os.write(to_stdin, given[:4096]) :]
                    except BrokenPipeError:
                        given = b""
                    done = not given
                else:
                    content = os.read(key.fd, 65536)
                    found[key.fd] += content
                    done = not content
                if done:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return [bytes(found[output]) for output in outputs]


if __name__ == "__main__":
    main()
