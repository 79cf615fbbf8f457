"""Models from the Hugging Face hub: the real huggingface_hub against a stub server on localhost."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache as cached
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import close_session, constants
from typer.testing import CliRunner

from fastscribe import Transcriber, Transcript
from fastscribe.checkpoint import hub as hub_module
from fastscribe.checkpoint.hub_name import HubName
from fastscribe.checkpoint.known_models import download
from fastscribe.checkpoint.native import LANGUAGE_MODEL_FILE as LANGUAGE_MODEL
from fastscribe.cli import app
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.results.fingerprint import model_digest
from fastscribe.speakers.readers import read_speaker_model
from tests.conftest import DATA, FIRST, MODELS, SENTENCE
from tests.fakes.hub_stub import Fault, Hub, serve
from tests.helpers import nemotron_diarization
from tests.helpers.processes import fastscribe

NEMO = (MODELS / "tdt_demo" / "model.nemo").read_bytes()


@cached
def folder() -> dict[str, bytes]:
    """A Hugging Face folder, and other files of such repositories."""
    files = (path for path in (MODELS / "hf_tdt_demo").iterdir() if not path.name.startswith("golden"))
    return {path.name: path.read_bytes() for path in files} | {"README.md": b"#", "pytorch_model.bin": b"0" * 100}


class User:
    """A user with a separate cache."""

    def __init__(self, hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hub, self.home, self.cache, self.lines = hub, home, home / "hub", list[str]()
        self.waits: list[float] = []  # of fastscribe and of huggingface_hub, in seconds
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(time, "sleep", self.waits.append)
        # This server has no certificate, and each client would read all those of the system.
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
        self.set(HF_ENDPOINT=hub.url, HF_HOME=home, HF_HUB_DISABLE_TELEMETRY=1)

    def set(self, **environment: object) -> None:
        """huggingface_hub reads most of the environment when it is imported."""
        for key, value in environment.items():
            self._monkeypatch.setenv(key, str(value))
        importlib.reload(constants)
        close_session()  # it keeps the proxy settings of its creation

    def get(self, name: str, **options: bool) -> Path:
        self.lines, self.hub.requests[:] = [], []
        parsed = HubName.parse(name)
        assert parsed is not None
        return download(parsed, self.lines.append, **options)

    def refused(self, name: str) -> str:
        with pytest.raises(CheckpointError) as caught:
            self.get(name)
        assert "\n" not in str(caught.value) and str(caught.value).startswith(f"{name}: ")
        return str(caught.value)

    def requests(self) -> list[str]:
        """Requests for listings and files, without other requests of huggingface_hub."""
        paths = self.hub.paths() + self.hub.paths("HEAD")
        return [path for path in paths if "/models/" in path or "/resolve/" in path]

    def files(self) -> list[str]:
        return list(dict.fromkeys(path.split("/", 5)[5] for path in self.requests() if "/resolve/" in path))


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with the model org/name, a .nemo file."""
    with serve() as stub:
        stub.add("org/name", {"model.nemo": NEMO})
        yield stub


