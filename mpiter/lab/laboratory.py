"""One experiment from the first turn to the files, the sections of a report, and the report.

Runs in the driver.  Guarantees that nothing is measured whose result could not be kept, and that whatever ends an
experiment early, its files hold what it had.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .asked import command_again
from .experiments import EXPERIMENTS, Experiment
from .report.page import page
from .results import (
    SCHEMA,
    Result,
    ResultError,
    as_csv,
    document,
    folder_of,
    gathered,
    keep,
    making_sense,
    refuse_what_cannot_be_kept,
)
from .series import INTERRUPTED, Series, ended_like_ctrl_c, expected_s, held_back, run
from .surroundings import ROOT, commit_in_words, heading, versions
from .text import Telling, drawn, wrapped
from .turns import Absent, Answer, Turn, ask
from .views import Section, Table

REPORT = "report.html"
_NO_SETTINGS = {"run", "experiment", "out", "force", "paths", "folder", "warmup", "model"}


def measure(experiments: Sequence[tuple[Experiment, argparse.Namespace]], minutes: float | None) -> int:
    """Run them one after the other, sharing the minutes; 0, 1 if something went wrong, 130 if interrupted."""
    for experiment, options in experiments:
        for file in _files(experiment, options.out):
            refuse_what_cannot_be_kept(file, options.force)
        _drop_repetitions(options)
    with ended_like_ctrl_c():
        return _one_after_the_other(experiments, minutes)


def _drop_repetitions(options: argparse.Namespace) -> None:
    for name, value in vars(options).items():
        if isinstance(value, list):
            setattr(options, name, list(dict.fromkeys(value)))


def _one_after_the_other(experiments: Sequence[tuple[Experiment, argparse.Namespace]], minutes: float | None) -> int:
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    status = 0
    for number, (experiment, options) in enumerate(experiments):
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) / (len(experiments) - number)
        result = _one(experiment, options, left)
        if result.problems or not result.rows:
            status = 1
        if result.ended_by == INTERRUPTED:
            return 130
    return status


def _files(experiment: Experiment, folder: Path | None) -> list[Path]:
    """The JSON and the CSV, where something is to be kept."""
    return [folder / f"{experiment.NAME}.{kind}" for kind in ("json", "csv")] if folder else []


def _one(experiment: Experiment, options: argparse.Namespace, budget_s: float | None) -> Result:
    began, load = time.time(), os.getloadavg()
    options.warmup = min(experiment.WARMUP_S, getattr(options, "seconds", math.inf))
    series = _series_of(experiment, options, budget_s)
    files = _files(experiment, options.out)
    with held_back():
        head = heading(SCHEMA, ROOT, began, load) | {"versions": versions()}
        settings = {name: _plain(value) for name, value in vars(options).items() if name not in _NO_SETTINGS}
        head["again"] = command_again(experiment.NAME, settings)
        result = gathered(experiment.NAME, head, settings, series)
        if result.rows:
            try:
                _keep(files, result, Telling())  # should telling it fail, it is there
            except ResultError:
                _print(experiment, result, experiment.tell(result))  # this is all that will be had of it
                raise
    if not result.rows:
        _print_what_was_not_measured(result, Telling())
        print(f"{experiment.NAME}: nothing was measured{', so nothing is kept' if files else ''}\n")
        return result
    telling = experiment.tell(result)
    _keep(files, result, telling)
    _print(experiment, result, telling)
    if files:
        print(wrapped(f"kept: {', '.join(map(str, files))}", indent=6) + "\n")
    return result


def _keep(files: Sequence[Path], result: Result, telling: Telling) -> None:
    if not files:
        return
    told = document(result, telling.says, warnings_of(result, telling))
    for file, text in zip(files, (json.dumps(told, indent=1) + "\n", as_csv(result)), strict=True):
        keep(file, text)


def _series_of(experiment: Experiment, options: argparse.Namespace, budget_s: float | None) -> Series:
    """What comes of its turns; an experiment that lacks something altogether is absent, the others go on."""
    series, began = Series(), time.monotonic()
    end = began + (math.inf if budget_s is None else budget_s)
    try:
        with experiment.preparing(options):
            turns = list(experiment.turns(options))
            _say_what_comes(experiment, expected_s(turns, options.rounds), budget_s)

            def asked(turn: Turn) -> Answer:
                return ask(turn, min(options.timeout, end - time.monotonic()))

            run(experiment.NAME, turns, options.rounds, asked, budget_s, into=series, began=began)
    except Absent as why:
        print(wrapped(f"{experiment.NAME}: {why}", indent=2), file=sys.stderr)
    except KeyboardInterrupt:  # before the first turn, or once more while things are put away
        series.ended_by = INTERRUPTED
    return series


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _say_what_comes(experiment: Experiment, seconds: float, budget_s: float | None) -> None:
    most = "" if budget_s is None else f", {budget_s / 60:.3g} at most"
    comes = [f"{experiment.HEADING}; about {max(1, round(seconds / 60))} min{most}"]
    if budget_s is not None and seconds > budget_s:
        comes.append(
            "so it will end early; ask for fewer rows (--help) or shorter turns (--seconds) to have whole rounds"
        )
    for sentence in comes:
        print(wrapped(f"{experiment.NAME}: {sentence}", indent=2), file=sys.stderr)


def warnings_of(result: Result, telling: Telling) -> list[str]:
    return [*telling.warnings, *result.warnings()]


def _print(experiment: Experiment, result: Result, telling: Telling) -> None:
    for view in experiment.views(result):
        if isinstance(view, Table) and not view.published:
            print("\n" + "\n".join(drawn(view)))
    print()
    _print_what_was_not_measured(result, telling)
    for sentence in telling.says:
        print(wrapped(sentence, "says"))


def _print_what_was_not_measured(result: Result, telling: Telling) -> None:
    for row, why in result.absent.items():
        print(wrapped(f"{row}: {why}", "absent"))
    for warning in warnings_of(result, telling):
        print(wrapped(warning, "warning"))


# -- the report ------------------------------------------------------------------------------------------------------


def write_report(folder: Path) -> Path:
    """`folder/report.html`: made anew from whatever results the folder holds."""
    results = folder_of(folder)
    if unknown := results.keys() - EXPERIMENTS.keys():
        raise ResultError(
            f"{folder} holds results of {', '.join(sorted(unknown))}, which this mpiter knows nothing of."
        )
    sections = [_section(EXPERIMENTS[name], results[name]) for name in EXPERIMENTS if name in results]
    keep(folder / REPORT, page(sections, "What loading costs"))
    return folder / REPORT


def _section(experiment: Experiment, result: Result) -> Section:
    with making_sense(f"{experiment.NAME}.json"):
        telling = experiment.tell(result)
        return Section(
            name=experiment.NAME,
            heading=experiment.HEADING,
            about=experiment.ABOUT,
            says=tuple(telling.says),
            warnings=tuple(warnings_of(result, telling)),
            absent=tuple(f"{row}: {why}" for row, why in result.absent.items()),
            views=experiment.views(result),
            command=result.heading["again"],
            facts=tuple(_facts(result)),
        )


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    machine, commit = result.heading["machine"], result.heading["commit"]
    yield "measured", f"{result.heading['started']}, in {result.heading['took_s'] / 60:.1f} min"
    yield "machine", f"{machine['cpu']}, {machine['cores_usable']} cores usable, {machine['memory_bytes'] / 1e9:.0f} GB"
    yield "system", machine["system"]
    if commit["id"]:
        yield "commit", commit_in_words(commit)
    yield "versions", ", ".join(f"{name} {version}" for name, version in result.heading["versions"].items())
    for name, value in result.settings.items():
        if value is not None:
            yield name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)
