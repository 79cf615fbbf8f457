"""What the makers of goldens share: small NeMo models with random weights, what NeMo makes of recordings, and their files.

The models are not trained: norms, biases and embeddings are random so that every one of them matters, and the blank's bias is
bisected until a realistic share of frames emits labels. Needs nemo_toolkit[asr].

Settings: CPU, float32, eval, batch 1, no dither, greedy_batch, compute_timestamps; audio at 16 kHz, channels averaged.
A file is `fragile` if relative noise of 1e-5 on the encoder output changes its tokens: compare those with care.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import nemo
import numpy as np
import torch
from nemo.collections.asr.parts.preprocessing.segment import AudioSegment
from nemo.collections.common.tokenizers.sentencepiece_tokenizer import create_spt_model
from omegaconf import DictConfig, open_dict
from sentencepiece import sentencepiece_model_pb2

Decoded = tuple[list[int], list[int]]  # tokens and the frames they start at

LETTERS = tuple(" abcdefghijklmnopqrstuvwxyz'")
PUNCTUATED = (*LETTERS, ".", ",", "?")
TENSORS_OF = ("e02_0p3s.flac", "e04_odd_len_20479.flac")  # the recordings of which some goldens have tensors


@dataclass(frozen=True)
class Spec:
    """A model. `vocabulary` is a SentencePiece size or the characters themselves."""

    name: str
    vocabulary: int | tuple[str, ...]
    has_transducer: bool = True
    has_ctc: bool = False
    durations: tuple[int, ...] = ()
    history: float = 1.0  # how much the predictor sways the joint, the encoder being 1
    rate: float = 0.3  # labels per encoder frame to aim for
    mels: int = 80
    window_size: float = 0.025
    window: str = "hann"
    normalize: str = "per_feature"
    d_model: int = 64
    heads: int = 4
    layers: int = 2
    ff_factor: int = 4
    kernel: int = 9
    conv_norm: str = "batch_norm"
    use_bias: bool = True
    xscaling: bool = False
    subsampling: str = "dw_striding"
    factor: int = 8
    channels: int = 32


# Any English does: the tokenizers only need words, capitals and punctuation.
TEXT = """\
The harbour lay quiet before sunrise, and only the ferry's lamp moved across the water. Who would sail on such a
morning? Marta counted the crates twice; there were forty-one, not forty, and nobody could say where the last had come
from. "Write it down," said the captain, "and let the office worry about numbers." She didn't argue, for the tide was
turning. By noon the wind had risen to a steady breeze. Gulls followed them past the lighthouse, the old fort and the
sandbanks. Her brother kept a small workshop behind the market, repairing clocks, radios, kettles and whatever else
people carried in. He spoke little, worked slowly and charged less than he ought to; everything that left his bench
ran for years. What do you do with an engine that starts only on Thursdays? You listen, he used to answer, until it
tells you why. In autumn the river flooded the lower fields again. Farmers moved their cattle uphill, children rowed
to school, and the bridge was closed for eleven days. The newspaper printed a photograph of a piano floating beneath
the church windows. It's easier to describe a storm than a calm, the teacher explained: quick verbs help, but patience
helps more. Students wrote about thunder, broken branches, sudden darkness, bright kitchens, wet dogs and borrowed
umbrellas. Some years later a museum was opened in the former customs house. Its collection includes maps, uniforms,
letters, coins, measuring instruments and the wooden model of a ship that was never built. Visitors may touch nothing
except the bell. Why the bell? Because the founder believed that every child should once be allowed to wake a whole
street. The train from the north arrives at six twenty-five, usually late. Passengers stretch, fold their coats,
search for tickets and step into a square full of chestnut trees. On Fridays there's music; on Sundays, only pigeons
and the smell of bread. If the weather holds, we'll walk along the ridge as far as the chapel, eat our sandwiches
there, and return through the vineyards before dark. Bring water, a warm jacket and good shoes, please. Questions? Ask
at the desk or telephone ahead.
"""


# --- building -------------------------------------------------------------------------------------------------------


def as_measured(model: Any) -> Any:
    """Return the model without dropout, dither and padding, ready for transcribe()."""
    with open_dict(model.cfg):
        model.cfg.validation_ds = {"use_start_end_token": False}  # transcribe() reads it
    model.preprocessor.featurizer.dither, model.preprocessor.featurizer.pad_to = 0.0, 0
    return model.eval()


def ctc_config(spec: Spec, encoder: dict[str, Any], width: int, **settings: Any) -> dict[str, Any]:
    """Return the config of a CTC model that writes characters; `width` is that of the encoder's frames."""
    labels = list(spec.vocabulary)  # type: ignore[arg-type]
    decoder = {"_target_": "nemo.collections.asr.modules.ConvASRDecoder", "feat_in": width, "vocabulary": labels}
    return {
        "sample_rate": 16000,
        "labels": labels,
        "train_ds": None,
        "validation_ds": None,
        "test_ds": None,
        "preprocessor": preprocessor_config(spec),
        "encoder": encoder,
        "decoder": decoder | {"num_classes": len(labels)},
        **settings,
    }


