"""Workers that are MPI ranks.

``mpiexec -n 9 python -m mpi4py.futures train.py`` runs one trainer and eight workers.
All Pools of a program share these ranks, which live as long as the program: none is
replaced.  Guarantees that the program ends, and doesn't hang, when a rank no longer
answers: with an error if one can be raised, else by ending all its processes
(``_Ending``).  Nothing here starts MPI, since ``mpi4py.futures`` has.
"""

from __future__ import annotations

import atexit
import itertools
import math
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from ..bell import Bell
from ..datasets.ship import Copied
from ..engine import lifetime
from ..errors import OptionError, WorkerCrashed
from ..pool.anypool import AnyPool
from ..pool.backends import Backend, Cargo, Launch, packed
from ..pool.workers import Work
from ..setting import Setting
from ..worker.block import Block, Fields
from ..worker.board import CELL, Line
from ..worker.worker import Setup, begin, forget

_COMMAND = "python -m mpi4py.futures train.py"
_RESUME = (
    "MPI replaces no rank, so the run ends here. Start the same command again: from "
    "what mpiter.Checkpoint or your own state_dict() saved it goes on, and nothing is "
    "lost or repeated."
)


class MPI(Backend):
    """Uses the other ranks of an MPI program as workers.

    Start it by ``mpiexec -n 9 python -m mpi4py.futures train.py``.  All other ranks
    work, or ``n_processes`` at a time if that is given.  Each rank has its own copy of
    the dataset, except of arrays that map files (``np.memmap``).  For several trainers
    start plain ranks, ``mpiexec -n 4 python train.py``, with ``shard="auto"``; each
    then starts its own worker processes.

    >>> MPI().shares_memory  # rows travel as messages
    False
    """

    name = "mpi"

    def count_workers(self) -> int:
        """Return the number of ranks beside this one; without any, raise an error."""
        if find_spec("mpi4py") is None:
            raise OptionError(
                "backend='mpi' needs mpi4py and an MPI, which pip install "
                "'mpiter[mpi]' brings."
            )
        # mpi4py.futures has a Pool of the other ranks only if the program was started
        # with ``-m mpi4py.futures``; it may also be just imported.
        futures = sys.modules.get("mpi4py.futures._core")
        size = 1
        if futures is not None and futures.SharedPool is not None:
            size = int(futures.MPI.COMM_WORLD.Get_size())
        if size == 1:
            raise OptionError(
                "backend='mpi' needs other ranks that wait for work, and there is "
                f"none: run `mpiexec -n 9 {_COMMAND}`, which are one trainer and eight "
                "loaders."
            )
        return size - 1

    def check(self, setting: Setting) -> None:
        """Refuse options that MPI's ranks can't serve."""
        if setting.shard is not None:
            raise OptionError(
                "with backend='mpi' all other ranks load for one trainer. For several "
                f"trainers, with shard={setting.shard!r}, run `mpiexec -n 4 python "
                "train.py`, and leave backend unset."
            )
        if not setting.has_keys:
            raise OptionError(
                "backend='mpi' reads no streams, since MPI gives a block to whichever "
                "rank is free. Give the dataset [] and len(), or leave backend unset."
            )
        most = self.count_workers()
        if setting.workers > most:
            raise OptionError(
                f"{setting.workers_name}={setting.workers}, but MPI has started {most} "
                f"ranks beside this one: run `mpiexec -n {setting.workers + 1} "
                f"{_COMMAND}`, or leave {setting.workers_name} unset."
            )

    def launch(self, cargo: Cargo) -> Launch:
        """Pack the dataset to be sent to each rank.

        Raise an error if a rank was lost before.
        """
        _ending.raise_if_lost()
        _ending.prepare()
        return packed(cargo, Copied, _RankPool)