@pytest.fixture
def user(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    others = ("TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    for key in list(os.environ):
        if key.startswith("HF_") or key in others:
            monkeypatch.delenv(key)
    yield User(hub, tmp_path / "home", monkeypatch)
    monkeypatch.undo()
    importlib.reload(constants)
    close_session()


# Choice of files


def test_nemo_file(user: User, hub: Hub) -> None:
    commit = hub.add("org/name", {"README.md": b"#", "model.nemo": NEMO})
    path = user.get("org/name")
    assert path.read_bytes() == NEMO and path.is_relative_to(user.cache)
    assert user.files() == ["model.nemo"]
    assert user.lines == [
        "org/name: no such path here; asking the Hugging Face hub",
        f"org/name: downloading model.nemo ({len(NEMO) / 1e6:.1f} MB, commit {commit[:7]})",
    ]
    assert user.get("org/name") == path  # a second load makes one request
    assert user.requests() == ["/api/models/org/name/revision/main"] and len(user.lines) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_one_progress_bar(user: User, hub: Hub, monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO]) -> None:
    hub.add("org/name", folder())
    drawn = kind()
    monkeypatch.setattr(sys, "stderr", drawn)
    user.get("org/name")
    is_terminal = drawn.isatty()
    assert ("model.safetensors: 100%" in drawn.getvalue()) is is_terminal
    assert "config.json" not in drawn.getvalue() and "\n\n" not in drawn.getvalue()
    hub.add("org/hidden", {"model.nemo": NEMO})
    drawn.truncate(0)
    user.get("org/hidden", show_progress=False)
    assert drawn.getvalue() == ""


def test_one_progress_bar_with_xet(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub draws two bars unless the bar's class accepts both counts."""
    reporting = pytest.importorskip("huggingface_hub.utils._xet_progress_reporting", reason="another huggingface_hub")
    if not hasattr(reporting, "XetDownloadProgressReporter"):
        pytest.skip("a huggingface_hub that draws one bar")
    drawn = Terminal()
    monkeypatch.setattr(sys, "stderr", drawn)
    bar = hub_module._bar_class(huggingface_hub, "model.nemo", draw=True)
    with reporting.XetDownloadProgressReporter(
        reconstruction_desc="two", total=10, log_level=30, tqdm_class=bar
    ) as reporter:
        report = {"total_bytes_completed": 10, "total_bytes": 10, "total_bytes_completion_rate": 1.0}
        transfer = {"total_transfer_bytes_completed": 5, "total_transfer_bytes_completion_rate": 1.0}
        reporter.update_progress(SimpleNamespace(**report, **transfer))
    assert "model.nemo: 100%" in drawn.getvalue() and "\n" not in drawn.getvalue().rstrip()


def test_huggingface_hub_finds_our_copy(user: User, hub: Hub) -> None:
    hub.add("org/name", folder())
    path = user.get("org/name")
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    assert try_to_load_from_cache("org/name", "config.json") == str(path / "config.json")
    assert snapshot_download("org/name", local_files_only=True) == str(path)


def test_downloads_only_needed_files(user: User, hub: Hub) -> None:
    """Those of an aligner are needed, and vocabularies of languages, for training."""
    aligner = [f"aligner/{name}" for name in ("config.json", "tokenizer.model", "model.safetensors")]
    more = [LANGUAGE_MODEL, "pieces-00-spl_tokens.model", "pieces-01-en.model", *aligner]
    others = ["model.fp16.safetensors", "sub/config.json", "onnx/model.onnx", "pieces-of-music.model"]
    hub.add("org/name", folder() | {name: name.encode() for name in (*more, *others)})
    path = user.get("org/name")
    held = {file.relative_to(path).as_posix() for file in path.rglob("*")}
    assert {"config.json", "processor_config.json", "tokenizer.json", "model.safetensors", *more} <= held
    unwanted = ("*.bin", "*.md", "sub*", "*fp16*", "onnx*", "pieces-of*")
    assert not any(fnmatch(file, pattern) for file in held for pattern in unwanted)
    assert user.get("org/name") == path and not user.files()


def test_sharded_weights(user: User, hub: Hub) -> None:
    files = {name: content for name, content in folder().items() if name != "model.safetensors"}
    shards = {f"model-0000{number}-of-00002.safetensors": bytes([number]) * 50 for number in (1, 2)}
    index = {"weight_map": dict(zip("abc", [*shards, *shards], strict=False))}
    files |= shards | {"model.safetensors.index.json": json.dumps(index).encode(), "model.safetensors": b"not needed"}
    hub.add("org/name", files)
    path = user.get("org/name")
    assert all((path / name).read_bytes() == content for name, content in shards.items())
    assert "model.safetensors" not in user.files()
    del files["model-00002-of-00002.safetensors"]
    hub.add("org/other", files)
    assert "lists model-00002-of-00002.safetensors, which the repository does not hold" in user.refused("org/other")


def test_a_folder_of_a_speaker_model(user: User, hub: Hub, tmp_path: Path) -> None:
    """It has no tokenizer. A .nemo file beside it, which has another encoder than NeMo's Sortformers, is left alone."""
    written = nemotron_diarization.write_folder(tmp_path / "model", nemotron_diarization.config("cache"))
    files = {path.name: path.read_bytes() for path in written.iterdir()}
    hub.add("org/name", {"name.nemo": b"1"} | files)
    path = user.get("org/name", side_model=True)
    assert read_speaker_model(path).config.num_speakers == 8
    assert "name.nemo" not in user.files()
    hub.add("org/other", {"name.nemo": b"1"} | files)
    assert "a speaker model (Sortformer)" in user.refused("org/other")
    assert user.files() == ["config.json"]


def test_canary_nemo_file_preferred(user: User, hub: Hub) -> None:
    files = {path.name: path.read_bytes() for path in (MODELS / "hf_canary").iterdir() if path.name != "golden.json"}
    hub.add("org/name", {"name.nemo": NEMO} | files)
    assert user.get("org/name").read_bytes() == NEMO
    assert any("which may hold an aligner for timestamps" in line for line in user.lines)
    hub.add("org/other", files)
    assert (user.get("org/other") / "model.safetensors").is_file()


def test_unsupported_folder_falls_back_to_nemo(user: User, hub: Hub) -> None:
    encoder_only = {"architectures": ["FastConformerModel"], "model_type": "fastconformer", "d_model": 1024}
    files = folder() | {"config.json": json.dumps(encoder_only).encode()}
    hub.add("org/name", {"name.nemo": NEMO} | files)
    assert user.get("org/name").read_bytes() == NEMO
    assert "model.safetensors" not in user.files()
    [line] = [line for line in user.lines if "using name.nemo" in line]
    assert "model_type: 'fastconformer'" in line
    hub.add("org/other", files)
    assert "model_type: 'fastconformer'" in user.refused("org/other")
    assert "model.safetensors" not in user.files()  # checked before gigabytes are downloaded


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_incomplete_folder_falls_back_to_nemo(user: User, hub: Hub, missing: str) -> None:
    files = {name: content for name, content in folder().items() if name != missing}
    hub.add("org/name", {"name.nemo": NEMO} | files)
    assert user.get("org/name").name == "name.nemo"
    # A folder without a tokenizer could be a speaker model, as its configuration says.
    assert user.files() == (["name.nemo"] if missing == "model.safetensors" else ["config.json", "name.nemo"])


def test_several_nemo_files(user: User, hub: Hub) -> None:
    hub.add("org/name", {"other.nemo": b"1", "Name.nemo": NEMO, "old/name.nemo": b"2"})
    assert user.get("org/name").name == "Name.nemo"
    assert any("using Name.nemo; the repository holds 2 other .nemo files" in line for line in user.lines)
    hub.add("org/alone", {"old/first.nemo": b"1", "second.nemo": NEMO})
    assert user.get("org/alone").name == "second.nemo"
    hub.add("org/unclear", {"second.nemo": b"1", "first.nemo": b"2"})
    assert "several .nemo files (first.nemo, second.nemo)" in user.refused("org/unclear")
    assert user.files() == []


def test_not_a_model(user: User, hub: Hub) -> None:
    hub.add("org/name", {"README.md": b"#", "pytorch_model.bin": b"1", "config.json": b"{}"})
    assert "holds neither a .nemo file nor config.json, model.safetensors and a tokenizer" in user.refused("org/name")


# Revisions


def test_pinned_revision(user: User, hub: Hub) -> None:
    old = hub.add("org/name", {"model.nemo": b"old"}, "v1")
    hub.add("org/name", {"model.nemo": b"new"})
    for name, content in (("org/name@v1", b"old"), ("org/name", b"new"), (f"org/name@{old}", b"old")):
        assert user.get(name).read_bytes() == content


def test_cached_commit_needs_no_network(user: User, hub: Hub) -> None:
    commit = hub.add("org/name", folder(), "v1")
    path = user.get(f"org/name@{commit}")
    assert user.get(f"org/name@{commit}") == path
    assert hub.requests == [] and user.lines == []


def test_one_commit_for_all_files(user: User, hub: Hub) -> None:
    old = hub.add("org/name", folder())

    def push(path: str) -> None:
        if path.endswith("config.json"):
            hub.add("org/name", {name: content + b" " for name, content in folder().items()})

    hub.before_answer = push
    path = user.get("org/name")
    assert {file.split("/")[4] for file in hub.paths() if "/resolve/" in file} == {old} == {path.name}
    assert (path / "model.safetensors").read_bytes() == folder()["model.safetensors"]


# Errors, one line each


LISTING, MESSAGE, CODE = "/api/models", "X_Error_Message", "X_Error_Code"
NOT_MINE, RESTRICTED = "Invalid credentials in Authorization header", "Access is restricted."
REFUSALS = [
    (LISTING, 401, {}, r"public model.*check the spelling.*`hf auth login`, or set HF_TOKEN"),
    (LISTING, 401, {MESSAGE: NOT_MINE}, r"rejects the token \(401\).*`hf auth login`"),
    (LISTING, 403, {MESSAGE: "Not for\x1b[2J you"}, r"forbids access \(403, Not for[^\x1b]*ask for it at[^\x1b]*$"),
    (LISTING, 451, {MESSAGE: "Unavailable here"}, r"rejects the request \(451, Unavailable here\)"),
    *(
        (where, status, {CODE: "GatedRepo", MESSAGE: RESTRICTED}, rf"gated \({status}\): accept its")
        for where, status in ((LISTING, 403), ("/resolve/", 403), ("/resolve/", 401))
    ),
]


@pytest.mark.parametrize(("where", "status", "headers", "message"), REFUSALS)
def test_refusals(user: User, hub: Hub, where: str, status: int, headers: dict[str, str], message: str) -> None:
    if "the token" in message:
        user.set(HF_TOKEN="hf_old")
    hub.fail(where, status, **headers)
    assert re.search(message, user.refused("org/name"))


def test_no_such_model_or_revision(user: User, hub: Hub) -> None:
    problem = user.refused("org/nome")
    assert "neither a path here nor a model on the Hugging Face hub" in problem and "check the spelling" in problem
    assert f"no revision v9 (404): {hub.url}/org/name/tree/main lists" in user.refused("org/name@v9")


BUSY = [("/api/models", 429), ("/api/models", 503), ("/resolve/", 429), ("/resolve/", 500), ("/content/", 429)]
BUSY += [("/content/", 500), ("/content/", 503)]


@pytest.mark.parametrize(("where", "status"), BUSY)
def test_retries(user: User, hub: Hub, where: str, status: int) -> None:
    """By fastscribe or by huggingface_hub, which retries once before it waits; not nested, and not for ever."""
    hub.fail(where, status, times=3)
    assert user.get("org/name").read_bytes() == NEMO
    assert user.waits in ([1, 2, 4], [1, 2])
    assert len([line for line in user.lines if "trying again in" in line or "Retrying in" in line]) == len(user.waits)
    hub.add("org/other", {"other.nemo": NEMO + b" "})
    hub.fail(where, status)
    user.waits.clear()
    cure = "try again later; with an account the limit is higher" if status == 429 else f"({status}): try again later"
    assert cure in user.refused("org/other")
    assert 10 < sum(user.waits) < 30


def test_retry_after(user: User, hub: Hub) -> None:
    hub.fail("/api/models", 429, times=1, Retry_After="7")
    hub.fail("/api/models", 429, times=1, RateLimit='"api";r=0;t=55')
    user.get("org/name")
    assert user.waits == [7, 55]
    hub.fail("/api/models", 429, Retry_After="3600")
    assert "try again in 3600 s" in user.refused("org/other")
    assert len(user.waits) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"HF_ENDPOINT": "http://127.0.0.1:1"}, "http://127.0.0.1:1 refuses connections: check HF_ENDPOINT"),
        ({"HF_ENDPOINT": "https://127.0.0.1:{port}"}, "the certificate of https://127.0.0.1"),
        ({"HF_ENDPOINT": "hub.example"}, "HF_ENDPOINT is hub.example, which is no address: unset it"),
        (
            {"HF_ENDPOINT": "https://hub.example", "HTTPS_PROXY": "http://127.0.0.1:1"},
            "refuses connections|the proxy does not pass requests on",
        ),
    ],
)
def test_wrong_endpoints(user: User, hub: Hub, settings: dict[str, str], message: str) -> None:
    port = hub.url.rpartition(":")[2]
    user.set(**{name: value.format(port=port) for name, value in settings.items()})
    assert re.search(message, user.refused("org/name")) and user.waits == []


