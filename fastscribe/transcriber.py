"""The transcriber: load a model once, then transcribe any number of inputs. pipeline/run.py has the stages of a run."""

from __future__ import annotations

import math
import os
import platform
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, overload

from fastscribe import rooms
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.audio.given import is_one
from fastscribe.checkpoint.location import locate
from fastscribe.checkpoint.reader import Checkpoint, read_for_run
from fastscribe.config import ModelConfig, Options, OutputStyle, check_kind, check_load
from fastscribe.errors import DeviceFailed, UsageError
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import Executor
from fastscribe.pipeline.interfaces import Additions, LanguageLock, ModelFacts, lock_of
from fastscribe.pipeline.run import Run
from fastscribe.pipeline.stats import DeviceShare, Progress, RunStats, Watcher
from fastscribe.results.interfaces import Ledger
from fastscribe.types import Failure, RenderedTranscript, Transcript
from fastscribe.version import __version__

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs
    from fastscribe.pipeline.local import LocalExecutor
    from fastscribe.pipeline.recognizer import Recognizer
    from fastscribe.pipeline.workers.devices import Device
    from fastscribe.readable.edits import TextEdits
    from fastscribe.speakers.stage import SpeakerStage

_DEFAULTS = Options()
_FORKED = (
    "a model's threads do not survive a fork: load models in the new process alone, or start it with the method spawn"
)


