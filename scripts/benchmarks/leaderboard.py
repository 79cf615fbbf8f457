"""`python -m scripts.benchmarks.leaderboard`: the Open ASR Leaderboard's protocol, scores and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe.bench.result import DEVICE_HELP, JsonFile, check_output, result
from fastscribe.cli import main
from fastscribe.cli.app import MODEL_HELP, find_model, new_app, option
from fastscribe.cli.terminal import say, show
from fastscribe.config import FloatDtypeName
from fastscribe.errors import UsageError

if TYPE_CHECKING:
    from fastscribe.transcriber import Transcriber
    from scripts.benchmarks.leaderboard_protocol import Result

PROGRAM = "python -m scripts.benchmarks.leaderboard"
app = new_app()

DIFFERENCES = (
    "the normaliser is whisper-normalizer's English one; the board's copy of it also joins dotted initials (u.s. -> us), "
    "drops ellipses and has a spelling list of its own",
    "batches hold a budget of frames unless --batch-size is given; the board gives Parakeet models 128 files a batch",
    "audio beyond 40 s is cut at pauses; the board runs long recordings with local attention, one a batch",
    "a file that fails counts as an empty text, and as no audio; the board has no such files",
)
_HELP = (
    "The Open ASR Leaderboard's protocol: bf16, longest files first, four warm-up batches, RTFx of one call, its scores.\n\n"
    f"Unlike the board's own scripts: {'; '.join(DIFFERENCES)}."
)


@app.command(
    help=_HELP,
    epilog="Example: python -m scripts.benchmarks.leaderboard librispeech_test.clean.jsonl ami_cleaned_test.jsonl "
    "-m nvidia/parakeet-tdt-0.6b-v3 --batch-size 128 -o results",
)
def leaderboard(
    manifests: Annotated[
        list[str],
        typer.Argument(
            help="NeMo manifests with audio_filepath and text, one a dataset, named DATASET_SPLIT.jsonl.",
            metavar="MANIFESTS...",
        ),
    ],
    model: Annotated[
        str | None, option("--model", "-m", help=f"{MODEL_HELP} Default: the one that comes with it.")
    ] = None,
    output_dir: Annotated[Path, option("--output-dir", "-o", help="Where the result files go.")] = Path("results"),
    batch_size: Annotated[
        int | None, option("--batch-size", min=1, help="Files a batch. Default: as many as pay; the board has 128.")
    ] = None,
    dtype: Annotated[FloatDtypeName, option("--dtype", help="The board's is bf16.")] = "bf16",
    device: Annotated[str, option("--device", help=DEVICE_HELP)] = "auto",
    model_id: Annotated[
        str | None, option("--model-id", help="The model's name in the result files. Default: from --model.")
    ] = None,
    dataset_path: Annotated[
        str, option("--dataset-path", help="What the datasets are part of, in the result files' names.")
    ] = "hf-audio/open-asr-leaderboard",
    json_file: JsonFile = None,
) -> None:
    from fastscribe._system.openmp import limit_openmp_spin
    from fastscribe.bench.subject import about, model_name
    from fastscribe.config import Options
    from scripts.benchmarks import leaderboard_protocol as board

    board.check_packages()
    check_output(json_file, manifests)
    twice = [name for name, count in Counter(Path(manifest).stem for manifest in manifests).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]}: two manifests of this name, which is a dataset's")
    limit_openmp_spin()
    from fastscribe.transcriber import Transcriber

    path = find_model(model)
    transcriber = Transcriber.load(path, device, dtype, Options(batch_size=batch_size))
    name = model_id or model_name(model, path)
    case = {"dtype": transcriber._recognizer.dtype, "batch_size": batch_size}
    with result("leaderboard", transcriber._recognizer.device, board.CASE_KEYS, json_file, PROGRAM) as found:
        found |= {"model": name, "dataset_path": dataset_path, "differences": list(DIFFERENCES), **about(transcriber)}
        found["versions"] = _versions()
        results = []
        for one in _measure_all(transcriber, manifests, name, dataset_path, output_dir):
            results.append(one)
            found["rows"].append(case | one.row())
        whole = board.composite(results)
        found["rows"].append(case | whole)
        show(f"{name}: WER = {whole['wer_percent']:.2f} %, RTFx = {whole['rtfx']:.2f} (composite of {len(results)})")
    if whole["failed"]:
        raise typer.Exit(1)


def _measure_all(
    transcriber: Transcriber, manifests: Sequence[str], model_id: str, dataset_path: str, folder: Path
) -> Iterator[Result]:
    """Measure the datasets in order and write each result before the next one begins."""
    from fastscribe.evaluation.scores import normalizer
    from scripts.benchmarks import leaderboard_protocol as board

    normalize = normalizer("whisper-en")
    read = [
        board.read(manifest, normalize) for manifest in manifests
    ]  # an error in the last one is raised before anything runs
    datasets = [board.dataset_id(manifest, dataset_path) for manifest in manifests]
    files = [folder / board.file_name(model_id, dataset) for dataset in datasets]
    for file in files:
        board.check_file(file)
    for manifest, dataset, file, (entries, left_out) in zip(manifests, datasets, files, read, strict=True):
        texts, wall_s = board.measure(transcriber, entries)
        rows = board.result_rows(entries, texts, wall_s)
        board.write(file, rows)
        for entry, text in zip(entries, texts, strict=True):
            if text is None:
                say(f"{entry.audio_filepath}: failed")
        if left_out:
            say(f"{manifest}: {left_out} of {left_out + len(entries)} rows have no reference to score: left out")
        audio_s = sum(entry.duration_s for entry, text in zip(entries, texts, strict=True) if text is not None)
        score = board.score(rows, normalize)
        found = board.Result(dataset, len(entries), left_out, texts.count(None), audio_s, wall_s, score, str(file))
        show(board.result_line(model_id, dataset, score.wer_percent, found.rtfx))
        yield found


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package) for package in ("kaldialign", "whisper-normalizer")}


if __name__ == "__main__":
    main(app)