def test_no_such_host(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    user.set(HF_ENDPOINT="http://hub.example")
    problem = user.refused("org/name")
    assert "the address of http://hub.example cannot be found: check the network and DNS" in problem


def test_timeout(user: User, hub: Hub) -> None:
    user.set(HF_HUB_ETAG_TIMEOUT=1)
    answered = threading.Event()
    hub.before_answer = lambda path: answered.wait(30)
    try:
        assert "does not answer in time: check the network; HF_HUB_ETAG_TIMEOUT" in user.refused("org/name")
    finally:
        answered.set()


@pytest.mark.parametrize(
    "body", [b"<html>Log in to the hotel's network</html>", b"[]", b"{}", b'{"id": "org/name", "sha": "../x"}']
)
def test_not_a_hub(user: User, hub: Hub, body: bytes) -> None:
    hub.faults.append(Fault("/api/models", body=body))
    assert "the answer is not that of a Hugging Face hub" in user.refused("org/name")


def test_offline_mode(user: User, hub: Hub) -> None:
    path = user.get("org/name")
    user.set(HF_HUB_OFFLINE=1)
    assert user.get("org/name") == path and user.lines == []
    for name in ("org/other", "org/name@v1"):
        problem = user.refused(name)
        assert f"not in the cache ({user.cache})" in problem and "unset HF_HUB_OFFLINE" in problem
    assert hub.requests == []


@pytest.mark.parametrize("is_offline", [0, 1])
def test_a_name_with_a_wrong_letter(user: User, is_offline: int) -> None:
    user.set(HF_HUB_OFFLINE=is_offline)
    for name, meant in (("nvidia/parakeet-tdt-0.6b-v33@v1", "nvidia/parakeet-tdt-0.6b-v3"), ("me/parakeet-tdt", None)):
        user.refused(name)
        found = [line for line in user.lines if "did you mean" in line]
        assert found == ([f"{name}: did you mean {meant}?"] if meant else [])


def test_invalid_huggingface_setting(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="ten"):
        user.set(HF_HUB_DOWNLOAD_TIMEOUT="ten")
    for module in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, module)
    assert "huggingface_hub, which asks the Hugging Face hub, cannot be loaded" in user.refused("org/name")


