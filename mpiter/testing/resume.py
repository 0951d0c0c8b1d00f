"""``check_resume``: resumes a loader, or a training.

A loader is resumed from each of its states, a training from wherever it was
interrupted.  Runs in the thread that calls it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, overload

from ..engine.options import whole
from ..errors import OptionError
from .dataset import SEEDED
from .same import same
from .training import check_training


class Resumable(Protocol):
    """A loader or an iterator, of mpiter or of another library."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: object, /) -> None: ...


@overload
def check_resume(function: Callable[[], Any], *, batches: int = 20) -> int: ...
@overload
def check_resume(
    function: Callable[[Path, int], Any],
    *,
    interruptions: int = 20,
    workers: Sequence[int] = (0, 1),
    ranks: Sequence[int] = (1,),
) -> int: ...
def check_resume(
    function: Callable[..., Any],
    *,
    batches: int = 20,
    interruptions: int = 20,
    workers: Sequence[int] = (0, 1),
    ranks: Sequence[int] = (1,),
) -> int:
    """Check that a loader, or a training, resumes exactly.

    Return how many states, or interruptions, were tried.

    A ``function`` without parameters returns a new loader or iterator.  Its first
    ``batches`` batches, across epochs, are compared with those that a new one gives
    after loading each state that was saved on the way.

    A ``function(path, workers)`` trains with ``mpiter.Checkpoint(path, …)`` and loaders
    of ``workers`` workers, and returns what is to be compared, such as weights and
    losses.  It is interrupted at some place of each step, between steps and before and
    after them, resumed, and must return the same to the last bit.  Let it take few
    steps: for each interruption it is run twice.

    Args:
        function: makes a loader, or trains.
        batches: batches of the loader.
        interruptions: at most so many, spread over the steps and their lines: SIGTERM,
            Ctrl-C, and the end as by SIGKILL, which leaves what was saved until then.
        workers: the numbers that take turns at resuming; the first is that of the run
            that is interrupted.
        ranks: the same for ranks.  If one of them is more than 1, the function is run
            in processes with torch.distributed (gloo), which unpickle it; what it
            refers to is imported, or goes by value.  The interruption hits one rank,
            within its block, and all must end.  Resumed by another number of ranks,
            these must return the same as each other, if the ranks of the first run do.

    >>> import mpiter
    >>> from mpiter.testing import check_resume
    >>> def make_loader():
    ...     return mpiter.batches(range(20), 4, n_processes=0, seed=1)
    >>> check_resume(make_loader, batches=8)
    9
    >>> def train(path, workers):
    ...     loader = mpiter.DataLoader(range(6), 2, shuffle=True, num_workers=workers)
    ...     model = {"seen": []}
    ...     with loader, mpiter.Checkpoint(path, loader, model=model) as c:
    ...         for epoch in c.epochs(2):
    ...             for x in c.steps(loader):
    ...                 model["seen"] += x.tolist()
    ...     return model
    >>> check_resume(train, interruptions=8)
    8
    """
    whole("interruptions", interruptions, least=1)
    checked = (
        ("workers", workers, 0),
        ("ranks", ranks, 1),
    )
    for name, numbers, least in checked:
        if not numbers:
            raise OptionError(f"{name}={numbers!r} must have a number at least.")
        for number in numbers:
            whole(name, number, least)
    if _trains(function):
        return check_training(function, interruptions, workers, ranks)
    return _check_loader(function, batches)


def _trains(function: Callable[..., Any]) -> bool:
    """Return True for a function of path and workers, False for one of nothing."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions that are written in C have no signature.
        return False
    for arguments in ((), (Path(), 0)):
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return bool(arguments)
    raise OptionError(
        "check_resume takes a function without parameters, which makes a loader, or "
        f"train(path, workers); this one has {signature}."
    )


def _check_loader(make_loader: Callable[[], Resumable], batches: int) -> int:
    states = []
    expected = list[Any]()
    with _closing(make_loader()) as loader:
        states.append(_saved(loader))
        for batch in islice(_endless(loader), batches):
            expected.append(copy.deepcopy(batch))
            states.append(_saved(loader))
    assert expected, "the loader has given no batch."
    for place, state in enumerate(states):
        with _closing(make_loader()) as loader:
            loader.load_state_dict(state)
            wanted = expected[place:]
            batches_again = islice(_endless(loader), len(wanted))
            for at, batch in enumerate(batches_again):
                assert same(batch, wanted[at]), (
                    f"resumed after batch {place}, batch {place + at} is another one "
                    "than without the interruption. The order of a torch loader that "
                    f"shuffles needs generator=; samples must draw from {SEEDED}; and "
                    "what the loader wraps must load all that its state_dict() holds."
                )
                wanted[at] = None
            left = sum(one is not None for one in wanted)
            assert not left, (
                f"resumed after batch {place}, {left} of {len(wanted)} batches did not "
                "come."
            )
    return len(states)


@contextlib.contextmanager
def _closing(loader: Resumable) -> Iterator[Resumable]:
    try:
        yield loader
    finally:
        getattr(loader, "close", lambda: None)()


def _endless(loader: Resumable) -> Iterator[Any]:
    """Yield the batches of epoch after epoch, until two are empty in a row."""
    # One may be empty, after a resume at an epoch's end.
    n_empty = 0
    while n_empty < 2:
        n_empty += 1
        for batch in loader:
            n_empty = 0
            yield batch


def _saved(loader: Resumable) -> object:
    """Return the loader's state as it comes back from a file."""
    state = loader.state_dict()
    # Another library's state may hold more than JSON can.
    try:
        return json.loads(json.dumps(state))
    except TypeError:
        return pickle.loads(pickle.dumps(state))
