"""The live view: what it says, that it fits, that it disturbs nobody, and that it leaves nothing behind."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from types import ModuleType
from typing import Any

import pytest
from pairs import slow_but

import mpiter
from mpiter import Stats
from mpiter.errors import OptionError
from mpiter.tuning import live
from mpiter.tuning.live import Live
from mpiter.tuning.screen import Glance, Watcher, doing, view
from mpiter.worker.board import Line

IDLE = Line(pid=11, ready=1, run=1, task=-1, batch=0, row=0, since=0, active=0)
BUSY = Line(pid=12, ready=1, run=1, task=4, batch=17, row=3, since=9_500_000_000, active=1)
LOADING = Line(pid=13, ready=0, run=0, task=0, batch=0, row=0, since=0, active=0)
ABSENT = Line(*[0] * 8)


def glanced(at: float, batches: int, waited: float, lines: Any = (IDLE, BUSY, LOADING), **more: Any) -> Glance:
    """So many seconds after the first batch, at 2 s of start."""
    stats = Stats(
        batches=batches, samples=8 * batches, wait_s=2 + waited, start_s=2.0, seconds=at, workers=len(lines),
        fetch_s=0.1 * batches, fetch_cpu_s=0.1 * batches, **more,
    )  # fmt: skip
    return Glance(at, stats, lines, [0.5 * at] * len(lines), [50_000_000] * len(lines))


def test_rates_and_shares_are_of_the_last_few_seconds() -> None:
    watcher = Watcher()
    assert watcher.view(glanced(0.0, 1, 0.0)).samples_per_s is None
    for at in range(1, 11):
        watcher.view(glanced(float(at), 1 + 10 * at, 0.1 * at))
    slow = [watcher.view(glanced(float(at), 101 + at - 10, 1.0 + 0.9 * (at - 10))) for at in range(11, 21)]
    assert slow[-1].samples_per_s == pytest.approx(8.0)
    assert slow[-1].waited == pytest.approx(0.9)
    assert slow[-1].workers[0].busy == pytest.approx(0.5)
    assert slow[-1].verdict == "workers can't keep up"


def test_the_start_is_no_waiting() -> None:
    assert view(glanced(10.0, 5, 1.0)).waited == pytest.approx(0.1)


def test_another_loop_begins_another_account() -> None:
    watcher = Watcher()
    watcher.view(glanced(10.0, 500, 1.0))
    assert watcher.view(glanced(1.0, 1, 0.0)).waited == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (IDLE, "idle"),
        (BUSY, "fetching row 3 of batch 17, 0.5 s"),
        (BUSY._replace(since=9_990_000_000), "fetching row 3 of batch 17"),
        (LOADING, "loading the dataset"),
    ],
)
def test_a_line_of_the_board_is_told_in_words(line: Line, said: str) -> None:
    assert doing(line, 10.0) == said


def test_who_is_not_there_is_not_shown() -> None:
    assert [worker.number for worker in view(glanced(1.0, 1, 0.0, [IDLE, ABSENT, BUSY])).workers] == [0, 2]


@pytest.mark.parametrize("width", [10, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 24])
@pytest.mark.parametrize("workers", [0, 2, 64])
def test_a_view_fits_any_terminal(width: int, height: int, workers: int) -> None:
    now = glanced(10.0, 123_456, 5.0, [BUSY] * workers, in_flight_batches=9, ready_batches=4, restarts=2, errors=1)
    lines = view(now, glanced(5.0, 100_000, 2.0, [BUSY] * workers)).lines(width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if height == 24 and workers == 64:
        assert any(line.startswith("and ") for line in lines), "it says that there are more"
    if width >= 80 and height == 24:
        text = "\n".join(lines)
        assert all(part in text for part in ("987,648 samples", "60% of the time", "4 of 9 batches", "2 restarts"))


def test_before_the_first_batch_there_is_little_to_say() -> None:
    assert view(Glance(1.0, Stats(), [], [], [])).line() == (
        "0 batches, 0 samples; waited –; 0 ready, 0 on their way; no batch yet"
    )


# -- of real iterators -------------------------------------------------------------------------------------------------


class Stream:
    def __iter__(self) -> Any:
        return iter(range(40))


@pytest.mark.parametrize(
    "make",
    [
        lambda: mpiter.batches(range(40), 4, n_processes=2),
        lambda: mpiter.batches(range(40), 4, n_processes=0),
        lambda: mpiter.MultithreadIterator(range(40), 4, repeat=False),
        lambda: mpiter.DataLoader(range(40), 4, num_workers=2),
        lambda: mpiter.DataLoader(range(40), 4, num_workers=1, persistent_workers=False),
        lambda: mpiter.DataLoader(Stream(), 4, num_workers=2),
    ],
    ids=["batches", "serial", "threads", "loader", "fresh workers", "stream"],
)
def test_everything_that_iterates_can_be_looked_at(make: Any) -> None:
    told = io.StringIO()
    with make() as source:
        drawn = [live.glance_of(source) for _ in Live(source, told)]
        assert len(drawn) == 10
        assert all(glance.stats.batches for glance in drawn)
    assert told.getvalue().startswith("mpiter: ")
    assert "mpiter-live" not in {thread.name for thread in threading.enumerate()}


def test_it_may_stand_around_the_loop_and_look_at_an_epoch() -> None:
    told = io.StringIO()
    with mpiter.DataLoader(range(40), 4, num_workers=1) as loader:
        epoch = iter(loader)
        with Live(epoch, told):
            assert len(list(epoch)) == 10
        assert len(Live(loader)) == 10
    assert told.getvalue().count("\n") == 1


def test_a_loop_that_is_left_ends_the_view() -> None:
    with mpiter.batches(range(40), 4, n_processes=0) as stream:
        for _ in Live(stream, io.StringIO()):
            break
    stream = mpiter.batches(range(40), 4, n_processes=0)
    with pytest.raises(KeyError), stream, Live(stream, io.StringIO()):
        raise KeyError
    assert "mpiter-live" not in {thread.name for thread in threading.enumerate()}


def test_only_what_is_ours_can_be_looked_at() -> None:
    with pytest.raises(OptionError, match="not of list"):
        Live([1, 2, 3])


def test_looking_does_not_change_what_the_user_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpiter.batches(range(400), 4, n_processes=0) as stream:
        next(stream)
        assert stream._pump.loop is not None
        tally = stream._pump.loop.tally
        tally.looked = tally.since = (tally.looked[0] - 100.0, 0.0, 0)  # one looked long ago
        before = tally.looked, tally.since
        for _ in range(3):
            next(stream)
            live.glance_of(stream)
        assert (tally.looked, tally.since) == before


def test_what_goes_wrong_while_drawing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpiter.batches(range(8), 4, n_processes=0) as stream:
        view = Live(stream, io.StringIO())
        monkeypatch.setattr(live, "glance_of", lambda source: 1 / 0)
        assert len(list(view)) == 2


# -- on screens --------------------------------------------------------------------------------------------------------

_PROGRAM = """
import threading, mpiter
from mpiter.tuning import live
drawn = threading.Semaphore(0)
live._DRAW_S = 0.01
draw = live.Live._draw
def counted(self, is_last=False):
    draw(self, is_last)
    drawn.release()
