"""The command `mpiter`, also as `python -m mpiter`: ``doctor``, ``tune``, ``trace``, ``audit``, ``pack`` add theirs.

Guarantees an exit status that a script can rely on: 0 for success, 1 if something is wrong, 2 for wrong arguments, 130
for Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from . import __version__, audit, doctor
from .errors import MpiterError, OptionError
from .images import pack
from .tuning import timeline, tune

WRONG, MISUSED, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # don't fail on characters that the terminal's encoding lacks
        sys.stdout.reconfigure(errors="replace")
    parser = argparse.ArgumentParser(prog="mpiter", description="A multi-process batch loader: its tools.")
    parser.add_argument("--version", action="version", version=f"mpiter {__version__}")
    commands: Any = parser.add_subparsers(metavar="COMMAND")
    for part in (doctor, tune, timeline, audit, pack):
        part.add_to(commands)
    options = parser.parse_args(arguments)
    if "run" not in options:
        parser.print_help()
        return 0
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return WRONG
    except (MpiterError, OSError) as error:
        print(f"mpiter: {error}", file=sys.stderr)
        return MISUSED if isinstance(error, OptionError) else WRONG
    return status


if __name__ == "__main__":
    sys.exit(main())
