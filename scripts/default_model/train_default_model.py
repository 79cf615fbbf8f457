"""Train the packaged model in stages, each from the weights of the previous one.

    python -m scripts.default_model.train_default_model SPEECH OUT --more MORE/manifest.jsonl..
        [--init MODEL] [--stages words,books]

SPEECH holds the manifests train_native.jsonl, train_synthetic.jsonl and train_accented.jsonl (docs/log.md and the model card
describe their sources). The recipes are below. Two stages need no MORE: letters (CTC alone, almost no augmentation) and hybrid
(TDT and CTC, slightly more augmentation). The others also learn from MORE, the output of
scripts.default_model.make_read_sentences: WordNet for words; books for books; for stories, new sentences and words in random
order; for voices, other texts with names, two fifths by a synthesiser that is new to the model. All stages of a call get the
same MORE. robust needs none either: it learns from the corpora joined to utterances of up to 20 seconds and passed through
telephones, codecs and rooms (joins.py, transmission.py), and from noise, music and other sounds without speech, for which it
needs a General MIDI sound font and `fluidsynth` (sounds.py); it writes them to OUT/joined and OUT/sounds. strangers learns
from the same, from MORE and from voices that nobody has: blends of Kokoro's.
`--init` starts from a model, such as the packaged one, instead of random weights. No stage hears HELD_SPEAKERS or learns
their sentences: they validate.
`scripts.default_model.average_models` made the packaged model from the stages from books on. Texts of the corpus without
capitals and punctuation get a capital, a full stop and capital I's. OUT/<stage>/best is the result.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastscribe.training.example_choice import sentence_key
from scripts.default_model.joins import write_joins
from scripts.default_model.sounds import write_sounds

ROOT = Path(__file__).resolve().parents[2]
CORPORA = ("train_native", "train_synthetic", "train_accented")
PLAIN_CORPORA = ("train_accented",)
MODEL = {
    "vocab_size": 80,
    "d_model": 192,
    "num_layers": 8,
    "subsampling_factor": 4,
    "subsampling_channels": 64,
    "predictor_hidden": 224,
    "joint_hidden": 256,
    "durations": [0, 1, 2, 3, 4, 6, 8],
}


def recipe(
    epochs: int, optimiser: dict[str, float], augment: dict[str, Any], ctc_weight: float = 0.3, **run: int
) -> dict[str, Any]:
    """Return what is a stage's own in its recipe."""
    sections = {"batch": {"seconds": 60}, "loss": {"ctc_weight": ctc_weight}, "optimiser": optimiser}
    return sections | {"augment": augment, "run": {"epochs": epochs, **run}}


_STEADY = {"learning_rate": 8e-4, "warmup_steps": 200, "dropout": 0.1}
_DISTURBED = {"time_masks": 5, "freq_masks": 2, "freq_mask_share": 0.25, "noise_chance": 0.3}
STAGES: dict[str, dict[str, Any]] = {
    "letters": recipe(
        5,
        {"learning_rate": 1.2e-3, "min_learning_rate": 2e-4, "warmup_steps": 200, "dropout": 0.05},
        {"time_masks": 2, "freq_masks": 1, "freq_mask_share": 0.2, "noise_chance": 0.0},
        ctc_weight=1.0,
    ),
    "hybrid": recipe(
        12,
        {"learning_rate": 8e-4, "warmup_steps": 100, "dropout": 0.05},
        {"time_masks": 3, "freq_masks": 2, "freq_mask_share": 0.2, "noise_chance": 0.1},
    ),
    "words": recipe(4, _STEADY, _DISTURBED),
    "books": recipe(2, _STEADY, _DISTURBED),
    "stories": recipe(1, _STEADY, _DISTURBED),
    "voices": recipe(1, _STEADY, _DISTURBED),
    "robust": recipe(
        2,
        {"learning_rate": 3e-4, "min_learning_rate": 3e-5, "warmup_steps": 50, "ema": 0.995, "dropout": 0.05},
        _DISTURBED,
        save_minutes=5,
    ),
    "strangers": recipe(
        1,
        {"learning_rate": 3e-4, "min_learning_rate": 2e-5, "warmup_steps": 15, "ema": 0.985, "dropout": 0.05},
        _DISTURBED | {"speeds": [0.85, 0.9, 1.0, 1.1, 1.18]},
        save_minutes=5,
    ),
}
# How often each of CORPORA comes in an epoch of a stage that also learns from MORE.
REPEATS = {
    "words": (2, 1, 1),
    "books": (4, 2, 2),
    "stories": (5, 1, 2),
    "voices": (4, 1, 2),
    "robust": (0.5, 0.05, 0.5),
    "strangers": (0.4, 0.2, 0.65),
}
MADE_REPEATS = {"robust": (1, 1), "strangers": (0.2, 0.5)}  # how often the joins and the sounds come
JOIN_REPEATS, JOIN_HOURS = (3, 1, 4), 4.0  # how often each of CORPORA is taken for joins, and the hours of all joins
SOUND_HOURS = 0.8
# Of train_native and train_accented; of the latter the first by their names' hashes, to 1,500 words.
HELD_SPEAKERS = frozenset(
    ("philipp_matthes", "2168", "4005", "3023", "2380", "2621", "0036", "2022", "2282", "9615", "9616", "2402")
)


