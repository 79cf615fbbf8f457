"""Names of models: the packaged one, and those on the hub, organisation/name or organisation/name@revision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PACKAGED = Path(__file__).absolute().parents[1] / "default_model"
DEFAULT = "default"  # name of the packaged model
LARGE_MODEL = "nvidia/parakeet-tdt-0.6b-v3"
PREFIX = "hf://"
DEFAULT_REVISION = "main"
_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@(?P<revision>[A-Za-z0-9_][\w./-]*))?", re.ASCII
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_REPO = 96  # characters; the hub's limit


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None


@dataclass(frozen=True)
class HubName:
    """A repository (organisation/name) and the branch, tag or commit that the user pinned, if any."""

    repo: str
    pinned: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Parse "organisation/name" or "organisation/name@revision"; None for other texts, such as file names."""
        match = _NAME.fullmatch(text.removeprefix(PREFIX))
        if match is None or ".." in text or len(match["repo"]) > _MAX_REPO:
            return None
        if "--" in match["repo"] or match["repo"].endswith((".nemo", ".ckpt", ".git")):
            return None
        return cls(match["repo"], match["revision"])

    @property
    def revision(self) -> str:
        return self.pinned or DEFAULT_REVISION

    def __str__(self) -> str:
        return self.repo if self.pinned is None else f"{self.repo}@{self.pinned}"
