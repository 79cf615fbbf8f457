"""Training of attention decoders: losses and gradients are NeMo's, and runs learn, resume and write models that transcribe."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastscribe import Options, Transcriber
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.names import from_nemo
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.checkpoint.value import with_aligner
from fastscribe.errors import FastscribeError, UsageError
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.canary import nemo
from fastscribe.families.model import Model, build_model
from fastscribe.training import validation
from fastscribe.training.batch_search import fits
from fastscribe.training.buckets import Bucket
from fastscribe.training.corpus import Example, Request
from fastscribe.training.data import check_trainable, prepare
from fastscribe.training.learner import targets_of
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.network import Network, new_model, prepare_weights_
from fastscribe.training.prompts import PromptedEncoder, PromptReader
from fastscribe.training.recipe import Recipe, parse_recipe
from fastscribe.training.state import RunFolder
from fastscribe.types import Features
from tests.conftest import AUDIO, DATA, MODELS, checkpoint, waveform
from tests.training.test_trainer import STILL, trainer_of

CPU = torch.device("cpu")
GOLDEN = json.loads((DATA / "canary_training.json").read_text(encoding="utf-8"))
SETTINGS = {
    "text": (False, 0.0),
    "prompt and text": (True, 0.0),
    "smoothed": (False, 0.1),
}  # loss.prompt, label_smoothing
NAMES = tuple(GOLDEN["models"])


def in_training(name: str) -> Model:
    known = checkpoint(MODELS / name)
    weights = {name: tensor.clone() for name, tensor in known.weights.items()}
    model = build_model(known.config, weights, name).train().requires_grad_(True)
    assert model.aed is not None
    prepare_weights_(model.aed)
    return model


@cache
def features(name: str) -> Features:
    """The golden's three recordings."""
    waves = [waveform(DATA / row["audio_filepath"]) for row in GOLDEN["models"][name]["recordings"]]
    samples_BS = torch.zeros(len(waves), max(map(len, waves)))
    for row_S, wave_S in zip(samples_BS, waves, strict=True):
        row_S[: len(wave_S)] = torch.from_numpy(wave_S / 32768 if wave_S.dtype == np.int16 else wave_S)
    found = LogMel(checkpoint(MODELS / name).config.features)(
        samples_BS, torch.tensor([len(wave_S) for wave_S in waves])
    )
    return Features(found.mel_BMT.clone(), found.lengths_B.clone())


def network_of(model: Model, setting: str, num_prompt: int, dropout: float = 0.0) -> Network:
    learns_prompt, smoothing = SETTINGS[setting]
    return Network(model, TransducerLossConfig(), 0.3, dropout, 1 if learns_prompt else num_prompt, smoothing)


def loss_of(name: str, setting: str, model: Model) -> torch.Tensor:
    rows = GOLDEN["models"][name]["recordings"]
    network = network_of(model, setting, rows[0]["num_prompt"])
    loss: torch.Tensor = network(features(name), targets_of([row["tokens"] for row in rows], CPU), 1.0)["loss"]
    return loss


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_nemos(name: str) -> None:
    known = checkpoint(MODELS / name)
    read, encode = PromptReader.of(known, None), PromptedEncoder(known)
    for row, (source, target, pnc) in zip(GOLDEN["models"][name]["recordings"], GOLDEN["requests"], strict=True):
        request = read({"source_lang": source, "target_lang": target, "pnc": pnc, "text": row["text"]})
        assert list(encode(row["text"], request) or ()) == row["tokens"]
        assert encode.num_prompt == row["num_prompt"]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_nemos(name: str, setting: str) -> None:
    wanted = GOLDEN["models"][name]["losses"][setting]["loss"]
    assert loss_of(name, setting, in_training(name)).item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if "gradients" in GOLDEN["models"][name]["losses"]["text"]])
def test_gradients_are_nemos(name: str) -> None:
    """In float64, as the golden: in float32, rounding errors reach a thousandth of some gradients."""
    model = in_training(name).double()
    loss_of(name, "text", model).backward()
    stored = GOLDEN["models"][name]["losses"]["text"]["gradients"]
    nothing: Any = TensorSource("float32", (1, 1, 1), lambda: torch.zeros(1, 1, 1))
    wanted = {
        next(iter(from_nemo({old: nothing}, model.config.encoder, nemo.NAMES))): numbers
        for old, numbers in stored.items()
    }
    found = {}
    for new, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            gradient = parameter.grad.double().flatten()
            probe = torch.cos(0.7 * torch.arange(len(gradient), dtype=torch.float64))
            found[new] = [float(gradient.norm()), float(gradient @ probe)]
    assert found.keys() == wanted.keys()
    largest = max(norm for norm, _ in wanted.values())
    for new, numbers in wanted.items():
        # A bias before BatchNorm has a gradient of nothing but rounding errors.
        assert found[new] == pytest.approx(numbers, rel=3e-4, abs=1e-6 * largest), new


