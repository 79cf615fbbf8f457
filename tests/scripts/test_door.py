"""scripts/door with a stand-in for the installed command: whatever is wrong in a cell makes it fail, and is printed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import AUDIO, ROOT, golden

pytestmark = pytest.mark.posix

# Writes the texts and words of a golden.json; $FAULT names what it does wrong.
PROGRAM = """
import json, os, sys
from pathlib import Path

command, *given = sys.argv[1:]
fault, texts = os.environ.get("FAULT"), json.loads(Path("texts.json").read_text())
inputs = [Path(one) for one in given if one.endswith(".flac")]
out = Path(given[given.index("-o") + 1]) if "-o" in given else None
if command == "inspect":
    print(json.dumps({"decoders": ["rnnt" if fault == "decoder" else "tdt"]}))
    sys.exit()
if out and out.exists():
    if fault == "decodes again":
        (out / "transcripts.jsonl").write_text((out / "transcripts.jsonl").read_text())
    print("" if fault == "silent" else "all 2 inputs are done: there is nothing to do", file=sys.stderr)
    sys.exit()
rows = []
for path in inputs:
    text = texts.get(path.name)
    result = {"error": {"message": "no sound"}} if text is None and fault != "no error row" else {"text": text or ""}
    words = json.loads(Path("words.json").read_text()).get(path.name, [])
    if fault == "times":
        words[-1]["start"] += 0.08
    rows.append(json.dumps({"audio_filepath": str(path), "duration": 60.0, "words": words, **result}))
    if out:
        out.mkdir(exist_ok=True)
        shown = text + " more" if fault == "subtitles" else text
        (out / path.name).with_suffix(".srt").write_text(f"1\\n00:00:00,000 --> 00:00:01,000\\n{shown}\\n\\n")
(out / "transcripts.jsonl" if out else Path("/dev/stdout")).write_text("".join(row + "\\n" for row in rows))
if fault == "warning":
    print("library.py:1: UserWarning: it will go", file=sys.stderr)
