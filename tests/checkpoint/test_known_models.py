"""The table of published models: each is one that the loader accepts, each value has a source, and the documents show it."""

from __future__ import annotations

import json
import math

import pytest

from fastscribe.checkpoint import huggingface
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.known_models import KnownModel, hub_name, known_models
from fastscribe.checkpoint.nemo import parse_yaml
from fastscribe.checkpoint.nemo_config import heads_of, model_config
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.checkpoint.value import Section
from fastscribe.config import ModelConfig
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.families.parameter_shapes import parameter_shapes
from scripts.made_docs import MODELS, inside, model_table
from tests.conftest import SHARED
from tests.helpers import cohere_folder, granite_folder, quick_yaml
from tests.helpers.published import CONFIGS, config

FOLDERS = dict.fromkeys(granite_folder.NAMES, granite_folder) | {cohere_folder.NAME: cohere_folder}
TABLE = {model.name: model for model in known_models()}
PUBLISHED = SHARED / "published"


def read(name: str) -> ModelConfig:
    """Read the published configuration as the loader does."""
    if name in FOLDERS:
        of = FOLDERS[name]
        return huggingface.model_config(
            Section(of.PUBLISHED_CONFIG, "config", name), Section(of.PROCESSOR_CONFIG, "", name)
        )
    whole = config(name)
    section = parse_yaml(quick_yaml.dump(whole, allow_unicode=True).encode(), name)
    return model_config(section, heads_of(section, dict), num_labels(whole), name)


@pytest.mark.parametrize(
    ("name", "supported"),
    [
        ("EncDecMultiTalkerRNNTBPEModel", "models without speaker targets"),
        ("EncDecTransfModelBPE", "EncDecMultiTaskModel"),
    ],
)
def test_classes_of_other_inputs_or_layers_are_refused(name: str, supported: str) -> None:
    section = Section({"target": f"nemo.collections.asr.models.{name}"}, "", "x.nemo")
    with pytest.raises(UnsupportedCheckpoint, match=rf"unsupported target: .*{name}' \(supported: {supported}\)$"):
        heads_of(section, dict)


def num_labels(whole: dict) -> int:
    return whole["joint"]["num_classes"] if "joint" in whole else whole.get("decoder", {}).get("num_classes", 0) or 5248


def millions(shapes: dict[str, tuple[int, ...]]) -> int:
    return round(sum(math.prod(shape) for shape in shapes.values()) / 1e6)


def test_the_table_lists_what_loads() -> None:
    """test_published.py, test_granite.py and test_cohere.py load a stand-in for each of these names, and refuse others."""
    assert TABLE.keys() == {*CONFIGS, *FOLDERS, "default"}


@pytest.mark.parametrize("model", [model for model in TABLE.values() if model.name != "default"], ids=lambda m: m.name)
def test_values_are_those_of_the_configuration(model: KnownModel) -> None:
    found = read(model.name)
    assert found.decoders == model.decoders
    if model.sources.get("parameters_millions") == "configuration":
        if model.name in granite_folder.NAMES:  # the folder stores the head and the conditioning's layer once
            assert model.parameters_millions == round(
                granite_folder.num_parameters(granite_folder.PUBLISHED_CONFIG) / 1e6
            )
        else:
            assert model.parameters_millions == millions(parameter_shapes(found))


@pytest.mark.parametrize("model", TABLE.values(), ids=lambda model: model.name)
def test_every_value_has_a_source(model: KnownModel) -> None:
    given = ("hub", "languages", "licence", "parameters_millions", "download_gb")
    assert set(model.sources) == {name for name in given if getattr(model, name) is not None}
    assert model.hub is None or model.hub.endswith("/" + model.name)


def test_the_packaged_model() -> None:
    row, checkpoint = TABLE["default"], read_checkpoint(PACKAGED)
    assert row.decoders == checkpoint.config.decoders and row.cached() == PACKAGED
    assert row.parameters_millions == round(checkpoint.num_parameters / 1e6)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="no published configurations beside the checkout")
def test_published_files_agree() -> None:
    folder = PUBLISHED / "parakeet-tdt-0.6b-v3"
    row = TABLE[folder.name]
    header = json.loads((folder / "safetensors_header.json").read_text(encoding="utf-8"))
    tensors = [value for name, value in header.items() if name != "__metadata__" and value["dtype"] != "I64"]
    assert row.parameters_millions == round(sum(math.prod(tensor["shape"]) for tensor in tensors) / 1e6)
    assert row.download_gb == round(max(tensor["data_offsets"][1] for tensor in tensors) / 1e9, 2)
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert huggingface.read_config(folder, values, folder).decoders == row.decoders
    for name in ("parakeet-tdt-0.6b-v3", "parakeet-tdt_ctc-110m"):
        section = parse_yaml((PUBLISHED / name / "model_config.yaml").read_bytes(), name)
        found = model_config(section, heads_of(section, dict), num_labels(section.values), name)
        assert (found.decoders, millions(parameter_shapes(found))) == (
            TABLE[name].decoders,
            TABLE[name].parameters_millions,
        )
    canary = json.loads((PUBLISHED / "canary-1b-flash" / "config.json").read_text(encoding="utf-8"))
    assert canary["nemo_model_name"] == TABLE["canary-1b-flash"].hub


def test_names_for_pull() -> None:
    assert str(hub_name("parakeet-tdt-0.6b-v3")) == "nvidia/parakeet-tdt-0.6b-v3"
    assert str(hub_name("parakeet-tdt-0.6b-v3@abc")) == "nvidia/parakeet-tdt-0.6b-v3@abc"
    assert str(hub_name("someone/model@v2")) == "someone/model@v2"
    with pytest.raises(CheckpointError, match=r"did you mean nvidia/parakeet-tdt-0\.6b-v3\?"):
        hub_name("parakeet-tdt-0.6b-v33")
    with pytest.raises(CheckpointError, match="its place on the Hugging Face hub is not known"):
        hub_name("stt_en_quartznet15x5")


def test_the_documents_show_the_table() -> None:
    """If not: python -m scripts.made_docs"""
    assert inside(MODELS.read_text(encoding="utf-8")) == model_table()