def test_rows_of_a_batch_add_up() -> None:
    """Padding changes nothing, and the prompt does not count: out-of-memory halves and several batches a step rely on it."""
    model = in_training("canary2")
    rows = [row["tokens"] for row in GOLDEN["models"]["canary2"]["recordings"]]
    network, known = network_of(model, "text", 9).eval(), features("canary2")
    counts = [len(row) - network.num_given for row in rows]
    together = sum(counts) * network(known, targets_of(rows, CPU), 1.0)["loss"]
    alone = torch.zeros(())
    for row, tokens in enumerate(rows):
        length = int(known.lengths_B[row])
        one = Features(known.mel_BMT[row : row + 1, :, :length], known.lengths_B[row : row + 1])
        alone = alone + counts[row] * network(one, targets_of([tokens], CPU), 1.0)["loss"]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert network.num_given == 9


def test_dropout_of_the_decoder() -> None:
    model = in_training("canary_transf")
    rows = [row["tokens"] for row in GOLDEN["models"]["canary_transf"]["recordings"]]
    network = network_of(model, "text", 5, dropout=0.3)
    model.encoder.eval()

    def loss() -> float:
        return network(features("canary_transf"), targets_of(rows, CPU), 1.0)["loss"].item()

    assert loss() != loss()
    assert model.aed is not None
    model.aed.eval()
    assert loss() == loss()


def test_weights_that_are_no_parameters() -> None:
    """Computed positions do not learn, stored ones do; the output layer is the embedding where their values are equal."""
    learns = {}
    for name in (*NAMES, "hf_canary"):
        decoder = in_training(name).aed
        assert decoder is not None and decoder.head.weight is decoder.embedding.weight
        learns[name] = decoder.positions.weight.requires_grad
    assert [name for name, is_learnt in learns.items() if is_learnt] == ["canary_unified"]
    decoder = in_training("canary").aed
    assert decoder is not None
    decoder.head.weight = torch.nn.Parameter(decoder.head.weight + 1e-3)
    decoder.positions.weight.data[3, 0] += 0.1
    prepare_weights_(decoder)
    assert decoder.head.weight is not decoder.embedding.weight and decoder.positions.weight.requires_grad


# --- rows of manifests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({}, Request("de", "de", True)),
        ({"source_lang": "en"}, Request("en", "en", True)),
        ({"lang": "English", "target_lang": "<|de|>", "taskname": "ast"}, Request("en", "de", True)),
        ({"source_lang": "en-GB", "pnc": "nopnc", "task": "transcribe"}, Request("en", "en", False)),
        ({"pnc": False, "itn": "no", "timestamp": "no", "emotion": "<|emo:undefined|>"}, Request("de", "de", False)),
        ({"source_lang": "fr"}, "source_lang: 'fr' is not a language of this checkpoint, such as de, en"),
        ({"target_lang": 3}, "target_lang: 3 is not a language"),
        (
            {"target_lang": "en", "taskname": "asr"},
            "taskname is 'asr', but source_lang and target_lang name two languages",
        ),
        ({"task": "s2t_translation"}, "task is 's2t_translation', but source_lang and target_lang name one language"),
        ({"task": "sing"}, "task is 'sing', not asr or ast"),
        ({"pnc": "maybe"}, "pnc is 'maybe', not yes or no"),
        ({"timestamp": "yes"}, "timestamp is 'yes': only 'no' can be learnt here"),
        ({"decodercontext": "Before."}, "decodercontext is 'Before.': only '' can be learnt here"),
        ({"text": "<|0|> Hello <|4|>"}, "the text has a control token"),
    ],
)
def test_requests_of_rows(row: dict[str, Any], wanted: Request | str) -> None:
    read = PromptReader.of(checkpoint(MODELS / "canary2"), "German")
    if isinstance(wanted, Request):
        assert read(row) == wanted
        return
    with pytest.raises(ValueError, match="^" + wanted.replace("|", "[|]")):
        read(row)


