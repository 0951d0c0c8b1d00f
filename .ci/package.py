"""Check the package as users get it, from the wheel and from the sdist.

It is built twice and compared, checked, and installed with nothing but what the core
needs.

    python .ci/package.py [--at ADDRESS TAG] [FOLDER]

If a FOLDER is named, wheel and sdist are left there.

Runs in an environment with `build`, `twine` and what builds (the extra `package`).  The
builds are of two copies of the commit, so that neither the time nor what lies about in
the working tree can show.  With `--at`, the address of the repository and a tag, the
copies are those to publish: the links of their README lead to the tagged files, and
their pyproject.toml has URLs.
"""

import argparse
import os
import re
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
samples = [(0.5, i) for i in range(10)]
with mpiter.batches(samples, 4, n_processes=2, shuffle=False) as stream:
    assert [y.tolist() for _, y in stream] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
"""


NOT_YET = "mpiter isn't on PyPI yet. Install it with `pip install /path/to/clone`"
URLS = """\
[project.urls]
Homepage = "{0}"
Documentation = "{0}/tree/{1}/docs"
Changelog = "{0}/blob/{1}/CHANGELOG.md"
Issues = "{0}/issues"

"""


def run(*command, **options) -> str:
    """Run a command; what it prints is shown if it fails."""
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{text}")
    return text


def published(readme: str, pyproject: str, address: str, tag: str) -> tuple:
    """Return both texts for a package index.

    Links are absolute, the installation is by name, and there are URLs.
    """

    def absolute(link: re.Match) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({address}/{kind}/{tag}/{link[3]})"

    readme = readme.replace(NOT_YET, "Install it with `pip install mpiter`")
    readme = re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)", absolute, readme)
    table = "[project.optional-dependencies]"
    return readme, pyproject.replace(table, URLS.format(address, tag) + table)


def build(where: Path, variables: dict, at: list) -> dict:
    """Build wheel and sdist of a copy of the commit; return them by name."""
    run("git", "clone", "--quiet", ROOT, where / "source")
    if at:
        readme = where / "source" / "README.md"
        pyproject = where / "source" / "pyproject.toml"
        texts = published(readme.read_text(), pyproject.read_text(), *at)
        readme.write_text(texts[0])
        pyproject.write_text(texts[1])
    command = [sys.executable, "-m", "build", "--no-isolation"]
    command += ["--outdir", where / "dist"]
    run(*command, cwd=where / "source", env=variables)
    return {path.name: path.read_bytes() for path in sorted((where / "dist").iterdir())}


def main(arguments: list) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--at", nargs=2, metavar=("ADDRESS", "TAG"), default=[])
    options = parser.parse_args(arguments)
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    variables = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    with tempfile.TemporaryDirectory() as scratch:
        first = Path(scratch, "first")
        second = Path(scratch, "second")
        away = Path(scratch, "away")
        built = build(first, variables, options.at)
        again = build(second, variables, options.at)
        differ = [name for name, data in again.items() if built.get(name) != data]
        if differ or len(built) != 2:
            sys.exit(f"two builds of one commit differ: {differ or sorted(built)}")
        print(f"two builds are the same: {', '.join(built)}")
        packages = list((first / "dist").iterdir())
        checked = run(sys.executable, "-m", "twine", "check", "--strict", *packages)
        print(checked.strip())
        run(sys.executable, "-m", "venv", "--without-pip", away)
        python = away / "bin" / "python"
        (wheel,) = (first / "dist").glob("*.whl")
        pip = (sys.executable, "-m", "pip", "--python", python)
        run(*pip, "install", "--quiet", "--no-compile", wheel)
        run(python, "-c", USED, cwd=away)
        run(python, "-m", "mpiter", "doctor", cwd=away)
        print("the wheel works without any extra, and so does `mpiter doctor`")
        if options.folder:
            shutil.copytree(first / "dist", options.folder, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
