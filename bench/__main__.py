"""`python3 bench` runs the experiments, from a fresh clone, in `.venv`.

    python3 bench              what moving a sample costs: some three minutes, and a
                               page to open in a browser
    python3 bench guard        ten ratios against their bounds, in about a minute
    python3 bench NAME         another experiment; `--help` after its name lists its
                               options
    python3 bench --list       their names
    python3 bench NAME --small a short round of it: it shows that it works
    python3 bench NAME --judge says which of its requirements hold; the exit status is 1
                               if one fails
    python3 bench NAME --out FILE.json

Without `--out` a result, and its page, go to `build/bench/`, over those of the last
time.
"""

import os
import sys
from pathlib import Path

HERE = Path(os.path.abspath(__file__)).parent
sys.path.insert(0, str(HERE.parent / ".ci"))

import bootstrap

FIRST = "overhead"
RESULTS = os.path.join("build", "bench")


def main(arguments: list) -> int:
    """Run the experiment that is named, or the first one."""
    programs = found()
    if arguments[:1] == ["--list"]:
        width = max(map(len, programs))
        print("\n".join(f"{name:<{width}}  {says}" for name, says in programs.items()))
        return 0
    if arguments[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    name = FIRST
    if arguments and not arguments[0].startswith("-"):
        name = arguments[0]
        arguments = arguments[1:]
    if name not in programs:
        raise bootstrap.Trouble(
            f"there is no experiment {name!r}; python3 bench --list names them."
        )
    options = {word.partition("=")[0] for word in arguments}
    if options.isdisjoint(("--out", "--help", "-h")):
        result = os.path.join(RESULTS, name + ".json")
        arguments = [*arguments, "--out", result, "--force"]
    python = bootstrap.prepare(
        bootstrap.Environment(".venv", extras="bench,images,parquet")
    )
    return bootstrap.run(python, str(HERE / (name + ".py")), *arguments)


def found() -> dict:
    """Return the programs beside this file, with their docstrings' first lines."""
    programs = {}
    for path in sorted(HERE.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "\nfrom driver import" in text and '\nif __name__ == "__main__":' in text:
            programs[path.stem] = text.partition("\n")[0].strip('"')
    return programs


if __name__ == "__main__":
    bootstrap.start(main, "bench")
