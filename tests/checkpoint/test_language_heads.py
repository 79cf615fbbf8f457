"""IndicConformer: the model of one language gives what its rules say, in every language, and a run takes one language.

Expected tokens come from NeMo 3.0.0's modules (scripts/goldens/make_indic_goldens.py), and from the rules written out slowly.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe import Options, Transcriber, Transcript, UsageError
from fastscribe.aligner import Aligner
from fastscribe.bench.shapes import SHAPES
from fastscribe.checkpoint.lazy_weights import check_shapes
from fastscribe.checkpoint.parameter_shapes import parameter_shapes
from fastscribe.checkpoint.reader import read_checkpoint, read_for_run
from fastscribe.config import DecoderName
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.languages import language_tag
from fastscribe.pipeline.loader import collate
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import AudioInfo, Hypothesis, Utterance
from tests.checkpoint.test_known_models import read
from tests.checkpoint.test_published import conformer_shapes, linear, transducer_shapes
from tests.conftest import AUDIO, MODELS, waveform
from tests.helpers import indic_folder
from tests.helpers.processes import fastscribe
from tests.helpers.published import INDIC_LANGUAGES

GOLDEN: dict[str, Any] = json.loads((MODELS / "indic" / "golden.json").read_text(encoding="utf-8"))["files"]
LANGUAGES, PIECES = indic_folder.LANGUAGES, indic_folder.PIECES
LARGE = "indicconformer_stt_multi_hybrid_rnnt_600m"
SHORT = AUDIO / "e03_one_second_exact.flac"
in_each_language = pytest.mark.parametrize("language", LANGUAGES)
with_each_decoder = pytest.mark.parametrize("decoder", ["rnnt", "ctc"])


def shapes() -> dict[str, tuple[int, ...]]:
    config, num_labels = indic_folder.config(), PIECES * len(LANGUAGES)
    head = linear("ctc_decoder.decoder_layers.0", config["encoder"]["d_model"], num_labels + 1, True, 1)
    return conformer_shapes(config["encoder"]) | transducer_shapes(config, num_labels) | head


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indic_folder.write(tmp_path_factory.mktemp("indic"), shapes())


def recognizer(model: Path, language: str, decoder: DecoderName) -> Recognizer:
    options = Options(language=language, decoder=decoder)
    return Recognizer.build(read_for_run(model, options), "cpu", "fp32", options)


def batch_of(names: list[str]) -> Any:
    waves = [waveform(AUDIO / name) for name in names]
    return collate([Utterance(AudioInfo("a", "a", 16000, 1, len(w)), 0, len(w)) for w in waves], waves)


# --- tokens ---------------------------------------------------------------------------------------------------------


@in_each_language
@with_each_decoder
def test_tokens_and_frames_of_nemo(model: Path, language: str, decoder: DecoderName) -> None:
    """All recordings in one batch, and NeMo's one by one."""
    found = recognizer(model, language, decoder).transcribe(batch_of(list(GOLDEN)))
    expected = [one[language][decoder] for one in GOLDEN.values()]
    assert [[list(one.token_ids), list(one.token_frames)] for one in found] == expected
    assert len({token for tokens, _ in expected for token in tokens}) > 3, (
        "the random model is not worth the comparison"
    )


def slow_ctc(weights: dict[str, torch.Tensor], language: str, frames_TD: torch.Tensor) -> Hypothesis:
    """Score every label of all languages, leave out those of others, and merge repeats."""
    is_its_own = [one == language for one in LANGUAGES for _ in range(PIECES)] + [True]
    weight, bias = (weights[f"ctc_decoder.decoder_layers.0.{name}"] for name in ("weight", "bias"))
    ids, starts, logprobs = [], [], []
    best = []
    for frame_D in frames_TD:
        scores = (weight[:, :, 0] @ frame_D + bias).tolist()
        own = torch.tensor([score for score, is_own in zip(scores, is_its_own, strict=True) if is_own])
        best.append((int(own.argmax()), float(own.softmax(0).max())))
    for label, run in groupby(enumerate(best), key=lambda one: one[1][0]):
        of_run = list(run)
        if label != PIECES:
            ids.append(label)
            starts.append(of_run[0][0])
            logprobs.append(math.log(sum(probability for _, (_, probability) in of_run) / len(of_run)))
    return Hypothesis(tuple(ids), tuple(starts), (), tuple(logprobs))


