"""A program `fastscribe` for shells in forks of the warm process: most of a short command is the import of torch."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from tests.helpers.warm_process import WARM, Request, adopt, run_request

# It sends what it was started with and its streams, and ends as the fork does.
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    given = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [len(given).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(given)
    process = int.from_bytes(server.recv(8), "big")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(process, number))
    code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def forked_command(folder: Path) -> Iterator[None]:
    """Put the program into a folder, for as long as the context lasts. Only Linux's forks are safe; elsewhere none is there."""
    if sys.platform != "linux":
        yield
        return
    program, address = folder / "fastscribe", str(folder / "socket")
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with WARM.serve(__name__) as service:
        service.send(address)
        service.recv()
        yield


# In a fork of the warm process


def serve(service: Connection) -> None:
    """Start commands until the connection closes."""
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        server.bind(service.recv())
        server.listen()
        service.send("ready")
        for one in (server, service):
            selector.register(one, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if service in ready:
                break
            client = server.accept()[0]
            if os.fork() == 0:
                server.close()
                _watch(client)
            client.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _watch(client: socket.socket) -> None:
    """Start a command, say its number, and wait for it to say its exit code."""
    size, streams, *_ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as given:
        arguments, environment, folder = json.loads(given.read(int.from_bytes(size, "big")))
    if (child := os.fork()) == 0:
        client.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        request = Request(arguments, b"", environment, folder)
        adopt(request)
        run_request(request)
    for stream in streams:
        os.close(stream)
    for signal_number in (signal.SIGINT, signal.SIGTERM):  # of a whole group, for the command
        signal.signal(signal_number, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        client.sendall(child.to_bytes(8, "big"))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.sendall(code.to_bytes(8, "big", signed=True))
    os._exit(0)
