"""A sheet that a plot is drawn on: matplotlib's figure, and the way from there to an element of the page.

Guarantees that texts stay texts, in the page's font; that colours are the page's variables, light or dark; that every
mark says on hovering what it is; and that identities are the document's, each given once.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unicodedata import east_asian_width
from xml.etree import ElementTree

from .markup import Markup, printable

WIDE, NARROW = 720, 340  # design widths; each is shown at about its own size
COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")
_VARIABLES = ("fg", "muted", "bg", "grid", "axis", "track", "grey", *COLOURS, *(f"on-{n}" for n in range(6)))
INK = {name: f"#0000{at:02x}" for at, name in enumerate(_VARIABLES, 1)}  # stand-ins, until it is drawn
LINE, _LETTER = 16, 7.3  # pixels of a line of text and of a letter of a wide font, on average
_STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "mpiter", "text.parse_math": False, "font.size": 12,
    "font.sans-serif": ["DejaVu Sans"],  # wider than what a page is shown in
    "text.color": INK["fg"], "axes.labelcolor": INK["fg"], "axes.edgecolor": INK["axis"],
    "xtick.color": INK["muted"], "xtick.bottom": False,
    "ytick.color": INK["muted"], "ytick.left": False,
    "axes.grid": True, "grid.color": INK["grid"], "grid.linewidth": 1, "axes.axisbelow": True, "axes.titlesize": 12,
    "lines.linewidth": 2, "lines.dashed_pattern": (4, 2.5), "lines.dotted_pattern": (0.1, 2),
    "lines.dash_capstyle": "round", "legend.frameon": False, "legend.borderpad": 0, "legend.handlelength": 2.2,
    "figure.constrained_layout.h_pad": 7 / 72, "figure.constrained_layout.w_pad": 2 / 72,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
}  # fmt: skip


def can_be_drawn() -> bool:
    """Is matplotlib there?"""
    return find_spec("matplotlib") is not None


@contextmanager
def styled() -> Iterator[None]:
    """Within, matplotlib draws as the page looks, whatever the user has set."""
    from matplotlib import style

    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of signs that matplotlib's font lacks: the browser has others
        yield


class Sheet:
    """A figure in the making, and what its marks say."""

    def __init__(self, width: float) -> None:
        from matplotlib.figure import Figure

        self.figure: Any = Figure(figsize=(width / 72, 1), layout="constrained")
        self.width, self.is_narrow = width, width == NARROW
        self._tips: dict[str, list[str]] = {}

    def says(self, *tips: str) -> str:
        """The identity of an artist whose marks say so."""
        self._tips[identity := f"tip{len(self._tips)}"] = list(map(printable, tips))
        return identity

    def finish(self, height: float) -> None:
        """The legend at the foot, and the size."""
        found = {text: handle for axes in self.figure.axes for handle, text in zip(*_keys(axes), strict=True)}
        if found:
            columns = 1 if self.is_narrow and max(map(room, found)) > 90 else 3
            self.figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=columns)
            height += 8 + LINE * 1.1 * sum(text.count("\n") + 1 for text in list(found)[::columns])
        self.figure.set_figheight(height / 72)

    def markup(self, label: str, prefix: str) -> Markup:
        """The figure as an element of the page."""
        out = io.StringIO()
        for artist in self.figure.findobj():
            artist.set_clip_on(False)  # nothing sticks out of its axes, and clips would need identities
        self.figure.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(["Creator", "Date", "Format", "Type"])
        )
        svg = ElementTree.fromstring(re.sub(r' xmlns(:xlink)?="[^"]*"| xlink:(?=href)', " ", out.getvalue()))
        for node in svg.iter():
            for shape, tip in zip(_shapes(node), self._tips.get(node.get("id", ""), ()), strict=False):
                ElementTree.SubElement(shape, "title").text = tip
        for node in svg.iter():  # as short as it looks the same
            node.text, node.tail = (node.text if node.text and node.text.strip() else None), None
            places = {
                key: re.sub(r"(\.\d\d)\d+", r"\1", node.get(key, "")) for key in {"d", "x", "y"} & set(node.keys())
            }
            node.attrib.update(places)
            if node.get("transform", "").startswith("rotate(-0"):
                del node.attrib["transform"]
        for node in svg.findall("defs"):  # a style sheet that would be the whole page's
            svg.remove(node)
        used = {node.get("href", "")[1:] for node in svg.iter("use")}
        for node in svg.iter():
            identity = node.attrib.pop("id", None)
            if identity in used:
                node.set("id", f"{prefix}-{identity}")
        for node in svg.iter("use"):
            node.set("href", f"#{prefix}-{node.get('href', '')[1:]}")
        which = "narrow" if self.is_narrow else "wide"
        svg.attrib = {
            "class": f"picture {which}",
            "role": "img",
            "aria-label": printable(label),
            "viewBox": svg.get("viewBox", ""),
        }
        return Markup(_coloured(ElementTree.tostring(svg, encoding="unicode")))


def _shapes(node: ElementTree.Element) -> list[ElementTree.Element]:
    return list(node.iter("use")) or list(node.iter("path"))


def _coloured(svg: str) -> str:
    """The page's own font and colours."""
    svg = re.sub(r" ?font-family: [^;\"]*;", "", svg)  # as newer ones write it, and older ones:
    svg = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    return re.sub(r"#0000([0-9a-f]{2})\b", lambda found: f"var(--{_VARIABLES[int(found[1], 16) - 1]})", svg)


def _keys(axes: Any) -> tuple[list[Any], list[str]]:
    handles, texts = axes.get_legend_handles_labels()
    return handles, texts


def room(text: str) -> float:
    """How wide a text is going to be, at most."""
    return sum(_LETTER * (1.7 if east_asian_width(letter) in "FW" else 1) for letter in text)


def cut(text: str, width: float) -> str:
    """What of it has room."""
    text = printable(text)
    while len(text) > 1 and room(text) > width:
        text = text[: min(len(text) - 2, int(width / _LETTER))].rstrip() + "…"
    return text
