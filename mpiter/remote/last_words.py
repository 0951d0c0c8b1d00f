"""What is said when this process is killed: by a shell that waits for its end.

A launcher that kills all ranks with SIGKILL leaves nobody time to say anything.  The shell is in a session of its own,
where the launcher does not look; it ends with this process, in silence if that ends in the ordinary way.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading

_SHELL = 'trap "" INT TERM HUP; read -r _ || printf "%s\\n" "$0" >&2'  # a line means that all is well
_keeper: subprocess.Popen[bytes] | None = None
_whose = 0  # the process that has it
_one_at_a_time = threading.Lock()  # guards both: iterators begin in threads of their own


def keep(text: str) -> None:
    """Have this said, on standard error; what was to be said before stays."""
    global _keeper, _whose
    with _one_at_a_time:
        if _keeper is None and os.name == "posix":
            _whose = os.getpid()
            _keeper = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, f"mpiter: {text}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            atexit.register(forget)


def forget() -> None:
    """All is well, unless it is a fork of the process that says so."""
    global _keeper
    with _one_at_a_time:
        keeper, _keeper = _keeper, None
    if keeper is not None and _whose == os.getpid():
        keeper.communicate(b"\n")