def slow_rnnt(weights: dict[str, torch.Tensor], language: str, frames_TD: torch.Tensor) -> Hypothesis:
    """One frame and one token at a time; the first step is told zeros, and later ones a token of the language's own."""

    def layer(name: str, x: torch.Tensor) -> torch.Tensor:
        return weights[f"joint.{name}.weight"] @ x + weights[f"joint.{name}.bias"]

    hidden = weights["decoder.prediction.embed.weight"].shape[1]
    lstm = torch.nn.LSTM(hidden, hidden)
    prefix = "decoder.prediction.dec_rnn.lstm."
    lstm.load_state_dict({name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)})
    output, state = lstm(torch.zeros(1, hidden))
    ids, times, logprobs = [], [], []
    for time, frame_D in enumerate(frames_TD):
        for _ in range(10):
            scores = layer(f"joint_net.2.{language}", torch.relu(layer("enc", frame_D) + layer("pred", output[0])))
            label = int(scores.argmax())
            if label == PIECES:
                break
            ids.append(label)
            times.append(time)
            logprobs.append(float(scores.log_softmax(0)[label]))
            output, state = lstm(weights["decoder.prediction.embed.weight"][label][None], state)
    return Hypothesis(tuple(ids), tuple(times), (), tuple(logprobs))


@in_each_language
@pytest.mark.parametrize(("decoder", "reference"), [("rnnt", slow_rnnt), ("ctc", slow_ctc)])
@torch.inference_mode()
def test_the_rules_written_out(model: Path, language: str, decoder: DecoderName, reference: Any) -> None:
    weights, tested = indic_folder.weights(shapes()), recognizer(model, language, decoder)
    batch = batch_of([*GOLDEN, "09_1_00056.flac"])
    frames = tested.encode(tested.features(*tested.upload(batch)))
    for row, found in enumerate(tested.transcribe(batch)):
        expected = reference(weights, language, frames.frames_BTD[row, : int(frames.lengths_B[row])])
        assert (found.token_ids, found.token_frames) == (expected.token_ids, expected.token_frames)
        torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(expected.logprobs), rtol=1e-4, atol=1e-4)


@in_each_language
def test_text_has_the_letters_of_the_language(model: Path, language: str) -> None:
    with Transcriber.load(model, "cpu", "fp32", Options(language=language)) as loaded:
        (found,) = loaded.transcribe(str(AUDIO / "09_1_00056.flac"))
    assert isinstance(found, Transcript) and found.language == language
    letters = set(found.text) - set(" ⁇")
    assert letters and letters <= set(indic_folder.LETTERS[language])


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_published_sizes() -> None:
    """A fine-tuned 22-language checkpoint's tensors were counted: 743, with 2 of the features, which are no weights here."""
    found = parameter_shapes(read(indic_folder.NAME))

    def counted(start: str) -> tuple[int, int]:
        sizes = [math.prod(shape) for name, shape in found.items() if name.startswith(start)]
        return len(sizes), sum(sizes)

    assert counted("encoder.") == (686, 115_128_849)
    assert counted("transducer.predictor.") == (5, 6_887_040)
    assert counted("transducer.joint.") == (48, 4_362_774)
    assert counted("ctc.") == (2, 2_889_729)
    assert counted("") == (743 - 2, 129_289_352 - 80 * 257 - 400)
    assert sorted(INDIC_LANGUAGES) == sorted(set(INDIC_LANGUAGES)) and len(INDIC_LANGUAGES) == 22
    # The encoder of the 600M model has 2.43 GB in float32.
    large = parameter_shapes(read(LARGE))
    encoder = [math.prod(shape) for name, shape in large.items() if name.startswith("encoder.")]
    assert round(4 * sum(encoder) / 1e9, 2) == 2.43


@pytest.mark.parametrize("name", [indic_folder.NAME, LARGE])
def test_shapes_for_benchmarks(name: str) -> None:
    assert SHAPES[name] == replace(read(name), num_labels=256, language_heads=())


def test_weights_of_the_whole_and_of_one_language(model: Path) -> None:
    whole = read_checkpoint(model)
    assert whole.languages == whole.config.language_heads == LANGUAGES
    check_shapes(parameter_shapes(whole.config), whole.weights, model)
    one = read_for_run(model, Options(language="Tamil"))
    check_shapes(parameter_shapes(one.config), one.weights, model)
    assert (one.config.language, one.languages, one.config.num_labels) == ("ta", ("ta",), PIECES)
    assert len(one.tokenizer.pieces) == PIECES


