"""What tells our shared memory from any other open file: it has no name any more, and
ours was called by ours.
"""

import os
import stat
from pathlib import Path

_UNNAMED = " (deleted)"


def our_memory(link: str | Path) -> str:
    """What an entry of /proc/self/fd leads to, with its inode, if that is memory of
    ours; else "".
    """
    try:
        target = os.readlink(link)
        name = os.path.basename(target.removesuffix(_UNNAMED))
        # A memfd, or the portable file.
        if not target.startswith("/memfd:mpiter") and not name.startswith("mpiter-"):
            return ""
        found = os.stat(link)
    except OSError:  # it has just been closed
        return ""
    return (
        f"{target} {found.st_ino}"
        if stat.S_ISREG(found.st_mode) and not found.st_nlink
        else ""
    )


def slots_of(it: object) -> object:
    """The slots of an iterator with workers, whose number and bytes no user sees."""
    return it._pump.loop._team.rooms.slots  # type: ignore[attr-defined]
