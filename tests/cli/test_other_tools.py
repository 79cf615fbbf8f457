"""Options and values of other tools: the same meaning works, anything else says what to use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from fastscribe.cli import app
from fastscribe.cli.app import OTHERS_VALUES, _may_be_of_others
from fastscribe.cli.other_tools import ALWAYS_ON, OTHER_VALUES, RENAMED, SAME_VALUES, instead, translate
from fastscribe.errors import UsageError
from tests.conftest import ROOT
from tests.helpers.markdown import documents

COMMAND: Any = typer.main.get_command(app).commands["transcribe"]  # type: ignore[attr-defined]
COMMAND.add_rooms()
PARAMETERS: list[Any] = COMMAND.params
OPTIONS = {name for one in PARAMETERS for name in one.opts}
FLAGS = {name: "" for one in PARAMETERS if getattr(one, "is_flag", False) for name in one.opts} | {"--pnc": "--no-pnc"}
LONG = {name: name for name in OPTIONS if name.startswith("--")} | {
    "-f": "--format",
    "-m": "--model",
    "-o": "--output-dir",
}


def translated(*arguments: str) -> tuple[list[str], list[str]]:
    said: list[str] = []
    return translate(arguments, LONG, FLAGS, {}, said.append, True), said


@pytest.mark.parametrize(
    ("typed", "meant", "says"),
    [
        ("a.wav --output_dir out -f srt", "a.wav --output-dir out -f srt", 0),
        ("a.wav --batch_size=8 --model=a_b.nemo", "a.wav --batch-size 8 --model a_b.nemo", 0),
        ("a.wav -o run=3 --model fp16=x", "a.wav -o run=3 --model fp16=x", 0),
        ("a.wav --output_format srt --beam_size=4", "a.wav --format srt --beam 4", 2),
        ("a.wav --word_timestamps True --batched False -q", "a.wav -q", 2),
        ("--word-timestamps a.wav", "a.wav", 1),
        ("a.wav --highlight_words True --dry_run=False --pnc False", "a.wav --highlight-words --no-pnc", 3),
        ("a.wav --compute_type float32", "a.wav --dtype fp32", 2),
        ("a.wav --device gpu --dtype=bfloat16", "a.wav --device cuda --dtype bf16", 2),
        ("a.wav --device 1 --language English", "a.wav --device cuda:1 --language English", 1),
        ("a.wav --target_language French -f text", "a.wav --target-language French -f txt", 1),
        ("a.wav -- --fp16 gpu", "a.wav -- --fp16 gpu", 0),
        ("gpu float32 English all", "gpu float32 English all", 0),
        ("a.wav --device", "a.wav --device", 0),
    ],
)
def test_same_meaning_works(typed: str, meant: str, says: int) -> None:
    words, said = translated(*typed.split())
    assert words == meant.split() and len(said) == says


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ("a.wav --fp16 True --task translate", ["--fp16: no such option: use --dtype bf16", "--task: ", "Canary"]),
        ("a.wav --num_workers=4", ["--num_workers: no such option: use --threads N"]),
        ("a.wav --device mps", ["--device mps: Apple"]),
        ("a.wav --compute_type float16", ["--dtype float16: there is no fp16; bf16"]),
        ("a.wav --output_format all", ["-f jsonl,json,srt,vtt,txt,tsv"]),
        (
            "model_path=m.nemo batch_size=4",
            ["model_path=: a setting in NeMo's form: use --model", "use --batch-size VALUE"],
        ),
        ("rnnt_decoding.beam.beam_size=4", ["use --beam"]),
        ("+prompt.source_lang=de", ["use --language CODE"]),
        ("dataset_manifest=/data/list.json", ["inputs need no option"]),
        ("model.seed=3", ["see fastscribe transcribe --help-all"]),
    ],
)
def test_another_meaning_says_what_to_use(typed: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        translated(*typed.split())
    assert all(part in str(raised.value) for part in parts) and "\n" not in str(raised.value)


@pytest.mark.parametrize("words", [["-o", ""], ["--model="], [""], ["--", ""], ["-f", "srt", "-m", ""]])
def test_empty_words_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="is empty"):
        translated("a.wav", *words)


def test_existing_files_are_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("take=1.wav").touch()
    Path("True").touch()
    assert translated("take=1.wav", "--quiet", "True")[0] == ["take=1.wav", "--quiet", "True"]


@pytest.mark.parametrize("typed", ["lang=de/*.wav", "lang=de.wav", "speaker=7", "x.wav?", "gone=1.m4a"])
def test_names_of_inputs_are_no_settings(typed: str) -> None:
    """Folders of a data set may be named key=value."""
    assert translated(typed)[0] == [typed]


def test_tables_name_options_that_exist() -> None:
    assert set(RENAMED.values()) | SAME_VALUES.keys() | OTHER_VALUES.keys() <= OPTIONS
    assert not (RENAMED.keys() | ALWAYS_ON.keys() | instead().keys()) & OPTIONS
    for text in instead().values():
        named = [word.strip(",;:") for word in text.split() if word.startswith("--")]
        assert set(named) <= OPTIONS, text
    assert not [text for text in instead().values() if "--overwrite" in text]
    assert "--speakers MODEL" in instead()["--diarize"] and instead()["--speaker-name"].startswith("--speaker-names ")


def test_the_page_names_what_works_as_it_is() -> None:
    page = (ROOT / "docs" / "switching.md").read_text(encoding="utf-8")
    assert ROOT / "docs" / "switching.md" in documents()
    for name in RENAMED.keys() | ALWAYS_ON.keys():
        assert f"`{name}`" in page or f"`{name.replace('-', '_').replace('__', '--')}" in page, name


def test_a_command_line_of_ours_does_without_this_module() -> None:
    """The options with other values elsewhere are those that app.py names."""
    assert {*SAME_VALUES, *OTHER_VALUES} == set(OTHERS_VALUES)
    long_names = {**LONG, "-q": "--quiet"}
    for plain in (
        "a.wav -m model.nemo",
        "- -o out -q --beam 4",
        "a.wav --batch_size 8 --ordered",
        "a.wav -- --fp16 a=b",
    ):
        assert not _may_be_of_others(plain.split(), long_names), plain
    for word in ("--fp16", "--device", "-f", "--pnc=True", "rnnt_decoding.beam=4", "true", "", "-x"):
        assert _may_be_of_others(["a.wav", word], long_names), word
