"""The command around a run: when the folder is cleared, messages, and signals to one rank or to all."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from rich.console import Console

from fastscribe import cli
from fastscribe._system import signals as process_signals
from fastscribe._system.signals import HAS_NATIVE_THREADS
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli.app import Stopped
from fastscribe.errors import UsageError
from fastscribe.training.command import (
    _Display,
    _install_signal_handlers,
    _report_start,
    train,
)
from fastscribe.training.data import prepare
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.recipe import parse_recipe
from fastscribe.training.scoring import Scoring
from fastscribe.training.state import RunFolder
from fastscribe.training.trainer import Trainer
from fastscribe.training.validation import ValidationResult
from tests.conftest import MODELS, ROOT
from tests.training.test_trainer import recipe_of, trainer_of


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(recipe: Path, output_dir: Path, init: Path | None = None, overwrite: bool = False) -> None:
    given = str(init) if init is not None else None
    train(recipe, output_dir, given, 1, "cpu", "fp32", overwrite, False)


def test_folder_cleared_after_reading(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.save_model(folder.best, read_checkpoint(MODELS / "tdt_demo" / "model.nemo"), torch.bfloat16)
    folder.save_state({"of": "another run"})
    former = folder.state.read_bytes()
    (tmp_path / "bad.yaml").write_text("data: {train: nowhere.jsonl}")
    sections = json.loads(recipe_file.read_text())
    with pytest.raises(UsageError, match=r"recipe\.yaml: model\.num_mels, .*: leave out, --init decides"):
        run(recipe_file, folder.path, folder.best, overwrite=True)
    del sections["model"]
    recipe_file.write_text(json.dumps(sections))
    for recipe, init in ((tmp_path / "bad.yaml", folder.best), (recipe_file, tmp_path / "nowhere")):
        with pytest.raises(ValueError, match="nowhere"):
            run(recipe, folder.path, init, overwrite=True)
    assert folder.state.read_bytes() == former and (folder.best / "model.safetensors").exists()
    capsys.readouterr()
    run(recipe_file, folder.path, folder.best, overwrite=True)
    assert folder.load_state() is not None
    assert [(row["step"], "validation" in row) for row in folder.rows()] == [(0, True), (5, False), (5, True)]
    said = capsys.readouterr().err.splitlines()
    assert "fastscribe: before the first step: WER 0.00 %" in said
    assert said[-2].endswith("has 0.00 %, as --init has (20 words): no better")


def test_fine_tuning_the_packaged_model(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its language model and language stay. Validation, which a line says, does not use the language model."""
    monkeypatch.setattr(Trainer, "run", lambda trainer, update: trainer.run_validation() or True)
    monkeypatch.setattr(Trainer, "_validate", lambda trainer, checkpoint: ValidationResult({}, {}, 0.5, {}, {}))
    train(few, tmp_path / "run", "default", 1, "cpu", "fp32", False, False)
    tuned, packaged = read_checkpoint(tmp_path / "run" / "best"), read_checkpoint(PACKAGED)
    assert tuned.tokenizer.pieces == packaged.tokenizer.pieces and tuned.languages == ("en",)
    assert tuned.language_model is not None and tuned.config == packaged.config
    assert " to validate with, greedily: without the language model\n" in capsys.readouterr().err


