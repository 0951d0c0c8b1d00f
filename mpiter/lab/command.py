"""`mpiter lab …`: an experiment each, all of them, a report of a folder, a comparison of two.

Guarantees that what can be known to be wrong is refused before anything is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..asked import above_zero, at_least
from .compare import compared
from .experiments import ALL, EXPERIMENTS, Experiment
from .laboratory import measure, write_report
from .results import folder_of
from .text import drawn, wrapped

FOLDER = Path("mpiter-lab")
_HELP = "find out what loading costs here"
_ABOUT = """Find out what loading costs on this machine, and where the time goes.

`mpiter lab quick` takes three minutes and ends with a sentence of advice. The
others take longer and keep what they find as JSON and CSV in the folder that
--out names. Each runs its rows round by round, each in a process of its own.
`mpiter lab report` makes a page of a folder, `mpiter lab compare` says what
changed between two."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser], small: bool) -> None:
    """The subcommand; with `small`, experiments default to a few rows."""
    plain = argparse.RawDescriptionHelpFormatter
    lab = commands.add_parser("lab", help=_HELP, description=_ABOUT, formatter_class=plain)
    _add_experiments(lab.add_subparsers(required=True, metavar="EXPERIMENT"), small)


def _add_experiments(commands: argparse._SubParsersAction[argparse.ArgumentParser], small: bool) -> None:
    for name, experiment in EXPERIMENTS.items():
        parser = commands.add_parser(name, help=experiment.HEADING, description=experiment.ABOUT, allow_abbrev=False)
        add_arguments(parser, experiment, small)
        parser.set_defaults(run=_run_one, experiment=experiment)
    everything = commands.add_parser(
        "all",
        help="All of these but quick, and the report",
        description="All experiments but `quick`, whose question `workers` answers at length, and a report of them.",
        allow_abbrev=False,
    )
    add = _add_common(everything, small)
    add("--seconds", type=above_zero, help="timed part of each turn, but those of `workers`, which count batches")
    everything.set_defaults(run=_run_all)
    report = commands.add_parser("report", help="A page of a folder's results", description="Write DIR/report.html.")
    report.add_argument("folder", type=Path, metavar="DIR")
    report.set_defaults(run=_report)
    compare = commands.add_parser(
        "compare",
        help="What changed between two folders",
        description="What changed between two folders of results, beyond the noise.",
    )
    compare.add_argument("before", type=Path, metavar="A")
    compare.add_argument("after", type=Path, metavar="B")
    compare.set_defaults(run=_compare)


def add_arguments(parser: argparse.ArgumentParser, experiment: Experiment, small: bool) -> None:
    """What one experiment can be told."""
    experiment.arguments(parser.add_argument)
    seconds = experiment.SMALL_SECONDS if small else experiment.SECONDS
    add = _add_common(parser, small, experiment.FULL)
    if seconds is not None:
        add("--seconds", type=above_zero, default=seconds, help=f"timed part of each turn (default {seconds:g})")
    parser.set_defaults(**(experiment.SMALL if small else experiment.FULL))


def _add_common(
    parser: argparse.ArgumentParser, small: bool, own: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., object]:
    out, minutes = own.get("out", FOLDER) or "none, and nothing is kept", own.get("minutes", "no limit")
    add: Callable[..., object] = parser.add_argument_group("every experiment").add_argument
    add("--out", type=Path, default=FOLDER, metavar="DIR", help=f"folder of the results (default: {out})")
    add("--force", action="store_true", help="over results that are there already")
    add("--seed", type=at_least(0), default=0, help="of samples, files and orders (default 0)")
    add("--rounds", type=at_least(1), default=2 if small else 5, help="(default %(default)s; one gives no ratios)")
    add("--minutes", type=above_zero, metavar="M", help=f"begin nothing that would end later (default: {minutes})")
    add("--timeout", type=above_zero, default=180.0, metavar="S", help="give a turn up then (default: %(default)g s)")
    add("--small", action="store_true", help="a few rows and short turns: tries it out in a minute or less")
    return add


def _run_one(options: argparse.Namespace) -> int:
    return measure([(options.experiment, options)], options.minutes)


def _run_all(options: argparse.Namespace) -> int:
    status = measure([(each, _options_of(each, options)) for each in ALL.values()], options.minutes)
    if any((options.out / f"{name}.json").exists() for name in EXPERIMENTS):
        print(write_report(options.out))
    return status


def _options_of(experiment: Experiment, common: argparse.Namespace) -> argparse.Namespace:
    """What `mpiter lab all` tells one experiment: its own defaults, and what was said of all."""
    parser = argparse.ArgumentParser()
    add_arguments(parser, experiment, common.small)
    own = vars(parser.parse_args([]))
    given = {name: value for name, value in vars(common).items() if value is not None and name in own}
    return argparse.Namespace(**{**own, **given})


def _report(options: argparse.Namespace) -> int:
    print(write_report(options.folder))
    return 0


def _compare(options: argparse.Namespace) -> int:
    found = compared(folder_of(options.before), folder_of(options.after))
    for remark in found.remarks:
        print(wrapped(remark, "note"))
    for table in found.tables:
        print("\n" + "\n".join(drawn(table)))
    print(f"\n{wrapped(found.says)}")
    return 0
