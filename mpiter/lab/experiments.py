"""The experiments there are, and what each of them is made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from . import echo, hide, images, overhead, peers, quick, speedup, staging, workers
from .results import Result
from .text import Telling
from .turns import Answer, Turn
from .views import View


class Experiment(Protocol):
    """A module: what it is called, what it can be told, what it measures, what that says and how it looks."""

    NAME: str
    HEADING: str
    ABOUT: str
    FULL: dict[str, Any]  # the options' defaults…
    SMALL: dict[str, Any]  # …and with --small
    SECONDS: float | None  # of a turn's timed part; None: it counts something else
    WARMUP_S: float
    SMALL_SECONDS: float | None

    def arguments(self, add: Callable[..., Any]) -> None: ...
    def preparing(self, options: argparse.Namespace) -> AbstractContextManager[object]: ...
    def turns(self, options: argparse.Namespace) -> Iterable[Turn]: ...
    def take(self, turn: Turn) -> Answer: ...
    def tell(self, result: Result) -> Telling: ...
    def views(self, result: Result) -> tuple[View, ...]: ...


EXPERIMENTS: dict[str, Experiment] = {
    module.NAME: module for module in (quick, overhead, speedup, workers, hide, images, staging, echo, peers)
}
ALL = {name: each for name, each in EXPERIMENTS.items() if name != quick.NAME}  # `workers` measures the same at length
