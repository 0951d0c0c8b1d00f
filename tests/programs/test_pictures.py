"""The documentation's pictures and tables of speed show what was measured."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000


def test_a_picture_is_what_its_results_give() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "site" / "pictures.py"))
    for name in ("speed", "timeline"):
        assert (PICTURES / f"{name}.svg").read_text() == made[name](), name


def test_the_speed_chart_has_the_figures_of_the_table() -> None:
    elements = ElementTree.parse(PICTURES / "speed.svg").iter()
    texts = [element.text or "" for element in elements if element.tag.endswith("text")]
    table = (ROOT / "docs" / "performance.md").read_text()
    rows = re.findall(
        r"^\| (?:\*\*mpiter\*\*.*|Chainer 7.*|torch 2.*|limit) \|.*$",
        table,
        re.MULTILINE,
    )
    in_table = []
    for row in rows[:7]:
        in_table += re.findall(r"(?<=[ *])~?[\d,]+(?=[* ]+\|)", row)
    figures = [text for text in texts if re.fullmatch(r"(limit )?~?[\d,]+", text)]
    in_picture = [figure.removeprefix("limit ") for figure in figures]
    assert len(in_table) == 35
    assert sorted(in_picture) == sorted(in_table)


def test_the_tables_of_speed_are_what_its_results_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    made = runpy.run_path(str(ROOT / "docs" / "site" / "tables.py"))
    result = json.loads((ROOT / "bench" / "results" / "transport.json").read_text())
    text = (ROOT / "docs" / "performance.md").read_text()
    assert made["page"](text, result) == text, "run docs/site/tables.py"


def test_pictures_are_small_and_used() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text() for page in pages)
    for picture in PICTURES.iterdir():
        assert picture.stat().st_size <= MOST_BYTES
        assert f"pictures/{picture.name})" in shown
