"""Blocks that a worker receives before it fetches them, to begin their samples.

A thread receives them, so that a block which comes while a sample is waited for is
begun at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from .block import Block, Fields, make_block
from .seeding import globals_mark
from .worker import Worker, own_worker

TaskT = TypeVar("TaskT")


def ahead(
    receive: Callable[[], TaskT],
    block_of: Callable[[TaskT], Block | Fields | None],
) -> Callable[[], TaskT]:
    """Return what receives the next task, in this worker's own thread.

    That is ``receive`` itself if the worker has no samples under way.  ``block_of``
    returns a task's block, None of the last.
    """
    worker = own_worker()
    if worker is None or worker.under_way is None:
        return receive
    tasks: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(
        target=_receive,
        args=(worker, receive, block_of, tasks),
        name="mpiter-receiving",
        daemon=True,
    ).start()
    return tasks.get


def _receive(
    worker: Worker,
    receive: Callable[[], TaskT],
    block_of: Callable[[TaskT], Block | Fields | None],
    tasks: SimpleQueue[TaskT],
) -> None:
    while True:
        task = receive()
        block: Block | Fields | None = ()
        # What is wrong with it is found again by the thread that works on it.
        with contextlib.suppress(Exception):
            block = block_of(task)
            if block:
                _begin(worker, make_block(block))
        tasks.put(task)
        if block is None:
            return
        del task, block


def _begin(worker: Worker, block: Block) -> None:
    under_way = worker.under_way
    assert under_way is not None
    with under_way.ahead:
        # One of its samples may have killed a worker.  If another is read meanwhile,
        # the next death wouldn't show which it was.
        if block.singly:
            under_way.alone.add(block.number)
        if under_way.alone or worker.startup is not None:
            return
        if worker.seeds or worker.copies:
            return
        # What these samples draw from the global generators is seen by the next fetch.
        if worker.mark is None:
            worker.mark = globals_mark()
        under_way.begin(block.number, block.placed())
