"""The command line: `mpiter lab …` and `mpiter doctor`.

Runs in the driver.  Guarantees an exit status that a script can rely on: 0 it is done, 1 something was found wrong, 2
it was asked for wrongly, 130 it was interrupted; and that an interrupted experiment has kept what it had.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import mpiter

from ..errors import MpiterError
from . import doctor
from .bar import Bar
from .compare import compared
from .experiments import EXPERIMENTS, Experiment
from .laboratory import measure, write_report
from .results import folder_of
from .text import drawn

DONE, WRONG, INTERRUPTED = 0, 1, 130
FOLDER = Path("mpiter-lab")
LAB = """Find out what loading costs on this machine, and where the time goes.

Each experiment runs its rows round by round, each in a process of its own, and keeps what it finds as JSON and CSV in
the folder that --out names. `mpiter lab report` makes a page of a folder, `mpiter lab compare` says what changed
between two."""


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser("--small" in words).parse_args(words)
    try:
        status: int = options.run(options)
    except MpiterError as error:
        print(f"mpiter: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has seen enough
        sys.stderr.close()
        return WRONG
    return status


def _parser(small: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mpiter", description="A multi-process batch loader: its tools.")
    parser.add_argument("--version", action="version", version=f"mpiter {mpiter.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_doctor(commands.add_parser("doctor", help="is this machine fit? what to do if not"))
    lab = commands.add_parser("lab", help="find out what loading costs here", description=LAB, formatter_class=_Plain)
    _add_lab(lab.add_subparsers(required=True, metavar="EXPERIMENT"), small)
    return parser


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps paragraphs as they were written."""


# -- doctor ----------------------------------------------------------------------------------------------------------


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = "Examine this machine: start methods, shared memory, limits, cores, decoders, packages, GPU."
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_examine)


def _examine(options: argparse.Namespace) -> int:
    subjects = 0
    with Bar("doctor", 0) as bar:

        def looking_at(subject: str) -> None:
            nonlocal subjects
            subjects += 1
            bar.at(subjects, subject)

        findings = list(doctor.findings(looking_at))
    print(json.dumps(doctor.as_json(findings), indent=1) if options.json else doctor.as_text(findings))
    return doctor.exit_code(findings)


# -- lab -------------------------------------------------------------------------------------------------------------


def _add_lab(commands: argparse._SubParsersAction[argparse.ArgumentParser], small: bool) -> None:
    for name, experiment in EXPERIMENTS.items():
        about = f"{experiment.ABOUT}"
        parser = commands.add_parser(name, help=experiment.HEADING, description=about)
        experiment.arguments(parser.add_argument)
        _add_common(parser, experiment.SMALL_SECONDS if small else experiment.SECONDS, small)
        parser.set_defaults(run=_run_one, experiment=experiment, **(experiment.SMALL if small else experiment.FULL))
    everything = commands.add_parser(
        "all", help="All of them, and the report", description="All experiments, one report."
    )
    _add_common(everything, None, small)
    everything.set_defaults(run=_run_all)
    report = commands.add_parser(
        "report", help="A page of all results in a folder", description="Write DIR/report.html."
    )
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


def _add_common(parser: argparse.ArgumentParser, seconds: float | None, small: bool) -> None:
    add: Callable[..., object] = parser.add_argument_group("every experiment").add_argument
    add("--out", type=Path, default=FOLDER, metavar="DIR", help=f"folder of the results (default {FOLDER})")
    add("--force", action="store_true", help="over results that are there already")
    add("--seed", type=int, default=0, help="of samples and files (default 0)")
    add("--rounds", type=_least(1), default=2 if small else 3, help="(default %(default)s; one gives no ratios)")
    add(
        "--seconds",
        type=_above_zero,
        default=seconds,
        help="timed part of each turn" + (" (default %(default)s)" if seconds else ""),
    )
    add("--minutes", type=_above_zero, help="begin nothing that would end later than this")
    add("--timeout", type=_above_zero, default=180.0, help="seconds after which a turn is given up (default 180)")
    add("--small", action="store_true", help="a few rows and short turns: tries everything out in a minute or so")


def _least(bound: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        value = int(text)
        if value < bound:
            raise argparse.ArgumentTypeError(f"{value} must be at least {bound}")
        return value

    return count


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def _run_one(options: argparse.Namespace) -> int:
    return measure([(options.experiment, options)], options.minutes)


def _run_all(options: argparse.Namespace) -> int:
    status = measure(
        [(experiment, _options_of(experiment, options)) for experiment in EXPERIMENTS.values()], options.minutes
    )
    if status in (DONE, WRONG):
        print(f"report: {write_report(options.out)}")
    return status


def _options_of(experiment: Experiment, common: argparse.Namespace) -> argparse.Namespace:
    """What `mpiter lab all` tells one experiment."""
    own = _parser(common.small).parse_args(["lab", experiment.NAME])
    given = {name: value for name, value in vars(common).items() if name not in ("run",) and value is not None}
    return argparse.Namespace(**{**vars(own), **given})


def _report(options: argparse.Namespace) -> int:
    print(write_report(options.folder))
    return DONE


def _compare(options: argparse.Namespace) -> int:
    found = compared(folder_of(options.before), folder_of(options.after))
    for remark in found.remarks:
        print(f"note     {remark}")
    for table in found.tables:
        print("\n" + "\n".join(drawn(table)))
    print(f"\n{found.says}")
    return DONE
