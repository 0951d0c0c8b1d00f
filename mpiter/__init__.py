"""mpiter: a multi-process batch loader.

>>> import mpiter
>>> with mpiter.batches(range(6), 4, n_processes=2, shuffle=False) as stream:
...     print(*stream)
[0 1 2 3] [4 5]

``batches()`` and the iterators for loops of your own and for Chainer's trainers, ``DataLoader`` for who knows torch's;
``mpiter.torch``, ``mpiter.chainer`` and ``mpiter.jax`` are imported by their names.  Inside:

::

    consumer process                                                     workers (any Pool)
    cursor ────► prefetch ──────────────► crew ───────── map_async ────► fetch
    order: pure  _PrefetchLoop thread     our Pool: a pipe pair each     _fetch_run: registry[dataset](i), seeded
                   ▲                                                       │ a pen writes the sample
                   │ ticket, in the loop's own thread ◄────────────────────┘ into its row of a room
                   ▼ contents (leased columns, or packed rows in place)
              communicator   _Communicator: bounded by n_prefetch, two conditions, one run
                   ▼
              pump           launch, wait, go elsewhere, close: what these own, one each
                   ▼
              iterators      MultiprocessIterator, MultithreadIterator, SerialIterator, batches(): state, epoch_detail
              loaders        DataLoader: an epoch for each iter()
              checkpoint     Checkpoint: the place, the model and the rest, saved between two steps

Arrows are the way of the data; each package imports only from those before it.  ``docs/design.md`` is the tour.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .engine.pilot import Auto, Wings
from .errors import BatchTimeout, MpiterError, OptionError, SampleError, StateError, WorkerCrashed
from .errors import __all__ as _rarer_errors
from .pool.backends import BY_NAME, Process
from .rules import Skip
from .stats import Stats
from .worker.here import WorkerInfo, get_worker_info
from .worker.seeding import get_rng

if TYPE_CHECKING:  # else imported when it is asked for: workers, which import this too, need none of it
    from .checkpoint import Checkpoint
    from .datasets.packed import Packed
    from .iterators.iterators import MultiprocessIterator, MultithreadIterator, SerialIterator, batches
    from .loaders.loader import DataLoader
    from .loaders.ragged import Buckets, pad
    from .order.ranks import Shard
    from .samples.batch import Batch
    from .tuning.tune import tune

_WHEN_ASKED = {
    "Checkpoint": "checkpoint",
    "Packed": "datasets.packed",
    **dict.fromkeys(("MultiprocessIterator", "MultithreadIterator", "SerialIterator"), "iterators.iterators"),
    "batches": "iterators.iterators",
    "DataLoader": "loaders.loader",
    **dict.fromkeys(("Buckets", "pad"), "loaders.ragged"),
    "Shard": "order.ranks",
    "Batch": "samples.batch",
    "tune": "tuning.tune",
}

__version__ = "0.1.0"

__all__ = [
    "Auto",
    "Batch",
    "BatchTimeout",
    "Buckets",
    "Checkpoint",
    "DataLoader",
    "MpiterError",
    "MultiprocessIterator",
    "MultithreadIterator",
    "OptionError",
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
    "batches",
    "get_rng",
    "get_worker_info",
    "pad",
    "tune",
]


def _from_wing(module: str, name: str) -> Callable[..., Any]:
    """A function that imports a wing when it is called, and makes something of it."""
    return lambda *given: getattr(import_module(f"mpiter.{module}"), name)(*given)


Wings.pilot = _from_wing("tuning.auto", "AutoPilot")
Wings.trace, Wings.receipts = _from_wing("tuning.trace", "tracer"), _from_wing("receipts", "Receipts")
BY_NAME["ray"], BY_NAME["mpi"] = _from_wing("remote.ray", "Ray"), _from_wing("remote.mpi", "MPI")

_ELSEWHERE = {  # names that are looked for here, and lie in a door or a wing
    **dict.fromkeys(_rarer_errors, "errors"),
    **dict.fromkeys(("DevicePrefetcher", "StatefulDataLoader", "tensors"), "torch"),
    **dict.fromkeys(("LoaderReport", "converter"), "chainer"),
    **dict.fromkeys(("Compose", "Crop", "Flip", "ImageFolder", "ImageList", "Normalize", "PackedFolder"), "images"),
    **dict.fromkeys(("BrokenImage", "BadArchive", "RandomResizedCrop", "Region", "Resize"), "images"),
    **dict.fromkeys(("ResidentFirst", "Staging", "StagingStats"), "staging"),
    **dict.fromkeys(("MPI", "Ray"), "remote"),
    "Echo": "echo",
    "Live": "tuning",
    "Receipts": "receipts",
    "audit": "audit",
}
_DOORS = ("chainer", "chainer_compat", "device", "echo", "images", "jax", "remote", "staging", "torch")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # to which it would mean that any name will do

    def __getattr__(name: str) -> object:
        if name in _WHEN_ASKED:
            found = getattr(import_module(f"mpiter.{_WHEN_ASKED[name]}"), name)
            return globals().setdefault(name, found)
        from difflib import get_close_matches

        nearest = get_close_matches(name, __all__, 1)
        remedy = f"; did you mean {nearest[0]!r}?" if nearest else ""
        if name in _ELSEWHERE:
            remedy = f": it lies in mpiter.{_ELSEWHERE[name]} (`from mpiter.{_ELSEWHERE[name]} import {name}`)"
        remedy = f"; `import mpiter.{name}` makes it known" if name in _DOORS else remedy
        raise AttributeError(f"module 'mpiter' has no attribute {name!r}{remedy}")
