"""Check and measure fastscribe on a machine with a CUDA GPU, in one command that stays within a time limit.

    scripts/gpu_check --out results --next               # what is wanted most, by the results that are stored, in 4 minutes
    scripts/gpu_check --plan --card H100                 # what that would be; measures nothing, needs no GPU
    scripts/gpu_check --out results --parts engine,memory --minutes 4
    scripts/gpu_check --out results --device cpu --quick # everything, with tiny models, on a machine without a GPU

Each part has a time limit, and a process of its own or one that others share, so a crash or a hang costs one part at most. The
clock starts before any wheel is unpacked. gpu_check.json is replaced after every row, gpu_check.log holds what the parts
print. No setting of the GPU is changed. The last two lines of stdout are the path of the JSON and a summary of it. docs/gpu.md
describes the parts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from scripts.gpu import plan
from scripts.gpu.goals import Document, goals, matrix_ceiling, read_rows, rows_of, shown
from scripts.gpu.plan import ROOT
from scripts.gpu.processes import Worker

WORKER = "scripts.gpu.worker"
MEMORY = Path("/dev/shm")
# In a process of its own: a driver that hangs costs no more than the time limit.
_ASK_DRIVER = """
import torch
print(*map(torch.cuda.get_device_name, range(torch.cuda.device_count())), sep="\\n")
"""
_DRIVER_S = 20.0
ALL_MINUTES = 15.0
_SCRATCH_BYTES = 40 << 30
_WRAP_UP_S = 8.0  # before its limit, a part should have ended by itself
_STATISTIC = (
    "medians after warm-up unless a row says cold; ms by the device's clock on a GPU; RTFx is seconds of audio per second "
    "of wall clock; random weights and synthetic audio unless a row says trained"
)
_UNPACKERS = 8
_KEPT_LOG = 1500  # characters of a failed part's output in the document


# --- running the parts --------------------------------------------------------------------------------------------


class Run:
    """One run of gpu_check: its parts in order, each in the process of the part before it if both share one.

    Args:
        arguments: As parse() returns them.
        document: Gets the parts and their rows.
        scratch: Folder of models and audio.
        start: When the clock started (time.monotonic()).
        documents: Stored results, whose measurements are not repeated.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        document: Document,
        scratch: Path,
        start: float,
        documents: Sequence[Document] = (),
    ) -> None:
        self._arguments, self._document, self._scratch, self._documents = arguments, document, scratch, documents
        self._start, self._end = start, start + 60 * arguments.minutes
        self._worker: Worker | None = None
        self._env: dict[str, str] = {}

    def all(self) -> None:
        """Run the parts. Nothing that they started is left when this returns."""
        arguments, document = self._arguments, self._document
        self.write()
        self._env = environment(arguments.site, self._scratch, document)
        document["time"] = {"unpacking_s": round(time.monotonic() - self._start, 1)}
        try:
            for index, name in enumerate(arguments.parts):
                kept = sum(plan.PARTS[later].least_s for later in arguments.parts[index + 1 :])
                left, least = self._end - time.monotonic(), plan.PARTS[name].least_s
                # Where time is short for all, the first parts get theirs, because they are worth more.
                seconds = min(plan.PARTS[name].most_s, max(left - kept, min(left, least)))
                part: Document = {"part": name, "code": plan.digest(name), "status": "running"}
                part |= {"wall_s": 0.0, "rows": []}
                document["results"].append(part)
                if seconds < least / 2:
                    part["status"] = f"skipped: {plan.OUT_OF_TIME}"
                    note(f"{name}: {part['status']}")
                else:
                    note(f"{name} (at most {seconds:.0f} s)")
                    self.part(part, seconds)
                    note(f"{name}: {part['status']}, {len(part['rows'])} rows, {part['wall_s']:.0f} s")
                self.write()
        finally:
            self._drop_worker()

    def part(self, part: Document, seconds: float) -> None:
        """Run one part and fill `part` in; write the document after each new row."""
        name, arguments = part["part"], self._arguments
        rows = self._scratch / f"{name}.rows"
        rows.write_text("")  # a kept scratch folder may hold an earlier run's
        start = time.monotonic()

        def poll() -> None:
            found = read_rows(rows)
            if len(found) > len(part["rows"]):
                part.update(rows=found, wall_s=round(time.monotonic() - start, 1))
                self.write()

        known = plan.known_rows(name, arguments.card, self._documents) if arguments.card else []
        settings = {"part": name, "device": arguments.device, "quick": arguments.quick, "known": known}
        settings |= {"scratch": str(self._scratch), "rows": str(rows)}
        settings["end"] = start + max(1.0, seconds - _WRAP_UP_S)  # a clock that all processes share
        with (arguments.out / "gpu_check.log").open("ab") as log:
            log.write(f"\n===== {name}\n".encode())
            log.flush()
            begin = log.tell()
            if not plan.PARTS[name].shares:
                self._drop_worker()
            if self._worker is None:
                self._worker = Worker.start([sys.executable, "-m", WORKER], self._env, log)
            answer = self._worker.run(settings, seconds, poll)
        part["status"] = answer["status"]
        if "import_s" not in answer or answer["is_lost"] or not plan.PARTS[name].shares:
            self._drop_worker()
        poll()
        part |= {"wall_s": round(time.monotonic() - start, 1), "import_s": round(answer.get("import_s", 0.0), 1)}
        if part["status"] != "done":
            with (arguments.out / "gpu_check.log").open("rb") as log:
                log.seek(begin)
                part["last_words"] = log.read().decode(errors="replace")[-_KEPT_LOG:]

    def write(self) -> None:
        """Replace gpu_check.json."""
        if "time" in self._document:
            self._document["time"] |= spent(self._document, time.monotonic() - self._start)
        write(self._document, self._arguments.out)

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def spent(document: Document, wall_s: float) -> Document:
    """Return the seconds that went by, and how many of them measured something or prepared it."""
    rows = [row for part in document["results"] for row in part["rows"] if "spent_s" in row]
    measuring_s = sum(row["spent_s"] for row in rows if "is_preparation" not in row)
    return {
        "wall_s": round(wall_s, 1),
        "measuring_s": round(measuring_s, 1),
        "measuring_share": round(measuring_s / wall_s, 3) if wall_s else None,
        "preparing_s": round(sum(row["spent_s"] for row in rows if "is_preparation" in row), 1),
        "importing_s": round(sum(part.get("import_s", 0.0) for part in document["results"]), 1),
    }


