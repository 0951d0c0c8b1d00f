"""`mpiter explain run.json`: what a recorded run would gain by what; `--verify` carries the first one out."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..asked import above_zero
from ..datasets.named import named
from ..errors import MpiterError, OptionError, told
from ..iterators.generate import batches
from .advice import rate_told
from .capacity import measured, rounds_per_s, work
from .explain import Explanation, WhatIf, explain, headroom
from .simulation import Service
from .trace import read

_ABOUT = (
    "Replay what a trace has recorded (trace='run.json' of any iterator or loader), as it was and with other workers, "
    "another n_prefetch, cheaper samples: what would help, by how much?"
)
_SECONDS = 5.0
_FAR = 0.25
_FAILED = 1
_BACKENDS = {"process": "process", "thread": "thread", "serial": "process"}  # of the run, and of what is carried out


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    parser = commands.add_parser("explain", help="what would a recorded run gain by what?", description=_ABOUT)
    parser.add_argument("trace", help="the file that trace= has written")
    parser.add_argument("--verify", metavar="MODULE:DATASET", help="carry the first one out, and measure it")
    about_seconds = "that --verify measures (default %(default)s)"
    parser.add_argument("--seconds", type=above_zero, default=_SECONDS, help=about_seconds)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    found = explain(read(options.trace), measured())
    print("\n".join(lines(found)))
    if options.verify:
        try:
            print("\n".join(verified(found, _dataset(options.verify), options.seconds)))
        except MpiterError:
            raise
        except Exception as error:  # the user's own
            print(f"mpiter explain: {options.verify} raised {told(error)}", file=sys.stderr)
            return _FAILED
    return 0


def lines(found: Explanation) -> Iterator[str]:
    """The table, what was measured first."""
    run = found.run
    rate = run.samples_per_s
    yield f"{'':42}samples/s   waited     gain"
    yield f"{'measured: ' + run.case.told:42}{rate_told(rate):>9}{run.waited:>9.0%}"
    off = found.replayed.samples_per_s / rate - 1
    yield _line(found.replayed, f"replayed ({off:+.0%})")
    for one in found.what_ifs:
        yield _line(one, one.name) + f"{one.gain:>+9.0%}"
    for what in run.not_replayed:
        yield f"Not replayed: {what}."
    if abs(off) > _FAR:
        yield "The replay is far off; what it says of other circumstances is no better."
    yield f"With data for nothing the trainer would be {headroom(run):.2f} times as fast."


def _line(one: WhatIf, name: str) -> str:
    return f"{name:42}{rate_told(one.samples_per_s):>9}{one.waited:>9.0%}"


def verified(found: Explanation, dataset: Any, seconds: float) -> Iterator[str]:
    """Predicted beside measured, of what gains most by options alone."""
    best = found.best
    if best is None:
        yield "Nothing that options can change would gain more than 3%, so there is nothing to carry out."
        return
    backend = _BACKENDS.get(found.run.backend)
    if backend is None:
        yield f"Nothing is carried out: workers of the backend {found.run.backend!r} can't be made by its name alone."
        return
    if best.case.each != 1:
        yield "Nothing is carried out: workers made the batches (collate_fn), of which the dataset alone says nothing."
        return
    rate = carried_out(dataset, best, seconds, backend)
    error = best.samples_per_s / rate - 1
    yield f"{best.name}: {rate_told(best.samples_per_s)} samples/s predicted, {rate_told(rate)} measured ({error:+.0%})"


def carried_out(dataset: Any, what: WhatIf, seconds: float, backend: str = "process") -> float:
    """Samples a second of the dataset under these options, by a trainer whose steps take as long as those recorded."""
    case, load = what.case, what.case.load
    (workers, n_prefetch), ahead = case.setting, case.run_ahead
    how: dict[str, Any] = {"n_processes": workers, "n_prefetch": n_prefetch, "run_ahead": ahead, "backend": backend}
    how |= {"in_order": case.in_order, "epochs": None, "ragged": "list"}
    pace = rounds_per_s()
    with batches(dataset, load.batch_size, **how) as it:
        steps = itertools.cycle(load.steps)
        began = warm = time.perf_counter()
        count = 0
        while time.perf_counter() < began + seconds or count < 2:
            next(it)
            if warm == began and time.perf_counter() > began + 0.3 * seconds:
                warm, count = time.perf_counter(), 0
            _step(next(steps), pace)
            count += 1
        return load.batch_size * count / (time.perf_counter() - warm)


def _step(step: Service, pace: float) -> None:
    """As a trainer would: at work, then waiting."""
    work(pace * step.cpu_s)
    time.sleep(step.wait_s)


def _dataset(name: str) -> Any:
    found = named(name)
    if not hasattr(type(found), "__getitem__"):
        raise OptionError(f"{name} is of type {type(found).__name__}, which has no samples; name a dataset.")
    return found
