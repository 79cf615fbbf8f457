"""Lines about what a run left out."""

from __future__ import annotations

import pytest

from fastscribe.audio.formats import NOT_OPENED, UNKNOWN_CONTENT
from fastscribe.cli.run_messages import say_listing


def test_quiet_hides_only_what_is_surely_no_audio(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = {".jpg": 3, f".xyz{UNKNOWN_CONTENT}": 2, f"no extension{NOT_OPENED}": 1}
    maybe = ".xyz (unknown content) 2, no extension (not opened) 1"
    say_listing(left_out, 1, quiet=True)
    assert capsys.readouterr().err == f"fastscribe: 3 files left out: {maybe}\n"
    say_listing(left_out, 0, quiet=False)
    assert capsys.readouterr().err == f"fastscribe: 6 files left out: .jpg 3, {maybe}\n"
    say_listing({".jpg": 3}, 0, quiet=True)
    assert capsys.readouterr().err == ""
