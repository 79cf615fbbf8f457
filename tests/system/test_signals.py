"""Signals at critical moments, in processes that interrupt themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.posix

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
START = """
import os, signal, sys, time
from contextlib import suppress
signal.signal(signal.SIGINT, signal.default_int_handler)
from fastscribe._system.signals import SignalHandler, Terminated, exit_on_sigint

def interrupt():
    os.kill(os.getpid(), int(sys.argv[1]))
    sum(range(100))

def run():
    stop = SignalHandler(run)
    stop.install()
    try:
        do()
        os.write(1, b"goes on\\n")
        time.sleep(30)
    except KeyboardInterrupt:
        return 130
    except Terminated:
        return 143
    finally:
        stop.restore()
    return 0
"""
END = "\nsys.exit(run())"
PLACES = {
    "an import by what takes any error for a missing module": """
import importlib.abc, importlib.util
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "slow" else None
    def exec_module(self, module):
        interrupt()
        module.is_whole = True
sys.meta_path.insert(0, Finder())
def do():
    with suppress(BaseException):
        import slow
    assert sys.modules["slow"].is_whole
""",
    "text that is executed": """
def do():
    exec("interrupt()")
""",
    "a finaliser": """
class Short:
    def __del__(self):
        interrupt()
def do():
    Short()
""",
}


def ended(folder: Path, script: str, sent: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
    (folder / "script.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{script}", encoding="utf-8")
    command = [sys.executable, str(folder / "script.py"), str(int(sent))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("sent", CODES)
@pytest.mark.parametrize("place", PLACES)
def test_lost_signal_raised_again(place: str, sent: signal.Signals, tmp_path: Path) -> None:
    code, out, said = ended(tmp_path, START + PLACES[place] + END, sent)
    assert (code, said) == (CODES[sent], "") and out in (
        "goes on\n",
        "",
    )  # on a busy machine the retry may come too late


@pytest.mark.parametrize("sent", CODES)
def test_long_import_exits(tmp_path: Path, sent: signal.Signals) -> None:
    endless = PLACES["text that is executed"].replace("interrupt()", "interrupt()\\nwhile True: pass")
    code, out, said = ended(tmp_path, START + endless + END, sent)
    assert (code, out) == (CODES[sent], "") and said in ("fastscribe: interrupted\n", "fastscribe: terminated\n")


@pytest.mark.parametrize("sent", CODES)
def test_signal_raised_at_once(sent: signal.Signals, tmp_path: Path) -> None:
    assert ended(tmp_path, START + "\ndo = interrupt" + END, sent) == (CODES[sent], "", "")


@pytest.mark.posix
def test_a_signal_asks_where_the_threads_stand(tmp_path: Path) -> None:
    do = """
def do():
    os.kill(os.getpid(), signal.SIGUSR1)
    interrupt()
"""
    code, out, said = ended(tmp_path, START + do + END)
    assert (code, out) == (130, "") and "most recent call first" in said and "in do" in said


@pytest.mark.parametrize("sent", CODES)
def test_second_signal_exits(sent: signal.Signals, tmp_path: Path) -> None:
    """Even if the program lets no exception through."""
    do = """
def do():
    for _ in range(2):
        with suppress(BaseException):
            interrupt()
    print("goes on")
"""
    assert ended(tmp_path, START + do + END, sent) == (CODES[sent], "", "")


def test_ignored_sigint_stays_ignored(tmp_path: Path) -> None:
    ignored = "\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nexit_on_sigint()\ntime.sleep = lambda seconds: None"
    assert ended(tmp_path, START + ignored + "\ndo = interrupt" + END) == (0, "goes on\n", "")


AT_AN_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["fastscribe", "bench", "--quick", "--clips", "8"]
from fastscribe.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "name",
    [
        "fastscribe.cli",  # before the command line is read
        "numpy.matrixlib.defmatrix",  # by torch's native code
    ],
)
def test_signal_during_start_up(name: str, tmp_path: Path) -> None:
    assert ended(tmp_path, AT_AN_IMPORT.format(name=name)) == (130, "", "fastscribe: interrupted\n")


AS_AN_ERROR = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import fastscribe.cli
from fastscribe.errors import OutputError, UsageError

def app(standalone_mode):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(100))
    except KeyboardInterrupt:
        {then}
    raise UsageError("no model")

sys.argv = ["fastscribe", "bench"]
fastscribe.cli.app = app
fastscribe.cli.main()
"""


