"""Pages from plain data: their numbers equal the data, their elements are safe, and data are never markup."""

from __future__ import annotations

import doctest
import math
import os
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.errors import OutputError, UsageError
from fastscribe.report import figures, files, markup, recorder, run_page
from tests.helpers import report_samples as samples

_VOID = {"meta", "rect", "line", "path", "circle", "polyline", "polygon"}
_TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2", "h3", "h4", "p", "ul", "li",
    "dl", "dt", "dd", "div", "span", "strong", "bdi", "pre", "code", "figure", "figcaption", "table", "caption", "thead",
    "tbody", "tr", "th", "td", "details", "summary", "svg", "desc", "text", "rect", "line", "path", "circle", "polyline",
    "polygon",
}  # fmt: skip
_ATTRIBUTES_WITH_PLACES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "style"}


class Page(HTMLParser):
    """Fails on an unknown element or attribute, and on an unclosed element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS
        for name, value in attrs:
            assert not name.startswith("on") and name not in _ATTRIBUTES_WITH_PLACES
            if name == "id":
                self.ids.append(str(value))
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


PAGES: dict[str, Callable[[], str]] = {
    "run": lambda: run_page.render(samples.run()),
    "short run": lambda: run_page.render(samples.run(1)),
    "interrupted run": lambda: run_page.render(samples.run(3, status="interrupted")),
    "run that never began": lambda: run_page.render(samples.run(0, status="stopped: the disk is full")),
}


@cache
def page_of(name: str) -> str:
    return PAGES[name]()


@pytest.mark.parametrize("module", [figures, markup, recorder])
def test_examples_in_docstrings(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", PAGES)
def test_page_is_self_contained(name: str) -> None:
    page = page_of(name)
    parsed = Page(page)
    assert parsed.tags.count("main") == 1
    assert "default-src 'none'" in page
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "nan" not in page.partition("</style>")[2].replace("fastscribe", "")
    assert "url(" not in page and "@import" not in page
    pictures = parsed.tags.count("figure")
    assert parsed.tags.count("desc") >= pictures
    page.encode("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_pictures_have_tables(name: str) -> None:
    for figure in page_of(name).split("<figure>")[1:]:
        inside = figure.partition("</figure>")[0]
        assert inside.count("<table>") == 1
        assert inside.index('<svg role="img"') < inside.index("<table>")
        assert "<title>" in inside and "<desc>" in inside and "<desc></desc>" not in inside


def test_hostile_names_escaped() -> None:
    parsed = Page(page_of("run"))
    for name in samples.HOSTILE[:3]:
        assert name in parsed.text
    assert "\\u202egnp.exe" in parsed.text and "\\x1b" in parsed.text and "\\udcff" in parsed.text
    assert not any(char in page_of("run") for char in "\x00\x1b\u202e\udcff")


@given(st.text())
def test_text_round_trip(given_text: str) -> None:
    made = markup.text(given_text)
    assert not set(made) & set("<>\"'")
    page = Page(f'<p id="{made}">{made}</p>')
    shown = "".join(page.words)
    assert shown == page.ids[0]
    assert all(char.isprintable() or char in "\u200c\u200d" for char in shown)
    if given_text.isprintable():
        assert shown == given_text


def test_run_page_equals_report() -> None:
    run = samples.run()
    text = Page(page_of("run")).text
    report = run["report"]
    assert figures.number(report["rtfx"]) in text
    assert f"{report['failed']:,} files of {report['files']:,} failed" in text
    assert "Earlier runs had done 1,203 files already, 2 files of which had failed" in text
    assert f"Of all runs the folder holds {report['totals']['files']:,} files" in text
    assert "0.93 USD" in text
    assert "32 of 200 batches" in text
    assert "Word confidence" in text
    assert "This machine refused a fast path, triton: no " in text
    unpriced = run_page.render(run | {"report": report | {"usd_per_1000_audio_hours": None}})
    assert "unknown" in Page(unpriced).text
    assert "4 files left out: .docx 3, .jpg 1: not audio by their names." in text


def test_devices_have_a_table() -> None:
    run = samples.run(3)
    text = Page(run_page.render(run)).text
    assert "cuda:1: NVIDIA" in text and "62.5 %" in text and "1,201" in text
    alone = Page(run_page.render(run | {"report": run["report"] | {"devices": []}})).text
    assert "Devices" in text and "Devices" not in alone


def test_unfinished_run() -> None:
    assert "interrupted: this is what was done by then" in Page(page_of("interrupted run")).text
    assert "stopped: the disk is full" in Page(page_of("run that never began")).text
    assert "this is what was done by then" not in Page(page_of("run")).text


@given(st.lists(st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9), min_size=1))
def test_column_digits(values: list[float]) -> None:
    shown = figures.column(values)
    assert len({len(cell.partition(".")[2]) for cell in shown}) == 1
    largest = max(map(abs, values))
    for cell, value in zip(shown, values, strict=True):
        assert float(cell.replace(",", "")) == pytest.approx(value, rel=0.01, abs=max(0.01 * largest, 1e-6))


@given(st.floats(1e-9, 1e12), st.integers(2, 8))
def test_ticks(top: float, wanted: int) -> None:
    marks = figures.ticks(top, wanted)
    assert marks[0] == 0
    assert marks[-1] >= top * 0.999
    assert marks[-1] <= 2.6 * top
    assert 2 <= len(marks) <= wanted + 2
    assert len(set(figures.column(marks))) == len(marks) or top < 1e-5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, True, "x"])
def test_not_a_number(value: object) -> None:
    assert figures.number(value) == figures.UNKNOWN
    assert figures.column([value]) == [figures.UNKNOWN]


def test_page_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    one = f"<!doctype html>{files.GENERATOR}one"
    files.write_page(page, one)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        files.write_page(page, "<!doctype html>two")
    assert page.read_text() == one
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.linux
def test_page_paths(tmp_path: Path) -> None:
    good, link, sound = tmp_path / "a.html", tmp_path / "link.html", tmp_path / "a.wav"
    link.symlink_to(good)
    assert files.check_page(link) == good.resolve()
    assert not good.exists()
    files.write_page(good, f"<!doctype html>{files.GENERATOR}")
    assert files.check_page(good) == good.resolve()
    sound.write_bytes(b"RIFF")
    os.mkfifo(tmp_path / "pipe")
    for place in (sound, tmp_path, tmp_path / "pipe", tmp_path / "no" / "such", Path("/dev/null")):
        with pytest.raises(UsageError, match="--report-html"):
            files.check_page(place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.wav", "link.html", "pipe"]
