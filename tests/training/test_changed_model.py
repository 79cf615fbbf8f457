"""Other heads for a checkpoint: a new vocabulary, other durations, a head more or less."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe import Options, Transcriber
from fastscribe.checkpoint import hf_export, nemo_export
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.errors import UsageError
from fastscribe.families.model import build_model
from fastscribe.text.tokenizer import Tokenizer, from_sentencepiece
from fastscribe.training.bpe import train_vocabulary
from fastscribe.training.changed_model import change_model
from fastscribe.training.command import _report_start
from fastscribe.training.data import prepare
from fastscribe.training.model_recipe import ModelChanges
from fastscribe.training.recipe import Recipe, parse_recipe
from fastscribe.training.state import RunFolder
from fastscribe.training.trainer import Trainer
from tests.conftest import MODELS, checkpoint

TDT, HYBRID, CTC, LETTERS = (MODELS / name for name in ("tdt_demo", "hybrid", "ctc", "canary_aligned_letters"))
AGGREGATE = MODELS / "published" / "stt_multilingual_fastconformer_hybrid_large_pc"
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувшщыз")
TEXTS = ["the ship sails over seven seas", "and it is there, she said so", "where? nowhere at all, the sea"]


@pytest.fixture(scope="module")
def new() -> Tokenizer:
    return from_sentencepiece(train_vocabulary(TEXTS, 40))


def changed(of: Checkpoint, tokenizer: Tokenizer | None = None, **changes: Any) -> tuple[Checkpoint, frozenset[str]]:
    found = change_model(of, ModelChanges(**changes), tokenizer, 0, "r.yaml")
    build_model(found.checkpoint.config, found.checkpoint.weights, "changed")  # names and shapes fit
    return found.checkpoint, found.new_heads


def old_row(of: Checkpoint, piece: str) -> int | None:
    """The row of the first equal piece."""
    pieces = [" " if piece == "▁" else piece] if of.tokenizer.kind == "character" else [piece]
    return next((i for i, one in enumerate(of.tokenizer.pieces) if one in pieces), None)


@pytest.mark.parametrize("folder", [TDT, HYBRID, CTC, MODELS / "hf_rnnt", LETTERS, AGGREGATE], ids=lambda f: f.name)
def test_shared_pieces_keep_their_rows(folder: Path, new: Tokenizer) -> None:
    of = checkpoint(folder)
    found, new_heads = changed(of, new)
    config, weights = found.config, dict(found.weights)
    assert found.tokenizer is new and config.num_labels == 40 and config.durations == of.config.durations
    assert new_heads == {head for head, has in (("transducer", config.joint), ("ctc", config.has_ctc)) if has}
    tables = {"transducer.predictor.embedding.weight", "transducer.joint.output.weight", "transducer.joint.output.bias"}
    tables |= {"ctc.output.weight", "ctc.output.bias"}
    assert all(torch.equal(weights[name], of.weights[name]) for name in weights if name not in tables)
    rows = {i: old_row(of, piece) for i, piece in enumerate(new.pieces)} | {40: of.config.num_labels}
    assert 5 < sum(row is not None for row in rows.values()) < 41
    for name in tables & weights.keys():
        before = of.weights[name].float()
        for i, row in rows.items():
            same = row is not None and torch.equal(weights[name][i], before[row])
            assert same == (row is not None), (name, i)
        num_durations = len(config.durations) if "joint" in name else 0
        assert len(weights[name]) == 41 + num_durations
        assert torch.equal(weights[name][41:], before[len(before) - num_durations :])


def test_same_vocabulary_in_another_order() -> None:
    """All that the model knows is kept: it writes what it wrote."""
    of = checkpoint(HYBRID)
    order = [0, *reversed(range(1, 128))]
    shuffled = replace(of.tokenizer, pieces=tuple(of.tokenizer.pieces[i] for i in order), files={})
    found, new_heads = changed(of, shuffled)
    assert not new_heads
    again, _ = changed(found, of.tokenizer)
    assert all(torch.equal(again.weights[name], tensor.float()) for name, tensor in of.weights.items())


def test_what_the_old_vocabulary_had_is_left_out(new: Tokenizer) -> None:
    of = replace(checkpoint(TDT), languages=("en",), language_model=object())  # type: ignore[arg-type]
    found, _ = changed(of, new)
    assert found.languages == () and found.language_model is None
    kept, _ = changed(of, ctc=True)
    assert kept.languages == ("en",) and kept.language_model is of.language_model
    assert change_model(of, ModelChanges(), None, 0, "r.yaml").checkpoint is of


def test_a_ctc_head_is_added_and_removed() -> None:
    of = checkpoint(TDT)
    hybrid, new_heads = changed(of, ctc=True)
    assert hybrid.config.family == "hybrid tdt+ctc" and new_heads == {"ctc"}
    assert all(torch.equal(hybrid.weights[name], tensor) for name, tensor in of.weights.items())
    alone, new_heads = changed(hybrid, ctc=False)
    assert alone.config == of.config and not new_heads and alone.weights.keys() == of.weights.keys()
    kept, new_heads = changed(hybrid, transducer=False)
    assert kept.config.decoders == ("ctc",) and not new_heads and not kept.config.durations
    assert torch.equal(kept.weights["ctc.output.weight"], hybrid.weights["ctc.output.weight"])


def test_a_transducer_is_added() -> None:
    of = checkpoint(CTC)
    found, new_heads = changed(of, transducer=True, predictor_hidden=24, joint_hidden=8, durations=(0, 1))
    assert found.config.decoders == ("tdt", "ctc") and new_heads == {"transducer"}
    assert found.weights["transducer.joint.output.weight"].shape == (128 + 1 + 2, 8)
    assert not found.weights["transducer.predictor.embedding.weight"][128].any()


@pytest.mark.parametrize("durations", [(), (0, 2, 4, 8)])
def test_durations(durations: tuple[int, ...]) -> None:
    of = checkpoint(TDT)
    found, new_heads = changed(of, durations=durations)
    after, before = found.weights["transducer.joint.output.bias"], of.weights["transducer.joint.output.bias"]
    assert len(after) == 257 + len(durations) and torch.equal(after[:257], before[:257].float())
    assert [bool(after[257 + i] == before[257 + d]) if d <= 4 else False for i, d in enumerate(durations)] == [
        d <= 4 for d in durations
    ]
    assert new_heads == ({"transducer"} if durations else set())


@pytest.mark.parametrize(
    ("folder", "changes", "said"),
    [
        (CTC, {"ctc": False}, r"r\.yaml: model: no head is left: the model of --init has ctc"),
        (TDT, {"transducer": False}, r"no head is left: .* has tdt"),
        (TDT, {"joint_hidden": 8}, r"model\.joint_hidden: leave out, --init decides, which has a transducer"),
        (CTC, {"predictor_layers": 2}, r"model\.predictor_layers: leave out, for a transducer, which model.transducer"),
        (CTC, {"durations": (0, 1)}, r"model\.durations: a model without a transducer has none"),
        (MODELS / "canary", {"ctc": True}, "model: leave out, only the heads of transducers and CTC models can change"),
        (MODELS / "jasper", {"ctc": True}, "model: leave out, only the heads of transducers and CTC models can change"),
    ],
)
def test_impossible_changes(folder: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        changed(checkpoint(folder), **changes)


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cyrillic(manifest: Path) -> Path:
    """The eight clips with their texts in other letters."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["text"] = row["text"].lower().translate(CYRILLIC)
    path = manifest.with_name("cyrillic.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def recipe_of(manifest: Path, model: dict[str, Any], **run: Any) -> Recipe:
    values = {
        "data": {"train": str(manifest), "validation": str(manifest), "threads": 2, "language": "ru"},
        "model": model,
        "batch": {"seconds": 12, "buckets": 3, "token_buckets": 1},
        "run": {"epochs": 2, **run},
    }
    return parse_recipe(values, manifest, is_tuning=True)


def trainer_of(recipe: Recipe, folder: Path, said: list[str] | None = None) -> Trainer:
    folder.mkdir(exist_ok=True)
    known = read_checkpoint(TDT / "model.nemo")
    known = replace(known, languages=("en",), language_model=checkpoint(PACKAGED).language_model)
    data = prepare(recipe, known, (said if said is not None else []).append)
    return Trainer(recipe, data, RunFolder(folder), torch.device("cpu"), torch.float32, print)


def test_a_run_with_a_new_vocabulary(cyrillic: Path, tmp_path: Path) -> None:
    """It learns another script, is found again as it was, and its model transcribes and is exported."""
    recipe, said = recipe_of(cyrillic, {"vocab_size": 64, "ctc": True}), list[str]()
    assert trainer_of(recipe, tmp_path / "whole", said).run()
    assert sum("a new vocabulary of 64 pieces" in line for line in said) == 1
    assert sum("language model of --init is left out" in line for line in said) == 1
    rows = RunFolder(tmp_path / "whole").rows()
    assert [row["epoch"] for row in rows if "validation" in row] == [1, 2]  # and not before the first step

    assert trainer_of(recipe, tmp_path / "whole").is_over
    best = read_checkpoint(tmp_path / "whole" / "last")
    assert best.languages == ("ru",) and best.config.family == "hybrid tdt+ctc"

    transcriber = Transcriber.load(tmp_path / "whole" / "last", "cpu", "fp32", Options(threads=2))
    assert len(list(transcriber.transcribe(str(cyrillic)))) == 8
    nemo_export.write(best, tmp_path / "m.nemo", torch.float32)
    read_back = read_checkpoint(tmp_path / "m.nemo")
    assert read_back.tokenizer.pieces == best.tokenizer.pieces
    alone = change_model(best, ModelChanges(ctc=False), None, 0, "").checkpoint
    (tmp_path / "hf").mkdir()
    hf_export.write(alone, hf_export.files_of(alone, "fp32"), tmp_path / "hf", torch.float32)
    assert read_checkpoint(tmp_path / "hf").tokenizer.pieces == best.tokenizer.pieces
    with pytest.raises(
        UsageError, match=r"holds a run that differs in .* and vocabulary and starting weights; use another"
    ):
        trainer_of(recipe_of(cyrillic, {"vocab_size": 60, "ctc": True}), tmp_path / "whole")


@pytest.mark.parametrize(
    ("model", "frozen", "said"),
    [({"vocab_size": 64}, ("predictor", "encoder"), "predictor"), ({"ctc": True}, ("ctc",), "ctc")],
    ids=["vocabulary", "ctc"],
)
def test_new_weights_cannot_be_frozen(
    cyrillic: Path, tmp_path: Path, model: dict[str, Any], frozen: tuple[str, ...], said: str
) -> None:
    recipe = recipe_of(cyrillic, {"vocab_size": 64, **model})
    recipe = replace(recipe, optimiser=replace(recipe.optimiser, freeze=frozen))
    with pytest.raises(UsageError, match=rf"optimiser\.freeze: {said}: has new weights"):
        trainer_of(recipe, tmp_path)


def test_a_vocabulary_that_lacks_the_letters_names_the_way_out(cyrillic: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"nothing to train on: .* lacks .*; model\.vocab_size or model\.tokenizer in a"
    ):
        trainer_of(recipe_of(cyrillic, {}), tmp_path / "run")
    mixed, said = tmp_path / "mixed.jsonl", list[str]()
    latin = (cyrillic.parent / "train.jsonl").read_text(encoding="utf-8")
    mixed.write_text(latin + cyrillic.read_text(encoding="utf-8"), encoding="utf-8")
    trainer = trainer_of(recipe_of(mixed, {}), tmp_path / "run", said)
    assert len(trainer.examples) == 8 and sum("the vocabulary of --init lacks letters" in line for line in said) == 1
    assert trainer.rates_start


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_given_tokenizer(cyrillic: Path, tmp_path: Path, is_folder: bool, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [json.loads(line)["text"] for line in cyrillic.read_text(encoding="utf-8").splitlines()]
    (tmp_path / "tokenizer.model").write_bytes(train_vocabulary(texts, 50, "unigram"))
    given = tmp_path if is_folder else tmp_path / "tokenizer.model"
    trainer = trainer_of(recipe_of(cyrillic, {"tokenizer": str(given)}), tmp_path / "run")
    assert trainer.training_data.checkpoint.config.num_labels == 50 and not trainer.rates_start
    assert len(trainer.examples) == 8
    _report_start(trainer)
    assert "no validation before the first step: the head that decodes has new outputs" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "said"), [(b"{}", "no SentencePiece model"), (None, "cannot be read: No such")])
def test_a_file_that_is_no_tokenizer(cyrillic: Path, tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UsageError, match=rf"the recipe: model\.tokenizer: .*tokenizer\.json: {said}"):
        trainer_of(recipe_of(cyrillic, {"tokenizer": str(tmp_path / "tokenizer.json")}), tmp_path / "run")


def test_added_ctc_head_alone_decides_if_it_alone_learns(cyrillic: Path, tmp_path: Path) -> None:
    """The start is validated with the transducer, which is as it was, but not with a new CTC head."""
    recipe = recipe_of(cyrillic.parent / "train.jsonl", {"ctc": True})
    assert trainer_of(recipe, tmp_path / "run").rates_start
    alone = replace(recipe, loss=replace(recipe.loss, ctc_weight=1.0))
    assert not trainer_of(alone, tmp_path / "other").rates_start
