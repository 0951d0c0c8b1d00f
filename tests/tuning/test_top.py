"""`mpiter top`: a running program's iterators are seen from outside, and it is said why there is nothing to see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scripts import once_waiting, wait_until

import mpiter
from mpiter.__main__ import main
from mpiter.pool import stopwatch
from mpiter.tuning import top
from mpiter.tuning.live import look
from mpiter.tuning.screen import View, Watcher
from mpiter.tuning.top import Top
from mpiter.worker.board import FIGURES, HEAD, LINE_BYTES, MARK

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it reads /proc")


FIGURES_SEEN = ("batches", "samples", "restarts", "tasks", "workers", "room_bytes", "start_s", "wait_s", "fetch_s")


def settled(it: Any) -> View:
    """What is seen when the loop has said on its board all that has been done: workers are at work meanwhile."""
    while True:
        it._pump.loop.wake()
        own, (seen,) = it.stats(), Top(os.getpid()).look()
        agrees = all(getattr(seen.stats, name) == getattr(own, name) for name in FIGURES_SEEN)
        if agrees and len(seen.workers) == own.workers:  # the last of which may just have started
            return seen


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_the_figures_are_those_of_the_program_and_its_workers(backend: str) -> None:
    with mpiter.batches(range(400), 4, n_processes=2, backend=backend) as stream:
        for _ in range(3):
            next(stream)
        seen = settled(stream)
        assert seen.stats.batches == 3
        assert stream.stats().seconds >= seen.stats.seconds > 0
        assert len(seen.workers) == 2
        if backend == "process":
            assert all(any(f"pid {pid} " in line for line in seen.workers) for pid in stream.worker_pids)
        assert (seen.worker_bytes > 0) == (backend == "process")


def test_several_iterators_are_seen_apart_and_one_that_has_ended_no_more() -> None:
    with mpiter.batches(range(40), 4, n_processes=1) as one:
        next(one)
        with mpiter.DataLoader(range(40), 4, num_workers=1) as loader:
            next(iter(loader))
            assert len(Top(os.getpid()).look()) == 2
        assert len(Top(os.getpid()).look()) == 1
    assert Top(os.getpid()).look() == []


class Stuck:
    """One sample takes until there is a file."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        while index == 8 and not self.gate.exists():
            time.sleep(0.002)
        return index


def test_a_wait_is_seen_while_it_lasts_and_not_when_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "_MOST_S", 0.01)
    gate, own = tmp_path / "gate", Watcher()
    with mpiter.batches(Stuck(gate), 4, n_processes=1, shuffle=False) as stream:
        next(stream)
        next(stream)
        before, outside = settled(stream).stats.wait_s, Top(os.getpid())

        def look_on() -> None:
            try:
                for seen in (lambda: look(stream, own), lambda: outside.look()[0]):
                    first = seen()
                    wait_until(
                        lambda seen=seen, first=first: seen().stats.wait_s > first.stats.wait_s, "the wait is seen"
                    )
                    waited.append(seen().stats.recent_share)
            finally:
                gate.touch()

        waited: list[float] = []
        looking = once_waiting(look_on)
        next(stream)
        looking.join()
        assert all(share > 0 for share in waited)
        assert len(waited) == 2
        after = settled(stream).stats
        assert after.wait_s > before
        (seen,) = Top(os.getpid()).look()
        assert seen.stats.wait_s == after.wait_s, "the trainer works"


def test_memory_that_is_no_board_is_passed_over(tmp_path: Path) -> None:
    size = HEAD.size + LINE_BYTES
    board = HEAD.pack(MARK, 1, 0.0, 0.0, *[0.0] * len(FIGURES)) + bytes(LINE_BYTES)
    files = {
        "empty": b"",
        "short": board[: HEAD.size - 1],
        "other": bytes(size),
        "mad": HEAD.pack(MARK, -1, 0.0, 0.0, *[0.0] * len(FIGURES)),
        "right": board,
        "named": board,
    }
    folder = tmp_path / "mpiter-memfd:mpiter"  # whatever the folder is called
    folder.mkdir()
    opened = []
    for name, data in files.items():
        (folder / name).write_bytes(data)
        opened.append((folder / name).open("rb"))
        if name != "named":
            (folder / name).unlink()
    found = {inode for inode, _ in top.boards_of(os.getpid())}
    right = [name for name, file in zip(files, opened, strict=True) if os.fstat(file.fileno()).st_ino in found]
    for file in opened:
        file.close()
    assert right == ["right"]


# -- the command -------------------------------------------------------------------------------------------------------

_PROGRAM = """
import sys, mpiter
with mpiter.batches(range(400), 4, n_processes=1) as stream:
    next(stream)
    print("ready", flush=True)
    for _ in stream:
        sys.stdin.readline() or sys.exit()
"""


@pytest.fixture
def program() -> Any:
    """One that iterates, a batch for each line it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate()


def test_a_look_from_outside_is_printed_once(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(program.pid), "--once", "--interval", "0.01"]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"\d batch(es)?, \d+ samples?", shown)
    assert "worker 0 " in shown
    assert program.poll() is None, "the program has noticed nothing"


def test_piped_it_is_lines_until_the_program_ends(
    program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def nap(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 3:
            program.kill()
            program.wait()

    monkeypatch.setattr(top.time, "sleep", nap)
    assert main(["top", str(program.pid), "--interval", "5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert looked == [5.0] * 3


@pytest.mark.parametrize(
    ("pid", "said"),
    [
        ("4194305", "there is no process 4194305, or it is another user's"),
        (str(os.getppid()), "has no iterator of mpiter under way"),
    ],
)
def test_it_says_why_there_is_nothing_to_see(pid: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", pid, "--once"]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["one"], *(["1", "--interval", some] for some in ("0", "nan", "1e10", "x"))])
def test_what_makes_no_sense_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["top", *words])
    assert refused.value.code == 2
