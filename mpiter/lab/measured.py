"""The process of one turn: it reads what to measure, measures, and answers with a line of JSON.

Guarantees an answer whatever happens, short of the process's death; that nobody else writes where it answers; an end
as soon as the answer is given; and an end of its whole group should the driver be gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ..errors import users_line
from .experiments import EXPERIMENTS
from .turns import LAST_WORDS, Absent, Answer, Turn


def main(take: Callable[[Turn], Answer] | None = None) -> NoReturn:
    """Measure by `take`, or else as the turn's experiment does."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever datasets and libraries print, workers' prints too, goes beside the answer
    turn = Turn(**json.loads(sys.stdin.readline()))
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a dataset that asks for input gets none, at once
    threading.Thread(target=_end_with_the_driver, args=[lifeline], daemon=True).start()
    try:
        answer = (take or EXPERIMENTS[turn.experiment].take)(turn)
    except Absent as why:
        answer = {"absent": str(why)}
    except Exception as error:
        line = users_line(error)
        told = f"{type(error).__name__}: {error}" + (f" ({Path(line[0]).name}, line {line[1]})" if line else "")
        answer = {"error": told, "said": traceback.format_exc()[-LAST_WORDS:]}
    _finish(answers, answer)


def _end_with_the_driver(lifeline: int) -> None:
    """Its end closes what was our input."""
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def _finish(answers: int, answer: Answer) -> NoReturn:
    """Say it and end at once: how long workers take to end is not measured, and some never do."""
    with open(answers, "w") as out:
        out.write(json.dumps(answer, default=str) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
