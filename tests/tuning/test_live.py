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
from typing import Any

import pytest

import mpiter
from mpiter import Stats
from mpiter.errors import OptionError
from mpiter.tuning.live import Live, Watcher, doing
from mpiter.worker.board import Line

IDLE = Line(pid=11, ready=1, block=-1, row=0, since=0, active=0)
BUSY = Line(pid=12, ready=1, block=17, row=3, since=9_500_000_000, active=1)
LOADING = Line(pid=13, ready=0, block=0, row=0, since=0, active=0)
ABSENT = Line(*[0] * 6)


def seen(at: float, batches: int, waited: float, **more: Any) -> Stats:
    """So many seconds after the first batch, at 2 s of start."""
    recent: Any = {"recent_s": at, "recent_wait_s": waited, "recent_batches": batches}
    return Stats(batches=batches, samples=8 * batches, wait_s=2 + waited, start_s=2.0, workers=3, **recent, **more)


def test_rates_and_shares_are_of_the_last_few_seconds_and_another_loop_begins_another_account() -> None:
    watcher = Watcher()
    assert watcher.view(seen(0.0, 1, 0.0), [], [], 0.0)[0][0] == "1 batch, 8 samples, 0 samples/s"
    for at in range(1, 11):
        watcher.view(seen(float(at), 1 + 10 * at, 0.1 * at), [], [], float(at))
    slow = [watcher.view(seen(at, 91 + at, 0.9 * at - 8.0), [], [], at)[0] for at in map(float, range(11, 21))]
    assert slow[-1][0].endswith(", 8 samples/s")
    assert slow[-1][1] == "waited 90%: workers can't keep up"
    assert watcher.view(seen(1.0, 1, 0.0), [], [], 30.0)[0][1].startswith("waited 0%")


def test_a_line_of_the_board_is_told_in_words() -> None:
    lines = IDLE, BUSY, BUSY._replace(since=9_990_000_000), LOADING
    assert [doing(line, 10.0) for line in lines] == [
        "idle", "fetching row 3 of block 17, 0.5 s", "fetching row 3 of block 17", "loading the dataset"
    ]  # fmt: skip


def test_a_view_has_four_figures_and_each_worker_that_is_there() -> None:
    rare = {"in_flight_batches": 9, "ready_batches": 4, "restarts": 2, "skipped": 1}
    figures, workers = Watcher().view(seen(10.0, 123_456, 5.0, **rare), [BUSY, ABSENT, IDLE], [], 10.0)
    assert figures[0].startswith("123,456 batches, 987,648 samples, ")
    assert figures[2:] == ["4 ready, 9 on their way", "2 workers, 2 restarts, 1 skipped sample"]
    assert [line.split()[1] for line in workers] == ["0", "2"]
    assert "waited 0%: no batch yet" in Watcher().view(Stats(), [], [], 0.0)[0]


# -- of real iterators -------------------------------------------------------------------------------------------------


class Stream:
    def __iter__(self) -> Any:
        return iter(range(40))


@pytest.mark.parametrize(
    "make",
    [
        lambda: mpiter.batches(range(40), 4, n_processes=0),
        lambda: mpiter.MultithreadIterator(range(40), 4, repeat=False),
        lambda: mpiter.DataLoader(range(40), 4, num_workers=1, persistent_workers=False),
        lambda: mpiter.DataLoader(Stream(), 4, num_workers=1),
    ],
    ids=["serial", "threads", "fresh workers", "stream"],
)
def test_everything_that_iterates_can_be_looked_at(make: Any) -> None:
    told = io.StringIO()
    with make() as source:
        drawn = [Watcher().look(source)[0][0] for _ in Live(source, told)]
        assert len(drawn) == 10
        assert not any(figure.startswith("0 batches") for figure in drawn)
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


def test_looking_does_not_change_what_the_user_sees() -> None:
    with mpiter.batches(range(400), 4, n_processes=0) as stream:
        next(stream)
        tally = stream._pump.loop.tally  # type: ignore[union-attr]
        tally.looked = tally.since = (tally.looked[0] - 100.0, 0.0, 0)  # one looked long ago
        before = tally.looked, tally.since
        for _ in range(3):
            next(stream)
            Watcher().look(stream)
        assert (tally.looked, tally.since) == before


def test_what_goes_wrong_while_drawing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpiter.batches(range(8), 4, n_processes=0) as stream:
        view = Live(stream, io.StringIO())
        monkeypatch.setattr(Watcher, "look", lambda *_: 1 / 0)
        assert len(list(view)) == 2


# -- on screens --------------------------------------------------------------------------------------------------------

_PROGRAM = """
import sys, threading, mpiter
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
            print("to standard error", file=sys.stderr)
print("the end", {thread.name for thread in threading.enumerate()} == {"MainThread"})
"""


def on_terminal(program: str, columns: int, rows: int) -> str:
    """What a program writes to a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**kept, "TERM": "xterm-256color"},
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


def test_on_a_small_terminal_it_is_drawn_in_place_and_fits_below_all_that_is_printed() -> None:
    pytest.importorskip("rich")
    text = on_terminal(_PROGRAM, 40, 4)
    lines = visible(text)
    assert max(map(len, lines)) <= 40
    assert {"said by the program", "to standard error", "the end True"} <= set(lines)
    assert any(line.startswith("worker 0") for line in lines)
    assert "\x1b[1A" in text, "it goes back up to draw again"
    assert "\x1b[?25h" in text, "and shows the cursor in the end"


@pytest.mark.parametrize("is_terminal", [False, True], ids=["piped", "without rich"])
def test_elsewhere_it_is_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    if is_terminal:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with mpiter.batches(range(40), 4, n_processes=0) as stream:
        assert len(list(Live(stream))) == 10
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("mpiter: 10 batches, 40 samples")
    assert "\x1b" not in out
    assert err == ""
