"""IndicConformer: the model of one language gives what its rules say, in every language, and a run takes one language.

Expected tokens come from NeMo 3.0.0's modules (scripts/goldens/indic.py), and from the rules written out slowly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe import Options, Transcriber, Transcript, UsageError
from fastscribe.alignment.aligner import Aligner
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.lazy_weights import check_shapes
from fastscribe.checkpoint.nemo import parse_yaml
from fastscribe.checkpoint.reader import read_checkpoint, read_for_run
from fastscribe.checkpoint.value import MAX_CONFIG_BYTES
from fastscribe.cli.describe import describe
from fastscribe.config import DecoderName
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.parameter_shapes import parameter_shapes
from fastscribe.languages import language_tag
from fastscribe.pipeline.recognizer import Recognizer
from scripts.shapes import SHAPES
from tests.checkpoint.test_known_models import read
from tests.conftest import AUDIO, MODELS, refusal, waveform
from tests.helpers import indic_folder
from tests.helpers.collate import batch_of
from tests.helpers.indic_folder import shapes
from tests.helpers.processes import fastscribe, refused
from tests.helpers.published import INDIC_LANGUAGES

GOLDEN: dict[str, Any] = json.loads((MODELS / "indic" / "golden.json").read_text(encoding="utf-8"))["files"]
LANGUAGES, PIECES = indic_folder.LANGUAGES, indic_folder.PIECES
LARGE = "indicconformer_stt_multi_hybrid_rnnt_600m"
SHORT = AUDIO / "e03_one_second_exact.flac"
in_each_language = pytest.mark.parametrize("language", LANGUAGES)
with_each_decoder = pytest.mark.parametrize("decoder", ["rnnt", "ctc"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indic_folder.write(tmp_path_factory.mktemp("indic"), shapes())


def recognizer(model: Path, language: str, decoder: DecoderName) -> Recognizer:
    options = Options(language=language, decoder=decoder)
    return Recognizer.build(read_for_run(model, options), "cpu", "fp32", options)


# --- tokens ---------------------------------------------------------------------------------------------------------


@in_each_language
@with_each_decoder
def test_tokens_and_frames_of_nemo(model: Path, language: str, decoder: DecoderName) -> None:
    """All recordings in one batch, and NeMo's one by one."""
    found = recognizer(model, language, decoder).transcribe(batch_of([waveform(AUDIO / name) for name in GOLDEN]))
    expected = [one[language][decoder] for one in GOLDEN.values()]
    assert [[list(one.token_ids), list(one.token_frames)] for one in found] == expected
    assert len({token for tokens, _ in expected for token in tokens}) > 3, (
        "the random model is not worth the comparison"
    )


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
    shown = describe(whole)
    assert (shown["languages"], shown["vocabulary_per_language"]) == (list(LANGUAGES), PIECES)
    assert (shown["vocabulary"], shown["decoders"]) == (PIECES * len(LANGUAGES), ["rnnt", "ctc"])
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
        (None, "has outputs for each of 3 languages (ta, as, hi): give one with --language"),
        ("auto", "has outputs for each of 3 languages (ta, as, hi): give one with --language"),
        ("en", "--language en is none of its 3 languages; the nearest: "),
        ("tam", "--language tam is none of its 3 languages; the nearest: ta"),
    ],
)
def test_languages_that_are_no_choice(model: Path, language: str | None, message: str) -> None:
    with refusal(UsageError, f"{model}: {message}"):
        read_for_run(model, Options(language=language))


def test_names_of_the_languages() -> None:
    names = (
        "Assamese Bengali Bodo Dogri Konkani Gujarati Hindi Kannada Kashmiri Maithili Malayalam Marathi Manipuri Nepali"
    )
    names += " Odia Punjabi Sanskrit Santali Sindhi Tamil Telugu Urdu"
    assert [language_tag(name) for name in names.split()] == list(INDIC_LANGUAGES)


def test_runs(model: Path, tmp_path: Path) -> None:
    """The language is in each row, results are continued in the same language alone, and it is not translated."""
    given = ("transcribe", SHORT, "-m", model, "-o", tmp_path, "-q", "--dtype", "fp32")
    assert "give one with --language" in refused(*given)
    assert fastscribe(*given, "--language", "hi").returncode == 0
    row = json.loads((tmp_path / "transcripts.jsonl").read_text(encoding="utf-8"))
    assert row["language"] == "hi" and row["text"]
    again = fastscribe(*given, "--language", "Hindi")
    assert (again.returncode, again.stderr) == (0, "")
    assert "--language" in refused(*given, "--language", "ta")
    assert "--target-language" in refused(*given, "--language", "hi", "--target-language", "ta")


