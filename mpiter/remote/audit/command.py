"""`mpiter audit folder…`: what receipts say of a training, joined over all ranks and restarts.

Guarantees exit status 0 where nothing was lost or repeated, 1 where something was, 2 for what cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from ...asked import at_least
from ...errors import OptionError
from .joining import audit

_ABOUT = """Has each sample of each epoch come exactly once, over all ranks and restarts?
If not, which ones not; and did all go by one order? Reads what receipts="folder"
of any iterator or loader has written, or any other program in that format."""
_NOT_SOUND, _UNREADABLE = 1, 2


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        "audit", help="did each sample come exactly once?", description=_ABOUT, formatter_class=plain
    )
    add = parser.add_argument
    add("folders", nargs="+", metavar="FOLDER", help="of receipts, of one training; or single files")
    add("--epochs", action="store_true", help="a line for each epoch, also where nothing is wrong")
    add("--length", type=at_least(0), metavar="N", help="samples of an epoch, where the logs don't tell")
    add("--json", action="store_true", help="the verdict as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        found = audit(options.folders, options.length)
    except OptionError as error:
        print(f"mpiter audit: {error}", file=sys.stderr)
        return _UNREADABLE
    if options.json:
        counts = {"is_sound": found.is_sound, "missing": found.missing, "twice": found.twice}
        print(json.dumps(counts | asdict(found), indent=1))
    else:
        print("\n".join(found.lines(options.epochs)))
    return 0 if found.is_sound else _NOT_SOUND
