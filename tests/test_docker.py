"""What the Dockerfiles name exists. Building them needs a daemon and a registry, so the workflow does that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import command_tree
from scripts.shapes import SHAPES
from tests.conftest import ROOT
from tests.test_project import PYPROJECT, commands

FILES = (ROOT / "Dockerfile", ROOT / "Dockerfile.cuda")
FIXED = ("FROM", "WORKDIR", "COPY", "RUN", "ARG", "ENV", "VOLUME", "USER", "ENTRYPOINT", "CMD")


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return (instruction, arguments) without comments, continued lines joined."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def image(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    return instructions(request.param)


def copied(image: list[tuple[str, str]]) -> list[str]:
    return [source for name, rest in image if name == "COPY" and "--from" not in rest for source in rest.split()[:-1]]


def test_sources_exist_and_docker_sees_them(image: list[tuple[str, str]]) -> None:
    assert {name for name, _ in image} <= set(FIXED)
    assert [source for source in copied(image) if not (ROOT / source).exists() and source != "fastscribe"] == []
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored and set(copied(image)) <= kept
    assert kept == {source for path in FILES for source in copied(instructions(path))}


def test_the_wheel_has_all_it_needs(image: list[tuple[str, str]]) -> None:
    """Files that pyproject.toml names are copied before the wheel is built."""
    project = PYPROJECT["project"]
    named = [project["readme"], *project["license-files"]]
    named += [file for files in PYPROJECT["tool"]["setuptools"]["data-files"].values() for file in files]
    assert {Path(name).parts[0] for name in named} < set(copied(image))
    [extras] = {extras for _, rest in image for extras in re.findall(r"\.whl\)\[([\w,]+)\]", rest)}
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_the_image_is_small_and_runs_without_root(image: list[tuple[str, str]]) -> None:
    version = next(rest for name, rest in image if name == "ARG").removeprefix("PYTHON=")
    assert f"Programming Language :: Python :: {version}" in PYPROJECT["project"]["classifiers"]
    assert [rest for name, rest in image if name == "FROM"] == [
        "python:${PYTHON}-slim AS build",
        "python:${PYTHON}-slim",
    ]
    assert ("USER", "fastscribe") in image and ("VOLUME", "/models") in image
    assert any(name == "ENV" and "HF_HOME=/models" in rest for name, rest in image)
    assert ("ENTRYPOINT", '["fastscribe"]') in image and "fastscribe" in PYPROJECT["project"]["scripts"]
    assert all("--no-cache-dir" in rest for name, rest in image if "pip install" in rest)


def test_nothing_is_compiled_when_a_container_starts(image: list[tuple[str, str]]) -> None:
    runs = [rest for name, rest in image if name == "RUN"]
    assert all(rest.count("pip install") == rest.count("pip install --compile") for rest in runs)
    assert any("compileall" in rest for rest in runs)


def test_the_workflow_builds_them() -> None:
    lines = commands("docker")
    assert all(any(line.startswith("docker build ") and f"-f {path.name} " in line for line in lines) for path in FILES)


def test_the_image_brings_the_machine_code_of_loops() -> None:
    """It is compiled with the settings of the container, by a benchmark that exists."""
    image = instructions(ROOT / "Dockerfile")
    folders = [found for name, rest in image if name == "ENV" for found in re.findall(r"NUMBA_CACHE_DIR=(\S+)", rest)]
    assert folders == ["/opt/fastscribe/numba"] * 2  # in both stages; the second one copies /opt/fastscribe
    [line] = [rest for name, rest in image if name == "RUN" and " bench --latency " in rest]
    [shape] = re.findall(r"scripts\.random_checkpoint (\S+)", line)
    assert SHAPES[shape].encoder.has_loops
    [options] = [command.groups for command in command_tree.commands() if command.name == "fastscribe bench"]
    known = str([name for group in options.values() for name, _ in group])
    assert all(re.search(rf"{name}\b", known) for name in re.findall(r" (--[a-z-]+)", line))
