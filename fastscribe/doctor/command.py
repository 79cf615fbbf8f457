"""`fastscribe doctor`: what this machine can do."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fastscribe._system.text_layout import escaped
from fastscribe.cli.app import app, check_stdout
from fastscribe.doctor import Check, examine
from fastscribe.version import __version__

_MARKS = {"ok": "ok", "missing": "-", "problem": "PROBLEM"}


@app.command(
    short_help="Show what this machine can do, and the command that adds what is missing.",
    epilog="Example: fastscribe doctor --json | jq '.checks[] | select(.status != \"ok\")'",
)
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what this machine can do (processor, GPU, dtypes, audio formats, extras, disk) and how to add what is missing.

    A line begins with ok, - (missing; runs do without) or PROBLEM (needed, or there, and does not work). On a GPU it
    transcribes two seconds. Fast paths that were refused stand at the end, and in the JSON's refused. The exit code is 0, or 1
    if there is a problem.
    """
    check_stdout()
    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            _show(check)
    problems = sum(check.status == "problem" for check in checks)
    refused = {path: reason for check in checks for path, reason in check.refused.items()}
    if as_json:
        found = [{name: value for name, value in asdict(check).items() if name != "refused"} for check in checks]
        document = {"fastscribe": __version__, "problems": problems, "refused": refused, "checks": found}
        print(json.dumps(document, ensure_ascii=False))
    else:
        print()
        for path, reason in refused.items():
            print(escaped(f"refused fast path: {path}: {reason}"))
        print(f"{problems} problem{'s' * (problems != 1)}" if problems else "no problems: fastscribe can run here")
    if problems:
        raise typer.Exit(1)


def _show(check: Check) -> None:
    """Print a line as soon as it is known: importing torch takes seconds."""
    print(escaped(f"{_MARKS[check.status]:<8} {check.name:<15} {check.finding}"), flush=True)
    if check.fix is not None:
        what = "fix it" if check.status == "problem" else "add it"
        print(escaped(f"{'':<24} {what}: {check.fix}"), flush=True)
