"""Lead from a fresh clone to a running command, with the standard library alone.

What: makes virtual environments inside the clone, installs the package into them, and
runs commands there. Where: in the Python that the user typed, also in one too old for
mpiter; hence the syntax of Python 3.6. Guarantees: an environment is built once, and
again only when what it is made from has changed; nothing is written outside the clone;
whatever the user can put right ends in one line with its remedy and exit code 1.
Assumes: pip's settings (mirrors, certificates, folders of wheels) are the user's own
and right; they are left alone.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
# The pip of this environment installs into the others too: to install pip in each would
# take ten seconds each time.
WITH_PIP = ".venv"
TORCH = "torch==2.13.0"
# Chainer's sdist imports pkg_resources, which newer versions of setuptools lack.
CHAINERS_BUILD = ("setuptools<81",)
# A socket's path holds 107 characters, 104 on some systems; Ray adds 70 to its folder.
LONGEST_SCRATCH = 33
OFFLINE = (
    "connection broken by",
    "NewConnectionError",
    "Max retries exceeded",
    "name resolution",
)


class Trouble(Exception):
    """Something the user can put right; the text is one line that says how."""


class Environment(NamedTuple):
    """A virtual environment of the clone.

    It has a folder, an interpreter, and what is installed in it.
    """

    folder: str
    python: str = sys.executable
    extras: str = ""
    # Further requirements, in pip's words.
    wanted: tuple = ()
    # Constraints on what builds source distributions.
    build: tuple = ()

    def executable(self) -> Path:
        """Return the interpreter inside."""
        inside = "Scripts/python.exe" if os.name == "nt" else "bin/python"
        return ROOT / self.folder / inside

    def stamp(self) -> Path:
        """Return the file that remembers what these extras were installed from."""
        extras = self.extras.replace(",", "-") or "core"
        return ROOT / self.folder / f"installed-{extras}"

    def fingerprint(self) -> str:
        """Return what changes when the installation has to be done again."""
        made_from = repr((str(ROOT), self.extras, self.wanted)).encode()
        made_from += (ROOT / "pyproject.toml").read_bytes()
        return hashlib.sha256(made_from).hexdigest()


def start(main, folder: str) -> None:
    """Run `main` and end the process with its exit code.

    Trouble becomes one line, never a traceback.
    """
    try:
        require_python(folder)
        require_venv()
        sys.exit(main(sys.argv[1:]))
    except Trouble as trouble:
        # With a text, `sys.exit` writes it to stderr and ends with exit code 1.
        sys.exit(f"mpiter: {trouble}")
    except KeyboardInterrupt:
        sys.exit(130)


def require_python(folder: str) -> None:
    """Stop on a Python too old, naming one that would do if this machine has it."""
    if sys.version_info >= OLDEST:
        return
    newer = newer_python()
    if newer:
        remedy = f"run `{newer} {folder}` instead"
    else:
        remedy = f"install Python 3.11 or newer and run `python3.11 {folder}`"
    raise Trouble(
        f"needs Python 3.11 or newer, and this is {sys.version.split()[0]}: {remedy}"
    )


def require_venv() -> None:
    """Stop where Python came without `venv` or `ensurepip`.

    Some distributions keep them in packages of their own.
    """
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        package = "python{}.{}-venv".format(*sys.version_info)
        raise Trouble(
            "this Python lacks the `venv` module: install it (on Debian and Ubuntu "
            f"`sudo apt install {package}`) and run the same command again"
        ) from None


def newer_python():
    """Return the command of the newest Python that is new enough, or None."""
    for minor in (13, 12, 11):
        found = find_python(f"3.{minor}")
        if found:
            name = f"python3.{minor}"
            return name if probe(name) else found
    return None


def find_python(version: str):
    """Return the path of a working interpreter of this version ("3.12"), or None.

    It has venv, and is on PATH or among pyenv's.
    """
    of_pyenv = map(str, pyenv_versions().glob(f"{version}.*/bin/python"))
    candidates = ["python" + version, *sorted(of_pyenv, reverse=True)]
    for candidate in candidates:
        answer = probe(candidate)
        if answer and answer[0] == version:
            return answer[1]
    return None


def probe(command):
    """Return (version, path) of an interpreter that can make environments, or None.

    A name on PATH may be an empty shim.
    """
    question = (
        "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2]); "
        "print(sys.executable)"
    )
    try:
        answer = subprocess.run(
            [str(command), "-c", question],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return tuple(answer.stdout.decode().splitlines())


def pyenv_versions() -> Path:
    """Return the folder where pyenv keeps its interpreters; it may not exist."""
    pyenv = shutil.which("pyenv")
    if not pyenv:
        return ROOT / "no-pyenv"
    answer = subprocess.run(
        [pyenv, "root"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    root = answer.stdout.decode().strip()
    return Path(root or str(ROOT / "no-pyenv")) / "versions"


@contextlib.contextmanager
def step(text: str):
    """Say what is being done, and when it is done how long it took."""
    print(text, end=" ... ", flush=True)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        print(f"failed after {time.monotonic() - began:.1f} s", flush=True)
        raise
    print(f"{time.monotonic() - began:.1f} s", flush=True)


def prepare(environment: Environment) -> Path:
    """Make and fill the environment unless it stands; return its interpreter."""
    stand(environment)
    if not installed(environment):
        install(environment)
    return environment.executable()


def stand(environment: Environment) -> None:
    """Make the environment, empty, unless it stands."""
    if not usable(environment):
        make(environment)


def usable(environment: Environment) -> bool:
    """Tell whether the environment runs on this interpreter, with pip if wanted."""
    modules = "sys, pip" if environment.folder == WITH_PIP else "sys"
    question = f"import {modules}; print(sys.version)"
    try:
        answer = subprocess.run(
            [str(environment.executable()), "-c", question],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    if answer.returncode != 0:
        return False
    if environment.python != sys.executable:
        # The version of another Python isn't known here.
        return True
    return answer.stdout.decode().startswith(sys.version)


def make(environment: Environment) -> None:
    """Make the environment, empty.

    One that no longer runs, or is of another Python, is replaced.
    """
    (ROOT / environment.folder).mkdir(exist_ok=True)
    command = [
        environment.python,
        "-m",
        "venv",
        "--clear",
        "--without-pip",
        str(ROOT / environment.folder),
    ]
    with step(f"making {environment.folder}"):
        code, said = silently(command)
        if not code and environment.folder == WITH_PIP:
            # To install the newest pip takes two thirds of the time of `ensurepip`.
            # Where no package index can be reached, Python's own pip serves.
            python = str(environment.executable())
            newest = [sys.executable, "-m", "pip", "--python", python, "install", "pip"]
            failed, _ = silently(newest)
            if failed:
                code, said = silently([python, "-m", "ensurepip"])
        if code:
            why = last_line(said)
            raise Trouble(
                f"could not make {environment.folder} ({why}): put that right and run "
                "the same command again"
            )


def silently(command: list, timeout=None) -> tuple:
    """Run a command; return its exit code, and what it said."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=surroundings(),
        timeout=timeout,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def installed(environment: Environment) -> bool:
    """Tell whether what is installed has these extras and is of today's clone."""
    wanted = set(filter(None, environment.extras.split(",")))
    for stamp in (ROOT / environment.folder).glob("installed-*"):
        extras = stamp.name[len("installed-") :].replace("-", ",")
        if extras == "core":
            extras = ""
        same = environment._replace(extras=extras)
        if wanted <= set(extras.split(",")) and stamp.read_text() == same.fingerprint():
            return True
    return False


