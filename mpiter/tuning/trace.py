"""``Trace("run.json")``: what every worker, the prefetch thread and consumer did.

The file has the format of Perfetto and chrome://tracing, and ``timeline.py`` draws it.
A ``Tracer`` is a hook of one loop and notes each event; once a second the notes are
appended to the file.  Guarantees that the file is complete JSON after each write, even
if the program is killed; that it has at most ``MOST`` events; and that a full disk ends
the trace, not the program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque

from ..errors import OptionError
from ..hook import Coming, Fetched, HandedOut, Hook, Planned, Setting
from ..transport.memory import write_all

# This many events, of about 100,000 batches, take 60 MB.
MOST = 500_000
# Thread numbers in the trace: worker 0 is number 3, worker 1 is number 4.
CONSUMER = 1
PREFETCH = 2
WORKER = 3
_EVERY_S = 1.0
_log = logging.getLogger("mpiter")

_HEAD = '"pid":%d,"tid":%d,"ts":%d,"dur":%d,"cat":"mpiter"'
_ARGS = {
    "open": '"samples":%d',
    "fetch": '"rows":%d,"queue_s":%.6g,"cpu_s":%.6g',
}
_WAIT, _STEP, _ORDER, _OPEN, _FETCH = (
    f'{{"ph":"X",{_HEAD},"name":"{name}","args":{{{_ARGS.get(name, "")}}}}}'
    for name in ("wait", "step", "order", "open", "fetch")
)
_BATCHES = (
    f'{{"ph":"C",{_HEAD},"name":"batches","args":{{"ready":%d,"on their way":%d}}}}'
)
_NAME = f'{{"ph":"M",{_HEAD},"name":"%s_name","args":{{"name":"%s"}}}}'
_LOST = "worker %d was lost, and is replaced"
_MARK = f'{{"ph":"i","s":"p",{_HEAD},"name":"{_LOST}","args":{{}}}}'

# An event's pattern, its thread, its beginning and end, and the pattern's further
# values.
Note = tuple[str, int, float, float, *tuple[str | float, ...]]


class Trace(Hook):
    """Records which worker did what and when; `mpiter trace run.json` draws it.

    All loops of an iterator or a loader write to the file.  The pickle of a ``Trace``
    has its path only.

    >>> import mpiter, tempfile
    >>> from mpiter.tuning import Trace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = Trace(f"{folder}/run.json")
    ...     with mpiter.batches(range(6), 4, n_processes=0, hooks=trace) as stream:
    ...         print(len(list(stream)))
    2
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not path or not isinstance(path, (str, os.PathLike)):
            raise OptionError(f"Trace({path!r:.60}) must name a file.")
        path = os.fspath(path)
        # A link in place of the file is replaced itself: following it would replace
        # what another user has it point to.
        folder, name = os.path.split(os.path.abspath(path))
        folder = os.path.realpath(folder)
        self._path = os.path.join(folder, name)
        # A folder cannot be replaced, and a device must not be.
        is_there = os.path.exists(self._path)
        is_other = is_there and not os.path.isfile(self._path)
        if is_other or not os.path.isdir(folder):
            raise OptionError(
                f"Trace({path!r}) must name a file, such as 'run.json', in a folder "
                "that exists."
            )
        # The garbage collector may end a loop, which then writes, in the thread that
        # holds this lock already.
        self._lock = threading.RLock()
        # Notes that are to be written, with the numbers of their loops.
        self._left: deque[tuple[int, list[Note]]] = deque()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._zero = time.monotonic()
        # guarded by _lock:
        self._fd: int | None = None
        self._size = 0  # bytes, without the closing bracket
        self._loops = 0
        self._count = 0  # events
        self._is_over = False
        self._is_writing = False
        self._left.clear()

    def __reduce__(self) -> tuple[type[Trace], tuple[str]]:
        return Trace, (self._path,)

    def for_loop(self, setting: Setting) -> Tracer:
        """Return the hook that records a new loop."""
        with self._lock:
            # This process was forked from the one that began the trace.  It writes a
            # file of its own, in place of that one.
            if self._pid != os.getpid():
                self._begin()
            self._loops += 1
            # Without workers the consumer counts as one.
            count = setting.workers or 1
            workers = "worker" if count == 1 else "workers"
            what = "batches"
            if setting.batch_size is not None:
                what += f" of {setting.batch_size}"
            name = f"{what}, {count} {workers} ({setting.backend})"
            return Tracer(self, self._loops, name)

    def write(self, number: int, notes: list[Note]) -> None:
        """Append the notes of loop ``number`` as events.

        A trace that is full or has failed stays as it is.
        """
        self._left.append((number, notes))
        with self._lock:
            # The collector ran in the midst of the lines below, and ended another loop.
            # Its notes are written after those that are being written.
            if self._is_writing:
                return
            # If it runs just before the flag falls, notes are left when it has fallen.
            while self._left:
                self._is_writing = True
                try:
                    while self._left:
                        self._append(*self._left.popleft())
                finally:
                    self._is_writing = False

    def _append(self, number: int, notes: list[Note]) -> None:
        if not notes or self._is_over:
            return
        self._count += len(notes)
        try:
            if self._count > MOST:
                raise OSError(f"it has {MOST:,} events")
            if self._fd is None:
                self._fd = self._opened()
            events = [self._event(number, *note) for note in notes]
            lines = ",\n".join(events)
            before = "," if self._size else "["
            data = f"{before}\n{lines}".encode()
            # The next write overwrites the bracket that ends the list.
            write_all(self._fd, memoryview(data + b"\n]\n"), self._size)
            self._size += len(data)
        except OSError as error:
            self._is_over = True
            _log.warning(
                "the trace %s cannot be written, and ends here: %s",
                self._path,
                str(error),
            )

    def _event(
        self,
        number: int,
        pattern: str,
        thread: int,
        began: float,
        ended: float,
        *more: str | float,
    ) -> str:
        since_us = int(1e6 * (began - self._zero))
        until_us = int(1e6 * (ended - self._zero))
        took_us = max(0, until_us - since_us)
        return pattern % (number, thread, since_us, took_us, *more)

    def _opened(self) -> int:
        """Open a new file, which is closed when this trace is garbage.

        Until then a loop that nobody closed may write.  The file replaces an older one,
        rather than emptying it: another program may still write that.
        """
        new = f"{self._path}.{self._pid}"
        # A killed program may have left it, or someone may have put a link there.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(new, flags, 0o666)
        weakref.finalize(self, os.close, fd).atexit = False
        os.replace(new, self._path)
        return fd


