"""Settings that decide results change the fingerprint; all others do not."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import pytest
import typer.main

from fastscribe.checkpoint.native import LANGUAGE_MODEL_FILE
from fastscribe.cli import app
from fastscribe.config import Options, OutputStyle, SpeakerNames, SubtitleStyle
from fastscribe.results import fingerprint as module
from fastscribe.results.fingerprint import fingerprint, model_digest, option_name
from fastscribe.types import Phrase
from tests.conftest import MODEL, MODELS


def of(options: Options = Options(), style: OutputStyle = OutputStyle(), **chosen: object) -> dict:  # noqa: B008 - frozen
    resolved: dict = {"dtype": "fp32", "decoder": "tdt", "attention": "full"}
    resolved |= {name: value for name, value in chosen.items() if name != "model"}
    return fingerprint(str(chosen.get("model", "m")), resolved, options, style)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("model", of(model="other")),
        ("--dtype", of(dtype="bf16")),
        ("--decoder", of(decoder="ctc")),
        ("--max-utterance-s", of(Options(max_utterance_s=3))),
        ("--channel", of(Options(channel=1))),
        ("--track", of(Options(track=1))),
        ("--speakers", of(Options(speakers="channels"))),
        ("--remove-fillers", of(Options(remove_fillers=True))),
        ("--itn", of(Options(itn=True))),
        ("--beam", of(beam=8)),
        ("--boost", of(Options(boost=(Phrase("name"),)))),
        ("--lm", of(Options(lm="a"), lm="digest")),
        ("--lm-weight", of(Options(lm_weight=0.5))),
        ("--attention", of(attention="local:4,4")),
        ("--vad", of(Options(vad="silero"))),
        ("--tokens", of(style=OutputStyle(tokens=True))),
    ],
)
def test_options_that_change_results_count(name: str, changed: dict) -> None:
    assert [key for key in sorted(of().keys() | changed) if of().get(key) != changed.get(key)] == [name]


def test_formats_and_their_layout_do_not_count() -> None:
    """The rows have all that their files need."""
    layout = SubtitleStyle(max_line_width=20, highlight_words=True)
    assert of(style=OutputStyle(("srt", "vtt"), subtitles=layout, speaker_names=SpeakerNames(("a", "b")))) == of()
    calls = [of(Options(speakers="channels", speaker_names=names)) for names in (("a", "b"), None)]
    assert calls[0] == calls[1] != of()


def test_speed_options_do_not_count() -> None:
    assert of(Options(batch_size=3, batch_frames=9, window=2, threads=1, cuda_graphs="off")) == of()
    fields = {field.name for field in dataclasses.fields(Options)}
    assert fields > module._SPEED_ONLY
    always = {"decoder", "max_utterance_s", "channel", "attention", "vad", "track"}
    assert fields - module._SPEED_ONLY == module._OPTIONAL | module._LAYOUT | module._RESOLVED_LATER | always, (
        "fastscribe/results/fingerprint.py: a new option goes into _SPEED_ONLY if it changes no result, or into _OPTIONAL if "
        "most runs leave it at its default; any other makes earlier folders `of other settings`, and stands here"
    )


def test_resolved_beam_counts() -> None:
    """A model's default beam and the same beam from the command line are equal, as are no track and the first."""
    assert of(Options(track=0)) == of()
    assert of(Options(beam=1)) == of() and "--beam" not in of()
    assert of(Options(beam=8), beam=8) == of(beam=8) != of()


def test_prompt_counts_for_models_with_prompts() -> None:
    assert of(Options(language=None, timestamps=False)) == of() and "--language" not in of()
    assert of(Options(language="de"))["--language"] == "de" and of(Options(timestamps=True))["--timestamps"] is True
    assert of(Options(pnc=False)) != of(Options(pnc=True)) != of()


def test_names_are_those_of_the_options() -> None:
    command = typer.main.get_command(app).commands["transcribe"]  # type: ignore[attr-defined]
    command.add_rooms()
    known = {option for parameter in command.params for option in parameter.opts}
    shown = of(style=OutputStyle(("srt",)))
    assert [name for name in shown if name.startswith("--") and name not in known] == []
    assert {option_name(field.name) for field in dataclasses.fields(Options)} <= known


def test_model_digest_depends_on_content_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(MODEL, tmp_path / "elsewhere.nemo")
    assert model_digest(MODEL) == model_digest(tmp_path / "elsewhere.nemo")
    content = bytearray(MODEL.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "elsewhere.nemo").write_bytes(content)
    assert model_digest(MODEL) != model_digest(tmp_path / "elsewhere.nemo")
    folder = tmp_path / "folder"
    shutil.copytree(MODELS / "hf_ctc", folder)
    before = model_digest(folder)
    (folder / "README.md").write_text("notes")
    (folder / "sub").mkdir()
    assert model_digest(folder) == before == model_digest(MODELS / "hf_ctc")
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert model_digest(folder) != before


def test_model_digest_includes_the_language_model(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(MODELS / "hf_ctc", folder)
    before = model_digest(folder)
    (folder / "notes.gz").write_bytes(b"no part of it")
    assert model_digest(folder) == before
    (folder / LANGUAGE_MODEL_FILE).write_bytes(b"a")
    assert model_digest(folder) != before


def test_model_digest_is_independent_of_read_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHA-256 over the SHA-256 of blocks, as in journals of earlier runs."""
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(module, "_READ_BYTES", 300)
    path = tmp_path / "model.nemo"
    for size in (0, 1, 299, 300, 999, 1000, 1001, 2500):
        content = bytes(number % 251 for number in range(size))
        path.write_bytes(content)
        blocks = [content[start : start + 1000] for start in range(0, max(1, size), 1000)]
        expected = hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).hexdigest()
        assert model_digest(path) == f"sha256:{expected[:32]}"