class Transcriber:
    """A loaded model and the options of its runs.

    load() makes one. Call transcribe() any number of times, one run at a time. close() ends the processes of several devices,
    and a run in another thread; later runs raise a UsageError. With one device it need not be called.

    Attributes:
        options: The options of every run; read only.
        progress: The counts of the current run, or of the last one.
        started_at: time.perf_counter() at the start of the command that runs this; None: no command does.
        load_s: Seconds that loading took.
        watcher: Called with the recordings of each batch; None: nothing is.
    """

    command = "transcribe"  # whose results an output folder holds
    started_at: float | None = None
    # Loads the model into this process if those beside it, with these facts, fail so; None: the caller has asked for them.
    load_here: Callable[[DeviceFailed, ModelFacts], Transcriber] | None = None
    _loaded_by: ClassVar[int | None] = None  # the process that loaded the first model, also in its forks

    def __init__(self, checkpoint: Checkpoint, executor: Executor, options: Options, load_s: float) -> None:
        """Make a transcriber of parts that are loaded already; load() is the usual way.

        Args:
            checkpoint: Its config and tokenizer count; its weights may be gone.
            executor: Decodes with the checkpoint's model.
            options: Options of every run.
            load_s: Seconds that loading took, for the report.
        """
        self._model = checkpoint
        self._executor = executor
        self._options = options
        self.load_s = load_s
        self.progress = Progress()
        self.watcher: Watcher | None = None
        self._edits: TextEdits | None = None
        self._languages: LanguageLock | None = None
        self._speakers: SpeakerStage | None = None
        self._auto_budget: Budget | None = None
        self._is_running = False
        self._process = os.getpid()
        self._refused = RefusedPaths(log_to_stderr)

    def __repr__(self) -> str:
        facts = self._executor.facts
        return f"<{type(self).__name__} of {self._model.path}, {facts.decoder_name}, {facts.dtype}, on {facts.device_name}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: load the model in the process that uses it")

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] = "default",
        device: str = "auto",
        dtype: str = "auto",
        options: Options = _DEFAULTS,
        say: Callable[[str], None] = log_to_stderr,
        *,
        devices: str | None = None,
    ) -> Transcriber:
        """Load a model.

        Args:
            model: What `--model` takes: a .nemo file, a Hugging Face folder, a fastscribe folder, "default" (the packaged
                model), or the name of a model on the Hugging Face hub, "organisation/name" or
                "organisation/name@revision", which is downloaded if need be. A Path is never a name.
            device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
            dtype: "auto", "fastest", "fp32", "bf16", "int8" (CPU) or "fp8" (GPU).
            options: Options of every run.
            say: Called with one line for each step of a download, for each fast path that is unavailable on this machine,
                and for a .nemo file that is used instead of the folder around it. Runs call it too, for a
                fast path that they give up and for a process that died ("the process of cpu:0 was killed by SIGKILL; ..").
            devices: Instead of `device`: "all" (every GPU), GPUs by number ("0,2"), or "cpu:N" (N processes with their share
                of the processors). Each device gets a process with a model of its own, also if it is the only one; close()
                ends them.

        Returns:
            A transcriber whose model is on its device or devices.

        Raises:
            CheckpointError: The model is missing, unsafe, unsupported or does not match its config, or its download failed.
            UsageError: The device, dtype, decoder, graph mode, detector or packaged model is unavailable here.
            DeviceFailed: No process of several devices could be started.
        """
        model = check_load(model, device, dtype, options, "all" if devices is None else devices, say)
        say = refused = RefusedPaths.around(say)
        _check_fork(Transcriber._loaded_by)
        if devices is not None and device != "auto":
            raise UsageError("device and devices exclude each other: devices alone names all devices")
        if devices is not None and options.threads == 0:
            raise UsageError("threads 0 keeps a run in one process, and devices starts others: leave one out")
        chosen = None
        if devices is not None:
            chosen = cls._devices_of(devices)  # before a download
        if options.vad == "silero":
            from fastscribe.segmentation.vad import check_vad

            check_vad()
        speakers = _open_speakers(options)
        if isinstance(model, str):
            model = locate(model, say)
        start = perf_counter()
        for name, path in rooms.paths_in(options, "model", "side model").items():
            located: Any = {name: str(locate(path, say, side_model=rooms.PATHS[name] == "side model"))}
            options = replace(options, **located)
        checkpoint = read_for_run(model, options, say)
        says_language, edits = bool(checkpoint.tokenizer.languages), None
        if options.changes_text:
            from fastscribe.readable.edits import TextEdits

            edits = TextEdits.of_model(options, checkpoint.languages, says_language)
        executor: Executor
        if chosen is None:
            from fastscribe.pipeline.local import LocalExecutor

            recognizer = cls._recognizer_of(checkpoint, device, dtype, options, say)
            executor, languages = LocalExecutor(recognizer, say), recognizer.rooms.languages
        else:
            from fastscribe.pipeline.workers import pool
            from fastscribe.pipeline.workers.messages import Start

            config = checkpoint.config
            start_message = Start(os.path.abspath(model), dtype, options)
            try:
                executor = pool.WorkerPool(chosen, start_message, lambda one: config.num_frames(one.duration_s), say)
            except (OSError, RuntimeError) as error:  # of memory that is shared, descriptors or threads
                raise DeviceFailed("the start of processes", error) from error
            languages = lock_of(checkpoint, options, executor.facts.has_prompt)
        # the models own them now
        checkpoint = replace(checkpoint, weights={}, aligner=None, others={})
        Transcriber._loaded_by = Transcriber._loaded_by or os.getpid()
        found = cls(checkpoint, executor, options, perf_counter() - start)
        found._edits, found._languages, found._speakers, found._refused = edits, languages, speakers, refused
        return found

    @classmethod
    def _recognizer_of(
        cls, checkpoint: Checkpoint, device: str, dtype: str, options: Options, say: Callable[[str], None]
    ) -> Recognizer:
        from fastscribe.pipeline.recognizer import Recognizer

        return Recognizer.build(checkpoint, device, dtype, options, say)

    @classmethod
    def _devices_of(cls, devices: str) -> tuple[Device, ...]:
        from fastscribe.pipeline.workers.devices import parse_devices

        return parse_devices(devices)

    def _content_digests(self) -> dict[str, str]:
        """Return the digests of the models and files that the options name and that rooms have read, by the option's name."""
        from fastscribe.results.fingerprint import content_digests  # of a run with a journal

        stage = self._speaker_stage
        return {**content_digests(self._options), **({} if stage is None else stage.digests())}

    def _language_settings(self) -> dict[str, str]:
        """Return the part of a fingerprint about languages: equal for options that give the same results."""
        from fastscribe.results.fingerprint import language_settings

        facts, edits = self._executor.facts, None if self._edits is None else self._edits.language
        pieces = self._model.tokenizer.pieces
        return language_settings(self._options, self._config, pieces, facts.has_prompt, facts.language, edits)

    @property
    def _speaker_stage(self) -> SpeakerStage | None:
        """What speakers add to every run; it has read what the options name once."""
        if self._speakers is None:
            self._speakers = _open_speakers(self._options)
        return self._speakers

    def _refresh(self) -> None:
        """Read files of the options again that have changed since they were read."""
        if self._speaker_stage is not None:
            self._speaker_stage.refresh()

    @property
    def _config(self) -> ModelConfig:
        return self._model.config

    @property
    def options(self) -> Options:
        return self._options

    @property
    def facts(self) -> ModelFacts:
        """What is known of the loaded model: its device, dtype, decoder and so on."""
        return self._executor.facts

    @property
    def language(self) -> str | None:
        """Tag of the only language that the model writes; None: it writes several, or it is not known."""
        return self._config.language

    @property
    def known_languages(self) -> Sequence[str]:
        """Tags of the languages that the model states; empty if it states none."""
        return self._model.languages

    @property
    def lines(self) -> list[str]:
        """Lines for the user about what options of the last run left as it was."""
        changed = [*(self._edits.lines if self._edits else ()), *(self._languages.lines if self._languages else ())]
        return [*self.progress.lines, *changed]

    @property
    def refused_paths(self) -> dict[str, str]:
        """The fast paths that were refused so far, at loading or in a run, by name ("triton", "graphs", "pinning", "helpers",
        "fp8", "int8"), with the reason of each; empty if none was. Results are the same without them, and come later."""
        return dict(self._refused.reasons)

    @property
    def _engine(self) -> LocalExecutor:
        """The executor of one device in this process."""
        from fastscribe.pipeline.local import LocalExecutor

        assert isinstance(self._executor, LocalExecutor), "the engines of several devices are in other processes"
        return self._executor

    @property
    def _recognizer(self) -> Recognizer:
        return self._engine.recognizer

    def close(self) -> None:
        """End the processes of several devices, and a run in another thread: that and later runs raise ModelClosed."""
        self._executor.close()

    def __enter__(self) -> Transcriber:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def transcribe(
        self, inputs: Inputs, *, ordered: bool = False, progress: bool = False
    ) -> Generator[Transcript | Failure]:
        """Transcribe recordings; yield each result as soon as it is there.

        Close the generator to cancel the run. A recording that fails is yielded as a Failure and the run goes on.

        Args:
            inputs: One input or several, of any kinds. An iterator is read ahead by another thread, lazily: memory does not
                grow with its length, and results do not wait for its next item. An input is

                - a path or a URL: an audio file, a folder, a glob pattern or a NeMo manifest (.json, .jsonl); "-" for stdin:
                  paths and URLs, or a recording;
                - an encoded file: bytes, bytearray or memoryview, or a file object opened in binary mode, which is read from
                  its beginning if it can seek, and stays open until its result is there: closing it cancels the recording;
                - samples: alone, an array or a tensor [S] is 16 kHz mono; with their rate in Hz, (array, rate) with a NumPy
                  array [S] or [S, C] or a torch tensor [S] or [C, S], S samples of C channels, as soundfile and torchaudio
                  give them: int16, int32, int8, uint8, or floats in [-1, 1]; a dict {"array", "sampling_rate"} or a decoder
                  as Hugging Face datasets give it (two-dimensional arrays are [C, S]), or {"bytes", "path"};
                - an Audio, which adds a key, a part or a track to any of these.

            ordered: Yield in the order of the inputs. Transcripts behind one that is not finished are held back: at most
                about two windows of them (`Options.window`), and everything behind a file that hangs.
            progress: Show a bar on stderr or in a notebook.

        Yields:
            A Transcript, or a Failure with the stage that failed. `key` is the key that the caller gave with an Audio; else
            the path of a file, and the position among the inputs, from 0, of other data. `index` is the position among all
            recordings, from 0: a folder has many. Times are in seconds.

        Raises:
            DeviceFailed: The GPU is lost.
            ModelClosed: close() ended this run, or came before it.
            UsageError: Another run of this Transcriber is not finished, or a graph mode that was asked for by name is
                unavailable.
            Exception: What an iterator of inputs raises, after the results of the inputs before it.
        """
        results = self.results(inputs)
        if ordered:
            results = in_order(results)
        if progress:
            results = with_bar(results, lambda: self.progress, inputs)
        with closing(results):
            yield from results

    def usd_per_hour(self, price_per_hour: float | None) -> tuple[float | None, str | None]:
        """Return USD an hour for all devices of a run together, and its source; None: unknown, also for GPUs of several kinds.

        Args:
            price_per_hour: The user's price of the whole machine; None: the price list's for each device, if it has one.
        """
        facts, shares = self._executor.facts, self._executor.shares()
        if price_per_hour is None and not facts.is_gpu:  # the list has none of CPUs, whose names identify no machine
            return None, None
        from fastscribe.pipeline.prices import price_of

        is_one_kind = len({one.device for one in shares if one.device}) <= 1
        return price_of(facts.device_name if is_one_kind else "", price_per_hour, max(1, len(shares)))

    def shares(self) -> Sequence[DeviceShare]:
        """Return what each of several devices did in the last run; empty for a transcriber of one device."""
        return self._executor.shares()

    @overload
    def results(
        self, inputs: Inputs, *, style: OutputStyle, ledger: Ledger | None = None
    ) -> Generator[RenderedTranscript | Failure]: ...

    @overload
    def results(
        self, inputs: Inputs, *, style: None = None, ledger: Ledger | None = None
    ) -> Generator[Transcript | Failure]: ...

    def results(
        self, inputs: Inputs, *, style: OutputStyle | None = None, ledger: Ledger | None = None
    ) -> Generator[Any]:
        """Transcribe recordings as transcribe() does, for a program that writes rows and files.

        Args:
            inputs: As for transcribe().
            style: Each Transcript comes as a RenderedTranscript, whose `contents` are its row and its files in this style;
                where there are helper processes, they make them. None: with its words.
            ledger: Decides which inputs belong to this run and are not done; the others are not opened and have no result.
                None: transcribe all.

        Yields:
            A Transcript or a Failure, in the order of completion.

        Raises:
            DeviceFailed: The GPU is lost.
            UsageError: As for transcribe(), and for a style that is no OutputStyle or a ledger that is no Ledger.
            Exception: What an iterator of inputs or the ledger raises, after the results of the inputs before it.
        """
        for name, value, kind in (("style", style, OutputStyle), ("ledger", ledger, Ledger)):
            if value is not None:
                check_kind(name, value, kind)
        if self._is_running:
            raise UsageError("another run of this Transcriber is not finished: read all its results, or close() it")
        _check_fork(self._process)
        self._is_running = True
        self._executor.style = style
        try:
            with closing(self._new_run()) as run:
                failed: DeviceFailed | None = None
                try:
                    yield from run.results(inputs, ledger)
                except DeviceFailed as error:
                    if self.load_here is None:
                        raise
                    failed = error
                if failed is not None:
                    yield from run.decoded()
                    yield from run.rest(*self._go_on_here(failed))
        finally:
            self._is_running = False

    def _go_on_here(self, failed: DeviceFailed) -> tuple[LocalExecutor, set[int]]:
        """Take the model into this process, once. Return it, and the positions of recordings that may have ended a process."""
        from fastscribe.pipeline.workers.pool import WorkerPool

        pool, load, self.load_here = self._executor, self.load_here, None
        assert isinstance(pool, WorkerPool) and load is not None
        suspects, facts = pool.give_up(failed), pool.facts
        # Frames would keep the memory that the processes share for the rest of the run.
        failed.__traceback__ = failed.__cause__ = failed.__context__ = None
        self._executor = executor = load(failed, facts)._engine
        executor.style = pool.style
        executor.begin(self._options, self._budget(), self.progress.stopwatch)
        return executor, suspects

    def _new_run(self) -> Run:
        """Reset `progress` and the executor's budget and return a run. Close it to stop its threads."""
        self.progress = Progress(watcher=self.watcher)
        try:
            self._executor.begin(self._options, self._budget(), self.progress.stopwatch)
        except DeviceFailed as failed:
            if self.load_here is None:
                raise
            self._go_on_here(failed)
        added = self._additions()
        self.progress.reports = added.reports
        return Run(self._model, self._executor, self._options, added, self.progress)

    def _additions(self) -> Additions:
        """Return what rooms add to a run."""
        found = Additions(filter=self._languages, edits=self._edits)
        if self._speaker_stage is not None:
            return self._speaker_stage.add_to(found, self._config, self._options, self._executor.facts)
        return found

    def _budget(self) -> Budget:
        """Return the budget of a batch; infinite if only the number of rows is limited."""
        requested, max_rows = self._options.batch_frames, self._options.batch_size or math.inf
        if isinstance(requested, int):
            return Budget(requested, max_rows=max_rows)
        if requested is None and math.isfinite(max_rows):
            return Budget(math.inf, max_rows=max_rows)
        if self._auto_budget is None:  # kept, with what it has learnt, for later runs
            chosen = self._executor.choose_budget()
            self._auto_budget = replace(chosen, max_rows=min(chosen.max_rows, max_rows))
        return self._auto_budget


