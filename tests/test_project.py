"""pyproject.toml, the CI workflow, the hooks and CONTRIBUTING.md agree with each other and with the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.conftest import PACKAGE, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
# https://keepachangelog.com/en/1.1.0/
HEADINGS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
# 15.8 MB of fixtures and 1.9 MB of tests and documents when the limit was set. Do not raise it.
MAX_FIXTURES_BYTES, MAX_FIXTURE_BYTES = 16_300_000, 2_200_000  # without code and prose


def commands(job: str) -> list[str]:
    return [line for step in WORKFLOW["jobs"][job]["steps"] for line in step.get("run", "").splitlines()]


def test_every_declared_python_is_tested() -> None:
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    matrix = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == classified
    oldest = classified[0]
    for page in ("README.md", "docs/install.md"):
        assert f"needs Python {oldest} to {classified[-1]} " in (ROOT / page).read_text(encoding="utf-8")
    assert PYPROJECT["project"]["requires-python"] == f">={oldest}"
    assert "python_version" not in PYPROJECT["tool"]["mypy"]  # each Python checks the types that its own packages have
    assert WORKFLOW["jobs"]["lint"]["steps"][1]["with"]["python-version"] == oldest
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert {"python": oldest, "dependencies": "oldest"} in matrix["include"]


def test_the_readmes_commands_run_on_every_python() -> None:
    """As they stand, with the Python that a reader has; so mypy checks the types that each Python's packages have."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert WORKFLOW["jobs"]["readme"]["strategy"]["matrix"] == {
        "python": WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"]
    }
    assert commands("readme") == ["scripts/quickstart", "scripts/test"]
    assert all(f"`{command}`" in readme or f"$ {command}\n" in readme for command in commands("readme"))
    assert WORKFLOW[True]["schedule"]  # YAML 1.1 reads `on` as true


def test_every_dependency_has_a_lower_bound() -> None:
    """Without one, the job on the oldest dependencies would install the first release ever made."""
    project = PYPROJECT["project"]
    lists = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *PYPROJECT["dependency-groups"].values(),
    ]
    texts = [one for requirements in lists for one in requirements if isinstance(one, str)]  # a table includes a group
    named = [one for one in texts if not one.startswith("fastscribe[")]
    assert len(named) > 20
    assert not [one for one in named if not re.match(r"[\w.-]+(\[\w+\])?>=\d", one)]


def test_hooks_and_workflow_run_the_same_checks() -> None:
    script = (ROOT / "scripts" / "test").read_text(encoding="utf-8")
    begun = (line.removeprefix("[ $# -gt 0 ] || ").partition(" >")[0] for line in script.splitlines())
    lines = [line for line in begun if line.startswith('"$bin/')]
    *checks, tests, door = (line.removeprefix('"$bin/').replace('"', "", 1) for line in lines)
    assert len(checks) == 3 and tests.startswith("python -m pytest ") and door == "python scripts/door"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == checks
    assert commands("lint")[-3:] == checks
    assert not [check for check in checks if f"`{check}`" not in CONTRIBUTING]


def test_the_workflow_tests_the_wheel() -> None:
    lines = commands("test")
    assert lines.index("rm -r fastscribe") < [line.startswith("python -m pytest ") for line in lines].index(True)


def test_the_command_is_tried_with_the_oldest_and_the_newest_torch() -> None:
    [oldest] = [one.partition(">=")[2] for one in PYPROJECT["project"]["dependencies"] if one.startswith("torch>=")]
    assert WORKFLOW["jobs"]["door"]["strategy"]["matrix"]["torch"] == [f"torch=={oldest}.*", "torch"]
    assert "scripts/door" in commands("door") and WORKFLOW[True]["schedule"]  # YAML 1.1 reads `on` as true


def test_the_weekly_run_rehearses_the_gpu_and_no_push_cancels_it() -> None:
    assert "github.event_name" in WORKFLOW["concurrency"]["group"]
    assert WORKFLOW["jobs"]["rehearsal"]["if"] == WORKFLOW["jobs"]["readme"]["if"] == "github.event_name == 'schedule'"
    assert commands("rehearsal")[-1] == "scripts/gpu_rehearsal"