def test_rows_that_name_another_language(model: Path, tmp_path: Path) -> None:
    """They are written in the run's language, and one line says so."""
    languages = ({}, {"lang": "hi"}, {"lang": "ta"}, {"language": "Assamese"})
    rows = [{"audio_filepath": str(SHORT), "offset": 0.1 * number} | one for number, one in enumerate(languages)]
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = fastscribe("transcribe", manifest, "-m", model, "-o", tmp_path / "out", "-q", "--language", "hi")
    line = f"2 rows name another language than hi, the run's: {SHORT} (lang: ta) is the first"
    assert (found.returncode, found.stderr) == (0, f"fastscribe: {line}\n")


def test_aligner(model: Path, tmp_path: Path) -> None:
    """With --align-with the option chooses the aligner's language, so results are continued in it alone."""
    given = ("transcribe", SHORT, "-m", MODELS / "tdt_demo" / "model.nemo", "--align-with", model, "-o", tmp_path, "-q")
    assert "--language hi" not in (first := fastscribe(*given, "--language", "hi")).stderr and first.returncode == 0
    assert "--language" in refused(*given, "--language", "ta")
    missing = fastscribe(*given)
    assert missing.returncode == 2 and missing.stderr.startswith(f"fastscribe: {model}: has outputs for each of 3")


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
    run = ("transcribe", SHORT, "-m", folder, "-o", tmp_path / "out", "-q")
    assert fastscribe(*run).returncode == 0
    again = fastscribe(*run, "--language", "ta")  # its results do not depend on the option
    assert (again.returncode, again.stderr) == (0, "")
    other = fastscribe(*run, "--language", "hi")
    assert other.returncode == 2 and other.stderr == "fastscribe: --language hi: this model knows ta only\n"
    for given, name, reason in (
        ("default", "en", "default has the same outputs for every language"),
        (folder, "ta", f"{folder} is already the model of ta alone"),
        (folder, "hi", f"{folder} is already the model of ta alone"),
    ):
        plain = fastscribe("convert", given, tmp_path / "plain", "--language", name)
        assert (plain.returncode, plain.stderr) == (2, f"fastscribe: --language {name}: {reason}\n")


def test_folder_that_claims_several_languages(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tamil"
    native_writer.write(read_for_run(model, Options(language="ta")), folder, torch.float32)
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


# --- configurations that disagree -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("joint.language_keys", ["as", "hi"], "joint.language_keys"),
        ("joint.language_keys", None, "joint.language_keys"),
        ("joint.multilingual", False, "joint.multilingual: False"),
        ("decoder.multisoftmax", None, "decoder.multisoftmax"),
        ("aux_ctc.decoder.multisoftmax", False, "aux_ctc.decoder.multisoftmax"),
        ("tokenizer.type", "agg", "multisoftmax: True"),
        ("target", "nemo.collections.asr.models.EncDecRNNTBPEModel", "tokenizer.type: 'multilingual'"),
    ],
)
def test_configurations_that_disagree(tmp_path: Path, path: str, value: object, named: str) -> None:
    with refusal(UnsupportedCheckpoint, named):
        read_checkpoint(indic_folder.write(tmp_path, shapes(), **with_values({path: value})))