def _check_fork(process: int | None) -> None:
    """Raise UsageError in a fork of a process that has loaded a model: without its threads, torch would wait for ever."""
    if process in (None, os.getpid()):
        return
    import torch

    if torch.get_num_threads() > 1:
        raise UsageError(_FORKED)


def _open_speakers(options: Options) -> SpeakerStage | None:
    """Return what speakers add to runs with these options. Raises UsageError for a file that cannot be used."""
    if not options.has_speakers:
        return None
    from fastscribe.speakers.stage import SpeakerStage

    return SpeakerStage(options)


def run_stats(transcriber: Transcriber, wall_s: float, price_per_hour: float | None) -> RunStats:
    """Return the report of the transcriber's last run.

    Args:
        transcriber: The transcriber, after its run.
        wall_s: Seconds from the loaded model to the last row written.
        price_per_hour: USD an hour for the whole machine; None: the price list's entry for the device, if it has one, times the
            number of devices.
    """
    progress, executor = transcriber.progress, transcriber._executor
    facts = executor.facts
    usd_per_hour, price_source = transcriber.usd_per_hour(price_per_hour)
    started_at, first_at = transcriber.started_at, progress.first_batch_at
    return RunStats(
        files=progress.files,
        failed=progress.failed,
        audio_s=progress.audio_s,
        load_s=transcriber.load_s,
        wall_s=wall_s,
        stage_s=dict(progress.stopwatch.seconds),
        padded_frames=progress.padded_frames,
        real_frames=progress.real_frames,
        left_out=dict(progress.left_out),
        repeated=progress.repeats.num,
        gaps=progress.gaps,
        gap_s=progress.gap_s,
        peak_bytes=executor.peak_bytes(),
        device=facts.device_name,
        dtype=facts.dtype,
        usd_per_hour=usd_per_hour,
        price_source=price_source,
        devices=transcriber.shares(),
        first_batch_s=None if started_at is None or first_at is None else first_at - started_at,
        total_s=None if started_at is None else perf_counter() - started_at,
        refused=transcriber.refused_paths,
        versions={"fastscribe": __version__, "torch": facts.torch_version, "python": platform.python_version()},
    )


