"""``trace="run.json"``: what every worker, the prefetch thread and the consumer did, for Perfetto and chrome://tracing.

A ``Tracer`` is the tally of one loop: it notes what it is told as rows of numbers, each thread in a list of its own.
Once in a second these go into a part file beside the trace (``run.json.….part``), which a program that is killed
leaves behind, and which ``read`` takes as well.  When the loop ends the rows become events, and the file gets its name.
A program's loops share one file, whether they follow each other or run at once; of several programs the later ones
take a name of their own.  Guarantees that memory and file are bounded (``MOST`` rows; what is beyond is counted), and
that a full disk ends the trace, not the program.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from .. import machine
from ..engine.tally import Tally
from ..errors import OptionError
from ..rules import Rules
from ..worker.task import Ticket
from .events import FORMAT, Loop, Recorded, recorded

MOST = 500_000  # rows: some 100,000 batches, and 60 MB of JSON
_EVERY_S = 1.0
_log = logging.getLogger("mpiter")
_in_use: WeakValueDictionary[str, Trace] = WeakValueDictionary()

Row = tuple[float, ...]


def tracer(path: str) -> Trace:
    """What ``trace=path`` stands for."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if not os.path.isdir(folder):
        raise OptionError(f"trace={path!r}: there is no folder {folder}; make it first.")
    if os.path.exists(real) and not os.path.isfile(real):
        raise OptionError(f"trace={path!r} is no file that can be written anew; name one, such as 'run.json'.")
    trace = _in_use.get(real) or Trace(real)
    _in_use[real] = trace
    return trace