def preprocessor_config(spec: Spec) -> dict[str, Any]:
    return {
        "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
        "sample_rate": 16000,
        "normalize": spec.normalize,
        "window_size": spec.window_size,
        "window_stride": 0.01,
        "window": spec.window,
        "features": spec.mels,
        "n_fft": 512,
        "log": True,
        "frame_splicing": 1,
        "dither": 1e-5,
        "pad_to": 0,
        "pad_value": 0.0,
    }


def encoder_config(spec: Spec) -> dict[str, Any]:
    return {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder",
        "feat_in": spec.mels,
        "feat_out": -1,
        "n_layers": spec.layers,
        "d_model": spec.d_model,
        "use_bias": spec.use_bias,
        "subsampling": spec.subsampling,
        "subsampling_factor": spec.factor,
        "subsampling_conv_channels": spec.channels,
        "ff_expansion_factor": spec.ff_factor,
        "self_attention_model": "rel_pos",
        "n_heads": spec.heads,
        "att_context_size": [-1, -1],
        "xscaling": spec.xscaling,
        "untie_biases": True,
        "pos_emb_max_len": 5000,
        "conv_kernel_size": spec.kernel,
        "conv_norm_type": spec.conv_norm,
        "dropout": 0.1,
        "dropout_emb": 0.0,
        "dropout_att": 0.1,
    }


def write_tokenizer(folder: Path, text: str, pieces: int, symbols: Sequence[str] = ()) -> str:
    """Write a folder in the form of NeMo's `tokenizer.dir`. `symbols` come before the pieces.

    It lacks 240 kB of Unicode rules, which these texts do not need.
    """
    file = folder.with_suffix(".txt")
    file.write_text(text)
    create_spt_model(
        str(file),
        vocab_size=pieces + len(symbols),
        sample_size=-1,
        do_lower_case=False,
        tokenizer_type="bpe",
        output_dir=str(folder),
        user_defined_symbols=list(symbols) or None,
    )
    drop_normaliser(folder)
    return str(folder)


def drop_normaliser(folder: Path) -> None:
    file = folder / "tokenizer.model"
    model = sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())  # type: ignore[attr-defined]
    model.normalizer_spec.name, model.normalizer_spec.precompiled_charsmap = "identity", b""
    file.write_bytes(model.SerializeToString())


@torch.no_grad()
def randomise(model: Any, spec: Spec) -> None:
    """Give every parameter that initialises to 0 or 1 a value that reveals a mix-up or an omission."""
    for module in model.encoder.modules():
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.BatchNorm1d)):
            module.weight.normal_(1.0, 0.3)
            module.bias.normal_(0.0, 0.2)
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_(0.0, 0.3)
            module.running_var.uniform_(0.3, 2.0)
    for name, parameter in model.encoder.named_parameters():
        if name.endswith(("pos_bias_u", "pos_bias_v")):
            parameter.normal_(0.0, 0.5)
    if not spec.has_transducer:
        return
    embedding = model.decoder.prediction["embed"].weight
    embedding.normal_()
    embedding[-1].zero_()
    for name, parameter in model.decoder.prediction["dec_rnn"].lstm.named_parameters():
        parameter.mul_(1.5)
        if "bias" in name:
            parameter.add_(torch.randn_like(parameter) * 0.2)


# --- making it speak ------------------------------------------------------------------------------------------------


