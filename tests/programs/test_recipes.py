"""Every recipe of `docs/recipes.md` runs, and workers of every kind read its dataset.

A recipe is a script of its own, after the page's first block.  Where it makes a
dataset, that is checked as a user's own would be.  What S3 holds lies in a server here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from libraries import missing
from objects import serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text()
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# These check themselves, and make no dataset.
CHECKED = ("Resume at the border of an epoch",)
# Those that don't hold all 1,000 rows of the page.
ROWS = {"DuckDB": 500, "S3 by fsspec": 100}
# What takes longer hangs.  Libraries of hundreds of megabytes are loaded for the first
# time, in each worker, while other tests run.
LIMIT_S = 240
# So a first batch that is late is no error.
SLOW = "ignore:no batch for"
# What fsspec imports by itself.
UNSEEN = "import s3fs"
# Those that the page says can be read in forked workers, though they were open before.
FORKED = ("h5py", "SQLite")
_READ = """
from mpiter.testing import check_dataset

assert check_dataset(dataset).is_even
for options in {ways}:
    with mpiter.batches(
        dataset, 100, epochs=1, seed=0, n_processes=2, **options
    ) as stream:
        rows = []
        for batch in stream:
            rows += map(bytes, batch["x"] if isinstance(batch, dict) else batch)
    assert len(rows) == len(set(rows)) == {rows}, options
    assert set(rows) <= set(map(bytes, x)), options
"""
# A handle that is open already: the check names it, with the remedy.
_OPEN = """
from mpiter.testing import check_dataset


class Holds:
    def __init__(self, handle):
        self.handle = handle

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


try:
    check_dataset(Holds(dataset.store))
except AssertionError as error:
    assert "dataset.handle" in str(error), error
    assert "Open it in worker_init or on first use" in str(error), error
else:
    raise SystemExit("an open handle passed")
"""


def _recipes() -> dict[str, str]:
    """Return the script of each heading that has blocks."""
    first, *sections = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    (setup,) = _BLOCK.findall(first)
    scripts = {}
    for heading, text in zip(sections[::2], sections[1::2], strict=True):
        if blocks := _BLOCK.findall(text):
            scripts[heading] = "\n".join([setup, *blocks])
    return scripts


RECIPES = _recipes()

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """Serve objects; return the variables by which clients of S3 find them."""
    with serving() as variables:
        yield variables


def _run(script: str, folder: Path, **variables: str) -> None:
    needed = script
    if 'filesystem("s3")' in script:
        needed += UNSEEN
    if absent := missing(needed):
        pytest.skip(f"{', '.join(absent)} is not installed: run `python3 tests --all`")
    (folder / "recipe.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", SLOW, "recipe.py"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_runs_and_workers_read_what_it_made(
    heading: str, tmp_path: Path, store: dict[str, str]
) -> None:
    ways = ["{}", "dict(backend='thread')"]
    if heading in FORKED:
        ways.append("dict(backend=mpiter.Process('fork'))")
    read = _READ.format(ways=f"[{', '.join(ways)}]", rows=ROWS.get(heading, 1000))
    if heading in CHECKED:
        read = ""
    _run(RECIPES[heading] + read, tmp_path, **store)


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("heading", ["h5py", "LMDB", "SQLite"])
def test_a_handle_that_is_open_in_a_dataset_is_named_with_the_remedy(
    heading: str, tmp_path: Path
) -> None:
    _run(RECIPES[heading] + _OPEN, tmp_path)


def test_what_is_said_of_single_recipes_is_said_of_recipes_of_the_page() -> None:
    assert {*CHECKED, *ROWS, *FORKED} <= set(RECIPES)
