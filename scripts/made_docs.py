"""The pages that are made from the program: man/fastscribe.1, docs/options.md, docs/fields.md and the table in docs/models.md.

python -m scripts.made_docs    writes them; do so after a change of options or of the version, of
                               fastscribe/results/formats/schema/ or of fastscribe/checkpoint/known_models.yaml

The man page, which the wheel installs to share/man/man1, and docs/options.md come from the commands, docs/fields.md from the
JSON Schemas, and the table of published models from their list. A page keeps what stands outside its marks.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from fastscribe.checkpoint.known_models import KnownModel, known_models
from fastscribe.cli.schema import SchemaName, schema_text
from fastscribe.version import __version__
from scripts.command_tree import Command, commands

ROOT = Path(__file__).resolve().parents[1]
MAN_PAGE = ROOT / "man" / "fastscribe.1"
OPTIONS, FIELDS, MODELS = (ROOT / "docs" / name for name in ("options.md", "fields.md", "models.md"))
STALE = "the made pages are of another state of the program: python -m scripts.made_docs writes them"
START, END = "<!-- made by scripts/made_docs.py -->", "<!-- made until here -->"
Schema = Mapping[str, Any]
_EXIT_CODES = {
    "0": "Everything was done.",
    "1": "Some files failed in this run, a benchmark could measure nothing, or doctor found a problem.",
    "2": "Wrong usage, an unusable model, or an output folder that another run holds or that has other settings.",
    "3": "No file failed in this run, but some failed in an earlier one (--retry-failed tries them again).",
    "130": "Interrupted by Ctrl-C. Finished results are kept.",
    "141": "The reader of standard output was closed.",
    "143": "Terminated. Finished results are kept.",
}
_VARIABLES = {
    "FASTSCRIBE_OPTION": "Sets --option for all commands that have it: FASTSCRIBE_MODEL sets --model.",
    "HF_HOME, HF_HUB_CACHE": "Where downloaded models are.",
    "HF_HUB_OFFLINE": "1: take models from the cache without asking the hub.",
    "HF_TOKEN": "For private and gated models.",
    "NO_COLOR": "No colours.",
}


def man_page() -> str:
    """Return the page in roff."""
    return "\n".join(_of_man_page()) + "\n"


def _of_man_page() -> Iterator[str]:
    yield from (f'.TH FASTSCRIBE 1 "" "fastscribe {__version__}" "User Commands"', ".SH NAME")
    yield r"fastscribe \- turn folders of audio into text"
    yield from (".SH SYNOPSIS", ".B fastscribe", r".I COMMAND", "[OPTIONS] [ARGUMENTS]", ".SH DESCRIPTION")
    yield (
        "Transcribe audio and video with FastConformer (RNN\\-T, TDT, CTC), Canary, Citrinet, ContextNet, QuartzNet and Jasper"
        " models, on a GPU or a CPU."
    )
    yield ".SH COMMANDS"
    for command in commands():
        yield from _in_man_page(command)
    for title, entries in (("EXIT STATUS", _EXIT_CODES), ("ENVIRONMENT", _VARIABLES)):
        yield f".SH {title}"
        for name, meaning in entries.items():
            yield from (".TP", f".B {_escaped(name)}", _escaped(meaning))


def _in_man_page(command: Command) -> Iterator[str]:
    yield from (f".SS {command.name}", _paragraph(command.help))
    if command.usage:
        yield from (".PP", f".B {_escaped(command.name)}", _escaped(command.usage))
        for title, options in command.groups.items():
            if len(command.groups) > 2:
                yield from (".PP", f".I {_escaped(title)}")
            for names, meaning in options:
                yield from (".TP", f".B {_escaped(names)}", _paragraph(meaning))
    if command.example:
        yield from (".PP", _paragraph(command.example))


def _paragraph(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Return text in which roff finds no requests. A hyphen that is typed is a minus."""
    text = re.sub(r"(?<![A-Za-z])-|(?<=-)-", "\n", text.replace("\\", "\\e")).replace("\n", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def option_reference() -> str:
    """Return a heading, the help, a table of arguments and options, and the example of each command."""
    return "\n".join(line for command in commands() for line in _in_options(command))


def _in_options(command: Command) -> Iterator[str]:
    yield from (f"## {command.name}", "", in_markdown(command.help), "")
    if command.usage:
        yield from (f"`{command.name} {command.usage}`", "", "| option | meaning |", "| --- | --- |")
        for group, options in command.groups.items():
            if len(command.groups) > 2:  # more than the arguments and one group of options
                yield f"| **{group}** | |"
            for names, meaning in options:
                name = names.replace("|", r"\|")
                yield f"| `{name}` | {in_markdown(meaning)} |"
        yield ""
    if command.example:
        yield from (in_markdown(command.example), "")


def in_markdown(text: str) -> str:
    """Return the text as one paragraph without markup, but with options as code, so that none breaks after its dashes."""
    plain = re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", plain)


def field_reference() -> str:
    """Return a heading and a table of fields for each object."""
    return "\n".join(line for name in get_args(SchemaName) for line in _of_schema(json.loads(schema_text(name))))


def _of_schema(schema: Schema) -> Iterator[str]:
    yield from (f"## {schema['title']}", "", schema["description"], "")
    for definition in schema["$defs"].values():
        if "properties" in definition:
            yield from _table(definition, schema)
            for field in definition["properties"].values():
                if "properties" in field:
                    yield from _table(field, schema)


def _table(definition: Schema, schema: Schema) -> Iterator[str]:
    yield from (f"### {definition['title']}", "")
    if "description" in definition:
        yield from (definition["description"], "")
    yield from ("| field | type | present | meaning |", "| --- | --- | --- | --- |")
    for name, field in definition["properties"].items():
        whole = {**_target(field, schema), **field}
        when = "always" if name in definition.get("required", ()) else whole.get("when")
        if when is None:
            sys.exit(f"{definition['title']}: {name} is neither required nor says when it is present: give it a `when`")
        yield f"| `{name}` | {_type(whole, schema)} | {when} | {whole['description']} |"
    yield ""


def _target(field: Schema, schema: Schema) -> Schema:
    """Return the definition that a field refers to; an empty one if to none."""
    name = field.get("$ref", "").removeprefix("#/$defs/")
    found: Schema = schema["$defs"][name] if name else {}
    return found


def _type(field: Schema, schema: Schema) -> str:
    if "anyOf" in field:
        return " or ".join(_type({**_target(one, schema), **one}, schema) for one in field["anyOf"])
    if "enum" in field:
        return "string"
    if "const" in field:
        return "boolean" if field["const"] is True else "string"
    kind = field.get("type", "any")
    if kind == "array":
        items = field["items"]
        return f"list of {_type({**_target(items, schema), **items}, schema)}s"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def model_table() -> str:
    """Return the table in Markdown."""
    heading = ("model", "kind", "parameters", "download", "languages", "licence")
    lines = [heading, ("---",) * len(heading), *(_cells(model) for model in known_models() if model.name != "default")]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(model: KnownModel) -> tuple[str, ...]:
    return (
        f"`{model.hub or model.name}`",
        model.family,
        f"{model.parameters_millions:,} M" if model.parameters_millions else "unknown",
        "unknown" if model.download_gb is None else f"{model.download_gb} GB",
        model.languages or "unknown",
        model.licence or "unknown",
    )


def inside(page: str) -> str:
    """Return what stands between the marks of a page, or behind the first if there is no second."""
    return page.partition(START)[2].partition(END)[0].strip()


def with_made(page: str, made: str) -> str:
    """Return the page with `made` between its marks."""
    before, _, rest = page.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{START}\n\n{made.strip()}\n" + (f"\n{end}{after}" if end else "")


def main() -> None:
    """Write all pages."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    MAN_PAGE.write_text(man_page(), encoding="utf-8")
    for page, made in ((OPTIONS, option_reference), (FIELDS, field_reference), (MODELS, model_table)):
        page.write_text(with_made(page.read_text(encoding="utf-8"), made()), encoding="utf-8")
    made = (page.relative_to(ROOT).as_posix() for page in (MAN_PAGE, OPTIONS, FIELDS, MODELS))
    print("wrote", ", ".join(made), file=sys.stderr)


if __name__ == "__main__":
    main()
