"""Workers that are MPI ranks: ``mpiexec -n 9 python -m mpi4py.futures train.py`` is a trainer and eight loaders.

Runs in rank 0, the trainer's, by way of ``mpi4py.util.pool.Pool``, and ``_begin`` in the others.  All Pools of a
program have the same ranks, which come and go with the program: none is replaced.  Guarantees that a rank which
answers no more ends the run, by an error where it can be raised and else by the last words of ``ending``.
Assumes that ``mpi4py.futures`` runs the program: nothing here starts MPI.
"""

from __future__ import annotations

import math
import pickle
import sys
import threading
import time
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

from ..errors import OptionError
from ..loaders.shards import Streamed
from ..pool.anypool import AnyPool
from ..worker.board import Cell, Line
from ..worker.registry import forget
from ..worker.worker import Setup, begin
from . import ending
from .launched import Launched
from .messages import answer, opened

_COMMAND = "python -m mpi4py.futures train.py"
_RESUME = (
    "MPI replaces no rank, so the run ends here. Start the same command again: from what mpiter.Checkpoint or your own "
    "state_dict() saved it goes on, and nothing is lost or repeated."
)


class MPI:
    """The other ranks of this MPI program as workers: ``mpiexec -n 9 python -m mpi4py.futures train.py``.

    ``n_processes`` left unset, all of them work; a smaller number of them works at any one time.  Each keeps a copy of
    the dataset, unless its arrays are maps of files (``np.memmap``).  For several trainers there are plain ranks,
    ``mpiexec -n 4 python train.py``, with ``shard="auto"`` and worker processes of their own.

    >>> MPI().shares_memory  # rows travel as messages
    False
    """

    name, shares_memory, in_process = "mpi", False, False

    def count_workers(self) -> int:
        return _ranks() - 1

    def check(self, options: Any) -> None:
        """Refuse what cannot be."""
        if options.shard is not None:
            raise OptionError(
                f"shard={options.shard!r} is for several trainers, and with backend='mpi' all other ranks load for one."
                f" Pass either: for several trainers run `mpiexec -n 4 python train.py` with shard='auto' and "
                f"backend='process', whose workers are each trainer's own."
            )
        if isinstance(options.dataset, Streamed):
            raise OptionError(
                "backend='mpi' reads no streams: a stream is read on where it was left, and MPI gives a block to "
                "whichever rank is free. Give the dataset [] and len(), or leave backend unset."
            )
        if options.workers > (most := self.count_workers()):
            raise OptionError(
                f"{options.workers_name}={options.workers}, but MPI has started {most} ranks beside this one: run "
                f"`mpiexec -n {options.workers + 1} {_COMMAND}`, or leave {options.workers_name} unset."
            )

    def launch(self, cargo: tuple[Any, Any]) -> Launched:
        """Pack the dataset for the journey."""
        ending.raise_if_lost()
        ending.prepare(
            f"This run was killed, by mpiexec most likely, which kills all ranks when one is lost. {_RESUME}"
        )
        return Launched(cargo, _Sent, _RankPool, grows=False)


def _ranks() -> int:
    """How many there are, this one included: two at least."""
    if find_spec("mpi4py") is None:
        raise OptionError("backend='mpi' needs mpi4py and an MPI, which pip install 'mpiter[mpi]' brings.")
    futures = sys.modules.get("mpi4py.futures._core")
    size, how = 1, "this program was started without"
    if futures is not None and futures.SharedPool is not None:
        size, how = futures.MPI.COMM_WORLD.Get_size(), "MPI has started one rank only"
    if size == 1:
        raise OptionError(
            f"backend='mpi' needs other ranks that wait for work, and {how}: run `mpiexec -n 9 {_COMMAND}`, which are "
            f"one trainer and eight loaders."
        )
    return size


class _Sent:
    """Buffers of a dataset that are sent to each rank."""

    maps_files: ClassVar = False

    def __init__(self, buffers: list[memoryview]) -> None:
        self._buffers = list(map(bytearray, buffers))  # as they are now

    def buffers(self, is_own: bool) -> list[Any]:
        return self._buffers

    def close(self) -> None:
        self._buffers = []


class _RankPool(AnyPool):
    """All ranks but ours, which it shares with every other Pool of the program."""

    _open: ClassVar[list[_RankPool]] = []

    def __init__(self, workers: int, initializer: Any, initargs: tuple[Setup], **calls: Any) -> None:
        (setup,) = initargs
        self._lines = [setup.board.cells(number) for number in range(workers)]
        self._dataset, self._patience = setup.dataset, setup.rules.sample_timeout or math.inf
        super().__init__(_Pool, workers, initializer, initargs, **calls)
        self._workers = _ranks() - 1  # of whom fewer may work at any one time
        self._open.append(self)

    def _post(self, block: Any, value: Any) -> None:
        """Take an answer for progress of all ranks: which of them has which block is mpi4py's affair."""
        for cells in [cells for pool in list(self._open) for cells in pool._lines]:
            cells[Cell.READY], cells[Cell.SINCE] = 1, time.monotonic_ns()
        super()._post(block, value)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """None, while a more patient Pool has blocks out: its samples may have all ranks."""
        others = [pool._patience for pool in list(self._open) if pool.out(0)]
        return super().busy(lines) if self._patience >= max(others, default=0.0) else ()

    def kill(self, number: int) -> None:
        """End the run: a rank has not answered for too long, and nothing can take its place."""
        ending.lost = (
            f"no MPI rank has answered for {self._patience:g} s (sample_timeout), with {self.out(0)} blocks to do: one "
            f"is lost, stopped or stuck in a sample. {_RESUME}"
        )
        ending.raise_if_lost()

    def close(self, timeout: float = 5.0) -> bool:
        _closed.append(self._dataset)
        if self in self._open:
            self._open.remove(self)
        return super().close(timeout)


class _Pool:
    """``mpi4py.util.pool.Pool``, as ``AnyPool`` wants it: without a thread that waits for each answer."""

    def __init__(self, workers: int, initializer: Any, initargs: tuple[Setup]) -> None:
        from mpi4py.util.pool import Pool

        closed = [_closed.pop() for _ in range(len(_closed))]  # another thread may add to them
        self._is_over = threading.Event()
        ending.pools.append(self._is_over)
        self._pool = Pool(None, _begin, (list(sys.path), pickle.dumps(initargs, 5), closed), main=False)

    def map_async(self, func: Any, items: list[Any], chunksize: Any, callback: Any, error_callback: Any) -> None:
        ending.raise_if_lost()
        (item,) = items

        def answered(parts: tuple[Any, ...]) -> None:  # in mpi4py's thread
            try:
                found = opened(*parts)
            except Exception as error:
                error_callback(error)
            else:
                callback([found])

        self._pool.apply_async(answer, (func, item), {}, answered, error_callback)

    def terminate(self) -> None:
        """Wait for what is in hand, and for nothing else."""
        self._pool.executor.shutdown(wait=True, cancel_futures=True)
        self._is_over.set()


def _begin(path: list[str], pickled: bytes, closed: list[int]) -> None:
    """Take up work, in each of the other ranks."""
    from mpi4py.futures import get_comm_workers

    for dataset in closed:
        forget(dataset)
    sys.path += [place for place in path if place not in sys.path]  # the program's own folder, most of all
    (setup,) = pickle.loads(pickled)
    begin(setup, get_comm_workers().Get_rank() % setup.rules.workers)


_closed: list[int] = []  # datasets that ranks need not keep
