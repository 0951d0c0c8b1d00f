"""`python3 tests` runs the suite, from a fresh clone, in `.venv`.

    python3 tests              the suite on this Python, without what takes long
    python3 tests -k order     the same; what follows goes to pytest
    python3 tests --all        everything: what takes long, style, the docs as a site,
                               every supported Python, Chainer on its own NumPy,
                               torch, Ray and MPI, and other people's frameworks;
                               a table at the end

With `--all` a test that fails is run once more, alone, when everything else is over. If
it passes then, the run is green, and the table names the test as unsteady: either the
test or the code is wrong where the machine is slow.

Read by Pythons too old for mpiter as well, to be told so: the syntax is that of 3.6.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

CLONE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(CLONE, ".ci"))

import bootstrap
from bootstrap import TORCH, Environment, Trouble

PYTHONS = ("3.11", "3.12", "3.13")
# More of the suite runs on the newest: workers die there as well.
NEWEST = "3.13"
# These of tests/ rest on the interpreter itself.
ON_OTHER_PYTHONS = ("samples/test_byvalue.py", "iterators/test_dropped.py")
# These rest on how processes start, stop and share. Everything else is Python on top of
# them, and behaves on the newest Python as it does on this one.
ON_THE_NEWEST = (
    "pool",
    "worker",
    "iterators/test_contract.py",
    "datasets/test_variables.py",
    "deaths/test_crash_matrix.py",
    "deaths/test_interrupts.py",
    "deaths/test_left_behind.py",
)
# These rest on NumPy.
ON_CHAINERS_NUMPY = ("samples/test_codec.py", "doors")
JAX = "jax==0.10.2"
MPI = ("mpi4py==4.1.2", "mpich==5.0.2")
# This is the last Python with numpy.distutils, which Chainer imports unless
# mpiter.chainer_compat helps it.
CHAINERS_PYTHON = "3.11"
# Chainer was written for such versions; ChainerMN needs MPI.
CHAINERS_COMPANY = ("numpy<1.24", "setuptools<74", *MPI)
# torchvision is kept apart from the clients, some of which would use it unasked.
WITH_TORCH = (TORCH, "torchvision==0.28.0", JAX, "ray==2.60.0", *MPI)
# torch is named although others require it: pip alone would choose one that brings
# gigabytes of CUDA.
CLIENTS = (
    TORCH,
    "torchdata==0.11.0",
    "lightning==2.6.6",
    "accelerate==1.15.0",
    "transformers==5.23.0",
    "datasets==5.2.0",
    "scikit-learn==1.9.1",
    "torch_geometric==2.8.1",
    "albumentations==2.0.8",
    JAX,
    "flax==0.12.8",
    "optax==0.2.8",
    "orbax-checkpoint==0.12.8",
    "polars==2.1.0",
    # These are read by recipes of docs/recipes.md.
    "array-record==0.8.6",
    "duckdb==2.0.1",
    "h5py==3.16.0",
    "lmdb==3.0.0",
    "obstore==0.12.1",
    "pylance==14.0.2",
    "s3fs==2026.9.0",
    "zarr==3.1.6",
)
# The first environment gets all of these at once, since several jobs use it.
EXTRAS = "test,chainer,images,bench,lint,docs,package"
QUICK = "not slow"
# Everything together takes some fifteen minutes on two cores, so what takes as long as
# this hangs.
LIMIT_S = 80 * 60
# Two processes would leave almost half of two cores idle, since much of the suite waits
# for processes to start.
IN_PARALLEL = ("-n", "3", "--dist", "loadgroup")
ALONE = (
    "-n",
    "1",
    "--dist",
    "loadgroup",
    "--last-failed",
    "--last-failed-no-failures",
    "none",
)
# The package is built as if it were published from here.
ADDRESS = "https://example.org/mpiter"
# Pytest's exit code when nothing was selected.
NO_TESTS = 5


class Job(NamedTuple):
    """A run of pytest in an environment of its own.

    Without a Python this machine has none that fits.
    """

    name: str
    environment: Environment
    arguments: tuple = ()
    # What its tests import. Imported once before, it is compiled only once, and not in
    # each of pytest's processes.
    imports: tuple = ()


class Row(NamedTuple):
    """A line of the table at the end."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""
    # Tests that failed among the others and passed alone.
    unsteady: tuple = ()


