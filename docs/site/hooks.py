"""What the site has beside the pages of `docs/`.

The README is its start, and the files that pages link to are in it.

On a code host a page's links may lead anywhere in the repository.  Here they lead to
the page made of that file, to a copy of it, or, where a folder is meant, to a page that
lists it; a link to what doesn't exist stays and ends the build. And the examples in
docstrings are code.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).resolve().parents[2]
# The pages from the top of the repository, by their names there and on the site.
TOP = {"README.md": "index.md"} | {
    name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
}
PAGES = {source: page for source, page in TOP.items() if (ROOT / source).exists()}
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_EXAMPLE = re.compile(r"^>>> .*(?:\n.*\S.*)*", re.MULTILINE)
# The beginnings of cells that have a digit and no word.
_FIGURES = re.compile(r"<td>(?=[^<a-z]*\d[^<a-z]*</td>)")
_CODE = HtmlFormatter(style="default").get_style_defs(".highlight")
_STYLE = """\
.wy-nav-content { max-width: 1000px }
.rst-content pre > code { border: 0; padding: 0 }
.rst-content table td, .rst-content table th { white-space: normal }
.rst-content table { display: block; overflow-x: auto }
.rst-content img { max-width: 100% }
@media (max-width: 500px) {
  .rst-content table.docutils td, .rst-content table.docutils th {
    padding: 4px 6px; font-size: 13px; min-width: 8em
  }
  .rst-content table.docutils code { overflow-wrap: anywhere; white-space: normal }
  .rst-content table.docutils td.figures { white-space: nowrap; min-width: 0 }
}
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the top, the styles, and what is linked outside of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "pygments.css", content=_CODE))
    files.append(File.generated(config, "pages.css", content=_STYLE))
    for page in list(files.documentation_pages()):
        for path in _outside(page.content_string, page.src_uri):
            if files.get_file_from_path(_place(path)) is None:
                _add(files, config, path)
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Have links lead to where things are here."""
    here = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        path = _meant(match[1], here)
        if path is None:
            # It leads nowhere: as it stays, the strict build fails at it.
            return match[1]
        return posixpath.relpath(_place(path), posixpath.dirname(here) or ".")

    return _LINK.sub(led, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark the cells of figures, which aren't broken where the screen is narrow.

    The table is scrolled instead.
    """
    return _FIGURES.sub('<td class="figures">', html)


def _meant(link: str, page: str) -> str | None:
    """Return the file or folder of the repository that a link leads to, or None."""
    source = next((top for top, name in PAGES.items() if name == page), f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path.startswith("..") or not (ROOT / path).exists():
        return None
    return path


def _outside(markdown: str, page: str) -> Iterator[str]:
    for link in _LINK.findall(markdown):
        path = _meant(link, page)
        if path is not None and path not in PAGES and not path.startswith("docs/"):
            yield path


def _place(path: str) -> str:
    """Return the place on the site of a path of the repository."""
    if path in PAGES or path.startswith("docs/"):
        return PAGES.get(path, path.removeprefix("docs/"))
    if (ROOT / path).is_dir():
        return f"files/{path}/index.md"
    return f"files/{path}"


def _add(files: Files, config: MkDocsConfig, path: str) -> None:
    if not (ROOT / path).is_dir():
        copy = File.generated(config, _place(path), abs_src_path=str(ROOT / path))
        files.append(copy)
        return
    files.append(File.generated(config, _place(path), content="\n".join(_listed(path))))
    for file in _files(path):
        if file.suffix != ".py":
            place = f"files/{path}/{file.name}"
            files.append(File.generated(config, place, abs_src_path=str(file)))


def _files(path: str) -> list[Path]:
    files = [file for file in (ROOT / path).iterdir() if file.is_file()]
    return sorted(file for file in files if not file.name.startswith("."))


def _listed(path: str) -> Iterator[str]:
    """Yield the lines of a page on a folder.

    Of a package it shows the picture and what each module is, else the files.
    """
    yield f"# {path}/\n"
    if (ROOT / path / "__init__.py").exists():
        picture = _said(ROOT / path / "__init__.py").replace("\n::\n", "")
        yield f"```text\n{picture}\n```\n"
    for file in _files(path):
        if file.suffix != ".py":
            yield f"* [{file.name}]({file.name})"
        elif file.name != "__init__.py":
            paragraph, _, _ = _said(file).partition("\n\n")
            yield f"* **{file.name}**: {' '.join(paragraph.split())}"


def _said(module: Path) -> str:
    return ast.get_docstring(ast.parse(module.read_text())) or ""


class Examples(griffe.Extension):
    """Shows doctests as code; to Markdown they are quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(
                r"```pycon\n\g<0>\n```", obj.docstring.value
            )
