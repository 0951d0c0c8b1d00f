"""The options of an iterator or a loader, checked once, at construction.

Guarantees that numbers out of range, unknown words and options that contradict each
other are refused at construction, by a message that names the argument, the value and
the remedy.  Types are left to type checkers; what can only show later (whether a
dataset can be pickled) is left to the first ``next()``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from ..datasets.columns import InBatches, as_dataset, offered, reads_together, users
from ..datasets.mistaken import refuse_mistaken
from ..errors import OptionError, warn
from ..hook import Hook
from ..machine import cores
from ..order.cursor import WHOLE, Share
from ..order.ranks import Shard, Sharding, ranks_here, shard_for
from ..order.state import SEEDS
from ..pool.backends import Backend, Cargo, backend_for
from ..pool.starting import interrupts_later
from ..rules import BATCHES, Door, OnError, Rules, Skip
from ..samples.batch import settle_as
from ..setting import Setting
from ..worker.underway import ASYNC, ROWS, is_async, refuse_async_within

# What a dataset is taken for that may be columns.  "columns": several arrays in a list,
# a tuple or a dict are.  "samples": those in a list or a tuple are samples.  "dataset":
# none are, since whoever passes it has looked at it.
TakenFor = Literal["columns", "samples", "dataset"]


class _Consumer(Backend):
    """The backend for loading without workers, where the consumer's thread fetches."""

    name = "serial"
    in_process = True
    shares_memory = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one iterator, as ``options_for`` has checked and settled them.

    They say which workers it has, how far ahead these fetch, and how samples are sent.
    """

    dataset: Any
    # Rows at the most.
    batch_size: int
    # Without workers the consumer counts as one.
    workers: int
    fetches_here: bool
    n_prefetch: int
    dataset_timeout: float | None
    sample_timeout: float | None
    # That a worker fetches before it is replaced.
    max_samples: int | None
    seed: int | None
    backend: Backend
    # A word, or an object with ``pack`` and ``unpack``, or a class of such objects.
    serializer: Any
    copy: bool
    on_error: OnError
    run_ahead: int | None
    # The most samples that a worker has under way; None where nothing was said.
    concurrency: int | None
    worker_init: Callable[[Any], Any] | None
    in_order: bool
    ragged: str
    hooks: tuple[Hook, ...]
    # This rank's part.
    shard: Shard | None
    # The dataset is read as a stream, without keys.
    is_stream: bool
    taken_for: TakenFor
    # The name of the argument for the number of workers, for messages.
    workers_name: str
    door: Door

    def changed(self, **given: object) -> Options:
        """Return options with what is ``given`` in place of these, checked anew."""
        now = {name: getattr(self, name) for name in _NAMES}
        now["n_workers"] = now.pop("workers")
        if now.pop("fetches_here"):
            now["n_workers"] = 0
        return options_for(**{**now, **given})

    def setting(self) -> Setting:
        """Return what hooks and backends may know."""
        size: int | None = self.batch_size
        if isinstance(self.dataset, InBatches):
            size = self.dataset.samples_each
            if size is not None:
                size = int(size)
        return Setting(
            dataset=users(self.dataset),
            batch_size=size,
            workers=0 if self.fetches_here else self.workers,
            workers_name=self.workers_name,
            backend=self.backend.name,
            shard=self.shard,
            in_order=self.in_order,
            has_keys=not self.is_stream,
        )

    def loops_hooks(self) -> list[Hook]:
        """Return the hooks for one loop: the user's and the dataset's."""
        hooks = list(self.hooks)
        make = offered(users(self.dataset), "mpiter_hook")
        if make is not None:
            hooks.append(make())
        if not hooks:
            return []
        setting = self.setting()
        found = list[Hook]()
        for hook in hooks:
            one = hook.for_loop(setting)
            if not isinstance(one, Hook):
                raise OptionError(
                    f"for_loop() of the hook {type(hook).__name__} returned "
                    f"{one!r:.60}; it must return a hook, such as itself."
                )
            found.append(one)
        return found

    def share(self) -> Share:
        """Return this rank's part of the order."""
        if self.shard is None:
            return WHOLE
        return self.shard.share()

    def check_drop_last(self) -> None:
        """Refuse ``drop_last`` together with a shard that promises every sample."""
        if self.shard is not None and self.shard.exact:
            raise OptionError(
                "drop_last leaves samples out, and Shard(exact=True) gives each: "
                "leave one of them out."
            )

    def warn_of_disorder(self) -> None:
        """Warn that a state isn't exact if batches are handed out as they finish."""
        if not self.in_order:
            warn(
                "in_order=False: going on from a state, some samples may come twice, "
                "or never; see in_order=True."
            )

    def prepare(self) -> None:
        """Have the backend start what takes time, such as a fork server.

        Workers will be needed soon.
        """
        # Ctrl-C in the middle would leave half a fork server.
        with interrupts_later():
            self.backend.prepare()

    def rules(self, seed: int = 0, as_samples: bool = True) -> Rules:
        """Return the options that the loop and the workers need, as plain values."""
        # Without workers nothing is fetched ahead.
        n_prefetch = self.n_prefetch
        run_ahead = self.run_ahead
        if self.fetches_here:
            n_prefetch = 1
            run_ahead = 0
        most_skipped = None
        if isinstance(self.on_error, Skip):
            most_skipped = self.on_error.most
        concurrency = self.concurrency
        if self.is_stream or reads_together(self.dataset):
            concurrency = 0
        elif concurrency is None:
            concurrency = ASYNC if is_async(self.dataset) else 1
        rows_begun = concurrency
        if isinstance(self.dataset, InBatches):
            rows_begun = min(concurrency, ROWS)
        return Rules(
            workers=self.workers,
            in_process=self.backend.in_process,
            shares_memory=self.backend.shares_memory,
            dear_s=self.backend.dear_s,
            batch_size=self.batch_size,
            n_prefetch=n_prefetch,
            run_ahead=run_ahead,
            in_order=self.in_order,
            skips_errors=self.on_error != "raise",
            most_skipped=most_skipped,
            as_samples=as_samples,
            seed=seed,
            sample_timeout=self.sample_timeout,
            max_samples=self.max_samples,
            concurrency=concurrency,
            rows_begun=rows_begun,
            door=self.door,
        )

    @property
    def cargo(self) -> Cargo:
        """What is sent to the workers."""
        return self.dataset, self.worker_init