def environment(site: Path | None, scratch: Path, document: Document) -> dict[str, str]:
    """Return the parts' environment variables: this checkout comes first, then the installed wheels."""
    places = [str(ROOT)]
    if site is not None:
        folder = site.resolve()
        wheels = sorted(folder.glob("*.whl"))
        if wheels:
            folder = scratch / "site"
            document["wheels"] = unpack(wheels, folder)
            note(f"wheels: {document['wheels']}")
        places.append(str(folder))
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([*places, *([inherited] if inherited else [])]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # As fastscribe/_system/process_settings.py does; OpenMP reads it when torch is imported.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000"),
        "HF_HUB_OFFLINE": "1",
    }


def unpack(wheels: Sequence[Path], folder: Path) -> str:
    """Unpack the wheels, which takes 2 s for the 51 where pip takes many more."""

    def one(wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)

    with ThreadPoolExecutor(_UNPACKERS) as pool:
        list(pool.map(one, wheels))
    for part in folder.glob("*.data/*lib"):  # purelib, platlib: packages that a wheel keeps apart
        shutil.copytree(part, folder, dirs_exist_ok=True)
    return f"{len(wheels)} unpacked"


# --- the document -------------------------------------------------------------------------------------------------


def new_document(arguments: argparse.Namespace) -> Document:
    return {
        "benchmark": "gpu_check",
        "format": 3,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": None,
        "hardware": None,
        "device": arguments.device,
        "quick": arguments.quick,
        "is_next": arguments.next,
        "minutes": arguments.minutes,
        "statistic": _STATISTIC,
        "results": [],
        "goals": [],
    }


