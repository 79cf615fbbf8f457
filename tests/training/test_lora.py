"""LoRA: the run starts from the given model, adapters alone move the encoder, and written models hold them merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import UsageError
from fastscribe.families.model import Model, build_model
from fastscribe.training.data import prepare
from fastscribe.training.lora import add_adapters
from fastscribe.training.recipe import LoraRecipe, OptimiserRecipe, Recipe, parse_recipe
from fastscribe.training.weights import Weights
from tests.conftest import MODEL
from tests.training.test_network import noise, tiny
from tests.training.test_trainer import recipe_of, steps_of, trainer_of, weights_of

RANK = 4
TARGETS = (
    "linear_q.weight",
    "linear_k.weight",
    "linear_v.weight",
    "linear_out.weight",
    "linear1.weight",
    "linear2.weight",
)


def outputs(model: Model) -> torch.Tensor:
    with torch.no_grad():
        frames_BTD: torch.Tensor = model.encoder.eval()(noise()).frames_BTD
    return frames_BTD


def adapted(recipe: LoraRecipe) -> Model:
    model = tiny()
    add_adapters(model.encoder, recipe, seed=0)
    return model


def test_first_step_starts_from_the_model() -> None:
    model = adapted(LoraRecipe(RANK, dropout=0.5))
    assert torch.equal(outputs(model), outputs(tiny()))
    expected, merged = tiny().state_dict(), Weights(model, torch.float32, OptimiserRecipe()).export()
    assert merged.keys() == expected.keys() and all(torch.equal(merged[name], each) for name, each in expected.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_averaged_adapters_are_merged(dtype: torch.dtype) -> None:
    """The sum is that of the averages of A and of B; its frozen addend is the exact one, also of a model in bf16."""
    model = adapted(LoraRecipe(RANK, alpha=6.0, target_modules=("linear_q", "pointwise1")))
    names = {name.removesuffix("lora_B") for name, _ in model.named_parameters() if name.endswith("lora_B")}
    assert len(names) == 4
    weights = Weights(model, dtype, OptimiserRecipe(learning_rate=0.1, warmup_steps=0))
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
        weights.step(step / 3)
    before, after = tiny().state_dict(), weights.export()
    assert before.keys() == after.keys()
    for name in before:
        if name.removesuffix("weight") in names:
            a_RI, b_OR = (weights.averages[name.removesuffix("weight") + each] for each in ("lora_A", "lora_B"))
            assert not torch.equal(a_RI, weights.masters[name.removesuffix("weight") + "lora_A"]) and b_OR.any()
            torch.testing.assert_close(after[name], before[name] + 1.5 * b_OR @ a_RI)
        elif name.startswith("encoder."):
            assert torch.equal(after[name], before[name]), name
    if dtype == torch.float32:
        merged = build_model(model.config, after, "merged")
        weights.averages = {}
        torch.testing.assert_close(
            outputs(build_model(model.config, weights.export(), "merged")), outputs(model), rtol=1e-4, atol=1e-4
        )
        assert not torch.allclose(outputs(merged), outputs(tiny()), rtol=1e-2, atol=1e-2)


def lora_recipe(manifest: Path, **sections: Any) -> Recipe:
    optimiser = {"learning_rate": 3e-3, "lora": {"rank": RANK, "dropout": 0.1}, **sections.pop("optimiser", {})}
    return recipe_of(manifest, optimiser=optimiser, run={"epochs": 2}, **sections)


def test_run(manifest: Path, tmp_path: Path) -> None:
    """A resumed run with checkpointing equals one without that was never stopped. Of the encoder, only the targets move."""
    recipe, dtype = lora_recipe(manifest, optimiser={"freeze": ["predictor"]}), torch.bfloat16
    whole = trainer_of(recipe, tmp_path / "whole", dtype, read_checkpoint(MODEL))
    assert whole.run() and whole.progress.start_rate is not None
    checkpointed = replace(recipe, batch=replace(recipe.batch, gradient_checkpointing=True))
    stopped = trainer_of(checkpointed, tmp_path / "resumed", dtype, read_checkpoint(MODEL))
    stopped.requested_signal = 15
    assert not stopped.run()
    resumed = trainer_of(checkpointed, tmp_path / "resumed", dtype, read_checkpoint(MODEL))
    assert 0 < resumed.progress.step < whole.progress.step and resumed.run()
    known, expected, tuned = (
        read_checkpoint(MODEL).weights,
        weights_of(whole.folder.last),
        weights_of(resumed.folder.last),
    )
    assert {
        name for name in known if not name.endswith("batches_tracked")
    } == expected.keys() == tuned.keys() and steps_of(whole.folder.path) == steps_of(resumed.folder.path)
    for name, tensor in expected.items():
        assert torch.equal(tuned[name], tensor), name
        change = tensor - known[name].float()
        if name.startswith("encoder.") and name.endswith(TARGETS):
            assert 0 < torch.linalg.matrix_rank(change.double(), atol=1e-5) <= RANK, name
        else:
            is_kept = name.startswith(("encoder.", "transducer.predictor."))
            assert bool(change.any()) != is_kept or "embedding" in name, name
    state = whole.folder.load_state()
    assert state is not None
    kept = [name for part in ("masters", "averages") for name in state["weights"][part]]
    assert kept and all("lora_" in name for name in kept if name.startswith("encoder."))
    num_trained = sum(tensor.numel() for tensor in state["weights"]["masters"].values())
    assert whole.num_trained == num_trained < sum(tensor.numel() for tensor in known.values()) / 3


@pytest.mark.parametrize(
    ("optimiser", "said"),
    [
        ({"lora": {"rank": 0}}, r"optimiser\.lora\.rank: 0 is not a number from 1"),
        ({"lora": {"r": 4}}, r"\.lora\.r: no such key; the keys here are rank, alpha, dropout, target_modules$"),
        ({"lora": {"rnak": 8}}, r"optimiser\.lora\.rnak: no such key; optimiser\.lora\.rank\?"),
        ({"lora": True}, r"optimiser\.lora: True is not a mapping or null"),
        ({"lora": {"target_modules": ["query"]}}, r"target_modules\[0\]: 'query' is not 'linear_q' or"),
        ({"lora": {"target_modules": []}}, r"target_modules: \(\) is not a list of at least one"),
        ({"lora": {}, "freeze": ["encoder"]}, r"optimiser\.freeze: lora freezes the encoder's own weights"),
    ],
)
def test_wrong_values(optimiser: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_recipe({"data": {"train": "a.jsonl"}, "optimiser": optimiser}, Path("recipe.yaml"))


def test_left_out_or_of_defaults() -> None:
    def lora(section: dict[str, Any]) -> LoraRecipe | None:
        return parse_recipe({"data": {"train": "a"}, "optimiser": section}, Path("recipe.yaml")).optimiser.lora

    assert lora({}) is None and lora({"lora": None}) is None and lora({"lora": {}}) == LoraRecipe()
    assert lora({"lora": {"alpha": 8, "target_modules": ["linear1"]}}) == LoraRecipe(
        alpha=8.0, target_modules=("linear1",)
    )


def test_refused(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recipe\.yaml: optimiser\.lora: adapters are for a model that has learnt"):
        prepare(lora_recipe(manifest), None, where="recipe.yaml")
    with pytest.raises(
        UsageError, match=r"optimiser\.lora\.rank: 65 is more than 64, the width of this model's linear"
    ):
        trainer_of(
            lora_recipe(manifest, optimiser={"lora": {"rank": 65}}), tmp_path / "run", init=read_checkpoint(MODEL)
        )
