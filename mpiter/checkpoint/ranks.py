"""The ranks of a training, and how each tells all others something.

They talk through what the program has initialised: torch.distributed (beside its
backend, in a group of gloo's own), MPI (in a communicator of its own) or JAX (by
computations on one device of each process).  Guarantees that nothing is imported or
initialised here, and that no message of the program's own is taken for one of these, or
the reverse.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from ..errors import RankError, warn
from ..order.ranks import BY_JAX, BY_MPI, BY_TORCH, found

# A rank may wait long for another one that validates alone.  That a rank has ended
# shows at once, and the program's own messages have their own, shorter, limit.
_PATIENCE = timedelta(days=7)

# After waiting so long for other ranks at the beginning, a rank says so.
_SILENT_S = 20.0

Numbers = list[int]


class Ranks(Protocol):
    """The ranks of one training, of which this process is one.

    Each of them calls the same methods, in the same order.
    """

    rank: int
    size: int

    def __init__(self, rank: int, size: int) -> None: ...

    def begin_highest(self, numbers: Numbers) -> Callable[[], Numbers]:
        """Begin to find the highest of all ranks' numbers, place by place.

        Return what waits for the result.
        """

    def gathered(self, text: str) -> list[str]:
        """Return what each rank has given, once all have."""

    def close(self) -> None:
        """Give back what was taken for messages."""


def ranks_of_training(is_alone: bool, say_it_waits: Callable[[], None]) -> Ranks:
    """Return the ranks that train together with this one, once all are there.

    Raise a RankError if they have no way to talk.
    """
    rank, size, source = found()
    if is_alone or size == 1:
        return OneRank()
    kinds: dict[str, type[Ranks]] = {
        BY_TORCH: TorchRanks,
        BY_MPI: MpiRanks,
        BY_JAX: JaxRanks,
    }
    if source not in kinds:
        raise RankError(
            f"{source} say that this is rank {rank} of {size}, but nothing is "
            "initialised by which the ranks could agree where to stop.  Before the "
            "block, call torch.distributed.init_process_group('gloo') or "
            "jax.distributed.initialize(), or import mpi4py.MPI.  If each process is "
            "a training of its own, with a file of its own, pass alone=True."
        )
    # Making a group waits for all ranks, as the first message does.
    with _speaking_up(say_it_waits):
        ranks = kinds[source](rank, size)
        ranks.gathered("")
    return ranks


@contextmanager
def _speaking_up(say: Callable[[], None]) -> Iterator[None]:
    """Call ``say`` if the block takes long.

    Another rank may never come to the same place of the program.
    """
    timer = threading.Timer(_SILENT_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


class OneRank:
    """This process, which trains by itself."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def begin_highest(self, numbers: Numbers) -> Callable[[], Numbers]:
        return lambda: numbers

    def gathered(self, text: str) -> list[str]:
        return [text]

    def close(self) -> None:
        pass


class TorchRanks:
    """The ranks of ``torch.distributed``."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._torch: ModuleType = sys.modules["torch"]
        self._group = self._torch.distributed.new_group(
            backend="gloo", timeout=_PATIENCE, group_desc="mpiter checkpoint"
        )

    def begin_highest(self, numbers: Numbers) -> Callable[[], Numbers]:
        distributed = self._torch.distributed
        highest = self._torch.tensor(numbers, device="cpu")
        work = distributed.all_reduce(
            highest, distributed.ReduceOp.MAX, self._group, async_op=True
        )

        def result() -> Numbers:
            work.wait()
            return highest.tolist()  # type: ignore[no-any-return]

        return result

    def gathered(self, text: str) -> list[str]:
        texts = [""] * self.size
        self._torch.distributed.all_gather_object(texts, text, self._group)
        return texts

    def close(self) -> None:
        # The program may have ended all groups within the block, and ending one twice
        # is an error.
        if self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group(self._group)
        # The group's threads end with its last reference.  If they lived until the
        # program's end, they might still hold tensors then, and abort the program when
        # they let go of them without an interpreter.
        self._group = None


class MpiRanks:
    """The ranks of MPI's COMM_WORLD."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._mpi: ModuleType = sys.modules["mpi4py.MPI"]
        if rank == 0 and "mpi4py.run" not in sys.modules:
            warn(
                "this program of MPI's wasn't started by  python -m mpi4py train.py, "
                "so if one rank ends alone, by an error or a signal, the others wait "
                "for it for ever."
            )
        # In a copy of the communicator no message of the program's is taken for ours.
        self._comm = self._mpi.COMM_WORLD.Dup()

    def begin_highest(self, numbers: Numbers) -> Callable[[], Numbers]:
        mine = np.array(numbers, np.int64)
        highest = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, highest, self._mpi.MAX)

        def result() -> Numbers:
            # MPI reads and writes both arrays until the request is complete, so this
            # function must keep them alive, and names them for that.
            assert mine.size == highest.size
            request.Wait()
            return highest.tolist()  # type: ignore[no-any-return]

        return result

    def gathered(self, text: str) -> list[str]:
        return self._comm.allgather(text)  # type: ignore[no-any-return]

    def close(self) -> None:
        if not self._mpi.Is_finalized():
            self._comm.Free()


class JaxRanks:
    """The processes of ``jax.distributed``.

    Messages are rows of an array, of which each process has one.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._jax: ModuleType = sys.modules["jax"]
        sharding = self._jax.sharding
        first_devices = dict[int, Any]()
        for device in self._jax.devices():
            first_devices.setdefault(device.process_index, device)
        in_order = [first_devices[number] for number in range(size)]
        mesh = sharding.Mesh(in_order, "ranks")
        split = sharding.PartitionSpec("ranks")
        whole = sharding.PartitionSpec()
        self._a_row_each = sharding.NamedSharding(mesh, split)
        everywhere = sharding.NamedSharding(mesh, whole)
        self._highest = self._jax.jit(
            lambda rows: rows.max(axis=0), out_shardings=everywhere
        )
        self._all = self._jax.jit(lambda rows: rows, out_shardings=everywhere)

    def begin_highest(self, numbers: Numbers) -> Callable[[], Numbers]:
        rows = self._rows(np.array(numbers, np.int32))
        highest = self._highest(rows)
        return lambda: self._fetched(highest).tolist()

    def gathered(self, text: str) -> list[str]:
        own = text.encode()
        result = self.begin_highest([len(own)])
        (longest,) = result()
        # JAX compiles anew for each width, so there must be few.
        width = 1 << longest.bit_length()
        padded = np.frombuffer(own.ljust(width, b"\0"), np.uint8)
        everywhere = self._all(self._rows(padded))
        rows = self._fetched(everywhere)
        # No text has a byte of zero of its own, since JSON writes it in another way.
        return [row.tobytes().rstrip(b"\0").decode() for row in rows]

    def close(self) -> None:
        pass

    def _rows(self, own: np.ndarray[Any, Any]) -> object:
        shape = (self.size, *own.shape)
        return self._jax.make_array_from_process_local_data(
            self._a_row_each, own[None], shape
        )

    @staticmethod
    def _fetched(array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array.addressable_data(0))