def main(arguments: list) -> int:
    """Run the suite on this Python, or with `--all` in every environment."""
    if "--all" in arguments:
        return everything([argument for argument in arguments if argument != "--all"])
    python = bootstrap.prepare(here(".venv"))
    return bootstrap.run(python, "-m", "pytest", *IN_PARALLEL, "-m", QUICK, *arguments)


def everything(arguments: list) -> int:
    """Run every environment, whatever becomes of the others, and print the table."""
    deadline = time.monotonic() + LIMIT_S
    first, *others = jobs()
    # The pip of the first environment installs all of them. It fills the others while
    # the first one's tests run.
    bootstrap.stand(first.environment)
    with ThreadPoolExecutor(1) as pool:
        ready = [pool.submit(make_ready, job) for job in others]
        bootstrap.prepare(here(first.environment.folder, extras=EXTRAS))
        rows = [timed("style", style, deadline), timed("docs", site, deadline)]
        suites = [(first, timed(first.name, suite, first, arguments, deadline))]
        for job, is_ready in zip(others, ready):
            # A failure to install isn't raised here: it shows again, with its remedy,
            # where the environment is used.
            concurrent.futures.wait([is_ready])
            suites.append((job, timed(job.name, suite, job, arguments, deadline)))
    rows += [second_chance(job, row, arguments, deadline) for job, row in suites]
    # The demo's trainings take turns with their workers, and leave half a core idle.
    # Nothing may run beside the guard, which measures.
    with ThreadPoolExecutor(1) as beside:
        packaged = beside.submit(timed, "package", package, deadline)
        rows.append(timed("examples", demo, deadline))
        rows.append(packaged.result())
    rows.append(timed("guard", guard, deadline))
    return report(rows)


def make_ready(job: Job) -> None:
    """Install the job's environment, and import once what its tests import."""
    if not job.environment.python:
        return
    python = bootstrap.prepare(job.environment)
    if job.imports:
        bootstrap.run(python, "-c", "import " + ", ".join(job.imports))


def jobs() -> list:
    """Return every environment with its part of the suite.

    All of it runs here, the quick part elsewhere.
    """
    mine = "{}.{}".format(*sys.version_info)
    found = [Job("python " + mine, here(".venv"))]
    for version in PYTHONS:
        if version != mine:
            names = ON_OTHER_PYTHONS
            extras = "pytest"
            if version == NEWEST:
                names = names + ON_THE_NEWEST
                extras = "pytest,chainer"
            environment = elsewhere(".venv-" + version, version, extras=extras)
            found.append(
                Job("python " + version, environment, ("-m", QUICK, *folders(names)))
            )
    chainer = elsewhere(
        ".venv-chainer",
        CHAINERS_PYTHON,
        extras="pytest,chainer",
        wanted=CHAINERS_COMPANY,
    )
    marked = ("-m", QUICK + " or chainer")
    found.append(Job("chainer", chainer, (*marked, *folders(ON_CHAINERS_NUMPY))))
    marked = ("-m", "torch or ray or mpi")
    modules = mentioning("torch", "mark.ray", "launched", "loader_kinds")
    imports = ("torch", "jax", "ray")
    found.append(Job("torch, Ray, MPI", torchs(), (*marked, *modules), imports))
    # Clients are whole programs that import whole frameworks, so a minute without an
    # end isn't a hang.
    patient = ("-m", "clients", "-o", "faulthandler_timeout=240")
    clients = Environment(".venv-clients", extras="pytest", wanted=CLIENTS)
    found.append(Job("clients", clients, (*patient, *mentioning("clients"))))
    return found


