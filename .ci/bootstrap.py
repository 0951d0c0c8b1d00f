"""The way from a fresh clone to a running command, with nothing but Python's standard
library.

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
# Its pip installs into the other environments too: pip in each would take ten seconds
# each.
WITH_PIP = ".venv"
TORCH = "torch==2.13.0"
# Its sdist imports pkg_resources, which newer ones have not.
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
    """A virtual environment of the clone: its folder, its interpreter, and what is
    installed in it.
    """

    folder: str
    python: str = sys.executable
    extras: str = ""
    # Further requirements, in pip's words.
    wanted: tuple = ()
    # Constraints on what builds source distributions.
    build: tuple = ()

    def executable(self) -> Path:
        """The interpreter inside."""
        return (
            ROOT
            / self.folder
            / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        )

    def stamp(self) -> Path:
        """The file that remembers what these extras were installed from."""
        return (
            ROOT
            / self.folder
            / "installed-{}".format(self.extras.replace(",", "-") or "core")
        )

    def fingerprint(self) -> str:
        """Changes when the installation has to be done again."""
        made_from = repr((str(ROOT), self.extras, self.wanted)).encode()
        return hashlib.sha256(
            made_from + (ROOT / "pyproject.toml").read_bytes()
        ).hexdigest()


def start(main, folder: str) -> None:
    """Runs `main` and ends the process with its exit code; trouble becomes one line,
    never a traceback.
    """
    try:
        require_python(folder)
        require_venv()
        sys.exit(main(sys.argv[1:]))
    except Trouble as trouble:
        # To stderr, with exit code 1.
        sys.exit(f"mpiter: {trouble}")
    except KeyboardInterrupt:
        sys.exit(130)


def require_python(folder: str) -> None:
    """Stops on a Python too old, naming one that would do if this machine has it."""
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
    """Stops where Python came without `venv` or `ensurepip`, as some distributions
    split them off.
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
    """The command of a Python that is new enough, the newest known first, or None."""
    for minor in (13, 12, 11):
        found = find_python(f"3.{minor}")
        if found:
            name = f"python3.{minor}"
            return name if probe(name) else found
    return None


def find_python(version: str):
    """The path of a working interpreter of this version ("3.12") with venv, on PATH or
    among pyenv's; or None.
    """
    candidates = ["python" + version]
    candidates += sorted(
        map(str, pyenv_versions().glob(f"{version}.*/bin/python")), reverse=True
    )
    for candidate in candidates:
        answer = probe(candidate)
        if answer and answer[0] == version:
            return answer[1]
    return None


def probe(command):
    """(version, path) of an interpreter that can make environments, or None: a name on
    PATH may be an empty shim.
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
    return (
        tuple(answer.stdout.decode().splitlines()) if answer.returncode == 0 else None
    )


def pyenv_versions() -> Path:
    """Where pyenv keeps its interpreters; a folder that need not exist."""
    pyenv = shutil.which("pyenv")
    if not pyenv:
        return ROOT / "no-pyenv"
    root = (
        subprocess.run(
            [pyenv, "root"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        .stdout.decode()
        .strip()
    )
    return Path(root or str(ROOT / "no-pyenv")) / "versions"


@contextlib.contextmanager
def step(text: str):
    """Says what is being done, and when it is done how long it took."""
    print(text, end=" ... ", flush=True)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        print(f"failed after {time.monotonic() - began:.1f} s", flush=True)
        raise
    print(f"{time.monotonic() - began:.1f} s", flush=True)


def prepare(environment: Environment) -> Path:
    """Makes and fills the environment unless it stands already; gives its
    interpreter.
    """
    stand(environment)
    if not installed(environment):
        install(environment)
    return environment.executable()


def stand(environment: Environment) -> None:
    """Makes the environment, empty, unless it stands."""
    if not usable(environment):
        make(environment)


def usable(environment: Environment) -> bool:
    """Whether the environment runs, has pip if it should, and is of the interpreter
    asked for.
    """
    question = "import sys{}; print(sys.version)".format(
        ", pip" if environment.folder == WITH_PIP else ""
    )
    wanted = sys.version if environment.python == sys.executable else None
    try:
        answer = subprocess.run(
            [str(environment.executable()), "-c", question],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    return answer.returncode == 0 and (
        wanted is None or answer.stdout.decode().startswith(wanted)
    )


def make(environment: Environment) -> None:
    """Makes the environment, empty; one that no longer runs or is of another Python
    gives way.
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
            # The newest pip takes two thirds of the time; where there is no way to it,
            # Python's own serves.
            python = str(environment.executable())
            if silently(
                [sys.executable, "-m", "pip", "--python", python, "install", "pip"]
            )[0]:
                code, said = silently([python, "-m", "ensurepip"])
        if code:
            why = last_line(said)
            raise Trouble(
                f"could not make {environment.folder} ({why}): put that right and run "
                "the same command again"
            )


