"""`mpiter tune module:dataset`: are workers worth having, and how many?  The trials as they come, then the table."""

from __future__ import annotations

import argparse
import logging

from ..asked import above_zero, at_least
from ..datasets.named import named
from .tune import BUDGET_S, tune

_ABOUT = (
    "Find out how many workers a dataset needs on this machine, if any, by loading from it. MODULE:NAME is a dataset, "
    "or a function or class that makes one, found as `python -m` would find it."
)


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
