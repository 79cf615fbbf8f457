"""What becomes of an input before the model sees it: its file is probed and cut into utterances.

A thread of this process does that, or a helper process. It reads samples only if the recording may be cut or trimmed, or if a
room needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import RemoteMedium, is_held
from fastscribe.audio.probe import planned, probe
from fastscribe.audio.sound import close_held
from fastscribe.config import ModelConfig, Options
from fastscribe.pipeline.interfaces import PLAIN_INPUTS, PlainInputs
from fastscribe.segmentation.silence import MIN_TRIMMED_S, stays_whole
from fastscribe.types import AudioInfo, Failure, File, Samples, Source, Utterance

PreparedInput = tuple[Utterance, ...] | Failure  # a recording's utterances, channel by channel, or why there are none

_MAX_TRUSTED_S = 86_400.0  # without a limit for utterances, files with a longer stated duration are probed first


@dataclass(frozen=True)
class Preparation:
    """Prepares the inputs of a run. It holds nothing of them.

    Args:
        config: The model's config.
        options: The run's options, with the limit of utterances that it follows.
        by_phrase: The model learnt on short utterances: cut at every clear pause, and leave out long silence.
        room: Takes part.
        dry: Estimate only: open each recording, hold none, and believe stated durations also where silence would be left out.
        trusts_manifests: A row that states its duration becomes an utterance without a look at its file, which the loader
            probes.
    """

    config: ModelConfig
    options: Options
    by_phrase: bool
    room: PlainInputs = PLAIN_INPUTS
    dry: bool = False
    trusts_manifests: bool = True

    @property
    def holds(self) -> bool:
        """True if each recording is held as a whole."""
        return self.room.holds and not self.dry

    def prepare(self, source: Source | Failure) -> PreparedInput:
        """Probe and split one input. Several threads may call this."""
        if isinstance(source, Failure):
            return source
        stage = "probe"
        try:
            if self._trusts_manifest(source):
                if self.dry:
                    probe(source)  # a few are looked at, so that an estimate tells a folder that is not mounted
                audio = planned(source, self.config.features.sample_rate)
                return (Utterance(audio, 0, audio.num_samples),)
            audio = probe(source)
            self.room.check(audio)
            if self.holds:
                stage = "load"
                audio = self.room.hold(audio)
                release(source.file)
            stage = "split"
            return self._split(audio)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            release(source.file)
            return to_failure(source, stage, error)

    def _split(self, audio: AudioInfo) -> tuple[Utterance, ...]:
        limit_s, frame_s, vad = self.options.max_utterance_s or 0.0, self.config.frame_s, self.options.vad
        channels, others = self.room.channels(audio), self.room.utterances(audio)
        if all(stays_whole(one, limit_s, self.by_phrase) for one in channels):
            return (*(Utterance(one, 0, one.num_samples) for one in channels), *others)
        from fastscribe.segmentation.segment import split

        return (*(part for one in channels for part in split(one, limit_s, frame_s, vad, self.by_phrase)), *others)

    def _trusts_manifest(self, source: Source) -> bool:
        """Return True if the manifest states a duration that makes the whole recording one utterance.

        Samples in memory have no header whose reading would cost anything.
        """
        if (
            source.duration_s is None
            or not self.trusts_manifests
            or self.room.needs_file
            or isinstance(source.file, Samples)
            or (self.by_phrase and not self.dry and source.duration_s >= MIN_TRIMMED_S)
        ):
            return False
        return source.duration_s <= (self.options.max_utterance_s or _MAX_TRUSTED_S)


def release(file: File) -> None:
    """Free what reading a recording has left in memory."""
    if isinstance(file, RemoteMedium):
        file.drop()  # the caller may keep the transcript
    elif is_held(file):
        close_held(file)