def run_fingerprint(transcriber: Transcriber, digest: str, options: Options, style: OutputStyle) -> dict[str, Any]:
    """Return all that decides the results of a run into a folder or a store, besides its inputs.

    Args:
        transcriber: The loaded model.
        digest: Of the model's content.
        options: The run's options.
        style: The formats and their options.
    """
    from fastscribe.results.fingerprint import fingerprint  # of a run with a journal

    facts = transcriber.facts
    resolved: dict[str, Any] = {"dtype": facts.dtype, "decoder": facts.decoder_name, "attention": facts.attention}
    resolved |= {"beam": facts.beam} if facts.beam > 1 else {}
    resolved |= transcriber._content_digests()
    resolved |= {"align": True} if transcriber.command == "align" else {}
    config = transcriber._config
    if options.max_utterance_s is None and not config.learnt_on_short:  # cut as with the same number given
        resolved["max_utterance_s"] = config.max_utterance_s
    resolved |= transcriber._language_settings()
    pnc = None if options.pnc else options.pnc  # True is the default of models that have it
    return fingerprint(digest, resolved, replace(options, language=None, target_language=None, pnc=pnc), style)


# How a Python caller gets a run's results: in the order of the inputs, and with a progress bar.


Results = Generator[Transcript | Failure, None, None]