live.Live._draw = counted
with mpiter.batches(range(40), 4, n_processes=1) as stream:
    for at, batch in enumerate(live.Live(stream, line_s=0.0)):
        drawn.acquire()  # a look or more for each batch
        if at == 5:
            print("said by the program")
print("the end", {thread.name for thread in threading.enumerate()} == {"MainThread"})
"""


def on_terminal(program: str, columns: int, rows: int = 24, **environment: str) -> str:
    """What a program writes to a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(theirs)
    data = b""
    try:
        while piece := os.read(ours, 65536):
            data += piece
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0, data.decode()
    return data.decode()


def visible(text: str) -> list[str]:
    return re.split("[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))


@pytest.mark.parametrize("columns", slow_but([80, 40, 12], 80))
def test_on_a_terminal_it_is_drawn_in_place_and_fits(columns: int) -> None:
    pytest.importorskip("rich")
    text = on_terminal(_PROGRAM, columns)
    lines = visible(text)
    assert max(map(len, lines)) <= max(columns, len("said by the program"), len("the end True"))
    assert "said by the program" in " ".join(" ".join(lines).split())
    assert "the end True" in lines
    assert any(line.startswith("worker 0") for line in lines)
    assert "\x1b[1A" in text, "it goes back up to draw again"
    assert "\x1b[?25h" in text, "and shows the cursor in the end"


_WARNS = """
import logging, sys
logging.basicConfig(format="%(message)s")
errors = sys.stderr
""" + _PROGRAM.replace(
    'print("said by the program")',
    'print("said to standard error", file=sys.stderr); logging.warning("logged at a drawing"); drawn.acquire()',
).replace('print("the end", ', 'print("the end", sys.stderr is errors is logging.root.handlers[0].stream, ')


def test_what_is_written_to_standard_error_stands_above_the_drawing() -> None:
    pytest.importorskip("rich")
    text = on_terminal(_WARNS, 80)
    for said in ("said to standard error", "logged at a drawing"):
        after = text[text.index(said) :]
        assert after.startswith(f"{said}\r\n")
        following = re.split(r"worker 0", after[len(said) + 2 :])[0]
        assert "\x1b[1A" not in following, "nobody goes back up over it"
    assert "the end True True" in visible(text)


def test_half_a_line_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    told, errors = io.StringIO(), io.StringIO()
    told.isatty = errors.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", errors)
    with mpiter.batches(range(8), 4, n_processes=0) as stream, Live(stream, told) as view:
        view._draw()
        sys.stderr.write("half ")
        shown = told.getvalue()
        view._draw()
        assert told.getvalue() == shown
        sys.stderr.write("a line\n")
        view._draw()
        assert told.getvalue() != shown
    assert errors.getvalue() == "half a line\n"
    assert sys.stderr is errors


def test_piped_it_is_lines() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert "\x1b" not in ran.stdout
    told = [line for line in ran.stdout.splitlines() if line.startswith("mpiter: ")]
    assert told[-1].startswith("mpiter: 10 batches, 40 samples")
    assert "the end True" in ran.stdout
    assert ran.stderr == ""


def test_without_rich_a_terminal_gets_lines() -> None:
    text = on_terminal("import sys; sys.modules['rich.console'] = None\n" + _PROGRAM, 80)
    assert any(line.startswith("mpiter: 10 batches") for line in visible(text))
    assert "\x1b[1A" not in text


def tqdm_with(*bars: str) -> Any:
    """What the view knows of tqdm."""
    module: Any = ModuleType("tqdm")
    written: list[str] = []

    class Tqdm:
        _instances = frozenset(bars)

        @staticmethod
        def write(text: str, file: Any) -> None:
            written.append(text)

    module.tqdm, module.written = Tqdm, written
    return module


def test_where_tqdm_has_a_bar_the_view_writes_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tqdm = tqdm_with("a bar")
    monkeypatch.setitem(sys.modules, "tqdm", tqdm)
    told = io.StringIO()
    told.isatty = lambda: True  # type: ignore[method-assign]
    with mpiter.batches(range(8), 4, n_processes=0) as stream:
        assert len(list(Live(stream, told))) == 2
    assert told.getvalue() == ""
    assert len(tqdm.written) == 1


def test_a_bar_that_comes_later_ends_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    told = io.StringIO()
    told.isatty = lambda: True  # type: ignore[method-assign]
    with mpiter.batches(range(8), 4, n_processes=0) as stream, Live(stream, told) as view:
        next(stream)
        view._draw()
        monkeypatch.setitem(sys.modules, "tqdm", tqdm_with("a bar"))
        view._draw()
        assert isinstance(view._screen, live._Lines)
        shown = told.getvalue()
        view._draw()
        assert told.getvalue() == shown, "nothing is drawn any more"


def test_a_notebook_shows_the_same_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data)

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        return Handle()

    monkeypatch.setattr(live, "_display_of_notebook", lambda: display)
    with mpiter.batches(range(8), 4, n_processes=0) as stream:
        assert len(list(Live(stream))) == 2
    assert shown[-1]["text/plain"].startswith("2 batches, 8 samples")
    assert shown[-1]["text/html"].startswith("<pre>2 batches")


_NOTEBOOK = """
import nbclient, nbformat
cell = nbformat.v4.new_code_cell(
    "import mpiter\\nfrom mpiter.tuning.live import Live\\n"
    "for batch in Live(mpiter.batches(range(8), 4, n_processes=0)):\\n    pass"
)
notebook = nbformat.v4.new_notebook(cells=[cell])
nbclient.NotebookClient(notebook, timeout=60).execute()
print(*(output["data"]["text/plain"] for output in notebook.cells[0].outputs), sep="| another output: ")
"""


@pytest.mark.slow
def test_in_a_real_notebook_a_cell_has_one_output_that_changes() -> None:
    for library in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(library)
    ran = subprocess.run([sys.executable, "-c", _NOTEBOOK], capture_output=True, text=True, timeout=100, check=True)
    assert ran.stdout.startswith("2 batches, 8 samples")
    assert "another output" not in ran.stdout


def test_outside_a_notebook_nothing_is_displayed() -> None:
    assert live._display_of_notebook() is None
