"""Every Python block of the README and of docs/ runs, in the page's order.

Messages are quoted as they are.

A block that begins with the command by which it is started is a program of its own, of
several ranks.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pytest

import mpiter
from mpiter import errors, images

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [
    *PAGES,
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")),
]
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
# The blocks of this page are parts of programs that test_clients.py runs.
EXCERPTS = ROOT / "docs" / "clients.md"
# The README and the tutorial are left to test_tutorial.py, recipes to test_recipes.py.
ELSEWHERE = ("README.md", "tutorial.md", "recipes.md")
RUN = [page for page in PAGES if page != EXCERPTS and page.name not in ELSEWHERE]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LAUNCHED = "# torchrun "
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_ENDS_RANK_1 = """
import os, signal
if os.environ["RANK"] == "1":
    steps = iter(range(100))
    def strike(*_):
        if next(steps) == 15:
            open("struck", "w").close()
            signal.raise_signal(signal.SIGTERM)
    optimizer.register_step_pre_hook(strike)
"""


def _scripts() -> Iterator[Any]:
    """The blocks of each page, joined, but for programs of several ranks."""
    for page in RUN:
        blocks = [
            block
            for block in _BLOCK.findall(page.read_text())
            if not block.startswith(_LAUNCHED)
        ]
        text = "\n".join(blocks)
        if text:
            needs_torch = "import torch\n" in text
            marks = [pytest.mark.torch] if needs_torch else []
            yield pytest.param(text, id=page.name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("text", list(_scripts()))
def test_the_examples_of_a_page_run_as_one_script(text: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    # Imports come first, as in a program: workers are started with them imported.
    imports = re.findall(r"^(?:import|from) .*$", text, re.MULTILINE)
    script.write_text("\n".join([*imports, text]))
    for library, name in (
        ("chainer", "Chainer"),
        ("PIL", "Pillow"),
        ("torch", "torch"),
    ):
        if re.search(rf"^(import|from) {library}\b", text, re.MULTILINE):
            pytest.importorskip(
                library, reason=f"{name} is not installed: run `python3 tests --all`"
            )
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")


def _programs_of_ranks() -> Iterator[Any]:
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            if block.startswith(_LAUNCHED):
                before = page.read_text().partition(block)[0]
                heading = re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1]
                yield pytest.param(block, id=heading, marks=launched.with_torch)


@pytest.mark.slow
@pytest.mark.parametrize("text", list(_programs_of_ranks()))
def test_a_program_of_ranks_ends_alike_whether_a_signal_to_one_of_them_came_in_between(
    text: str, tmp_path: Path
) -> None:
    first, _ = text.split("\n", 1)
    *by, name = shlex.split(first.removeprefix("# "))
    assert name == "train.py"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    interrupted = re.sub(
        r"^optimizer = .*\n",
        lambda line: line[0] + _ENDS_RANK_1,
        text,
        flags=re.MULTILINE,
    )
    assert interrupted != text

    def ran(folder: str, text: str) -> tuple[int, str, str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        return launched.launch(tmp_path / folder, by, text, PATH=path)

    code, wanted, _ = ran("whole", text)
    assert (code, wanted == "") == (0, False)
    code, out, err = ran("interrupted", interrupted)
    assert code != 0
    assert (tmp_path / "interrupted" / "struck").exists(), err
    assert wanted.splitlines()[-1] not in out
    code, out, err = ran("interrupted", text)
    assert (code, out.splitlines()[-1:]) == (0, wanted.splitlines()[-1:]), err


def _code(text: str) -> str:
    """Return the words of a program, without its layout and its comments.

    Lines of the pages are longer than those of the programs, so both break elsewhere.
    """
    words = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT
    ]
    # A call that is broken over several lines has a comma before the bracket.
    return re.sub(r" , (?=[)\]}])", " ", " ".join(words))


def test_the_examples_of_clients_stand_in_programs_that_run() -> None:
    paths = (ROOT / "tests" / "programs" / "clients").glob("*.py")
    programs = [_code(path.read_text()) for path in paths]
    blocks = _BLOCK.findall(EXCERPTS.read_text())
    assert blocks
    missing = []
    for block in blocks:
        if not any(_code(block) in program for program in programs):
            missing.append(block)
    assert missing == []


def test_the_pages_are_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
    pages = (ROOT / "docs").rglob("*.md")
    assert sum(len(page.read_text().split()) for page in pages) <= 30_000


def test_the_new_line_in_the_readme_gives_the_batches_of_the_line_it_replaces() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    theirs, ours = (line[1:] for line in lines if line[1:].startswith("batches = "))
    files = range(200)
    pictures = [np.full((4, 4), name, np.uint8) for name in files]
    known = {"np": np, "mpiter": mpiter, "files": files, "n": len(files)}
    expected = known | {"decode": pictures.__getitem__}
    found = known | {"images": pictures}
    exec(theirs, expected)
    exec(ours, found)
    with found["batches"] as batches:
        for one, other in zip(expected["batches"], batches, strict=True):
            assert np.array_equal(one, other)


def test_files_named_in_the_pages_exist() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    named = re.findall(r"`((?:tests|bench|docs|examples)/[\w/]+\.\w+)`", pages)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def _told(node: ast.expr) -> str:
    """A string of the source, with … for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_told, values))
    return "…"


