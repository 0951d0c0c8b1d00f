"""Workers that are MPI ranks: ``mpiexec -n 9 python -m mpi4py.futures train.py`` is a trainer and eight loaders.

Runs in rank 0, the trainer's, by way of ``mpi4py.util.pool.Pool``, and ``_begin`` in the others.  All Pools of a
program have the same ranks, which come and go with the program: none is replaced.  Guarantees that a rank which
answers no more ends the run, by an error where there is still somebody to raise it and else by ``last_words``.
Assumes that ``mpi4py.futures`` runs the program: nothing here starts MPI.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar

from ..datasets import ship
from ..errors import OptionError, WorkerCrashed
from ..loaders.shards import Streamed
from ..pool.anypool import AnyPool
from ..transport.transport import Transport
from ..transport.transports import PackedTransport
from ..worker.board import Cell, Line
from ..worker.registry import forget
from ..worker.worker import Setup, begin
from . import ending, last_words
from .messages import Receiver, answer, is_possible

_RESUME = (
    "MPI replaces no rank, so the run ends here. Start the same command again: from what mpiter.Checkpoint or your own "
    "state_dict() saved it goes on, and nothing is lost or repeated."
)


class MPI:
    """The other ranks of this MPI program as workers: ``mpiexec -n 9 python -m mpi4py.futures train.py``.

    ``n_processes`` left unset, all of them work; a smaller number of them works at any one time.  Each keeps a copy of
    the dataset, unless its arrays are maps of files (``np.memmap``).  For several trainers there are plain ranks,
    ``mpiexec -n 4 python train.py``, with ``shard="auto"`` and worker processes of their own.

    >>> from mpiter import OptionError, batches
    >>> try:
    ...     batches(range(8), 4, backend=MPI())
    ... except OptionError as error:  # this program was started in another way
    ...     print(str(error)[:19])
    backend='mpi' needs
    """

    name, shares_memory, in_process = "mpi", False, False

    def __repr__(self) -> str:
        return "MPI()"

    def transport(self, copy: bool) -> Transport:
        """What carries the batches: rows packed, copied once, into a slot of ours."""
        return PackedTransport(copy)

    def count_workers(self) -> int:
        """How many there are."""
        return _ranks() - 1

    def check(self, options: Any) -> None:
        """Refuse what cannot be."""
        if options.shard is not None:
            raise OptionError(
                f"shard={options.shard!r} is for several trainers, and with backend='mpi' all other ranks load for one."
                f" Pass either: for several trainers run `mpiexec -n 4 python {_script()}` with shard='auto' and "
                f"backend='process', whose workers are each trainer's own."
            )
        if isinstance(options.dataset, Streamed):
            raise OptionError(
                "backend='mpi' reads no streams: a stream is read on where it was left, and MPI gives a task to "
                "whichever rank is free. Give the dataset [] and len(), or leave backend unset."
            )
        most = self.count_workers()
        if options.workers > most:
            raise OptionError(
                f"{options.workers_name}={options.workers}, but MPI has started {most} ranks beside this one: run "
                f"`mpiexec -n {options.workers + 1} {_command()}`, or leave {options.workers_name} unset."
            )

    def launch(self, cargo: tuple[Any, Any]) -> _Ranks:
        """Pack the dataset for the journey."""
        if ending.lost:
            raise WorkerCrashed(ending.lost[0])
        try:
            return _Ranks(ship.Shipment(cargo, hold=_Sent))
        except (MemoryError, Warning):
            raise
        except Exception as error:
            remedy = "Open such things in worker_init or on first use, and leave them out in __getstate__."
            raise ship.explain(cargo[0], "dataset", error, remedy) from error


def _script() -> str:
    return os.path.basename(sys.argv[0]) or "train.py"


def _command() -> str:
    return f"python -m mpi4py.futures {_script()}"


def _ranks() -> int:
    """How many there are, this one included: two at least."""
    if find_spec("mpi4py") is None:
        raise OptionError("backend='mpi' needs mpi4py and an MPI, which pip install 'mpiter[mpi]' brings.")
    futures = sys.modules.get("mpi4py.futures._core")
    if futures is None or futures.SharedPool is None:
        raise OptionError(
            f"backend='mpi' needs other ranks that wait for work, and this program was started without: run "
            f"`mpiexec -n 9 {_command()}`, which are one trainer and eight loaders."
        )
    size = int(futures.MPI.COMM_WORLD.Get_size())
    if size == 1:
        raise OptionError(
            f"MPI has started one rank only, and backend='mpi' needs more to load: run `mpiexec -n 9 {_command()}`, "
            f"which are one trainer and eight loaders."
        )
    return size


class _Sent:
    """Buffers that are sent to each rank, out of line where mpi4py does so."""

    maps_files: ClassVar = False

    def __init__(self, buffers: list[memoryview]) -> None:
        self._buffers: list[Any] = list(map(bytearray, buffers))  # as they are now

    def buffers(self, is_own: bool) -> list[Any]:
        return self._buffers

    def close(self) -> None:
        self._buffers = []

    def __getstate__(self) -> list[pickle.PickleBuffer]:
        return list(map(pickle.PickleBuffer, self._buffers))

    def __setstate__(self, buffers: list[Any]) -> None:
        self._buffers = buffers


class _Ranks:
    """Ranks about to take up work on one dataset."""

    grows = False

    def __init__(self, cargo: ship.Shipment) -> None:
        self.cargo = cargo

    def dumps(self, value: Any) -> bytes:
        return ship.by_value(value)

    def carries(self, cargo: Any) -> bool:
        return self.cargo.holds(cargo)

    def pool(self, workers: int, initializer: Callable[..., object], initargs: tuple[Setup], **calls: Any) -> _RankPool:
        last_words.keep(
            f"This run was killed, by mpiexec most likely, which kills all ranks when one is lost. {_RESUME}"
        )
        ending.watch()
        return _RankPool(workers, *initargs, **calls)

    def close(self) -> None:
        self.cargo.close()


class _RankPool(AnyPool):
    """All ranks but ours, which it shares with every other Pool of the program."""

    _open: ClassVar[list[_RankPool]] = []
    _moved: ClassVar[float] = 0.0  # when any of them was asked or answered last

    def __init__(self, workers: int, setup: Setup, **calls: Any) -> None:
        self._board, self._places = setup.board, workers
        self._dataset, self._timeout = setup.dataset, setup.rules.sample_timeout
        super().__init__(partial(_Pool, setup), workers, begin, (), **calls)
        self._workers = _ranks() - 1  # of whom fewer may work at any one time
        self._open.append(self)

    def map_async(self, *args: Any, **kwargs: Any) -> None:
        if ending.lost:
            raise WorkerCrashed(ending.lost[0])
        _RankPool._moved = time.monotonic()
        super().map_async(*args, **kwargs)

    def _post(self, *answered: Any) -> None:
        """Any answer is progress of all: which rank has which task is mpi4py's affair."""
        for number in range(self._places):
            cells = self._board.cells(number)
            cells[Cell.READY], cells[Cell.SINCE] = 1, time.monotonic_ns()
        _RankPool._moved = time.monotonic()
        super()._post(*answered)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """Nobody of ours, as long as another Pool's samples may have all ranks: then that one's patience counts."""
        others = [pool._timeout for pool in list(self._open) if pool is not self and pool.out(0)]
        patience = max((math.inf if limit is None else limit for limit in others), default=0.0)
        return super().busy(lines) if time.monotonic() - self._moved > patience else ()

    def kill(self, number: int) -> None:
        """Somebody has not answered for too long, and nobody can take a rank's place."""
        out = self.out(0)
        why = (
            f"no MPI rank has answered for {self._timeout:g} s (sample_timeout), with {out} tasks to do: one is lost, "
            f"stopped or stuck in a sample. {_RESUME}"
        )
        ending.lost.append(why)
        raise WorkerCrashed(why)

    def dispose(self, timeout: float = 5.0) -> bool:
        _closed.append(self._dataset)
        if self in self._open:
            self._open.remove(self)
        if not (is_clean := super().dispose(timeout)):
            ending.leave_behind(self._pool.is_over, self._timeout)
        return is_clean


