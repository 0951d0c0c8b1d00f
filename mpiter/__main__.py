"""The command `mpiter`, and `python -m mpiter`: each wing brings its part.

Guarantees an exit status that a script can rely on: 0 it is done, 1 something was found wrong, 2 it was asked for
wrongly, 130 it was interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from . import __version__
from .doctor import command as doctor
from .errors import MpiterError
from .images import pack_command as pack
from .lab import command as lab
from .remote.audit import command as audit
from .tuning import command as tune
from .tuning import explain_command as explain
from .tuning import top

WRONG, INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    _have_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(words)
    if not words:
        parser.print_help()
        return 0
    options = parser.parse_args(words)
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return WRONG
    except (MpiterError, OSError) as error:
        print(f"mpiter: {error}", file=sys.stderr)
        return WRONG
    return status


def _have_streams() -> None:
    """Who closed one wants to hear nothing, and a sign that the other side can't show is no reason to end."""
    sys.stderr, sys.stdout = sys.stderr or _nowhere(), sys.stdout or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mpiter", description="A multi-process batch loader: its tools.")
    parser.add_argument("--version", action="version", version=f"mpiter {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor.add_to(commands)
    tune.add_to(commands)
    explain.add_to(commands)
    top.add_to(commands)
    audit.add_to(commands)
    pack.add_to(commands)
    lab.add_to(commands, small="--small" in words)
    return parser


if __name__ == "__main__":
    sys.exit(main())