_NAMES = tuple(one.name for one in fields(Options))


def options_for(
    dataset: object,
    batch_size: int = 1,
    *,
    n_workers: int | None = None,
    n_prefetch: int = 1,
    dataset_timeout: float | None = 30.0,
    sample_timeout: float | None = 600.0,
    max_samples: int | None = None,
    seed: int | None = None,
    backend: Backend | str = "process",
    serializer: object = "slots",
    copy: bool = False,
    on_error: OnError = "raise",
    run_ahead: int | None = None,
    concurrency: int | None = None,
    worker_init: Callable[[Any], Any] | None = None,
    in_order: bool = True,
    ragged: str = "list",
    hooks: Hook | Sequence[Hook] = (),
    shard: Sharding = None,
    is_stream: bool = False,
    taken_for: TakenFor = "columns",
    workers_name: str = "n_processes",
    door: Door = BATCHES,
) -> Options:
    """Check the user's options, and return them settled.

    ``n_workers`` is None for one on each core, or 0 if the consumer's thread fetches.
    The other arguments are described at ``Options``.
    """
    if taken_for != "dataset":
        refuse_mistaken(dataset, batch_size)
        if taken_for == "columns" or not isinstance(dataset, (list, tuple)):
            dataset = as_dataset(dataset)
    kind = type(dataset)
    if not hasattr(kind, "__getitem__"):
        raise OptionError(
            f"a dataset needs dataset[i], which {kind.__name__} has "
            "not; pass a list, an array or an object with __len__ and "
            "__getitem__. mpiter.DataLoader takes what can only be iterated over."
        )
    whole("batch_size", batch_size, least=1)
    whole(workers_name, n_workers, least=0, optional=True)
    whole("n_prefetch", n_prefetch, least=1)
    whole("run_ahead", run_ahead, least=0, optional=True)
    whole("concurrency", concurrency, least=1, optional=True)
    refuse_async_within(dataset)
    if is_stream and concurrency is not None:
        raise OptionError(
            f"concurrency={concurrency}: a stream is read one sample after the other, "
            "since it has no keys; a dataset with [] may have several under way."
        )
    whole("maxtasksperchild", max_samples, least=1, optional=True)
    function("worker_init", worker_init)
    seconds("dataset_timeout", dataset_timeout)
    seconds("sample_timeout", sample_timeout)
    _check_on_error(on_error)
    settle_as(ragged)
    mine = shard_for(shard)
    if isinstance(serializer, str) and serializer not in ("slots", "packed"):
        raise OptionError(
            f"serializer={serializer!r:.60} is unknown; use 'slots', 'packed' "
            "or an object with pack and unpack."
        )
    # The backend is checked even where there are no workers.
    runs = backend_for(backend)
    if n_workers == 0:
        runs = _Consumer()
    # From here on numbers are Python's: NumPy's overflow, and are no JSON.
    made = Options(
        dataset=dataset,
        batch_size=int(batch_size),
        workers=_number_of_workers(n_workers, runs, mine),
        fetches_here=n_workers == 0,
        n_prefetch=int(n_prefetch),
        dataset_timeout=dataset_timeout,
        sample_timeout=sample_timeout,
        max_samples=_as_pythons(max_samples),
        seed=_settled_seed(seed, mine),
        backend=runs,
        serializer=serializer,
        copy=copy,
        on_error=on_error,
        run_ahead=_as_pythons(run_ahead),
        concurrency=_as_pythons(concurrency),
        worker_init=worker_init,
        in_order=in_order,
        ragged=ragged,
        hooks=_listed(hooks),
        shard=mine,
        is_stream=is_stream,
        taken_for=taken_for,
        workers_name=workers_name,
        door=door,
    )
    # Some backends and hooks can't serve any options.
    setting = made.setting()
    runs.check(setting)
    for hook in made.hooks:
        hook.check(setting)
    return made


