"""HTML as text: whatever is not markup already is escaped, so that nothing has to be remembered elsewhere.

Pure.  Guarantees that any text at all, control characters and lone surrogates included, gives a document that parses,
as XML too, and that can be written as UTF-8.  Assumes names of elements and attributes from our own source only.
"""

from __future__ import annotations

import html
import re

_ALONE = frozenset({"link", "meta"})  # elements that hold nothing
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Markup(str):
    """Text that is markup, and so is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """An element.  ``class_`` is ``class``, ``stroke_width`` is ``stroke-width``, what is None is left out.

    >>> tag("p", "a < b, ", tag("b", "c"), class_="x")
    '<p class="x">a &lt; b, <b>c</b></p>'
    """
    written = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    if name in _ALONE and not content:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(*content)}</{name}>")


def joined(*content: str) -> Markup:
    """Pieces one after the other, texts escaped."""
    return Markup("".join(piece if isinstance(piece, Markup) else _escaped(piece) for piece in content))


def printable(text: str) -> str:
    """The text without what no document can hold."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return _escaped(value) if isinstance(value, str) else f"{round(value, 2):.8g}"
