"""Run commands in forks of one process that has imported torch, which saves each the two seconds of imports.

Exit code, stdout and stderr are those of `python -m fastscribe`. A fork runs the exit handlers but skips Python's teardown of
modules, and its streams are open when Python looks at them first. Tests of closed streams, start-up and the end of the
interpreter start a process from nothing instead.

python -m tests.helpers.warm_process FD program    serves requests on a connection until the other end closes
python -m tests.helpers.warm_process FD libraries  the same, with nothing of fastscribe imported: its forks run programs
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
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn

from tests.helpers.huge_pages import collapse

ROOT = Path(__file__).parents[2]

TIMEOUT_S = 100
# What commands import, without what these import.
PRELOADED = (
    "numpy.ma",
    "resource",
    "rich.progress",
    "sentencepiece",
    "fastscribe.alignment.aligner",
    "fastscribe.audio.flac",
    "fastscribe.cli.models",
    "fastscribe.cli.nothing_to_do",
    "fastscribe.cli.transcribe",
    "fastscribe.context.language_model",
    "fastscribe.decode.batched_beam",
    "fastscribe.dry_run",
    "fastscribe.pipeline.local",
    "fastscribe.ray.run",
    "fastscribe.results.export",
    "fastscribe.results.formats.cue_files",
    "fastscribe.results.storage_object",
    "fastscribe.results.stream",
    "fastscribe.speakers.side_model",
    "fastscribe.speakers.readers",
    "fastscribe.speakers.stage",
)
BUILT = ("transcribe", "export", "merge", "inspect", "convert")  # commands
OPTIONAL = (
    *("pydantic.plugin._loader", "pydantic.type_adapter", "typer._adapters"),  # some versions of typer use them
    *("jiwer", "whisper_normalizer.english"),  # of the extra eval
    *("boto3", "s3transfer", "obstore"),  # of the extra remote
)
UNWANTED = ("huggingface_hub",)  # reads the environment when it is imported
# What a run imports of others. Nothing that a run may do without: programs look at what is imported.
LIBRARIES = ("torch", "numpy", "sentencepiece", "soundfile", "typer")


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
    limits: Limits | None = None
    program: str = ""
    """What to run instead of fastscribe, as `python -c` would."""
    has_streams: bool = False
    """Whether its stdin, stdout and stderr follow, which are pipes otherwise."""
    timeout_s: float | None = None
    """None: TIMEOUT_S."""


class Started:
    """A command that has begun, with the part of a Popen's interface that tests use. Leaving the context kills it."""

    def __init__(self, warm: WarmProcess, arguments: list[str]) -> None:
        self._warm, self._arguments = warm, arguments
        self.pid = int(warm.answer_(arguments))
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self.wait() if self.returncode is None and self._warm.has_answer() else self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = int(self._warm.answer_(self._arguments, timeout))
            except subprocess.TimeoutExpired:  # the warm process is killed then, with its forks
                self.returncode = -signal.SIGKILL
                raise
        return self.returncode

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.kill()
            self.wait()


@dataclass(frozen=True)
class Service:
    """A module whose serve(connection) runs in a fork of its own until the other end of the connection closes."""

    module: str


