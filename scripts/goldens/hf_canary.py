"""Make a small Canary folder with transformers and record the results of `generate`.

    python -m scripts.goldens hf_canary OUT_DIR MANIFEST AUDIO_DIR     # with transformers and sentencepiece

Writes OUT_DIR as CanaryForConditionalGeneration and CanaryProcessor save themselves (weights in float16), and golden.json:
the prompt's ids, and for each 16 kHz mono file of AUDIO_DIR the encoder's frames, the ids between the prompt and the end
token, the tokenizer's text of them, and the smallest margin between the two likeliest tokens.

Settings: CPU, float32 (of the stored float16), greedy, one file at a time, as many tokens as there are positions. The model
is trained on the beginnings of MANIFEST's sentences until it knows them; seeds are tried until all margins are large enough.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import soundfile as sf
import torch
import transformers
from transformers import (
    CanaryConfig,
    CanaryForConditionalGeneration,
    CanaryProcessor,
    ParakeetFeatureExtractor,
    TokenizersBackend,
)
from transformers.convert_slow_tokenizer import CanaryConverter

MAX_TOKENS, VOCABULARY, WIDTH, MELS = 48, 136, 32, 64
STEPS, WORDS = 400, 7
MIN_MARGIN = 2e-3  # between the two likeliest tokens' logits
# The first of canary-1b-v2's, in its order: these are the ids that CanaryConfig has as defaults.
CONTROLS = (
    *("<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>", "<|startofcontext|>"),
    *("<|itn|>", "<|noitn|>", "<|timestamp|>", "<|notimestamp|>", "<|diarize|>", "<|nodiarize|>"),
    *("<|spkchange|>", "<|audioseparator|>", "<|emo:undefined|>", "<|en|>", "<|de|>", "<|es|>", "<|fr|>"),
)
DIGITS = tuple("0123456789")
PROMPT = (
    "<|startofcontext|><|startoftranscript|><|emo:undefined|><|en|><|en|><|pnc|><|noitn|><|notimestamp|><|nodiarize|>"
)
# For a vocabulary of English pieces; nothing else comes of it.
TEXT = """\
Most mornings the baker opens before the street is awake, and the first people at the counter are the drivers.
She knows what each of them wants. Two rolls, a coffee without sugar, and please, no receipt!
When the snow came late that year, the valley stayed white until May, and the cows were kept inside.
Nobody in the office could remember who had ordered the second piano. It stood in the hall for a week.
Why do you count the steps, he asked, when the number is always the same? Because one day it may not be.
The old map shows a lake here, a mill by the river, and a road that no longer leads anywhere.
They repaired the radio with a spoon, some wire and a great deal of patience; it has worked ever since.
"""


def make_processor() -> CanaryProcessor:
    """Return a processor with a SentencePiece model, converted like that of the published checkpoint."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=trained, model_type="bpe", vocab_size=VOCABULARY,
        user_defined_symbols=[*CONTROLS, *DIGITS], unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1,
        normalization_rule_name="identity", num_threads=1, minloglevel=2,
    )  # fmt: skip
    with tempfile.NamedTemporaryFile(suffix=".model") as model:
        model.write(trained.getvalue())
        model.flush()
        converted = CanaryConverter(model.name).converted()
    names = {"bos": "<|startoftranscript|>", "eos": "<|endoftext|>", "pad": "<pad>", "unk": "<unk>"}
    tokenizer = TokenizersBackend(
        tokenizer_object=converted,
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": piece for name, piece in names.items()},
    )
    return CanaryProcessor(feature_extractor=ParakeetFeatureExtractor(feature_size=MELS), tokenizer=tokenizer)


