"""Resolution of --model. Downloads are tested in test_hub.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastscribe.checkpoint import hub, location
from fastscribe.checkpoint.hub_name import HubName
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
    for name in (
        "some/model@1",
        "model.nemo",
        "folder/model.nemo",
        "./a/b",
        "/a/b",
        "a/b/c",
        "a--b/c",
        "a/..",
        "a/b@../c",
    ):
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
    assert [HubName("a/b", revision).is_commit for revision in (None, "v1", COMMIT[:7], COMMIT)] == [
        False,
        False,
        False,
        True,
    ]


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


def test_empty_name(requests: list) -> None:
    with pytest.raises(CheckpointError, match=r'^"": names no model; '):
        locate("", print)
    assert not requests


def test_name_without_organisation(requests: list) -> None:
    with pytest.raises(CheckpointError, match=r"did you mean nvidia/parakeet-tdt-0\.6b-v3\?$"):
        find("parakeet-tdt-0.6b-v3")
    assert requests == []


def test_hub_prefix_without_organisation(requests: list) -> None:
    with pytest.raises(CheckpointError, match=r"^hf://parakeet: .*hf://organisation/name"):
        find("hf://parakeet")
    assert requests == []


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("parakeet", "nvidia/parakeet-tdt-0.6b-v3"),
        ("Canary", "nvidia/canary-1b"),
        ("parakeet-tdt", "nvidia/parakeet-tdt-0.6b-v3"),
    ],
)
def test_a_word_names_the_nearest_model(requests: list, word: str, nearest: str) -> None:
    with pytest.raises(CheckpointError, match=f"{word}: no such file or folder; did you mean {nearest}.*\\?$"):
        find(word)
    with pytest.raises(CheckpointError, match="no such file or folder; a model on the Hugging Face hub is named"):
        find("zzz")
