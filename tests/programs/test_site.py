"""The site in `build/docs`, in a real browser: what a build alone can't show."""

from __future__ import annotations

import functools
import http.server
import queue
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import chromium

pytestmark = pytest.mark.slow

SITE = Path(__file__).resolve().parents[2] / "build" / "docs"
# This page opens another one as wide as a telephone, and tells the server what its
# script finds there, as soon as it finds something.  Until the other page comes, an
# empty one is in its place, which is complete as well.
ASKING = """<iframe src="{page}" width="380" height="2000"></iframe>
<script>
const found = () => {{ const page = frames[0].document; {script} }};
setInterval(() => {{
  const what = frames[0].document.URL !== "about:blank" && found();
  if (what) fetch("/told", {{method: "POST", body: what}});
}}, 50);
</script>
"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the site and the asking page, and hears what that page tells."""

    asking: str
    told: queue.Queue[str]

    def do_GET(self) -> None:
        if self.path != "/asking":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.asking.encode())

    def do_POST(self) -> None:
        self.told.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def browser(tmp_path: Path) -> Callable[[str, str], str]:
    """Return a function that opens a page and returns the first text found there.

    A script finds the text.
    """
    if not (SITE / "index.html").exists():
        pytest.skip(
            "there is no site: run `mkdocs build -f docs/site/mkdocs.yml`, or "
            "`python3 tests --all`"
        )

    def found(page: str, script: str) -> str:
        asking = ASKING.format(page=page, script=script)
        told: queue.Queue[str] = queue.Queue()
        handler = type("Handler", (Server,), {"asking": asking, "told": told})
        with http.server.HTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=str(SITE))
        ) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            command = [
                chromium(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path / 'profile'}",
                # Without a debugging port a headless browser may end before the page
                # has told anything.
                "--remote-debugging-port=0",
                f"http://127.0.0.1:{server.server_port}/asking",
            ]
            run = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                return told.get(timeout=60)
            finally:
                run.terminate()
                run.wait()
                server.shutdown()
                thread.join()

    return found


def test_the_search_finds_the_page_on_a_word(browser: Any) -> None:
    script = (
        "return [...page.querySelectorAll('#mkdocs-search-results h3')].map(each => "
        "each.textContent).join('\\n')"
    )
    assert "Several training processes" in browser("/search.html?q=ranks", script)


def test_figures_of_a_table_stay_on_one_line_on_a_narrow_screen(browser: Any) -> None:
    script = """
    if (page.readyState !== 'complete') return '';
    const lines = cell => {
      const range = page.createRange();
      range.selectNodeContents(cell);
      return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
    };
    const figures = /^[^a-z]+[/][^a-z]+$/i;
    const cells = [...page.querySelectorAll('td')]
      .filter(cell => figures.test(cell.textContent));
    const broken = cells.filter(cell => lines(cell) > 1);
    return cells.length + ': ' + broken.map(cell => cell.textContent).join('; ');
    """
    number, _, broken = browser("/performance.html", script).partition(": ")
    assert int(number) > 5
    assert not broken
