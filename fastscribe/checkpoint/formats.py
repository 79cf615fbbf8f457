"""What tells the formats of checkpoints apart, without reading them."""

from __future__ import annotations

CONFIG_NAME = "config.json"  # of folders of fastscribe and of Hugging Face
FORMAT = "fastscribe"  # `format` in the config.json of a folder of fastscribe
LANGUAGE_MODEL_FILE = "language_model.safetensors.gz"  # in such a folder; the room context reads it
NEMO_CONFIG_NAME = "model_config.yaml"  # in NeMo's archives, and in an unpacked one