class Trace:
    """One file; travels with the options, and to a copy of them in another process as its name alone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.RLock()  # the garbage collector may end a loop in whoever has it
        self._begin()

    def _begin(self) -> None:
        self._pid, self._part = os.getpid(), Path()
        self._file: BinaryIO | None = None  # the part file, once there is something in it
        self._zero, self._unix_s = time.monotonic(), time.time()
        self._active: set[int] = set()  # guarded by _lock, like all below
        self._loops: dict[int, dict[str, Any]] = {}
        self._rows = self._left_out = 0
        self._is_broken = False
        self._end: tuple[int, int] | None = None  # the file that we wrote, and where its events end

    def __reduce__(self) -> Any:
        return tracer, (self.path,)

    def tally(self, rules: Rules, backend: str) -> Tracer:
        """For a loop under these rules."""
        with self._lock:
            if self._pid != os.getpid():  # a fork has loops of its own
                self._begin()
            number = len(self._loops) + 1
            self._loops[number] = asdict(rules) | {"backend": backend}
            self._active.add(number)
            self._write(number, about=self._loops[number])
        return Tracer(self, number)

    def note(self, number: int, kind: str, rows: list[Row]) -> None:
        """Keep rows of a loop."""
        with self._lock:
            kept = rows[: max(0, MOST - self._rows)]
            self._rows += len(kept)
            self._left_out += len(rows) - len(kept)
            if kept:
                numbers = list(chain.from_iterable(kept))
                self._write(number, kind, struct.pack(f"{len(numbers)}d", *numbers))

    def end(self, number: int, counters: dict[str, Any]) -> None:
        """A loop has ended: the file is written when no other runs."""
        with self._lock:
            self._loops[number]["counters"] = counters
            self._active.discard(number)
            if not self._active:
                try:
                    self._finish()
                except OSError as error:
                    self._give_up(error)

    def _write(self, number: int, kind: str = "", numbers: bytes = b"", about: Any = None) -> None:
        """Append to the part file: a line of JSON, and so many bytes of numbers."""
        if self._is_broken:
            return
        head = {"loop": number, "kind": kind, "bytes": len(numbers), "zero": self._zero, "about": about}
        try:
            if self._file is None:
                self._part = machine.new_name(f"{self.path}.", ".part")
                self._file = open(self._part, "xb")  # noqa: SIM115
            self._file.write(json.dumps(head).encode() + b"\n" + numbers)
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._is_broken = True
        if self._file is not None:
            with contextlib.suppress(OSError):  # of what it could not write
                self._file.close()
        _log.warning("the trace %s cannot be written, and ends here: %s", self.path, str(error))

    def _finish(self) -> None:
        """The events so far, those of the part file after them."""
        if self._is_broken:
            return
        if self._is_anothers():
            root, ending = os.path.splitext(self.path)
            _log.warning("another program has written the trace %s meanwhile; ours has our pid in its name", self.path)
            self.path = f"{root}.{self._pid}{ending}"
        loops = self._loops_of_part()
        new = machine.new_name(f"{self.path}.", ".json")
        try:
            with open(new, "xb") as file:
                first = self._copy_events(file)
                for events in chain.from_iterable(loop.events() for loop in loops):
                    file.write((b'{"traceEvents":[\n' if first else b",\n") + events.encode())
                    first = False
                self._end = os.fstat(file.fileno()).st_ino, file.tell()
                file.write(b'\n],"displayTimeUnit":"ms","otherData":' + json.dumps(self._other()).encode() + b"}\n")
            os.replace(new, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        self._part.unlink()

    def _loops_of_part(self) -> list[Loop]:
        part, self._file = self._file, None
        if part is None:
            return []
        part.close()
        return _loops_of(self._part.read_bytes())

    def _is_anothers(self) -> bool:
        """Has another program written the file since we began?"""
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(self.path)
            return there.st_mtime > self._unix_s and (self._end is None or self._end[0] != there.st_ino)
        return False

    def _copy_events(self, file: Any) -> bool:
        """Those that we wrote before, of loops that have ended; are there none?"""
        if self._end is not None:
            inode, size = self._end
            with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as before:
                if os.fstat(before.fileno()).st_ino == inode:
                    while file.tell() < size:
                        file.write(before.read(min(1 << 20, size - file.tell())))
        return not file.tell()

    def _other(self) -> dict[str, Any]:
        return _about(self._loops) | {"unix_s": self._unix_s, "pid": self._pid, "left_out": self._left_out}


def _about(loops: dict[int, dict[str, Any]]) -> dict[str, Any]:
    ours = {"cores": machine.cores(), "memory_bytes": machine.memory_total()}
    return {"mpiter": FORMAT, "loops": loops, **ours, "most_rows": MOST, "left_out": 0}


class Tracer(Tally):
    """The tally of one loop, which notes every single thing.

    It calls ``Tally`` by its name: ``super()`` five times a batch would cost a fifth of all that tracing does.
    """

    def __init__(self, trace: Trace, number: int) -> None:
        super().__init__()
        self._trace: Trace | None = trace
        self._number = number
        self._consumers, self._loops = _Notes(self._keep), _Notes(self._keep)
        self._note_wait, self._note_batch = self._consumers.of("wait"), self._consumers.of("batch")
        self._note_order, self._note_queue = self._loops.of("order"), self._loops.of("queue")
        self._opened = (0.0, 0.0)
        self._cpu_s = 0.0  # of the consumer's thread, when it asked for a batch
        self._seen = (-1, -1)  # batches on their way, and ready

    def _keep(self, kind: str, rows: list[Row]) -> None:
        if self._trace is not None:
            self._trace.note(self._number, kind, rows)

    def close(self) -> None:
        self._consumers.hand_over()
        self._loops.hand_over()
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.end(self._number, self.counters())

    # -- in the consumer's thread --------------------------------------------------------------------------------

    def asked(self) -> float:
        self._cpu_s = time.thread_time()
        return Tally.asked(self)

    def waited(self, began: float, ended: float) -> None:
        Tally.waited(self, began, ended)
        self._note_wait((began, ended, self._cpu_s))

    def opened(self, began: float, ended: float) -> None:
        Tally.opened(self, began, ended)
        self._opened = began, ended

    def handed_out(self, samples: int, size: int) -> None:
        Tally.handed_out(self, samples, size)
        began, ended = self._opened
        self._note_batch((began, ended, samples, size, time.thread_time()))
        if ended > self._consumers.due:
            self._consumers.hand_over(ended)

    # -- in the loop's -------------------------------------------------------------------------------------------

    def ordered(self, began: float, ended: float) -> None:
        Tally.ordered(self, began, ended)
        self._note_order((began, ended))

    def answered(self, ticket: Ticket, again: bool) -> None:
        super().answered(ticket, again)
        began = ticket.began or time.monotonic()
        took = ticket.rows, ticket.queue_s, ticket.cpu_s, ticket.delay_s, ticket.read_s, ticket.pack_s
        self._loops.of("task")((ticket.worker, began, ticket.seconds, *took, again))
        if began > self._loops.due:
            self._loops.hand_over(began)

    def delivered(self, began: float, ended: float) -> None:
        super().delivered(began, ended)
        self._loops.of("deliver")((began, ended))

    def in_flight(self, batches: int, size: int, ready: int) -> None:
        Tally.in_flight(self, batches, size, ready)
        if (batches, ready) == self._seen:
            return
        self._seen, now = (batches, ready), time.monotonic()
        self._note_queue((now, batches, ready))

    def lost(self, worker: int, was_asked: bool) -> None:
        self._loops.of("lost")((time.monotonic(), worker, was_asked))

    def resized(self, workers: int, n_prefetch: int) -> None:
        self._loops.of("size")((time.monotonic(), workers, n_prefetch))


class _Notes:
    """What one thread has noted and not yet handed over."""

    def __init__(self, keep: Callable[[str, list[Row]], None]) -> None:
        self._keep = keep
        self.rows: defaultdict[str, list[Row]] = defaultdict(list)
        self.due = time.monotonic() + _EVERY_S

    def of(self, kind: str) -> Callable[[Row], None]:
        """What notes a row of this kind."""
        return self.rows[kind].append

    def hand_over(self, now: float = 0.0) -> None:
        """To be kept, so that memory doesn't grow."""
        self.due = now + _EVERY_S
        for kind, rows in self.rows.items():
            some = rows[:]
            del rows[: len(some)]  # whoever notes meanwhile adds at the end
            self._keep(kind, some)


