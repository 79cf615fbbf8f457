"""Languages: what users write, what models know, and what a run does about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastscribe import Options, Transcriber, UsageError
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.reader import CheckpointError, languages_by_name, read_checkpoint
from fastscribe.config import OutputStyle
from fastscribe.families.conformer.config import LanguagePromptConfig
from fastscribe.families.nemotron import choose_language
from fastscribe.languages import check_languages, find_language, language_tag
from fastscribe.results.formats.writers import to_jsonl
from fastscribe.transcriber import run_fingerprint
from tests.conftest import AUDIO, MODELS
from tests.helpers.processes import fastscribe, refused


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        ("en", "en"),
        ("EN", "en"),
        ("English", "en"),
        (" german ", "de"),
        ("Mandarin", "zh"),
        ("en_us", "en-US"),
        ("pt-br", "pt-BR"),
        ("zh-Hant-tw", "zh-Hant-TW"),
        ("yue", "yue"),
        ("Klingon", None),
        ("", None),
        ("99", None),
        ("<|en|>", None),
    ],
)
def test_tags(written: str, tag: str | None) -> None:
    assert language_tag(written) == tag
    if tag is None:
        with pytest.raises(UsageError, match="not a language: give a code such as en, or a name"):
            Options(language=written)
    else:
        assert Options(target_language=written).target_language == tag


def test_regions() -> None:
    assert [find_language(tag, ["de", "pt-BR", "pt"]) for tag in ("pt", "pt-BR", "pt-PT", "de-AT", "e")] == [
        *("pt", "pt-BR", "pt-BR", "de", None)
    ]


@pytest.mark.parametrize(
    ("path", "languages"),
    [
        (Path("mine/default_model"), ""),
        (Path("models/parakeet-tdt-0.6b-v2.nemo"), "en"),
        (Path("hub/models--nvidia--parakeet-tdt-0.6b-v2/snapshots/0123/parakeet.nemo"), "en"),
        (Path("stt_enes_conformer_ctc_large"), "en es"),
        (Path("stt_kk_ru_fastconformer_hybrid_large.nemo"), "kk ru"),
        (Path("stt_multilingual_fastconformer_hybrid_large_pc.nemo"), ""),
        (Path("stt_en/model.nemo"), ""),
        (Path("stt_de_quartznet15x5/model.nemo"), "de"),
        (Path("parakeet-tdt-0.6b-v2-german"), ""),  # fine-tuned: another model
    ],
    ids=str,
)
def test_published_names(path: Path, languages: str) -> None:
    assert " ".join(languages_by_name(path)) == languages
    assert len(languages_by_name(Path("parakeet-tdt-0.6b-v3"))) == 25


USUAL: dict[str, Any] = {"is_followed": False, "num_excluded": 3}


@pytest.mark.parametrize(
    ("known", "given", "settings", "outcome"),
    [
        (["en"], ("en", None), USUAL, ""),
        (["en"], ("en-GB", "en"), USUAL, ""),
        (["en"], (None, "en"), USUAL, ""),
        (["en"], ("de", None), USUAL, "--language de: this model knows en only"),
        (
            ["en", "es"],
            ("es", None),
            USUAL,
            "--language es: 3 of 1,000 tokens are left out, which texts in es do not",
        ),
        (["en", "es"], (None, "en"), USUAL, "does not translate"),
        (["en", "es"], ("es", "en"), USUAL, "does not translate"),
        ([], ("de", None), USUAL, "do not have; not checked, because this model does not state its languages"),
        ([], (None, "de"), USUAL, "does not translate"),
        ([], (None, None), USUAL, ""),
        (["en", "es"], ("auto", None), USUAL, ""),
        ([], ("auto", None), USUAL, ""),
        (
            [],
            ("de", None),
            {"num_excluded": 0},
            "it leaves out no token of this model; not checked, because this model",
        ),
        (
            ["de", "en"],
            ("de", None),
            {"num_excluded": 0},
            "changes nothing, because it leaves out no token of this model",
        ),
        (["de", "en"], ("de", None), {"num_excluded": None}, "changes nothing, because its letters are not known here"),
        # The aligner follows it, so it changes the results; one that the model does not know is an error all the same.
        ([], ("de", None), {"is_followed": True, "num_excluded": 0}, ""),
        ([], ("de", None), {"is_followed": True, "num_excluded": None}, ""),
        ([], ("de", None), {"is_followed": True}, "3 of 1,000 tokens are left out"),
        (["de", "en"], ("en", None), {"is_followed": True, "num_excluded": None}, ""),
        (["de", "en"], ("hi", None), {"is_followed": True, "num_excluded": None}, "this model knows de, en only"),
    ],
)
def test_models_without_a_prompt(
    known: list[str], given: tuple[str | None, str | None], settings: dict[str, Any], outcome: str
) -> None:
    said: list[str] = []
    settings = USUAL | settings | {"num_tokens": 1000}
    if "knows" in outcome or "translate" in outcome:
        with pytest.raises(UsageError, match=outcome):
            check_languages(*given, known, said.append, **settings)
    else:
        check_languages(*given, known, said.append, **settings)
        assert len(said) == bool(outcome) and outcome in "".join(said)


PROMPT = LanguagePromptConfig(
    128,
    8,
    {"en-US": 0, "en": 0, "en-GB": 1, "enGB": 1, "zh-CN": 4, "zh-TW": 5, "no": 27, "vi-VN": 33, "auto": 101},
    101,
)


@pytest.mark.parametrize(
    ("written", "index"),
    [(None, 101), ("auto", 101), ("en", 0), ("English", 0), ("en-GB", 1), ("no", 27), ("Norwegian", 27), ("vi", 33)],
)
def test_language_prompt(written: str | None, index: int) -> None:
    assert choose_language(PROMPT, Options(language=written).language) == index


@pytest.mark.parametrize(
    ("written", "nearest"),
    [("zh", "zh-CN, zh-TW, or auto"), ("en-AU", "en-US, en, en-GB, or auto"), ("noo", "no, or auto"), ("enGB", "")],
)
def test_unknown_language_prompt(written: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"7 languages; the nearest: {nearest}" if nearest else "not a language"):
        choose_language(PROMPT, Options(language=written).language)
    with pytest.raises(UsageError, match="not a language"):
        Options(target_language="auto")


def test_models_with_a_language_prompt(tmp_path: Path) -> None:
    """Its languages are stated, no language is the same as `auto`, and another is other text in another folder."""
    model, clip = MODELS / "published" / "nemotron-3.5-asr-streaming-0.6b" / "model.nemo", next(AUDIO.glob("12*.flac"))
    assert {"en", "en-GB", "no", "zh-CN"} <= set(read_checkpoint(model).languages)
    given = ("transcribe", clip, "-m", model, "-o", tmp_path, "-q", "--dtype", "fp32")
    assert fastscribe(*given).returncode == 0
    again = fastscribe(*given, "--language", "auto")
    assert (again.returncode, again.stderr) == (0, "")
    assert "--language" in refused(*given, "--language", "en-GB")
    assert "the nearest: zh-CN, zh-ZH, zh-TW, or auto" in refused(
        "transcribe", clip, "-m", model, "-q", "--language", "zh"
    )


def test_models_state_their_languages(tmp_path: Path) -> None:
    model = tmp_path / "model.nemo"
    model.symlink_to(MODELS / "published" / "stt_enes_conformer_ctc_large" / "model.nemo")
    assert sorted(read_checkpoint(model).languages) == ["en", "es"]
    assert read_checkpoint(PACKAGED).languages == ("en",)


def test_folders_state_languages(tmp_path: Path) -> None:
    """`convert` keeps them, so a folder with another name knows them too."""
    folder = tmp_path / "mine"
    assert fastscribe("convert", "default", folder).returncode == 0
    assert read_checkpoint(folder).languages == ("en",)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"languages": ["English"]}))
    with pytest.raises(CheckpointError, match="languages is"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("model", "same", "other"),
    [
        (
            MODELS / "tdt_demo" / "model.nemo",  # English letters, and languages that are not stated
            [
                {},
                {"language": "en"},
                {"language": "pl"},
                {"language": "pl", "target_language": "pl"},
                {"language": "auto"},
            ],
            [{"remove_fillers": True, "language": "en"}],
        ),
        (
            MODELS / "canary2" / "model.nemo",
            [{}, {"language": "en"}, {"language": "en-GB", "target_language": "en"}, {"pnc": True}],
            [{"language": "de"}, {"target_language": "de"}, {"pnc": False}],
        ),
        (
            MODELS / "published" / "nemotron-3.5-asr-streaming-0.6b" / "model.nemo",
            [{"language": "de"}, {"language": "de-DE"}],
            [{}, {"language": "fr"}],
        ),
    ],
    ids=["no prompt", "Canary", "Nemotron"],
)
def test_languages_with_the_same_results_have_one_fingerprint(
    model: Path, same: list[dict[str, Any]], other: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Also where rows name a language: one that changes nothing leaves rows alone, as no language does."""
    rows = tmp_path / "rows.jsonl"
    clips = sorted(AUDIO.glob("0*.flac"))[:2]
    rows.write_text(
        "".join(
            json.dumps({"audio_filepath": str(clip), "language": language}) + "\n"
            for clip, language in zip(clips, ("ru", "nonsense"), strict=True)
        )
    )

    def run(options: dict[str, Any], has_rows: bool = True) -> tuple[list[str], dict[str, Any]]:
        chosen = Options(threads=1, **options)
        transcriber = Transcriber.load(model, "cpu", "fp32", chosen, lambda line: None)
        found = [to_jsonl(one) for one in transcriber.transcribe([rows] if has_rows else [], ordered=True)]
        return found, run_fingerprint(transcriber, "sha256:1", chosen, OutputStyle())

    first = run(same[0])
    for options in same[1:]:
        assert run(options) == first, options
    others = [run(options, has_rows=False)[1] for options in other]
    assert first[1] not in others and len({json.dumps(one) for one in others}) == len(other)