# --- which language -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "message"),
    [
        (None, "has outputs for each of 3 languages (as, hi, ta): give one with --language"),
        ("auto", "has outputs for each of 3 languages (as, hi, ta): give one with --language"),
        ("en", "--language en: not one of this checkpoint's 3 languages; the nearest: "),
        ("tam", "--language tam: not one of this checkpoint's 3 languages; the nearest: ta"),
    ],
)
def test_languages_that_are_no_choice(model: Path, language: str | None, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_for_run(model, Options(language=language))
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("written", ["hi", "Hindi", "hi-IN"])
def test_spellings_of_a_language(model: Path, written: str) -> None:
    assert read_for_run(model, Options(language=written)).config.language == "hi"


def test_names_of_the_languages() -> None:
    names = (
        "Assamese Bengali Bodo Dogri Konkani Gujarati Hindi Kannada Kashmiri Maithili Malayalam Marathi Manipuri Nepali"
    )
    names += " Odia Punjabi Sanskrit Santali Sindhi Tamil Telugu Urdu"
    assert [language_tag(name) for name in names.split()] == list(INDIC_LANGUAGES)


def test_runs(model: Path, tmp_path: Path) -> None:
    """The language is in each row, results are continued in the same language alone, and it is not translated."""
    given = ("transcribe", SHORT, "-m", model, "-o", tmp_path, "-q", "--dtype", "fp32")
    refused = fastscribe(*given)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "give one with --language" in refused.stderr
    assert fastscribe(*given, "--language", "hi").returncode == 0
    row = json.loads((tmp_path / "transcripts.jsonl").read_text(encoding="utf-8"))
    assert row["language"] == "hi" and row["text"]
    again = fastscribe(*given, "--language", "Hindi")
    assert (again.returncode, again.stderr) == (0, "")
    other = fastscribe(*given, "--language", "ta")
    assert other.returncode == 2 and "--language" in other.stderr
    translated = fastscribe(*given, "--language", "hi", "--target-language", "ta")
    assert translated.returncode == 2 and "--target-language" in translated.stderr


def test_several_devices(model: Path) -> None:
    options = Options(language="as")
    with Transcriber.load(model, "cpu", "fp32", options) as local:
        (expected,) = local.transcribe(str(SHORT))
    with Transcriber.load(model, dtype="fp32", options=options, devices="cpu:1") as loaded:
        (found,) = loaded.transcribe(str(SHORT))
    assert isinstance(found, Transcript) and isinstance(expected, Transcript)
    assert (found.text, found.language) == (expected.text, "as")


def test_long_recordings(model: Path) -> None:
    """A recording that is cut has the words of its pieces; whatever these say, they are in the language."""
    options = Options(language="ta", max_utterance_s=5.0)
    with Transcriber.load(model, "cpu", "fp32", options) as loaded:
        (found,) = loaded.transcribe(str(AUDIO / "e10_concat_45s.flac"))
    assert isinstance(found, Transcript) and found.language == "ta"
    assert found.words[-1].end_s > 30 and set(found.text) - set(" ⁇") <= set(indic_folder.LETTERS["ta"])


# --- one language as a model of its own -----------------------------------------------------------------------------


def test_converted_model_of_one_language(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tamil"
    refused = fastscribe("convert", model, folder)
    assert refused.returncode == 2 and "give one with --language" in refused.stderr and not folder.exists()
    assert fastscribe("convert", model, folder, "--language", "Tamil", "--dtype", "fp32").returncode == 0
    kept, made = read_checkpoint(folder), read_for_run(model, Options(language="ta"))
    assert (kept.config, kept.languages) == (made.config, ("ta",))
    assert kept.tokenizer == made.tokenizer and kept.tokenizer.language == "ta"
    for name in made.weights:
        assert name.endswith("num_batches_tracked") or torch.equal(kept.weights[name], made.weights[name])
    exported = fastscribe("convert", folder, tmp_path / "tamil.nemo", "--to", "nemo", "--dtype", "fp32")
    assert exported.returncode == 0 and "does not hold the language\n" in exported.stderr
    back = read_checkpoint(tmp_path / "tamil.nemo")
    assert back.config == replace(kept.config, language=None) and back.tokenizer.pieces == kept.tokenizer.pieces
    other = fastscribe("transcribe", SHORT, "-m", folder, "-q", "--language", "hi")
    assert other.returncode == 2 and other.stderr == "fastscribe: --language hi: this model knows ta only\n"
    plain = fastscribe("convert", "default", tmp_path / "plain", "--language", "en")
    assert plain.returncode == 2 and "the same for every language" in plain.stderr


def test_its_results_do_not_depend_on_the_option(model: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "tamil", tmp_path / "out"
    assert fastscribe("convert", model, folder, "--language", "ta").returncode == 0
    given = ("transcribe", SHORT, "-m", folder, "-o", out, "-q")
    assert fastscribe(*given).returncode == 0
    again = fastscribe(*given, "--language", "ta")
    assert (again.returncode, again.stderr) == (0, "")


def test_folder_that_claims_several_languages(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tamil"
    assert fastscribe("convert", model, folder, "--language", "ta").returncode == 0
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key, value in (("language_heads", ["hi", "ta"]), ("language_heads", [7]), ("language", "Tamil")):
        stored["model"] = stored["model"] | {"language_heads": [], "language": None} | {key: value}
        (folder / "config.json").write_text(json.dumps(stored), encoding="utf-8")
        with pytest.raises(UnsupportedCheckpoint, match="language"):
            read_checkpoint(folder)


def test_alignment_in_a_language(model: Path, tmp_path: Path) -> None:
    """A text is timed with the language's own vocabulary; a random model hears some of the words that it writes itself."""
    options = Options(language="ta", decoder="ctc")
    with Transcriber.load(model, "cpu", "fp32", options) as loaded:
        (heard,) = loaded.transcribe(str(SHORT))
    assert isinstance(heard, Transcript)
    (tmp_path / "text.txt").write_text(heard.text, encoding="utf-8")
    (found,) = Aligner.load(model, "cpu", "fp32", options).align(str(SHORT), tmp_path / "text.txt")
    assert isinstance(found, Transcript) and [word.text for word in found.words] == heard.text.split()
    assert not all(word.missing for word in found.words)


def test_inspect(model: Path) -> None:
    shown = json.loads(fastscribe("inspect", model, "--json").stdout)
    assert (shown["languages"], shown["vocabulary"]) == (list(LANGUAGES), PIECES * len(LANGUAGES))
    assert shown["vocabulary_per_language"] == PIECES and shown["decoders"] == ["rnnt", "ctc"]


# --- configurations that disagree -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("joint.language_keys", ["as", "hi"], r"joint\.language_keys"),
        ("joint.language_keys", None, r"joint\.language_keys"),
        ("joint.multilingual", False, r"joint\.multilingual: False"),
        ("decoder.multisoftmax", None, r"decoder\.multisoftmax"),
        ("aux_ctc.decoder.multisoftmax", False, r"aux_ctc\.decoder\.multisoftmax"),
        ("tokenizer.type", "agg", r"multisoftmax: True"),
        ("target", "nemo.collections.asr.models.EncDecRNNTBPEModel", r"tokenizer\.type: 'multilingual'"),
    ],
)
def test_configurations_that_disagree(tmp_path: Path, path: str, value: object, named: str) -> None:
    changed = indic_folder.config()
    *sections, key = path.split(".")
    section = changed
    for name in sections:
        section = section[name]
    section[key] = value
    with pytest.raises(UnsupportedCheckpoint, match=named) as refused:
        read_checkpoint(indic_folder.write(tmp_path, shapes(), **changed))
    assert "\n" not in str(refused.value)


def test_language_that_is_no_code(tmp_path: Path) -> None:
    """A later version of the fork has a pseudo-language of tags, whose rules differ."""
    changed = indic_folder.config()
    changed["tokenizer"]["langs"]["<lang_code>"] = changed["tokenizer"]["langs"].pop("ta")
    folder = indic_folder.write(tmp_path, {}, tokenizer=indic_folder.config()["tokenizer"])
    text = (folder / "model_config.yaml").read_text(encoding="utf-8").replace("\n    ta:", "\n    <lang_code>:")
    (folder / "model_config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedCheckpoint, match="<lang_code>"):
        read_checkpoint(folder)


def test_vocabularies_of_different_sizes(tmp_path: Path) -> None:
    folder = indic_folder.write(tmp_path, shapes())
    (folder / "ta.model").write_bytes((folder / "hi.model").read_bytes())
    assert read_checkpoint(folder).config.num_labels == PIECES * len(LANGUAGES)
    (folder / "ta.model").write_bytes(indic_folder.sentencepiece_model("ta", PIECES + 3))
    (folder / "as.model").write_bytes(indic_folder.sentencepiece_model("as", PIECES - 3))
    with pytest.raises(UnsupportedCheckpoint, match="one number for all languages"):
        read_checkpoint(folder)