class _RankPool(AnyPool):
    """A Pool of all ranks but this one.

    Every other such Pool of the program uses them too.
    """

    _open: ClassVar[list[_RankPool]] = []

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Setup],
        *,
        bell: Bell,
    ) -> None:
        (setup,) = initargs
        self._lines = [setup.board.cells(number) for number in range(workers)]
        self._dataset = setup.dataset
        self._patience = setup.rules.sample_timeout or math.inf
        super().__init__(
            lambda *begin: _Pool(setup), workers, initializer, initargs, bell=bell
        )
        # There may be more ranks than ``workers``.
        self._most = MPI().count_workers()
        self._open.append(self)

    def _post(self, block: Block, value: Any) -> None:
        """Add an event, and count it as progress of all ranks.

        Only mpi4py knows which rank has which block.
        """
        # This is mpi4py's thread, and the caller's may open or close a Pool meanwhile.
        for pool in list(self._open):
            for cells in pool._lines:
                cells[CELL.ready] = 1
                cells[CELL.since] = time.monotonic_ns()
        super()._post(block, value)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """Return the workers that are at work."""
        # A Pool with a longer timeout may be using all ranks, and by its own measure
        # none of them is stuck yet.
        others = [pool._patience for pool in list(self._open) if pool.out(0)]
        if self._patience >= max(others, default=0.0):
            return super().busy(lines)
        return ()

    def kill(self, number: int) -> None:
        """Raise the error that ends the run.

        A rank has not answered for too long, and can't be replaced.
        """
        _ending.lost = (
            f"no MPI rank has answered for {self._patience:g} s (sample_timeout), with "
            f"unfinished blocks: {self.out(0)}; one is lost, stopped or stuck in a "
            f"sample. {_RESUME}"
        )
        _ending.raise_if_lost()

    def close(self, timeout: float = 5.0) -> bool:
        _closed.append(self._dataset)
        if self in self._open:
            self._open.remove(self)
        return super().close(timeout)


class _Pool:
    """``mpi4py.util.pool.Pool`` with what ``AnyPool`` calls.

    No thread waits for each answer.
    """

    def __init__(self, setup: Setup) -> None:
        from mpi4py.util.pool import Pool

        # Another thread may add to the list meanwhile, so it isn't copied and cleared.
        closed = [_closed.pop() for _ in range(len(_closed))]
        self._is_over = threading.Event()
        _ending.pools.append(self._is_over)
        sent = (list(sys.path), pickle.dumps(setup, 5), closed)
        self._pool = Pool(None, _begin, sent, main=False)

    def map_async(
        self,
        func: Work,
        items: list[Any],
        chunksize: int,
        callback: Callable[[list[Any]], object],
        error_callback: Callable[[BaseException], object],
    ) -> None:
        _ending.raise_if_lost()
        (item,) = items

        # mpi4py's thread calls this.
        def answered(parts: tuple[Any, ...]) -> None:
            try:
                found = _opened(*parts)
            except Exception as error:
                error_callback(error)
            else:
                callback([found])

        self._pool.apply_async(
            _answer,
            (func, item),
            {},
            answered,
            error_callback,
        )

    def terminate(self) -> None:
        """Cancel the blocks that no rank has begun, and wait for the others."""
        self._pool.executor.shutdown(wait=True, cancel_futures=True)
        self._is_over.set()


def _begin(
    path: list[str],
    pickled: bytes,
    closed: list[int],
) -> None:
    """Make this rank a worker, and drop the datasets ``closed``.

    This is called in each of the other ranks.
    """
    from mpi4py.futures import get_comm_workers

    for dataset in closed:
        forget(dataset)
    # A rank lacks the program's own folder above all.
    sys.path += [place for place in path if place not in sys.path]
    setup = pickle.loads(pickled)
    rank = get_comm_workers().Get_rank()
    begin(setup, rank % setup.rules.workers)


# Numbers of datasets that the ranks may drop.
_closed: list[int] = []


# -- large parts of an answer ----------------------------------------------------------
#
# They are sent as separate messages.  mpi4py sends while both ends poll from time to
# time, which takes a third of a second for 5 MB on one machine; here a thread at each
# end blocks until it is done, which takes 2 ms.  If MPI doesn't allow calls from
# several threads, answers are sent whole.

