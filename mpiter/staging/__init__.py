"""Staging: samples of a slow store, copied to where they are read fast before the workers want them.

::

    consumer process                                         workers
    prefetch thread ── plans ──► stager: threads             dataset[i] ──► staged: StagedFetch
                                   │ in the iterator's order                  │ a copy?  else the store,
                                   ▼                                          ▼ whose bytes are kept
                                 staged: copy(i) ──────► folder: copies, claims, the bound
                                                         counts: for stats()

It attaches to the core by the dataset's ``source`` and ``fetch``, and as an observer of the plans.  ``resident`` draws
from what is local first.
"""

from .counts import StagingStats
from .resident import ResidentFirst
from .staging import Staging

__all__ = ["ResidentFirst", "Staging", "StagingStats"]
