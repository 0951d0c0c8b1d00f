"""``mpiter audit``: has each sample come exactly once, over all ranks and restarts?

::

    rank-….receipts ──► reading ──► logs ──► joining ──► epochs ──► verdict ──► command
    a file of a start   checked     columns   whose are   counting   values,     words, JSON,
    of a rank                                 void        of each    and words   exit status
"""

from .joining import audit
from .verdict import Verdict

__all__ = ["Verdict", "audit"]
