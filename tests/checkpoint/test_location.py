"""Resolution of --model. Downloads are tested in test_hub.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastscribe.checkpoint import hub, location
from fastscribe.checkpoint.hub_name import HubName, is_commit
from fastscribe.checkpoint.location import locate
from fastscribe.errors import CheckpointError, UsageError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[HubName, bool]]:
    """Record downloads, and whether they were announced."""
    names: list[tuple[HubName, bool]] = []

    def download(name: HubName, *_: object, announce: bool, **__: object) -> Path:
        names.append((name, announce))
        return tmp_path / "from the hub"

    monkeypatch.setattr(hub, "download", download)
    monkeypatch.chdir(tmp_path)
    return names


def find(model: str | None) -> Path:
    return locate(model, print)


def test_paths(requests: list, tmp_path: Path) -> None:
    (tmp_path / "some" / "model@1").mkdir(parents=True)
    named = ("some/model@1", "model.nemo", "folder/model.nemo")
    for name in (*named, "./a/b", "/a/b", "a/b/c", "a--b/c", "a/..", "a/b@../c"):
        assert find(name) == Path(name)
    assert requests == []


def test_hub_names(requests: list, tmp_path: Path) -> None:
    for text, name in (
        ("nvidia/parakeet-tdt-0.6b-v3", HubName("nvidia/parakeet-tdt-0.6b-v3")),
        ("a/b@v1.0", HubName("a/b", "v1.0")),
        ("a/b@refs/pr/1", HubName("a/b", "refs/pr/1")),
        (f"a/b@{COMMIT}", HubName("a/b", COMMIT)),
    ):
        assert find(text) == tmp_path / "from the hub"
        assert requests[-1] == (name, True)
    revisions = (None, "v1", COMMIT[:7], COMMIT)
    assert [revision for revision in revisions if is_commit(HubName("a/b", revision).revision)] == [COMMIT]


def test_mistyped_path(requests: list, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("run/best", "run/best@main"):
        with pytest.raises(CheckpointError, match="no such path, though run exists") as caught:
            find(name)
        assert f"hf://{name}" in str(caught.value)
    assert requests == []
    find("hf://run/best")
    assert requests == [(HubName("run/best"), False)]


def test_packaged_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []

    def find_packaged(model: str | None) -> Path:
        return locate(model, lines.append)

    monkeypatch.setattr(location, "PACKAGED", tmp_path)
    with pytest.raises(UsageError, match="--model"):
        find_packaged(None)
    (tmp_path / "config.json").touch()
    assert find_packaged("default") == tmp_path and lines == []
    assert find_packaged(None) == tmp_path and len(lines) == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", r'^"": names no model; '),
        ("hf://parakeet", r"^hf://parakeet: .*hf://organisation/name"),
        ("parakeet-tdt-0.6b-v3", r": no such file or folder; did you mean nvidia/parakeet-tdt-0\.6b-v3\?$"),
        ("parakeet", r": no such file or folder; did you mean nvidia/parakeet-tdt-0\.6b-v3\?$"),
        ("Canary", r": no such file or folder; did you mean nvidia/canary-1b.*\?$"),
        ("parakeet-tdt", r": no such file or folder; did you mean nvidia/parakeet-tdt-0\.6b-v3\?$"),
        ("zzz", "no such file or folder; a model on the Hugging Face hub is named"),
    ],
)
def test_names_that_mean_no_model(requests: list, name: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        find(name)
    assert requests == []
