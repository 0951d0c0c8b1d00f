"""`mpiter tune module:dataset`: are workers worth having, and how many?  The trials as they come, then the table."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from ..errors import OptionError
from .tune import BUDGET_S, tune

_ABOUT = (
    "Find out how many workers a dataset needs on this machine, if any, by loading from it. MODULE:NAME is a dataset, "
    "or a function or class that makes one, found as `python -m` would find it."
)
_LARGEST = 1 << 53
_MOST_S = 1e9  # no more than one can sleep


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    parser = commands.add_parser("tune", help="are workers worth having, and how many?", description=_ABOUT)
    add = parser.add_argument
    add("dataset", metavar="MODULE:NAME")
    add("--batch-size", type=at_least(1), default=32, metavar="B", help="(default 32)")
    add("--budget", type=above_zero, default=BUDGET_S, metavar="S", help="seconds (default %(default)g)")
    add("--max-workers", type=at_least(0), metavar="N", help="the most to try (default: 8, or twice the cores)")
    add("--backend", choices=("process", "thread"), default="process", help="(default process)")
    add("--ragged", choices=("raise", "list", "pad"), default="raise", help="samples that differ in shape (raise)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    log, tells = logging.getLogger("mpiter.tuning"), logging.StreamHandler()  # of each trial, on standard error
    log.addHandler(tells)
    log.setLevel(logging.INFO)
    bounds = {"max_workers": options.max_workers, "budget_s": options.budget}
    try:
        dataset = named(options.dataset)
        print(tune(dataset, options.batch_size, **bounds, backend=options.backend, ragged=options.ragged))
    finally:
        log.removeHandler(tells)
    return 0


def at_least(bound: int) -> Callable[[str], int]:
    """An argument that is a whole number from ``bound`` on."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is no whole number") from None
        if not bound <= value <= _LARGEST:
            raise argparse.ArgumentTypeError(f"{text:.40} must be at least {bound}, and at most 2^53")
        return value

    return whole


def above_zero(text: str) -> float:
    """An argument that is a number of seconds above zero."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value <= _MOST_S:
        raise argparse.ArgumentTypeError(f"{text} must be above 0, and at most {_MOST_S:g}")
    return value


def named(name: str) -> Any:
    """The dataset that ``module:name`` names, or that calling it returns."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(
            f"{name!r} names no dataset; write module:name, of a dataset or of a function that makes one."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise OptionError(f"{name} cannot be imported: {error}") from error
    if not hasattr(found, attribute):
        nearest = get_close_matches(attribute, vars(found), 1)
        meant = f"; did you mean {module}:{nearest[0]}?" if nearest else ""
        raise OptionError(f"{name} cannot be imported: {module} has no {attribute!r}{meant}")
    made = getattr(found, attribute)
    is_maker = isinstance(made, type) or not hasattr(made, "__getitem__")
    return made() if is_maker and callable(made) else made