def silently(command: list) -> tuple:
    """Runs a command; its exit code, and what it said."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=surroundings()
    )
    return done.returncode, done.stdout.decode(errors="replace")


def installed(environment: Environment) -> bool:
    """Whether these extras, and perhaps more, were installed from what the clone says
    today.
    """
    wanted = set(filter(None, environment.extras.split(",")))
    for stamp in (ROOT / environment.folder).glob("installed-*"):
        extras = (
            ""
            if stamp.name == "installed-core"
            else stamp.name[len("installed-") :].replace("-", ",")
        )
        same = environment._replace(extras=extras)
        if wanted <= set(extras.split(",")) and stamp.read_text() == same.fingerprint():
            return True
    return False


def install(environment: Environment) -> None:
    """Installs the clone, editable, with its extras; pip's own words go to a log inside
    the environment.
    """
    what = f".[{environment.extras}]" if environment.extras else "."
    command = [
        *pip_of(environment),
        "install",
        "--disable-pip-version-check",
        "--no-input",
    ]
    # Python compiles what is imported, which of a large package is little.
    command += ["--no-compile"]
    command += ["--retries", "2", "-e", what, *environment.wanted]
    log = ROOT / environment.folder / "install.log"
    with step(
        "installing {} into {}".format(
            " ".join([what, *environment.wanted]), environment.folder
        )
    ):
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
    """The command of the pip that installs into this environment."""
    pip = Environment(WITH_PIP).executable()
    return [str(pip), "-m", "pip", "--python", str(environment.executable())]


def why_not_installed(log: Path) -> str:
    """What stopped pip, and the remedy, in one line."""
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
    """The last line that says something, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


def pip_surroundings(environment: Environment) -> dict:
    """The variables for pip, the build constraints under both names: pip reads one
    before 25.3, the other since.
    """
    variables = surroundings()
    if environment.build:
        constraints = ROOT / environment.folder / "build-constraints.txt"
        constraints.write_text("\n".join(environment.build) + "\n")
        # A URL: no spaces in it.
        variables["PIP_CONSTRAINT"] = variables["PIP_BUILD_CONSTRAINT"] = (
            constraints.as_uri()
        )
    return variables


def surroundings() -> dict:
    """The variables for everything run here: caches, scratch files and notebook
    settings stay inside the clone.
    """
    scratch = ROOT / ".tmp"
    scratch.mkdir(exist_ok=True)
    variables = dict(os.environ, PIP_CACHE_DIR=str(scratch / "pip"))
    # A thousand Pythons start in a suite: what they import is kept.
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
    """Runs the environment's Python in the root of the clone, on this terminal; gives
    its exit code.
    """
    with subprocess.Popen(
        [str(python), *arguments], cwd=str(ROOT), env=surroundings()
    ) as process:
        try:
            return process.wait(timeout)
        except KeyboardInterrupt:
            # It was interrupted too, and has its own last words.
            process.wait()
            raise
        except subprocess.TimeoutExpired:
            process.kill()
            raise