def write(document: Document, out: Path) -> None:
    """Replace gpu_check.json, after add_facts()."""
    add_facts(document)
    unfinished = out / "gpu_check.json.part"
    unfinished.write_text(as_text(document), encoding="utf-8")
    unfinished.replace(out / "gpu_check.json")


def add_facts(document: Document) -> None:
    """Copy commit and hardware to the top, and add the goals and each encoder row's share of the matrix ceiling."""
    for row in rows_of(document, "facts"):
        if row.get("what") == "commit":
            document["commit"] = row["commit"]
        elif row.get("what") == "machine" and "error" not in row:
            document["hardware"] = row
    ceiling = matrix_ceiling(document)
    for row in rows_of(document, "encoder"):
        if ceiling and "tflop_per_s" in row:
            row["mfu_share"] = float(f"{row['tflop_per_s'] / ceiling:.4g}")
    document["goals"] = goals(document)


def as_text(document: Document) -> str:
    """JSON with one line per row."""
    shell = {**document, "results": [{**part, "rows": f"@{i}@"} for i, part in enumerate(document["results"])]}
    text = json.dumps(shell, indent=1, ensure_ascii=False)
    for index, part in enumerate(document["results"]):
        rows = ",\n   ".join(json.dumps(row, ensure_ascii=False) for row in part["rows"])
        text = text.replace(f'"@{index}@"', f"[\n   {rows}]" if rows else "[]")
    return text + "\n"


def table(document: Document) -> str:
    lines = [f"{'':72}{'measured':>12}{'goal':>12}{'reached':>10}"]
    for row in document["goals"]:
        found = "not measured" if row["measured"] is None else shown(row["measured"])
        goal = f"{'' if row['at_least'] else 'under '}{row['wanted']:,g}"
        reached = "" if row["reached_share"] is None else f"{100 * row['reached_share']:.0f} %"
        lines.append(f"{row['goal']:72}{found:>12}{goal:>12}{reached:>10}")
    for part in document["results"]:
        errors = [row for row in part["rows"] if "error" in row]
        first = f"; first: {errors[0]['error'][:110]}" if errors else ""
        lines.append(f"{part['part']:12} {part['status']}, {len(part['rows'])} rows, {len(errors)} errors{first}")
    return "\n".join(lines)


def summary(document: Document) -> Document:
    reached = {row["goal"]: row["measured"] for row in document["goals"]}
    parts = {part["part"]: part["status"] for part in document["results"]}
    keys = ("commit", "date", "device", "quick")
    return {**{key: document[key] for key in keys}, "parts": parts, "measured": reached}


# --- the command --------------------------------------------------------------------------------------------------


