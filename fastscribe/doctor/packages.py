"""The Python packages: those that fastscribe needs, torch's build, and the extras."""

from __future__ import annotations

import platform
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe.audio.formats import FORMATS
from fastscribe.audio.media import EncodedBytes
from fastscribe.doctor import Check, Status
from fastscribe.errors import UsageError
from fastscribe.rooms import ROOMS
from fastscribe.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_PURPOSES = {
    "remote": "recordings and results in stores and on the web: s3, gs, az, https",
    "vad": "--vad silero",
} | {extra: purpose for room in ROOMS for extra, purpose in room.extras.items()}


def install_command(*requirements: str) -> str:
    """Return the command that installs packages into the environment that this Python runs in.

    `pipx inject` takes none of pip's options, so pipx's pip is run. `uv pip` knows the environments of `uv tool` as any other.
    """
    installer = [sys.executable, "-m", "pip", "install"]
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        installer = ["pipx", "runpip", Path(sys.prefix).name, "install"]
    elif find_spec("pip") is None:  # as in the environments of uv
        installer = ["uv", "pip", "install", "--python", sys.executable]
    words = [*installer, *requirements]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def python() -> Check:
    """This Python and this system."""
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    facts = {"version": version, "system": system, "executable": sys.executable, "fastscribe": __version__}
    return Check("python", "ok", f"{version} on {system}, {sys.executable}", facts=facts)


def required() -> Check:
    """The packages without which fastscribe does not run, by its own metadata, which a mere checkout lacks."""
    try:
        requirements = list(_requirements(""))
    except metadata.PackageNotFoundError:
        checkout = Path(__file__).resolve().parents[2]
        finding = f"not known, nor are the extras: fastscribe runs from {checkout} without being installed"
        return Check("packages", "problem", finding, install_command(str(checkout)))
    unmet = list(_unmet(requirements))
    facts = {"required": [str(one) for one in requirements], "missing": unmet}
    if unmet:
        return Check("packages", "problem", f"missing or too old: {', '.join(unmet)}", install_command(*unmet), facts)
    return Check("packages", "ok", f"all {len(requirements)} required packages are there", facts=facts)


def torch_build() -> Check:
    """torch, and what it was built for."""
    try:
        import torch
    except Exception as error:
        # A torch that is half there, or whose libraries are, fails in many ways.
        finding = f"cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        return Check("torch", "problem", finding, install_command("--force-reinstall", "torch"))
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads()}
    return Check("torch", "ok", f"{torch.__version__}, built for {build}", facts=facts)


def extras() -> Iterator[Check]:
    """Each extra of fastscribe."""
    try:
        names = metadata.metadata("fastscribe").get_all("Provides-Extra") or ()
    except metadata.PackageNotFoundError:
        return  # required() says so
    for extra in names:
        unmet = list(_unmet(_requirements(extra)))
        purpose = _PURPOSES.get(extra, "")
        finding = f"{purpose} ({', '.join(unmet)} not installed)" if unmet else purpose
        fix = install_command(*unmet) if unmet else None
        problem = _vad_problem() if extra == "vad" and not unmet else None
        status: Status = "problem" if problem else "missing" if unmet else "ok"
        yield Check(f"extra {extra}", status, problem or finding, fix, {"missing": unmet})


def _requirements(extra: str) -> Iterator[Requirement]:
    """Yield what an extra needs on this system, those of extras that it names included; "" is fastscribe itself."""
    from packaging.requirements import Requirement

    for line in metadata.requires("fastscribe") or ():
        one = Requirement(line)
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        if extra and (one.marker is None or one.marker.evaluate({"extra": ""})):
            continue  # needed without the extra too
        if one.name == "fastscribe":
            for other in one.extras:
                yield from _requirements(other)
        else:
            yield one


def _unmet(requirements: Iterable[Requirement]) -> Iterator[str]:
    """Yield the requirements that are not installed, or in another version, as pip takes them."""
    for one in requirements:
        try:
            is_met = one.specifier.contains(metadata.version(one.name), prereleases=True)
        except metadata.PackageNotFoundError:
            is_met = False
        if not is_met:
            yield f"{one.name}{'[' + ','.join(sorted(one.extras)) + ']' if one.extras else ''}{one.specifier}"


def _vad_problem() -> str | None:
    from fastscribe.segmentation.vad import check_vad

    try:
        check_vad()
    except UsageError as error:
        return str(error)
    return None


_CODECS = ("aac", "alac", "amrnb", "flac", "mp3", "opus", "vorbis", "wmav2")  # what phones, meetings and videos hold


def libsndfile() -> Check:
    """libsndfile, through soundfile."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the library below it
        fix = install_command("--force-reinstall", "soundfile")
        return Check("audio files", "problem", f"soundfile cannot be imported ({error})", fix)

    version, readable = soundfile.__libsndfile_version__, sorted(FORMATS & soundfile.available_formats().keys())
    facts = {"libsndfile": version, "formats": readable}
    lacking = sorted(FORMATS - set(readable))
    if lacking:
        finding = f"libsndfile {version} does not read {', '.join(lacking)}"
        return Check("audio files", "missing", finding, install_command("--upgrade", "soundfile"), facts)
    return Check("audio files", "ok", f"libsndfile {version}: {', '.join(readable)}", facts=facts)


def containers() -> Check:
    """FFmpeg's libraries, through PyAV."""
    try:
        import av
    except (ImportError, OSError) as error:
        finding = f"PyAV cannot be imported ({error}): no m4a, mp4, webm .."
        return Check("video and m4a", "problem", finding, install_command("--force-reinstall", "av"))
    from fastscribe.audio.containers import demuxers, track_header

    track_header(EncodedBytes(_smallest_caf(), "doctor"), 0)  # a PyAV of another interface fails here
    readable, lacking = demuxers(), [codec for codec in _CODECS if codec not in av.codecs_available]
    version = ".".join(map(str, av.library_versions["libavformat"]))
    facts = {"pyav": av.__version__, "libavformat": version, "demuxers": readable, "codecs_lacking": lacking}
    without = f", without {', '.join(lacking)}" if lacking else ""
    finding = f"PyAV {av.__version__}: {len(readable)} kinds of container{without}"
    return Check("video and m4a", "missing" if lacking else "ok", finding, facts=facts)


def _smallest_caf() -> bytes:
    """Return a recording of 100 samples of silence that FFmpeg reads without any codec."""
    kind = struct.pack(">d4sIIIII", 8000.0, b"lpcm", 0, 2, 1, 1, 16)
    head = b"caff" + struct.pack(">HH", 1, 0) + b"desc" + struct.pack(">Q", len(kind)) + kind
    return head + b"data" + struct.pack(">QI", 4 + 200, 0) + bytes(200)
