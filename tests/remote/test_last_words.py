"""What is said of a process that is killed, and only of one."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from mpiter.remote import last_words


class Shell:
    """Stands for the one that waits; the first to start gives another thread the time to start one more."""

    started = 0
    met = threading.Barrier(2)

    def __init__(self, *args: Any, **options: Any) -> None:
        type(self).started += 1
        with contextlib.suppress(threading.BrokenBarrierError):
            self.met.wait(0.2)  # as it should be, nobody comes

    def communicate(self, line: bytes) -> None:
        assert line == b"\n"


def test_iterators_that_begin_at_once_have_one_shell_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe of a second one would close at once, and it would say of a sound program that it was killed."""
    monkeypatch.setattr(last_words.subprocess, "Popen", Shell)
    beginners = [threading.Thread(target=last_words.keep, args=("killed",)) for _ in range(2)]
    for beginner in beginners:
        beginner.start()
    for beginner in beginners:
        beginner.join()
    last_words.forget()
    assert Shell.started == 1


def test_a_fork_that_ends_in_the_ordinary_way_says_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bytes] = []

    class Listening(Shell):
        def communicate(self, line: bytes) -> None:
            said.append(line)

    monkeypatch.setattr(Shell, "met", threading.Barrier(1))
    monkeypatch.setattr(last_words.subprocess, "Popen", Listening)
    last_words.keep("killed")
    monkeypatch.setattr(last_words, "_whose", last_words._whose + 1)
    last_words.forget()
    assert said == []
