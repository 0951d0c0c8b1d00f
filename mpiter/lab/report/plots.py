"""What every kind of plot is made of: two pictures, keys to them, words for those who do not see them, and the data.

Pure.  `curves`, `bars` and `timelines` make a `Plot` of a view, `page` sets it.  A picture is drawn twice, for a wide
page and for a telephone, because text that shrinks with its picture cannot be read; the style sheet shows one of them.
Guarantees that a picture's text needs no more room than was reckoned for it.  Colours are classes, c0 to c5 and grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from unicodedata import east_asian_width

from ..views import Table
from .markup import Markup, joined, tag

WIDE, NARROW = 720, 340  # design widths; each is shown at about its own size
LINE = 15  # from one line of text to the next
_LETTER, _IDEOGRAPH = 7.3, 12.5  # of a wide font, on average, at the style sheet's 12 px
_COLOURS = 6


@dataclass(frozen=True, slots=True)
class Key:
    """A line of the legend; `narrow_only` where the wide picture has the name beside the thing itself."""

    swatch: Markup
    name: str
    narrow_only: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """All that a page needs of it."""

    pictures: tuple[Markup, ...]
    keys: tuple[Key, ...]
    data: Table


def nothing(data: Table) -> Plot:
    """Where there is nothing to draw, it says so."""
    return Plot((tag("p", "Nothing to draw: there are no figures.", class_="nothing"),), (), data)


def svg(width: float, height: float, words: str, *content: str) -> Markup:
    """A picture; `words` tell what it shows."""
    shown = "wide" if width == WIDE else "narrow"
    box = f"0 0 {width:g} {round(height, 2):g}"
    return tag("svg", *content, class_=f"picture {shown}", role="img", aria_label=words, viewBox=box)


def write(x: float, y: float, content: str, class_: str = "", anchor: str | None = None) -> Markup:
    """A line of text."""
    return tag("text", content, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def room(text: str) -> float:
    """How wide a text is going to be: it cannot be known before a browser has chosen the font."""
    return sum(map(_width, text))


def shortened(text: str, width: float) -> str:
    """What of it fits."""
    if room(text) <= width:
        return text
    ends = accumulate(map(_width, text), initial=_LETTER)  # the first of them is the ellipsis
    return text[: sum(end <= width for end in ends) - 1].rstrip() + "…"


def _width(letter: str) -> float:
    return _IDEOGRAPH if east_asian_width(letter) in "FW" else _LETTER


def colour(index: int) -> str:
    """The class of the n-th colour; there are six."""
    return f"c{index % _COLOURS}"


def patch(class_: str) -> Markup:
    """A key's coloured square."""
    return _swatch(12, tag("rect", x=1, y=1, width=10, height=10, rx=2, class_=f"fill {class_}"))


def stroke(*content: str) -> Markup:
    """A key's piece of line."""
    return _swatch(30, *content)


def target_key(name: str, says: str) -> Key:
    """The line that things are held against."""
    return Key(stroke(tag("line", x1=1, y1=6, x2=29, y2=6, class_="target")), f"{name}: {says}")


def quartile_key() -> Key:
    """What the whiskers are."""
    return Key(stroke(whisker((4, 6), (26, 6))), "quartiles of the rounds")


def whisker(begin: tuple[float, float], end: tuple[float, float], class_: str = "") -> Markup:
    """From quartile to quartile, with caps; a lighter line beneath it, to be seen upon a bar too."""
    (x1, y1), (x2, y2) = begin, end
    across, up = (0, 3) if y1 == y2 else (3, 0)
    caps = "".join(f"M{x - across:.2f} {y - up:.2f}L{x + across:.2f} {y + up:.2f}" for x, y in (begin, end))
    path = f"M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}{caps}"
    return joined(tag("path", d=path, class_="halo"), tag("path", d=path, class_=f"whisker {class_}".rstrip()))


def _swatch(width: int, *content: str) -> Markup:
    return tag("svg", *content, class_="swatch", width=width, height=12, viewBox=f"0 0 {width} 12", aria_hidden="true")


def listed(items: Sequence[str], most: int = 12) -> str:
    """In words, and not for ever."""
    left = len(items) - most
    return "; ".join(items[:most]) + (f"; and {left} more" if left > 0 else "")