class Tracer(Hook):
    """The hook that records the events of one loop.

    It writes them to the trace once a second.
    """

    def __init__(self, trace: Trace, number: int, name: str) -> None:
        self._trace: Trace | None = trace
        self._number = number
        # Both threads add to it and take from it, and so may the garbage collector.
        self._notes: deque[Note] = deque()
        self._due = time.monotonic() + _EVERY_S
        # The consumer got its present batch at this time.
        self._since: float | None = None
        # This many batches were in flight, and this many of them were ready, when that
        # was recorded last.
        self._seen = (-1, -1)
        self._threads: set[int] = set()
        self._note(_NAME, 0, "process", f"mpiter {number}: {name}")
        self._note(_NAME, CONSUMER, "thread", "consumer")
        self._note(_NAME, PREFETCH, "thread", "prefetch thread")

    def _note(
        self,
        pattern: str,
        thread: int,
        *more: str | float,
    ) -> None:
        """Record an event that takes no time, now."""
        now = time.monotonic()
        self._notes.append((pattern, thread, now, now, *more))

    def _write(self, now: float = 0.0) -> None:
        self._due = now + _EVERY_S
        notes = list[Note]()
        # Another may take some of them meanwhile.
        with contextlib.suppress(IndexError):
            while True:
                notes.append(self._notes.popleft())
        trace = self._trace
        if trace is not None:
            trace.write(self._number, notes)

    def close(self) -> None:
        self._write()
        self._trace = None

    # -- in the consumer's thread ------------------------------------------------------

    def waited(self, began: float, ended: float) -> None:
        if self._since is not None:
            self._notes.append((_STEP, CONSUMER, self._since, began))
            self._since = None
        self._notes.append((_WAIT, CONSUMER, began, ended))

    def handed_out(
        self,
        batch: HandedOut,
        samples: int | None,
        began: float,
        ended: float,
    ) -> None:
        if samples is None:
            return
        self._since = ended
        self._notes.append((_OPEN, CONSUMER, began, ended, samples))
        if ended > self._due:
            self._write(ended)

    # -- in the prefetch thread --------------------------------------------------------

    def planned(
        self,
        plan: Planned,
        coming: Coming,
        began: float,
        ended: float,
    ) -> None:
        self._notes.append((_ORDER, PREFETCH, began, ended))

    def answered(self, done: Fetched) -> None:
        began = done.began or time.monotonic()
        thread = WORKER + done.worker
        if thread not in self._threads:
            self._threads.add(thread)
            self._note(_NAME, thread, "thread", f"worker {done.worker}")
        self._notes.append(
            (
                _FETCH,
                thread,
                began,
                began + done.seconds,
                done.rows,
                done.queue_s,
                done.cpu_s,
            )
        )
        if began > self._due:
            self._write(began)

    def in_flight(self, batches: int, ready: int) -> None:
        if (batches, ready) != self._seen:
            self._seen = batches, ready
            self._note(_BATCHES, PREFETCH, ready, max(0, batches - ready))

    def lost(self, worker: int) -> None:
        self._note(_MARK, PREFETCH, worker)