def test_error_made_from_signal(tmp_path: Path) -> None:
    assert ended(tmp_path, AS_AN_ERROR.format(then="pass")) == (130, "", "fastscribe: interrupted\n")


WITH_A_THREAD = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import fastscribe.cli
from fastscribe._system.signals import end_process
from fastscribe.cli.app import StdoutClosed
from fastscribe.errors import UsageError

def app(standalone_mode):
    atexit.register(os.abort)  # as a thread in native code does now and then while Python ends
    sys.stdout.write("done so far")
    {end}

sys.argv = ["fastscribe", "bench"]
fastscribe.cli.app = app
end_process(fastscribe.cli.exit_code())
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGINT); sum(range(100))", 130, "interrupted"),
        ("raise StdoutClosed", 141, None),
        ("raise UsageError('no model')", 2, "no model"),
        ("return 1", 1, None),
    ],
)
def test_threads_do_not_abort_exit(end: str, code: int, said: str | None, tmp_path: Path) -> None:
    expected = "" if said is None else f"fastscribe: {said}\n"
    assert ended(tmp_path, WITH_A_THREAD.format(end=end)) == (code, "done so far", expected)


WAITING = """
import os, signal, sys, threading, time
import fastscribe.cli
from fastscribe._system.signals import end_process

def work():  # as a thread does that compiles loops
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)

def app(standalone_mode):
    threading.Thread(target=work).start()
    print("done")

fastscribe.cli.app = app
end_process(fastscribe.cli.exit_code())
"""


REGISTERED = """
import atexit, os, sys, time
import fastscribe.cli
from fastscribe._system.signals import end_process

def wait():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)

def app(standalone_mode):
    atexit.register(wait)
    print("done")

fastscribe.cli.app = app
end_process(fastscribe.cli.exit_code())
"""


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("script", [WAITING, REGISTERED], ids=["threads", "a registered function"])
def test_a_signal_ends_a_wait_at_the_end(script: str, number: int, tmp_path: Path) -> None:
    assert ended(tmp_path, script, number) == (CODES[number], "done\n", "")


def test_a_profiler_has_its_say(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cProfile", "-o", str(tmp_path / "profile"), "-m", "fastscribe", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "profile").stat().st_size > 0


FROM_PYTHON = """
import sys
from fastscribe.cli import main
sys.argv = ["fastscribe", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print("code", end.code)
    raise
finally:
    print("goes on")
"""


@pytest.mark.parametrize(("given", "code"), [(["--version"], 0), (["inspect", "no such model"], 2)])
def test_a_caller_in_python_goes_on_behind_main(given: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-c", FROM_PYTHON, *given], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and done.stdout.endswith(f"code {code}\ngoes on\n")


def test_error_after_signal_reported(tmp_path: Path) -> None:
    full = 'raise OutputError("a.json", OSError(28, "disk full"))'
    code, out, said = ended(tmp_path, AS_AN_ERROR.format(then=full))
    assert (code, out) == (1, "") and "disk full" in said


def test_no_signal_after_the_end(tmp_path: Path) -> None:
    """Not even a retry that is already scheduled."""
    do = """
def do():
    exec("interrupt()")
import fastscribe._system.signals
fastscribe._system.signals._LATER_S = 2.0
time.sleep, sleep = lambda seconds: None, time.sleep
"""
    late = "\ncode = run()\nsleep(2.5)\nsys.exit(code)"
    assert ended(tmp_path, START + do + late) == (0, "goes on\n", "")
