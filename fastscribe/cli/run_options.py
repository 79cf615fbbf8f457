"""Options that the commands share which make results of recordings: transcribe and align."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastscribe.cli.app import local_file, options_in

_basic_option, _audio_option, _output_option = options_in("Basics"), options_in("Audio"), options_in("Output")
_job_option, _message_option = options_in("Big jobs"), options_in("Messages and reports")

OutputDir = Annotated[
    str | None,
    _basic_option("--output-dir", "-o", help="Folder or URL for results. Default: stdout.\fThe same command resumes."),
]
Device = Annotated[str, _basic_option("--device", help="auto, cpu, cuda or cuda:1 ...")]
Quiet = Annotated[
    bool, _basic_option("--quiet", "-q", help="Print failures and warnings only.\fNo progress, no report.")
]
Channel = Annotated[int | None, _audio_option("--channel", min=0, help="Channel to use, from 0. Default: their mean.")]
Tokens = Annotated[bool, _output_option("--tokens", help="Also write tokens, their times and confidence.")]
Ordered = Annotated[
    bool, _output_option("--ordered", help="Write rows in the order of the inputs.\fDefault: of completion.")
]
RetryFailed = Annotated[
    bool,
    _job_option(
        "--retry-failed", help="Retry files that failed in an earlier run.\fThat run wrote into the same folder."
    ),
]
Overwrite = Annotated[
    bool,
    _job_option(
        "--overwrite",
        help="Remove the folder's results, and start over.\fOnly files listed in the folder's journal are removed.",
    ),
]
NoProgress = Annotated[bool, _message_option("--no-progress", help="Print no progress.")]
LogFile = Annotated[
    Path | None,
    _message_option(
        "--log-file", callback=local_file, help="Append messages with times to this file.\fIt is new or an earlier log."
    ),
]
