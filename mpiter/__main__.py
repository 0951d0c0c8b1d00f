"""The command `mpiter`, also as `python -m mpiter`.

``doctor``, ``tune``, ``trace``, ``audit`` and ``pack`` add their commands.  Guarantees
an exit status that a script can rely on: 0 for success, 1 if something is wrong, 2 for
wrong arguments, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from . import __version__, audit, doctor
from .errors import MpiterError, OptionError
from .images import pack
from .tuning import timeline, tune

WRONG = 1
MISUSED = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    # A terminal's encoding may lack some of the characters that are printed here, and
    # the command must not fail for that.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    parser = argparse.ArgumentParser(
        prog="mpiter", description="A multi-process batch loader: its tools."
    )
    parser.add_argument("--version", action="version", version=f"mpiter {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for part in (doctor, tune, timeline, audit, pack):
        part.add_to(commands)
    words = arguments
    if words is None:
        words = sys.argv[1:]
    _hint(words, parser, commands.choices)
    options = parser.parse_args(arguments)
    if "run" not in options:
        parser.print_help()
        return 0
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has ended.  Python would complain of that once
        # more when it flushes the output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return WRONG
    except (MpiterError, OSError) as error:
        print(f"mpiter: {error}", file=sys.stderr)
        if isinstance(error, OptionError):
            return MISUSED
        return WRONG
    return status


def _hint(
    words: Sequence[str],
    parser: argparse.ArgumentParser,
    commands: dict[str, argparse.ArgumentParser],
) -> None:
    """End the program if a word is a misspelt command or option.

    The message has the one that was meant, which argparse's has not.
    """
    if not words or words[0].startswith("-"):
        return
    if words[0] not in commands:
        _refuse(parser, "command", words[0], commands)
        return
    command = commands[words[0]]
    options = re.findall(r"--[\w-]+", command.format_help())
    for word in words[1:]:
        name = word.partition("=")[0]
        # argparse takes the beginning of an option for the option.
        is_known = any(option.startswith(name) for option in options)
        if name.startswith("--") and not is_known:
            _refuse(command, "option", name, options)


def _refuse(
    parser: argparse.ArgumentParser, kind: str, word: str, known: Iterable[str]
) -> None:
    for near in get_close_matches(word, known, 1, 0.7):
        parser.error(f"there is no {kind} {word}; did you mean {near}?")


if __name__ == "__main__":
    sys.exit(main())
