"""Record NeMo's training loss and gradients of small Canary checkpoints.

    python -m scripts.goldens canary_training OUT.json MODELS_DIR MANIFEST     # with nemo_toolkit[asr]

MODELS_DIR has the folders that canary.py wrote. For each, one batch of three recordings of MANIFEST goes through
the model in training mode (BatchNorm takes the batch's statistics) on a CPU, without dropout and augmentation. Features are
float32, all else is float64: in float32 the rounding errors of these random models reach a thousandth of a gradient.
OUT.json has, for each model: the recordings, the tokens of each (NeMo's prompt, text and end), and the loss in each setting.
For the models of GRADIENTS_OF it also has two numbers for each weight's gradient of the first setting: its norm, and its dot
product with `probe()`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import soundfile as sf
import torch
from nemo.collections.asr.data.audio_to_text_lhotse_prompted import PromptedAudioToTextMiniBatch
from nemo.collections.asr.models import EncDecMultiTaskModel
from nemo.collections.asr.models.aed_multitask_models import lens_to_mask
from nemo.collections.common.losses.smoothed_cross_entropy import SmoothedCrossEntropyLoss

from scripts.goldens import canary, common

NAMES = ("canary", "canary2", "canary_unified", "canary_transf")
GRADIENTS_OF = ("canary2", "canary_unified", "canary_transf")  # `canary` has the parts of `canary2`
SETTINGS = {  # use_loss_mask_for_prompt, label_smoothing
    "text": (True, 0.0),
    "prompt and text": (False, 0.0),
    "smoothed": (True, 0.1),
}
# Of the three recordings in a batch; the models write German for translations, and have no capitals without pnc.
REQUESTS = (("en", "en", "yes"), ("en", "de", "yes"), ("en", "en", "no"))  # from, to, with punctuation
WORDS = 4  # of each text, because one of the models has 40 positions only
DIGITS = 5


def probe(num_elements: int) -> torch.Tensor:
    return torch.cos(0.7 * torch.arange(num_elements, dtype=torch.float64))


def load(path: Path) -> Any:
    model = EncDecMultiTaskModel.restore_from(str(path), map_location="cpu").double().train()
    model.preprocessor.featurizer.dither, model.preprocessor.featurizer.pad_to = 0.0, 0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def tokens_of(model: Any, text: str, request: tuple[str, str, str]) -> tuple[list[int], int]:
    """Return the tokens of a row, and the length of its prompt."""
    source, target, pnc = request
    if model.prompt_format == "canary":
        slots = canary.canary_slots(target, "asr" if source == target else "ast", pnc)
    else:
        slots = canary.canary2_slots(target, pnc)
    answer = {"text": text, model.prompt.PROMPT_LANGUAGE_SLOT: target}
    turns = [{"role": "user", "slots": slots}, {"role": "assistant", "slots": answer}]
    encoded = model.prompt.encode_dialog(turns)
    return encoded["input_ids"].tolist(), len(encoded["context_ids"])


def padded(rows: list[Any], value: float) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = [torch.as_tensor(row) for row in rows]
    lengths_B = torch.tensor([len(row) for row in tensors])
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value), lengths_B


def batch_of(model: Any, waves: list[Any], rows: list[tuple[list[int], int]]) -> PromptedAudioToTextMiniBatch:
    audio, audio_lens = padded(waves, 0.0)
    tokens, token_lens = padded([row for row, _ in rows], model.tokenizer.pad_id)
    prompt_lens = torch.tensor([length for _, length in rows])
    return PromptedAudioToTextMiniBatch(
        audio=audio,
        audio_lens=audio_lens,
        transcript=tokens,
        transcript_lens=token_lens,
        prompt=tokens,
        prompt_lens=prompt_lens,
        prompted_transcript=tokens,
        prompted_transcript_lens=token_lens,
    )


def loss_of(model: Any, batch: PromptedAudioToTextMiniBatch, has_mask: bool, smoothing: float) -> torch.Tensor:
    """As EncDecMultiTaskModel.training_step, whose other half needs a trainer."""
    inputs, labels = batch.get_decoder_inputs_outputs()
    lengths_B = batch.prompted_transcript_lens - 1
    log_probs, *_ = model.forward(
        input_signal=batch.audio,
        input_signal_length=batch.audio_lens,
        transcript=inputs,
        transcript_length=lengths_B,
    )
    mask = None
    if has_mask:
        mask = lens_to_mask(lengths_B, inputs.shape[1]) & ~lens_to_mask(batch.prompt_lens - 1, inputs.shape[1])
    loss = SmoothedCrossEntropyLoss(pad_id=model.tokenizer.pad_id, label_smoothing=smoothing)
    value: torch.Tensor = loss(log_probs=log_probs, labels=labels, output_mask=mask)
    return value


def gradients(model: Any) -> dict[str, list[float]]:
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            gradient = parameter.grad.double().flatten()
            numbers = (gradient.norm(), gradient @ probe(len(gradient)))
            found[name] = [float(f"{float(number):.{DIGITS}g}") for number in numbers]
    return found


def make(folder: Path, rows: list[dict[str, Any]], audio_dir: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model = load(folder / "model.nemo")
    waves = [torch.from_numpy(sf.read(audio_dir / row["audio_filepath"], dtype="float32")[0]) for row in rows]
    tokens = [tokens_of(model, row["text"], request) for row, request in zip(rows, REQUESTS, strict=True)]
    batch, losses = batch_of(model, waves, tokens), {}
    for name, (has_mask, smoothing) in SETTINGS.items():
        model.zero_grad(set_to_none=True)
        loss = loss_of(model, batch, has_mask, smoothing)
        loss.backward()
        losses[name] = {"loss": round(float(loss), 6)}
        if name == "text" and folder.name in GRADIENTS_OF:
            losses[name]["gradients"] = gradients(model)
    recordings = [
        {"audio_filepath": row["audio_filepath"], "text": row["text"], "tokens": ids, "num_prompt": num_prompt}
        for row, (ids, num_prompt) in zip(rows, tokens, strict=True)
    ]
    return {"recordings": recordings, "losses": losses}


def main(out: Path, models: Path, manifest: Path) -> None:
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row.get("text")][: len(REQUESTS)]
    rows = [{**row, "text": " ".join(row["text"].split()[:WORDS])} for row in rows]
    document: dict[str, Any] = {"made_with": common.versions(), "requests": REQUESTS}
    document["models"] = {name: make(models / name, rows, manifest.parent) for name in NAMES}
    common.write_json(out, document)
