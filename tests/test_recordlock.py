"""The lock between processes: exclusive, shut for ever when its holder dies with it, without a name."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from scripts import METHODS, wait_until

from mpiter.recordlock import LockFile, RecordLock


def _count(lock: RecordLock, number: Path, times: int) -> None:
    for _ in range(times):
        with lock:
            number.write_text(str(int(number.read_text()) + 1))


def _die_inside(lock: RecordLock) -> None:
    lock.acquire()
    os._exit(1)


def _enter(lock: RecordLock, folder: Path) -> None:
    (folder / "at the door").touch()
    with lock:
        (folder / "inside").touch()


@pytest.fixture
def file() -> Any:
    file = LockFile()
    yield file
    file.close()


@pytest.mark.parametrize("method", METHODS)
def test_only_one_process_is_inside(file: LockFile, method: str, tmp_path: Path) -> None:
    context, lock, number = multiprocessing.get_context(method), file.new_lock(), tmp_path / "number"
    number.write_text("0")
    processes = [context.Process(target=_count, args=(lock, number, 500)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        process.close()
    assert number.read_text() == "1500"


@pytest.mark.parametrize("method", METHODS)
def test_who_dies_inside_leaves_it_shut_for_all_but_the_consumer(file: LockFile, method: str, tmp_path: Path) -> None:
    """Else the next would write its message into the middle of the dead one's."""
    context, lock = multiprocessing.get_context(method), file.new_lock()
    dead = context.Process(target=_die_inside, args=(lock,))
    dead.start()
    dead.join()
    waiting = context.Process(target=_enter, args=(lock, tmp_path))
    waiting.start()
    wait_until((tmp_path / "at the door").exists, "the second process is at the door")
    waiting.join(0.3)
    assert (waiting.exitcode, (tmp_path / "inside").exists()) == (None, False)
    waiting.kill()
    waiting.join()
    with lock:
        pass
    for process in (dead, waiting):
        process.close()


def test_locks_of_one_file_are_independent(file: LockFile, tmp_path: Path) -> None:
    context, mine, other = multiprocessing.get_context("fork"), file.new_lock(), file.new_lock()
    number = tmp_path / "number"
    number.write_text("0")
    with mine:
        process = context.Process(target=_count, args=(other, number, 10))
        process.start()
        process.join()
        process.close()
    assert number.read_text() == "10"


def test_a_lock_travels_to_processes_that_are_being_started_and_nowhere_else(file: LockFile) -> None:
    with pytest.raises(RuntimeError, match="should only be shared between processes through inheritance"):
        pickle.dumps(file.new_lock())


def test_closing_twice_is_closing() -> None:
    file = LockFile()
    file.close()
    file.close()
    assert file.fd == -1