def test_language_that_is_no_code(tmp_path: Path) -> None:
    """A later version of the fork has a pseudo-language of tags, whose rules differ."""
    folder = indic_folder.write(tmp_path, {})
    text = (folder / "model_config.yaml").read_text(encoding="utf-8").replace("\n    ta:", "\n    <lang_code>:")
    (folder / "model_config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedCheckpoint, match="<lang_code>"):
        read_checkpoint(folder)


def test_vocabularies_of_different_sizes(tmp_path: Path) -> None:
    folder = indic_folder.write(tmp_path, shapes())
    (folder / "ta.model").write_bytes(indic_folder.sentencepiece_model("ta", PIECES + 3))
    (folder / "as.model").write_bytes(indic_folder.sentencepiece_model("as", PIECES - 3))
    with pytest.raises(UnsupportedCheckpoint, match="one number for all languages"):
        read_checkpoint(folder)


OTHER_ORDER = tuple(sorted(LANGUAGES))
TABLES, OTHER_TABLES = indic_folder.tables(LANGUAGES), indic_folder.tables(OTHER_ORDER)
in_each_section = pytest.mark.parametrize("section", ["decoder", "joint", "aux_ctc.decoder"])


def with_values(values: dict[str, object]) -> dict[str, Any]:
    """Return the config with other values, by their dotted paths."""
    changed = indic_folder.config()
    for path, value in values.items():
        *sections, key = path.split(".")
        section = changed
        for name in sections:
            section = section[name]
        section[key] = value
    return changed


def test_tables_that_agree(tmp_path: Path) -> None:
    """Files without lists of pieces, and with all tables that the fork computes."""
    values: dict[str, object] = {f"joint.{key}": table for key, table in TABLES.items()}
    values |= {f"{section}.language_masks": TABLES["language_masks"] for section in ("decoder", "aux_ctc.decoder")}
    values |= {"labels": None, "joint.vocabulary": [], "aux_ctc.decoder.vocabulary": None}
    found = read_checkpoint(indic_folder.write(tmp_path, shapes(), **with_values(values)))
    assert found.config.language_heads == LANGUAGES


@pytest.mark.parametrize("path", ["labels", "joint.vocabulary", "aux_ctc.decoder.vocabulary"])
def test_pieces_in_another_order(tmp_path: Path, path: str) -> None:
    changed = with_values({path: indic_folder.pieces(OTHER_ORDER)})
    with pytest.raises(UnsupportedCheckpoint, match=rf"unsupported {path}\.\d+: .* of ta, by the order") as refused:
        read_checkpoint(indic_folder.write(tmp_path, shapes(), **changed))
    assert "\n" not in str(refused.value)
    changed = with_values({path: indic_folder.pieces(LANGUAGES)[1:]})
    with pytest.raises(UnsupportedCheckpoint, match=f"unsupported {path}: .*the {3 * PIECES} pieces"):
        read_checkpoint(indic_folder.write(tmp_path, shapes(), **changed))


@in_each_section
def test_masks_in_another_order(tmp_path: Path, section: str) -> None:
    masks = TABLES["language_masks"]
    wrong = {
        f"{section}.language_masks.ta": OTHER_TABLES["language_masks"],
        f"{section}.language_masks.hi": masks | {"hi": masks["hi"][:-1]},  # without the blank
        f"{section}.language_masks": {name: mask for name, mask in masks.items() if name != "hi"},
    }
    for named, value in wrong.items():
        folder = indic_folder.write(tmp_path, shapes(), **with_values({f"{section}.language_masks": value}))
        with refusal(UnsupportedCheckpoint, f"unsupported {named}: "):
            read_checkpoint(folder)


@pytest.mark.parametrize("value", [OTHER_TABLES["token_id_offsets"], [0, PIECES, 2 * PIECES]])
def test_offsets_in_another_order(tmp_path: Path, value: object) -> None:
    folder = indic_folder.write(tmp_path, shapes(), **with_values({"joint.token_id_offsets": value}))
    with pytest.raises(UnsupportedCheckpoint, match=r"unsupported joint\.token_id_offsets"):
        read_checkpoint(folder)


def test_yaml_of_22_languages_with_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as a file can be: three lists of 5,632 pieces, and the tables in each section that takes them."""
    encoded = yaml_with_all_tables(INDIC_LANGUAGES)[0]
    assert len(encoded) < MAX_CONFIG_BYTES
    with monkeypatch.context() as patch:  # what checks a file's size has read it before
        patch.setattr("yaml.load", lambda text, Loader: {"is checked": True})
        assert parse_yaml(encoded, "model").values == {"is checked": True}
    encoded, masks = yaml_with_all_tables(INDIC_LANGUAGES[:3])
    found = parse_yaml(encoded, "model").values
    assert all(found[section]["language_masks"] == masks for section in ("decoder", "joint", "aux_ctc"))


def yaml_with_all_tables(languages: Sequence[str]) -> tuple[bytes, dict[str, list[bool]]]:
    """Return the file, and its masks."""
    tables = indic_folder.tables(languages, 256)
    masks = "".join(
        f"      {language}:\n" + "".join(f"      - {str(is_own).lower()}\n" for is_own in mask)
        for language, mask in tables["language_masks"].items()
    )
    pieces = "".join(f"    - '\u2581{row:05}'\n" for row in range(256 * len(languages)))
    rows = "".join(f"      {row}: {number}\n" for row, number in tables["offset_token_ids_by_token_id"].items())
    joint = f"joint:\n    vocabulary:\n{pieces}    language_masks:\n{masks}    offset_token_ids_by_token_id:\n{rows}"
    text = f"labels:\n{pieces}decoder:\n    language_masks:\n{masks}{joint}"
    text += f"aux_ctc:\n    vocabulary:\n{pieces}    language_masks:\n{masks}"
    return text.encode(), tables["language_masks"]
