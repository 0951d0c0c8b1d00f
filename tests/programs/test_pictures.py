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


def test_the_section_on_orders_is_what_its_results_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    made = runpy.run_path(str(ROOT / "docs" / "site" / "orders_table.py"))
    text = (ROOT / "docs" / "performance.md").read_text()
    if not made["ORDERS"].exists():
        assert made["HEADING"] not in text, "there are no results for it"
        return
    result = json.loads(made["ORDERS"].read_text())
    planned = json.loads(made["PLANNING"].read_text())
    same = made["page"](text, result, planned)
    assert same == text, "run docs/site/orders_table.py"
    assert (PICTURES / "orders.svg").read_text() == made["orders"](result)


def test_the_section_on_orders_says_what_was_not_measured_and_what_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    made = runpy.run_path(str(ROOT / "docs" / "site" / "orders_table.py"))
    exact = {"row": "ours", "lost": 0, "twice": 0, "bad": 0, "says": "exact"}
    raised = {"row": "grain", "lost": 2, "twice": 0, "bad": 3, "says": "Error; 2 lost"}
    refused = {"row": "grain", "case": "ranks", "bad": 1.0, "says": "refuses: Error"}
    absent = {"row": "grain", "case": "edited", "absent": "not documented: why"}
    result = {
        "versions": {"ours": {}, "grain": {"grain": "0.2.18"}},
        "settings": {"workers": 2},
        "summary": [
            {"case": "rows", "row": "ours", "padding": {"median": 0.061, "iqr": 0.001}},
            {"case": "rows", "row": "grain", "padding": {"median": 2.0, "iqr": 1.0}},
        ],
        "turns": [
            {**exact, "case": "worker"},
            {**raised, "case": "worker"},
            {**raised, "case": "worker", "lost": 4, "bad": 5},
            refused,
            absent,
        ],
    }
    text = made["section"](result, result)
    assert "| **mpiter** | – | – | – | – | 0.06 % | – | – |" in text
    assert "| grain 0.2.18 | – | – | – | – | ~2.00 % | – | – |" in text
    assert "| **mpiter** | exact | – | – | – | – |" in text
    cells = "raises; resumed: 2 to 4 lost | – | refuses | – | not documented"
    assert f"| grain 0.2.18 | {cells} |" in text
    page = f"before\n\n{made['NEXT']}\n\nafter\n"
    once = made["page"](page, result, result)
    assert once == made["page"](once, result, result)
    assert once.endswith(page.removeprefix("before\n\n"))
    ElementTree.fromstring(made["orders"](result))


def test_pictures_are_small_and_used() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text() for page in pages)
    for picture in PICTURES.iterdir():
        assert picture.stat().st_size <= MOST_BYTES
        assert f"pictures/{picture.name})" in shown