# Cached copies


@pytest.mark.parametrize("problem", [429, 503, "http://127.0.0.1:1"])
def test_a_hub_that_does_not_answer_uses_the_cache(user: User, hub: Hub, problem: int | str) -> None:
    path = user.get("org/name")
    commit = path.parent.name[:7]
    if isinstance(problem, int):
        hub.fail("/api/models", problem)
    else:
        user.set(HF_ENDPOINT=problem)
    assert user.get("org/name") == path
    reason = f"({problem})" if isinstance(problem, int) else f"{problem} refuses connections"
    assert user.lines[-1].endswith(f"{reason}; using the copy in the cache (commit {commit})")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_refusal_does_not_use_cache(user: User, hub: Hub, status: int) -> None:
    user.get("org/name")
    hub.fail("/api/models", status)
    assert str(status) in user.refused("org/name")


def test_failed_update_uses_old_commit(user: User, hub: Hub) -> None:
    hub.add("org/name", folder())
    old = user.get("org/name")
    hub.add("org/name", folder() | {"model.safetensors": b"new" * 1000})
    hub.fail("/content/", 503)
    assert user.get("org/name") == old and "using the copy in the cache" in user.lines[-1]
    hub.faults.clear()
    assert user.get("org/name") != old


def test_incomplete_copy(user: User, hub: Hub) -> None:
    commit = hub.add("org/name", folder())
    hub.fail("/content/", 503)
    user.refused("org/name")
    user.set(HF_HUB_OFFLINE=1)
    assert "not in the cache" in user.refused("org/name")
    assert "not in the cache" in user.refused(f"org/name@{commit}")


