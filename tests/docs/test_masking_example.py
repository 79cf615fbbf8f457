"""The recipe of readable.md that masks names and numbers: with Presidio where it is installed, else with a stand-in for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile

from tests.conftest import AUDIO, ROOT
from tests.helpers.markdown import blocks
from tests.helpers.processes import fastscribe

SPEECH = (
    AUDIO / "03_0_00031.flac"
)  # "Lord William Russell lived alone in Norfolk Street, Park Lane. He was a widower, .."
STAND_IN = """
import re
from types import SimpleNamespace

class Pattern:
    def __init__(self, name, regex, score):
        self.regex = regex

class PatternRecognizer:
    def __init__(self, supported_entity, patterns=(), deny_list=()):
        self.supported_entities = [supported_entity]
        self.regex = "|".join([one.regex for one in patterns] + [re.escape(name) for name in deny_list])

    def analyze(self, text, entities):
        assert entities == self.supported_entities
        return [SimpleNamespace(start=one.start(), end=one.end()) for one in re.finditer(self.regex, text, re.IGNORECASE)]
"""
EMAIL = """
from presidio_analyzer import PatternRecognizer, Pattern

class EmailRecognizer(PatternRecognizer):
    def __init__(self):
        super().__init__("EMAIL_ADDRESS", [Pattern("email", "@", 1.0)])
"""


def test_names_are_in_no_text_and_silent(tmp_path: Path) -> None:
    assert fastscribe("transcribe", SPEECH, AUDIO / "gone.flac", "-o", tmp_path / "out", "-q").returncode == 1
    stand_in = tmp_path / "last" / "presidio_analyzer"
    (stand_in / "predefined_recognizers").mkdir(parents=True)
    (stand_in / "__init__.py").write_text(STAND_IN)
    (stand_in / "predefined_recognizers" / "__init__.py").write_text(EMAIL)
    [recipe] = blocks(ROOT / "docs" / "readable.md", "py")
    program = f"import sys; sys.path.append({str(tmp_path / 'last')!r})\n{recipe.text}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = json.dumps({"audio_filepath": str(SPEECH), "offset": 1.0, "pred_text": "", "text": "", "words": []})
    (tmp_path / "rows" / "out").mkdir(parents=True)
    (tmp_path / "rows" / "out" / "transcripts.jsonl").write_text(listed)
    refused = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "rows", capture_output=True, text=True)
    assert refused.returncode == 1 and "rows of a manifest: transcribe the recordings themselves" in refused.stderr
    assert not list((tmp_path / "rows").glob("*.flac"))
    [row] = map(json.loads, (tmp_path / "masked.jsonl").read_text("utf-8").splitlines())
    assert row["text"].startswith("Lord *** *** lived alone in *** Street")
    before, rate = soundfile.read(SPEECH)
    after, _ = soundfile.read(tmp_path / "masked-0.flac")
    hidden = np.zeros(len(before), bool)
    for word in row["words"]:
        if word["word"] == "***":
            hidden[max(0, int((word["start"] - 0.2) * rate)) : int((word["end"] + 0.2) * rate)] = True
    assert not after[hidden].any() and before[hidden].any() and np.array_equal(after[~hidden], before[~hidden])
    shown = fastscribe("export", tmp_path / "masked.jsonl", "-f", "srt")
    assert "Lord *** *** lived alone" in shown.stdout and "Russell" not in shown.stdout