def install(environment: Environment) -> None:
    """Install the clone, editable, with its extras.

    pip's own words go to a log inside the environment.
    """
    what = f".[{environment.extras}]" if environment.extras else "."
    command = [
        *pip_of(environment),
        "install",
        "--disable-pip-version-check",
        "--no-input",
        # pip would compile all of a large package. Python compiles what is imported,
        # which is little of it.
        "--no-compile",
        "--retries",
        "2",
        "-e",
        what,
        *environment.wanted,
    ]
    log = ROOT / environment.folder / "install.log"
    packages = " ".join([what, *environment.wanted])
    with step(f"installing {packages} into {environment.folder}"):
        with log.open("wb") as output:
            variables = pip_surroundings(environment)
            code = subprocess.call(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=str(ROOT),
                env=variables,
            )
        if code:
            raise Trouble(why_not_installed(log))
        environment.stamp().write_text(environment.fingerprint())


def pip_of(environment: Environment) -> list:
    """Return the command of the pip that installs into this environment."""
    pip = Environment(WITH_PIP).executable()
    return [str(pip), "-m", "pip", "--python", str(environment.executable())]


def why_not_installed(log: Path) -> str:
    """Return what stopped pip, and the remedy, in one line."""
    text = log.read_text(errors="replace")
    if any(sign in text for sign in OFFLINE):
        return (
            "pip could not reach a package index: connect to the network, or point "
            "pip at a mirror (PIP_INDEX_URL) or a folder of wheels (PIP_FIND_LINKS), "
            "and run the same command again"
        )
    errors = [line for line in text.splitlines() if line.strip().startswith("ERROR:")]
    why = last_line("\n".join(errors) or text)
    return (
        f"pip failed ({why}): see {log.relative_to(ROOT)}, put that right and run the "
        "same command again"
    )


def last_line(text: str) -> str:
    """Return the last line that says something, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


def pip_surroundings(environment: Environment) -> dict:
    """Return the variables for pip.

    The build constraints have two names: pip before 25.3 reads one, later ones the
    other.
    """
    variables = surroundings()
    if environment.build:
        constraints = ROOT / environment.folder / "build-constraints.txt"
        constraints.write_text("\n".join(environment.build) + "\n")
        # pip splits these variables at spaces, and a URL has none.
        url = constraints.as_uri()
        variables["PIP_CONSTRAINT"] = url
        variables["PIP_BUILD_CONSTRAINT"] = url
    return variables


def surroundings() -> dict:
    """Return the variables for everything that runs here.

    Caches, scratch files and notebook settings stay inside the clone.
    """
    scratch = ROOT / ".tmp"
    scratch.mkdir(exist_ok=True)
    variables = dict(os.environ, PIP_CACHE_DIR=str(scratch / "pip"))
    # A thousand Pythons start in a suite, and each would compile what it imports.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in (
        "IPYTHONDIR",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
    ):
        variables[name] = str(scratch / "jupyter")
    # In a clone that lies deeper, sockets go where the system puts them.
    if len(str(scratch)) <= LONGEST_SCRATCH:
        variables["TMPDIR"] = str(scratch)
    return variables


def run(python: Path, *arguments: str, timeout=None) -> int:
    """Run the environment's Python in the root of the clone; return its exit code.

    It runs on this terminal.
    """
    with subprocess.Popen(
        [str(python), *arguments], cwd=str(ROOT), env=surroundings()
    ) as process:
        try:
            return process.wait(timeout)
        except KeyboardInterrupt:
            # The terminal has interrupted the process too: let it say its own last
            # words before this one ends.
            process.wait()
            raise
        except subprocess.TimeoutExpired:
            process.kill()
            raise
