"""The process of one turn: `python -m mpiter.lab.measured TURN` measures once and answers with a line of JSON.

Guarantees an answer whatever happens, short of the process's death, and an end as soon as it is given.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import NoReturn

from .experiments import EXPERIMENTS
from .turns import LAST_WORDS, Absent, Answer, Turn


def main() -> NoReturn:
    turn = Turn(**json.loads(sys.argv[1]))
    try:
        answer = EXPERIMENTS[turn.experiment].take(turn)
    except Absent as why:
        answer = {"absent": str(why)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}", "said": traceback.format_exc()[-LAST_WORDS:]}
    _finish(answer)


def _finish(answer: Answer) -> NoReturn:
    """Say it and end at once: how long workers take to end is not measured, and some never do."""
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