def main() -> None:
    arguments = parsed()
    arguments.out.mkdir(parents=True, exist_ok=True)
    manifests, validation = prepared(arguments.speech, arguments.out)
    init = arguments.init
    for stage in arguments.stages.split(","):
        path = arguments.out / f"{stage}.yaml"
        train: list[Any] = list(map(str, manifests))
        if stage in REPEATS:
            repeated = zip(train, REPEATS[stage], strict=True)
            train = [{"path": path, "repeat": repeat} for path, repeat in repeated] + list(map(str, arguments.more))
        if stage in MADE_REPEATS:
            train += made_manifests(manifests, arguments.out, arguments.sound_font, *MADE_REPEATS[stage])
        data = {"train": train, "validation": list(map(str, validation))}
        sections = {"data": data, **({} if init else {"model": MODEL}), **STAGES[stage]}
        sections["run"] = {**sections["run"], "keep_start": False}  # the stages add up, whatever each one gains
        path.write_text(json.dumps(sections, indent=1), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, "-m", "fastscribe", "train", str(path), "-o", str(arguments.out / stage)]
        command += ["--device", arguments.device] + (["--init", str(init)] if init else [])
        subprocess.run(command, check=True, cwd=ROOT)
        init = arguments.out / stage / "best"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--more", type=lambda path: Path(path).resolve(), nargs="+", default=[])
    parser.add_argument("--init", type=Path)
    parser.add_argument("--sound-font", type=Path, default="/usr/share/sounds/sf2/FluidR3_GM.sf2")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def prepared(speech: Path, out: Path) -> tuple[list[Path], list[Path]]:
    """Write manifests to train on, and one of each recorded corpus to validate with; paths in them are absolute.

    Recordings of HELD_SPEAKERS validate. Their sentences are in no manifest to train on, whoever reads them.
    """
    rows = {corpus: list(rows_of(speech, corpus)) for corpus in CORPORA}
    held = {corpus: [row for row in rows[corpus] if row["speaker"] in HELD_SPEAKERS] for corpus in CORPORA}
    sentences = {sentence_key(row["text"]) for found in held.values() for row in found}
    train, validation = [], []
    for corpus in CORPORA:
        train.append(written([row for row in rows[corpus] if sentence_key(row["text"]) not in sentences], out, corpus))
        if held[corpus]:
            validation.append(written(held[corpus], out, corpus.replace("train", "validation")))
    return train, validation


def written(rows: list[dict[str, Any]], out: Path, name: str) -> Path:
    path = (out / f"{name}.jsonl").resolve()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def made_manifests(
    manifests: list[Path], out: Path, sound_font: Path, join_repeat: float, sound_repeat: float
) -> list[Any]:
    """Make sounds and joins (the stages robust and strangers), unless OUT has them. Return what the recipe says of them."""
    sounds, joins = ((out / name / "manifest.jsonl").resolve() for name in ("sounds", "joined"))
    if not sounds.exists():
        rooms = [
            Path(json.loads(line)["audio_filepath"]) for line in manifests[-1].read_text(encoding="utf-8").splitlines()
        ]
        write_sounds(sounds.parent, SOUND_HOURS, sound_font, rooms)
    if not joins.exists():
        taken = dict(zip(manifests, JOIN_REPEATS, strict=True))
        write_joins(taken, joins.parent, JOIN_HOURS, sorted(sounds.parent.glob("*.flac")))
    return [
        {"path": str(joins), "repeat": join_repeat},
        {"path": str(sounds), "repeat": sound_repeat, "non_speech": True},
    ]


def rows_of(speech: Path, corpus: str) -> Iterator[dict[str, Any]]:
    for line in (speech / f"{corpus}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        row["audio_filepath"] = str((speech / row["audio_filepath"]).resolve())
        if corpus in PLAIN_CORPORA:
            row["text"] = sentence(row["text"])
        yield row


def sentence(text: str) -> str:
    """
    >>> sentence("i know i'm late")
    "I know I'm late."
    """
    text = re.sub(r"\bi\b", "I", text.strip())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


if __name__ == "__main__":
    main()
