"""Options of `fastscribe transcribe` and `fastscribe export` about speakers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe.cli.app import local_file, options_in
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_hooks import ExportHook, RunHook, Stored
from fastscribe.cli.terminal import say
from fastscribe.config import CHANNELS, OutputStyle, SpeakerNames
from fastscribe.errors import ManifestError, UsageError
from fastscribe.rooms import SIDE_MODELS
from fastscribe.speakers.command import after_run
from fastscribe.speakers.settings import check_names, parse_streaming
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.cli.run_hooks import TranscribeJob
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.results.formats.speaker_names import NamesOfNobody
    from fastscribe.speakers.persons import Recording

_audio_option, _output_option = options_in("Audio"), options_in("Output")
_MODEL, _VOICE_MODEL = (SIDE_MODELS[name].example for name in ("speakers", "voices"))
# Why the dialogue of a recording has one speaker.
_REASONS = {
    "mono": ("has one channel", "have one channel"),
    "copies": ("has the same sound in all channels", "have the same sound in all channels"),
}


def _line(num: int, singular: str, plural: str) -> str:
    recordings = f"1 recording {singular}, so it has" if num == 1 else f"{num:,} recordings {plural}, so each has"
    return f"{recordings} one speaker: --speakers channels takes a speaker for each channel"


class SpeakersHook(RunHook):
    """Tells who speaks, in the fields of Options, and finds the persons of a finished run by voice."""

    def __init__(self, names: SpeakerNames | None, **fields: Any) -> None:
        super().__init__(speaker_names=None if names is None else names.in_order or None, **fields)
        self._lone: Counter[str] = Counter()  # by the reason
        self._names = names
        self._nobody = None if names is None else _of_nobody(names)

    def styled(self, style: OutputStyle) -> OutputStyle:
        """Return the style with the names that files of earlier results get too."""
        return replace(style, speaker_names=self._names)

    def result(self, written: Transcript | Failure) -> None:
        """Count a dialogue of one speaker."""
        if self.fields["speakers"] == CHANNELS and isinstance(written, Transcript) and len(written.speakers) == 1:
            self._lone["mono" if written.audio.channels == 1 else "copies"] += 1
        if self._nobody is not None:
            self._nobody.look_at([written])

    @property
    def lines(self) -> list[str]:
        """A line for each reason why recordings have one speaker."""
        return [_line(self._lone[reason], *texts) for reason, texts in _REASONS.items() if self._lone[reason]]

    def finished(self, job: TranscribeJob, stats: RunStats, quiet: bool) -> int:
        """Print names without a speaker if no recording failed, and find the persons of a finished run with voice prints.

        Return 1 if that failed.
        """
        if job.output.shard.count > 1:  # others have the rest of the recordings
            return 0
        folder = job.output.directory
        all_known = not (stats.failed or stats.failed_before) and (folder is not None or not stats.skipped)
        if self._nobody is not None and all_known:
            if folder is not None and stats.skipped:
                self._nobody.look_at(_stored_in(folder))
            for line in self._nobody.lines:
                say(line)
        if job.options.voices is None or folder is None:
            return 0
        return int(not after_run(folder, quiet))


def _of_transcribe(
    context: typer.Context,
    speakers: Annotated[
        str | None,
        _audio_option(
            "--speakers",
            metavar="channels|MODEL",
            everyday=True,
            help="Tell who speaks.\fBy channel, or by a speaker model: channels is for calls with a party on each channel: "
            "each is transcribed by itself, and words that leak from one into another are written once. A model (NVIDIA's "
            "Sortformer) tells up to eight speakers of one channel apart: its path or Hugging Face name, such as "
            f"{_MODEL}.",
        ),
    ] = None,
    speaker_names: Annotated[
        str | None,
        _audio_option(
            "--speaker-names",
            metavar="A,B|FILE",
            help="Names of the speakers.\fIn the order of the channels, or in which a model's speakers begin to speak, "
            "separated by commas, such as agent,customer; or a file with lines LABEL<TAB>NAME, or "
            "RECORDING<TAB>LABEL<TAB>NAME. Files of earlier results and of later exports get them too; none takes them "
            "away. Default: channel 1 (speaker 1) and so on.",
        ),
    ] = None,
    speaker_streaming: Annotated[
        str | None,
        _audio_option(
            "--speaker-streaming",
            metavar="NAME=N",
            help="Settings of a streaming speaker model.\fIn place of the checkpoint's, by NeMo's names, such as "
            "chunk_len=340,chunk_right_context=40,fifo_len=40,spkcache_update_period=300; also chunk_left_context and "
            "spkcache_len. In frames of its encoder. Longer chunks cost less.",
        ),
    ] = None,
    rttm: Annotated[
        Path | None,
        _audio_option(
            "--rttm",
            metavar="FILE|DIR",
            callback=local_file,
            help="Take turns from RTTM.\fWords get the speakers that another tool found: a file, or a folder with a file for "
            "each recording.",
        ),
    ] = None,
    voices: Annotated[
        str | None,
        _audio_option(
            "--voices",
            metavar="MODEL",
            help="Tell whose voices they are.\fWith --speakers or --rttm: a voice model (NVIDIA's TitaNet or ECAPA-TDNN: its "
            f"path or Hugging Face name, such as {_VOICE_MODEL}) makes a voice print of each "
            "speaker. fastscribe speakers finds the persons of all recordings by them.",
        ),
    ] = None,
) -> RunHook:
    is_path = speakers in (None, CHANNELS) or "/" in speakers or speakers.endswith(".nemo") or os.path.lexists(speakers)
    if not is_path:
        raise UsageError(
            f"--speakers {speakers}: no such file or folder: give channels if each speaker has one, or a speaker model, which "
            f"finds how many speak (--speakers {_MODEL}); names go to --speaker-names"
        )
    if speakers == CHANNELS and value_of(context, "channel") is not None:
        raise typer.BadParameter("--channel and --speakers exclude each other: --speakers channels takes all channels")
    if speaker_names is not None and speakers is None:
        raise typer.BadParameter("--speaker-names needs --speakers")
    names = None if speaker_names is None else _names_of(speaker_names)
    if speaker_streaming is not None and speakers in (None, CHANNELS):
        raise typer.BadParameter("--speaker-streaming is for a speaker model: --speakers MODEL")
    if rttm is not None and speakers is not None:
        raise typer.BadParameter("--rttm and --speakers exclude each other: both say who speaks")
    if voices is not None and speakers is None and rttm is None:
        raise typer.BadParameter("--voices needs --speakers or --rttm, which tell who speaks when")
    return SpeakersHook(
        names,
        speakers=speakers,
        speaker_streaming=None if speaker_streaming is None else parse_streaming(speaker_streaming),
        rttm=None if rttm is None else os.path.abspath(rttm),
        voices=voices,
    )


def _names_of(given: str) -> SpeakerNames:
    """Return the names of a list, or of a map; none for "none". Raises UsageError."""
    if given == "none":
        return SpeakerNames()
    from fastscribe.results.formats.speaker_names import read_speaker_map

    if os.path.isfile(given):
        names = read_speaker_map(Path(given))
        for _, _, name in names.of_labels:
            check_names([name])
        return names
    if os.path.exists(given) or "/" in given or given.endswith((".txt", ".tsv")):
        raise UsageError(f"--speaker-names {given}: no such file; names are separated by commas")
    in_order = tuple(map(str.strip, given.split(",")))
    if any(sign in given for sign in "=:"):
        raise UsageError(
            f"--speaker-names {given}: names stand in the order of the speakers, without = and :; for names by label, give a "
            "file with lines LABEL<TAB>NAME"
        )
    check_names(in_order)
    return SpeakerNames(in_order)


def _of_nobody(names: SpeakerNames) -> NamesOfNobody:
    from fastscribe.results.formats.speaker_names import NamesOfNobody

    return NamesOfNobody(names)


def _stored_in(folder: Path) -> Iterator[Transcript | Failure]:
    from fastscribe.results.export import stored_results
    from fastscribe.results.rows import read_rows

    for stored in stored_results(read_rows([str(folder)])):
        if not isinstance(stored, ManifestError):
            yield stored[0]


class SpeakerNamesHook(ExportHook):
    """Names the speakers in files, and lists names without a speaker. The rows keep their labels."""

    def __init__(self, names: SpeakerNames) -> None:
        self._names, self._nobody = names, _of_nobody(names)

    def styled(self, style: OutputStyle) -> OutputStyle:
        """Return the style with the names."""
        return replace(style, speaker_names=self._names)

    def changed(self, results: Iterable[Stored | ManifestError]) -> Iterable[Stored | ManifestError]:
        """Yield the results as they are, and look who speaks in them."""
        for stored in results:
            if not isinstance(stored, ManifestError):
                self._nobody.look_at([stored[0]])
            yield stored

    def made_in(self, folder: Path) -> None:
        """Look who speaks in the results of a folder."""
        self._nobody.look_at(_stored_in(folder))

    @property
    def lines(self) -> Sequence[str]:
        """A line about names without a speaker."""
        return self._nobody.lines


class SpeakerMapHook(ExportHook):
    """Puts the names of persons into stored results.

    Args:
        path: The speakers.json with the names.

    Raises:
        UsageError: There is no such file, or it is none of its kind.
    """

    changes = "--speaker-map"

    def __init__(self, path: Path) -> None:
        from fastscribe.speakers.persons import read_persons

        try:
            persons = read_persons(path)
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file: fastscribe speakers makes it") from None
        self._names: dict[Recording, dict[str, str]] = {}
        for (recording, speaker), name in persons.names.items():
            self._names.setdefault(recording, {})[speaker] = name
        self._num_without = 0  # results with speakers none of whom is among the persons

    def styled(self, style: OutputStyle) -> OutputStyle:
        """Return the style without names that the folder has, which are of labels."""
        return replace(style, speaker_names=SpeakerNames())

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"--speaker-map": True}

    def changed(self, results: Iterable[Stored | ManifestError]) -> Iterable[Stored | ManifestError]:
        """Yield the results with the names, which their rows have too, and count those that have none."""
        from fastscribe.results.formats.speaker_names import with_names
        from fastscribe.speakers.persons import Recording

        self._num_without = 0
        for stored in results:
            if isinstance(stored, ManifestError):
                yield stored
                continue
            result, row = stored
            if isinstance(result, Failure) or not result.speakers:
                yield stored
                continue
            names = self._names.get(Recording.of(row.fields), {})
            self._num_without += not names
            # The rows decide whether an earlier export is still right, so they have the name of each speaker.
            new_names = [names.get(one, one) for one in result.speakers]
            yield with_names(result, names), row._replace(fields={**row.fields, "speakers": new_names})

    @property
    def lines(self) -> Sequence[str]:
        """How many recordings have no name."""
        num = self._num_without
        return [f"recordings whose speakers are not in the --speaker-map: {num:,}"] if num else []


def _of_export(
    speaker_map: Annotated[
        Path | None,
        _output_option(
            "--speaker-map",
            metavar="FILE",
            help="Names of persons, from fastscribe speakers.\fThe speakers.json that it has written and you have edited. "
            "Persons without a name are person 1 and so on.",
        ),
    ] = None,
    speaker_names: Annotated[
        str | None,
        _output_option(
            "--speaker-names",
            metavar="A,B|FILE",
            help="Names of speakers in the files.\fIn the order of the channels, or in which the speakers begin to speak, "
            "separated by commas; or a file with lines LABEL<TAB>NAME, or RECORDING<TAB>LABEL<TAB>NAME. The rows keep their "
            "labels. Later files get the names too; none takes them away.",
        ),
    ] = None,
) -> ExportHook | None:
    if speaker_map is not None and speaker_names is not None:
        raise typer.BadParameter("--speaker-map and --speaker-names exclude each other: both name the speakers")
    if speaker_names is not None:
        return SpeakerNamesHook(_names_of(speaker_names))
    return None if speaker_map is None else SpeakerMapHook(speaker_map)


OPTIONS = {
    "export": AddedOptions(_of_export, after="--output-dir"),
    "transcribe": AddedOptions(_of_transcribe, after="--channel"),
}
