"""What a model's name stands for. The hub is made up here: no test goes there."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

from fastscribe import model_location
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.language_model import FILE
from fastscribe.model_location import locate


class Hub(ModuleType):
    """huggingface_hub as far as it is used: `files` are what the model has there, None for no network."""

    def __init__(self, cache: Path, files: list[str] | None) -> None:
        super().__init__("huggingface_hub")
        self.cache, self.files, self.asked = cache, files, []
        hub = self

        class HfApi:
            def list_repo_files(self, name: str) -> list[str]:
                if hub.files is None:
                    raise OSError("no network\nat all")
                return hub.files

        self.HfApi = HfApi

    def snapshot_download(self, name: str, allow_patterns: object = None, local_files_only: bool = False) -> str:
        self.asked.append((name, allow_patterns))
        if local_files_only and not self.cache.exists():
            raise FileNotFoundError("nothing cached")
        return str(self.cache)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    made = Hub(tmp_path / "cache", ["README.md", "parakeet.nemo", "config.json"])
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    monkeypatch.chdir(tmp_path)
    return made


def refused(name: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        locate(name, print)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_paths_are_paths(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "some" / "model").mkdir(parents=True)
    for name in ("some/model", "model.nemo", "folder/model.nemo", "./a/b", "/a/b", "a/b/c"):
        assert locate(name, print) == Path(name)
    assert hub.asked == []


def test_a_name_on_the_hub(hub: Hub) -> None:
    said: list[str] = []
    assert locate("nvidia/parakeet-tdt-0.6b-v3", said.append) == hub.cache / "parakeet.nemo"
    assert hub.asked == [("nvidia/parakeet-tdt-0.6b-v3", ["parakeet.nemo"])]
    assert len(said) == 1 and "nvidia/parakeet-tdt-0.6b-v3" in said[0]


def test_a_folder_on_the_hub(hub: Hub) -> None:
    hub.files = ["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin"]
    assert locate("a/b", print) == hub.cache
    (_, patterns) = hub.asked[0]
    assert patterns is not None and "*.bin" not in patterns
    assert any(fnmatch(FILE, pattern) for pattern in patterns)  # a language model comes along


def test_without_a_network_what_is_cached_will_do(hub: Hub) -> None:
    hub.files = None
    assert "nothing cached" in refused("a/b")
    hub.cache.mkdir()
    (hub.cache / "parakeet.nemo").touch()
    assert locate("a/b", print) == hub.cache / "parakeet.nemo"


def test_what_is_no_model(hub: Hub) -> None:
    hub.files = ["README.md"]
    assert "neither a .nemo file nor a config.json" in refused("a/b")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'fastscribe[hub]'" in refused("a/b")


def test_the_packages_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr(model_location, "PACKAGED", tmp_path)
    with pytest.raises(UsageError, match="--model"):
        locate(None, said.append)
    (tmp_path / "config.json").touch()
    assert locate("default", said.append) == tmp_path and said == []
    assert locate(None, said.append) == tmp_path and len(said) == 1
