"""The pictures of the documentation show what was measured."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000


def test_a_picture_is_what_its_results_give() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "site" / "pictures.py"))
    for name in ("speed", "timeline"):
        assert (PICTURES / f"{name}.svg").read_text() == made[name](), name


def test_the_speed_chart_has_the_figures_of_the_table() -> None:
    texts = [
        element.text for element in ElementTree.parse(PICTURES / "speed.svg").iter() if element.tag.endswith("text")
    ]
    table = (ROOT / "docs" / "performance.md").read_text()
    rows = re.findall(r"^\| (?:\*\*mpiter\*\*.*|Chainer 7.*|torch 2.*|limit) \|.*$", table, re.MULTILINE)
    in_table = [figure for row in rows[:6] for figure in re.findall(r"(?<=[ *])~?[\d,]+(?=[* ]+\|)", row)]
    in_picture = [
        figure.removeprefix("limit ") for text in texts if re.fullmatch(r"(limit )?~?[\d,]+", figure := text or "")
    ]
    assert len(in_table) == 30
    assert sorted(in_picture) == sorted(in_table)


def test_pictures_are_small_and_used() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text() for page in pages)
    for picture in PICTURES.iterdir():
        assert picture.stat().st_size <= MOST_BYTES
        assert f"pictures/{picture.name})" in shown