def test_language_has_to_be_known(tmp_path: Path) -> None:
    manifest = tmp_path / "train.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": str(AUDIO / "01_0_00010.flac"), "duration": 1, "text": "a"}))
    known = checkpoint(MODELS / "canary2")
    with pytest.raises(FastscribeError, match=r"train.jsonl: line 1: no source_lang, and the recipe no data.language"):
        prepare(recipe_of(manifest), known)
    with pytest.raises(UsageError, match=r"the recipe: data.language: 'Finnish' is not a language of this checkpoint"):
        prepare(recipe_of(manifest, data={"language": "Finnish"}), known)
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.wav").touch()
    (tmp_path / "clips" / "a.txt").touch()
    with pytest.raises(UsageError, match=r"clips: no source_lang, and the recipe no data.language"):
        prepare(recipe_of(tmp_path / "clips"), known)


def test_scoring_follows_the_written_language(clips: Path) -> None:
    """Not data.language, which is of rows that name none."""
    known = checkpoint(MODELS / "canary2")
    sections = {"data": {"language": "de"}}
    assert prepare(recipe_of(clips, **sections), known).scoring.normalizer == "whisper-en"  # of en and de, all in ASCII
    rows = [{**json.loads(line), "target_lang": "de"} for line in clips.read_text(encoding="utf-8").splitlines()]
    clips.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sections = {"data": {"language": "en"}}
    assert prepare(recipe_of(clips, **sections), known).scoring.normalizer == "unicode"


def test_folder_without_vocabularies() -> None:
    known = checkpoint(MODELS / "canary2")
    listing = {"pieces.json": known.tokenizer.files["pieces.json"]}
    before = replace(known, tokenizer=replace(known.tokenizer, files=listing))
    with pytest.raises(UsageError, match=r"has no vocabularies to encode text with .*: convert the .nemo file again"):
        PromptedEncoder(before)


def test_other_decoders_are_refused() -> None:
    config = checkpoint(MODELS / "canary2").config
    check_trainable(config, "model")
    assert config.aed is not None
    with pytest.raises(UsageError, match=r"^model: Cohere Transcribe cannot be trained"):
        check_trainable(replace(config, aed=replace(config.aed, prompt="cohere")), "model")


# --- runs -----------------------------------------------------------------------------------------------------------

CLIPS = (  # recording, offset and duration in seconds, text, target language
    ("01_0_00010.flac", 0.0, 1.5, "At Rice Stadium", "en"),
    ("02_0_00025.flac", 0.5, 1.5, "Such instructions", "en"),
    ("03_0_00031.flac", 0.3, 1.2, "smaller", "de"),
)


