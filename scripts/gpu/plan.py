"""How long each part of scripts/gpu_check may take, and which parts are wanted next.

A stored result is worth as much as the code that it measured. So each part's entry in gpu_check.json has a digest of the
files whose code it measures, and --next compares them with the files of this checkout. Each kind of card has results of its
own. Pure: nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from scripts.gpu.goals import Document, Row

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs" / "bench" / "gpu"
OUT_OF_TIME = "out of time"  # in the error of a measurement, or the status of a part, that found no time
State = Literal["missing", "cut short", "of older code", "with errors", "done"]
_WRAP_UP_S = 12.0  # before its limit, a part that is cut has ended

_NETWORK = ("fastscribe/families/blocks", "fastscribe/families/conformer", "fastscribe/families/model.py")
_DECODING = ("fastscribe/decode", "fastscribe/cuda")
_PASS = (*_NETWORK, *_DECODING, "fastscribe/pipeline/engine.py", "fastscribe/pipeline/batching.py")
_HOST = ("fastscribe/pipeline", "fastscribe/results", "fastscribe/audio/read.py", "fastscribe/text")
_JASPER = ("fastscribe/families/jasper", "fastscribe/families/blocks", "fastscribe/families/model.py")
_LOSS = ("fastscribe/training/loss",)
_TRAINING = (
    *_NETWORK,
    "fastscribe/families/canary",
    *("fastscribe/training/" + name for name in ("network.py", "weights.py", "buckets.py", "batch_search.py")),
)


@dataclass(frozen=True)
class PartPlan:
    """What the plan knows of a part.

    Attributes:
        run: The module of scripts/gpu/parts that has it, and its function.
        most_s: The most seconds that it may take.
        least_s: The fewest that are worth a start.
        sources: The folders and files of the checkout whose code it measures.
        shares: It runs in one process with other parts; False: in its own, because it ends or fills one.
        is_whole: Its rows come from one run, because they are compared with each other or say what that run is of; others go
            on from what is stored.
    """

    run: str
    most_s: float
    least_s: float
    sources: tuple[str, ...]
    shares: bool = True
    is_whole: bool = False


# In order of worth.
PARTS = {
    "facts": PartPlan("checks:facts", 15, 10, (), is_whole=True),  # of every run
    "devices": PartPlan(
        "checks:devices", 35, 15, (*_HOST, "fastscribe/cuda"), shares=False, is_whole=True
    ),  # before any measurement
    "files": PartPlan("files:files", 120, 40, (*_PASS, *_HOST), shares=False),
    "nemo": PartPlan("files:nemo", 205, 170, (*_PASS, *_HOST), shares=False, is_whole=True),
    "engine": PartPlan("engine:engine", 65, 35, _PASS),
    "memory": PartPlan("engine:memory", 100, 45, _PASS),
    "nemo_long": PartPlan("files:nemo_long", 150, 110, (*_PASS, *_HOST), shares=False, is_whole=True),
    "agreement": PartPlan("engine:dtypes", 60, 30, _PASS, is_whole=True),
    "tenfold": PartPlan("tenfold:tenfold", 180, 60, _PASS, shares=False),
    "samplewise": PartPlan("training:samplewise", 110, 40, _LOSS, shares=False),
    "loss": PartPlan("training:loss", 110, 30, _LOSS, shares=False),
    "training_speed": PartPlan("training:training_speed", 205, 170, _TRAINING, shares=False, is_whole=True),
    "attention": PartPlan("families:attention", 100, 25, (*_PASS, "fastscribe/families/canary")),
    "convolutions": PartPlan("families:convolutions", 110, 30, (*_JASPER, *_DECODING)),
    "profile": PartPlan("pieces:profile", 50, 30, _PASS, shares=False),
    "ceilings": PartPlan("pieces:ceilings", 30, 10, ()),
    "encoder": PartPlan("pieces:encoder", 80, 25, _NETWORK),
    "decoder": PartPlan("pieces:decoder", 60, 20, _DECODING),
    "tests": PartPlan("checks:tests", 110, 30, (*_NETWORK, *_DECODING, *_LOSS, "tests/cuda"), shares=False),
    "end_to_end": PartPlan("checks:end_to_end", 120, 30, ("fastscribe", "tests/cuda"), shares=False),
    "sanitizer": PartPlan("checks:sanitizer", 120, 15, (*_NETWORK, *_DECODING), shares=False),
}
FIRST = ("facts", "devices")  # of --next, whatever is wanted
CALL_MINUTES = 4.0


@cache
def digest(name: str) -> str:
    """Return a digest of the code that a part measures, without blank lines and comments."""
    found = hashlib.sha256()
    for place in PARTS[name].sources:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
            code = "\n".join(line for line in lines if line and not line.startswith("#"))
            found.update(f"{file.relative_to(ROOT)}\n{code}\n".encode())
    return found.hexdigest()[:12]


def card(name: str) -> str:
    """Return the kind of a card by its full name: "NVIDIA H100 80GB HBM3" is an H100."""
    found = re.search(r"\b[A-Z]{1,2}\d{3}\b", name)  # of those that servers have
    return found[0] if found else name


def card_of(document: Document) -> str | None:
    """Return the kind of card of a result; None if it was none, or is not known."""
    gpu = (document.get("hardware") or {}).get("gpu")
    return card(gpu["torch_name"]) if gpu else None


def stored(folder: Path) -> list[Document]:
    """Return the results of whole measurements on GPUs that a folder has, the newest first."""
    found = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("benchmark") == "gpu_check" and not document["quick"] and card_of(document):
            found.append(document)
    return sorted(found, key=lambda one: one["date"], reverse=True)


def _entries(name: str, of: str, documents: Iterable[Document]) -> list[Document]:
    return [
        entry
        for document in documents
        if card_of(document) == of
        for entry in document["results"]
        if entry["part"] == name and any("error" not in row for row in entry["rows"])
    ]


def known_rows(name: str, of: str, documents: Sequence[Document]) -> list[Row]:
    """Return what was measured on this kind of card with the code as it is, and need not be again."""
    if PARTS[name].is_whole:
        return []
    entries = [entry for entry in _entries(name, of, documents) if entry.get("code") == digest(name)]
    return [row for entry in entries for row in entry["rows"] if not {"error", "is_preparation"} & row.keys()]


def state(name: str, of: str, documents: Sequence[Document]) -> State:
    """Return what the stored results have of a part on this kind of card."""
    entries = _entries(name, of, documents)
    if not entries:
        return "missing"
    current = [entry for entry in entries if entry.get("code") == digest(name)]
    if not current:
        return "of older code"
    last = current[0]
    errors = [row["error"] for row in last["rows"] if "error" in row]
    if last["status"].startswith("stopped") or any(OUT_OF_TIME in error for error in errors):
        return "cut short"
    return "with errors" if errors or last["status"] != "done" else "done"


def wanted(of: str, documents: Sequence[Document]) -> list[tuple[str, State]]:
    """Return the parts that want measuring on this kind of card, the most wanted first, with their states."""
    states = [(name, state(name, of, documents)) for name in PARTS if name != "facts"]
    return sorted((one for one in states if one[1] != "done"), key=lambda one: _turn(*one, of, documents))


def _turn(name: str, found: State, of: str, documents: Sequence[Document]) -> tuple[int, str]:
    """Return what sorts parts: those that had all their time and those that failed, which may again, wait for the others.

    Among themselves they take turns.
    """
    if found not in ("cut short", "with errors"):
        return 0, ""
    own = [document for document in documents if _entries(name, of, [document])]
    had_its_time = _entries(name, of, own)[0]["wall_s"] >= PARTS[name].most_s - _WRAP_UP_S
    turn = 2 if found == "with errors" else 1 if had_its_time else 0
    return turn, own[0]["date"] if turn else ""


def choose(parts: Iterable[str], seconds: float) -> list[str]:
    """Return the first parts that fit the seconds, after facts and the tests of devices' processes. The last one may be cut."""
    left, found = seconds - PARTS["facts"].most_s, ["facts"]
    for name in (*FIRST[1:], *(name for name in parts if name not in FIRST)):
        if left < PARTS[name].least_s:
            continue
        found.append(name)
        left -= PARTS[name].most_s
    return found
