"""mpiter: a multi-process batch loader.

>>> import mpiter
>>> with mpiter.batches(range(6), 4, n_processes=2, shuffle=False) as stream:
...     print(*stream)
[0 1 2 3] [4 5]

Use ``batches()`` and the iterators in your own loops or with Chainer's trainers, or
``DataLoader``, which has torch's arguments.  ``mpiter.torch`` and ``mpiter.chainer``
must be imported by their names.  Inside:

::

    consumer process                                       workers (any Pool)
    cursor ────► prefetch ───────────► crew ─ map_async ─► fetch
    the order:   _PrefetchLoop,        our Pool: a pair    _fetch_run: dataset[i],
    pure         in a thread           of pipes each       seeded
                   ▲                                         │ writes each sample
                   │ answer, read in the loop's own thread ◄─┘ into its row of shared
                   │                                           memory (a room)
                   ▼ contents: columns on shared memory, or packed rows
              communicator   _Communicator: a queue bounded by n_prefetch
                   ▼
              pump           owns the loop of one of these: starts and closes it,
                             waits, changes position
                   ▼
              iterators      MultiprocessIterator, MultithreadIterator,
                             SerialIterator, batches(): state, epoch_detail
              loaders        DataLoader: an epoch for each iter()
                   ▼
              checkpoint     Checkpoint: loaders, model and other parts, saved in one
                             file between two steps

Data flow along the arrows; each package imports only from those before it.
``docs/design.md`` explains the design.
"""

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .errors import (
    BatchTimeout,
    MpiterError,
    OptionError,
    SampleError,
    StateError,
    WorkerCrashed,
)
from .hook import Hook
from .pool.backends import Backend, Process
from .rules import Skip
from .stats import Stats
from .worker.here import WorkerInfo, get_worker_info
from .worker.seeding import get_rng

# Type checkers see these imports.  Python makes each on first use, since workers import
# this module too and need none of them.
if TYPE_CHECKING:
    from .checkpoint.checkpoint import Checkpoint
    from .datasets.packed import Packed
    from .iterators.iterators import (
        MultiprocessIterator,
        MultithreadIterator,
        SerialIterator,
        batches,
    )
    from .language.mix import Mix
    from .language.pack import Pack
    from .loaders.loader import DataLoader
    from .order.order import Order
    from .order.ranks import Shard
    from .samples.batch import Batch
    from .samples.leaf import Leaf, add_leaf
    from .tuning.tune import tune

_WHEN_ASKED = {
    "Checkpoint": "checkpoint.checkpoint",
    "Packed": "datasets.packed",
    **dict.fromkeys(
        ("MultiprocessIterator", "MultithreadIterator", "SerialIterator"),
        "iterators.iterators",
    ),
    "batches": "iterators.iterators",
    "DataLoader": "loaders.loader",
    "Mix": "language.mix",
    "Pack": "language.pack",
    "Order": "order.order",
    "Shard": "order.ranks",
    "Batch": "samples.batch",
    **dict.fromkeys(("Leaf", "add_leaf"), "samples.leaf"),
    "tune": "tuning.tune",
}

# These modules have public names of their own, and are imported by those who want them.
_DOORS = (
    "errors",
    "hook",
    "language",
    "files",
    "images",
    "staging",
    "tuning",
    "echo",
    "remote",
    "receipts",
    "audit",
    "testing",
    "torch",
    "chainer",
)

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "Batch",
    "BatchTimeout",
    "Checkpoint",
    "DataLoader",
    "Hook",
    "Leaf",
    "Mix",
    "MpiterError",
    "MultiprocessIterator",
    "MultithreadIterator",
    "OptionError",
    "Order",
    "Pack",
    "Packed",
    "Process",
    "SampleError",
    "SerialIterator",
    "Shard",
    "Skip",
    "StateError",
    "Stats",
    "WorkerCrashed",
    "WorkerInfo",
    "add_leaf",
    "batches",
    "get_rng",
    "get_worker_info",
    "tune",
]


def _where(name: str) -> str:
    """Return what an error adds about a name that has to be imported.

    Empty text if it isn't known where the name is.
    """
    if name.startswith("_") or "." in name:
        return ""
    if find_spec(f"mpiter.{name}"):
        return f"; `import mpiter.{name}` makes it known"
    if name == "jax":
        return (
            "; there is no need for one, since JAX's functions take the NumPy arrays "
            "of batches"
        )
    for module in _DOORS:
        # The module is read, not imported: that may take seconds, and some modules need
        # what isn't installed.
        found: Any = find_spec(f"mpiter.{module}")
        source = found.loader.get_source(found.name)
        listed = re.search(r"^__all__ = (\[[^]]*\])", source, re.MULTILINE)
        if listed is not None and f'"{name}"' in listed[1]:
            return f"; it is in mpiter.{module}: `from mpiter.{module} import {name}`"
    return ""


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


# Type checkers must not see this function, since they would accept any name then.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _WHEN_ASKED:
            found = getattr(import_module(f"mpiter.{_WHEN_ASKED[name]}"), name)
            return globals().setdefault(name, found)
        told = f"module 'mpiter' has no attribute {name!r}{_where(name)}"
        # With the name and the module, Python adds which name may be meant.
        raise AttributeError(told, name=name, obj=sys.modules[__name__])
