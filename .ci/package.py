"""The package as users get it: built twice and compared, checked, and installed with
nothing but what the core needs.

    python .ci/package.py [--at ADDRESS TAG] [FOLDER]      # leaves wheel and sdist in FOLDER, if one is named

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
with mpiter.batches([(0.5, i) for i in range(10)], 4, n_processes=2, shuffle=False) as stream:
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
    """Runs a command; what it prints is shown if it fails."""
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
    """Both texts for a package index: links are absolute, the installation is by name,
    and there are URLs.
    """

    def absolute(link: re.Match) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({address}/{kind}/{tag}/{link[3]})"

    readme = readme.replace(NOT_YET, "Install it with `pip install mpiter`")
    readme = re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)", absolute, readme)
    table = "[project.optional-dependencies]"
    return readme, pyproject.replace(table, URLS.format(address, tag) + table)


def build(where: Path, variables: dict, at: list) -> dict:
    """Wheel and sdist of a copy of the commit, by name."""
    run("git", "clone", "--quiet", ROOT, where / "source")
    if at:
        files = [where / "source" / name for name in ("README.md", "pyproject.toml")]
        for file, text in zip(
            files, published(*(file.read_text() for file in files), *at), strict=True
        ):
            file.write_text(text)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        where / "dist",
    ]
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
        first, second, away = (
            Path(scratch) / name for name in ("first", "second", "away")
        )
        built = build(first, variables, options.at)
        differ = [
            name
            for name, data in build(second, variables, options.at).items()
            if built.get(name) != data
        ]
        if differ or len(built) != 2:
            sys.exit(f"two builds of one commit differ: {differ or sorted(built)}")
        print(f"two builds are the same: {', '.join(built)}")
        print(
            run(
                sys.executable,
                "-m",
                "twine",
                "check",
                "--strict",
                *(first / "dist").iterdir(),
            ).strip()
        )
        run(sys.executable, "-m", "venv", "--without-pip", away)
        python, (wheel,) = away / "bin" / "python", (first / "dist").glob("*.whl")
        run(
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-compile",
            wheel,
        )
        run(python, "-c", USED, cwd=away)
        run(python, "-m", "mpiter", "doctor", cwd=away)
        print("the wheel works without any extra, and so does `mpiter doctor`")
        if options.folder:
            shutil.copytree(first / "dist", options.folder, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
