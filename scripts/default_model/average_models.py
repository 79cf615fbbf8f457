"""Write a model with the mean of the weights of several models that were trained from the same one.

    python -m scripts.default_model.average_models OUT MODEL MODEL..

If a run learned one thing and forgot another, the mean of its weights and its initial ones often keeps both (Wortsman et al.
2022, "Robust fine-tuning of zero-shot models" and "Model soups"). OUT gets everything else, such as the tokenizer, from the
first model.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import FastscribeError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    arguments = parser.parse_args()
    try:
        first, *others = map(read_checkpoint, arguments.models)
    except FastscribeError as error:
        sys.exit(str(error))
    for path, other in zip(arguments.models[1:], others, strict=True):
        same_lengths = replace(other.config, trained_utterance_s=first.config.trained_utterance_s)
        if same_lengths != first.config or other.tokenizer != first.tokenizer:
            sys.exit(f"{path}: another kind of model than {arguments.models[0]}")
    means = {
        name: torch.stack([checkpoint.weights[name].float() for checkpoint in (first, *others)]).mean(0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.weights.items()
    }
    native_writer.write(replace(first, weights=means), arguments.out, torch.bfloat16)


if __name__ == "__main__":
    main()
