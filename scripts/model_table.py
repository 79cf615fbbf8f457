"""The table of published models in docs/models.md, made from fastscribe/checkpoint/known_models.yaml.

python scripts/model_table.py    writes it
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]

from fastscribe.checkpoint.known_models import KnownModel, known_models  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
MARK = "<!-- models -->"


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


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    PAGE.write_text(f"{before}{MARK}\n{model_table()}\n{MARK}{after}", encoding="utf-8")
