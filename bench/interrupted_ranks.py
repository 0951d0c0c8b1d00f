"""Ranks of a training that are interrupted on purpose.

A launcher forks them, and they carry out the strikes themselves.

The launcher does as torch's does: it passes SIGTERM and Ctrl-C on to its ranks, and
once one has ended with an error it ends the others, by SIGTERM and, after some seconds,
by SIGKILL.  Its ranks find torch and mpiter imported, so that a start takes a tenth of
a second.  Guarantees that a strike hits at the planned place: the rank that comes there
carries it out, and waits until it has heard it, if it will; and that nothing is left
running.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

# These say who is hit, and by what.
TERM_LAUNCHER = "SIGTERM to the launcher"
TERM_ONE = "SIGTERM to one rank"
KILL_ONE = "SIGKILL of one rank"
KILL_ALL = "SIGKILL of all"
CTRL_C = "Ctrl-C"
SIGNALS = (TERM_LAUNCHER, TERM_ONE, KILL_ONE, KILL_ALL, CTRL_C)
KILLS = (KILL_ONE, KILL_ALL)

# These say where the rank is that carries the strike out.
STEP = "in a step"
BETWEEN = "between two steps"
NEXT = "in next()"
VALIDATION = "in validation"
SAVING = "while saving"
BORDER = "at an epoch's border"
LAST = "in the last step"
PLACES = (STEP, BETWEEN, NEXT, VALIDATION, SAVING, BORDER, LAST)

# Seconds between SIGTERM and SIGKILL.
_GRACE_S = 5.0
_HEARD_S = 5.0
# A rank that isn't hit itself waits so long while another one is.
_LATER_S = 0.05
_LAST_WORDS = 3000


@dataclass(frozen=True, slots=True)
class Strike:
    """One interruption: in this epoch, at the time ``at`` that the place comes.

    Times are counted from 0.
    """

    signal: str
    place: str
    epoch: int
    at: int
    # This rank comes to the place, and is hit where a single one is. While saving, rank
    # 0 comes there, since it writes the files.
    rank: int


@dataclass(frozen=True)
class Seat:
    """One rank's place in a run of a training."""

    # The folder of the whole training, which has several runs.
    folder: Path
    run: int
    rank: int
    size: int
    strike: Strike | None
    options: dict[str, Any]
    # The launcher's process.
    launcher: int = 0
    _came: Counter[str] = field(default_factory=Counter)
    _heard: list[int] = field(default_factory=list)

    def tell(self, kind: str, **facts: object) -> None:
        """Write down what has happened, for those who count."""
        line = json.dumps({"run": self.run, "rank": self.rank, "kind": kind, **facts})
        descriptor = os.open(
            self.folder / "told", os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )
        os.write(descriptor, line.encode() + b"\n")
        os.close(descriptor)

    def take(self) -> None:
        """Let other ranks find this one, and notice signals at once.

        Their handlers may wait for the end of a step.
        """
        pid_file(self.folder, self.run, self.rank).write_text(str(os.getpid()))
        ears, mouth = os.pipe2(os.O_NONBLOCK)
        signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
        self._heard.append(ears)

    def at(self, place: str, epoch: int) -> None:
        """Carry the strike out, if it is planned here."""
        strike = self.strike
        if (
            strike is None
            or (place, epoch) != (strike.place, strike.epoch)
            or "struck" in self._came
        ):
            return
        striker = 0 if place == SAVING else strike.rank
        if self.rank != striker:
            return
        self._came[place] += 1
        if self._came[place] > strike.at:
            self._came["struck"] += 1
            self.tell("struck", signal=strike.signal, place=place)
            self._carry_out(strike)

    def _carry_out(self, strike: Strike) -> None:
        is_hit = True
        # The launcher has ended, and its number may be another process's by now.
        if os.getppid() != self.launcher:
            return
        if strike.signal == TERM_LAUNCHER:
            os.kill(self.launcher, signal.SIGTERM)
        elif strike.signal == CTRL_C:
            os.killpg(os.getpgid(self.launcher), signal.SIGINT)
        elif strike.signal == KILL_ALL:
            for rank in sorted(range(self.size), key=lambda rank: rank == self.rank):
                os.kill(self._pid_of(rank), signal.SIGKILL)
        else:
            number = signal.SIGKILL
            if strike.signal == TERM_ONE:
                number = signal.SIGTERM
            is_hit = strike.rank == self.rank
            os.kill(self._pid_of(strike.rank), number)
        if not is_hit:
            time.sleep(_LATER_S)
        elif not select.select(self._heard, [], [], _HEARD_S)[0]:
            self.tell("unheard")

    def _pid_of(self, rank: int) -> int:
        return int(pid_file(self.folder, self.run, rank).read_text())


def pid_file(folder: Path, run: int, rank: int) -> Path:
    return folder / f"pid-{run}-{rank}"


