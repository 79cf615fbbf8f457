#!/usr/bin/env python3
"""Other tools' own commands beside fastscribe on the same files, and the tables of stored measurements in the documents.

    scripts/peers.py TOOLS.json AUDIO... --out docs/bench/peers/NAME.json [--turns 5]
    scripts/peers.py              # prints the tables, each after its document's name
    scripts/peers.py --write      # puts the tables into README.md, docs/numbers.md, docs/gpu.md and docs/papers.md

The tools take turns: each is a fresh process over all the files, from its start to its end; every second turn goes backwards,
so that what else the machine does falls on all, and the first turn does not count. A result has the medians of wall clock and
of processor time (of the process and of its children that it waited for), and the ratio of each tool to the first one, turn
by turn. TOOLS.json has the model's name and the tools, fastscribe first:

    {"model": "parakeet-tdt-0.6b", "random_weights": true, "tools": [
      {"name": "fastscribe", "dtype": "int8", "version": ["fastscribe", "--version"],
       "command": ["fastscribe", "transcribe", "{files}", "-m", "model.nemo", "--dtype", "int8", "-o", "{out}", "-q"],
       "texts": {"rows": "{out}/transcripts.jsonl", "name": "audio_filepath", "text": "text"}},
      {"name": "onnx-asr", "dtype": "int8", "version": ["venv/bin/onnx-asr", "--version"],
       "command": ["venv/bin/onnx-asr", "nemo-conformer-tdt", "{files}", "-p", "folder/of/the/export", "-q", "int8"],
       "texts": "lines"}]}

- command: {files} stands for all files, each an argument; {out} for a new folder.
- version: a command; the version is the first word with a digit that it prints.
- texts: "lines" of stdout, one for each file in its order, or {"rows": FILE, "name": FIELD, "text": FIELD} of JSON lines. A
  result has the share of equal texts; a tool without "texts" has none.

README.md's table shows the results in docs/bench/peers, docs/numbers.md those of all folders, and `fastscribe bench`'s.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import papers  # noqa: E402 - from this checkout, installed or not
from scripts.papers import Cells, Document, markdown  # noqa: E402

MEASURED = "each tool from the start of its process to its end; medians of turns after one that does not count"
START, END = "<!-- benchmark -->", "<!-- /benchmark -->"
OF_README = "peers"  # the folder of results, all of one machine and one shape


# --- the measurement --------------------------------------------------------------------------------------------------


class ToolFailed(Exception):
    """A tool's command that cannot be run, ended with an error, or left no text for a file."""


@dataclass
class Tool:
    """A tool's command, and its turns."""

    name: str
    dtype: str
    command: Sequence[str]
    version: str
    texts_at: str | Mapping[str, str] | None
    batch_size: int | None = None
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    texts: list[str] | None = None

    def take_turn(self, files: Sequence[Path], counts: bool) -> None:
        """Raises ToolFailed."""
        with tempfile.TemporaryDirectory(prefix="peers.") as out:
            given = [files if word == "{files}" else [word.replace("{out}", out)] for word in self.command]
            before, start = _children_s(), perf_counter()
            said = run([str(word) for words in given for word in words], self.name)
            wall_s, cpu_s = perf_counter() - start, _children_s() - before
            if counts:
                self.wall_s.append(wall_s)
                self.cpu_s.append(cpu_s)
                self.texts = None if self.texts_at is None else read_texts(self, said, files, out)

    def row(self, audio_s: float) -> dict[str, Any]:
        key = {"tool": self.name, "version": self.version, "dtype": self.dtype, "batch_size": self.batch_size}
        rtfx = round(audio_s / median(self.wall_s), 2)
        return key | {"rtfx": rtfx} | _timed("wall_s", self.wall_s) | _timed("cpu_s", self.cpu_s)


def _timed(name: str, runs: Sequence[float]) -> dict[str, Any]:
    return {name: round(median(runs), 4), f"{name}_runs": [round(one, 4) for one in runs]}


def _children_s() -> float:
    """Processor time of the processes that have ended and were waited for."""
    spent = os.times()
    return spent.children_user + spent.children_system


