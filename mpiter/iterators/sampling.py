"""How an iterator's epochs follow each other, and in which order each is gone through, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..engine.options import Options, whole
from ..errors import OptionError
from ..machine import memory_total
from ..order.cursor import Pace

_ROW_BYTES = 16  # the least that a sample takes: its number, and its place in the list


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which samples, in the words of Chainer and of ``batches()``."""

    wrap: bool = False  # batches run on into the next epoch
    epochs: int | None = 1  # of a pass
    passes: int = 1
    drop_last: bool = False
    shuffle: bool | None = None
    order_sampler: Any = None

    def __post_init__(self) -> None:
        whole("epochs", self.epochs, least=0, optional=True)
        if self.order_sampler is not None and not callable(self.order_sampler):
            raise OptionError(f"order_sampler={self.order_sampler!r:.60} cannot be called; pass a function.")
        if self.shuffle is not None and self.order_sampler is not None:
            raise OptionError("shuffle and order_sampler exclude each other; leave shuffle at None to use the sampler.")

    def check(self, options: Options) -> None:
        """Can one go through this dataset like that?"""
        length = _length(options.dataset)
        if self.wrap and length == 0 and self.order_sampler is None:
            raise OptionError("the dataset is empty, so it cannot be repeated; pass repeat=False or fill it.")
        if self.wrap and options.batch_size > (most := memory_total() // _ROW_BYTES):
            raise OptionError(
                f"batch_size={options.batch_size}: a batch of more than {most} samples cannot be held in the memory "
                f"there is, however small they are; pass a smaller one, or repeat=False to stop at the end."
            )
        if options.shard is not None and self.order_sampler is not None:
            raise OptionError(
                "shard and order_sampler exclude each other: each rank would ask a sampler of its own, and these need "
                "not agree.  Leave order_sampler out: shuffle and seed= make one order for all ranks."
            )
        if self.drop_last:
            options.check_drop_last(length, options.batch_size)

    def pace(self, batch_size: int) -> Pace:
        """In Python's own types, whatever ``np.int64(32)`` or ``repeat=1`` the user passed."""
        epochs = None if self.epochs is None else int(self.epochs) * self.passes
        return Pace(batch_size, bool(self.wrap), epochs, bool(self.drop_last))

    @property
    def shuffles(self) -> bool:
        return self.order_sampler is None and (self.shuffle is None or bool(self.shuffle))


def _length(dataset: Any) -> int:
    if not hasattr(type(dataset), "__len__"):
        raise OptionError(
            f"a dataset needs len(dataset), which {type(dataset).__name__} has not; pass a list, an array or an object "
            f"with __len__ and __getitem__."
        )
    try:
        return len(dataset)
    except TypeError as error:  # an array without a dimension, say
        raise OptionError(
            f"a dataset needs len(dataset), which this {type(dataset).__name__} has not ({error}); pass a list, an "
            f"array of samples or an object with __len__ and __getitem__."
        ) from error