@contextmanager
def striking_at_calls(
    module: Any, name: str, strike: Callable[[], None]
) -> Iterator[None]:
    """Have a function of a module call ``strike`` after its work, in this block."""
    original = getattr(module, name)

    def struck(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        strike()
        return result

    setattr(module, name, struck)
    try:
        yield
    finally:
        setattr(module, name, original)


# -- the launcher ----------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a run ended: its ranks' exit codes, and whether we had to end it.

    A code is negative where a signal ended the rank.
    """

    codes: list[int | None]
    # Some rank hadn't ended when its time to end was over.
    forced: bool
    hung: bool
    # This is what was written to standard error.
    words: str


def launched(train: Callable[[Seat], None], seats: list[Seat], limit_s: float) -> Ended:
    """Run the ranks to their end, each in a process that is forked."""
    folder = seats[0].folder
    run = seats[0].run
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = os.fork()
    if not launcher:
        _be_launcher(train, seats)
    words = folder / f"words-{run}"
    hung = not _ends(launcher, limit_s)
    if hung:
        with suppress(ProcessLookupError):
            # Have the ranks write their stacks.
            os.killpg(launcher, signal.SIGUSR1)
            time.sleep(0.5)
    with suppress(ProcessLookupError):
        os.killpg(launcher, signal.SIGKILL)
    if hung:
        os.waitpid(launcher, 0)
    told = folder / f"ended-{run}"
    # A launcher that was killed hasn't told how its ranks ended.
    found = {"codes": [None] * len(seats), "forced": False}
    if told.exists():
        found = json.loads(told.read_text())
    said = ""
    if words.exists():
        said = words.read_text()[-_LAST_WORDS:]
    return Ended(found["codes"], found["forced"], hung, said)


def _ends(pid: int, limit_s: float) -> bool:
    end = os.pidfd_open(pid)
    try:
        if not select.select([end], [], [], limit_s)[0]:
            return False
        os.waitpid(pid, 0)
        return True
    finally:
        os.close(end)


def _be_launcher(train: Callable[[Seat], None], seats: list[Seat]) -> NoReturn:
    try:
        os.setsid()
        folder = seats[0].folder
        run = seats[0].run
        words = os.open(folder / f"words-{run}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for descriptor in (1, 2):
            os.dup2(words, descriptor)
        found = _Launcher(train, seats).conduct()
        new = folder / f"ended-{run}.new"
        new.write_text(json.dumps(found))
        new.replace(folder / f"ended-{run}")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class _Launcher:
    """One process, which has forked the ranks and waits for them."""

    def __init__(self, train: Callable[[Seat], None], seats: list[Seat]) -> None:
        self._heard = list[int]()
        self._ears, mouth = os.pipe2(os.O_NONBLOCK)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._heard.append(number))
        signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
        port = _free_port()
        self._pids = [_forked(train, seat, port) for seat in seats]
        self._ends = {os.pidfd_open(pid): rank for rank, pid in enumerate(self._pids)}
        self._codes: list[int | None] = [None] * len(seats)
        self._kill_at: float | None = None
        self._forced = False

    def conduct(self) -> dict[str, Any]:
        while self._ends:
            patience = None
            if self._kill_at is not None:
                patience = max(0.0, self._kill_at - time.monotonic())
            ready, _, _ = select.select([self._ears, *self._ends], [], [], patience)
            with contextlib.suppress(BlockingIOError):
                os.read(self._ears, 64)
            while self._heard:
                number = self._heard.pop()
                # A training of one rank has heard the Ctrl-C too, and would take a
                # second one as a wish to end at once.
                if number != signal.SIGINT or len(self._pids) > 1:
                    self._pass_on(number)
            for end in self._ends.keys() & set(ready):
                self._note(end)
            if (
                self._kill_at is not None
                and time.monotonic() >= self._kill_at
                and self._ends
            ):
                self._forced = True
                self._kill_at = None
                self._send(signal.SIGUSR1)
                time.sleep(0.3)
                self._send(signal.SIGKILL)
        return {"codes": self._codes, "forced": self._forced}

    def _note(self, end: int) -> None:
        rank = self._ends.pop(end)
        os.close(end)
        _, status = os.waitpid(self._pids[rank], 0)
        code = os.waitstatus_to_exitcode(status)
        self._codes[rank] = code
        if code and self._kill_at is None and not self._forced:
            self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        self._send(number)
        if self._kill_at is None and not self._forced:
            self._kill_at = time.monotonic() + _GRACE_S

    def _send(self, number: int) -> None:
        for rank in self._ends.values():
            os.kill(self._pids[rank], number)


def _forked(train: Callable[[Seat], None], seat: Seat, port: int) -> int:
    seat = replace(seat, launcher=os.getpid())
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = _be_rank(train, seat, port)
        finally:
            os._exit(code)
    return pid


def _be_rank(train: Callable[[Seat], None], seat: Seat, port: int) -> int:
    """Train, and return what Python's exit code would be.

    Before that it does what Python does at its end.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1, file=2)
    os.environ |= environment(seat, port)
    code = 0
    try:
        train(seat)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        print(f"rank {seat.rank}:", file=sys.stderr)
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stderr.flush()
    return code


def environment(seat: Seat, port: int) -> dict[str, str]:
    """Return what torch's launcher sets."""
    told = {"RANK": seat.rank, "LOCAL_RANK": seat.rank, "GROUP_RANK": 0, "NODE_RANK": 0}
    told |= {
        "WORLD_SIZE": seat.size,
        "LOCAL_WORLD_SIZE": seat.size,
        "GROUP_WORLD_SIZE": 1,
    }
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in told.items()} | {
        "TORCHELASTIC_RUN_ID": "none"
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
