"""`mpiter doctor`: the findings as text or JSON; exit status 1 if mpiter doesn't work here as it should."""

from __future__ import annotations

import argparse
import json
import sys

from .examine import SUBJECTS, as_json, as_text, exit_code, findings

_ABOUT = "Examine this machine: start methods, shared memory, limits, cores, decoders, packages, GPU."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    parser = commands.add_parser("doctor", help="is this machine fit? what to do if not", description=_ABOUT)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    found = list(findings(_say_what if sys.stderr.isatty() else None))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(json.dumps(as_json(found), indent=1) if options.json else as_text(found))
    return exit_code(found)


def _say_what(subject: str) -> None:
    at = SUBJECTS.index(subject) + 1
    print(f"\r{at}/{len(SUBJECTS)} {subject}\033[K", end="", file=sys.stderr, flush=True)