def run(command: Sequence[str], name: str) -> str:
    """Return what a command prints. Raises ToolFailed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise ToolFailed(f"{name}: {command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise ToolFailed(f"{name}: its command ended with code {done.returncode}: {last[:300]}")
    return done.stdout


def read_texts(tool: Tool, said: str, files: Sequence[Path], out: str) -> list[str]:
    """Return the text of each file. Raises ToolFailed."""
    at = tool.texts_at
    try:
        if at == "lines":
            lines = said.rstrip("\n").split("\n")  # a text may hold other ends of lines
            if len(lines) != len(files):
                raise ToolFailed(f"{tool.name}: {len(lines)} lines on stdout for {len(files)} files")
            return lines
        assert isinstance(at, Mapping)
        rows = Path(at["rows"].replace("{out}", out)).read_text(encoding="utf-8").splitlines()
        found = {row[at["name"]]: row[at["text"]] for row in map(json.loads, rows)}
        return [found[str(path)] for path in files]
    except (OSError, ValueError, KeyError) as error:
        raise ToolFailed(f"{tool.name}: no text of a file: {type(error).__name__}: {error}") from error


def read_tools(path: Path) -> tuple[dict[str, Any], list[Tool]]:
    """Return what TOOLS.json says of the model, and the tools. Raises ToolFailed."""
    about = json.loads(path.read_text(encoding="utf-8"))
    tools, wanted = [], {"name", "dtype", "version", "command"}
    if len(about.get("tools", ())) < 2:
        raise ToolFailed(f"{path}: fewer than two tools")
    for one in about.pop("tools"):
        if missing := wanted - one.keys():
            raise ToolFailed(f"{path}: a tool without {', '.join(sorted(missing))}")
        words = run(one["version"], one["name"]).split()
        version = next((word for word in words if re.search(r"\d", word)), "unknown")
        at = (one["name"], one["dtype"], one["command"], version, one.get("texts"), one.get("batch_size"))
        tools.append(Tool(*at))
    return about, tools


def take_turns(tools: Sequence[Tool], files: Sequence[Path], turns: int) -> list[float]:
    """Return the machine's load average (1 minute) before each turn. Raises ToolFailed."""
    loads = []
    for turn in range(turns + 1):
        loads.append(round(os.getloadavg()[0], 2))
        for tool in tools[:: 1 if turn % 2 == 0 else -1]:
            tool.take_turn(files, counts=turn > 0)
            if turn:
                print(f"turn {turn}: {tool.name} {tool.dtype}: {tool.wall_s[-1]:.2f} s", file=sys.stderr)
    return loads


def compare(first: Tool, tool: Tool, audio_s: float) -> dict[str, Any]:
    """Return the ratios of a tool to the first one, of the turns that stand beside each other."""
    speed, processor = (
        [theirs / ours for ours, theirs in zip(*times, strict=True)]
        for times in ((first.wall_s, tool.wall_s), (first.cpu_s, tool.cpu_s))
    )
    found = {
        "dtype": first.dtype,
        "rtfx": round(audio_s / median(first.wall_s), 2),
        "tool": tool.name,
        "tool_version": tool.version,
        "tool_dtype": tool.dtype,
        "tool_batch_size": tool.batch_size,
        "tool_rtfx": round(audio_s / median(tool.wall_s), 2),
        "speedup_ratio": round(median(speed), 3),
        "speedup_min_ratio": round(min(speed), 3),
        "speedup_max_ratio": round(max(speed), 3),
        "cpu_ratio": round(median(processor), 3),
    }
    if first.texts is not None and tool.texts is not None:
        same = sum(ours == theirs for ours, theirs in zip(first.texts, tool.texts, strict=True))
        found["equal_texts_share"] = round(same / len(tool.texts), 4)
    return found


