"""How to ask for the same again on the command line.

Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def command_again(experiment: str, settings: Mapping[str, Any]) -> str:
    """The command line that measures the same once more, every setting spelt out."""
    words = ["mpiter", "lab", experiment]
    for name, value in settings.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += map(str, value if isinstance(value, list) else [value])
    return shlex.join(words)