# -- reading -----------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Recorded:
    """What a trace has recorded, or the part file of one that was never finished."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise OptionError(
            f"there is no file {os.fspath(path)}: name a trace, which an iterator or a loader writes with "
            f"trace='run.json' when it ends."
        ) from None
    try:
        return recorded(_finished(data) if data.startswith(b'{"loop"') else json.loads(data))
    except OptionError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"{os.fspath(path)} is no trace of mpiter: {type(error).__name__}: {error}") from error


def _finished(data: bytes) -> dict[str, Any]:
    """What would have become of a part file."""
    loops = _loops_of(data)
    events = json.loads("[" + ",".join(chain.from_iterable(loop.events() for loop in loops)) + "]")
    return {"traceEvents": events, "otherData": _about({loop.number: loop.about for loop in loops})}


def _loops_of(data: bytes) -> list[Loop]:
    """What a part file has, as far as it is whole."""
    loops: dict[int, Loop] = {}
    for head, numbers in _chunks(data):
        loop = loops.setdefault(head["loop"], Loop(head["loop"], head["zero"]))
        loop.about = head["about"] or loop.about
        if head["kind"]:
            loop.add(head["kind"], numbers)
    return list(loops.values())


def _chunks(data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        try:
            head = json.loads(data[at:end])
        except ValueError:
            if not at:
                raise
            return  # torn: its program was killed while it wrote
        at = end + 1 + head["bytes"]
        if at > len(data):
            return
        yield head, data[end + 1 : at]
