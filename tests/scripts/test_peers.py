"""Tools in turns, each in a process of its own; and the documents' tables from stored results."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import papers, peers
from tests.conftest import AUDIO, ROOT

CLIPS = sorted(AUDIO.glob("0[1-3]*.flac"))
AMD = {"cpu": "AMD EPYC", "cpu_cores": 2, "memory_gib": 23.5, "gpu": None, "load_average_1min": 0.3}
H200 = {"cpu": "Intel(R) Xeon(R)", "cpu_cores": 16, "memory_gib": 128.0, "gpu": {"torch_name": "NVIDIA H200"}}

# --- a measurement ----------------------------------------------------------------------------------------------------

# A tool that waits, notes its turn, and says "text of NAME" for each file: on stdout and as rows.
FAKE = """
import json, pathlib, sys, time
name, seconds, log, out, *files = sys.argv[1:]
time.sleep(float(seconds))
with open(log, "a") as turns:
    print(name, file=turns)
texts = {path: f"text of {pathlib.Path(path).stem}" for path in files}
print("\\n".join(texts.values()))
with open(f"{out}/rows.jsonl", "w") as rows:
    rows.writelines(json.dumps({"file": path, "said": text.upper()}) + "\\n" for path, text in texts.items())
"""


def fake(folder: Path, name: str, seconds: float, texts: Any) -> dict[str, Any]:
    (folder / "tool.py").write_text(FAKE, encoding="utf-8")
    command = [sys.executable, str(folder / "tool.py"), name, str(seconds), str(folder / "turns"), "{out}", "{files}"]
    version = [sys.executable, "-c", "print('tool 1.2.3')"]
    return {"name": name, "dtype": "fp32", "command": command, "version": version, "texts": texts}


def written(folder: Path, *tools: dict[str, Any]) -> Path:
    path = folder / "tools.json"
    path.write_text(json.dumps({"model": "m", "random_weights": False, "tools": tools}), encoding="utf-8")
    return path


def test_tools_take_turns_and_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    rows = {"rows": "{out}/rows.jsonl", "name": "file", "text": "said"}
    tools = written(tmp_path, fake(tmp_path, "fastscribe", 0.0, "lines"), fake(tmp_path, "slow", 0.5, rows))
    out = tmp_path / "out.json"
    arguments = [tools, *CLIPS, "--out", out, "--turns", "2"]
    monkeypatch.setattr(sys, "argv", ["peers.py", *map(str, arguments)])
    peers.main()
    assert (tmp_path / "turns").read_text().split() == [
        "fastscribe",
        "slow",
        "slow",
        "fastscribe",
        "fastscribe",
        "slow",
    ]
    found = json.loads(out.read_text())
    ours, slow = found["rows"]
    assert (found["files"], found["turns"], found["model"]) == (3, 2, "m") and found["machine"]["cpu"]
    assert [len(row["wall_s_runs"]) for row in found["rows"]] == [2, 2]
    assert slow["wall_s"] >= 0.5 and slow["version"] == "1.2.3"
    assert slow["rtfx"] == pytest.approx(found["audio_s"] / slow["wall_s"], rel=0.01)
    [pair] = found["comparisons"]
    ratios = [b / a for a, b in zip(ours["wall_s_runs"], slow["wall_s_runs"], strict=True)]
    expected = [min(ratios), sum(ratios) / 2, max(ratios)]
    names = ("speedup_min_ratio", "speedup_ratio", "speedup_max_ratio")
    assert [pair[name] for name in names] == pytest.approx(expected, rel=0.01)
    assert (pair["rtfx"], pair["tool_rtfx"]) == (ours["rtfx"], slow["rtfx"])
    assert pair["equal_texts_share"] == 0.0  # they differ by capitals
    assert "| m | fp32 | **" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": [sys.executable, "-c", "raise SystemExit('no more memory')"]}, "code 1: no more memory"),
        ({"command": ["no-such-program", "{files}"]}, "no-such-program cannot be run"),
        ({"command": [sys.executable, "-c", "print('one line')"]}, "1 lines on stdout for 3 files"),
        (
            {"texts": {"rows": "{out}/none.jsonl", "name": "file", "text": "said"}},
            "no text of a file: FileNotFoundError",
        ),
        ({"texts": {"rows": "{out}/rows.jsonl", "name": "file", "text": "none"}}, "no text of a file: KeyError"),
        ({"command": [sys.executable, "-c", r"print('a\x85b\u2028c')"]}, "1 lines on stdout for 3 files"),
    ],
)
def test_a_tool_that_fails_ends_the_measurement(
    change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    tools = written(tmp_path, fake(tmp_path, "fastscribe", 0, "lines") | change, fake(tmp_path, "other", 0, "lines"))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["peers.py", *map(str, [tools, *CLIPS, "--turns", "1", "--out", out])])
    with pytest.raises(SystemExit) as ended:
        peers.main()
    assert ended.value.code == 1 and said in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([{"name": "one", "dtype": "fp32", "version": [sys.executable, "-V"], "command": []}], "fewer than two tools"),
        ([{"name": "one", "command": []}, {"name": "two"}], "a tool without dtype, version"),
    ],
)
def test_tools_that_cannot_be_compared(tools: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"model": "none", "tools": tools}))
    with pytest.raises(peers.ToolFailed, match=said):
        peers.read_tools(path)


# --- tables -----------------------------------------------------------------------------------------------------------


def speed(machine: dict[str, Any], rtfx: float, **settings: Any) -> dict[str, Any]:
    """A result of `fastscribe bench`."""
    row = {"model": "tiny", "dtype": "bf16", "batch_frames": "auto", "budget_frames": 900, "files": 8, "audio_s": 60.0}
    row |= {"rtfx": rtfx, "memory_rtfx": 2 * rtfx, "encode_share": 0.6, "decode_share": 0.3}
    about = {"benchmark": "throughput", "date": "2026-11-21", "audio": "synthetic", "machine": machine}
    return about | {"rows": [row, {**row, "error": "no room"}]} | settings


def compared(**settings: Any) -> dict[str, Any]:
    pair = {"dtype": "bf16", "rtfx": 90.0, "tool": "nemo", "tool_version": "3.0.0", "tool_dtype": "bf16"}
    pair |= {"tool_batch_size": 8, "tool_rtfx": 40.0, "speedup_ratio": 2.25, "equal_texts_share": 1.0, "cpu_ratio": 1.5}
    about = {"benchmark": "peers", "date": "2026-11-21", "measured": "so", "model": "/models/p.nemo", "files": 30}
    about |= {"audio_s": 270.4, "shortest_s": 5.57, "longest_s": 12.2, "machine": AMD, "comparisons": [pair]}
    return about | settings


def stored(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_each_machine_and_kind_has_a_table_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    stored(tmp_path / "gpu", "a.json", speed(H200, 9000.0))
    stored(tmp_path, "b.json", speed(AMD, 20.0, random_weights=True, beam=4))
    stored(tmp_path, "c.json", compared())
    stored(tmp_path, "d.json", compared(random_weights=True, load_averages_1min=[1.0, 3.2, 9.0]))
    stored(tmp_path, "loss.json", {"benchmark": "loss", "rows": []})
    parts = peers.tables(tmp_path).split("\n\n")
    assert [part for part in parts if not part.startswith("|")] == [
        "`fastscribe bench` on AMD EPYC, 2 vCPUs, 24 GiB:",
        "Tools in turns (so) on AMD EPYC, 2 vCPUs, 24 GiB:",
        "`fastscribe bench` on NVIDIA H200 with Intel(R) Xeon(R), 16 vCPUs, 128 GiB:",
    ]
    rows = [line for part in parts for line in part.splitlines() if line.startswith("| ") and "---" not in line]
    assert [line for line in rows if "model" not in line] == [
        "| tiny (beam 4) (random weights) | bf16 | 900 (auto) | **20.0** | 40.0 | 60% / 30% | synthetic, 8 files, 60 s "
        "| 2026-11-21 |",
        "| p.nemo | bf16 | **90.0** | nemo 3.0.0, bf16 (8) | 40.0 | 2.25 | 1.50 | - | - | 100% "
        "| 30 files, 270 s (5.6 to 12.2 s) | 2026-11-21 |",
        "| p.nemo (random weights) | bf16 | **90.0** | nemo 3.0.0, bf16 (8) | 40.0 | 2.25 | 1.50 | - | - | - "
        "| 30 files, 270 s (5.6 to 12.2 s) | 3, 2026-11-21 |",
        "| tiny | bf16 | 900 (auto) | **9000.0** | 18000.0 | 60% / 30% | synthetic, 8 files, 60 s | 2026-11-21 |",
    ]


def check(date: str, rows: list[dict], **changes: object) -> str:
    """A result of scripts/gpu_check."""
    part = {"part": "engine", "status": "done", "rows": rows}
    found = {"benchmark": "gpu_check", "date": date, "commit": date[-3:], "device": "cuda", "quick": False}
    return json.dumps(found | {"hardware": H200, "results": [part]} | changes)


def test_gpu_tables_show_the_newest_measurements(tmp_path: Path) -> None:
    row = {"what": "from_memory", "shape": "parakeet-tdt-0.6b-v3", "audio": "leaderboard", "budget_frames": "auto"}
    row |= {"graphs": "auto"}
    rivals = [{"software": "s", "model": "m", "hardware": "B300", "rtfx": 15000, "audio": "a", "source": "https://x"}]
    stored(tmp_path, "rivals.json", {"rows": rivals})
    warm, cold = row | {"pass": "warm", "rtfx": 22000.0}, row | {"pass": "cold", "rtfx": 10000.0}
    stored(tmp_path, "b.json", check("2026-11-21T01:00Z", [warm, cold]))
    stored(tmp_path, "a.json", check("2026-11-22T01:11Z", [warm | {"rtfx": 23100.0}]))
    h100 = {"gpu": {"torch_name": "NVIDIA H100 80GB HBM3"}}
    stored(tmp_path, "e.json", check("2026-11-20T01:22Z", [warm | {"rtfx": 11000.0}], hardware=h100))
    stored(tmp_path, "c.json", check("2026-11-23T01:00Z", [warm | {"rtfx": 1.0}], quick=True))
    stored(tmp_path, "d.json", check("2026-11-23T01:00Z", [warm | {"rtfx": 1.0}], hardware=None))
    goals, rates = (part.splitlines() for part in papers.gpu_tables(tmp_path).split("\n\n"))
    assert goals[2].endswith("| 20,000 | **10,000** | 50% | NVIDIA H200 | 00Z, 2026-11-21 |")
    assert goals[3].endswith("| 22,000 | **11,000** | 50% | NVIDIA H100 80GB HBM3 | 22Z, 2026-11-20 |")
    assert goals[4].endswith("| 22,000 | **23,100** | 105% | NVIDIA H200 | 11Z, 2026-11-22 |")
    assert sum("| not measured | - |" in line for line in goals) == 9
    assert [line.split(" | ")[3] for line in rates[2:]] == ["23,100", "15,000", "11,000", "10,000"]
    assert "| fastscribe, greedy, warm | parakeet-tdt-0.6b-v3 (random weights) | NVIDIA H200 |" in rates[2]


def test_stored_results_match_the_documents() -> None:
    made = peers.made_tables(ROOT)
    assert {path.name for path in made} == {
        "README.md",
        "numbers.md",
        "gpu.md",
        "papers.md",
        "install.md",
        "big-jobs.md",
    }
    for path, tables in made.items():
        text = path.read_text(encoding="utf-8")
        assert text == peers.with_tables(text, tables), f"{path.name}: run scripts/peers.py --write"
    assert all(
        row["source"].startswith("https://") and row["hardware"]
        for row in json.loads((ROOT / "docs" / "bench" / "gpu" / "rivals.json").read_text(encoding="utf-8"))["rows"]
    )


def test_the_readmes_table_is_short_and_of_one_kind() -> None:
    _, _, *rows = peers.short_table(ROOT / "docs" / "bench").splitlines()
    assert 3 <= len(rows) <= 12
    assert all("(random weights)" not in row and float(row.split("|")[-2]) > 0 for row in rows)
    [measured] = {document["measured"] for document in peers.stored(ROOT / "docs" / "bench" / peers.OF_README)}
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition(peers.START)[0]
    assert ("with the model loaded" in readme) == ("with the model loaded" in measured)


def test_only_text_between_the_marks_changes() -> None:
    before = f"# Title\n{peers.START}\nold\n{peers.END}\nafter {peers.START} {peers.END}"
    made = peers.with_tables(before, "new")
    assert made == f"# Title\n{peers.START}\nnew\n{peers.END}\nafter {peers.START} {peers.END}"
    assert peers.with_tables(made, "new") == made
    with pytest.raises(ValueError, match="has no"):
        peers.with_tables("# Title", "new")


def test_write_puts_the_tables_into_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    shutil.copytree(ROOT / "docs" / "bench", tmp_path / "docs" / "bench")
    empty = "x\n<!-- benchmark -->\n<!-- /benchmark -->\ny\n"
    places = [stored(tmp_path, "README.md", empty)]
    places += [
        stored(tmp_path / "docs", name, empty)
        for name in ("numbers.md", "gpu.md", "papers.md", "install.md", "big-jobs.md")
    ]
    for options in ((), ("--write",)):
        monkeypatch.setattr(sys, "argv", ["peers.py", *options])
        peers.main()
    printed = capsys.readouterr().out
    for place in places:
        text = place.read_text()
        assert text.startswith("x\n<!-- benchmark -->\n") and text.endswith("<!-- /benchmark -->\ny\n")
        made = text.split("\n", 2)[2].split("<!-- /")[0].strip()
        assert made and made in printed
    monkeypatch.setattr(sys, "argv", ["peers.py", "--wrte"])
    with pytest.raises(SystemExit):
        peers.main()