def config() -> CanaryConfig:
    encoder = {
        "model_type": "parakeet_encoder", "num_hidden_layers": 2, "hidden_size": WIDTH, "num_attention_heads": 4,
        "intermediate_size": 2 * WIDTH, "num_mel_bins": MELS, "subsampling_conv_channels": 16, "scale_input": False,
    }  # fmt: skip
    decoder = {
        "num_hidden_layers": 2, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": WIDTH // 4, "max_position_embeddings": MAX_TOKENS,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    return CanaryConfig(encoder_config=encoder, decoder_config=decoder, vocab_size=VOCABULARY)


@torch.no_grad()
def randomise(model: CanaryForConditionalGeneration, seed: int) -> None:
    """Draw random weights that keep their layers' scale, with norms and biases that matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("num_batches_tracked"):
            continue
        if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
            tensor.copy_(1 + 0.3 * noise.clamp(-2, 2))
        elif tensor.dim() == 1 or "bias_" in name:
            tensor.copy_(0.2 * noise)
        elif name.endswith("embed_tokens.weight"):
            tensor.copy_(0.3 * noise)
        elif not name.endswith("proj_out.weight"):  # which is the embedding's
            tensor.copy_(noise / math.sqrt(math.prod(tensor.shape[1:])))


def train(
    model: CanaryForConditionalGeneration,
    processor: CanaryProcessor,
    audio: dict[str, np.ndarray],
    sentences: dict[str, str],
) -> None:
    """Train the model on the beginnings of the sentences; with random weights it gives the same text for every file."""
    names = [name for name in audio if name in sentences]
    inputs = processor.feature_extractor([audio[name] for name in names], sampling_rate=16000, return_tensors="pt")
    texts = [PROMPT + " ".join(sentences[name].split()[:WORDS]) + "<|endoftext|>" for name in names]
    ids_BN = processor.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")["input_ids"]
    labels_BN = ids_BN[:, 1:].masked_fill(ids_BN[:, 1:] == processor.tokenizer.pad_token_id, -100)
    labels_BN[:, : PROMPT.count("|>") - 1] = -100  # no loss for the prompt
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, STEPS, pct_start=0.1)
    for step in range(STEPS):
        loss = model(**inputs, decoder_input_ids=ids_BN[:, :-1], labels=labels_BN).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def clips(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for path in sorted(folder.iterdir()):
        samples, rate = sf.read(path, dtype="float32")
        if rate == 16000 and samples.ndim == 1:
            found[path.name] = samples
    return found


def short_sentences(manifest: Path) -> dict[str, str]:
    """Return the short sentences by file name."""
    entries = map(json.loads, manifest.read_text(encoding="utf-8").splitlines())
    short = [entry for entry in entries if entry["text"] and entry["duration"] < 10]
    return {Path(entry["audio_filepath"]).name: entry["text"] for entry in short}


@torch.no_grad()
def golden(
    model: CanaryForConditionalGeneration, processor: CanaryProcessor, prompt: list[int], samples: np.ndarray
) -> dict[str, Any]:
    inputs = processor(audio=samples, sampling_rate=16000)
    encoded = model.model.encoder(inputs["input_features"], attention_mask=inputs["attention_mask"])
    generated = model.generate(
        **inputs,
        decoder_input_ids=torch.tensor([prompt]),
        do_sample=False,
        num_beams=1,
        max_length=MAX_TOKENS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids = generated.sequences[0, len(prompt) :].tolist()
    end = processor.tokenizer.eos_token_id
    best_N2 = torch.cat(generated.logits).topk(2).values
    ids = ids[: ids.index(end)] if end in ids else ids
    return {
        "encoder_frames": int(encoded.attention_mask.sum()),
        "ids": ids,
        "text": processor.tokenizer.decode(ids, skip_special_tokens=True),
        "margin": round(float((best_N2[:, 0] - best_N2[:, 1]).min()), 4),
    }


def is_worth_keeping(files: dict[str, dict[str, Any]]) -> bool:
    answers = [tuple(entry["ids"]) for entry in files.values()]
    lengths = sorted(map(len, answers))
    cut = sum(length == MAX_TOKENS - PROMPT.count("|>") for length in lengths)
    margin = min(entry["margin"] for entry in files.values())
    print(f"lengths {lengths}, {len(set(answers))} different, {cut} cut, margin {margin}", flush=True)
    return len(set(answers)) >= 0.8 * len(answers) and 0 < cut < 0.4 * len(answers) and margin >= MIN_MARGIN


def main(out: Path, manifest: Path, audio_dir: Path) -> None:
    processor, audio = make_processor(), clips(audio_dir)
    sentences = short_sentences(manifest)
    prompt = processor.tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    for seed in range(20):
        model = CanaryForConditionalGeneration(config()).eval()
        randomise(model, seed)
        train(model, processor, audio, sentences)
        model.half().save_pretrained(out)
        model = CanaryForConditionalGeneration.from_pretrained(out, dtype=torch.float32).eval()
        files = {name: golden(model, processor, prompt, samples) for name, samples in audio.items()}
        print(f"seed {seed}: ", end="")
        if is_worth_keeping(files):
            break
    else:
        raise SystemExit("no seed made a model worth keeping")
    processor.save_pretrained(out)
    note = "batch 1, CPU, float32 of the stored float16; only files that are 16 kHz mono; ids after the prompt, up to the end"
    document = {"transformers": transformers.__version__, "note": note, "seed": seed, "prompt": prompt, "files": files}
    (out / "golden.json").write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