sys.exit(1 if len(inputs) > len(texts) and fault != "exit code" else 0)
"""


@pytest.fixture(scope="module")
def door() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("door", str(ROOT / "scripts" / "door"))
    spec = importlib.util.spec_from_loader("door", loader)
    assert spec is not None
    module = sys.modules["door"] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def tried(door: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, str]]:
    """Return what tries the family TDT, and then another row: whether all is right, and what was printed."""
    (tmp_path / "program.py").write_text(PROGRAM)
    [family] = [one for one in door.FAMILIES if one.name == "TDT"]

    def try_it(fault: str = "", **texts: str) -> tuple[bool, str]:
        files = golden(door.TDT.parent)["files"]
        (tmp_path / "texts.json").write_text(json.dumps({file: files[file]["text"] for file in family.files} | texts))
        (tmp_path / "words.json").write_text(json.dumps({file: files[file]["word"] for file in family.files}))
        monkeypatch.setitem(door.ENVIRONMENT, "FAULT", fault)
        program = door.Program([sys.executable, str(tmp_path / "program.py")], tmp_path)
        rows = {"TDT": partial(door.try_family, family), "next": partial(door.try_command, lambda *_: None)}
        lines: list[str] = []
        return door.try_rows(rows, program, 1, lines.append), "\n".join(lines)

    return try_it


def test_a_right_family_fills_its_line(door: ModuleType, tried: Callable[..., tuple[bool, str]]) -> None:
    is_right, printed = tried()
    lines = printed.splitlines()
    assert (
        is_right and re.fullmatch(r"TDT +(ok +){5}[\d.]+ s", lines[0]) and re.fullmatch(r"next +ok +[\d.]+ s", lines[1])
    )
    assert len(door.COLUMNS) == 5


@pytest.mark.parametrize(
    ("fault", "num_right", "difference"),
    [
        ("warning", 0, "Python's messages: ['UserWarning: it will go']\nexpected: []"),
        ("times", 1, "('empty.', 2.08, 2.32)]\nexpected: [('On', 0.0, 0.16), "),
        ("subtitles", 1, "empty.more'\nexpected: 'Onthearrival"),
        ("silent", 2, "says that nothing is left to do: False"),
        ("decodes again", 2, "time of the rows: "),
        ("decoder", 3, "has tdt: False"),
        ("exit code", 4, "exit code: 0\nexpected: 1"),
        ("no error row", 4, "'broken.flac': ''}\nexpected: "),
    ],
)
def test_a_fault_ends_the_table(tried: Callable[..., Any], fault: str, num_right: int, difference: str) -> None:
    """The line says which cell, and the command, its exit code and messages, and the difference follow; no other row begins."""
    is_right, printed = tried(fault)
    assert not is_right and re.match(rf"TDT +(ok +){{{num_right}}}WRONG ", printed)
    assert "program.py " in printed and "\nexit code " in printed and "\nstderr: " in printed and difference in printed
    assert "\nnext" not in printed


def test_a_changed_golden_is_wrong(tried: Callable[..., Any]) -> None:
    is_right, printed = tried(**{"12_1_00161.flac": "On the arrival of the police the house was full."})
    assert not is_right and re.match(r"TDT +WRONG ", printed)
    assert f"transcribe {AUDIO}/12_1_00161.flac --model " in printed
    assert "was full.'}\nexpected: {'12_1_00161.flac': 'On the arrival of the police the house was empty.'}" in printed


def test_every_family_has_texts(door: ModuleType) -> None:
    """A family whose stand-in writes nothing would prove nothing."""
    assert len(door.FAMILIES) == len({family.name for family in door.FAMILIES})
    for family in door.FAMILIES:
        assert any((door.said(family.golden, family.files) if family.golden else door.sentences()).values()), (
            family.name
        )
        assert not family.times or all(door.timed(family.times, file) for file in family.files), family.name


def test_rows_by_name_and_the_exit_code(
    door: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A name that no row has must not end as if all were right."""
    (command := tmp_path / "fastscribe").write_text(f"#!{sys.executable}\nimport sys\nprint(*sys.argv[1:])\n")
    command.chmod(0o755)

    def greeting(program: Any, folder: Path) -> None:
        door.expect(done := program.run("hello"), "greeting", done.stdout, "hello\n")

    def parting(program: Any, folder: Path) -> None:
        door.expect(done := program.run("hello"), "parting", done.stdout, "goodbye\n")

    monkeypatch.setattr(door, "install", lambda folder: command)
    monkeypatch.setattr(door, "COMMANDS", (greeting, parting))
    monkeypatch.setattr(door, "FAMILIES", ())
    assert door.main(["--only", "GREET"]) == 0
    assert re.search(r"greeting +ok +[\d.]+ s\n1 rows in \d+ s: right\n$", capfd.readouterr().out)
    assert door.main([]) == 1
    assert re.search(
        r"parting +WRONG (.|\n)*expected: 'goodbye\\n'(.|\n)*2 rows in \d+ s: WRONG\n$", capfd.readouterr().out
    )
    with pytest.raises(SystemExit) as end:
        door.main(["--only", "cohre"])
    assert end.value.code == 2 and "--only cohre: no row has a name with this in it" in capfd.readouterr().err


def test_settings_of_the_caller_do_not_reach_a_run(door: ModuleType) -> None:
    settings = ("FASTSCRIBE_MODEL", "PYTHONPATH", "PYTEST_CURRENT_TEST", "NUMBA_DISABLE_JIT", "MKL_NUM_THREADS")
    settings += ("OMP_NUM_THREADS", "TORCH_LOGS", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_ENABLE_MPS_FALLBACK", "HF_HOME")
    found = door.environment({"PATH": "/bin", "LANG": "C", "CUDA_VISIBLE_DEVICES": "0", **dict.fromkeys(settings, "1")})
    assert found == {"PATH": "/bin", "LANG": "C", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
