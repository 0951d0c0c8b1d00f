"""A dataset of pictures: where each lies, how it is decoded, and what becomes of it, as the dataset protocol has it.

Runs wherever the dataset does.  ``source(i)`` names the file, ``fetch(i)`` brings its bytes, ``read(i)`` decodes them,
``transform(sample)`` augments; ``dataset[i]`` is ``transform(read(i))``, decoded no larger than needed if ``scaled``.
Who keeps pictures elsewhere overrides ``source`` and ``fetch``.
"""

from __future__ import annotations

import operator
from typing import Any, Literal, SupportsIndex

import numpy as np

from ..datasets.store import bytes_at
from ..errors import OptionError
from ..worker.lending import row_for
from .adapt import adapted
from .broken import check_size
from .decoding import Decoding, nowhere
from .pixels import is_pillows, plain


class Pictures:
    """Pictures, with labels or without.

    A sample is ``(picture, label)``, or the picture where there are no labels.
    """

    def __init__(
        self,
        labels: Any,
        transform: Any = None,
        *,
        decoder: str = "auto",
        mode: Literal["RGB", "RGBA", "L", "I;16"] = "RGB",
        dtype: Any = None,
        layout: Literal["HWC", "CHW"] = "HWC",
        scaled: bool = False,
        upright: bool = False,
        **unknown: Any,
    ) -> None:
        for name in unknown:  # of the class that was called, which passes its options on
            raise TypeError(
                f"{type(self).__name__} has no option {name!r}; those of decoding are decoder, mode, dtype, layout, "
                "scaled and upright."
            )
        if layout not in ("HWC", "CHW"):
            raise OptionError(f"layout={layout!r} is unknown; use 'HWC' or 'CHW'.")
        self._decoding = Decoding(decoder, mode, upright)
        self._labels = labels
        self._augment: Any = None if transform is None else adapted(transform)
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._turns = layout == "CHW" and getattr(self._augment, "layout", "HWC") != "CHW"
        self._scaled = scaled
        if scaled and not hasattr(self._augment, "region"):
            raise OptionError(
                "scaled=True needs a transform that says which region it wants, as Resize and RandomResizedCrop do; "
                "put one of them first."
            )

    # -- the dataset protocol ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        raise NotImplementedError

    def source(self, index: int) -> str:
        """Where the bytes lie: the file's path, or its URL."""
        raise NotImplementedError

    def fetch(self, index: int) -> bytes:
        """The file's bytes."""
        source = self.source(index)
        return bytes_at(source, lambda size: check_size(source, size))

    def read(self, index: int, *, in_full: bool = True) -> Any:
        """The sample as it was decoded: an array, in full size.

        Not ``in_full``, for ``transform``: what the decoder gives, no larger than the transform needs if ``scaled``.
        """
        wish = self._augment.region if self._scaled and not in_full else None
        place = self._place if self._augment is None and not in_full else nowhere
        image, region = self._decoding.open(self.fetch(index), self.source(index), wish, place)
        if in_full:
            image = plain(image)
        elif region is not None:
            image = image, region
        return image if self._labels is None else (image, self._label(index))

    def transform(self, sample: Any) -> Any:
        """What becomes of it: the transform, then layout and dtype."""
        if self._labels is None:
            return self._augmented(sample)
        image, label = sample
        return self._augmented(image), label

    def __getitem__(self, index: SupportsIndex) -> Any:
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"there is no sample {at} among {len(self)}")
        at %= len(self)
        is_ours = type(self).read is Pictures.read  # somebody else's takes an index, as the protocol has it
        return self.transform(self.read(at, in_full=False) if is_ours else self.read(at))

    def about(self) -> dict[str, str]:
        """What ``stats()`` says of the dataset."""
        return {"decoder": self._decoding.names}

    @property
    def labels(self) -> Any:
        """Those of all pictures, as an array; None if they have none."""
        return self._labels

    # -- inside --------------------------------------------------------------------------------------------------

    def _place(self, shape: tuple[int, ...]) -> Any:
        """Where in the batch the picture will lie, if it comes as it was decoded."""
        return None if self._turns or self._dtype is not None else row_for(self, shape, np.dtype(np.uint8))

    def _augmented(self, image: Any) -> Any:
        if isinstance(image, tuple):  # with its region
            return self._finished(self._augment.apply(*image))
        return self._finished(image if self._augment is None else self._augment(image))

    def _label(self, index: int) -> Any:
        label = self._labels[index]
        return label.item() if isinstance(label, np.generic) else label

    def _finished(self, image: Any) -> Any:
        if is_pillows(image):
            image = plain(image)
        if not isinstance(image, np.ndarray):
            return image  # a tensor, or what the user has made of it
        if self._turns and image.ndim == 3:
            image = image.transpose(2, 0, 1)
        return np.ascontiguousarray(image, self._dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} pictures, decoded by {self._decoding.names}>"
