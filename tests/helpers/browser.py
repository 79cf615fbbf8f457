"""A headless Chromium, if one is installed, that reports a page's layout at several widths and its requests.

The page lies unchanged in frames of a page of ours, whose script measures it: so its own Content-Security-Policy holds.
Every request goes to a proxy that logs it and does not answer.
"""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--enable-logging=stderr", "--proxy-bypass-list=<-loopback>",
)  # fmt: skip
_DARK = "--blink-settings=preferredColorScheme=0"

_MEASURE = """
function seen(text, width) {
  const box = text.getBoundingClientRect(), cut = text.closest('svg.window');
  let right = box.right;
  if (cut && getComputedStyle(cut).overflow == 'hidden')
    right = Math.min(right, text.closest('svg[role=img]').getBoundingClientRect().right);
  return {left: box.left, right: right, top: box.top, bottom: box.bottom, said: text.textContent};
}
function measured(frame) {
  const page = frame.contentDocument, width = frame.clientWidth;
  for (const one of page.querySelectorAll('details')) one.open = true;
  const pictures = [...page.querySelectorAll('svg[role=img]')].map(svg => {
    const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')].map(one => seen(one));
    const shapes = [...svg.querySelectorAll('rect, path, polyline, circle')].map(one => one.getBoundingClientRect());
    const overlaps = [];
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 4) overlaps.push([a.said, b.said]);
    }));
    return {title: svg.querySelector('title').textContent, description: svg.querySelector('desc').textContent,
      width: box.width, height: box.height, drawn: shapes.filter(one => one.width > 0 || one.height > 0).length,
      overlaps: overlaps, outside: texts.filter(one => one.left < 0 || one.right > width).map(one => one.said)};
  });
  const tables = [...page.querySelectorAll('figure')].map(one => one.querySelectorAll('table').length);
  return {width: width, page_width: page.documentElement.scrollWidth, pictures: pictures, tables: tables,
    background: frame.contentWindow.getComputedStyle(page.body).backgroundColor, text: page.body.innerText};
}
window.onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(measured);
  document.getElementById('found').textContent = encodeURIComponent(JSON.stringify(found));
};
"""


class Seen(NamedTuple):
    """`looks` by width; `said` are console lines; `requests` are network requests."""

    looks: dict[int, dict[str, Any]]
    said: list[str]
    requests: list[str]


def look_at(page: str, folder: Path, widths: tuple[int, ...] = (400, 1400), dark: bool = False) -> Seen:
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(page)}"></iframe>'
        for width in widths
    )
    around = f'<!doctype html><meta charset="utf-8"><script>{_MEASURE}</script>{frames}<pre id="found"></pre>'
    (folder / "around.html").write_text(around, encoding="utf-8")
    dom, said, requests = _run(folder / "around.html", folder, "--dump-dom", *([_DARK] if dark else []))
    found = json.loads(unquote(dom.rpartition('<pre id="found">')[2].partition("</pre>")[0]))
    return Seen({look["width"]: look for look in found}, said, requests)


def screenshot(page: Path, picture: Path, width: int, height: int, dark: bool = False) -> None:
    flags = (f"--screenshot={picture}", f"--window-size={width},{height}", *([_DARK] if dark else []))
    _run(page, picture.parent, *flags)


def _run(page: Path, folder: Path, *flags: str) -> tuple[str, list[str], list[str]]:
    """Return (stdout, console lines, requests)."""
    assert CHROMIUM is not None
    requests: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(503)

        do_CONNECT = do_POST = do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        own = (f"--proxy-server=127.0.0.1:{proxy.server_port}", f"--user-data-dir={folder / 'profile'}")
        command = [CHROMIUM, *_FLAGS, *own, *flags, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=100)
        proxy.shutdown()
    shutil.rmtree(folder / "profile", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line], requests
