"""Staging: copies samples of a slow store to a local folder, the *tier*, in advance.

::

    consumer process                                workers
    prefetch thread                                 dataset[i]
      │ plans                                         │
      ▼                                               ▼
    staging: Stager's threads                       staging: StagedFetch
      │ in the iterator's order                       │ reads the copy, or the store,
      ▼                                               ▼ and keeps a copy
    StagedFetch.copy(i) ──────────────────────────► folder: copies, locks, the capacity

It attaches to the core by the dataset's ``source`` and ``fetch``, and a hook.
``resident`` draws local samples first.
"""

from .resident import ResidentFirst
from .staging import Staging, StagingStats

__all__ = ["ResidentFirst", "Staging", "StagingStats"]
