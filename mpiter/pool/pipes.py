"""What is said between a Pool and one of its workers: tasks down one pipe, answers up another, both theirs alone.

``WorkerEnd`` is the worker's, which reads and writes as long as it takes.  ``PoolEnd`` is the Pool's, which never
waits: what a full pipe doesn't take stays here until there is room, and an answer that has come in part goes on where
it stopped.  On the wire: a task's number and its pickle (none: there are no more tasks); for an answer the number, a
pickle, and the large buffers in it as they are, written from where they lie and read to memory of their own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from collections.abc import Generator, Iterator
from typing import Any

from ..samples.envelope import OUT_OF_LINE

_TASK = struct.Struct("=qQ")  # its number, bytes of pickle: none, and there are no more
_ANSWER = struct.Struct("=qQH")  # the task's number, bytes of pickle, buffers; the size of each buffer follows
_AT_ONCE = 1 << 16  # bytes
_WIDE = 1 << 20
_MOST_PARTS = 512  # that are written by one system call; 1024 is the limit of most systems

READY = -1  # the number in the first message of all: the worker's initializer has returned

Answer = tuple[int, bytes, list[bytearray]]  # a message from a worker, complete but not opened


class WorkerEnd:
    """The worker's end."""

    def __init__(self, tasks: Any, answers: Any) -> None:
        self._tasks, self._answers = tasks, answers  # Connections, which own the descriptors
        self._read = bytearray()

    def receive(self) -> tuple[int, bytes] | None:
        """The next task's number and pickle; None when there are no more."""
        begin = _TASK.size
        if not self._has(begin):
            return None
        number, size = _TASK.unpack_from(self._read)
        if not size or not self._has(begin + size):
            return None
        pickled = bytes(self._read[begin : begin + size])
        del self._read[: begin + size]
        return number, pickled

    def _has(self, size: int) -> bool:
        """Read until so many bytes are there; False if they never will."""
        while len(self._read) < size:
            more = os.read(self._tasks.fileno(), max(_AT_ONCE, size - len(self._read)))
            if not more:
                return False
            self._read += more
        return True

    def send(self, number: int, value: Any) -> None:
        """Answer.  Nothing has been written if ``value`` can't be pickled."""
        parts = _packed(number, value)
        try:
            while parts:
                parts = _rest(parts, os.writev(self._answers.fileno(), parts[:_MOST_PARTS]))
        except OSError as error:
            raise SystemExit(f"the way to the main process is gone: {error}") from None


def _packed(number: int, value: Any) -> list[Any]:
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
    """What is left of ``parts`` after so many bytes."""
    if len(parts) == 1 and written == len(parts[0]):
        return []
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
        for connection in (tasks, answers):
            os.set_blocking(connection.fileno(), False)
        self._unsent: list[Any] = []
        self._read = bytearray()
        self._is_empty = True  # the pipe, when we last looked
        self.has_ended = False  # nobody can write into it any more
        self._is_wide = False
        self._steps = self._messages()

    def send(self, number: int, pickled: bytes) -> bool:
        """Send a task, empty bytes after the last; False if ``tasks`` must be writable first: then ``flush``."""
        self._unsent.append(_TASK.pack(number, len(pickled)) + pickled)
        return self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes; is that all?"""
        try:
            while self._unsent:
                written = os.writev(self.tasks.fileno(), self._unsent[:_MOST_PARTS])
                self._unsent = _rest(self._unsent, written)
        except BlockingIOError:
            return False
        except BrokenPipeError:  # the worker is dead, which is noticed elsewhere
            self._unsent.clear()
        return True

    def receive(self) -> Iterator[Answer]:
        """The answers that are complete by now; of a dead worker, all that it has sent."""
        self._is_empty = False
        for found in self._steps:
            if found is None:
                return
            yield found

    def close(self) -> None:
        self.tasks.close()
        self.answers.close()

    def _messages(self) -> Generator[Answer | None, None, None]:
        """Answer after answer, and None wherever more must arrive first."""
        read = self._read
        while True:
            while len(read) < _ANSWER.size:
                yield from self._more(_ANSWER.size)
            number, size, count = _ANSWER.unpack_from(read)
            begin = _ANSWER.size + 8 * count
            while len(read) < begin + size:
                yield from self._more(begin + size)
            sizes = struct.unpack_from(f"={count}Q", read, _ANSWER.size) if count else ()
            pickled = bytes(read[begin : begin + size])
            del read[: begin + size]
            if sizes and not self._is_wide:
                self._is_wide = True
                _widen(self.answers.fileno())
            buffers = [bytearray(size) for size in sizes]
            for at in range(count):
                yield from self._fill(memoryview(buffers[at]))
            yield number, pickled, buffers
            del pickled, buffers  # which may be large, and the next answer far

    def _more(self, size: int) -> Generator[None, None, None]:
        """Read on, for so many bytes in all."""
        if self._is_empty:
            yield None
            return
        wanted = max(_AT_ONCE, size - len(self._read))
        more = b""
        with contextlib.suppress(BlockingIOError):
            more = os.read(self.answers.fileno(), wanted)
            self.has_ended = not more
        self._is_empty = len(more) < wanted
        self._read += more

    def _fill(self, buffer: memoryview) -> Generator[None, None, None]:
        """The next bytes, to where they belong."""
        done = min(len(self._read), buffer.nbytes)
        buffer[:done] = self._read[:done]
        del self._read[:done]
        while done < buffer.nbytes:
            if self._is_empty:
                yield None
                continue
            more = 0
            with contextlib.suppress(BlockingIOError):
                more = os.readv(self.answers.fileno(), [buffer[done:]])
                self.has_ended = not more
            self._is_empty = more < buffer.nbytes - done
            done += more


def _widen(descriptor: int) -> None:
    """A megabyte of pipe, where we may: whoever writes much waits less often."""
    with contextlib.suppress(ImportError, AttributeError, OSError):  # not on Linux, or no pipe memory left to us
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _WIDE)
