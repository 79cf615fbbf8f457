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
function measured(frame) {
  const page = frame.contentDocument, style = one => frame.contentWindow.getComputedStyle(one);
  for (const one of page.querySelectorAll('details')) one.open = true;
  const cut = [], colours = new Set();
  for (const one of page.body.querySelectorAll('*')) {
    const texts = [...one.childNodes].filter(part => part.nodeType == 3), box = one.getBoundingClientRect();
    const said = texts.map(part => part.data.trim()).join('');
    if (said) colours.add(style(one).color);
    if (said && !one.closest('.scroll') && (box.left < 0 || box.right > frame.clientWidth)) cut.push(said);
  }
  const drawn = [...page.querySelectorAll('rect, polygon')].map(one => one.getBoundingClientRect());
  return {width: frame.clientWidth, page_width: page.documentElement.scrollWidth, cut: cut, colours: [...colours],
    drawn: drawn.filter(one => one.width > 0 && one.height > 0).length,
    background: style(page.body).backgroundColor, text: page.body.innerText};
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


def look_at(page: str, folder: Path, dark: bool) -> Seen:
    """Show a page at several widths, with all that is folded open."""
    assert CHROMIUM is not None
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(page)}"></iframe>'
        for width in (400, 1400)
    )
    around = f'<!doctype html><meta charset="utf-8"><script>{_MEASURE}</script>{frames}<pre id="found"></pre>'
    (folder / "around.html").write_text(around, encoding="utf-8")
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
        own = (f"--proxy-server=127.0.0.1:{proxy.server_port}", f"--user-data-dir={folder / 'profile'}", "--dump-dom")
        command = [CHROMIUM, *_FLAGS, *own, *([_DARK] if dark else []), (folder / "around.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=100)
        proxy.shutdown()
    shutil.rmtree(folder / "profile", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(unquote(done.stdout.rpartition('<pre id="found">')[2].partition("</pre>")[0]))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen({look["width"]: look for look in found}, console, requests)
