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
from mpiter.tuning.live import Live, View, Watcher, doing
from mpiter.worker.board import Line

IDLE = Line(pid=11, ready=1, block=-1, row=0, since=0, active=0)
BUSY = Line(pid=12, ready=1, block=17, row=3, since=9_500_000_000, active=1)
LOADING = Line(pid=13, ready=0, block=0, row=0, since=0, active=0)
ABSENT = Line(*[0] * 6)


def seen(at: float, batches: int, waited: float, **more: Any) -> Stats:
    """So many seconds after the first batch, at 2 s of start."""
    recent: Any = {"recent_s": at, "recent_wait_s": waited, "recent_batches": batches}
    return Stats(batches=batches, samples=8 * batches, wait_s=2 + waited, start_s=2.0, workers=3, **recent, **more)


def view(stats: Stats, lines: Any = (IDLE, BUSY, LOADING)) -> View:
    return Watcher().view(stats, lines, [], 10.0)


def test_rates_and_shares_are_of_the_last_few_seconds() -> None:
    watcher = Watcher()
    assert watcher.view(seen(0.0, 1, 0.0), [], [], 0.0).stats.samples_per_s == 0
    for at in range(1, 11):
        watcher.view(seen(float(at), 1 + 10 * at, 0.1 * at), [], [], float(at))
    slow = [watcher.view(seen(at, 91 + at, 0.9 * at - 8.0), [], [], at) for at in map(float, range(11, 21))]
    assert slow[-1].stats.samples_per_s == pytest.approx(8.0)
    assert slow[-1].stats.recent_share == pytest.approx(0.9)
    assert "waited 90%: workers can't keep up; " in slow[-1].line()


def test_the_start_is_no_waiting_and_another_loop_begins_another_account() -> None:
    watcher = Watcher()
    assert watcher.view(seen(10.0, 500, 1.0), [], [], 10.0).stats.recent_share == pytest.approx(0.1)
    assert watcher.view(seen(1.0, 1, 0.0), [], [], 20.0).stats.recent_share == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (IDLE, "idle"),
        (BUSY, "fetching row 3 of block 17, 0.5 s"),
        (BUSY._replace(since=9_990_000_000), "fetching row 3 of block 17"),
        (LOADING, "loading the dataset"),
    ],
)
def test_a_line_of_the_board_is_told_in_words(line: Line, said: str) -> None:
    assert doing(line, 10.0) == said


@pytest.mark.parametrize("width", [10, 80])
@pytest.mark.parametrize("height", [1, 5, 24])
@pytest.mark.parametrize("workers", [0, 64])
def test_a_view_fits_any_terminal(width: int, height: int, workers: int) -> None:
    watcher, flying = Watcher(), {"in_flight_batches": 9, "ready_batches": 4, "restarts": 2, "skipped": 1}
    watcher.view(seen(5.0, 100_000, 2.0), [], [], 5.0)
    lines = watcher.view(seen(10.0, 123_456, 5.0, **flying), [BUSY, ABSENT] * workers, [], 10.0).lines(width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if height == 24 and workers == 64:
        assert lines[-1].startswith("and 45 more"[:width]) or width == 10, "it says that there are more"
    if width >= 80 and height == 24:
        text = "\n".join(lines)
        assert all(part in text for part in ("987,648 samples", "waited 60%", "4 ready, 9 on their way", "2 restarts"))


def test_before_the_first_batch_there_is_little_to_say() -> None:
    said = "0 batches, 0 samples, 0 samples/s; waited 0%: no batch yet; 0 ready, 0 on their way; 0 workers"
    assert view(Stats(), []).line() == said


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
        drawn = [live.look(source, Watcher()) for _ in Live(source, told)]
        assert len(drawn) == 10
        assert all(view.stats.batches for view in drawn)
    assert told.getvalue().startswith("mpiter: ")
    assert "mpiter-live" not in {thread.name for thread in threading.enumerate()}


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
        tally = stream._pump.loop.tally  # type: ignore[union-attr]
        tally.looked = tally.since = (tally.looked[0] - 100.0, 0.0, 0)  # one looked long ago
        before = tally.looked, tally.since
        for _ in range(3):
            next(stream)
            live.look(stream, Watcher())
        assert (tally.looked, tally.since) == before


def test_what_goes_wrong_while_drawing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpiter.batches(range(8), 4, n_processes=0) as stream:
        view = Live(stream, io.StringIO())
        monkeypatch.setattr(live, "look", lambda *_: 1 / 0)
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


def test_what_is_written_to_standard_error_stands_above_the_drawing() -> None:
    pytest.importorskip("rich")
    writes = 'import sys; print("said to standard error", file=sys.stderr)'
    text = on_terminal(_PROGRAM.replace('print("said by the program")', writes), 80)
    assert "said to standard error" in visible(text)
    assert "the end True" in visible(text)


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