def test_actions_are_pinned_to_a_major_version() -> None:
    used = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", one) for one in used)


def tracked(*folders: str) -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("without git's list of files, nothing tells fixtures from leftovers")
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z", *folders]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


def test_fixtures_stay_small() -> None:
    """Each version of a file stays in git's history forever, so the limits may only fall."""
    fixtures = [
        name for name in tracked("tests", "docs") if not name.endswith((".py", ".md")) and (ROOT / name).is_file()
    ]
    sizes = {name: (ROOT / name).stat().st_size for name in fixtures}
    assert len(sizes) > 100
    assert not [name for name, size in sizes.items() if size > MAX_FIXTURE_BYTES], "make them shorter"
    assert sum(sizes.values()) < MAX_FIXTURES_BYTES, "make the new fixture in the test, or drop one that it replaces"


def test_ruff_checks_every_python_script() -> None:
    """ruff finds files named *.py by itself; pyproject.toml lists the others."""
    without_suffix = [name for name in tracked("scripts") if not (ROOT / name).suffix]
    python = [
        name for name in without_suffix if "python" in (ROOT / name).read_text(encoding="utf-8").split("\n", 1)[0]
    ]
    listed = PYPROJECT["tool"]["ruff"]["extend-include"]
    assert python and listed == sorted(python), "pyproject.toml: extend-include of ruff has these scripts, sorted"


def test_type_checkers_see_the_types() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_contributing_names_what_exists() -> None:
    assert missing(CONTRIBUTING) == [], ".github/CONTRIBUTING.md names what is gone, or has another name now"


def test_contributing_names_functions_and_tables_where_they_are() -> None:
    assert misplaced(CONTRIBUTING) == [], ".github/CONTRIBUTING.md names them in another file than they are in"
    assert misplaced("* `FAMILIES` in `scripts/door`: call `gone()` of `fastscribe/config.py`, and `_GONE`.") == [
        "gone",
        "_GONE",
    ]


def misplaced(text: str) -> list[str]:
    """Return each `function()` and `_TABLE` that is in no file which the same item or paragraph names, or in no file at all."""
    absent = []
    every = [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    for block in re.split(r"\n\n|\n(?=[*\d])", text):
        named = re.findall(r"`((?:fastscribe|scripts|tests)/[\w./-]+)`", block)
        places = [(PACKAGE.parent if name.startswith("fastscribe/") else ROOT) / name for name in named]
        files = [place for place in places if place.is_file()] or every
        source = "\n".join(file.read_text(encoding="utf-8") for file in files)
        found = re.findall(r"`(\w+)\(\)`|`(_[A-Z_]+)`", block)
        absent += [one for pair in found for one in pair if one and not re.search(rf"\b{one}\b", source)]
    return absent


def missing(text: str) -> list[str]:
    """Return paths, file names, links and `NAMES` in the text that do not exist in the repository."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    absent, folder = [], ROOT
    for path, bare, link, name in re.findall(
        r"(?<![\w./])((?:fastscribe|tests|scripts|docs)/[\w./-]*\w/?)|`(\w+\.py)`|\]\(([^)#:]+)|`([A-Z][A-Za-z_]+)`",
        text,
    ):
        if name:
            absent += [] if re.search(rf"\b{name}\b", source) else [name]
            continue
        if path:
            place = (PACKAGE.parent if path.startswith("fastscribe/") else ROOT) / path
            folder = place if path.endswith("/") else place.parent
        else:
            place = folder / bare if bare else ROOT / ".github" / link
        absent += [] if place.exists() else [path or bare or link]
    return absent


def test_the_changelog_keeps_a_changelog() -> None:
    assert CHANGELOG.startswith("# Changelog\n")
    for release in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        title, *lines = release.splitlines()
        assert re.fullmatch(r"Unreleased|\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", title)
        headings = [line.removeprefix("### ") for line in lines if line.startswith("### ")]
        assert headings == [heading for heading in HEADINGS if heading in headings], (
            f"{title}: order, or an unknown heading"
        )
        first = next((line for line in lines if line.startswith(("* ", "### "))), "### ")
        assert first.startswith("### "), f"{title}: an entry under no heading"
