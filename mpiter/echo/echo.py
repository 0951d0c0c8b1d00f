"""``Echo``: how often each sample is used, which work is done anew for each use, and how far apart the uses lie."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from numbers import Integral, Real
from typing import Any, Literal

from ..datasets.access import Wrapping
from ..engine.composer import Composer
from ..engine.options import Options
from ..errors import OptionError
from .bundles import Bundles
from .factors import MOST, Factors
from .samples import EchoedSamples
from .whole import EchoedBatches

_BUFFER = 1024
_LARGEST = 1000


@dataclass(frozen=True, slots=True)
class Echo:
    """Use each sample ``factor`` times: the option ``echo=`` of iterators, ``batches()`` and ``DataLoader``.

    Args:
        factor: how often, from 1 on; of 1.5, every other sample comes twice.  "auto": as often as fetching a sample
            takes longer than training on it, 1 to 4 times, chosen for each epoch by what was measured before.
        at: "example" transforms what was read once more for each use, with randomness of its own: for datasets with
            ``read(i)`` and ``transform(sample)``.  "augmented" repeats the sample as it is.  "batch" repeats the whole
            batch, at once.
        shuffle_buffer: samples that are kept at the most, 1024 unless told otherwise: the more, the further apart the
            uses of a sample lie.  Not for "batch".

    >>> import mpiter
    >>> with mpiter.batches(range(4), 2, n_processes=0, shuffle=False, echo=Echo(2, at="batch")) as stream:
    ...     print(*stream)
    [0 1] [0 1] [2 3] [2 3]
    """

    factor: float | Literal["auto"] = 2
    at: Literal["example", "augmented", "batch"] = "example"
    shuffle_buffer: int | None = None

    def __post_init__(self) -> None:
        factor, buffer = self.factor, self.shuffle_buffer
        if factor != "auto":
            if isinstance(factor, bool) or not isinstance(factor, Real) or not 1 <= factor <= _LARGEST:
                raise OptionError(f"factor={factor!r:.60} must be a number from 1 to {_LARGEST}, or 'auto'.")
            self._set("factor", int(factor) if factor == int(factor) else float(factor))
        if self.at not in ("example", "augmented", "batch"):
            raise OptionError(f"at={self.at!r:.60} is unknown; use 'example', 'augmented' or 'batch'.")
        if self.at == "batch":
            if buffer is not None:
                raise OptionError("shuffle_buffer is for samples: with at='batch' a batch is repeated at once.")
            return
        buffer = _BUFFER if buffer is None else buffer
        if isinstance(buffer, bool) or not isinstance(buffer, Integral) or buffer < 1:
            raise OptionError(f"shuffle_buffer={buffer!r:.60} must be a whole number of samples, from 1 on.")
        self._set("shuffle_buffer", int(buffer))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    # -- what the engine asks ------------------------------------------------------------------------------------

    def check(self, options: Options) -> None:
        """Can one echo under these options?"""
        dataset = options.dataset
        if not options.in_order:
            raise OptionError("echo needs in_order=True: which batch a sample comes in again follows from the order.")
        if self.at == "batch":
            return
        if isinstance(dataset, Wrapping):
            raise OptionError(
                f"echo at={self.at!r} needs samples, and here a worker makes whole batches of them (collate_fn, "
                f"__getitems__, no batch_size); pass at='batch'."
            )
        if self.at == "example" and not all(callable(getattr(dataset, name, None)) for name in ("read", "transform")):
            raise OptionError(
                f"echo at='example' transforms again what was read once, so the dataset needs read(i) and "
                f"transform(sample), which {type(dataset).__name__} has not; pass at='augmented', or give it both."
            )

    def served(self, dataset: Any) -> Any:
        """What the workers fetch from."""
        return Bundles(dataset, self.most) if self.at == "example" else dataset

    def composer(self, options: Options) -> Composer:
        """Who makes the batches of what is fetched."""
        factors = Factors(self.factor)
        if self.at == "batch":
            return EchoedBatches(repr(self), factors)
        assert self.shuffle_buffer is not None
        return EchoedSamples(repr(self), factors, self.shuffle_buffer, self.most if self.at == "example" else 0)

    @property
    def most(self) -> int:
        """Uses of a sample, at the most."""
        return MOST if self.factor == "auto" else ceil(self.factor)