def measure(tools_file: Path, files: Sequence[Path], turns: int) -> dict[str, Any]:
    """Return the result. Raises ToolFailed, OSError, ValueError or RuntimeError."""
    import soundfile

    from fastscribe.bench import machine, result
    from fastscribe.pipeline.model_building import choose_device
    from fastscribe.version import __version__

    about, tools = read_tools(tools_file)
    infos = [soundfile.info(path) for path in files]
    lengths_s = [info.frames / info.samplerate for info in infos]
    busy_share = result.busy_share()
    loads = take_turns(tools, files, turns)
    rows = [tool.row(sum(lengths_s)) for tool in tools]
    return {
        "benchmark": "peers",
        "fastscribe": __version__,
        "commit": machine.commit(ROOT),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "measured": MEASURED,
        **about,
        "files": len(files),
        "audio_s": round(sum(lengths_s), 2),
        "shortest_s": round(min(lengths_s), 2),
        "longest_s": round(max(lengths_s), 2),
        "turns": turns,
        "load_averages_1min": loads,
        "doubts": [*result.of_load(busy_share), *result.of_spread(rows, ("tool", "dtype"))],
        "commands": {f"{tool.name} {tool.dtype}": list(tool.command) for tool in tools},
        "rows": rows,
        "comparisons": [compare(tools[0], tool, sum(lengths_s)) for tool in tools[1:]],
        "machine": machine.facts(choose_device("auto"), ROOT),
    }


# --- the tables -------------------------------------------------------------------------------------------------------


def stored(folder: Path) -> Iterator[Document]:
    """Yield the results below a folder that have tables, in the order of their paths."""
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("benchmark") in ("peers", "throughput") and document["machine"]:
            yield document


def tables(folder: Path) -> str:
    """Return the Markdown of docs/numbers.md: the results by machine and by what was measured."""
    found: dict[str, list[Cells]] = {}
    for document in stored(folder):
        is_own = document["benchmark"] == "throughput"
        about = "`fastscribe bench`" if is_own else f"Tools in turns ({document['measured']})"
        rows = throughput(document) if is_own else compared(document)
        found.setdefault(f"{about} on {machine_of(document)}:", []).extend(rows)
    return "\n\n".join(f"{about}\n\n{markdown(rows)}" for about, rows in found.items())


def short_table(folder: Path) -> str:
    """Return the Markdown of README's rows."""
    documents = sorted(stored(folder / OF_README), key=lambda document: document["longest_s"])
    heads = {"recordings": "audio", "dtype": "dtype", "fastscribe RTFx": "RTFx"}
    heads |= {"other tool": "other tool", "its RTFx": "its RTFx", "ratio": "speed"}
    rows = [row for document in documents for row in compared(document)]
    return markdown([{head: row[name] for head, name in heads.items()} for row in rows])


def compared(document: Document) -> Iterator[Cells]:
    """Yield a row for each comparison of a tool with fastscribe."""
    loads = document.get("load_averages_1min")
    for pair in document["comparisons"]:
        batch = f" ({pair['tool_batch_size']})" if pair["tool_batch_size"] else ""
        equal = None if document.get("random_weights") is True else pair.get("equal_texts_share")
        yield {
            "model": model(document["model"], document),
            "dtype": pair["dtype"],
            "RTFx": f"**{pair['rtfx']:.1f}**",
            "other tool": f"{pair['tool']} {pair['tool_version']}, {pair['tool_dtype']}{batch}",
            "its RTFx": f"{pair['tool_rtfx']:.1f}",
            "speed": _ratio(pair.get("speedup_ratio")),
            "processor time": _ratio(pair.get("cpu_ratio")),
            "latency of 10 s": _ratio(pair.get("latency_ratio")),
            "load time": _ratio(pair.get("load_ratio")),
            "equal texts": "-" if equal is None else f"{equal:.0%}",
            "audio": f"{document['files']} files, {document['audio_s']:.0f} s" + lengths(document),
            "load of the machine, date": f"{median(loads):.0f}, {document['date']}" if loads else document["date"],
        }


def memory_table(folder: Path) -> str:
    """Return the Markdown of what runs take on a CPU: the most resident memory by model, dtype and processors."""
    rows: dict[tuple[str, str, str], Cells] = {}
    for row in json.loads((folder / "memory" / "cpu.json").read_text(encoding="utf-8"))["rows"]:
        what = row["model"], row["recordings"], row["dtype"]
        start = dict(zip(("model", "recordings", "dtype", "one core", "two cores"), (*what, "-", "-"), strict=True))
        cores = "one core" if row["cores"] == 1 else "two cores"
        rows.setdefault(what, start)[cores] = f"{row['peak_bytes'] / 1e9:.2f} GB"
    return markdown(list(rows.values()))