def mentioning(*words: str) -> list:
    """Return the test modules with one of these words.

    To import all the others as well takes longer than some tests.
    """
    found = []
    for path in sorted((bootstrap.ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            found.append(str(path.relative_to(bootstrap.ROOT)))
    return found


def folders(names: tuple) -> list:
    """Return the paths of folders and files of the tests."""
    return ["tests/" + name for name in names]


def here(folder: str, **others) -> Environment:
    """Return an environment on this Python, with all that the plain tests need."""
    usual = {"extras": "test,chainer", "build": bootstrap.CHAINERS_BUILD}
    return Environment(folder, **{**usual, **others})


def elsewhere(folder: str, version: str, **others) -> Environment:
    """Return an environment on a Python of this version.

    It is the running one if it fits, one found on this machine, or "".
    """
    if version == "{}.{}".format(*sys.version_info):
        python = sys.executable
    else:
        python = bootstrap.find_python(version) or ""
    return here(folder, python=python, **others)


def timed(name: str, work, *arguments) -> Row:
    """Do the work under a heading; return its row, with the seconds it took.

    Trouble is a failure like any other.
    """
    print(f"\n== {name} ==", flush=True)
    began = time.monotonic()
    try:
        row = work(*arguments)
    except Trouble as trouble:
        row = Row(name, failed=1, note=str(trouble))
    except subprocess.TimeoutExpired:
        minutes = LIMIT_S // 60
        note = f"cut short: {minutes} minutes for everything together were over"
        row = Row(name, failed=1, note=note)
    return row._replace(seconds=time.monotonic() - began)


def style(deadline: float) -> Row:
    """Run ruff, mypy and pyright, each counting as one test."""
    python = bootstrap.prepare(Environment(".venv", extras="lint"))
    checks = [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
        ("basedpyright",),
    ]
    codes = [
        bootstrap.run(python, "-m", *check, timeout=left(deadline)) for check in checks
    ]
    failed = sum(map(bool, codes))
    return Row("style", passed=len(codes) - failed, failed=failed)


def site(deadline: float) -> Row:
    """Build `build/docs` from `docs/` and the docstrings.

    A link that leads nowhere is a failure.
    """
    python = bootstrap.prepare(Environment(".venv", extras="docs"))
    build = ("mkdocs", "build", "--strict", "-f", "docs/site/mkdocs.yml")
    failed = int(bootstrap.run(python, "-m", *build, timeout=left(deadline)) != 0)
    return Row("docs", passed=1 - failed, failed=failed)


def demo(deadline: float) -> Row:
    """Run `python3 examples`, as a newcomer does whose Python has torch."""
    python = bootstrap.prepare(torchs())
    failed = int(bootstrap.run(python, "examples", timeout=left(deadline)) != 0)
    return Row("examples", passed=1 - failed, failed=failed)


def package(deadline: float) -> Row:
    """Build wheel and sdist twice, compare and check them, and install them.

    They are installed with nothing but what the core needs. What is said comes at once
    at the end, since something else runs meanwhile.
    """
    python = bootstrap.prepare(Environment(".venv", extras="package"))
    build = (str(bootstrap.ROOT / ".ci" / "package.py"), "--at", ADDRESS, "v0")
    code, said = bootstrap.silently([str(python), *build], timeout=left(deadline))
    print(f"\n== package, its words ==\n{said.rstrip()}", flush=True)
    failed = int(code != 0)
    return Row("package", passed=1 - failed, failed=failed)


def guard(deadline: float) -> Row:
    """Check the ratios of `python3 bench guard`, torch's among them.

    It fails where one misses its bound by half.
    """
    python = bootstrap.prepare(torchs())
    # Medians of five rounds tell a factor of two as well as those of nine.
    check = ("bench/guard.py", "--rounds", "5")
    failed = int(bootstrap.run(python, *check, timeout=left(deadline)) != 0)
    return Row("guard", passed=1 - failed, failed=failed)


def torchs() -> Environment:
    """Return the environment with torch, its vision, JAX, Ray and MPI."""
    return Environment(".venv-torch", extras="pytest", wanted=WITH_TORCH)


def suite(job: Job, arguments: list, deadline: float) -> Row:
    """Run pytest in the job's environment; the counts come from its own report."""
    if not job.environment.python:
        return Row(job.name, note="not on this machine")
    python = bootstrap.prepare(job.environment)
    counts = inside(job, "counts.xml")
    if counts.exists():
        counts.unlink()
    command = pytest(
        job, *IN_PARALLEL, f"--junitxml={counts}", "--cache-clear", *arguments
    )
    code = bootstrap.run(python, *command, timeout=left(deadline))
    return row_of(job.name, code, counts)


def second_chance(job: Job, row: Row, arguments: list, deadline: float) -> Row:
    """Return the row again, after its failed tests have run once more.

    Nothing runs beside them this time.
    """
    failed = failures(job) if row.failed else []
    if not failed:
        return row
    print(f"\n== {job.name}, once more: what failed, alone ==", flush=True)
    began = time.monotonic()
    try:
        bootstrap.run(
            job.environment.executable(),
            *pytest(job, *ALONE, *arguments),
            timeout=left(deadline),
        )
    except subprocess.TimeoutExpired:
        return row
    again = failures(job)
    unsteady = tuple(name for name in failed if name not in again)
    seconds = row.seconds + time.monotonic() - began
    passed = row.passed + len(unsteady)
    return row._replace(
        passed=passed, failed=len(again), seconds=seconds, unsteady=unsteady
    )


def pytest(job: Job, *arguments: str) -> list:
    """Return the command, with a cache of the environment's own.

    The cache remembers what failed there.
    """
    cache = "cache_dir={}".format(inside(job, "pytest"))
    return ["-m", "pytest", "-o", cache, *job.arguments, *arguments]


def inside(job: Job, name: str):
    """Return the path of a file in the job's environment."""
    return bootstrap.ROOT / job.environment.folder / name


def failures(job: Job) -> list:
    """Return the tests that failed when they last ran in this environment.

    pytest keeps that record.
    """
    record = inside(job, "pytest") / "v" / "cache" / "lastfailed"
    if not record.exists():
        return []
    return sorted(json.loads(record.read_text()))


def row_of(name: str, code: int, counts) -> Row:
    """Return what pytest's exit code and its report come to."""
    if code == NO_TESTS:
        return Row(name, note="no tests")
    if not counts.exists():
        return Row(name, failed=1, note=f"pytest ended with exit code {code}")
    total, failures, errors, skipped = count(counts)
    failed = failures + errors
    if code and not failed:
        # All tests passed, and yet something went wrong: count that as a failure too.
        note = f"pytest ended with exit code {code}"
        return Row(name, total - skipped, 1, skipped, note=note)
    return Row(name, total - failed - skipped, failed, skipped)


def count(counts) -> tuple:
    """Return (tests, failures, errors, skipped) of a junit file."""
    suites = list(xml.parse(str(counts)).getroot().iter("testsuite"))
    return tuple(
        sum(int(each.get(key, 0)) for each in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )


def left(deadline: float) -> float:
    """Return the seconds that remain for everything, at least one."""
    return max(1.0, deadline - time.monotonic())


def report(rows: list) -> int:
    """Print the table and its sum; return 1 if anything failed."""
    heads = ("environment", "passed", "failed", "skipped", "seconds")
    print("\n{:<14} {:>7} {:>7} {:>8} {:>8}".format(*heads))
    for row in rows:
        print("{:<14} {:>7} {:>7} {:>8} {:>8.1f}  {}".format(*row).rstrip())
    if any(row.unsteady for row in rows):
        print("\nunsteady: look into these first")
        for row in rows:
            for name in row.unsteady:
                print(f"{row.name:<14} failed among the others, passed alone: {name}")
    passed = sum(row.passed for row in rows)
    failed = sum(row.failed for row in rows)
    print(f"\n{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    bootstrap.start(main, "tests")
