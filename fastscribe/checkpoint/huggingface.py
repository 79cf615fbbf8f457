"""Reader of Hugging Face folders: config.json, the processor's config, and weights in one file or in shards.

families/registry.py names the module that reads the rest, by the model's type. Such a module has three functions:
read_config(section, processor) makes the ModelConfig of config.json, our_names(weights, model) gives the weights our names, and
read_model(folder, section, model) makes the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import Checkpoint, Section, read_json, report_invalid_config
from fastscribe.checkpoint.weights import load_safetensors
from fastscribe.config import ModelConfig
from fastscribe.errors import CheckpointError
from fastscribe.families.registry import MODEL_TYPES, reader_of

# Keys for training, generation and bookkeeping, which do not change the encoder's output.
HARMLESS = tuple(
    """
    activation_dropout architectures attention_dropout auto_map chunk_size_feed_forward diversity_penalty dropout
    dropout_positions dtype encoder_no_repeat_ngram_size id2label initializer_range label2id layerdrop length_penalty
    max_length max_position_embeddings min_length model_type no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences problem_type repetition_penalty return_dict temperature tie_word_embeddings top_k top_p
    torch_dtype transformers_version typical_p use_cache
""".split()  # noqa: SIM905
)


def read(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """Read a folder.

    Args:
        folder: the folder.
        config: content of its config.json.

    Returns:
        The checkpoint, with lazy weights.

    Raises:
        CheckpointError: the folder is damaged, or its model or a setting is not supported.
    """
    model = read_config(folder, config, folder)
    checkpoint: Checkpoint = reader_of(config["model_type"]).read_model(
        folder, Section(config, "config", folder), model
    )
    return checkpoint


def read_config(folder: Path, config: Mapping[str, Any], where: object) -> ModelConfig:
    """Read the configuration alone; `where` names the folder in messages. Raises CheckpointError."""
    with report_invalid_config(f"{where}: config.json"):
        processor = read_processor(folder, where)
        model = model_config(Section(config, "config", where), processor)
        validate(model, where)
    return model


def model_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    section.choose("model_type", None, MODEL_TYPES)
    model: ModelConfig = reader_of(section.values["model_type"]).read_config(section, processor)
    return model


def read_weights(folder: Path) -> dict[str, TensorSource]:
    """Read one file, or the shards listed in the index."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_safetensors(folder / "model.safetensors")
    return {name: tensor for shard in shard_names(index) for name, tensor in load_safetensors(folder / shard).items()}


def shard_names(index: Path) -> list[str]:
    """Return the file names of the shards in an index, all in its folder. Raises CheckpointError."""
    values = read_json(index)
    shards = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(index, "cannot be read: its weight_map does not name a file for each weight")
    names = sorted(set(shards.values()))
    if any(Path(name).name != name for name in names):
        raise CheckpointError(index, "refused: a shard's name leaves the folder")
    return names


def read_processor(folder: Path, where: object) -> Section:
    """Return the processor's config, with the feature extractor's under its key."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        path = folder / name
        if path.is_file():
            values = read_json(path)
            is_older = name == "processor_config.json" and (folder / "preprocessor_config.json").is_file()
            if isinstance(values, dict) and ("feature_extractor" in values or not is_older):
                whole = values if "feature_extractor" in values else {"feature_extractor": values}
                return Section(whole, "", where)
    raise CheckpointError(where, "holds no processor_config.json or preprocessor_config.json")


def extractor_of(processor: Section) -> Section:
    """Return the feature extractor's config."""
    extractor = processor.part("feature_extractor")
    extractor.name = "feature_extractor"
    return extractor
