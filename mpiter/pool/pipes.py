"""The two pipes between a Pool and one of its workers: one for tasks, the other for
answers.

``WorkerEnd``, in the worker, blocks while it reads and writes; ``PoolEnd`` never does.
A message for a task has its number and a pickle (none after the last task); one for an
answer has the task's number, a pickle, and the pickle's large buffers, which are
written without a copy and read into private memory.
"""

from __future__ import annotations

import os
import pickle
import struct
from functools import partial
from typing import Any

from ..samples.envelope import stays_in_line

# Number, and number of bytes: 0 after the last task.
_TASK = struct.Struct("=qQ")
# The task's number, numbers of bytes and of buffers; each buffer's size follows.
_ANSWER = struct.Struct("=qQI")
# Bytes to read, unless more are expected.
_AT_ONCE = 1 << 12
# Written by one system call; most systems allow 1024.
_MOST_PARTS = 512

# The number in a worker's first message: its initializer has returned.
READY = -1

# A complete message from a worker: number, pickle, buffers.
Answer = tuple[int, bytes, list[bytearray]]


class WorkerEnd:
    def __init__(self, tasks: Any, answers: Any) -> None:
        # Connections, which own the descriptors.
        self._owners = tasks, answers
        self._down, self._up = (
            os.fdopen(tasks.fileno(), "rb", closefd=False),
            answers.fileno(),
        )
        # True in a process that the dataset has forked from the worker.
        self.is_cut = False

    def cut(self) -> None:
        """Have this process, which was forked from the worker, neither get tasks nor
        send answers.
        """
        with open(os.devnull, "r+b", buffering=0) as nowhere:
            for end in self._owners:
                os.dup2(nowhere.fileno(), end.fileno(), inheritable=False)
        # The old one may have read a task ahead.
        self._down = os.fdopen(self._owners[0].fileno(), "rb", closefd=False)
        self.is_cut = True

    def receive(self) -> tuple[int, bytes] | None:
        """Wait for a task and return its number and bytes, or None if there are no
        more.
        """
        head = self._down.read(_TASK.size)
        if len(head) < _TASK.size:
            return None
        number, size = _TASK.unpack(head)
        task = self._down.read(size)
        if size and len(task) == size:
            return (number, task)
        return None

    def send(self, number: int, value: Any) -> None:
        """Send ``value`` as the answer to task ``number``; if it can't be pickled,
        raise before anything is sent.
        """
        parts = _packed(number, value)
        try:
            while parts:
                parts = _rest(parts, os.writev(self._up, parts[:_MOST_PARTS]))
        except OSError as error:
            raise SystemExit(f"the way to the main process is gone: {error}") from None


def _packed(number: int, value: Any) -> list[Any]:
    buffers: list[memoryview] = []
    pickled = pickle.dumps(
        value, protocol=5, buffer_callback=partial(stays_in_line, buffers)
    )
    head = _ANSWER.pack(number, len(pickled), len(buffers))
    return [
        head
        + struct.pack(f"={len(buffers)}Q", *(raw.nbytes for raw in buffers))
        + pickled,
        *buffers,
    ]


def _rest(parts: list[Any], written: int) -> list[Any]:
    """Return what is left of ``parts`` after their first ``written`` bytes."""
    done = 0
    while done < len(parts) and written >= len(parts[done]):
        written -= len(parts[done])
        done += 1
    rest = parts[done:]
    if written:
        rest[0] = memoryview(rest[0])[written:]
    return rest


class PoolEnd:
    """The Pool's end of a worker's two pipes; its descriptors never block."""

    def __init__(self, tasks: Any, answers: Any) -> None:
        # Connections, which own the descriptors.
        self.tasks = tasks
        self.answers = answers
        self.down, self.up = tasks.fileno(), answers.fileno()
        for descriptor in (self.down, self.up):
            os.set_blocking(descriptor, False)
        self._unsent: list[Any] = []
        self._read = bytearray()
        self._wanted = _AT_ONCE  # bytes to be read next…
        # …unless this answer lacks only buffers…
        self._begun: Answer | None = None
        self._unfilled: list[memoryview] = []  # …of which these aren't complete
        # The pipe was closed by all processes that could write.
        self.has_ended = False

    def send(self, number: int, task: bytes) -> bool:
        """Send a task (empty after the last); return False if ``flush`` must be called
        once ``tasks`` is writable.
        """
        self._unsent.append(_TASK.pack(number, len(task)) + task)
        return self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes; return True if that was everything."""
        try:
            while self._unsent:
                self._unsent = _rest(
                    self._unsent, os.writev(self.down, self._unsent[:_MOST_PARTS])
                )
        except BlockingIOError:
            return False
        except BrokenPipeError:
            # The worker is dead, which is noticed elsewhere.
            self._unsent.clear()
        return True

    def receive(self) -> list[Answer]:
        """Return the answers that are complete now; if the worker is dead, all that it
        has sent.
        """
        found: list[Answer] = []
        while True:
            try:
                if self._unfilled:
                    wanted = len(self._unfilled[0])
                    more = os.readv(self.up, self._unfilled[:1])
                    self._unfilled[0] = self._unfilled[0][more:]
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
                if len(read) < begin + size:
                    self._wanted = max(_AT_ONCE, begin + size - len(read))
                    return
                if count:
                    sizes = struct.unpack_from(f"={count}Q", read, _ANSWER.size)
                else:
                    sizes = ()
                self._begun = (
                    number,
                    bytes(read[begin : begin + size]),
                    [bytearray(size) for size in sizes],
                )
                self._unfilled = [memoryview(buffer) for buffer in self._begun[2]]
                del read[: begin + size]
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
