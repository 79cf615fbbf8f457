"""Record the frames that NeMo's forced alignment gives the words of known texts.

    python -m scripts.goldens alignment OUT_FILE MODELS_DIR AUDIO_DIR MANIFEST     # with nemo_toolkit[asr]

MODELS_DIR, AUDIO_DIR and MANIFEST are those of tests/data. For each of MODELS (the CTC head of a hybrid) and some recordings,
OUT_FILE has the words with their first frame and the frame after their last, from NeMo's `get_batch_variables`,
`viterbi_decoding` and `add_t_start_end_to_utt_obj`: CPU, float32, one file at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from nemo.collections.asr.models import ASRModel
from nemo.collections.asr.parts.utils.aligner_utils import (
    Segment,
    Word,
    add_t_start_end_to_utt_obj,
    get_batch_variables,
    viterbi_decoding,
)

from scripts.goldens import common

MODELS = ("ctc", "hybrid", "quartznet")
NUM_FILES = 6
LETTERS = " abcdefghijklmnopqrstuvwxyz'"


def words_of(model: Any, audio: Path, text: str) -> list[list[Any]]:
    logprobs, tokens, lengths, num_states, found, frame_s = get_batch_variables(
        [str(audio)], model, segment_separators=None, gt_text_batch=[text], output_timestep_duration=1.0, verbose=False
    )
    (path,) = viterbi_decoding(logprobs, tokens, lengths, num_states, torch.device("cpu"))
    utterance = add_t_start_end_to_utt_obj(found[0], path, frame_s)
    segments = [part for part in utterance.segments_and_tokens if isinstance(part, Segment)]
    words = [part for segment in segments for part in segment.words_and_tokens if isinstance(part, Word)]
    return [[word.text, round(word.t_start), round(word.t_end)] for word in words]


def main(out: Path, models: Path, audio: Path, manifest: Path) -> None:
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    is_usable = [not Path(row["audio_filepath"]).name.startswith("e") and "-" not in row["text"] for row in rows]
    rows = [row for row, usable in zip(rows, is_usable, strict=True) if usable][:NUM_FILES]
    document: dict[str, Any] = {"made_with": common.versions()}
    for name in MODELS:
        model = ASRModel.restore_from(str(models / name / "model.nemo"), map_location="cpu").eval()
        model.preprocessor.featurizer.dither = 0.0
        if hasattr(model, "cur_decoder"):
            model.change_decoding_strategy(decoder_type="ctc", verbose=False)
        document[name] = {}
        for row in rows:
            file = Path(row["audio_filepath"]).name
            text = row["text"]
            if name != "hybrid":  # whose vocabulary has capitals and punctuation
                text = "".join(character for character in text.lower() if character in LETTERS)
            document[name][file] = words_of(model, audio / file, text)
    common.write_json(out, document)
