"""mpiter: a multi-process batch loader.

::

    consumer process                                                     workers (any Pool)
    cursor ────► prefetch ──────────────► crew ───────── map_async ────► fetch
    order: pure  _PrefetchLoop thread      our Pool: a pipe pair each     _fetch_run: registry[dataset](i), seeded
                   ▲                                                       │ a pen writes the sample
                   │ ticket, in the loop's own thread ◄────────────────────┘ into its row of a room
                   ▼ contents (leased columns, or packed rows in place)
              communicator    _Communicator: bounded by n_prefetch, two conditions, generations
                   ▼
              iterator        MultiprocessIterator / MultithreadIterator / SerialIterator: state, epoch_detail, stats
                   ▼
              generate        batches(): stacked arrays

Boxes carry the modules' names; imports go the same way.  ``docs/design.md`` is the tour.
"""

from .backends import Process, Serial, Thread
from .batch import Batch
from .errors import (
    BatchTimeout,
    DatasetNotPicklable,
    IteratorClosed,
    MpiterError,
    OptionError,
    SampleError,
    SampleNotSendable,
    SharedMemoryFull,
    StateError,
    WorkerCrashed,
    WorkerStartError,
)
from .generate import batches
from .info import WorkerInfo, get_worker_info
from .iterators import MultiprocessIterator, MultithreadIterator, SerialIterator
from .loader import DataLoader
from .ragged import Buckets, pad
from .seeding import get_rng
from .stats import Stats

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchTimeout",
    "Buckets",
    "DataLoader",
    "DatasetNotPicklable",
    "IteratorClosed",
    "MpiterError",
    "MultiprocessIterator",
    "MultithreadIterator",
    "OptionError",
    "Process",
    "SampleError",
    "SampleNotSendable",
    "Serial",
    "SerialIterator",
    "SharedMemoryFull",
    "StateError",
    "Stats",
    "Thread",
    "WorkerCrashed",
    "WorkerInfo",
    "WorkerStartError",
    "batches",
    "get_rng",
    "get_worker_info",
    "pad",
]
