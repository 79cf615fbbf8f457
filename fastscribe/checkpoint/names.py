"""Renaming of weights between NeMo or Hugging Face's folders and ours. Pure; names that match no rule stay, and build_model
reports them.

The names of an encoder, and of heads that few families have, are in the families' folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.config import EncoderSettings
from fastscribe.families.registry import module_of

# Pairs of their text and ours in a name; ^ is its beginning, # a layer's number. Readers replace theirs, and writers ours by
# the first pair's.
Pairs = tuple[tuple[str, str], ...]
# Regular expressions of theirs, and what replaces them.
Patterns = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
_NEMO_UNUSED = re.compile(  # tables that the config gives, and what no forward pass reads
    r"^preprocessor\.featurizer\.(window|fb)$|^transf_decoder\._embedding\.token_type_embedding\."
)
NEMO_TRANSDUCER: Pairs = (
    ("^decoder.prediction.embed.", "^transducer.predictor.embedding."),
    ("^decoder.prediction.dec_rnn.lstm.", "^transducer.predictor.lstm."),
    ("^joint.enc.", "^transducer.joint.encoder."),
    ("^joint.pred.", "^transducer.joint.predictor."),
    ("^joint.joint_net.2.", "^transducer.joint.output."),
    ("^joint.joint_net.1.", "^transducer.joint.output."),  # of a joint without dropout
)
NEMO_CTC: Pairs = (("^decoder.decoder_layers.0.", "^ctc.output."),)
NEMO_HYBRID_CTC: Pairs = (("^ctc_decoder.decoder_layers.0.", "^ctc.output."),)
# Of conformer layers, in NeMo and in Hugging Face's folders.
BOTH: Pairs = (
    (".norm_self_att.", ".norm_self_attn."),
    (".conv.pointwise_conv1.", ".conv.pointwise1."),
    (".conv.pointwise_conv2.", ".conv.pointwise2."),
    (".conv.depthwise_conv.", ".conv.depthwise."),
)
_POINTWISE = re.compile(r"\.conv\.pointwise[12]\.weight$|^ctc\.output\.weight$")


def from_nemo(
    weights: Mapping[str, TensorSource], encoder: EncoderSettings, others: Pairs = ()
) -> dict[str, TensorSource]:
    """Rename NeMo's weights, and drop those that inference does not use.

    Args:
        weights: By NeMo's names.
        encoder: Settings of the model's encoder, of a family that NeMo has.
        others: Names of further parts, such as an attention decoder.
    """
    own = module_of(encoder.family, "nemo")
    patterns: Patterns = reading(own.NEMO + NEMO_TRANSDUCER + NEMO_CTC + NEMO_HYBRID_CTC)
    kept = {name: source for name, source in weights.items() if not _NEMO_UNUSED.match(name)}
    return rename(kept, own.nemo_layers(encoder), patterns + reading(others + BOTH))


def reading(pairs: Pairs) -> Patterns:
    """Return the pattern of theirs and the replacement of each pair."""
    numbers = re.escape("#")
    return tuple(
        (
            "^" * theirs.startswith("^") + re.escape(theirs.lstrip("^")).replace(numbers, r"(\d+)"),
            ours.lstrip("^").replace("#", r"\1"),
        )
        for theirs, ours in pairs
    )


def within(theirs: str, ours: str, pairs: Pairs) -> Pairs:
    """Return the pairs with these beginnings in front."""
    return tuple((theirs + one, ours + other) for one, other in pairs)


def rename(
    weights: Mapping[str, TensorSource],
    layers: Mapping[str, str],
    patterns: Patterns,
    linear: re.Pattern[str] | None = _POINTWISE,
) -> dict[str, TensorSource]:
    """Rename weights.

    Args:
        weights: By their names.
        layers: New names of single layers, by the old ones.
        patterns: What else to replace, one after the other.
        linear: The new names of 1x1 convolutions over time, which are linear layers here: their last dimension is dropped.
    """
    renamed = {}
    for name, source in weights.items():
        stem, _, suffix = name.rpartition(".")
        new_name = f"{layers[stem]}.{suffix}" if stem in layers else name
        for pattern, replacement in patterns:
            new_name = re.sub(pattern, replacement, new_name)
        is_linear = linear is not None and linear.search(new_name) and len(source.shape) == 3 and source.shape[-1] == 1
        renamed[new_name] = source.reshaped(source.shape[:-1]) if is_linear else source
    return renamed


def rename_back(
    weights: Mapping[str, TensorSource], layers: Mapping[str, str], pairs: Pairs
) -> dict[str, TensorSource]:
    """Give our weights their names and shapes, the inverse of `rename`.

    Args:
        weights: By our names.
        layers: Our names of single layers, by theirs.
        pairs: What else to replace.
    """
    shaped = {  # linear layers over time are 1x1 convolutions there
        name: source.reshaped((*source.shape, 1)) if _POINTWISE.search(name) else source
        for name, source in weights.items()
    }
    patterns = reading(tuple((ours, theirs) for theirs, ours in pairs))
    return rename(shaped, {ours: theirs for theirs, ours in layers.items()}, patterns, linear=None)