def in_order(results: Results) -> Results:
    """Yield results by index. If the run ends with an error, those that it holds back come first.

    Args:
        results: One for each index from 0 on, in any order.
    """
    held: dict[int, Transcript | Failure] = {}
    next_index = 0
    with closing(results):
        try:
            for result in results:
                held[result.index] = result
                while next_index in held:
                    yield held.pop(next_index)
                    next_index += 1
        except Exception:
            yield from (held[index] for index in sorted(held))
            raise


def with_bar(results: Results, progress: Callable[[], Progress], inputs: object) -> Results:
    """Yield the results and show a bar, in a terminal or in a notebook.

    Args:
        results: The run's results.
        progress: Returns the counts of the run.
        inputs: The caller's inputs; their number is the total, as long as no folder among them has more recordings.
    """
    with warnings.catch_warnings():  # a notebook without ipywidgets gets a bar of text, which needs no advice
        warnings.filterwarnings("ignore", "IProgress not found")
        from tqdm.auto import tqdm

    total = len(inputs) if isinstance(inputs, (list, tuple)) and not is_one(inputs) else None
    start = perf_counter()
    with closing(results), tqdm(total=total, unit="file") as bar:
        for result in results:
            counts = progress()
            if bar.total is not None and counts.files > bar.total:
                bar.total = None
            speed = counts.audio_s / (perf_counter() - start)
            failed = f", {counts.failed} failed" if counts.failed else ""
            bar.set_postfix_str(f"{counts.audio_s / 3600:.2f} h, {speed:.0f}x{failed}", refresh=False)
            bar.update()
            yield result
