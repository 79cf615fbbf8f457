"""The page of passages to correct: text boxes with their audio, and a button that saves corrections as JSON lines.

The page needs no network and no server: audio lies inside, and its only script is ours. What it saves are rows of a manifest
with the corrected `text` and the model's `pred_text`, which `fastscribe evaluate` and training read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe.report.markup import Html, joined, page, text

_NUM_MARKED = 2  # words of a passage: models differ in how low their confidences are


class ReviewItem(NamedTuple):
    """A passage on the page.

    Attributes:
        row: The row to save, without `text`.
        words: The words with their confidences.
        name: The recording and the place in it.
        mp3: Its audio; None: it cannot be read.
        problem: Why there is no audio.
    """

    row: Mapping[str, Any]
    words: Sequence[tuple[str, float]]
    name: str
    mp3: bytes | None
    problem: str = ""


def review_page(items: Sequence[ReviewItem], num_words: int) -> str:
    """Return the page.

    Args:
        items: The passages, the least certain first.
        num_words: Of all results, for the heading.
    """
    script = Path(__file__).with_name("review.js").read_text(encoding="utf-8")
    about = (
        f"The {len(items):,} passages of {num_words:,} words that the model is least certain of, the worst first.",
        "The least certain words are underlined. Correct the text, or check what is right; then save.",
    )
    controls = Html(
        '<div class="save"><button type="button" id="save" disabled>Save corrections</button> '
        '<output id="count" for="save">0 checked</output></div>'
        "<noscript><p>Without JavaScript the page cannot save corrections.</p></noscript>"
    )
    body = [controls, joined(map(_article, range(len(items)), items)), Html(f"<script>{script}</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page("Passages to review", about, None, body, allows=f"script-src 'sha256-{digest}'; media-src data:")


def _article(number: int, item: ReviewItem) -> Html:
    said = " ".join(word for word, _ in item.words)
    confidences = [0.0 if math.isnan(confidence) else confidence for _, confidence in item.words]
    doubtful = sorted(range(len(confidences)), key=confidences.__getitem__)[:_NUM_MARKED]
    marked = joined(
        Html(f'{" " if at else ""}<mark title="{confidence:.2f}">{text(word)}</mark>')
        if at in doubtful
        else Html(f"{' ' if at else ''}{text(word)}")
        for at, (word, confidence) in enumerate(item.words)
    )
    audio = Html(f"<p>no audio: {text(item.problem)}</p>")
    if item.mp3 is not None:
        data = base64.b64encode(item.mp3).decode()
        audio = Html(f'<audio controls preload="none" src="data:audio/mpeg;base64,{data}"></audio>')
    row = text(json.dumps(item.row))
    return Html(
        f'<article class="passage" data-row="{row}">\n<h3 id="p{number}">{text(item.name)}</h3>\n{audio}\n'
        f'<p class="said"><bdi>{marked}</bdi></p>\n'
        f'<textarea dir="auto" rows="2" spellcheck="true" aria-labelledby="p{number}">{text(said)}</textarea>\n'
        '<label><input type="checkbox"> checked</label>\n</article>\n'
    )
