"""Every Python block of the README and of docs/ runs, in the order of the page."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, *sorted((ROOT / "docs" / "reference").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
EXCERPTS = ROOT / "docs" / "clients.md"  # of programs that test_clients.py runs
RUN = [page for page in PAGES if page != EXCERPTS]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _marked(page: Path) -> Any:
    """torch's page belongs where torch is."""
    needs_torch = "import torch\n" in page.read_text()
    return pytest.param(page, id=page.name, marks=[pytest.mark.torch] if needs_torch else [])


@pytest.mark.parametrize("page", [_marked(page) for page in RUN if _BLOCK.search(page.read_text())])
def test_the_examples_of_a_page_run_as_one_script(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(_BLOCK.findall(page.read_text())))
    if "import chainer\n" in script.read_text():
        pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")
    if "import torch\n" in script.read_text():
        pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_examples_of_clients_stand_in_programs_that_run() -> None:
    programs = [path.read_text() for path in (ROOT / "tests" / "programs" / "clients").glob("*.py")]
    blocks = _BLOCK.findall(EXCERPTS.read_text())
    assert blocks
    forms = {block: [textwrap.indent(block, depth * " ") for depth in (0, 4, 8)] for block in blocks}
    assert [block for block in blocks if not any(form in text for form in forms[block] for text in programs)] == []


@pytest.mark.parametrize("page", LINKING, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+\.\w+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_files_named_in_the_readme_exist() -> None:
    named = re.findall(r"`((?:tests|bench|docs)/[\w/]+\.\w+)`", (ROOT / "README.md").read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