def _as_pythons(number: int | None) -> int | None:
    return None if number is None else int(number)


def _check_on_error(on_error: object) -> None:
    if isinstance(on_error, Skip):
        whole("most", on_error.most, least=0, optional=True)
    elif on_error not in ("raise", "skip"):
        raise OptionError(
            f"on_error={on_error!r} is unknown; use 'raise', 'skip' or Skip(most=…)."
        )


def _settled_seed(seed: int | None, shard: Shard | None) -> int | None:
    whole("seed", seed, optional=True)
    if seed is None:
        # Each rank would draw a seed of its own, and all need the same order.
        return None if shard is None else 0
    least, greatest = SEEDS
    if not least <= seed <= greatest:
        bits = int(seed).bit_length()
        raise OptionError(f"seed has {bits} bits; use a whole number of at most 128.")
    return int(seed)


def _number_of_workers(
    given: int | None,
    backend: Backend,
    shard: Shard | None,
) -> int:
    if given is not None:
        # Where there are none, the consumer counts as one.
        return max(1, int(given))
    # With some backends the workers are there already, as ranks of MPI are.
    count = backend.count_workers()
    if count is not None:
        whole(f"{type(backend).__name__}.count_workers()", count, least=1)
        return int(count)
    if shard is None:
        return cores()
    # The ranks on this machine share its cores.
    return max(1, cores() // ranks_here())


def _listed(hooks: Hook | Sequence[Hook]) -> tuple[Hook, ...]:
    """Return the hooks that the user has passed, one or several."""
    if isinstance(hooks, Hook):
        return (hooks,)
    for hook in hooks if isinstance(hooks, (list, tuple)) else (hooks,):
        if not isinstance(hook, Hook):
            raise OptionError(
                f"hooks={hook!r:.60} is no mpiter.Hook; pass one, or a list, such as "
                "[one, another]."
            )
    return tuple(hooks)


def seconds(name: str, value: object) -> None:
    """Refuse a value that is no number of seconds."""
    if value is None:
        return
    if not isinstance(value, Real) or not float(value) > 0:
        raise OptionError(
            f"{name}={value!r} must be a number of seconds above 0, or None."
        )


def function(name: str, value: object) -> None:
    """Refuse a value that is neither a function nor None."""
    if value is not None and not callable(value):
        raise OptionError(f"{name}={value!r:.60} cannot be called; pass a function.")
    if inspect.iscoroutinefunction(value):
        raise OptionError(
            f"{name}={value!r:.60} is `async def`, and nothing awaits it: pass a plain "
            "function.  A client for coroutines is opened on first use, in the loop "
            "that runs `async def __getitem__`."
        )


def flag(name: str, value: object) -> None:
    """Refuse a value that is neither true nor false nor None.

    Python would take any other for true: a word, say.
    """
    if value is None or isinstance(value, (bool, np.bool_)):
        return
    if not isinstance(value, Integral) or value not in (0, 1):
        raise OptionError(f"{name}={value!r:.60} must be True or False.")


def whole(
    name: str,
    value: object,
    least: int | None = None,
    optional: bool = False,
) -> None:
    """Refuse a value that is no whole number, or is less than ``least``.

    ``optional`` allows None.
    """
    if value is None and optional:
        return
    if not isinstance(value, Integral) or isinstance(value, bool):
        wanted = "a whole number"
        if optional:
            wanted += " or None"
        raise OptionError(f"{name}={value!r:.60} must be {wanted}.")
    if least is not None and value < least:
        raise OptionError(f"{name}={value} must be at least {least}.")