class _Pool:
    """``mpi4py.util.pool.Pool``, as ``AnyPool`` wants it: without a thread that waits for each answer."""

    def __init__(
        self, setup: Setup, workers: int, initializer: Callable[..., object], initargs: tuple[Any, ...]
    ) -> None:
        from mpi4py.util.pool import Pool

        buffers: list[pickle.PickleBuffer] = []
        sent = pickle.dumps(replace(setup, numbers=_Numbers()), protocol=5, buffer_callback=buffers.append)
        closed = [_closed.pop() for _ in range(len(_closed))]  # another thread may add to them
        self._apart = is_possible()
        if self._apart:
            _receiver.open()
        self.is_over = threading.Event()
        self._pool = Pool(None, _begin, (list(sys.path), sent, buffers, closed), main=False)

    def map_async(self, func: Any, items: list[Any], chunksize: Any, callback: Any, error_callback: Any) -> None:
        (item,) = items
        answered = partial(_receiver.take, callback=lambda found: callback([found]), failed=error_callback)
        self._pool.apply_async(answer, (func, item, self._apart), {}, answered, error_callback)

    def terminate(self) -> None:
        """Wait for what is in hand, and for nothing else."""
        self._pool.executor.shutdown(wait=True, cancel_futures=True)
        if self._apart:
            _receiver.close()
        self.is_over.set()


class _Numbers(Iterator[int]):
    """A rank's number among those that work, wherever it is asked for."""

    def __next__(self) -> int:
        from mpi4py.futures import get_comm_workers

        return int(get_comm_workers().Get_rank())


def _begin(path: list[str], sent: bytes, buffers: list[Any], closed: list[int]) -> None:
    """In each of the other ranks: take up work."""
    for dataset in closed:
        forget(dataset)
    sys.path += [place for place in path if place not in sys.path]  # the program's own folder, most of all
    try:
        setup = pickle.loads(sent, buffers=buffers)
    except BaseException:  # another version of mpiter, say; mpi4py tells nobody why
        traceback.print_exc()
        raise
    begin(setup)


_receiver = Receiver()
_closed: list[int] = []  # datasets that ranks need not keep
