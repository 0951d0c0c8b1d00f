"""What makes no sense together among a loader's options: refused at construction, with the remedy.

Pure.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ..engine.pilot import auto
from ..errors import OptionError


def check_workers(num_workers: Any, timeout: Any, persistent_workers: Any, worker_init_fn: Any) -> None:
    """Refuse what makes no sense together."""
    is_whole = isinstance(num_workers, Integral) and not isinstance(num_workers, bool) and int(num_workers) >= 0
    if auto(num_workers) is None and not is_whole:
        raise OptionError(f"num_workers={num_workers!r:.60} must be a whole number, 0 for none.")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise OptionError(f"timeout={timeout!r:.60} must be a number of seconds, 0 for none.")
    if worker_init_fn is not None and not callable(worker_init_fn):
        raise OptionError(f"worker_init_fn={worker_init_fn!r:.60} cannot be called; pass a function.")
    if num_workers == 0 and timeout:
        raise OptionError("timeout needs workers: with num_workers=0 the loop itself fetches.")
    if num_workers == 0 and persistent_workers:
        raise OptionError("persistent_workers=True needs workers: num_workers is 0.")


def check_batches(
    batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any, collate_fn: Any
) -> None:
    """Likewise."""
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None and not (hasattr(given, "__iter__") or hasattr(given, "__getitem__")):
            raise OptionError(f"{name}={given!r:.60} cannot be iterated over; pass a list, or anything of the kind.")
    if sampler is not None and shuffle:
        raise OptionError("sampler and shuffle=True exclude each other; shuffle in the sampler.")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise OptionError("batch_sampler excludes batch_size, shuffle, sampler and drop_last; it says all of it.")
    if batch_size is None and drop_last:
        raise OptionError("batch_size=None makes no batches, so there is none for drop_last to leave out.")
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise OptionError(f"batch_size={batch_size!r:.60} must be a whole number of at least 1, or None.")
    if collate_fn is not None and not callable(collate_fn):
        raise OptionError(f"collate_fn={collate_fn!r:.60} cannot be called; pass a function.")


def check_sharing(dataset: Any, is_stream: bool, *given: Any) -> None:
    """Refuse what ranks cannot share in one order."""
    if is_stream:
        raise OptionError(
            f"shard needs a dataset with [] and len(), and {type(dataset).__name__} is read as a stream; have its "
            f"__iter__ yield this rank's part."
        )
    for draws in given:  # a sampler, a batch_sampler, a generator
        if draws is not None:
            raise OptionError(
                f"shard goes without sampler, batch_sampler and generator, and one is {draws!r:.60}: each rank's would "
                f"draw by itself.  shuffle=True and seed= make one order for all ranks."
            )


def check_skipping(dataset: Any, is_stream: bool, on_error: Any) -> None:
    """Refuse to leave out what cannot be gone by."""
    if is_stream and on_error != "raise":
        raise OptionError(
            f"on_error={on_error!r:.60} leaves out what dataset[i] raises for, and {type(dataset).__name__} is read as "
            f"a stream, which may be at its end once it has raised; have its __iter__ catch the error."
        )


def check_receipts(is_stream: bool) -> None:
    """Refuse to note what has no name."""
    if is_stream:
        raise OptionError(
            "receipts note the keys of samples, and what is read as a stream has none; pass a dataset with [] and "
            "len(), or note what comes yourself (mpiter.receipts.Receipts)."
        )