def test_unsupported_copy(user: User, hub: Hub) -> None:
    commit = hub.add("org/name", folder())
    path = user.get("org/name")
    config = json.loads((path / "config.json").read_text()) | {"model_type": "whisper"}
    (path / "config.json").unlink()
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedCheckpoint, match="whisper"):
        user.get(f"org/name@{commit}")


# The transfer


def test_truncated_download(user: User, hub: Hub) -> None:
    hub.faults.append(Fault("/content/", body=NEMO[:1000], times=1))
    assert "the download failed (Consistency check failed" in user.refused("org/name")
    assert not list(user.cache.rglob("model.nemo"))
    assert user.get("org/name").read_bytes() == NEMO


INDEX = "model.safetensors.index.json"
NO_NAME = "is no name of a file in a repository"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        *(({path: NEMO}, NO_NAME) for path in ("../../escaped.nemo", "/escaped.nemo", "a/../../../escaped.nemo")),
        ({"..\\escaped.nemo": NEMO}, NO_NAME),
        ({INDEX: b'{"weight_map": {"a": "../escaped.safetensors"}}'}, "a shard's name leaves the folder"),
    ],
)
def test_file_names_outside_cache(user: User, hub: Hub, files: dict[str, bytes], message: str) -> None:
    hub.add("org/name", (folder() if INDEX in files else {}) | files)
    with pytest.raises(CheckpointError, match=message):
        user.get("org/name")
    assert not list(user.home.parent.rglob("*escaped*"))


