"""Make tests/data/lhotse with Lhotse: a CutSet manifest, and the same cuts as a Shar folder.

    python -m scripts.goldens lhotse_cuts tests/data/lhotse    # with lhotse (1.33 made the files)

The recordings are parts of those of tests/data.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import soundfile
from lhotse import CutSet, Recording, SupervisionSegment

DATA = Path(__file__).parents[2] / "tests" / "data"
SECONDS = 0.8


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    (out / "shar").mkdir(parents=True)
    rows = map(json.loads, (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines())
    cuts = [
        cut_of(number, row, out)
        for number, row in zip(range(3), (row for row in rows if row.get("text")), strict=False)
    ]
    stereo = cuts[2]
    samples_S, rate = soundfile.read(out / stereo.recording.sources[0].source, dtype="float32")
    soundfile.write(out / "stereo.flac", np.stack([0 * samples_S, samples_S], 1), rate)
    recording = Recording.from_file(out / "stereo.flac", recording_id="stereo")
    right = recording.to_cut().to_mono()[1]
    right.supervisions = [SupervisionSegment("right", "stereo", 0.0, right.duration, 1, "on the right")]
    CutSet.from_cuts(cuts).to_shar(out / "shar", fields={"recording": "flac"}, shard_size=2)
    part = cuts[0].truncate(offset=0.25, duration=0.5, preserve_id=False)
    described = [cut.to_dict() for cut in (cuts[0], part, right)]
    for cut in described:  # Lhotse counts relative paths from the current folder
        cut["recording"]["sources"][0]["source"] = Path(cut["recording"]["sources"][0]["source"]).name
    CutSet.from_dicts(described).to_file(out / "cuts.jsonl.gz")
    for number in (1, 2):
        (out / f"{number}.flac").unlink()


def cut_of(number: int, row: dict[str, str], out: Path):
    samples_S, rate = soundfile.read(DATA / row["audio_filepath"], dtype="int16")
    path = out / f"{number}.flac"
    soundfile.write(path, samples_S[: int(SECONDS * rate)][::2], rate // 2)
    recording = Recording.from_file(path, recording_id=f"recording-{number}")
    cut = recording.to_cut()
    words = row["text"].split()
    cut.supervisions = [
        SupervisionSegment("b", recording.id, 0.4, 0.3, text=words[1]),
        SupervisionSegment("a", recording.id, 0.0, 0.4, text=words[0]),
    ]
    return cut