# The tags of our messages.  mpi4py.futures sends nothing in COMM_WORLD.
_FIRST_TAG = 27182
_TAGS = 1000
# A part of so many bytes is sent separately.
_LARGE = 1 << 14
_sent = itertools.count()  # answers of this rank


def _answer(func: Work, item: Fields) -> tuple[bytes, int, int, list[int]]:
    """Return the pickled result of ``func`` and this rank.

    Then the tag and the sizes of what the rank sends separately.
    """
    from mpi4py import MPI

    large: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE:
            return True
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            return True
        large.append(raw)
        return False

    def send() -> None:
        for raw in large:
            MPI.COMM_WORLD.Send([raw, MPI.BYTE], 0, tag)

    pickled = pickle.dumps(func(item), protocol=5, buffer_callback=stays)
    tag = _FIRST_TAG + next(_sent) % _TAGS
    # The parts are received once mpi4py has sent what we return, so sending them here
    # would wait without end.
    if large:
        threading.Thread(
            target=send,
            name="mpiter-answer",
            daemon=True,
        ).start()
    rank = MPI.COMM_WORLD.Get_rank()
    return pickled, rank, tag, [raw.nbytes for raw in large]


def _opened(
    pickled: bytes,
    rank: int,
    tag: int,
    sizes: list[int],
) -> Any:
    """Return a rank's answer, with the arrays that come as separate messages.

    This is called in mpi4py's thread.
    """
    from mpi4py import MPI

    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        MPI.COMM_WORLD.Recv([buffer, MPI.BYTE], rank, tag)
    return pickle.loads(pickled, buffers=buffers)


# The shell prints its argument, unless it gets a line first.
_SHELL = 'trap "" INT TERM HUP; read -r _ || printf "%s\\n" "$0" >&2'
# The time that mpiexec has to forward the last output.  It drops the rest when it is
# told to abort.
_TO_READ_S = 0.3
_STUCK = (
    "an MPI rank has not come back from its sample: all ranks are ended, as the "
    "program has."
)
_KILLED = (
    "This run was killed, by mpiexec most likely, which kills all ranks when one is "
    f"lost. {_RESUME}"
)


class _Ending:
    """Ends the program if a rank is lost, for which mpi4py would wait without limit.

    mpi4py takes it for one of its Pools, and calls ``put`` when the program ends: that
    closes the iterators, and ends the program with its own exit status.  A launcher
    that kills all ranks with SIGKILL leaves no time for a message, so a shell prints
    it, in another session, which the launcher doesn't kill.
    """

    def __init__(self) -> None:
        # The message of the error, once no rank can be expected to answer.
        self.lost = ""
        # One for each Pool, set when all its blocks are answered.
        self.pools: list[threading.Event] = []
        # Iterators may be started in several threads.
        self._lock = threading.Lock()
        self._is_prepared = False  # guarded by _lock

    def prepare(self) -> None:
        """Register with mpi4py, and start the shell.

        No Pool may have registered before, as ``put`` is to be called first.
        """
        with self._lock:
            if self._is_prepared:
                return
            self._is_prepared = True
            sys.modules["mpi4py.futures._core"].SharedPool.threads[self] = self
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, f"mpiter: {_KILLED}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            atexit.register(shell.communicate, b"\n")

    def raise_if_lost(self) -> None:
        if self.lost:
            raise WorkerCrashed(self.lost)

    def put(self, item: object) -> None:
        error = sys.exc_info()[1]
        # The status is computed as mpi4py does it.
        code: object = int(error is not None)
        if isinstance(error, SystemExit):
            code = error.code
        if isinstance(code, int):
            status = code
        else:
            status = int(code is not None)
        lifetime.end_all()
        is_over = all(pool.is_set() for pool in self.pools)
        if is_over and not self.lost:
            return
        if error is not None and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        # If a rank is lost, the error says so itself.
        if error is None or not self.lost:
            print(f"mpiter: {self.lost or _STUCK}", file=sys.stderr)
        # MPI ends the process without calling these.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        time.sleep(_TO_READ_S)
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(status or int(bool(self.lost)))

    def join(self) -> None: ...


_ending = _Ending()