def recipe_of(manifest: Path, **sections: Any) -> Recipe:
    data = {"train": str(manifest), "validation": str(manifest), "threads": 2, **sections.pop("data", {})}
    return parse_recipe({"data": data, "augment": STILL["augment"], **sections}, manifest, is_tuning=True)


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    rows = [
        {
            "audio_filepath": str(AUDIO / name),
            "offset": offset,
            "duration": duration,
            "text": text,
            "source_lang": "en",
            "target_lang": target,
        }
        for name, offset, duration, text, target in CLIPS
    ]
    manifest = tmp_path / "clips.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return manifest


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A folder with random weights: the embeddings are shared with the output layer, the positions are computed."""
    known = checkpoint(MODELS / "canary")
    model = new_model(known.config, seed=1)
    assert model.aed is not None
    with torch.no_grad():
        model.aed.positions.weight.copy_(known.weights["aed.positions.weight"])
        model.aed.embedding.weight.mul_(0.18)
        model.aed.head.weight.copy_(model.aed.embedding.weight)
    folder = tmp_path_factory.mktemp("untrained") / "model"
    native_writer.write(replace(known, weights=model.state_dict()), folder, torch.float32)
    return read_checkpoint(folder)


def test_run_learns_its_recordings(clips: Path, untrained: Checkpoint, tmp_path: Path) -> None:
    """From random weights, in two languages; the written folder transcribes, and another run can begin with it."""
    optimiser = {"learning_rate": 1e-2, "dropout": 0.0, "ema": 0.9}
    recipe = recipe_of(clips, optimiser=optimiser, run={"epochs": 60, "validate_epochs": 60})
    trainer = trainer_of(recipe, tmp_path / "run", init=untrained)
    assert trainer.run()
    assert trainer.progress.best_rate == 0.0 and trainer.progress.start_rate == 1.0
    best = tmp_path / "run" / "best"
    for target in ("en", "de"):
        transcriber = Transcriber.load(
            str(best), device="cpu", dtype="fp32", options=Options(language="en", target_language=target)
        )
        texts = [result.text for result in transcriber.transcribe(str(clips))]
        pairs = zip(CLIPS, texts, strict=True)
        assert all(text == clip[3] for clip, text in pairs if clip[4] == target)
    weights = read_checkpoint(best).weights
    assert torch.equal(weights["aed.head.weight"], weights["aed.embedding.weight"])
    assert torch.equal(weights["aed.positions.weight"], untrained.weights["aed.positions.weight"])
    again = trainer_of(recipe_of(clips, run={"epochs": 1}), tmp_path / "again", init=read_checkpoint(best))
    assert again.run() and again.progress.start_rate == 0.0


@pytest.mark.parametrize("frozen", ["encoder", "decoder"])
def test_frozen_parts(frozen: str, clips: Path, untrained: Checkpoint, tmp_path: Path) -> None:
    rates = {"encoder": 0.5, "decoder": 2.0}
    optimiser = {"freeze": [frozen], "part_rates": rates, "weight_decay": 0.0}
    recipe = recipe_of(clips, optimiser=optimiser, run={"epochs": 1})
    trainer = trainer_of(recipe, tmp_path / "run", init=untrained)
    learnt = "encoder" if frozen == "decoder" else "decoder"
    assert {*trainer.weights._group_rates} == {rates[learnt]}
    assert trainer.run()
    weights = read_checkpoint(tmp_path / "run" / "last").weights
    prefix = {"encoder": "encoder.", "decoder": "aed."}[frozen]
    same = {name for name, tensor in weights.items() if torch.equal(tensor, untrained.weights[name])}
    assert {name for name in weights if name.startswith(prefix)} <= same < weights.keys()


def test_aligner_stays(clips: Path, untrained: Checkpoint, tmp_path: Path) -> None:
    """Of canary-1b-v2: it is written as it is, also over an earlier model, and goes with a run that starts over."""
    init = with_aligner(untrained, checkpoint(MODELS / "ctc"))
    assert trainer_of(recipe_of(clips, run={"epochs": 2}), tmp_path / "run", init=init).run()
    kept = read_checkpoint(tmp_path / "run" / "last").aligner
    assert kept is not None
    assert all(
        torch.equal(tensor, kept.weights[name])
        for name, tensor in checkpoint(MODELS / "ctc").weights.items()
        if tensor.is_floating_point()
    )
    RunFolder(tmp_path / "run").clear()
    assert [path.name for path in (tmp_path / "run").iterdir()] == []


def test_batch_size_is_tried(clips: Path, untrained: Checkpoint, tmp_path: Path) -> None:
    network = trainer_of(recipe_of(clips), tmp_path / "run", init=untrained).learner.network
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert fits(network, untrained.config, True, Bucket(2.0, 30), 3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_rank_without_a_batch(clips: Path, untrained: Checkpoint, tmp_path: Path) -> None:
    """It passes silence through the network, with a row that is longer than a prompt."""
    learner = trainer_of(recipe_of(clips), tmp_path / "run", init=untrained).learner
    losses: list[float] = []
    learner.network.register_forward_hook(lambda network, given, found: losses.append(found["loss"].item()))
    learner._take_part(0.5)
    assert np.isfinite(losses).all() and len(losses) == 1
    assert all(parameter.grad is None for parameter in learner.network.parameters())


def test_validation_asks_for_what_rows_ask_for(untrained: Checkpoint) -> None:
    requests = [Request("en", "en"), Request("en", "de"), Request("en", "en"), Request("de", "de", False)]
    examples = [Example("a.wav", "a", 1.0 + index, request=request) for index, request in enumerate(requests)]
    encode, found = PromptedEncoder(untrained), {}
    for recognizer, order in validation._recognizers(untrained, "cpu", "fp32", None, examples):
        found[recognizer.decoder.prompt.ids] = order  # type: ignore[attr-defined]
    assert found == {encode._prompt(requests[index]).ids: order for index, order in ((3, [3]), (2, [2, 0]), (1, [1]))}
