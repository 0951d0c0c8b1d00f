"""Data echoing: each sample that was read is used several times, where reading is slower than training.

::

    the engine ──► fresh samples, each once ──► composer ──► batches, in the echoed order
                   (or bundles of augmentations)   held until the last repeat is out

``Echo`` is what the iterators, ``batches()`` and ``DataLoader`` take as ``echo=``; it makes the composer that stands
between what the engine delivers and what ``next()`` hands out.  Nothing is fetched twice for an echo.
"""

from .echo import Echo

__all__ = ["Echo"]
