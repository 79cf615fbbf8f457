"""Pages in a real browser, on a phone and on a wide screen, by day and by night: nothing overflows, no letters lie over others,
no script of anybody's runs, nothing is asked of a network.
"""

from __future__ import annotations

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


def of_the_page(requests: list[str]) -> list[str]:
    hosts = {request: urlsplit(request if "//" in request else f"//{request}").hostname or "" for request in requests}
    return [request for request, host in hosts.items() if not host.endswith(_OF_THE_BROWSER)]


def check(seen: Seen) -> None:
    assert seen.said == []
    assert of_the_page(seen.requests) == []
    for width, look in seen.looks.items():
        assert look["page_width"] <= width
        assert all(count == 1 for count in look["tables"])
        for picture in look["pictures"]:
            where = (picture["title"], width)
            assert picture["width"] > 0.5 * min(width, 400) - 60, where
            assert picture["height"] >= 15, where
            assert picture["drawn"] > 0, where
            assert picture["overlaps"] == [], where
            assert picture["outside"] == [], where


@pytest.mark.parametrize("name", PAGES)
def test_page_fits(name: str, tmp_path: Path) -> None:
    seen = look_at(PAGES[name](), tmp_path)
    check(seen)
    assert set(seen.looks) == {400, 1400}
    pictures = {width: [picture["title"] for picture in look["pictures"]] for width, look in seen.looks.items()}
    assert pictures[400] == pictures[1400]
    assert pictures[400]


@pytest.mark.parametrize(("dark", "background"), [(False, range(240, 256)), (True, range(50))])
def test_dark_and_light(dark: bool, background: range, tmp_path: Path) -> None:
    """Text is readable in both."""
    look = look_at(PAGES["run"](), tmp_path, (700,), dark).looks[700]
    assert all(int(part) in background for part in look["background"][4:-1].split(","))
    assert [name for name in samples.HOSTILE[:3] if name not in look["text"]] == []


def test_screenshot_not_blank(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGES["run"](), encoding="utf-8")
    browser.screenshot(tmp_path / "page.html", tmp_path / "page.png", 700, 900, dark=True)
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_checks_can_fail(tmp_path: Path) -> None:
    """A faulty page fails the checks above."""
    page = PAGES["stopped"]().replace("default-src 'none'; style-src 'unsafe-inline';", "")
    wrong = (
        '<script>console.error("ran")</script><img src="http://elsewhere.test/x.png"><div style="width:2000px">wide</div>'
        '<svg role="img" width="100%" height="40"><title>t</title><desc>d</desc>'
        '<text x="0" y="20">one</text><text x="4" y="22">two</text><text x="95%" y="20">outside the page</text></svg></main>'
    )
    seen = look_at(page.replace("</main>", wrong), tmp_path)
    assert any("ran" in line for line in seen.said)
    assert of_the_page(seen.requests) == ["http://elsewhere.test/x.png"]
    assert seen.looks[400]["page_width"] > 400
    [bad] = [picture for picture in seen.looks[400]["pictures"] if picture["title"] == "t"]
    assert bad["overlaps"] == [["one", "two"]]
    assert bad["outside"] == ["outside the page"]
    assert bad["drawn"] == 0
    with pytest.raises(AssertionError):
        check(seen)
