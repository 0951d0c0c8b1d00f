"""`mpiter tune module:dataset`: the trials as they come, the table, the curve, and the choice in one sentence.

Guarantees exit status 2 for what was asked wrongly, and 1, with the line of the user's file, for what he raised there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..asked import above_zero, at_least
from ..bar import Bar
from ..datasets.named import named
from ..engine.pilot import Setting
from ..errors import MpiterError, OptionError, told
from .chart import bars, plot, refuse_unless_drawable
from .nwt import ALPHA, ITERATIONS
from .trials import Trial
from .tune import BUDGET_S, Tuned, default_most, tune

_ABOUT = """Find out how many workers a dataset needs on this machine, by loading from it.

MODULE:NAME is a dataset, or a function or class that makes one when it is
called, found as `python -m` would find it. What was found before is not
measured again, unless --no-cache says so."""
_FAILED, _WRONG = 1, 2


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("tune", help="how many workers?", description=_ABOUT, formatter_class=plain)
    add = parser.add_argument
    add("dataset", metavar="MODULE:NAME")
    add("--batch-size", type=at_least(1), default=32, metavar="B", help="(default 32)")
    add("--method", choices=("bracket", "nwt"), default="bracket", help="few trials (default), or Num Worker Tuner's")
    add("--budget", type=above_zero, metavar="S", help=f"seconds (default {BUDGET_S:g}, of nwt no limit)")
    add("--max-workers", type=at_least(0), metavar="N", help="the most to try (default: twice the cores, of nwt once)")
    add("--memory", type=above_zero, metavar="MB", help="that all processes may take (default: nine tenths of what is)")
    add("--n-prefetch", type=at_least(1), metavar="N", help="batches that wait (default 2)")
    add("--backend", choices=("process", "thread"), default="process", help="(default process)")
    add("--ragged", choices=("raise", "list", "pad"), default="raise", help="samples that differ in shape (raise)")
    add("--no-shuffle", dest="shuffle", action="store_false", help="read in sequence")
    add("--alpha", type=above_zero, default=ALPHA, metavar="S", help=f"of nwt: what counts (default {ALPHA:g} s)")
    add("--iterations", type=at_least(1), default=ITERATIONS, metavar="N", help=f"of nwt (default {ITERATIONS})")
    add("--no-cache", dest="cache", action="store_false", help="measure, whatever was found before, and keep nothing")
    add("--plot", type=Path, metavar="FILE", help="time and memory by workers, as .svg, .png or .pdf (by matplotlib)")
    add("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        if options.plot:
            refuse_unless_drawable(options.plot)
        dataset = named(options.dataset)
        with _beside_the_answer() if options.json else nullcontext():
            found = _tuned(dataset, options)
    except OptionError as error:
        print(f"mpiter tune: {error}", file=sys.stderr)
        return _WRONG
    except MpiterError:
        raise
    except Exception as error:  # the user's own
        print(f"mpiter tune: {options.dataset} raised {told(error)}", file=sys.stderr)
        return _FAILED
    if options.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        print(found.columns(), *bars(found.table, found.chosen), found.sentence, sep="\n")
    if options.plot:
        plot(options.plot, found.table, found.chosen, options.dataset, found.batches)
    return 0


@contextmanager
def _beside_the_answer() -> Iterator[None]:
    """What the dataset prints, in workers too, goes to the other stream."""
    sys.stdout.flush()
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(answers, 1)
        os.close(answers)


def _tuned(dataset: Any, options: argparse.Namespace) -> Tuned:
    most = default_most(options.method) if options.max_workers is None else options.max_workers
    budget_s = BUDGET_S if options.budget is None and options.method == "bracket" else options.budget
    began, done = time.monotonic(), 0
    with Bar("tune", most + 1 if budget_s is None else round(budget_s)) as bar:

        def told(setting: Setting, trial: Trial | None) -> None:
            nonlocal done
            done += trial is not None
            doing = f"{setting.workers} workers" + (f": {1e3 * trial.batch_s:.3g} ms a batch" if trial else "")
            bar.at(done if budget_s is None else round(time.monotonic() - began), doing)

        return tune(
            dataset,
            options.batch_size,
            method=options.method,
            max_workers=most,
            budget_s=budget_s,
            memory_bytes=None if options.memory is None else int(options.memory * 1e6),
            n_prefetch=options.n_prefetch,
            alpha=options.alpha,
            iterations=options.iterations,
            cache=options.cache,
            progress=told,
            backend=options.backend,
            ragged=options.ragged,
            shuffle=options.shuffle,
        )
