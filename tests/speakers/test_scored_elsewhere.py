"""The page's scores of who says what, by other packages: they read our rows and RTTM, and count a case as by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.helpers.markdown import blocks

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("meeteval", "pyannote")), reason="the extra eval-speakers is not installed"
)
SEGMENTS = (("channel 1", 0.0, 3.0, "One, two."), ("channel 2", 3.0, 5.0, "tree"), ("channel 1", 6.0, 7.0, "four"))
STM = "a 1 A 0 2 one two\na 1 B 2 4.5 three\na 1 A 6 8 four\n"
RTTM = "SPEAKER a 1 {start} {length} <NA> <NA> {speaker} <NA> <NA>\n"


def test_blocks_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "out" / "calls").mkdir(parents=True)
    row = {
        "audio_filepath": "calls/a.wav",
        "segments": [{"speaker": one, "start": start, "end": end, "text": text} for one, start, end, text in SEGMENTS],
    }
    rows = [row, {"audio_filepath": "calls/b.wav", "error": {"stage": "load", "message": "broken"}}]
    (tmp_path / "out" / "transcripts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = [
        RTTM.format(start=start, length=end - start, speaker=one.replace(" ", "_")) for one, start, end, _ in SEGMENTS
    ]
    (tmp_path / "out" / "calls" / "a.rttm").write_text("".join(found))
    (tmp_path / "truth.stm").write_text(STM)
    true = (("A", 0, 2), ("B", 2, 2.5), ("A", 6, 2))
    (tmp_path / "truth.rttm").write_text(
        "".join(RTTM.format(start=start, length=length, speaker=one) for one, start, length in true)
    )
    words, turns = (block.text for block in blocks(ROOT / "docs" / "speakers.md", "py"))
    command = [sys.executable, "-W", "ignore", "-c", words + turns]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "error_rate=0.25, errors=1, length=4, insertions=0, deletions=0, substitutions=1" in done.stdout
    # Left out: 0.25 s on both sides of 0, 2, 4.5, 6 and 8. channel 1 ends in B's turn (0.75 s wrong), channel 2 ends late
    # (0.25 s false alarm), and A's last 0.75 s are missed, of 5 s.
    assert [float(share) for share in done.stdout.splitlines()[-1].split()[1:]][:2] == [35.0, 5.0]
