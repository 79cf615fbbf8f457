"""Fine-tune the packaged model on few clips, and see if validation knew which model was better on many others.

    python -m scripts.benchmarks.few_words SPEECH --json docs/bench/train/few-words.json

Each seed draws clips of `--train`, a tenth of which `fastscribe train` keeps to validate with. The run has `keep_start: false`:
`best` is the step with the lowest rate, and the log says if the rule would have kept the start instead. Both models are then
measured on the first recordings of `--test`, which took part in nothing, greedily as in validation. The last line of stdout is
one JSON document.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fastscribe import Options, Transcriber
from fastscribe.evaluation.scores import Pair, normalizer, score_pairs
from fastscribe.training.gain import Counts, Gain, num_words
from fastscribe.types import Transcript
from scripts.benchmarks.gap_recovery import parser_of, publish


def rows_of(speech: Path, split: str) -> list[dict[str, Any]]:
    """Return a manifest's rows with absolute paths."""
    rows = map(json.loads, (speech / f"{split}.jsonl").read_text(encoding="utf-8").splitlines())
    return [{**row, "audio_filepath": str((speech / row["audio_filepath"]).resolve())} for row in rows]


def counts_of(model: str, rows: list[dict[str, Any]]) -> Counts:
    """Return errors and words of each recording."""
    normalize = normalizer("whisper-en")
    transcriber = Transcriber.load(model, "cpu", "fp32", Options(beam=1))
    done = transcriber.transcribe([row["audio_filepath"] for row in rows])
    texts = {one.audio.path: one.text for one in done if isinstance(one, Transcript)}
    scored = score_pairs(Pair(normalize(row["text"]), normalize(texts[row["audio_filepath"]])) for row in rows)
    return {index: (one.words.errors, one.words.units) for index, one in enumerate(scored)}


def rate_of(counts: Counts) -> float:
    return round(sum(errors for errors, _ in counts.values()) / num_words(counts), 5)


def tuned(clips: list[dict[str, Any]], seed: int, epochs: int, out: Path) -> dict[str, Any]:
    """Fine-tune into out/best. Return the last row of the log whose step became `best`, with the start's rate."""
    manifest, recipe = out.with_suffix(".jsonl"), out.with_suffix(".yaml")
    manifest.write_text("".join(json.dumps(row) + "\n" for row in clips), encoding="utf-8")
    run = {"epochs": epochs, "seed": seed, "keep_start": False}
    recipe.write_text(json.dumps({"data": {"train": str(manifest)}, "run": run}), encoding="utf-8")  # JSON is YAML
    command = [
        "-m",
        "fastscribe",
        "train",
        str(recipe),
        "-o",
        str(out),
        "--init",
        "default",
        "--device",
        "cpu",
        "--dtype",
        "fp32",
    ]
    subprocess.run([sys.executable, *command], check=True)
    log = [json.loads(line) for line in (out / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    validations = [row for row in log if "validation" in row]
    best = next(row for row in validations if row["step"] == validations[-1]["best_step"])
    return {"start_rate": validations[0]["validation"]["wer"], **best}


def main() -> None:
    parser = parser_of(__doc__, ["greedy"], ["greedy"])
    parser.add_argument("--train", default="train_accented")
    parser.add_argument("--test", default="test_accented")
    parser.add_argument("--num-train", type=int, default=50)
    parser.add_argument("--num-test", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    test, results = rows_of(arguments.speech, arguments.test)[: arguments.num_test], []
    start = counts_of("default", test)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            clips = random.Random(seed).sample(rows_of(arguments.speech, arguments.train), arguments.num_train)
            out = Path(folder) / str(seed)
            best = tuned(clips, seed, arguments.epochs, out)
            trained = counts_of(str(out / "best"), test)
            results.append(
                {
                    "seed": seed,
                    "validation_start_wer": best["start_rate"],
                    "validation_best_wer": best["validation"]["wer"],
                    "validation_gain": best["gain"],
                    "rule_keeps": "the trained model" if best["gain"]["is_clear"] else "the start",
                    "test_start_wer": rate_of(start),
                    "test_best_wer": rate_of(trained),
                    "test_gain": Gain.between(start, trained).to_json(),
                }
            )
            print(json.dumps(results[-1]), file=sys.stderr)
    publish(
        "few_words", f"{arguments.num_train} clips of {arguments.train}, {arguments.epochs} epochs", arguments, results
    )


if __name__ == "__main__":
    main()
