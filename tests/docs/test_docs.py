"""What the documentation says is what the program does."""

from __future__ import annotations

import hashlib
import json
from difflib import SequenceMatcher

import fastscribe
from tests.conftest import PACKAGE, ROOT
from tests.helpers.processes import fastscribe as run_fastscribe

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_commands_output_is_real() -> None:
    """But for a letter where another processor rounds otherwise."""
    shown = README.split("$ scripts/quickstart\n")[1].split("```")[0].strip().split("\n")
    script = (ROOT / "scripts" / "quickstart").read_text()
    [line] = [line for line in script.splitlines() if "fastscribe transcribe 'tests" in line]
    arguments = line.replace("'", "").replace('"$@"', "").split()[1:]
    done = run_fastscribe(*arguments, cwd=ROOT)
    printed = done.stdout.strip().split("\n")
    gap = shown.index("...")
    rest = len(shown) - gap - 1
    assert SequenceMatcher(None, "\n".join(shown[:gap]), "\n".join(printed[:gap]), autojunk=False).ratio() > 0.97
    assert SequenceMatcher(None, "\n".join(shown[-rest:]), "\n".join(printed[-rest:]), autojunk=False).ratio() > 0.97
    assert len(printed) == 16
    assert done.stderr.count("no --model") == 1


def test_the_first_screen_has_it_all() -> None:
    first = "\n".join(README.splitlines()[:25])
    assert "scripts/quickstart" in first
    stored = json.loads((ROOT / "docs" / "bench" / "default_model" / "cpu.json").read_text(encoding="utf-8"))
    for split in ("test_native", "test_accented"):
        assert f"{100 * stored['splits'][split]['wer']:.1f} %" in first


def test_the_packaged_model_is_the_one_that_was_measured() -> None:
    stored = json.loads((ROOT / "docs" / "bench" / "default_model" / "cpu.json").read_text(encoding="utf-8"))
    folder = PACKAGE / "default_model"
    weights = folder / "model.safetensors"
    assert weights.stat().st_size == stored["model_bytes"] <= 16_000_000
    measured = {name: (folder / name).read_bytes() for name in stored["sha256"]}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in measured.items()} == stored["sha256"]
    assert {file.name for file in folder.iterdir()} == measured.keys() | {"README.md"}
    assert sum(map(len, measured.values())) <= 1 << 24
    card = (folder / "README.md").read_text(encoding="utf-8")
    for split in stored["splits"].values():
        assert f"{100 * split['wer']:.1f} %" in card


def test_versions_agree() -> None:
    release = fastscribe.__version__.partition("+")[0]  # a fork's label has a changelog of its own
    assert f"## {release} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert run_fastscribe("--version").stdout.strip() == f"fastscribe {fastscribe.__version__}"


def test_stored_results_say_what_they_measured() -> None:
    for path in (ROOT / "docs" / "bench").glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "case_keys" in result:  # of `fastscribe bench`
            assert result["machine"] and result["date"] and result["command"], path.name
            continue
        assert {"hardware", "date", "commit", "statistic"} <= result.keys(), path.name
        assert all("versions" in part for part in result["results"]), path.name
