"""A dataset that forks: a child that comes back out of the dataset ends there.

Runs in workers.  The child of an ``os.fork()`` in a dataset's code is a copy of its worker, with the same pipes, slots
and board.  Guarantees that it touches none of them: where the dataset's code returns or raises in another process than
it was called in, that process ends at once, with the exit code that ``sys.exit`` gave.  Children that end by themselves
(those of ``multiprocessing``, say) never come back.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .here import here as _here

generation = 0  # counts the forks between this process and the first


def _is_child() -> None:
    global generation
    generation += 1
    if _here.now.keys is not None:
        _here.now.keys.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_is_child)


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns or raises, in the process that called it."""
    born = generation
    try:
        value = function(*arguments)
    except BaseException as error:
        end_child(born, error)
        raise
    if generation != born:
        end_child(born)
    return value


def end_child(born: int, error: BaseException | None = None) -> None:
    """End this process if it was forked since the generation was ``born``."""
    if generation == born:
        return
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if code and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif error is not None:
            traceback.print_exception(error)
        if sys.stderr is not None:
            sys.stderr.flush()
    finally:  # though nothing can be said
        os._exit(code & 0xFF)