class WarmProcess:
    """Runs one command at a time. Starts with the first command. `close` ends it; a later command starts another one."""

    def __init__(self, imports: Literal["program", "libraries"] = "program") -> None:
        self._imports = imports
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def run(
        self,
        *arguments: object,
        stdin: str | bytes = "",
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
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            environment=dict(os.environ if env is None else env),
            folder=str(cwd or Path.cwd()),
            limits=limits,
        )
        return self._completed(request)

    def python(
        self,
        program: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program, as `python -c` would. Raises subprocess.TimeoutExpired."""
        environment, given = dict(os.environ if env is None else env), list(map(str, arguments))
        request = Request(given, b"", environment, str(cwd or Path.cwd()), program=program, timeout_s=timeout_s)
        return self._completed(request)

    def start(
        self, *arguments: object, stdin: int, stdout: int, stderr: int, env: dict[str, str] | None = None
    ) -> Started | subprocess.Popen[bytes]:
        """Begin one command, whose stdin, stdout and stderr are these descriptors. No other runs before its end."""
        environment = dict(os.environ if env is None else env)
        request = Request(list(map(str, arguments)), b"", environment, str(Path.cwd()), has_streams=True)
        if sys.platform != "linux":
            return subprocess.Popen(_command(request), stdin=stdin, stdout=stdout, stderr=stderr, env=environment)
        process, connection = self._running = self._running or _started(self._imports)
        connection.send(request)
        for stream in (stdin, stdout, stderr):
            send_handle(connection, stream, process.pid)
        return Started(self, request.arguments)

    def _completed(self, request: Request) -> subprocess.CompletedProcess[str]:
        if sys.platform != "linux":  # forks of a process with threads are not safe on macOS, and Windows has none
            return _fresh(request)
        self._running = self._running or _started(self._imports)
        with suppress(ConnectionError):  # the answer says why
            self._running[1].send(request)
        code, stdout, stderr = self.answer_(request.arguments, request.timeout_s)
        return subprocess.CompletedProcess(request.arguments, code, _text(stdout), _text(stderr))

    def has_answer(self) -> bool:
        return self._running is not None and self._running[1].poll(0)

    def answer_(self, arguments: list[str], timeout: float | None = None) -> Any:
        """Wait for the next answer of the warm process. If none comes in time, kill the process."""
        assert self._running is not None
        process, connection = self._running
        in_time = True
        try:
            in_time = connection.poll(timeout or TIMEOUT_S)
            if not in_time:
                os.killpg(process.pid, signal.SIGKILL)
            return connection.recv()
        except (EOFError, ConnectionError):
            problem = self.close()
            if in_time:
                raise RuntimeError(f"the warm process ended: {problem}") from None
            raise subprocess.TimeoutExpired(arguments, timeout or TIMEOUT_S) from None

    def serve(self, module: str) -> Connection:
        """Start a service, and return the connection that it serves. Close that before the warm process."""
        process, connection = self._running = self._running or _started(self._imports)
        ours, theirs = socket.socketpair()
        with theirs:
            connection.send(Service(module))
            send_handle(connection, theirs.fileno(), process.pid)
        return Connection(ours.detach())

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
    done = subprocess.run(
        _command(request),
        input=request.stdin,
        env=request.environment,
        cwd=request.folder,
        capture_output=True,
        timeout=request.timeout_s or TIMEOUT_S,
        check=False,
    )
    return subprocess.CompletedProcess(request.arguments, done.returncode, _text(done.stdout), _text(done.stderr))


def _command(request: Request) -> list[str]:
    what = ["-c", request.program] if request.program else ["-m", "fastscribe"]
    return [sys.executable, *what, *request.arguments]


def _started(imports: str) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.warm_process", str(theirs.fileno()), imports],
            cwd=ROOT,
            # The allocator reads its settings once, so they would be those of every fork.
            env={name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))},
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
LIBRARIES_ALONE = WarmProcess("libraries")


# In the warm process


def main() -> None:
    if sys.argv[2] == "program":
        import_program()
        assert not set(UNWANTED) & set(sys.modules)
    else:
        for module in LIBRARIES:
            importlib.import_module(module)
        assert "fastscribe" not in sys.modules
    settle()
    request = _next_command(Connection(int(sys.argv[1])))
    if request is not None:
        run_request(request)


def import_program() -> None:
    """Import what commands import, and make them."""
    from fastscribe._system.process_settings import limit_openmp_spin

    limit_openmp_spin()
    for module in PRELOADED:
        importlib.import_module(module)
    for module in OPTIONAL:
        with suppress(ImportError):
            importlib.import_module(module)
    _build_commands()


def settle() -> None:
    """Make forks of this process cheap."""
    gc.collect()
    gc.freeze()  # or each fork would copy what its garbage collector looks at
    collapse()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # of torch's libraries: a third of a fork's time


def _build_commands() -> None:
    """Make the commands that most forks run from their declarations, which takes typer a tenth of a second in each."""
    import typer.main

    from fastscribe.cli import app

    build = typer.main.get_command
    built: Any = build(app)
    for name in BUILT:
        for parameter in built.commands[name].params:
            getattr(parameter, "get_runtime_param", lambda: None)()  # some versions of typer make it at its first use
    typer.main.get_command = lambda application: built if application is app else build(application)


def _next_command(connection: Connection) -> Request | None:
    """Return each fork's request; in the warm process None, at the end."""
    services = []
    while True:
        try:
            request: Request | Service = connection.recv()
        except EOFError:
            for service in services:
                os.waitpid(service, 0)
            return None
        if isinstance(request, Service):
            services.append(_start(request, connection))
            continue
        if request.has_streams:
            streams = [recv_handle(connection) for _ in range(3)]
            others: list[int] = []
        else:
            (stdin, to_stdin), (stdout, its_stdout), (stderr, its_stderr) = os.pipe(), os.pipe(), os.pipe()
            streams, others = [stdin, its_stdout, its_stderr], [to_stdin, stdout, stderr]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy has idle threads, which forks do without
            child = os.fork()
        if child == 0:
            for number, end in enumerate(streams):
                os.dup2(end, number)
            for end in (*streams, *others):
                os.close(end)
            connection.close()
            sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
            adopt(request)
            return request
        for end in streams:
            os.close(end)
        if request.has_streams:
            connection.send(child)
            connection.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            printed, said = _exchanged(request.stdin, *others)
            connection.send((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed, said))


def _start(service: Service, connection: Connection) -> int:
    """Start a service and return its process."""
    theirs = Connection(recv_handle(connection))
    with theirs, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            connection.close()
            try:
                importlib.import_module(service.module).serve(theirs)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
    return child


def run_request(request: Request) -> NoReturn:
    """Run the command or program of a fork, and end it."""
    code = 1
    try:
        sys.argv = ["-c" if request.program else "fastscribe", *request.arguments]
        if request.program:
            sys.modules["__main__"] = main_module = ModuleType("__main__")
            exec(request.program, main_module.__dict__)
        else:
            runpy.run_module("fastscribe", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as left:
        code = exit_code(left)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(left: SystemExit) -> int:
    """Return the code with which Python ends, and print what it prints."""
    if left.code is None or isinstance(left.code, int):
        return left.code or 0
    print(left.code, file=sys.stderr)
    return 1


def adopt(request: Request) -> None:
    """Take over the environment, the folder and the limits of a request."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    if request.limits is not None:
        confine(request.limits)


def confine(limits: Limits) -> None:
    """Let this process have no more than the limits."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + limits.growth_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    signal.alarm(limits.seconds)


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
    importlib.import_module("tests.helpers.warm_process").main()  # where pickle looks for the classes of requests