def cost_table(folder: Path) -> str:
    """Return the Markdown of what the packaged model's runs cost by recordings, from their processor time."""
    document = json.loads((folder / "cost" / "packaged-cpu.json").read_text(encoding="utf-8"))
    price = document["usd_per_processor_hour"]
    rows = []
    for row in document["rows"]:
        share = (median(row["processor_s"]) - document["start_processor_s"]) / row["audio_s"]
        usd = {f"USD for {hours:,} h": f"{hours * share * price:,.2f}" for hours in (100, 10_000, 1_000_000)}
        rows.append({"recordings": row["recordings"], "RTFx of one core": f"{1 / share:.0f}", **usd})
    return markdown(rows)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def lengths(document: Document) -> str:
    return f" ({document['shortest_s']:.1f} to {document['longest_s']:.1f} s)" if "shortest_s" in document else ""


def throughput(document: Document) -> Iterator[Cells]:
    """Yield a row for each dtype and batch size of a result of `fastscribe bench`."""
    for row in document["rows"]:
        if "error" not in row:
            chosen = " (auto)" if row["batch_frames"] == "auto" else ""
            yield {
                "model": model(row["model"], document),
                "dtype": row["dtype"],
                "frames per batch": f"{row['budget_frames']}{chosen}",
                "RTFx from files": f"**{row['rtfx']:.1f}**",
                "RTFx from memory": f"{row['memory_rtfx']:.1f}",
                "encoder / decoder time": f"{row['encode_share']:.0%} / {row['decode_share']:.0%}",
                "audio": f"{document['audio']}, {row['files']} files, {row['audio_s']:.0f} s",
                "date": document["date"],
            }


def model(name: str, document: Document) -> str:
    beam = f" (beam {document['beam']})" if "beam" in document else ""
    return Path(name).name + beam + (" (random weights)" if document.get("random_weights") is True else "")


def machine_of(document: Document) -> str:
    facts = document["machine"]
    around = f"{facts['cpu']}, {facts['cpu_cores']} vCPUs, {facts['memory_gib']:.0f} GiB"
    return f"{facts['gpu']['torch_name']} with {around}" if facts.get("gpu") else around


def with_tables(text: str, made: str) -> str:
    """Return the document's text with the tables between its marks. Raise ValueError if a mark is missing."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the document has no {START} and {END}")
    return f"{before}{start}\n{made}\n{end}{after}"


def made_tables(root: Path) -> dict[Path, str]:
    """Return the tables of each document."""
    results = root / "docs" / "bench"
    own = {root / "README.md": short_table(results), root / "docs" / "numbers.md": tables(results)}
    own |= {root / "docs" / "install.md": memory_table(results), root / "docs" / "big-jobs.md": cost_table(results)}
    return own | papers.made_tables(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="?", type=Path, metavar="TOOLS.json")
    parser.add_argument("files", nargs="*", type=Path, metavar="AUDIO")
    parser.add_argument("--out", type=Path, help="where the result goes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    arguments = parser.parse_args()
    if arguments.tools is not None:
        if not arguments.files or arguments.out is None or arguments.turns < 1 or arguments.write:
            parser.error("a measurement needs AUDIO, --out and a turn at least, and no --write")
        try:
            found = measure(arguments.tools, arguments.files, arguments.turns)
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        except (ToolFailed, OSError, ValueError, RuntimeError) as error:  # the last is libsndfile's
            parser.exit(1, f"{error}\n")
        print(markdown(list(compared(found))))
        return
    for path, made in made_tables(ROOT).items():
        if arguments.write:
            path.write_text(with_tables(path.read_text(encoding="utf-8"), made), encoding="utf-8")
        else:
            print(f"{path.relative_to(ROOT)}:\n\n{made}\n")


if __name__ == "__main__":
    main()
