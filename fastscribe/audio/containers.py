"""Read audio tracks of containers (M4A, MP4, MKV, WebM, WMA, AMR ..) with FFmpeg's libraries, through PyAV.

Times are a player's: sample 0 is the moment at which the container starts, a track that starts later begins with silence,
and encoder delay and edit lists are honoured. A frame's position comes from its timestamp. Timestamps in Matroska and ASF
count milliseconds, so within a run of frames the samples are counted, and after a seek the position snaps to the grid of
the codec's frames. A gap in the timestamps becomes silence. Where a clock starts again (joined MPEG-TS) or counts wrongly
(ADTS, MP3 and AC-3 whose sample rate changes), positions are counted from the start of the file, so each part of it is found by
decoding from there (AudioInfo.reading). Samples of another rate than the first are resampled to it.

This module is imported when the first such file is opened, because most runs need no PyAV.

Dimensions: S samples, C channels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
from av.error import ArgumentError, FFmpegError, InvalidDataError
from av.packet import Packet
from av.stream import Discard

from fastscribe._system.positioned_read import BINARY
from fastscribe._system.shared_calls import SharedCalls
from fastscribe.audio.data_size import is_whole_matroska
from fastscribe.audio.failures import ContainerError, NotAContainer
from fastscribe.audio.formats import MISSING_TOLERANCE_S, missing_problem
from fastscribe.audio.frame_samples import FrameSamples, RateConverter, mixed
from fastscribe.audio.header import FROM_START, Header
from fastscribe.audio.media import GuardedFile, is_held
from fastscribe.types import Float32Array, Medium, SampleArray

if TYPE_CHECKING:
    from av.audio.codeccontext import AudioCodecContext
    from av.audio.frame import AudioFrame
    from av.audio.layout import AudioLayout
    from av.audio.stream import AudioStream
    from av.container import InputContainer

    AudioPacket = Packet[AudioStream]

# Each holds its recording itself. Playlists and scripts would make FFmpeg open other files and addresses; pictures, subtitles,
# devices, samples without a header and the formats of single games are left out too.
_DEMUXERS = (
    "aa,aac,aax,ac3,adx,aea,aiff,amr,amrnb,amrwb,ape,asf,asf_o,ast,au,avi,avr,bonk,caf,codec2,dhav,dsf,dss,dts,dtshd,dv,eac3,epaf,"
    "flac,flv,gxf,hcom,iamf,iff,ilbc,ircam,ivr,kux,live_flv,loas,lxf,matroska,webm,mlp,mmf,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpc,"
    "mpc8,mpeg,mpegts,mxf,mxg,nistsphere,nsv,nut,nuv,ogg,oma,osq,pva,pvf,qcp,qoa,rka,rm,rso,shn,sox,swf,tak,truehd,tta,ty,"
    "vivo,voc,vqf,w64,wav,wavarc,wsd,wtv,wv,wve,xa,xwma"
)
_QUICKLY = {"formatprobesize": str(1 << 15)}  # bytes; by default it tries 350 formats on up to a mebibyte
_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "fd"}
# Their headers state a length, which the packets have to reach. Those of others are estimates, or data_size.py checks them.
_STATES_LENGTH = frozenset({"ape", "ast", "caf", "flv", "gxf", "matroska", "mov", "mxf", "tta", "wv"})
_NO_STREAM_LENGTH = frozenset({"flv", "matroska"})  # they state a length for the container and none for a track
_WITHOUT_CLOCK = frozenset({"aac", "ac3", "eac3", "mp3"})  # their times count frames of the first sample rate
_CLOCK_MAY_RESTART = frozenset({"mpeg", "mpegts"})
_MAX_JUMP_S = 10  # a longer one in a clock that may restart is a restart, as for the ffmpeg command
_MIN_LEAD_S = Fraction(1, 100)  # a smaller difference between the starts of a track and its container is rounding
_JITTER_S = 0.02  # a larger difference between timestamps and counted samples is a gap or an overlap
_OGG_JITTER_S = 0.002  # of Opus in Ogg, whose positions are exact
_BEFORE_START_S = 10  # a seek to so long before the start finds the first packet
PREROLL_S = 0.5  # decoded and dropped before a position, until a decoder's state no longer depends on the seek
_MAX_HEADERS = 256
_OPUS = ("opus", "libopus")
# Codecs whose frames have the channels that the container names.
_LAYOUT_OF_CONTAINER = ("pcm_", "adpcm_", "dsd_", "flac", "mace", "sdx2_dpcm")
# In these, FFmpeg guesses times and places from a bit rate. Unless their samples are PCM, they are counted as they are decoded.
_WITHOUT_TIMES = frozenset({"aiff", "au", "voc", "w64", "wav", "xwma"})
_RESYNC_BYTES = 1 << 16  # in which FFmpeg looks for the next packet of MPEG-TS
_LOST_PACKET_S = 0.05  # the length of a packet that does not say its own
_MAX_UNFRAMED_BYTES = 8 << 20
_OPUS_STEP = 120  # samples at 48,000 Hz; every Opus packet is a multiple


def demuxers() -> list[str]:
    """Return the kinds of container that are read and that this FFmpeg has."""
    return sorted(set(_DEMUXERS.split(",")) & av.formats_available)


def track_header(medium: Medium, track: int, to_end: bool = False) -> Header:
    """Measure an audio track: decode its first frame, and find its end without decoding.

    The index of an MP4 gives the end. In other containers every packet is read, because stated durations are often
    estimates, and memory is planned by this number.

    Args:
        medium: the file.
        track: the number among the audio tracks, from 0.
        to_end: it holds more samples than its header gives (data_size.py).

    Raises:
        NotAContainer: FFmpeg does not recognise the file.
        ContainerError: no such track, damaged, or truncated.
        OSError: the file cannot be read.
    """
    if is_held(medium):  # its identity is a name only
        return _measure(medium, track, to_end)
    key = (medium.identity, medium.version(), track)
    return _headers.get(key) or _measuring.call(key, lambda: _cached_header(key, medium, track, to_end))


def _cached_header(key: tuple[str, str, int], medium: Medium, track: int, to_end: bool) -> Header:
    """Measure a track, unless it is in the cache, which holds no medium."""
    header = _headers.get(key) or _measure(medium, track, to_end)
    if len(_headers) >= _MAX_HEADERS:
        _headers.clear()
    _headers[key] = header
    return header


def _measure(medium: Medium, track: int, to_end: bool) -> Header:
    with closing(Track(medium, track, to_end=to_end)) as opened:
        num_samples = opened.measure()
        reading = FROM_START if opened.from_start else ""
        found = opened.samplerate, opened.channels, num_samples, False, opened.layout, opened.num_tracks
        return Header(*found, reading, tuple(opened.notes))


_headers: dict[tuple[str, str, int], Header] = {}  # rows of a manifest that cut one recording measure it once
_measuring: SharedCalls[tuple[str, str, int], Header] = SharedCalls()


class Track:
    """An open audio track with the methods of soundfile.SoundFile that read.py uses. For one thread at a time."""

    format, subtype = "FFmpeg", "FFmpeg"

    def __init__(self, medium: Medium, track: int, from_start: bool = False, to_end: bool = False) -> None:
        """Open the track and decode its first frame. Raises as track_header()."""
        self._medium, self._num_bytes, self._path, self._track = medium, medium.num_bytes(), medium.local_path, track
        self.from_start = from_start
        self.notes: list[str] = []
        self._options = {"ignore_length": "1"} if to_end else {}
        self._file = None if self._path is not None else GuardedFile(medium.open())
        with ExitStack() as on_error:
            if self._file is not None:
                on_error.callback(self._file.close)
            with self._file_errors():
                self._container = on_error.enter_context(closing(_open(self._path, self._file, self._options)))
                self._take_stream()
                self._start()
            on_error.pop_all()

    def _take_stream(self) -> None:
        """Choose the track's stream in the container that was opened."""
        self._stream = self._pick(self._track)
        codec = self._stream.codec_context
        codec.thread_count = 1  # the loader has threads enough
        self._given_names = _take_layout(codec) if codec.name.startswith(_LAYOUT_OF_CONTAINER) else ()
        self._read_other_streams(False)

    def _start(self) -> None:
        """Decode the track's first frame and set the clock."""
        # In ticks of the stream's clock:
        self._tick_s = _exact(self._stream.time_base) or Fraction(1, 1_000_000)
        self._origin: int = 0  # sample 0
        self._end: int | None = None  # of the packets read so far
        self._packet_ticks = 0  # the last packet's duration
        self._position = 0  # of the next sample to return
        self._expected: int | None = None  # position after the last decoded frame
        self._pending: tuple[int, Float32Array] | None = None  # decoded samples [S, C] and their position
        codec = self._stream.codec_context
        is_guessed = bool(self._names & _WITHOUT_TIMES) and not codec.name.startswith("pcm_")
        # AAC frames without their lengths, which the decoder finds if it gets all at once
        self._is_unframed = is_guessed and codec.name == "aac" and codec.extradata is not None
        self._samples = FrameSamples()
        self._resampler: RateConverter | None = None  # of frames whose rate is another
        self._shift = 0  # samples by which a clock that starts again is behind
        self._is_ogg, self._is_opus = "ogg" in self._names, codec.name in _OPUS
        self._jitter_s = _OGG_JITTER_S if self._is_ogg and self._is_opus else _JITTER_S
        self._restart_decoder()
        first = self._first_frame()
        is_untimed = is_guessed or self._end is None
        self.from_start = self.from_start or is_untimed
        self.samplerate, self.channels = first.sample_rate, first.layout.nb_channels
        is_given = "NONE" not in self._given_names and len(self._given_names) == self.channels
        names = self._given_names if is_given else _names_of(first.layout)
        self.layout = None if "NONE" in names else names  # what each channel is for
        self._samples_per_tick = self._tick_s * self.samplerate
        start, container_start_us = 0 if is_untimed else first.pts or 0, self._container.start_time
        lead_ticks = (
            0
            if container_start_us is None or is_untimed
            else start - round(Fraction(container_start_us, 10**6) / self._tick_s)
        )
        self._origin = start - (lead_ticks if lead_ticks * self._tick_s > _MIN_LEAD_S else 0)
        lead = self._to_samples(start)
        self._grid_phase = lead + first.samples
        context = self._stream.codec_context
        # A frame's samples are a multiple of this; the first frame's number is taken if the codec's is unknown.
        self._grid_step = _OPUS_STEP if self._is_opus else context.frame_size or first.samples
        self._accept(first, lead)

    def _pick(self, track: int) -> AudioStream:
        streams = self._container.streams
        self.num_tracks = len(streams.audio)
        if self.num_tracks == 0:
            raise ContainerError("is a video without an audio track" if streams.video else "holds no audio")
        if track >= self.num_tracks:
            has = f"it has {self.num_tracks} audio track{'s' if self.num_tracks > 1 else ''}"
            raise ContainerError(f"track {track} was asked for, but {has} (counted from 0)")
        stream = streams.audio[track]
        if stream.codec_context is None:
            raise ContainerError(
                "its audio is in a format that FFmpeg does not decode: convert it with the program that made it"
            )
        return stream

    def _read_other_streams(self, wanted: bool) -> None:
        """Let FFmpeg skip the bytes of the other streams, such as pictures, unless they are wanted."""
        for stream in self._container.streams:
            if stream is not self._stream:
                stream.discard = Discard.default if wanted else Discard.all

    def close(self) -> None:
        self._frames.close()
        self._container.close()
        if self._file is not None:
            self._file.close()

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        """Raise the file's own error in place of what FFmpeg makes of it, or of samples that end with it."""
        try:
            yield
        finally:
            if self._file is not None:
                self._file.check()

    # Length

    def measure(self) -> int:
        """Return the number of samples from the container's start to the track's end. The track cannot be read after it.

        Raises:
            ContainerError: the file is truncated or damaged.
        """
        with self._file_errors():
            end = None if self.from_start else self._indexed_end()
            if end is None and not self.from_start:
                end = self._walked_end()  # which may find out that the times are wrong
            num_samples = self._decoded_end(0) if self.from_start or end is None else self._to_samples(end)
        if num_samples <= 0:
            raise ContainerError("holds no samples")
        return num_samples

    def _indexed_end(self) -> int | None:
        """Return the end that a complete index gives; None without one. Reading a few entries checks the file's size."""
        entries, stream = self._stream.index_entries, self._stream
        if "mov" not in self._names or not stream.frames or len(entries) != stream.frames or not stream.duration:
            return None
        end = (stream.start_time or 0) + stream.duration
        last = entries[len(entries) - 1]
        if (end - last.timestamp) * self._tick_s > 1:  # an edit list that repeats or reorders
            return None
        if last.pos + last.size > self._num_bytes:
            low, high = 0, len(entries) - 1  # the first entry beyond the end; samples lie in the order of their times
            while low < high:
                middle = (low + high) // 2
                entry = entries[middle]
                low, high = (low, middle) if entry.pos + entry.size > self._num_bytes else (middle + 1, high)
            held = max(0, entries[low].timestamp - self._origin)
            problem = missing_problem(float((end - self._origin) * self._tick_s), float(held * self._tick_s))
            if problem is not None:
                raise ContainerError(problem)
        return int(end)

    def _walked_end(self) -> int:
        """Read all packets; return the track's end. Compare the end of all tracks with the header's."""
        is_estimate = bool(self._names & _NO_STREAM_LENGTH) and self._stream.duration is not None  # from a bit rate
        has_length = bool(self._names & _STATES_LENGTH) and self._container.duration is not None
        states_length = has_length and not is_estimate
        ends = {self._stream.index: self._end or self._origin}  # by stream, in its own ticks
        is_whole, num_packets, last_begin = True, 0, 0
        still_ticks = 0  # of packets that begin where the one before does
        rate_of = _RATES.get(self._stream.codec_context.name) if self._names & _WITHOUT_CLOCK else None
        rates: set[object] = set()
        self._read_other_streams(states_length)
        try:
            for packet in self._packets() if states_length else self._packets(self._stream):
                end = _packet_end(packet)
                if end is None:
                    continue
                if packet.stream_index == self._stream.index:
                    begin = end - (packet.duration or 0)
                    still_ticks += end - begin if num_packets and begin == last_begin else 0
                    last_begin, num_packets = begin, num_packets + 1
                    if rate_of is not None and packet.size > _RATE_BYTES:
                        rates.add(rate_of(bytes(memoryview(packet)[:_RATE_BYTES])))
                    self._check_order(last_begin)
                    self._note_end(packet, end)
                elif end > ends.get(packet.stream_index, end - 1):
                    ends[packet.stream_index] = end
        except FFmpegError as error:
            if not states_length:
                raise ContainerError(f"damaged or truncated ({_reason(error)})") from error
            is_whole = False
        assert self._end is not None
        is_clock_stopped = still_ticks * self._tick_s > MISSING_TOLERANCE_S
        self.from_start = self.from_start or len(rates) > 1 or is_clock_stopped
        if self.from_start:
            return self._end
        ends[self._stream.index] = self._end
        packet_s = (self._end - self._origin) * self._tick_s / max(1, num_packets)
        is_end_unsure = packet_s > MISSING_TOLERANCE_S or last_begin == self._end  # the last packet may be a short one
        if is_whole and is_end_unsure:
            self._end = self._origin + round(self._decoded_end(last_begin) / self._samples_per_tick)
            ends[self._stream.index] = max(ends[self._stream.index], self._end)
        if states_length:
            self._check_promise(ends)
        if not is_whole:
            raise ContainerError("damaged or truncated: its end cannot be read")
        return self._end

    def _check_promise(self, ends: Mapping[int, int]) -> None:
        """Raise ContainerError if the container states a length that its streams do not reach.

        Some writers count it from 0, not from the start. A Matroska file whose bytes are all there has a wrong length at most.
        """
        begin_s, promised_s = (
            Fraction(us or 0, 10**6) for us in (self._container.start_time, self._container.duration)
        )
        last_s = max(end * _exact(self._container.streams[index].time_base) for index, end in ends.items())
        problem = missing_problem(float(promised_s), float(last_s - begin_s))
        if problem is None or abs(promised_s - last_s) <= MISSING_TOLERANCE_S:
            return
        with closing(self._medium.open()) as file:
            is_whole = is_whole_matroska(file, self._num_bytes)
        if not is_whole:
            raise ContainerError(problem)
        if promised_s > last_s:
            self.notes.append(problem.removeprefix("truncated: "))

    def _decoded_end(self, begin: int) -> int:
        """Decode from this time to the end of the track, or all of it; return the position of the end."""
        self.seek(max(0, self._to_samples(begin)) if begin else 0)
        if self.from_start:
            self._restart(None)
        while self._decode_next():
            pass
        return self._expected or 0

    def _check_order(self, begin: int) -> None:
        """Raise ContainerError if a packet begins long before the end of those read so far, unless the clock may restart."""
        if self._end is None:
            return
        jump_s = (begin - self._end) * self._tick_s
        if self._names & _CLOCK_MAY_RESTART and not -MISSING_TOLERANCE_S <= jump_s <= _MAX_JUMP_S:
            self.from_start = True
        elif jump_s < -MISSING_TOLERANCE_S:
            at_s = float((self._end - self._origin) * self._tick_s)
            raise ContainerError(
                f"several recordings in one: its times start again at {at_s:.2f} s: convert it, e.g. with ffmpeg"
            )

    def _note_end(self, packet: Packet[Any], end: int) -> None:
        """Extend the track to the packet's end; a packet without a duration lasts as long as the one before."""
        if not packet.duration:
            end += self._packet_ticks
        elif self._end is None or end > self._end:
            self._packet_ticks = packet.duration
        self._end = end if self._end is None else max(self._end, end)

    def _to_samples(self, ticks: int) -> int:
        """Return the position of a moment on the stream's clock."""
        scale = self._samples_per_tick
        return (2 * (ticks - self._origin) * scale.numerator + scale.denominator) // (2 * scale.denominator)

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(self._container.format.name.split(","))

    # Samples

    def seek(self, position: int) -> None:
        """Continue at this sample."""
        with self._file_errors():
            self._position = position
            begin = 0 if self.from_start else position - round(PREROLL_S * self.samplerate)
            reached = self._pending[0] if self._pending is not None else self._expected
            if reached is not None and begin <= reached <= position:
                return
            while begin > 0:
                self._restart(self._origin + int(begin / self._samples_per_tick))
                if self._decode_next() and self._pending is not None and self._pending[0] <= position:
                    return
                begin -= 2 * (position - begin)  # some demuxers seek to a later packet
            self._restart(None)

    def _restart(self, time: int | None) -> None:
        """Go to a packet at or before the time, or to the start."""
        stream = self._stream
        offset = time if time is not None else self._origin - int(_BEFORE_START_S / self._tick_s)
        try:
            self._container.seek(offset, stream=stream)
        except FFmpegError:
            if time is not None:
                return self._restart(None)
            self._frames.close()
            self._container.close()
            if self._file is not None:
                self._file.seek(0)
            self._container = _open(self._path, self._file, self._options)
            self._take_stream()
        self._restart_decoder(is_sought=time is not None)

    def _restart_decoder(self, is_sought: bool = False) -> None:
        """Decode from the container's place on."""
        self._expected, self._pending, self._resampler, self._shift = None, None, None, 0
        self._lost_s = 0.0  # of packets that could not be decoded
        packets = self._packets(self._stream)
        if self._is_unframed:
            packets = self._joined(packets)
        elif self._is_ogg and self._is_opus:
            packets = _at_page_ends(packets)
        elif self._is_ogg and is_sought:
            packets = _after_first_page(packets)
        self._frames = self._decode(packets)

    def buffer_read_into(self, samples_SC: SampleArray, dtype: str) -> int:
        """Fill float32 samples [S, C] from the front; return the number read, which is lower at the end.

        Raises:
            ContainerError: more than a tenth of a second cannot be decoded.
        """
        assert dtype == "float32"
        with self._file_errors():
            filled, wanted = 0, len(samples_SC)
            while filled < wanted and (self._pending is not None or self._decode_next()):
                assert self._pending is not None
                at, block_SC = self._pending
                if at > self._position:  # a gap
                    count = min(at - self._position, wanted - filled)
                    samples_SC[filled : filled + count] = 0
                else:
                    skipped = self._position - at
                    count = max(0, min(len(block_SC) - skipped, wanted - filled))
                    samples_SC[filled : filled + count] = block_SC[skipped : skipped + count]
                    if skipped + count >= len(block_SC):
                        self._pending = None
                filled += count
                self._position += count
            return filled

    def _decode_next(self) -> bool:
        """Decode the next frame with samples into _pending; return False at the end."""
        for frame in self._frames:
            if frame.samples:
                self._accept(frame, self._frame_position(frame))
                return True
        if self._resampler is None:
            return False
        self._pending = self._resampler.at, self._resampler.rest()
        self._resampler = None
        return True

    def _decode(self, packets: Iterator[AudioPacket]) -> Generator[AudioFrame, None, None]:
        """Yield the packets' frames. Packets that cannot be decoded (tags, damage) are left out, 0.1 s at most."""
        try:
            for packet in packets:
                end = _packet_end(packet)
                if end is not None:
                    self._note_end(packet, end)
                try:
                    yield from packet.decode()
                except FFmpegError as error:
                    if end is None or self._to_samples(end) > self._position:  # else it is decoded for those after it
                        self._lost_s += float(self._packet_ticks * self._tick_s) or _LOST_PACKET_S
                    if self._lost_s > MISSING_TOLERANCE_S:
                        at_s = 0.0 if end is None else float((end - self._packet_ticks - self._origin) * self._tick_s)
                        problem = f"damaged near {max(0.0, at_s):.2f} s: cannot be decoded ({_reason(error)})"
                        raise ContainerError(problem) from error
        except FFmpegError as error:
            raise ContainerError(f"damaged or truncated ({_reason(error)})") from error

    def _packets(self, *streams: AudioStream) -> Iterator[Any]:
        for _ in range(2 + self._num_bytes // _RESYNC_BYTES):
            try:
                yield from self._container.demux(*streams)
                return
            except PermissionError:  # FFmpeg's number -1, with which it ends GXF
                if "gxf" not in self._names:
                    raise
                return
            except BlockingIOError:  # MPEG-TS: this many bytes hold no packet, as where a recorder reserves room
                continue

    def _joined(self, packets: Iterator[AudioPacket]) -> Iterator[AudioPacket]:
        """Yield the bytes of all packets as one packet, and the end of the stream."""
        parts, num_bytes = [], 0
        for packet in packets:
            parts.append(bytes(packet))
            num_bytes += len(parts[-1])
            if num_bytes > _MAX_UNFRAMED_BYTES:
                held = f"more than {_MAX_UNFRAMED_BYTES >> 20} MiB of AAC without the lengths of its frames"
                raise ContainerError(f"{held}, which no tool divides: make it from its source again, as M4A or FLAC")
        for content in (b"".join(parts), b""):
            joined: Any = Packet(content)
            joined.stream = self._stream
            yield joined

    def _first_frame(self) -> AudioFrame:
        self._samples_per_tick = Fraction(0)
        for frame in self._frames:
            if frame.samples:
                return frame
        raise ContainerError("no samples can be decoded: empty, damaged, or of a format that FFmpeg does not decode")

    def _frame_position(self, frame: AudioFrame) -> int:
        """Return the position of a frame's first sample."""
        if frame.pts is None or (self.from_start and not self._names & _CLOCK_MAY_RESTART):
            return self._expected or 0
        position = self._to_samples(frame.pts) + self._shift
        if self._expected is not None:
            jump_s = (position - self._expected) / self.samplerate
            if self.from_start and not -MISSING_TOLERANCE_S <= jump_s <= _MAX_JUMP_S:
                self._shift -= position - self._expected
                return self._expected
            return self._expected if abs(jump_s) <= self._jitter_s else position
        if self._samples_per_tick > 1:  # a coarse clock, after a seek
            on_grid = self._grid_phase + self._grid_step * round((position - self._grid_phase) / self._grid_step)
            position = on_grid if abs(on_grid - position) <= self._samples_per_tick else position
        return position

    def _accept(self, frame: AudioFrame, position: int) -> None:
        """Make a frame's samples the pending ones."""
        samples_SC = self._samples.of(frame)
        if samples_SC.shape[1] != self.channels:
            samples_SC = mixed(samples_SC, [channel.name for channel in frame.layout.channels]).repeat(self.channels, 1)
        self._expected = position + len(samples_SC)
        if frame.sample_rate == self.samplerate and self._resampler is None:
            self._pending = position, samples_SC
            return
        rest_SC = samples_SC[:0]
        if self._resampler is not None and self._resampler.rate != frame.sample_rate:
            position, rest_SC = self._resampler.at, self._resampler.rest()
            self._resampler = None
        if frame.sample_rate != self.samplerate:
            if self._resampler is None:
                self._resampler = RateConverter(
                    frame.sample_rate, self.samplerate, self.channels, position + len(rest_SC)
                )
            self._expected, position, samples_SC = self._resampler.convert(samples_SC)
        self._pending = position - len(rest_SC), np.concatenate([rest_SC, samples_SC])


def _names_of(layout: AudioLayout) -> tuple[str, ...]:
    return tuple(channel.name for channel in layout.channels)


def _take_layout(codec: AudioCodecContext) -> tuple[str, ...]:
    """Return what a container says that each channel is for, and leave the codec only their number.

    An order that is not FFmpeg's own has memory, which PyAV's objects share and each of them frees: the process would crash.
    Here one object has it, because the codec is given another layout before it is opened.
    """
    layout = codec.layout
    if layout.nb_channels:
        codec.layout = f"{layout.nb_channels}C"
    return _names_of(layout)


def holds_track(path: str) -> bool:
    """Return True if FFmpeg finds an audio track that it decodes in a local file, by the file's first bytes."""
    try:
        with closing(_open(path, None, _QUICKLY)) as container:
            return any(stream.codec_context is not None for stream in container.streams.audio)
    except (ContainerError, OSError):
        return False


def _at_page_ends(packets: Iterator[AudioPacket]) -> Iterator[AudioPacket]:
    """Give the packets of each Ogg page times that end at the page's position (RFC 7845). FFmpeg lets the first one begin where
    the page before ends, so that a gap would come behind it, and before it once that page has been sought."""
    page: list[AudioPacket] = []
    for packet in packets:
        if page and packet.pos != page[0].pos:
            yield from _moved(page, packet.pts)
            page = []
        page.append(packet)
    yield from _moved(page, None)


def _moved(page: list[AudioPacket], end: int | None) -> list[AudioPacket]:
    """Move packets that end before the next one of their page begins, or before the page's end, if it is known."""
    for packet in reversed(page):
        if packet.pts is not None and packet.duration and end is not None and packet.pts + packet.duration < end:
            packet.pts = packet.dts = end - packet.duration
        end = packet.pts
    return page


def _after_first_page(packets: Iterator[AudioPacket]) -> Iterator[AudioPacket]:
    """Leave out the packets of the first Ogg page after a seek: FFmpeg gives them the times that were asked for."""
    first: int | None = None
    for packet in packets:
        first = packet.pos if first is None else first
        if packet.pos != first:
            yield packet


def _open(path: str | None, file: GuardedFile | None, more: Mapping[str, str]) -> InputContainer:
    """Open a container by its content: a local path, or an open file.

    FFmpeg gets no name: it would search all of a file for what the extension promises, and take "a:b.m4a" for an address.
    """
    descriptor = None if path is None else os.open(path, os.O_RDONLY | BINARY)
    try:
        source = file if descriptor is None else "fd:"
        options = {**_OPTIONS, **more} if descriptor is None else {**_OPTIONS, **more, "fd": str(descriptor)}
        container: InputContainer = av.open(source, "r", options=options, **_tag_options())
        return container
    except (InvalidDataError, ArgumentError) as error:  # the latter: a format not in _DEMUXERS
        raise NotAContainer("damaged or truncated, or in a format that FFmpeg does not read") from error
    except FFmpegError as error:
        raise ContainerError(f"cannot be opened, damaged or truncated ({_reason(error)})") from error
    finally:
        if descriptor is not None:
            os.close(descriptor)  # FFmpeg has a copy


def _tag_options() -> dict[str, Any]:
    """Return what lets PyAV open a file whose tags are not UTF-8. From 19 on, it needs nothing and takes nothing."""
    return {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


def _reason(error: Exception) -> str:
    return f"FFmpeg: {getattr(error, 'strerror', None) or error}"


def _exact(time_base: Any) -> Fraction:
    """Return a clock's tick in seconds; 0 if it is unknown. PyAV's own rationals, from 19 on, round their products."""
    return Fraction(time_base.numerator, time_base.denominator) if time_base else Fraction(0)


_RATE_BYTES = 5  # of a frame's header, up to its sample rate
# What states the sample rate in a frame's first bytes, by decoder.
_RATES: dict[str, Callable[[bytes], object]] = {
    **dict.fromkeys(("mp3", "mp3float", "mp2", "mp2float"), lambda head: (head[1] >> 3 & 3, head[2] >> 2 & 3)),
    "aac": lambda head: head[2] >> 2 & 15,
    "ac3": lambda head: head[4] >> 6,
    "eac3": lambda head: head[4] >> 6,
}


def _packet_end(packet: Any) -> int | None:
    """Return the packet's end in ticks of its stream's clock."""
    pts = packet.pts if packet.pts is not None else packet.dts
    return None if pts is None else int(pts + (packet.duration or 0))