def test_second_run_in_folder(recipe_file: Path, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").locked(), pytest.raises(UsageError, match="another run is writing here"):
        run(recipe_file, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_refused_run_leaves_no_folder(few: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "bad.jsonl").write_text("{")
    for name in ("new", "kept"):
        with pytest.raises(UsageError, match="line 1: not JSON"):
            run(tmp_path / "bad.jsonl", tmp_path / name)
    assert not (tmp_path / "new").exists() and (tmp_path / "kept").exists()


def test_no_epochs_are_a_plan(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It trains and keeps nothing, and leaves the run of a folder as it is. Recordings that cannot be used end it too."""
    train(recipe_file, tmp_path / "plan", None, 0, "cpu", "bf16", False, False)
    said = capsys.readouterr().err
    assert "8 examples, " in said and " per epoch, " in said
    steps = "15 steps in all, 1 warm-up step (at most a tenth of the run), a learning rate of 0.003"
    assert f"fastscribe: 3 epochs: about {steps}\n" in said
    assert "2 of the 2 recordings to validate with are also trained on, such as " in said
    assert said.splitlines()[-1].startswith("fastscribe: this is the plan, and nothing is trained: weights, gradients")
    assert " optimiser take 1.4 MB, and batches" in said
    assert not (tmp_path / "plan").exists()
    run(recipe_file, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    train(recipe_file, tmp_path / "run", None, 0, "cpu", "fp32", True, False)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before if name != "train.lock"} == {
        name: content for name, content in before.items() if name != "train.lock"
    }
    capsys.readouterr()
    train(recipe_file, tmp_path / "run", None, 1, "cpu", "fp32", False, False)  # the finished run again
    said = capsys.readouterr().err
    last = tmp_path / "run" / "last"
    assert f"finished after 1 epoch; more run.epochs go on here; --init {last} in another folder" in said
    assert "going on" not in said
    train(recipe_file, tmp_path / "run", None, 1, "cpu", "fp32", False, True)
    assert capsys.readouterr().err.startswith(
        f"fastscribe: {tmp_path / 'run' / 'best'}: word error rate "
    )  # the result


def with_value(recipe_file: Path, section: str, key: str, value: Any) -> Path:
    """Change a key of the recipe."""
    sections = json.loads(recipe_file.read_text())
    sections[section][key] = value
    recipe_file.write_text(json.dumps(sections))
    return recipe_file


def test_a_plan_is_of_the_run_in_the_folder(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused as the run would be, and says where the run goes on. It changes nothing of the run."""
    run(recipe_file, folder := tmp_path / "run")
    held = {path: path.read_bytes() for path in folder.rglob("*.*") if path.suffix != ".lock" and path.is_file()}
    capsys.readouterr()
    train(recipe_file, folder, None, 0, "cpu", "fp32", False, False)
    said = capsys.readouterr().err
    assert "going on after step 5: 3 epochs instead of 1 epoch, and the learning rate follows the new length\n" in said
    assert "fastscribe: 3 epochs: about 15 steps in all, " in said and said.splitlines()[-1].startswith(
        "fastscribe: this is"
    )
    with_value(recipe_file, "run", "seed", 1)
    for epochs in (0, 1):
        with pytest.raises(UsageError, match=rf"run\.seed was 0, is 1.*; --init {folder / 'last'} in another folder"):
            train(recipe_file, folder, None, epochs, "cpu", "fp32", False, False)
    capsys.readouterr()
    train(recipe_file, folder, None, 0, "cpu", "fp32", True, False)
    assert "going on" not in capsys.readouterr().err
    assert held == {path: path.read_bytes() for path in held} and not set(folder.rglob("*.part"))


def test_a_plan_leaves_the_rows_left_out_and_no_lock(recipe_file: Path, manifest: Path, tmp_path: Path) -> None:
    row = json.loads(manifest.read_text().splitlines()[0])
    (tmp_path / "gap.jsonl").write_text(manifest.read_text() + json.dumps({**row, "duration": 99}))
    with_value(recipe_file, "data", "train", str(tmp_path / "gap.jsonl"))
    train(recipe_file, tmp_path / "plan", None, 0, "cpu", "fp32", False, False)
    assert [path.name for path in (tmp_path / "plan").iterdir()] == ["left_out.jsonl"]


def test_a_number_of_steps_and_an_early_end(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--epochs takes the place of the recipe's steps."""
    sections = json.loads(recipe_file.read_text())
    sections["run"] = {"max_steps": 7, "patience": 1}
    recipe_file.write_text(json.dumps(sections))
    folder, words = tmp_path / "run", {0: (1, 2)}
    monkeypatch.setattr(Trainer, "_validate", lambda *given: ValidationResult({}, {}, 0.5, words, words))

    def said_with(epochs: int | None) -> str:
        train(recipe_file, folder, None, epochs, "cpu", "fp32", False, False)
        return capsys.readouterr().err

    assert "fastscribe: 7 steps: about 1.4 epochs in all, 0 warm-up steps" in said_with(0)
    said = said_with(None)
    assert "about 5 batches per epoch, 7 steps in all, " in said and "\nfastscribe: epoch 1.4: step 7, " in said
    assert "run.patience" not in said  # the second validation was the last one anyway
    assert "finished after 7 steps; more run.max_steps go on here; --init " in said_with(0)
    said = said_with(4)
    assert "finished after step 7; a larger run.patience, or none, goes on here; --init " in said
    assert "run.patience: 1 validation without a better one ended the run after step 7 of 4 epochs\n" in said
    with_value(recipe_file, "run", "patience", None)
    assert "going on after step 7: 4 epochs instead of 7 steps, and the learning rate follows" in said_with(4)


def test_a_run_goes_on_with_more_epochs(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The learning rate follows the new length, as if the run had had it from the start. Fewer than were had are refused."""
    run(recipe_file, folder := tmp_path / "run")
    capsys.readouterr()
    train(recipe_file, folder, None, 3, "cpu", "fp32", False, False)
    said = capsys.readouterr().err
    assert "going on after step 5: 3 epochs instead of 1 epoch, and the learning rate follows the new length\n" in said
    assert "epoch 2: step 10, " in said and "epoch 3: step 15, " in said
    train(recipe_file, tmp_path / "long", None, 3, "cpu", "fp32", False, False)
    rates = [
        {row["step"]: row["learning_rate"] for row in RunFolder(one).rows() if "learning_rate" in row}
        for one in (folder, tmp_path / "long")
    ]
    assert rates[0][15] == rates[1][15] and rates[0][10] == rates[1][10] and rates[0][5] < rates[1][5]
    with pytest.raises(UsageError, match=r"run: run\.epochs 2: this run has had 3 already, of 3 epochs: give more"):
        train(recipe_file, folder, None, 2, "cpu", "fp32", False, False)
    with_value(recipe_file, "run", "epochs", 2)  # the run had more from --epochs
    capsys.readouterr()
    train(recipe_file, folder, None, 0, "cpu", "fp32", False, False)
    said = capsys.readouterr().err
    assert "finished after 3 epochs; more run.epochs go on here" in said and "3 epochs: about 15 steps in all, " in said


def test_the_model_that_a_run_was_started_with_is_named(few: Path, tmp_path: Path) -> None:
    for name, init, other, said in (
        ("tuned", MODELS / "tdt_demo" / "model.nemo", None, f"with --init {MODELS / 'tdt_demo' / 'model.nemo'}"),
        ("new", None, MODELS / "tdt_demo" / "model.nemo", "without --init"),
    ):
        recipe = parse_recipe({"data": {"train": str(few)}}, few, is_tuning=init is not None)
        known = None if init is None else read_checkpoint(init)
        trainer_of(recipe, tmp_path / name, init=known).save()
        with pytest.raises(UsageError, match=f"{name}: this run was started {said}: give the same, or use another"):
            run(few, tmp_path / name, other)


def test_a_rate_is_said_where_it_was_measured(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch of which a resumed run has nothing to say has no line."""
    with_value(recipe_file, "run", "validate_epochs", 2)
    with_value(recipe_file, "run", "save_minutes", 0)
    ends, end = iter(range(4)), Trainer._end_epoch

    def dies_in_the_third(trainer: Trainer) -> None:
        if next(ends) == 2:
            raise KeyboardInterrupt
        end(trainer)

    monkeypatch.setattr(Trainer, "_end_epoch", dies_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        train(recipe_file, tmp_path / "run", None, 5, "cpu", "fp32", False, False)
    monkeypatch.setattr(Trainer, "_end_epoch", end)
    train(recipe_file, tmp_path / "run", None, 5, "cpu", "fp32", False, False)
    lines = [line for line in capsys.readouterr().err.splitlines() if "epoch " in line[:20]]
    assert [(line.split()[2], " WER " in line) for line in lines] == [
        ("1:", False),
        ("2:", True),
        ("4:", True),
        ("5:", True),
    ]


def test_recipe_error_before_torch(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("data: {train: a.jsonl}\nmodle: {}")
    program = (
        "import sys; from fastscribe.cli import app; from fastscribe.errors import UsageError\n"
        f"try: app(['train', {str(tmp_path / 'bad.yaml')!r}, '-o', {str(tmp_path / 'run')!r}], standalone_mode=False)\n"
        "except UsageError as error: print(error, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("bad.yaml: modle: no such key; model? False\n"), done
    assert not (tmp_path / "run").exists()


def test_the_default_vocabulary_gives_way_to_few_texts(few: Path) -> None:
    said: list[str] = []
    training_data = prepare(recipe_of(few, model={"vocab_size": 256}), None, said.append)
    [line] = [line for line in said if "vocab_size" in line]
    assert 0 < len(training_data.checkpoint.tokenizer.pieces) < 256
    assert f"256: these texts yield {len(training_data.checkpoint.tokenizer.pieces)} pieces" in line


def test_a_file_or_a_missing_device_is_refused_before_the_data_are_read(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file: is a file: name a folder"):
        run(tmp_path / "nowhere.jsonl", tmp_path / "file")
    with pytest.raises(UsageError, match=r"--device cuda:99"):
        train(tmp_path / "nowhere.jsonl", tmp_path / "run", None, 1, "cuda:99", "fp32", False, False)
    assert not (tmp_path / "run").exists()


LONG = {"batch": {"seconds": 1000}, "run": {"epochs": 400}}


@pytest.mark.parametrize(
    ("is_tuning", "sections", "said", "unsaid"),
    [
        (False, {**LONG, "optimiser": {"warmup_steps": 4}}, "steps in all", "warm-up"),
        (False, {"run": {"epochs": 3}}, "; about 5 batches per epoch, about 15 steps in all, ", None),
        (False, {"run": {"epochs": 1}}, " batches per epoch, ", "about"),  # the first, whose batches are known
        (False, {"augment": {"speeds": [1.0]}, "run": {"epochs": 3}}, " batches per epoch, ", "about"),
        (
            False,
            {**LONG, "optimiser": {"warmup_steps": 1000}},
            "; 40 warm-up steps (at most a tenth of the run)\n",
            None,
        ),
        (False, {"loss": {"ctc_weight": 1.0}}, "learns nothing; transcribe with --decoder ctc\n", None),
        (False, {"loss": {"ctc_weight": 0.3}}, "steps in all", "learns nothing"),
        (True, {}, "fastscribe: 0.4 M parameters, tdt, ", "trained"),
        (True, {"optimiser": {"freeze": ["encoder"]}}, "0.4 M parameters, 0.1 M of them trained, tdt, ", None),
        (
            True,
            {"optimiser": {"freeze": ["encoder", "predictor"]}},
            "0.4 M parameters, 25,350 of them trained, tdt, ",
            None,
        ),
        (True, {"optimiser": {"lora": {}}}, "0.5 M parameters, 0.2 M of them trained, tdt, ", None),
    ],
    ids=str,
)
def test_what_is_said_before_the_first_step(
    manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_tuning: bool,
    sections: dict[str, Any],
    said: str,
    unsaid: str | None,
) -> None:
    known = read_checkpoint(MODELS / "tdt_demo" / "model.nemo") if is_tuning else None
    _report_start(trainer_of(recipe_of(manifest, **sections), tmp_path / "run", init=known))
    lines = capsys.readouterr().err
    assert lines.endswith(said) if said.endswith("\n") else said in lines
    assert unsaid is None or unsaid not in lines


def test_a_run_that_goes_on_says_so(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of(recipe_of(manifest), tmp_path / "run")
    trainer.weights.num_steps = 7
    trainer.save()
    _report_start(trainer_of(recipe_of(manifest), tmp_path / "run"))
    assert capsys.readouterr().err.endswith("fastscribe: going on after step 7\n")


@pytest.mark.parametrize("overwrite", [False, True])
def test_resume_hint(
    recipe_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overwrite: bool,
) -> None:
    def stopped(trainer: Trainer, update: Callable[[], None]) -> bool:
        trainer.stop_signal = signal.SIGINT
        return False

    monkeypatch.setattr(Trainer, "run", stopped)
    with pytest.raises(Stopped):
        run(recipe_file, tmp_path / "run", overwrite=overwrite)
    command = "the same command without --overwrite" if overwrite else "the same command"
    assert capsys.readouterr().err.endswith(f"stopped after step 0; {command} goes on from there\n")


def test_a_process_group_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of gloo that frees a tensor while Python ends aborts the process, also after the group is destroyed."""
    application, done = typer.Typer(), []
    monkeypatch.setattr(process_signals, "end_threads", lambda: done.append("threads"))
    monkeypatch.setattr(process_signals, "exit_without_finalisation", done.append)
    monkeypatch.setattr(sys, "argv", ["fastscribe"])
    monkeypatch.setattr(cli, "app", application)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *arguments, **options: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    application.command()(lambda: None)
    try:
        process_signals.end_process(cli.exit_code())
        DistributedContext(0, 2, 0).join(torch.device("cpu"))
        process_signals.end_process(cli.exit_code())
        assert done == ["threads", 0, 0]
    finally:
        HAS_NATIVE_THREADS.clear()


@pytest.mark.parametrize("width", [80, 60])
def test_bar_fits(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    validated = SimpleNamespace(deciding=0.1234)
    progress = SimpleNamespace(
        start_rate=None, epoch=3, step=123_456, batches_done=1, batches=2, audio_s=1e6, busy_s=1e3
    )
    progress.losses, progress.validated = {"loss": 123.456, "tdt": 123.456, "ctc": 123.456}, validated
    data, ranks = SimpleNamespace(scoring=Scoring()), SimpleNamespace(world_size=1)
    trainer: Any = SimpleNamespace(progress=progress, distributed=ranks, training_data=data)
    trainer.share_done, trainer.is_over = 0.5, False
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    display = _Display(trainer, True)
    display.update()
    console = Console(width=width, file=io.StringIO())
    console.print(display.bar.get_renderable())
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line.count("\n") == 1 and "50.0 %" in line and line.count(":") == 4
    assert line.startswith("━" * 8 + " " * 9)  # half of sixteen
    assert line.split(" %", 1)[1].split()[:2] == ["step", "123,456,"]
    if width == 80:
        assert "loss 123.456, WER 1" in line


def listening(num_ranks: int) -> tuple[Any, Callable[[int], None]]:
    trainer = SimpleNamespace(requested_signal=0, distributed=SimpleNamespace(world_size=num_ranks))
    _install_signal_handlers(trainer)  # type: ignore[arg-type]
    return trainer, lambda number: os.kill(os.getpid(), number)


@pytest.mark.posix
def test_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    trainer, send = listening(1)
    send(signal.SIGINT)
    assert trainer.requested_signal == signal.SIGINT and not ended
    send(signal.SIGTERM)
    assert ended == [143]
    trainer, send = listening(2)
    for _ in range(3):
        send(signal.SIGTERM)
    assert trainer.requested_signal == signal.SIGTERM and ended == [143]


@pytest.mark.posix
def test_ignored_signal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trainer, send = listening(1)
    send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN and not trainer.requested_signal
