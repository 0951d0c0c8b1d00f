"""The command `mpiter`, and `python -m mpiter`: each wing brings its part.

Guarantees an exit status that a script can rely on: 0 it is done, 1 something was found wrong, 2 it was asked for
wrongly, 130 it was interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TextIO

from . import __version__, audit, doctor
from .errors import MpiterError, OptionError
from .images import pack
from .tuning import command as tune
from .tuning import top

WRONG, MISUSED, INTERRUPTED = 1, 2, 130
_INVALID, _QUOTED = re.compile(r"invalid choice: '([^']*)'"), re.compile(r"[\w'-]+")


def main(arguments: Sequence[str] | None = None) -> int:
    _have_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    if not words:
        parser.print_help()
        return 0
    options, unknown = parser.parse_known_args(words)
    if unknown:
        parser.refuse(words, unknown)
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return WRONG
    except (MpiterError, OSError) as error:
        print(f"mpiter: {error}", file=sys.stderr)
        return MISUSED if isinstance(error, OptionError) else WRONG
    return status


def _have_streams() -> None:
    """Who closed one wants to hear nothing, and a sign that the other side can't show is no reason to end."""
    sys.stderr, sys.stdout = sys.stderr or _nowhere(), sys.stdout or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


class _Parser(argparse.ArgumentParser):
    """Tells what may have been meant by a word that it does not know."""

    commands: Any

    def error(self, message: str) -> NoReturn:
        unknown, known = _INVALID.search(message), _QUOTED.findall(message.partition("choose from")[2])
        near = get_close_matches(unknown[1], [one.strip("'") for one in known], 1) if unknown else []
        super().error(message + (f"; did you mean {near[0]}?" if near else ""))

    def refuse(self, words: Sequence[str], unknown: Sequence[str]) -> NoReturn:
        """These options are unknown to the command that ``words`` begin with."""
        command = next(word for word in words if word in self.commands.choices)
        found = self.commands.choices[command]._option_string_actions
        near = [match for word in unknown for match in get_close_matches(word.partition("=")[0], found, 1)]
        told = f"; did you mean {' '.join(near)}?" if near else f"; `{self.prog} {command} --help` lists what there is."
        options = [word for word in unknown if word.startswith("-")] or unknown
        self.error(f"unknown: {' '.join(options)}{told}")


def _parser() -> _Parser:
    parser = _Parser(prog="mpiter", description="A multi-process batch loader: its tools.")
    parser.add_argument("--version", action="version", version=f"mpiter {__version__}")
    commands: Any = parser.add_subparsers(required=True, metavar="COMMAND")
    parser.commands = commands
    doctor.add_to(commands)
    tune.add_to(commands)
    top.add_to(commands)
    audit.add_to(commands)
    pack.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
