"""`fastscribe inspect --check` for many paths from one warm process: each in a fork that may grow by 2 GB, take 10 s and
write no byte.

python -m tests.helpers.forked_inspect    a path a line on stdin, {"code", "stdout", "stderr"} a line on stdout
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
from pathlib import Path

GROWTH_BYTES = 2 << 30
SECONDS = 10


def main() -> None:
    from fastscribe._system.openmp import wait_politely

    wait_politely()
    for module in ("safetensors.torch", "sentencepiece", "fastscribe.cli", "fastscribe.cli.describe"):
        importlib.import_module(module)
    gc.freeze()  # or each fork would copy what its garbage collector looks at
    for line in sys.stdin:
        print(json.dumps(inspected(json.loads(line))), flush=True)


def inspected(path: str) -> dict[str, object]:
    (stdout, its_stdout), (stderr, its_stderr) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(its_stdout, 1)
        os.dup2(its_stderr, 2)
        _inspect(path)
    os.close(its_stdout)
    os.close(its_stderr)
    with os.fdopen(stderr, "rb") as file, os.fdopen(stdout, "rb") as other:
        said, printed = file.read().decode(), other.read().decode()
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "stdout": printed, "stderr": said}


def _inspect(path: str) -> None:
    from fastscribe.cli import main as fastscribe_main

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.alarm(SECONDS)
    sys.argv = ["fastscribe", "inspect", path, "--check"]
    code = 70
    try:
        fastscribe_main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 71
    except BaseException as error:
        print(f"Traceback of {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