def _phrases(text: str) -> list[str]:
    phrases = (
        " ".join(part.strip(" .;:(,)").split())
        for part in re.split(r"…|(?<=[.?]) ", text)
    )
    return [phrase for phrase in phrases if len(phrase) > 2]


def test_messages_are_those_of_the_source() -> None:
    page = TROUBLESHOOTING.read_text()
    nodes = [
        node
        for path in ROOT.glob("mpiter/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    strings = [
        " ".join(_told(node).split())
        for node in nodes
        if isinstance(node, (ast.Constant, ast.JoinedStr))
    ]
    source = "\n".join(strings)
    headings = re.findall(r"^### (.*)$", page, re.MULTILINE)
    quoted = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    messages = [
        re.sub(r"^[A-Z]\w+: ", "", line)
        for block in quoted
        for line in block.splitlines()
    ]
    assert len(headings) == len(quoted)
    assert [heading for heading in headings if heading not in source] == []
    phrases = [phrase for message in messages for phrase in _phrases(message)]
    assert [phrase for phrase in phrases if phrase not in source] == []


def test_kinds_of_messages_are_those_that_there_are() -> None:
    kinds = set(re.findall(r"^([A-Z]\w+): ", TROUBLESHOOTING.read_text(), re.MULTILINE))
    here = {*dir(errors), *dir(images), *dir(builtins), "TimeoutWarning"}
    assert kinds
    assert kinds <= here


def test_every_extra_that_is_named_is_there() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    _, _, following = project.partition("[project.optional-dependencies]\n")
    section = following.partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
    sources = [*LINKING]
    for folder in ("mpiter", "tests", "examples", "bench"):
        sources += (ROOT / folder).rglob("*.py")
    asked: dict[str, str] = {}
    for path in sources:
        for found in re.findall(
            r"""(?:mpiter|\.)\[([a-z,]+)\]|extras="([a-z,]+)\"""", path.read_text()
        ):
            asked |= dict.fromkeys("".join(found).split(","), path.name)
    assert {"images", "bench", "pytest"} <= set(asked)
    assert not {name: where for name, where in asked.items() if name not in extras}


def test_what_the_tests_install_is_bounded_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The file puts a folder on sys.path, which is undone with this.
    monkeypatch.setattr(sys, "path", [*sys.path])
    runner = runpy.run_path(str(ROOT / "tests" / "__main__.py"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"]
    wanted = [one for packages in extras.values() for one in packages]
    bounded = [one for one in wanted if not one.startswith("mpiter[")]
    bounded += [*runner["CLIENTS"], *runner["WITH_TORCH"], *runner["CHAINERS_COMPANY"]]
    assert [one for one in bounded if "<" not in one and "==" not in one] == []


def test_the_published_readme_has_absolute_links_and_the_package_has_urls() -> None:
    texts = [(ROOT / name).read_text() for name in ("README.md", "pyproject.toml")]
    address = "https://example.org/mpiter"
    published = runpy.run_path(str(ROOT / ".ci" / "package.py"))["published"]
    readme, pyproject = published(*texts, address, "v1")
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert f"{address}/raw/v1/docs/pictures/speed.svg" in links
    assert [link for link in links if not link.startswith(f"{address}/")] == []
    assert "`pip install mpiter`" in readme
    assert tomllib.loads(pyproject)["project"]["urls"]["Homepage"] == address
