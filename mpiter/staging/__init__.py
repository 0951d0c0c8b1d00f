"""Staging: samples of a slow store, copied to where they are read fast before the workers want them.

::

    consumer process                                         workers
    prefetch thread ── plans ──► staging: Stager's threads   dataset[i] ──► staging: StagedFetch
                                   │ in the iterator's order                  │ a copy?  else the store,
                                   ▼                                          ▼ whose bytes are kept
                                 StagedFetch.copy(i) ──► folder: copies, claims, the bound

It attaches to the core by the dataset's ``source`` and ``fetch``, and as a hook of the engine's.  ``resident`` draws
from what is local first.
"""

from .resident import ResidentFirst
from .staging import Staging, StagingStats

__all__ = ["ResidentFirst", "Staging", "StagingStats"]
