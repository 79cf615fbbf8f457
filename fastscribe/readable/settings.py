"""Options of redaction: which values and which combinations are possible."""

from __future__ import annotations

from typing import get_args

from fastscribe.config import Options, RedactName
from fastscribe.errors import OptionError


def check_options(options: Options) -> None:
    """Check options of which one changes texts, and drop what `redact` and `redact_names` name twice. Raises OptionError."""
    for name in ("redact", "redact_names"):
        object.__setattr__(options, name, tuple(dict.fromkeys(getattr(options, name))))
    unknown = next((one for one in options.redact if one not in get_args(RedactName)), None)
    if unknown is not None:
        raise OptionError("redact", unknown, f"not one of {', '.join(get_args(RedactName))}")
    if ("names" in options.redact) != bool(options.redact_names):
        needs = "there is no list of names" if "names" in options.redact else "there are names, but redact has no names"
        raise OptionError("redact", ",".join(options.redact), needs)
