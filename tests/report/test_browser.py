"""Pages in a real browser, on a phone and on a wide screen, by day and by night.

Nothing overflows, everything can be read, no script runs, and nothing is asked of a network.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fastscribe.report import run_page
from tests.helpers import browser
from tests.helpers import report_samples as samples
from tests.helpers.browser import Seen, look_at

pytestmark = pytest.mark.skipif(
    browser.CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH to look at pages with"
)

PAGES = {
    "run": lambda: run_page.render(samples.run()),
    "stopped": lambda: run_page.render(samples.run(2, status="interrupted")),
}
_OF_THE_BROWSER = ("google.com", "googleapis.com", "gvt1.com")  # the browser's own requests
_MIN_CONTRAST = 4.5  # of text, by WCAG 2.1


def of_the_page(requests: list[str]) -> list[str]:
    hosts = {request: urlsplit(request if "//" in request else f"//{request}").hostname or "" for request in requests}
    return [request for request, host in hosts.items() if not host.endswith(_OF_THE_BROWSER)]


def luminance(colour: str) -> float:
    """The relative luminance of rgb(r, g, b), by WCAG 2.1."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def check(seen: Seen) -> None:
    assert seen.said == []
    assert of_the_page(seen.requests) == []
    for width, look in seen.looks.items():
        assert look["page_width"] <= width
        assert look["cut"] == []
        assert look["drawn"] > 3
        assert min(contrast(colour, look["background"]) for colour in look["colours"]) >= _MIN_CONTRAST


@pytest.mark.parametrize(
    ("name", "dark", "background"),
    [("run", False, range(240, 256)), ("run", True, range(50)), ("stopped", True, range(50))],
)
def test_page_can_be_read(name: str, dark: bool, background: range, tmp_path: Path) -> None:
    seen = look_at(PAGES[name](), tmp_path, dark=dark)
    check(seen)
    assert set(seen.looks) == {400, 1400}
    for look in seen.looks.values():
        assert all(int(part) in background for part in look["background"][4:-1].split(","))
        assert name != "run" or [one for one in samples.HOSTILE[:3] if one not in look["text"]] == []
