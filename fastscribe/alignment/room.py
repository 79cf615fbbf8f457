"""The alignment room's door: what the core asks it for (rooms.py)."""

from __future__ import annotations

from fastscribe.alignment.word_timer import WordTimer

build_word_timer = WordTimer.build
