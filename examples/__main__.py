"""`python3 examples` runs the demo, from a fresh clone, in `.venv`.

    python3 examples           trainings in torch, NumPy and Chainer
    python3 examples --torch   the same, with a torch of the demo's own

Torch is that of the Python that runs this. With `--torch` it is installed into an
environment of its own, `.venv-demo`.

With `--torch` pip installs the build of torch that it finds. If that is to be the small
one, without CUDA, point pip at an index of such builds (PIP_EXTRA_INDEX_URL), as
torch's own instructions do.
"""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), ".ci"))

import bootstrap

OLDEST_TORCH = (2, 6)  # as in pyproject.toml
BRINGS = "`python3 examples --torch` installs one"


def main(arguments: list) -> int:
    """Prepare the environment and run the demo there."""
    if arguments not in ([], ["--torch"]):
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    plain = bootstrap.Environment(
        ".venv", extras="images,chainer", build=bootstrap.CHAINERS_BUILD
    )
    if arguments:
        folders = []
        lacks = ""
        plain = plain._replace(folder=".venv-demo", wanted=(bootstrap.TORCH,))
        bootstrap.stand(bootstrap.Environment(bootstrap.WITH_PIP))
    else:
        folders, lacks = callers_torch()
    python = bootstrap.prepare(plain)
    return bootstrap.run(python, os.path.join(HERE, "demo.py"), lacks, *folders)


def callers_torch() -> tuple:
    """Return (folders, why not): where the Python that runs this has torch.

    The folders also have what torch needs. The text says why that torch can't serve.

    Nothing is imported. The demo's environment has the same interpreter, and looks into
    these folders last: what it has itself, NumPy above all, stays its own.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return [], f"the Python that runs this has no torch: {BRINGS}"
    version = version_of("torch")
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        has = f"torch {version}, older than {oldest}"
        return [], f"the Python that runs this has {has}: {BRINGS}"
    installed = [os.path.dirname(os.path.dirname(found.origin))]
    installed += [folder for folder in sys.path if folder.endswith("-packages")]
    return list(dict.fromkeys(installed)), ""


def version_of(package: str) -> str:
    """Return the version of an installed package."""
    # Pythons that are too old lack this module. They must get as far as being told so.
    from importlib.metadata import version

    return version(package)


if __name__ == "__main__":
    bootstrap.start(main, "examples")
