"""Options of `fastscribe align`; run.py runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe._system.process_settings import quick_start
from fastscribe.alignment.texts import Texts
from fastscribe.audio.formats import list_kind
from fastscribe.checkpoint.hub_name import DEFAULT
from fastscribe.checkpoint.location import locate
from fastscribe.cli.app import MODEL_HELP, app, local_file, options_in
from fastscribe.cli.job import is_one_short_file
from fastscribe.cli.run import run
from fastscribe.cli.run_hooks import PackagedModel, RunHook, TranscribeJob
from fastscribe.cli.run_options import (
    DEFAULT_CHARS_PER_SECOND,
    DEFAULTS,
    AllowFailures,
    ChannelText,
    Device,
    HighlightWords,
    LogFile,
    MaxCharsPerSecond,
    MaxCueS,
    MaxLines,
    MaxLineWidth,
    MinCueS,
    MovedText,
    NoProgress,
    Ordered,
    OutputDir,
    Overwrite,
    Quiet,
    RetryFailed,
    Tokens,
    Verbose,
    allowed_failures,
    channel_of,
    make_output,
    make_style,
)
from fastscribe.cli.terminal import log_to, say
from fastscribe.config import MAX_BATCH_SIZE, MAX_THREADS, OUTPUT_FORMATS, DtypeChoice, Options, SubtitleStyle

if TYPE_CHECKING:
    from fastscribe.alignment.aligner import Aligner
    from fastscribe.transcriber import Transcriber


basic_option, audio_option = options_in("Basics"), options_in("Audio")
job_option = options_in("Big jobs")
speed_option, message_option = options_in("Speed"), options_in("Messages and reports")


@app.command(
    short_help="Time the words of known texts.",
    epilog="Example: fastscribe align talk.mp3 --text talk.txt -o out -f srt,json",
)
def align(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="As for transcribe: files, folders, globs, lists with a field text, URLs, or -.", metavar="INPUTS"
        ),
    ],
    text: Annotated[
        Path | None,
        basic_option(
            "--text",
            metavar="FILE|FOLDER",
            callback=local_file,
            help="Text or subtitles of the recording, or a folder of them.\f.txt or .md in UTF-8, or .srt, .vtt, .ass or "
            ".ssa, whose cues get new times. In a folder, the text of talk.mp3 is talk.txt, else talk.md, talk.srt and so on. "
            "Without it, the inputs are manifests whose rows have a field text.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        basic_option(
            "--model",
            "-m",
            help=f"Model with a CTC head. Default: the one in the package.\fCTC or hybrid. {MODEL_HELP}",
        ),
    ] = None,
    output_dir: OutputDir = None,
    format: Annotated[
        list[str] | None,
        basic_option(
            "--format",
            "-f",
            help=f"{', '.join(OUTPUT_FORMATS)}; default jsonl.\fRepeat or separate by commas. Into a folder "
            "with results: those that these have. Without -o in a terminal: ctm.",
        ),
    ] = None,
    device: Device = "auto",
    dtype: Annotated[DtypeChoice, basic_option("--dtype", help="Precision.\fAs for transcribe.")] = "auto",
    quiet: Quiet = False,
    max_utterance_s: Annotated[
        float | None,
        audio_option(
            "--max-utterance-s",
            min=0,
            help="Split longer audio at pauses; 0 = never.\fThe model hears each part by itself. The default is the one of "
            "transcribe.",
        ),
    ] = None,
    channel: ChannelText = None,
    track: Annotated[
        int | None,
        audio_option("--track", min=0, help="Audio track of videos. Default: 0, the first."),
    ] = None,
    tokens: Tokens = False,
    ordered: Ordered = False,
    max_line_width: MaxLineWidth = DEFAULTS.max_line_width,
    max_lines: MaxLines = DEFAULTS.max_lines,
    max_cue_s: MaxCueS = DEFAULTS.max_cue_s,
    min_cue_s: MinCueS = DEFAULTS.min_cue_s,
    max_chars_per_second: MaxCharsPerSecond = DEFAULT_CHARS_PER_SECOND,
    highlight_words: HighlightWords = False,
    retry_failed: RetryFailed = False,
    allow_failures: AllowFailures = None,
    moved: MovedText = None,
    overwrite: Overwrite = False,
    shard: Annotated[
        str | None,
        job_option("--shard", metavar="I/N", help="Do part I of N (from 0), or auto/N.\fAs for transcribe."),
    ] = None,
    batch_size: Annotated[
        int | None,
        speed_option("--batch-size", min=1, max=MAX_BATCH_SIZE, help="Maximum number of utterances in a batch."),
    ] = None,
    threads: Annotated[
        int | None,
        speed_option(
            "--threads", min=1, max=MAX_THREADS, help="Threads that read audio.\fDefault: by the number of processors."
        ),
    ] = None,
    no_progress: NoProgress = False,
    verbose: Verbose = False,
    log_file: LogFile = None,
) -> None:
    """Find when each word of a known text is spoken. Results have the formats of transcribe.

    Words that were not heard and speech that is not in the text are marked. The lines of a text or the cues of subtitles become
    segments and subtitles.
    """
    if log_file is not None:
        log_to(log_file)
    subtitles = SubtitleStyle(
        max_line_width, max_lines, max_cue_s, min_cue_s, max_chars_per_second or None, highlight_words
    )
    style = make_style(format, tokens, subtitles, output_dir, "ctm")
    texts = Texts(text)
    if text is None and not any(list_kind(given) or given == "-" for given in inputs):
        raise typer.BadParameter("no texts: give --text FILE or FOLDER, or a manifest whose rows have a field text")
    options = Options(
        batch_size=batch_size,
        batch_frames=None if batch_size is None else "auto",
        max_utterance_s=max_utterance_s,
        channel=channel_of(channel),
        track=track,
        threads=threads,
    )
    output = make_output(
        style, inputs, output_dir, shard, overwrite=overwrite, retry_failed=retry_failed, ordered=ordered, moved=moved
    )
    texts.check(has_several=len(inputs) > 1, output=output.directory, overwrite=overwrite)
    is_brief = quiet or is_one_short_file(inputs)
    path = str(locate(DEFAULT if model is None else model, say, show_progress=not (quiet or no_progress)))
    named = () if model or quiet else (PackagedModel("at the end" if is_brief else "first", is_usual=False),)
    job = TranscribeJob(
        *(path, device, dtype, options, output, None),
        hooks=(AlignHook(texts, quiet), *named),
        allowed_failures=allowed_failures(allow_failures),
        show_progress=not (quiet or no_progress),
        show_report=verbose or not is_brief,
        quiet=quiet,
        verbose=verbose,
        log_file=log_file,
    )
    run(job, None)


class AlignHook(RunHook):
    """The part of `fastscribe align` in a run.

    Args:
        texts: The texts of the recordings.
        quiet: Do not say which of several texts counts.
    """

    loads = True

    def __init__(self, texts: Texts, quiet: bool) -> None:
        super().__init__()
        self._texts, self._quiet = texts, quiet
        self._aligner: Aligner | None = None

    def load(self, job: TranscribeJob, say: Callable[[str], None]) -> Transcriber:
        """Return an aligner of the texts."""
        with quick_start():
            from fastscribe.alignment.aligner import Aligner

        loaded = Aligner.load(Path(job.model), job.device, job.dtype, job.options, say)
        self._aligner = loaded.with_texts(self._texts)
        return self._aligner

    @property
    def lines(self) -> Sequence[str]:
        """How files were read, which words were not heard, where none were looked for, which characters are not written."""
        assert self._aligner is not None
        self._texts.check_found()
        choices = () if self._quiet else self._texts.choices
        return [*choices, *self._texts.lines, *self._aligner.text_aligner.counts.lines]
