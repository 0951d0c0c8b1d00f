"""The report as it is seen: colours that can be told apart, and a browser that shows it all, wide and narrow."""

from __future__ import annotations

import functools
import html
import http.server
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.resources import files

import pytest
from lab_results import DRAWABLE, EMPTY, PLOTS, alone, report

from mpiter.lab.report import sheet
from mpiter.lab.report.page import page
from mpiter.lab.views import Table

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report")]  # a browser takes its time, and so does the page


# colours --------------------------------------------------------------------------------------------------------------


def colours(scheme):
    """The variables of the style sheet."""
    style = files("mpiter.lab.report").joinpath("style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    return dict(re.findall(r"--([\w-]+): (#\w+)", light + (dark if scheme == "dark" else "")))


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_curves_can_be_seen(scheme):
    found = colours(scheme)
    for text, ground in itertools.product(("fg", "muted", "link", "doubt"), ("bg", "panel")):
        assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    assert min(contrast(found[text], found["doubt-bg"]) for text in ("fg", "doubt")) >= 4.5
    for index in range(6):
        assert contrast(found[f"on-{index}"], found[f"c{index}"]) >= 4.5, f"text upon c{index}"
    assert min(contrast(found[name], found["bg"]) for name in ("c0", "c1", "c2", "c3", "c4", "c5", "grey")) >= 3


def test_the_style_sheet_has_every_colour_that_plots_are_drawn_in():
    assert set(sheet.INK) <= set(colours("light")) & set(colours("dark"))


# in a browser ---------------------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None or not sheet.can_be_drawn(),
    reason="a report is looked at with Debian's chromium, and drawn by matplotlib: pip install 'mpiter[lab]'",
)
PATIENCE = 60  # seconds for a browser on a busy machine

MEASURE = """<!doctype html><title>-</title><pre id="found"></pre><script>
function measure(frame) {
  const inside = frame.contentDocument, width = WIDTH, root = inside.documentElement;
  const shown = (node) => node.getClientRects().length > 0;
  const named = (node) => node.tagName + "." + node.getAttribute("class") + ": " + node.textContent.slice(0, 40);
  const sticksOut = (node) => shown(node) && node.getBoundingClientRect().right > width + 0.5;
  const found = {cut: [], sizes: [], pictures: 0};
  inside.querySelectorAll("details").forEach((node) => node.open = true);
  found.dark = frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches;
  found.width = root.scrollWidth;
  found.out = [...inside.querySelectorAll("body *")]
    .filter((node) => sticksOut(node) && !node.closest(".scroll table")).map(named);
  inside.querySelectorAll("svg[role=img]").forEach((svg) => {
    if (!shown(svg)) return;
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    found.pictures += 1;
    svg.querySelectorAll("text").forEach((text) => {
      const at = text.getBoundingClientRect();
      found.sizes.push(scale * parseFloat(frame.contentWindow.getComputedStyle(text).fontSize));
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
        found.cut.push(named(text));
    });
  });
  document.getElementById("found").textContent = JSON.stringify(found);
}
</script><iframe src="report.html" width="WIDTH" height="800" style="border: 0" onload="measure(this)"></iframe>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """A browser lets one page look into another only where a server gives both."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        server.daemon_threads = False  # closing waits for them
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def browse(address, *options, dark=False):
    """What the browser prints; its console must stay empty.  Its profile goes away with it, and so do its children."""
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as home:  # short: sockets lie in it
        command = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--disable-breakpad", "--no-first-run", "--enable-logging=stderr", "--v=0", f"--user-data-dir={home}/p"),
            *(f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=5000", *options),
            address,
        ]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
        surroundings = kept | {"HOME": home, "TMPDIR": home}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        with subprocess.Popen(command, env=surroundings, start_new_session=True, **pipes) as browser:
            try:
                said, complained = browser.communicate(timeout=PATIENCE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(browser.pid, signal.SIGKILL)
        assert browser.returncode == 0, complained
        assert not [line for line in complained.splitlines() if "CONSOLE" in line]
        return said


def measured(folder, width, **options):
    """What a page of this width shows: in a frame, because the browser's own window may refuse to be so narrow."""
    (folder / "measure.html").write_text(MEASURE.replace("WIDTH", str(width)))
    with served(folder) as address:
        said = browse(f"{address}/measure.html", "--dump-dom", **options)
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', said, re.DOTALL)[1]))


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_and_has_nothing_to_complain_of(scheme, tmp_path):
    Image = pytest.importorskip("PIL.Image", reason="a picture is looked at with Pillow: pip install Pillow")
    (tmp_path / "report.html").write_text(report())
    shot = tmp_path / "shot.png"
    options = (f"--screenshot={shot}", "--window-size=1280,8000")
    browse((tmp_path / "report.html").as_uri(), *options, dark=scheme == "dark")
    with Image.open(io.BytesIO(shot.read_bytes())) as picture:
        counted = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    assert len(counted) > 200
    _, ground = max(counted)
    assert "#{:02x}{:02x}{:02x}".format(*ground) == colours(scheme)["bg"]
    shown = {"#{:02x}{:02x}{:02x}".format(*colour) for _, colour in counted}
    assert {colours(scheme)[name] for name in ("c0", "c1", "c2", "doubt-bg")} <= shown


@in_a_browser
@pytest.mark.parametrize("width", [320, 679, 680, 1600])
def test_no_width_of_the_page_scrolls_it_sideways_or_shrinks_its_text(width, tmp_path):
    (tmp_path / "report.html").write_text(report())
    found = measured(tmp_path, width)
    assert (found["width"], found["out"], found["cut"]) == (width, [], [])
    assert found["pictures"] == PLOTS  # one of the two drawings of each
    assert min(found["sizes"]) >= 10


@functools.cache
def degenerate():
    views = [replace(view, title=name, note="word" * 60) for name, view in (DRAWABLE | EMPTY).items()]
    table = Table("wide", tuple(f"column {n}" for n in range(40)), (("name " * 30, *"0123456789" * 4),))
    section = alone(*views, table, heading="w" * 300, command="c" * 300, facts=(("f" * 100, "v" * 300),))
    return page([section], "t" * 300)


@in_a_browser
@pytest.mark.parametrize("width", [375, 1120])
def test_degenerate_pictures_fit_the_page_as_well(width, tmp_path):
    (tmp_path / "report.html").write_text(degenerate())
    found = measured(tmp_path, width, dark=True)
    assert found["dark"]
    assert (found["width"], found["out"], found["cut"]) == (width, [], [])
    assert min(found["sizes"]) >= 10
