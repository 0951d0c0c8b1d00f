"""This process's rank and the number of ranks: passed by the user, or found out.

They are looked up when a loop begins and not before: at construction a process group
may not exist yet, and each rank would take itself for the only one.  Nothing is
imported to find out (mpi4py would start MPI); the choice and its source are logged.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from ..errors import OptionError
from .cursor import Share

_log = logging.getLogger("mpiter")

# Process groups by which ranks are found, and can talk.
BY_TORCH = "torch.distributed"
BY_JAX = "jax.distributed"
BY_MPI = "MPI.COMM_WORLD"

# Environment variables of the rank and of the number of ranks.
_BY_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    # Last, because ranks started by mpiexec within a Slurm job inherit the rank of the
    # job's script.  This size is set in tasks of srun only, and not in the script
    # itself, which has SLURM_NTASKS.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Environment variables of the number of ranks on this machine.
_HERE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# Names of Slurm jobs that are an interactive shell: Slurm's variables there name no
# rank.
_INTERACTIVE = ("bash", "zsh", "sh", "interactive")
# The answers that this process has logged.
_told = set[tuple[int, int, str]]()


@dataclass(frozen=True)
class Shard:
    """One rank's part of the dataset, when several processes train together.

    ``Shard()`` finds out rank and size.  It looks, in this order, at an initialised
    ``torch.distributed``, ``jax.distributed`` or MPI; at ``RANK`` and ``WORLD_SIZE``;
    at Open MPI's, MPICH's and Slurm's variables.  If none is set, this process is the
    only one.

    All ranks go through one order together, in steps of a batch for each.  If the last
    step of an epoch is short, each rank still gets as many samples as the others: it is
    filled up from the epoch's beginning.  ``drop_last`` leaves it out instead;
    ``exact=True``, for evaluation, gives each sample once, so that some ranks may get a
    batch less.

    >>> from mpiter import batches
    >>> for rank in 0, 1:
    ...     shard = Shard(rank, 2)
    ...     part = batches(range(10), 2, n_processes=0, shuffle=False, shard=shard)
    ...     print(rank, *part)
    0 [0 1] [4 5] [8]
    1 [2 3] [6 7] [9]
    """

    rank: int | None = None
    size: int | None = None
    exact: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        rank = self.rank
        size = self.size
        # NumPy's numbers will do, and a rank alone, or a size, won't.
        are_numbers = (
            isinstance(rank, Integral)
            and isinstance(size, Integral)
            and 0 <= rank < size
        )
        if not are_numbers and (rank, size) != (None, None):
            raise OptionError(
                f"{self}: pass a rank from 0 to before size, or none of both to have "
                "them found out."
            )

    def share(self) -> Share:
        """Return this rank's share of the order, looked up now unless it was passed."""
        if self.rank is not None and self.size is not None:
            return Share(int(self.rank), int(self.size), self.exact)
        answer = found()
        rank, size, source = answer
        # Loops and states look it up again and again.
        if answer not in _told and _log.isEnabledFor(logging.INFO):
            _told.add(answer)
            _log.info("shard: rank %d of %d, by %s", rank, size, source)
        return Share(rank, size, self.exact)


# What ``shard=`` may be.
Sharding = Shard | tuple[int, int] | Literal["auto"] | None


def shard_for(shard: object) -> Shard | None:
    """Return the ``Shard`` for the value of a ``shard=`` argument; None for None."""
    if shard is None or isinstance(shard, Shard):
        return shard
    if shard == "auto":
        return Shard()
    if isinstance(shard, tuple) and len(shard) == 2:
        return Shard(*shard)
    raise OptionError(
        f"shard={shard!r:.60} is unknown; use 'auto', (rank, size) or "
        "mpiter.Shard(rank, size)."
    )


def ranks_here() -> int:
    """Return the number of ranks on this machine if the launcher has set it, else 1."""
    for name in _HERE:
        told = os.environ.get(name, "")
        if told.isdecimal():
            return max(1, int(told))
    return 1


def found() -> tuple[int, int, str]:
    """Return this process's rank, the number of ranks, and where both were found."""
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size(), BY_TORCH
    jax = sys.modules.get("jax")
    if jax is not None:
        distributed = getattr(jax, "distributed", None)
        # Older versions have no such function.
        is_initialized = getattr(distributed, "is_initialized", lambda: False)
        if is_initialized():
            return jax.process_index(), jax.process_count(), BY_JAX
    futures = sys.modules.get("mpi4py.futures._core")
    # Under ``mpiexec -m mpi4py.futures`` only this rank runs the program.
    if getattr(futures, "SharedPool", None) is not None:
        return 0, 1, "mpi4py.futures, to which the other ranks belong"
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        world = mpi.COMM_WORLD
        # A single rank is any program that has imported mpi4py.
        if world.Get_size() > 1:
            return world.Get_rank(), world.Get_size(), BY_MPI
    for names in _BY_VARIABLES:
        values = [os.environ.get(name, "") for name in names]
        rank, size = values
        is_interactive = os.environ.get("SLURM_JOB_NAME") in _INTERACTIVE
        # This process is not a task that srun has started.
        if names[0].startswith("SLURM") and (not size or is_interactive):
            continue
        are_numbers = all(value.isdecimal() and len(value) < 10 for value in values)
        if are_numbers and int(rank) < int(size):
            return int(rank), int(size), f"{names[0]} and {names[1]}"
    nothing = "no process group, no MPI and no variables of a launcher were found"
    return 0, 1, f"default: {nothing}"
