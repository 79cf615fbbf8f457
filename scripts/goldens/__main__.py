"""Make reference outputs for tests/data, in an environment with the reference implementation; it needs no fastscribe.

    python -m scripts.goldens canary OUT_DIR MANIFEST AUDIO_DIR [--only MODEL]
    python -m scripts.goldens canary        # says what the paths are, and what is written

A maker is a module of this folder; NeMo, transformers, tokenizers or Lhotse must be installed, as it says.
"""

from __future__ import annotations

import argparse
import ast
import logging
import os
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
MAKERS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("__init__", "__main__", "common"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maker", choices=MAKERS)
    parser.add_argument("paths", type=Path, nargs="*", help="where the results go, then what they are made of")
    parser.add_argument("--only", action="append", help="make this one of its models alone; may be repeated")
    given = parser.parse_args()
    if not given.paths:  # few environments have what an import needs
        print(ast.get_docstring(ast.parse((HERE / f"{given.maker}.py").read_text(encoding="utf-8"))))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    maker = import_module(f"scripts.goldens.{given.maker}")
    logging.getLogger("nemo_logger").setLevel(logging.ERROR)  # after NeMo has set it
    maker.main(*given.paths, **({"only": given.only} if given.only else {}))


if __name__ == "__main__":
    main()