def test_token_sent_only_to_hub(user: User, hub: Hub) -> None:
    user.set(HF_TOKEN="hf_secret")
    user.get("org/name")
    sent = {path: headers["Authorization"] for path, headers in zip(hub.requests, hub.headers, strict=True)}
    assert len(sent) >= 3
    for request, header in sent.items():
        assert header == (None if "/content/" in request else "Bearer hf_secret") or "agent" in request


def test_disk_full_before_download(user: User, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1_000_000))
    problem = user.refused("org/name")
    assert "only has 1.00 MB free disk space. free some space, or set HF_HUB_CACHE" in problem
    assert not any("/content/" in path for path in hub.paths())


@pytest.mark.posix
def test_disk_full_during_download(user: User, hub: Hub) -> None:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limit[1]))
    try:
        problem = user.refused("org/name")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert f"the cache {user.cache} cannot be written (File too large): free some space" in problem


def test_read_only_cache(user: User, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    user.set(HF_HUB_CACHE=tmp_path / "file" / "hub")
    problem = user.refused("org/name")
    assert "cannot be written (Not a directory): set HF_HUB_CACHE to a folder that can be written" in problem


def test_fingerprint_without_cache_path(user: User, hub: Hub, tmp_path: Path) -> None:
    hub.add("org/name", folder())
    first = user.get("org/name")
    user.set(HF_HUB_CACHE=tmp_path / "elsewhere")
    second = user.get("org/name")
    assert first != second and model_digest(first) == model_digest(second)


# The whole command


def run(user: User, *arguments: object) -> subprocess.CompletedProcess[str]:
    return fastscribe(*arguments, cwd=user.home.parent)


def test_transcribe_from_hub(user: User, hub: Hub) -> None:
    hub.add("org/name", folder() | {"name.nemo": NEMO})
    done = run(user, "transcribe", FIRST, "--model", "org/name", "--quiet")
    assert done.returncode == 0 and json.loads(done.stdout)["text"] == SENTENCE, done.stderr
    assert len(done.stderr.splitlines()) == 2 and "downloading model.safetensors (1.7 MB, commit" in done.stderr


def test_python_api_from_hub(user: User, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hub.add("org/name", {"name.nemo": NEMO})
    lines: list[str] = []
    transcriber = Transcriber.load("org/name", "cpu", "fp32", say=lines.append)
    [transcript] = transcriber.transcribe(FIRST)
    assert isinstance(transcript, Transcript) and transcript.text == SENTENCE
    assert len(lines) == 2 and lines[1].startswith("org/name: downloading name.nemo (2.2 MB, commit")
    for model, problem in (
        ("org/none", "org/none: neither a path here nor a model on the Hugging Face hub"),
        (Path("org/name"), "org/name: no such file or folder"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            Transcriber.load(model, "cpu", "fp32", say=lines.append)


COMMANDS = (
    ("transcribe", FIRST, "--model", "org/none"),
    ("convert", "org/none", "out"),
    ("train", DATA / "manifest.jsonl", "-o", "out", "--init", "org/none"),
    ("bench", FIRST, "--model", "org/none"),
    ("bench", "--latency", "1", "--model", "org/none"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command[:2])))
def test_commands_share_messages(user: User, command: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, list(map(str, command)))
    assert isinstance(done.exception, CheckpointError) and done.stdout == ""
    assert "org/none: neither a path here nor a model on the Hugging Face hub" in str(done.exception)


@pytest.mark.posix
def test_interrupted_download(user: User, hub: Hub) -> None:
    reached, over = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if "/content/" in path:
            reached.set()
            over.wait(60)

    hub.before_answer = hold
    command = [sys.executable, "-m", "fastscribe", "transcribe", FIRST, "--model", "org/name"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert reached.wait(60)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        over.set()
        process.kill()
    assert process.returncode == 130 and stdout == "" and "Traceback" not in stderr
    assert len(stderr.splitlines()) == 3 and "interrupted" in stderr.splitlines()[-1]


def test_pull_and_list(user: User, hub: Hub) -> None:
    """By its short name; an interrupted download goes on, and the list then has the copy's path."""
    name = "parakeet-tdt-0.6b-v3"
    hub.add(f"nvidia/{name}", {"model.nemo": NEMO})
    listed = CliRunner().invoke(app, ["models", "--json"])
    assert [row["name"] for row in json.loads(listed.stdout) if row["cached"]] == ["default"]
    hub.faults.append(Fault("/content/", cut_after=1_500_000, times=1))
    pulled = CliRunner().invoke(app, ["models", "pull", name])
    path = Path(pulled.stdout.strip())
    assert pulled.exit_code == 0 and path.read_bytes() == NEMO and path.is_relative_to(user.cache)
    assert "Trying to resume" in pulled.stderr and len(user.waits) == 1
    assert f"use it with --model nvidia/{name}" in pulled.stderr
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)}
    assert rows[name]["cached"] == str(path) and rows[name]["sources"]["licence"].startswith("https://")
    listed = CliRunner().invoke(app, ["models"])
    assert [line.split()[-1] for line in listed.stdout.splitlines()].count("here") == 2
    assert "for --speakers: nvidia/diar_streaming_sortformer_4spk-v2.1, a speaker model" in listed.stderr
