"""What is said between a Pool and one of its workers: tasks down one pipe, answers up another, both theirs alone.

``WorkerEnd`` is the worker's, which reads and writes as long as it takes.  ``PoolEnd`` is the Pool's, which never
waits: what a full pipe doesn't take stays here until there is room, and an answer that has come in part goes on where
it stopped.  On the wire: a task's number and its bytes (none: there are no more tasks); for an answer the number, its
bytes, and the large buffers in it as they are, written from where they lie and read to memory of their own.  The bytes
are a pickle, or the short form of a block or an answer, which goes to the function of the task before.
"""

from __future__ import annotations

import os
import pickle
import struct
from typing import Any

from ..samples.envelope import OUT_OF_LINE
from ..worker.block import short

_TASK = struct.Struct("=qQ")  # its number, and how many bytes: none, and there are no more
_ANSWER = struct.Struct("=qQH")  # the task's number, bytes, buffers; the size of each buffer follows
_AT_ONCE = 1 << 12  # bytes that are read unless more are known to come
_MOST_PARTS = 512  # that are written by one system call; 1024 is the limit of most systems

READY = -1  # the number in the first message of all: the worker's initializer has returned

Answer = tuple[int, bytes, list[bytearray]]  # a message from a worker, complete but not opened


class WorkerEnd:
    """The worker's end of its two pipes."""

    def __init__(self, tasks: Any, answers: Any) -> None:
        self._tasks, self._answers = tasks, answers  # Connections, which own the descriptors
        self._down, self._up = tasks.fileno(), answers.fileno()
        self._read = bytearray()

    def receive(self) -> tuple[int, bytes] | None:
        """The next task's number and bytes; None when there are no more."""
        end, begin, read = _TASK.size, _TASK.size, self._read
        while True:
            if len(read) >= begin:
                number, size = _TASK.unpack_from(read)
                if not size:
                    return None
                end = begin + size
                if len(read) >= end:
                    task = bytes(read[begin:end])
                    del read[:end]
                    return number, task
            more = os.read(self._down, max(_AT_ONCE, end - len(read)))
            if not more:
                return None
            read += more

    def send(self, number: int, value: Any) -> None:
        """Answer.  Nothing has been written if ``value`` can't be pickled."""
        parts = _packed(number, value)
        try:
            while parts:
                parts = _rest(parts, os.writev(self._up, parts[:_MOST_PARTS]))
        except OSError as error:
            raise SystemExit(f"the way to the main process is gone: {error}") from None


def _packed(number: int, value: Any) -> list[Any]:
    if (answer := short(value)) is not None:
        return [_ANSWER.pack(number, len(answer), 0) + answer]
    buffers: list[memoryview] = []

    def stays_in_line(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= OUT_OF_LINE and len(buffers) < 0xFFFF:
            buffers.append(raw)
            return False
        return True

    pickled = pickle.dumps(value, protocol=5, buffer_callback=stays_in_line)
    head = _ANSWER.pack(number, len(pickled), len(buffers))
    if not buffers:
        return [head + pickled]
    return [head + struct.pack(f"={len(buffers)}Q", *(raw.nbytes for raw in buffers)) + pickled, *buffers]


def _rest(parts: list[Any], written: int) -> list[Any]:
    """The rest of ``parts`` after so many bytes."""
    done = 0
    while done < len(parts) and written >= len(parts[done]):
        written -= len(parts[done])
        done += 1
    rest = parts[done:]
    if written:
        rest[0] = memoryview(rest[0])[written:]
    return rest


class PoolEnd:
    """The Pool's end: its descriptors never block."""

    def __init__(self, tasks: Any, answers: Any) -> None:
        self.tasks, self.answers = tasks, answers  # Connections, which own the descriptors
        self.down, self.up = tasks.fileno(), answers.fileno()
        for descriptor in (self.down, self.up):
            os.set_blocking(descriptor, False)
        self._unsent: list[Any] = []
        self._read = bytearray()
        self._wanted = _AT_ONCE  # bytes to be read next…
        self._begun: Answer | None = None  # …unless an answer has come but for its buffers…
        self._unfilled: list[memoryview] = []  # …of which these are still to be filled
        self.has_ended = False  # no process can write into the pipe any more

    def send(self, number: int, task: bytes) -> bool:
        """Send a task, empty bytes after the last; False if ``tasks`` must be writable first: then ``flush``."""
        self._unsent.append(_TASK.pack(number, len(task)) + task)
        return self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes; is that all?"""
        try:
            while self._unsent:
                self._unsent = _rest(self._unsent, os.writev(self.down, self._unsent[:_MOST_PARTS]))
        except BlockingIOError:
            return False
        except BrokenPipeError:  # the worker is dead, which is noticed elsewhere
            self._unsent.clear()
        return True

    def receive(self) -> list[Answer]:
        """The answers that are complete by now; of a dead worker, all that it has sent."""
        found: list[Answer] = []
        while True:
            try:
                if self._unfilled:
                    wanted, more = len(self._unfilled[0]), os.readv(self.up, self._unfilled[:1])
                    self._unfilled[0] = self._unfilled[0][more:]
                else:
                    wanted, data = self._wanted, os.read(self.up, self._wanted)
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
        """Add the answers in what has been read."""
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
                sizes = struct.unpack_from(f"={count}Q", read, _ANSWER.size) if count else ()
                self._begun = number, bytes(read[begin : begin + size]), [bytearray(size) for size in sizes]
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