@torch.no_grad()
def tune(model: Any, spec: Spec, encoded: Sequence[torch.Tensor]) -> None:
    """Draw each head's weights until they give many different labels, at about `spec.rate` labels per frame.

    `encoded` is each file's encoder output [1, D, T].
    """
    together_BDT = torch.cat(list(encoded), dim=2)
    wanted = spec.rate * together_BDT.shape[2]
    if spec.has_transducer:
        blank = model.joint.num_classes_with_blank - 1 - len(spec.durations)
        output = model.joint.joint_net[-1]

        def decode_transducer(encoded_BDT: torch.Tensor) -> Decoded:
            length_B = torch.tensor([encoded_BDT.shape[2]])
            found = model.decoding.rnnt_decoder_predictions_tensor(encoded_BDT, length_B, return_hypotheses=True)[0]
            return torch.as_tensor(found.y_sequence).tolist(), torch.as_tensor(found.timestamp).tolist()

        parameters = [*output.parameters(), *model.joint.enc.parameters(), *model.joint.pred.parameters()]
        draw = partial(draw_transducer, model, together_BDT, blank, spec.history)
        decode_all = lambda: [decode_transducer(encoded_BDT) for encoded_BDT in encoded]  # noqa: E731
        tune_head(parameters, draw, partial(bisect, output.bias, blank, wanted), decode_all, wanted)
    if spec.has_ctc:
        head = ctc_head(model, spec)
        layer, blank = head.decoder_layers[0], head.num_classes_with_blank - 1
        draw = partial(draw_ctc, layer, together_BDT, head.vocabulary)
        decode_all = lambda: [collapse(head(encoder_output=e)[0].argmax(-1).tolist(), blank) for e in encoded]  # noqa: E731
        tune_head(list(layer.parameters()), draw, partial(bisect, layer.bias, blank, wanted), decode_all, wanted)


def tune_head(
    parameters: Sequence[torch.Tensor],
    draw: Callable[[], None],
    set_blank: Callable[[Callable[[], int]], None],
    decode: Callable[[], list[Decoded]],
    wanted: float,
) -> None:
    best, best_score = [], -1.0
    for _ in range(12):
        draw()
        set_blank(lambda: sum(len(tokens) for tokens, _ in decode()))
        found = decode()
        tokens = [token for tokens, _ in found for token in tokens]
        gaps = {after - before for _, frames in found for before, after in pairwise(frames)}
        score = len(set(tokens)) * len(gaps) ** 0.5 / (1 + 20 * (len(tokens) / wanted - 1) ** 2)
        if score > best_score:
            best, best_score = [parameter.clone() for parameter in parameters], score
    for parameter, value in zip(parameters, best, strict=True):
        parameter.copy_(value)


def bisect(bias_V: torch.Tensor, index: int, wanted: float, count: Callable[[], int]) -> None:
    """Bisect the blank's bias. The count falls, almost always, as the bias rises; the best bias is kept."""
    low, high, best = -15.0, 15.0, (float("inf"), 0.0)
    for _ in range(10):
        bias_V[index] = middle = (low + high) / 2
        found = count()
        best = min(best, (abs(found - wanted), middle))
        low, high = (middle, high) if found > wanted else (low, middle)
    bias_V[index] = best[1]


def draw_transducer(model: Any, encoded_BDT: torch.Tensor, blank: int, history: float) -> None:
    """Centre joint inputs and outputs over frames and histories, so that no label or duration always wins."""
    joint, output = model.joint, model.joint.joint_net[-1]
    predicted_BUH, _ = model.decoder.predict(torch.randint(blank, (1, 40)), None, add_sos=True)
    encoded_BTD = encoded_BDT.transpose(1, 2)
    for layer, inputs, size in ((joint.enc, encoded_BTD, 1.0), (joint.pred, predicted_BUH, history)):
        layer.weight.normal_()
        layer.weight.mul_(size / layer(inputs).std((0, 1)).mean())
        layer.bias.normal_(0.0, 0.3).sub_(layer(inputs).mean((0, 1)))
    output.weight.normal_(0.0, 3.0 / output.weight.shape[1] ** 0.5)
    output.bias.zero_()
    logits_BTUV = joint.joint_net(joint.enc(encoded_BTD)[:, :, None] + joint.pred(predicted_BUH)[:, None])
    centre(output.bias, logits_BTUV, joint.vocabulary)


def draw_ctc(layer: torch.nn.Conv1d, encoded_BDT: torch.Tensor, vocabulary: Sequence[str]) -> None:
    layer.weight.normal_(0.0, 2.0 / layer.weight.shape[1] ** 0.5)
    layer.bias.zero_()
    centre(layer.bias, layer(encoded_BDT).transpose(1, 2), vocabulary)