def parse(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = os.environ.get("OUT")
    parser.add_argument("--out", type=Path, default=out and Path(out), help="folder for results (default $OUT)")
    parser.add_argument("--next", action="store_true", help="the parts that --plan shows, most wanted first")
    parser.add_argument("--plan", action="store_true", help="show what is wanted, and measure nothing")
    parser.add_argument("--card", help="with --plan: the kind of card, such as H100 (default: this machine's)")
    parser.add_argument("--parts", help=f"these parts, in the order given: {', '.join(plan.PARTS)} (default all)")
    minutes = f"time limit; parts are cut or skipped (default {plan.CALL_MINUTES:g}; of all parts {ALL_MINUTES:g})"
    parser.add_argument("--minutes", type=float, help=minutes)
    parser.add_argument("--site", type=Path, help="folder of wheels, or of installed packages, that the machine lacks")
    parser.add_argument(
        "--scratch", type=Path, help="folder that keeps models and audio, 15 GB (default: a temporary one, in memory)"
    )
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--quick", action="store_true", help="tiny models and sizes")
    arguments = parser.parse_args(given)
    if arguments.out is None and not arguments.plan:
        parser.error("--out: a folder for results is needed")
    if (arguments.next or arguments.plan) and arguments.parts:
        parser.error("--next and --plan choose the parts themselves")
    if arguments.minutes is None:
        is_all = not (arguments.next or arguments.plan or arguments.parts)
        arguments.minutes = ALL_MINUTES if is_all else plan.CALL_MINUTES
    _choose_parts(parser, arguments)
    return arguments


def _choose_parts(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Set arguments.parts, arguments.card and arguments.wanted."""
    arguments.wanted = []
    if arguments.next or arguments.plan:
        # A CPU's results are not stored.
        arguments.card = arguments.card or ("none" if arguments.device == "cpu" else this_card())
        if arguments.card is None:
            parser.error("no GPU found; --card H100 shows the plan for one")
        arguments.wanted = plan.wanted(arguments.card, plan.stored(plan.STORED))
        arguments.parts = plan.choose((name for name, _ in arguments.wanted), 60 * arguments.minutes)
    elif arguments.parts:
        arguments.parts = arguments.parts.split(",")
    else:
        arguments.parts = list(plan.PARTS)
    unknown = set(arguments.parts) - plan.PARTS.keys()
    if unknown:
        parser.error(f"--parts: no such part: {', '.join(sorted(unknown))}")


def this_card() -> str | None:
    """Return the kind of this machine's first GPU, after a line about all of them; None without one."""
    names = card_names()
    if names:
        note(f"GPUs: {len(names)} ({', '.join(dict.fromkeys(names))})")
    return plan.card(names[0]) if names else None


def card_names() -> list[str]:
    """Return the names of the GPUs that torch sees. Needs no nvidia-smi."""
    command = [sys.executable, "-c", _ASK_DRIVER]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_S, check=True, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


def show_plan(arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Print every part that is wanted: whether --next takes it, and why."""
    say(f"{arguments.card}, {arguments.minutes:g} minutes, results in {plan.STORED}:")
    for name in plan.FIRST[1:]:
        if name in arguments.parts and name not in dict(arguments.wanted):
            say(f"{'next':6} {name:12} at most {plan.PARTS[name].most_s:4.0f} s  always")
    for name, state in arguments.wanted:
        taken = "next" if name in arguments.parts else "later"
        say(f"{taken:6} {name:12} at most {plan.PARTS[name].most_s:4.0f} s  {state}")
    if not arguments.wanted:
        say("nothing is wanted: every part has a result of this code")


def note(line: str) -> None:
    print(f"gpu_check: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def scratch_folder(given: Path | None) -> Iterator[Path]:
    """Yield the folder for models and audio: in memory if there is room, because gigabytes are written and read again."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= _SCRATCH_BYTES
    place = MEMORY if has_room else None
    with tempfile.TemporaryDirectory(prefix="gpu_check.", dir=place, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def main(given: Sequence[str] = tuple(sys.argv[1:]), say: Callable[[str], None] = print) -> None:
    start = time.monotonic()
    arguments = parse(given)
    if arguments.plan:
        show_plan(arguments, say)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = new_document(arguments)
    documents = plan.stored(plan.STORED) if arguments.next else []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.next:
        show_plan(arguments, note)
        ceilings = (matrix_ceiling(one) for one in documents if plan.card_of(one) == arguments.card)
        document["earlier_ceiling_tflop_per_s"] = next((one for one in ceilings if one), None)
    try:
        with scratch_folder(arguments.scratch) as scratch:
            Run(arguments, document, scratch, start, documents).all()
    finally:
        write(document, arguments.out)
        say(table(document))
        say(str(arguments.out / "gpu_check.json"))
        say(json.dumps(summary(document), ensure_ascii=False))
