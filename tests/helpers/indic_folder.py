"""A small IndicConformer with random weights, as the unpacked .nemo of AI4Bharat's fork of NeMo.

It has three of the 22 languages, each with its own vocabulary. The weights come from NumPy's legacy generator, whose numbers do
not change between versions. Used by tests, and by scripts/goldens/indic.py, which runs where NeMo is installed and
fastscribe is not, so nothing here imports either of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch

from tests.helpers import published, quick_yaml
from tests.helpers.conformer_shapes import conformer_shapes
from tests.helpers.se_checkpoint import Shapes, linear, transducer_shapes

NAME = "indicconformer_stt_hi_hybrid_ctc_rnnt_large"
# With the letters of each script that its pieces are made of. The order is that of the CTC head's rows; it is neither
# alphabetical nor that of joint.language_keys.
LETTERS = {"ta": "தமிழ்கபமனறஇலை", "as": "অসমীয়াকৰছন", "hi": "हिंदीभारतमकन"}
LANGUAGES = tuple(LETTERS)
PIECES = 48  # of each language
_WORDS, _MAX_LETTERS = 400, 6
# Factors by name, so that the labels differ from frame to frame and depend on the last label.
_SCALES = {
    "decoder.prediction.embed.weight": 16.0,
    "joint.pred.weight": 4.0,
    "joint.joint_net": 4.0,
    "ctc_decoder": 8.0,
    "decoder.prediction.dec_rnn.lstm.weight_hh": 0.5,
}
_BLANK_BIAS = {"joint.joint_net": 6.0, "ctc_decoder": 6.0}


def config() -> dict[str, Any]:
    """Return the model_config.yaml, with every published key and the lists of pieces that the fork writes."""
    whole = published.config(NAME)
    whole["tokenizer"]["langs"] = {language: whole["tokenizer"]["langs"][language] for language in LANGUAGES}
    whole["joint"]["language_keys"] = list(reversed(LANGUAGES))  # the order of the outputs means nothing
    small = published.stand_in(whole, PIECES * len(LANGUAGES), num_layers=2, width=32)
    small["labels"] = pieces(LANGUAGES)
    for section in (small["joint"], small["aux_ctc"]["decoder"]):
        section["vocabulary"] = pieces(LANGUAGES)
    return small


def shapes() -> Shapes:
    """Return the names of the model's weights, with their shapes."""
    settings, num_labels = config(), PIECES * len(LANGUAGES)
    head = linear("ctc_decoder.decoder_layers.0", settings["encoder"]["d_model"], num_labels + 1, True, 1)
    return conformer_shapes(settings["encoder"]) | transducer_shapes(settings, num_labels) | head


def pieces(languages: Iterable[str]) -> list[str]:
    """Return the pieces of these languages, one language behind the other."""
    processors = [
        sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(language)) for language in languages
    ]
    return [processor.IdToPiece(number) for processor in processors for number in range(PIECES)]


def tables(languages: Sequence[str], num_pieces: int = PIECES) -> dict[str, dict[str, Any]]:
    """Return the tables by language that the fork computes, by their keys, for languages in this order."""
    of_row = [language for language in languages for _ in range(num_pieces)]
    masks = {language: [*(one == language for one in of_row), True] for language in languages}
    return {
        "language_masks": masks,
        "token_id_offsets": {language: of_row.index(language) for language in languages},
        "offset_token_ids_by_token_id": {row: row % num_pieces for row in range(len(of_row))},
    }


@cache
def sentencepiece_model(language: str, num_pieces: int = PIECES) -> bytes:
    """Return the tokenizer of a language, trained on made-up words of its letters."""
    draw, letters = np.random.RandomState(zlib.crc32(language.encode())), LETTERS[language]
    words = ["".join(draw.choice(list(letters), draw.randint(1, _MAX_LETTERS))) for _ in range(_WORDS)]
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words), letters]),
        model_writer=model,
        model_type="bpe",
        vocab_size=num_pieces,
        character_coverage=1.0,
        bos_id=-1,
        eos_id=-1,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return model.getvalue()


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return random weights by their NeMo names; each depends on its name and shape alone."""
    return {name: _weight(name, shape) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name.endswith("num_batches_tracked"):
        return torch.tensor(1)
    if name.endswith("running_var") or ("norm" in name and name.endswith("weight")):
        return torch.ones(shape)
    fan_in = int(np.prod(shape[1:])) or 1
    drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    value = torch.from_numpy(drawn / fan_in**0.5).float() if len(shape) > 1 else 0.1 * torch.from_numpy(drawn).float()
    if len(shape) > 1:
        value *= next((scale for start, scale in _SCALES.items() if name.startswith(start)), 1.0)
    for start, bias in _BLANK_BIAS.items():
        if name.startswith(start) and len(shape) == 1:
            value[-1] = bias
        elif name.startswith(start):
            value -= value.mean(1, keepdim=True)
    return value


def write(folder: Path, shapes: Mapping[str, tuple[int, ...]], **changes: Any) -> Path:
    """Write the unpacked .nemo; `changes` replaces sections of the config."""
    folder.mkdir(parents=True, exist_ok=True)
    written = config() | changes
    for language, part in written["tokenizer"].get("langs", {}).items():
        part["model_path"] = f"nemo:{language}.model"
        (folder / f"{language}.model").write_bytes(sentencepiece_model(language))
    text = quick_yaml.dump(
        written, allow_unicode=True, sort_keys=False
    )  # the order of the languages is that of their outputs
    (folder / "model_config.yaml").write_text(text, encoding="utf-8")
    torch.save(weights(shapes), folder / "model_weights.ckpt")
    return folder