def centre(bias_V: torch.Tensor, logits: torch.Tensor, vocabulary: Sequence[str]) -> None:
    """Subtract the mean of each output, and favour spaces and full stops, for words and segments."""
    logits_NV = logits.flatten(0, -2)
    bias_V.sub_(logits_NV.mean(0))
    spread = logits_NV.std(0).mean()
    for index, piece in enumerate(vocabulary):
        if piece in (" ", ".", ".)"):
            bias_V[index] += spread


def ctc_head(model: Any, spec: Spec) -> Any:
    return model.ctc_decoder if spec.has_transducer else model.decoder


def learn(
    parameters: Sequence[torch.Tensor],
    steps: int,
    rate: float,
    warmup: float,
    loss_of_batch: Callable[[], torch.Tensor],
) -> None:
    """Train by AdamW over one cycle of learning rates up to `rate`, which rise for a share `warmup` of the steps."""
    optimiser = torch.optim.AdamW(parameters, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=warmup)
    for step in range(steps):
        loss = loss_of_batch()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"  step {step}: loss {float(loss.detach()):.3f}", flush=True)


def spoken(audio: Sequence[Path], manifest: Path) -> list[tuple[np.ndarray, str]]:
    """Return the recordings of which the manifest has a text, with it."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    texts = {Path(row["audio_filepath"]).name: row["text"] for row in rows}
    return [(read(path), texts[path.name]) for path in audio if texts.get(path.name)]


# --- goldens --------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def encode(
    model: Any, samples: np.ndarray, language: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """samples [S] -> features [1, M, T], their length, encoder output [1, D, T'], its length.

    The language is for models that are told one.
    """
    signal_BS, length_B = torch.from_numpy(samples)[None], torch.tensor([len(samples)])
    mel_BMT, mel_length_B = model.preprocessor(input_signal=signal_BS, length=length_B)
    encoded_BDT, encoded_length_B = encode_features(model, mel_BMT, mel_length_B, language)
    return mel_BMT, mel_length_B, encoded_BDT, encoded_length_B


@torch.inference_mode()
def encode_features(
    model: Any, mel_BMT: torch.Tensor, length_B: torch.Tensor, language: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """features [B, M, T] and lengths -> encoder output [B, D, T'] and lengths."""
    if not hasattr(model, "prompt_kernel"):
        return model.encoder(audio_signal=mel_BMT, length=length_B)
    index_B = torch.full_like(length_B, model.cfg.model_defaults.prompt_dictionary[language])
    return model(processed_signal=mel_BMT, processed_signal_length=length_B, prompt_indices=index_B)


def with_timestamps(model: Any, spec: Spec) -> None:
    config: DictConfig = model.cfg.decoding
    with open_dict(config):
        config.compute_timestamps = True
    model.change_decoding_strategy(config, verbose=False)
    if spec.durations and not isinstance(spec.vocabulary, int):
        # NeMo 3.0 takes the durations off a character vocabulary a second time when it writes text: as many labels of
        # its end vanish from the text, and asking for their timestamps is an IndexError. The goldens have whole texts.
        model.decoding.num_extra_outputs = 0
    if spec.has_transducer and spec.has_ctc:
        ctc = model.cfg.aux_ctc.decoding
        with open_dict(ctc):
            ctc.compute_timestamps = True
        model.change_decoding_strategy(ctc, decoder_type="ctc", verbose=False)


def golden(model: Any, spec: Spec, encoded_BDT: torch.Tensor, length_B: torch.Tensor) -> dict[str, Any]:
    heads: list[dict[str, Any]] = []
    if spec.has_transducer:
        (hypothesis,) = model.decoding.rnnt_decoder_predictions_tensor(encoded_BDT, length_B, return_hypotheses=True)
        heads.append(transducer_golden(hypothesis, spec))
    if spec.has_ctc:
        head = ctc_head(model, spec)
        decoding = model.ctc_decoding if spec.has_transducer else model.decoding
        found, hypothesis = ctc_golden(head, decoding, encoded_BDT, int(length_B))
        heads.append(found | text_golden(hypothesis))
    return heads[0] | ({"ctc": heads[1]} if len(heads) == 2 else {})


def ctc_golden(head: Any, decoding: Any, encoded_BDT: torch.Tensor, length: int) -> tuple[dict[str, Any], Any]:
    """Return the tokens of a CTC head, the frames they begin at and each frame's label; and NeMo's hypothesis."""
    logprobs_BTV = head(encoder_output=encoded_BDT)
    labels = logprobs_BTV[0, :length].argmax(-1).tolist()
    tokens, frames = collapse(labels, head.num_classes_with_blank - 1)
    found = decoding.ctc_decoder_predictions_tensor(logprobs_BTV, torch.tensor([length]), return_hypotheses=True)
    return {"tokens": tokens, "token_frames": frames, "argmax": labels}, found[0]


def transducer_golden(hypothesis: Any, spec: Spec) -> dict[str, Any]:
    found = {
        "tokens": torch.as_tensor(hypothesis.y_sequence).tolist(),
        "token_frames": torch.as_tensor(hypothesis.timestamp["timestep"]).tolist(),
    }
    if spec.durations:
        found["token_durations"] = torch.as_tensor(hypothesis.token_duration).tolist()
    return found | text_golden(hypothesis)


def text_golden(hypothesis: Any) -> dict[str, Any]:
    def plain(kind: str) -> list[dict[str, Any]]:
        keys = (kind, "start_offset", "end_offset")
        rows = ({key: row[key] for key in keys} for row in hypothesis.timestamp[kind])
        return [{key: value if isinstance(value, str) else int(value) for key, value in row.items()} for row in rows]

    return {"text": hypothesis.text, "word": plain("word"), "segment": plain("segment")}


def collapse(labels: Sequence[int], blank: int) -> Decoded:
    """Return the tokens of a CTC head's labels per frame, and the frames at which they begin."""
    previous = [blank, *labels]
    onsets = [t for t, label in enumerate(labels) if label not in (blank, previous[t])]
    return [labels[t] for t in onsets], onsets


def is_fragile(
    model: Any, spec: Spec, encoded_BDT: torch.Tensor, length_B: torch.Tensor, found: dict[str, Any]
) -> bool:
    def decisions(golden: dict[str, Any]) -> list[Any]:
        keys = ("tokens", "token_frames", "token_durations")
        return [part.get(key) for part in (golden, golden.get("ctc", {})) for key in keys]

    for seed in range(3):
        noise = torch.randn(encoded_BDT.shape, generator=torch.Generator().manual_seed(seed))
        if decisions(golden(model, spec, encoded_BDT * (1 + 1e-5 * noise), length_B)) != decisions(found):
            return True
    return False


@torch.inference_mode()
def encode_together(model: Any, waves: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the encoder output [B, D, T'] of a batch of recordings, and its lengths."""
    lengths_B = torch.tensor([len(wave) for wave in waves])
    samples_BS = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(wave) for wave in waves], batch_first=True)
    return encode_features(model, *model.preprocessor(input_signal=samples_BS, length=lengths_B))


def check_transcribe(model: Any, samples: np.ndarray, text: str) -> None:
    """Check that `transcribe()` writes this text; it pads what is shorter than a second."""
    if len(samples) >= 16000:
        (transcribed,) = model.transcribe([samples], batch_size=1, verbose=False)
        assert transcribed.text == text, (transcribed.text, text)
        model.eval()  # transcribe() leaves the encoder in training mode


def save_compressed(model: Any, path: Path) -> None:
    """Write an archive in gzip: half of a model this small is its mel filters, mostly zeros."""
    model.save_to(str(path))
    path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def read(path: Path) -> np.ndarray:
    return AudioSegment.from_file(str(path), target_sr=16000, channel_selector="average").samples.astype(np.float32)


def versions() -> str:
    return f"nemo_toolkit {nemo.__version__}, torch {torch.__version__}"


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def write_golden(folder: Path, name: str, model: Any, files: dict[str, Any], **facts: Any) -> None:
    """Write golden.json, and say how many of the files are fragile."""
    parameters = sum(p.numel() for p in model.parameters())
    about = {"name": name, "class": type(model).__name__, "made_with": versions(), "num_parameters": parameters}
    write_json(folder / "golden.json", about | facts | {"files": files})
    fragile = sum(found["fragile"] for found in files.values())
    print(f"{name}: {parameters / 1e3:.0f} k parameters, {fragile} of {len(files)} files fragile", flush=True)
