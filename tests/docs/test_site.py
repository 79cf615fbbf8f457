"""The site: every page is in the navigation, links lead somewhere, generated parts are complete."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.command_tree import commands
from scripts.house import TIERS, room_names
from scripts.made_docs import FIELDS, OPTIONS, STALE, field_reference, in_markdown, inside
from tests.conftest import PACKAGE, ROOT
from tests.helpers.markdown import anchors, blocks, documents, links
from tests.helpers.warm_process import LIBRARIES_ALONE

DOCS = ROOT / "docs"
PAGES = documents()
STAGES = ("inputs", "probe", "split", "plan", "load", "features", "encode", "decode", "assemble", "write")
BUILD = """
import sys
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.cmd.build import main
StandaloneHTMLBuilder.search = False  # the index warns of nothing
sys.exit(main(sys.argv[1:]))
"""
GENERATOR = ("sphinx", "myst_parser", "pydata_sphinx_theme")


def broken_links(path: Path) -> list[str]:
    """Links of a document to files or headings that do not exist."""
    found = []
    for target in links(path):
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        if place.is_relative_to(ROOT / "fastscribe"):
            place = PACKAGE / place.relative_to(ROOT / "fastscribe")  # where the wheel is tested, not the checkout
        is_folder = path.parent == DOCS and place.is_dir()  # the site has no page of one
        if not place.exists() or is_folder or (anchor and anchor not in anchors(place)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_every_page_is_in_the_navigation() -> None:
    listed = [name for page in DOCS.glob("*.md") for block in blocks(page, "{toctree}") for name in entries(block.text)]
    pages = sorted({page.stem for page in DOCS.glob("*.md")} - {"index"})
    assert sorted(listed) == pages, "each page is in one toctree, that of docs/guides.md, reference.md or internals.md"


def entries(toctree: str) -> list[str]:
    return [line for line in toctree.split() if not line.startswith(":") and not line.isdigit()]


def test_the_readme_is_short_and_leads_to_every_guide() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 130
    [guides] = blocks(DOCS / "guides.md", "{toctree}")
    wanted = {f"docs/{name}.md" for name in [*entries(guides.text), "how-it-works", "options", "python", "numbers"]}
    assert wanted <= set(links(readme))


def test_the_stages_are_those_of_the_drawing_and_their_files_exist() -> None:
    text = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    table = text.split("| stage | does | files | result |")[1].split("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    assert tuple(row[0].removeprefix("| ") for row in rows) == STAGES
    drawing = (DOCS / "pipeline.svg").read_text(encoding="utf-8")
    assert tuple(re.findall(r'class="stage">(\w+)<', drawing)) == STAGES
    drivers = re.findall(r"[\w/]+\.py", drawing)
    assert drivers and all(f"`{driver}`" in text and (PACKAGE / driver).is_file() for driver in drivers)
    for stage, _, files, *_ in rows:
        names = re.findall(r"`([^`]+)`", files)
        assert names, stage
        assert not [name for name in names if not (PACKAGE / name).is_file()], stage


def test_the_house_is_as_it_is_drawn() -> None:
    boxes = (DOCS / "house.svg").read_text(encoding="utf-8").split("<rect ")[2:-1]
    names = [re.findall(r"[a-z_]{3,}", " ".join(re.findall(r">([^<>]+)</text>", box))) for box in boxes]
    assert [set(box) for box in names[: len(TIERS)]] == [set(tier) for tier in reversed(TIERS)]
    assert sorted(names[len(TIERS) :]) == sorted([name] for name in room_names())


def test_the_drawing_of_a_run_names_what_exists() -> None:
    [drawing] = [block.text for block in blocks(DOCS / "how-it-works.md", "text")]
    code = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    files = set(re.findall(r"[\w/]+\.py", drawing))
    assert files and not [name for name in files if not any(f"/{path}".endswith(f"/{name}") for path in code)]
    functions = {name.split(".")[-1] for name in re.findall(r"[\w.]+(?=\()", drawing)}
    defined = {name for text in code.values() for name in re.findall(r"^ *(?:def|class) (\w+)", text, re.MULTILINE)}
    assert functions and functions <= defined, functions - defined
    threads = re.findall(r'"([a-z-]+)"', drawing)
    assert threads and not [name for name in threads if not any(f'"{name}' in text for text in code.values())]


def test_paths_in_how_it_works_exist() -> None:
    text = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w/.-]+(?:\.py|/))`", text))
    assert len(names) > 40
    roots = (ROOT, PACKAGE, PACKAGE / "checkpoint", ROOT / "scripts", PACKAGE.parent)
    assert not [name for name in names if not any((root / name).exists() for root in roots)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_shown_exist(page: Path) -> None:
    """A path in backticks from the repository's root."""
    names = set(re.findall(r"`((?:scripts|tests|docs|fastscribe)/[\w/.-]*)`", page.read_text(encoding="utf-8")))
    assert not [name for name in names if not any((root / name).exists() for root in (ROOT, PACKAGE.parent))]


def test_the_option_reference_is_of_this_program() -> None:
    """Versions of typer show defaults and ranges otherwise: words are compared."""
    made = inside(OPTIONS.read_text(encoding="utf-8"))
    sections = dict(part.split("\n", 1) for part in f"\n{made}".split("\n## ")[1:])
    assert list(sections) == [command.name for command in commands()], STALE
    for command in commands():
        stored = sections[command.name]
        records = [record for options in command.groups.values() for record in options]
        texts = [command.help, command.example, *(meaning.partition(" [")[0] for _, meaning in records)]
        assert not [text for text in texts if in_markdown(text) not in stored], STALE
        named = [name for names, _ in records for name in re.findall(r"--[a-z][a-z-]*", names)]
        rows = [row.split("` | ")[0] for row in stored.splitlines() if row.startswith("| `")]
        assert [name for row in rows for name in re.findall(r"--[a-z][a-z-]*", row)] == named, STALE
        assert len(rows) == len(records), STALE


def test_the_field_reference_is_of_the_schemas() -> None:
    assert inside(FIELDS.read_text(encoding="utf-8")) == field_reference().strip(), STALE


def test_the_python_reference_names_public_things() -> None:
    import fastscribe
    import fastscribe.ray
    import fastscribe.training

    text = (DOCS / "python.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"auto\w+:: ([\w.]+)", text))
    public = {f"fastscribe.{name}" for name in fastscribe.__all__ if name != "__version__"}
    for package in (fastscribe.ray, fastscribe.training):
        public |= {f"{package.__name__}.{name}" for name in package.__all__}
    assert documented == public, "docs/python.md: the reference names what is in __all__"
    assert set(fastscribe.__all__) <= set(dir(fastscribe))
    classes = [value for name in fastscribe.__all__ if isinstance(value := getattr(fastscribe, name), type)]
    texts = {kind.__name__: vars(kind)["__doc__"] for kind in classes}
    # Without one, a dataclass gets its signature, and an exception has that of its base.
    assert not [name for name, text in texts.items() if not text or text.startswith(f"{name}(")]


@pytest.mark.skipif(
    any(find_spec(name) is None for name in GENERATOR), reason="the group docs is not installed: it needs Python 3.11"
)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    options = ("--fail-on-warning", "--keep-going", "--quiet", "--builder", "html")
    done = LIBRARIES_ALONE.python(BUILD, *options, DOCS, tmp_path, timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert "--max-utterance-s" in (tmp_path / "options.html").read_text(encoding="utf-8")
