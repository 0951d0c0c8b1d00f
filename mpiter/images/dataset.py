"""A dataset of pictures: where each lies, how it is decoded, and what becomes of it, as the dataset protocol has it.

Runs wherever the dataset does.  ``source(i)`` names the file, ``fetch(i)`` brings its bytes, ``read(i)`` decodes them,
``transform(sample)`` augments; ``dataset[i]`` is ``transform(read(i))``, decoded no larger than needed if ``scaled``.
Who keeps pictures elsewhere overrides ``source`` and ``fetch``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np

from ..errors import OptionError
from .adapt import adapted
from .decoding import Decoding
from .pixels import is_pillows, plain


class Pictures:
    """Pictures, with labels or without.

    A sample is ``(picture, label)``, or the picture where there are no labels.
    """

    def __init__(
        self,
        labels: Sequence[Any] | None,
        transform: Any = None,
        *,
        decoder: str = "auto",
        mode: Literal["RGB", "RGBA", "L", "I;16"] = "RGB",
        dtype: Any = None,
        layout: Literal["HWC", "CHW"] = "HWC",
        scaled: bool = False,
        upright: bool = False,
    ) -> None:
        if layout not in ("HWC", "CHW"):
            raise OptionError(f"layout={layout!r} is unknown; use 'HWC' or 'CHW'.")
        if transform is not None and not callable(transform):
            raise OptionError(f"transform={transform!r:.60} cannot be called; pass a function of a picture.")
        self._decoding = Decoding(decoder, mode, upright)
        self._labels = labels
        self._augment = None if transform is None else adapted(transform)
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._turns = layout == "CHW" and getattr(self._augment, "layout", "HWC") != "CHW"
        self._takes_pillow = getattr(self._augment, "takes_pillow", False)
        self._scaled = scaled
        if scaled and not hasattr(self._augment, "region"):
            raise OptionError(
                "scaled=True needs a transform that says which region it wants, as Resize and RandomResizedCrop do; put "
                "one of them first."
            )

    # -- the dataset protocol ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        raise NotImplementedError

    def source(self, index: int) -> str:
        """Where the bytes lie: the file's path."""
        raise NotImplementedError

    def fetch(self, index: int) -> bytes:
        """The file's bytes."""
        with open(self.source(index), "rb") as file:
            return file.read()

    def read(self, index: int) -> Any:
        """The sample as it was decoded, in full size."""
        return self._sample(self._decoding.picture(self.fetch(index), self.source(index)), index)

    def transform(self, sample: Any) -> Any:
        """What becomes of it: the transform, then layout and dtype."""
        if self._labels is None:
            return self._finished(sample if self._augment is None else self._augment(sample))
        image, label = sample
        return self._finished(image if self._augment is None else self._augment(image)), label

    def __getitem__(self, index: SupportsIndex) -> Any:
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"there is no sample {at} among {len(self)}")
        at %= len(self)
        return self._scaled_item(at) if self._scaled else self.transform(self.read(at))

    def about(self) -> dict[str, str]:
        """What ``stats()`` says of the dataset."""
        return {"decoder": self._decoding.names}

    # -- inside --------------------------------------------------------------------------------------------------

    def _scaled_item(self, index: int) -> Any:
        """As much of the picture as the transform wants."""
        assert self._augment is not None
        image, region = self._decoding.open(self.fetch(index), self.source(index), self._augment.region)
        return self._sample(self._finished(self._augment.apply(image, region)), index)

    def _sample(self, image: Any, index: int) -> Any:
        return image if self._labels is None else (image, self._label(index))

    def _label(self, index: int) -> Any:
        assert self._labels is not None
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
