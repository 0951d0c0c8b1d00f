"""Tells our shared memory from any other open file.

Its file has no name any more, and had one that begins with "mpiter".
"""

import os
import stat
from pathlib import Path

_UNNAMED = " (deleted)"


def our_memory(link: str | Path) -> str:
    """Return target and inode of an entry of /proc/self/fd that is memory of ours.

    For any other entry return "".
    """
    try:
        target = os.readlink(link)
        name = os.path.basename(target.removesuffix(_UNNAMED))
        # The memory is a memfd, or a file where there are none.
        if not target.startswith("/memfd:mpiter") and not name.startswith("mpiter-"):
            return ""
        found = os.stat(link)
    except OSError:
        # The descriptor has just been closed.
        return ""
    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
        return f"{target} {found.st_ino}"
    return ""


def slots_of(it: object) -> object:
    """Return the slots of an iterator with workers, which no user sees."""
    return it._pump.loop._team.rooms.slots  # type: ignore[attr-defined]
