"""The page to review: it needs nothing but itself, and saves what a reader has corrected as a manifest."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.evaluation.results import Fields, read_pairs
from fastscribe.report.review_page import ReviewItem, review_page
from tests.helpers import browser
from tests.report.test_browser import of_the_page

MP3 = io.BytesIO()
soundfile.write(MP3, np.zeros(1600, np.float32), 16_000, format="MP3")
ROWS = [
    {"audio_filepath": f"/a/{name}.wav", "offset": 1.5, "duration": 2.0, "text": "", "pred_text": name}
    for name in ('he said "<b>" & so', "ünder 日本", "right")
]
ITEMS = [
    ReviewItem(row, [(word, 0.3 + 0.4 * at) for at, word in enumerate(row["pred_text"].split())], row["audio_filepath"],
               MP3.getvalue() if number else None, "" if number else "<gone>")
    for number, row in enumerate(ROWS)
]  # fmt: skip
PAGE = review_page(ITEMS, 1234)


def test_the_page_has_text_audio_and_rows() -> None:
    assert [json.loads(unescape(row)) for row in re.findall(r'data-row="(.*?)"', PAGE)] == ROWS
    assert [unescape(text) for text in re.findall(r"<textarea.*?>(.*?)</textarea>", PAGE)] == [
        row["pred_text"] for row in ROWS
    ]
    clips = [base64.b64decode(data) for data in re.findall(r'src="data:audio/mpeg;base64,(.*?)"', PAGE)]
    assert clips == [MP3.getvalue()] * 2 and "no audio: &lt;gone&gt;" in PAGE
    assert re.findall(r"<mark.*?>(.*?)</mark>", PAGE) == ["he", "said", "ünder", "日本", "right"]
    assert "3 passages of 1,234 words" in PAGE


def test_two_words_are_underlined_of_many_as_certain() -> None:
    """Stored confidences have two decimals, so words are often equal."""
    item = ReviewItem(
        {}, [(word, 1.0) for word in "abcdef"] + [("low", 0.2), ("none", math.nan)], "a.wav", None, "gone"
    )
    assert re.findall(r"<mark.*?>(.*?)</mark>", review_page([item], 8)) == ["low", "none"]


def test_only_its_own_script_may_run() -> None:
    [script] = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    assert f"{policy}script-src 'sha256-{digest}'; media-src data:" in unescape(PAGE)


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_what_is_corrected_or_checked_is_saved_and_evaluates(tmp_path: Path) -> None:
    script = """
      const page = frame.contentDocument, here = frame.contentWindow, seen = [page.getElementById('save').disabled];
      const [first, second, third] = page.querySelectorAll('article');
      first.querySelector('textarea').value = '  he said\\n"<i>" ';
      first.querySelector('textarea').dispatchEvent(new here.Event('input'));
      third.querySelector('input').click();
      let saved = '';
      here.Blob = class { constructor(parts) { saved = parts.join(''); } };
      here.URL.createObjectURL = () => '#';
      here.HTMLAnchorElement.prototype.click = () => {};
      seen.push(page.getElementById('count').textContent, page.getElementById('save').disabled);
      page.getElementById('save').click();
      return [seen, saved];
    """
    (seen, saved), console, requests = browser.use(PAGE, tmp_path, script)
    assert seen == [True, "2 checked", False] and not console and not of_the_page(requests)
    lines = [json.loads(line) for line in saved.splitlines()]
    assert lines == [{**ROWS[0], "text": 'he said "<i>"'}, {**ROWS[2], "text": "right"}]
    (tmp_path / "corrections.jsonl").write_text(saved, encoding="utf-8")
    pairs = list(read_pairs([str(tmp_path / "corrections.jsonl")], Fields(), str))
    assert [(pair.reference, pair.hypothesis) for pair in pairs] == [  # type: ignore[union-attr]
        ('he said "<i>"', 'he said "<b>" & so'),
        ("right", "right"),
    ]
