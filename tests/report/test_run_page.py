"""The page from plain data: its numbers equal the data and stand once, its elements are safe, and data are never markup."""

from __future__ import annotations

import doctest
import os
import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.errors import UsageError
from fastscribe.report import files, markup, run_page
from tests.helpers import report_samples as samples

_VOID = {"meta", "rect", "polygon"}
_TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2", "p", "ul", "li", "dl", "dt",
    "dd", "div", "span", "strong", "bdi", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "details", "summary",
    "svg", "rect", "polygon",
}  # fmt: skip
_ATTRIBUTES_WITH_PLACES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "style"}


class Page(HTMLParser):
    """Fails on an unknown element or attribute, and on an unclosed element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.names: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS
        for name, value in attrs:
            assert not name.startswith("on") and name not in _ATTRIBUTES_WITH_PLACES
            if name == "aria-label":
                self.names.append(str(value))
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


@pytest.mark.parametrize("module", [run_page, markup])
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", PAGES)
def test_page_is_self_contained(name: str) -> None:
    page = page_of(name)
    assert Page(page).tags.count("main") == 1
    assert "default-src 'none'" in page
    assert not re.search(r"\bnan\b", page.partition("</style>")[2], re.IGNORECASE)
    assert "url(" not in page and "@import" not in page
    page.encode("utf-8")


def test_one_gap_is_one_stretch() -> None:
    run = samples.run()
    assert (
        "Speech without words: 1 stretch, 7.2 s."
        in Page(run_page.render(run | {"report": run["report"] | {"gaps": 1}})).text
    )


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
    page = Page(f'<p aria-label="{made}">{made}</p>')
    shown = "".join(page.words)
    assert shown == page.names[0]
    assert all(char.isprintable() or char in "\u200c\u200d" for char in shown)
    if given_text.isprintable():
        assert shown == given_text


def test_the_page_says_what_the_report_says() -> None:
    run = samples.run()
    report, text = run["report"], Page(page_of("run")).text
    for said in (
        f"{report['failed']:,} of {report['files']:,} files failed",
        f"in {report['files'] - report['failed']:,} files",
        "This page is about this run. Earlier runs had done 1,203 files already, of which 2 had failed.",
        f"Of all runs the folder holds {report['totals']['files']:,} files",
        "This machine refused a fast path, triton: no ",
        "4 files left out: .docx 3, .jpg 1: not audio by their names.",
        "Speech without words: 3 stretches, 7.2 s.",
        "per 1,000 audio hours, at 3.50 USD an hour (--price-per-hour)",
        "fastscribe 0.1.0",
        "torch 2.13.0",
        "NVIDIA H200",
        "bf16",
    ):
        assert said in text, said
    unpriced = run_page.render(run | {"report": report | {"usd_per_1000_audio_hours": None}})
    assert "unknown" in Page(unpriced).text


def test_failures_come_first_and_each_number_once() -> None:
    page = page_of("run")
    text, report = Page(page).text, samples.run()["report"]
    assert (
        page.index("files failed") < page.index("Audio</dt>") < page.index("Files to look at") < page.index("Where the")
    )
    numbers = [
        run_page.number(report["rtfx"]),
        run_page.duration(report["audio_s"]),
        run_page.duration(report["wall_s"]),
    ]
    numbers += [f"{report['failed']:,} ", f"{report['padding_share']:.1%}", "0.93 USD", "2 min 20 s"]
    chart = f"0 {run_page.duration(report['wall_s'])}"  # the axis of the speed over time
    for number in numbers:
        assert text.replace(chart, "").count(number) == 1, number
    assert page.count("<h2>Speed over time") == 1 and "Speed over time" not in page_of("short run")


@pytest.mark.parametrize(
    ("num", "listed", "said"), [(1, 1, ""), (20, 20, ""), (21, 21, "1 more"), (300, 100, "80 more")]
)
def test_failures_are_bounded(num: int, listed: int, said: str) -> None:
    run = samples.run(1)
    first = [(f"file {at}", "load", "gone") for at in range(min(num, 100))]
    run["recorded"]["failures"] = {
        "by_stage": {"load": num - 1, "probe": 1} if num > 1 else {"load": 1},
        "first": first,
    }
    text = Page(run_page.render(run)).text
    assert text.count("load: gone") == listed and said in text
    assert ("after the first 100" in text) == (num > 100) and ("1 in probe" in text) == (num > 1)


def test_files_to_look_at() -> None:
    run = samples.run(1)
    run["recorded"] |= {"uncertain": [["a.wav", 0.417, 1]], "wordless": [["b.wav", 65.0]], "silent": [["c.wav", 60.0]]}
    text = Page(run_page.render(run)).text
    assert "mean confidence 0.42 of 1 word" in text and "1 min 5 s of speech without words" in text
    assert "c.wav no words in 1 min 0 s" in " ".join(text.split())
    run["recorded"] |= {"uncertain": [], "wordless": [], "silent": []}
    assert "Files to look at" not in run_page.render(run)


def test_devices_have_a_table() -> None:
    run = samples.run(3)
    text = Page(run_page.render(run)).text
    assert "cuda:1: NVIDIA" in text and "62.5%" in text and "1,201" in text
    alone = Page(run_page.render(run | {"report": run["report"] | {"devices": []}})).text
    assert "Devices" in text and "Devices" not in alone


def test_unfinished_run() -> None:
    assert "interrupted: this is what was done by then" in Page(page_of("interrupted run")).text
    assert "stopped: the disk is full" in Page(page_of("run that never began")).text
    assert "this is what was done by then" not in Page(page_of("run")).text


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
