"""`python3 examples`: the demo, from a fresh clone, in an environment of its own (`.venv`)."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), ".ci"))

import bootstrap


def main(arguments: list) -> int:
    """Prepares the environment and runs the demo there."""
    python = bootstrap.prepare(bootstrap.Environment(".venv", extras="images,chainer", build=bootstrap.CHAINERS_BUILD))
    return bootstrap.run(python, os.path.join(HERE, "demo.py"), *arguments)


if __name__ == "__main__":
    bootstrap.start(main, "examples")
