"""The package as users get it: built twice and compared, checked, and installed with nothing but what the core needs.

    python .ci/package.py [FOLDER]      # leaves wheel and sdist in FOLDER, if one is named

Runs in an environment with `build`, `twine` and what builds (the extra `package`).  The builds are of two copies of the
commit, so that neither the time nor what lies about in the working tree can show.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USED = """
import sys
import mpiter
assert not {"torch", "jax", "ray", "PIL", "chainer"} & set(sys.modules)
assert "site-packages" in mpiter.__file__, mpiter.__file__
with mpiter.batches([(0.5, i) for i in range(10)], 4, n_processes=2, shuffle=False) as stream:
    assert [y.tolist() for _, y in stream] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
"""


def run(*command, **options) -> str:
    """Runs a command; what it prints is shown if it fails."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{text}")
    return text


def build(where: Path, variables: dict) -> dict:
    """Wheel and sdist of a copy of the commit, by name."""
    run("git", "clone", "--quiet", ROOT, where / "source")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", where / "dist"]
    run(*command, cwd=where / "source", env=variables)
    return {path.name: path.read_bytes() for path in sorted((where / "dist").iterdir())}


def main(arguments: list) -> int:
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    variables = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    with tempfile.TemporaryDirectory() as scratch:
        first, second, away = (Path(scratch) / name for name in ("first", "second", "away"))
        built = build(first, variables)
        differ = [name for name, data in build(second, variables).items() if built.get(name) != data]
        if differ or len(built) != 2:
            sys.exit(f"two builds of one commit differ: {differ or sorted(built)}")
        print(f"two builds are the same: {', '.join(built)}")
        print(run(sys.executable, "-m", "twine", "check", "--strict", *(first / "dist").iterdir()).strip())
        run(sys.executable, "-m", "venv", "--without-pip", away)
        python, (wheel,) = away / "bin" / "python", (first / "dist").glob("*.whl")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", wheel)
        run(python, "-c", USED, cwd=away)
        run(python, "-m", "mpiter", "doctor", cwd=away)
        print("the wheel works without any extra, and so does `mpiter doctor`")
        if arguments:
            shutil.copytree(first / "dist", arguments[0], dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
