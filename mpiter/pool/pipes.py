"""The two pipes between a Pool and one of its workers, for tasks and for answers.

``WorkerEnd``, in the worker, blocks while it reads and writes; ``PoolEnd`` never does.
A message for a task has its number and a pickle (none after the last task); one for an
answer has the task's number, a pickle, and the pickle's large buffers, which are
written without a copy and read into private memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import struct
from functools import partial
from multiprocessing.connection import Connection

from ..samples.envelope import stays_in_line

# The task's number, and the number of bytes, which is 0 after the last task.
_TASK = struct.Struct("=qQ")
# The task's number, numbers of bytes and of buffers; each buffer's size follows.
_ANSWER = struct.Struct("=qQI")
_AT_ONCE = 1 << 12  # bytes to read, unless more are expected
# Bytes of answers that wait in a pipe.  Most systems give it 64 kB unasked, which texts
# of a thousand rows fill, and the worker would wait until the consumer has read them.
# All pipes of a user may have 64 MB together.
_WAITING = 1 << 18
# One system call writes so many parts; most systems allow 1024.
_MOST_PARTS = 512

# The number in a worker's first message, which says that its initializer has returned.
READY = -1

# A part of a message that is being written.
_Part = bytes | memoryview
# A complete message from a worker: number, pickle, buffers.
Answer = tuple[int, bytes, list[bytearray]]


class WorkerEnd:
    def __init__(
        self,
        tasks: Connection,
        answers: Connection,
    ) -> None:
        # These own the descriptors.
        self._owners = (tasks, answers)
        self._down = os.fdopen(tasks.fileno(), "rb", closefd=False)
        self._up = answers.fileno()
        # True in a process that the dataset has forked from the worker.
        self.is_cut = False

    def cut(self) -> None:
        """Have this process neither get tasks nor send answers.

        It was forked from the worker.
        """
        with open(os.devnull, "r+b", buffering=0) as nowhere:
            for end in self._owners:
                os.dup2(nowhere.fileno(), end.fileno(), inheritable=False)
        # The old file object may have read a task ahead.
        tasks, _ = self._owners
        self._down = os.fdopen(tasks.fileno(), "rb", closefd=False)
        self.is_cut = True

    def receive(self) -> tuple[int, bytes] | None:
        """Wait for a task and return its number and bytes, or None after the last."""
        head = self._down.read(_TASK.size)
        if len(head) < _TASK.size:
            return None
        number, size = _TASK.unpack(head)
        task = self._down.read(size)
        if size and len(task) == size:
            return (number, task)
        return None

    def send(
        self,
        number: int,
        value: object,
    ) -> None:
        """Send ``value`` as the answer to task ``number``.

        If it can't be pickled, the error is raised before anything is sent.
        """
        parts = _packed(number, value)
        try:
            while parts:
                written = os.writev(self._up, parts[:_MOST_PARTS])
                parts = _rest(parts, written)
        except OSError as error:
            raise SystemExit(f"the way to the main process is gone: {error}") from None


def _packed(
    number: int,
    value: object,
) -> list[_Part]:
    buffers: list[memoryview] = []
    keep = partial(stays_in_line, buffers)
    pickled = pickle.dumps(value, protocol=5, buffer_callback=keep)
    head = _ANSWER.pack(number, len(pickled), len(buffers))
    sizes = [raw.nbytes for raw in buffers]
    head += struct.pack(f"={len(buffers)}Q", *sizes)
    return [head + pickled, *buffers]


def _rest(
    parts: list[_Part],
    written: int,
) -> list[_Part]:
    """Return what is left of ``parts`` after their first ``written`` bytes."""
    done = 0
    for part in parts:
        if written < len(part):
            break
        written -= len(part)
        done += 1
    rest = parts[done:]
    if written:
        first = memoryview(rest[0])
        rest[0] = first[written:]
    return rest


class PoolEnd:
    """The Pool's end of a worker's two pipes; its descriptors never block."""

    def __init__(
        self,
        tasks: Connection,
        answers: Connection,
    ) -> None:
        # These own the descriptors.
        self.tasks = tasks
        self.answers = answers
        self.down = tasks.fileno()
        self.up = answers.fileno()
        for descriptor in (self.down, self.up):
            os.set_blocking(descriptor, False)
        # The system may refuse, or not know how.
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(self.up, fcntl.F_SETPIPE_SZ, _WAITING)
        self._unsent: list[_Part] = []
        self._read = bytearray()
        self._wanted = _AT_ONCE  # bytes to be read next
        # An answer of which only buffers are missing, and those of its buffers that
        # aren't complete.  What comes next is read into these.
        self._begun: Answer | None = None
        self._unfilled: list[memoryview] = []
        # All processes that could write to the pipe have closed it.
        self.has_ended = False

    def send(
        self,
        number: int,
        task: bytes,
    ) -> bool:
        """Send a task, which is empty after the last.

        Return False if ``flush`` must be called once ``tasks`` is writable.
        """
        head = _TASK.pack(number, len(task))
        self._unsent.append(head + task)
        return self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes; return True if that was everything."""
        try:
            while self._unsent:
                written = os.writev(self.down, self._unsent[:_MOST_PARTS])
                self._unsent = _rest(self._unsent, written)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            # The worker is dead.  Its descriptor reports that, and what it had is then
            # known to be lost.
            self._unsent.clear()
        return True

    def receive(self) -> list[Answer]:
        """Return the answers that are complete now.

        If the worker is dead, these are all that it has sent.
        """
        found: list[Answer] = []
        while True:
            try:
                if self._unfilled:
                    buffer = self._unfilled[0]
                    wanted = len(buffer)
                    more = os.readv(self.up, [buffer])
                    self._unfilled[0] = buffer[more:]
                else:
                    wanted = self._wanted
                    data = os.read(self.up, self._wanted)
                    self._read += data
                    more = len(data)
            except BlockingIOError:
                return found
            self.has_ended = not more
            if more:
                self._take_apart(found)
            if more < wanted:
                return found

    def close(self) -> None:
        self.tasks.close()
        self.answers.close()

    def _take_apart(self, found: list[Answer]) -> None:
        """Append the complete answers in what was read to ``found``."""
        read = self._read
        while True:
            if self._begun is None:
                self._wanted = _AT_ONCE
                if len(read) < _ANSWER.size:
                    return
                number, size, count = _ANSWER.unpack_from(read)
                begin = _ANSWER.size + 8 * count
                end = begin + size
                if len(read) < end:
                    missing = end - len(read)
                    self._wanted = max(_AT_ONCE, missing)
                    return
                sizes: tuple[int, ...] = ()
                if count:
                    sizes = struct.unpack_from(f"={count}Q", read, _ANSWER.size)
                pickled = bytes(read[begin:end])
                buffers = [bytearray(nbytes) for nbytes in sizes]
                self._begun = (number, pickled, buffers)
                self._unfilled = [memoryview(buffer) for buffer in buffers]
                del read[:end]
            while self._unfilled:
                buffer = self._unfilled[0]
                some = min(len(read), len(buffer))
                buffer[:some] = read[:some]
                del read[:some]
                if some < len(buffer):
                    self._unfilled[0] = buffer[some:]
                    return
                del self._unfilled[0]
            found.append(self._begun)
            self._begun = None
