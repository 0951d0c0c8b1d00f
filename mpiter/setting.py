"""What a hook or a backend may know of the iterator or loader that it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .order.ranks import Shard

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The facts of one iterator or loader; ``check`` of hooks and backends gets them.

    Attributes:
        dataset: the user's dataset.
        batch_size: samples in a batch, 1 without batching; None with a
            ``batch_sampler``, whose batches may differ.
        workers: the number of workers; 0 if the consumer itself fetches.
        workers_name: the name of the argument for it, for messages.
        backend: the name of the backend; "serial" without workers.
        shard: this process's part, where several train together.
        in_order: batches are handed out in the planned order.
        has_keys: the dataset has ``[]``; it isn't read as a stream.

    >>> import mpiter
    >>> class Modest(mpiter.Hook):
    ...     def check(self, setting):
    ...         if (setting.batch_size or 0) > 2:
    ...             raise mpiter.OptionError("at most 2")
    >>> mpiter.batches([1, 2, 3], 3, hooks=Modest())
    Traceback (most recent call last):
    mpiter.errors.OptionError: at most 2
    """

    dataset: Any
    batch_size: int | None
    workers: int
    workers_name: str
    backend: str
    shard: Shard | None
    in_order: bool
    has_keys: bool
