"""One result as a page: plots, tables, and where it was measured.

Warnings and what was claimed are folded at the end.

Guarantees a file that holds all that it shows: plots are drawn by matplotlib and
embedded as SVG, nothing is loaded from elsewhere, and every text of a result is
escaped. Without matplotlib (`pip install 'mpiter[bench]'`) the page has its tables and
says why it has no plots.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from driver import Curves, Spread, Summary, Tables, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, which the colour-blind can tell apart.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#000000",
    "#999999",
)
# The height of a bar and the width of a plot, in inches.
BAR = 0.32
WIDE = 8.5
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mpiter",
    "font.size": 9,
    "font.family": "sans-serif",
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2127; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; }
td, th { padding: .2rem .7rem; text-align: right; }
td:first-child, th:first-child { text-align: left; white-space: nowrap; }
.facts td { text-align: left; } tr { border-bottom: 1px solid #dde2e6; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; }
.FAIL, .warning { color: #a33b00; } .PASS { color: #00734f; }
.faint { color: #59626d; font-size: 13px; }
figure { margin: 1rem 0; } summary { cursor: pointer; margin-top: 1.2rem; }
dl { font-size: 14px; }
dt { font-weight: 600; float: left; clear: left; margin-right: .6rem; }
dd { margin: 0 0 .2rem; }
.short { font-size: 15px; } .short td:last-child { font-weight: 600; }
"""


def page(
    title: str,
    result: Mapping[str, Any],
    tables: Tables,
    short: Tables,
    pictures: Sequence[str],
) -> str:
    """Return the whole page."""
    hints = []
    if not pictures:
        remedy = "pip install 'mpiter[bench]' brings matplotlib"
        hints.append(f"<p class=faint>No plots: {remedy}.</p>")
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<figure>{picture}</figure>" for picture in pictures),
        *hints,
        *(part for name, lines in short for part in _table(name, lines, "short")),
        *_says(result),
        *_remarks(result),
        *_rows(result),
        *(part for name, lines in tables for part in _table(name, lines)),
        *_facts(result),
        *_warnings(result),
        *_verdicts(result),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head>{head}</head><body>',
            *body,
            "</body></html>",
            "",
        ]
    )


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    settings = result["settings"]
    yield (
        f"<p>{settings['rounds']} interleaved round(s) of {settings['seconds']:g} s a "
        f"turn, each in its own process, after a warm-up of {settings['warmup']:g} s. "
        "Figures are medians; <b>~</b> marks those whose rounds disagree.</p>"
    )
    for row, why in result["absent"].items():
        yield f"<p class=faint>Not measured: {escape(row)}: {escape(why)}</p>"
    for problem in dict.fromkeys(result["problems"]):
        yield f"<p class=warning>{escape(problem)}</p>"


def _rows(result: Mapping[str, Any]) -> Iterator[str]:
    """Say what the rows are that were measured."""
    measured = {one["row"] for one in result["summary"]}
    says = {row: about for row, about in result["rows"].items() if row in measured}
    yield "<h2>What is compared</h2><dl>"
    yield from (f"<dt>{escape(row)}<dd>{escape(about)}" for row, about in says.items())
    yield "</dl>"


def _warnings(result: Mapping[str, Any]) -> Iterator[str]:
    if result["warnings"]:
        yield (
            f"<details><summary>Warnings: {len(result['warnings'])}</summary><ul "
            "class=faint>"
        )
        yield from (f"<li>{escape(warning)}" for warning in result["warnings"])
        yield "</ul></details>"


def _says(result: Mapping[str, Any]) -> Iterator[str]:
    if result["says"]:
        yield (
            "<ul>"
            + "".join(f"<li>{escape(sentence)}" for sentence in result["says"])
            + "</ul>"
        )


def _table(name: str, lines: Sequence[Sequence[str]], kind: str = "") -> Iterator[str]:
    yield f"<h2>{escape(name)}</h2><div class=wide><table class='{kind}'>"
    for at, cells in enumerate(lines):
        tag = "td" if at else "th"
        yield (
            "<tr>"
            + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
            + "</tr>"
        )
    yield "</table></div>"


def _verdicts(result: Mapping[str, Any]) -> Iterator[str]:
    if not result["verdicts"]:
        return
    yield "<details><summary>What was claimed, for maintainers</summary>"
    yield "<div class=wide><table><tr><th>claim<th>found<th>must it?<th>says</tr>"
    for one in result["verdicts"]:
        found = "" if one["found"] is None else number(one["found"])
        needs = "must" if one["must"] else "aim"
        cells = f"<td>{escape(one['claim'])}<td>{found}<td>{needs}"
        yield f"<tr>{cells}<td class='{one['says']}'>{one['says']}</tr>"
    yield "</table></div></details>"


def _facts(result: Mapping[str, Any]) -> Iterator[str]:
    host = result["machine"]
    commit = result["commit"]
    facts = {
        "measured": f"{result['started']}, in {result['took_s'] / 60:.1f} min",
        "machine": (
            f"{host['cpu']}, {host['cores_usable']} cores usable, "
            f"{host['memory_bytes'] / 1e9:.0f} GB"
        ),
        "system": host["system"],
        "commit": f"{commit['id']}{' and changes' if commit['dirty'] else ''}",
        "versions": ", ".join(
            sorted(
                {
                    f"{n} {v}"
                    for some in result["versions"].values()
                    for n, v in some.items()
                }
            )
        ),
        "command": result["command"],
        **{name: str(value) for name, value in result["settings"].items()},
    }
    yield "<h2>Where and how</h2><table class='faint facts'>"
    yield from (
        f"<tr><td>{escape(name)}<td>{escape(fact)}</tr>" for name, fact in facts.items()
    )
    yield "</table>"


# -- plots -----------------------------------------------------------------------------


def plots(
    summary: Summary,
    stacked: Mapping[str, str],
    unit: str,
    cases: Mapping[str, str],
    curves: Iterable[Curves],
) -> list[str]:
    """Return SVG: bars of every case, in ``unit``, then the curves.

    There is none without matplotlib.
    """
    try:
        import matplotlib.figure
    except ImportError:
        return []
    with matplotlib.rc_context(SETTINGS):
        drawn = [_bars(summary, stacked, unit, cases), *map(_curves, curves)]
        return [_svg(figure) for figure in drawn if figure is not None]


def _figure(height: float) -> Figure:
    # pyplot would look for a display, and keep every figure.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12)
    return figure


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _bars(
    summary: Summary, stacked: Mapping[str, str], unit: str, cases: Mapping[str, str]
) -> Figure | None:
    """Draw the cases one below the other, each with a scale of its own.

    They differ by orders of magnitude.
    """
    found: dict[str, list[str]] = {}
    for (case, row), figures in summary.items():
        if all(name in figures for name in stacked):
            found.setdefault(case, []).append(row)
    if not found:
        return None
    heights = [len(rows) + 3 for rows in found.values()]
    figure = _figure(BAR * sum(heights))
    axes = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (case, rows) in zip(axes, found.items(), strict=True):
        _bars_of(axis, [summary[case, row] for row in rows], rows, stacked)
        axis.set_title(f"{case}: {cases[case]}", loc="left", wrap=True)
        axis.set_xlabel(unit, loc="left")
    if len(stacked) > 1:
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside upper left",
            ncols=len(stacked),
            frameon=False,
        )
    return figure


def _bars_of(
    axis: Axes,
    found: Sequence[Mapping[str, Spread]],
    rows: Sequence[str],
    stacked: Mapping[str, str],
) -> None:
    """Draw bars whose parts lie one upon the other.

    A whole bar shows the least and the most of its rounds.
    """
    left = [0.0] * len(rows)
    for colour, (name, head) in zip(COLOURS, stacked.items(), strict=False):
        widths = [figures[name].median for figures in found]
        error = None
        if len(stacked) == 1:
            ends = [figures[name].point for figures in found]
            error = [
                [middle - low for middle, low, _ in ends],
                [high - middle for middle, _, high in ends],
            ]
        axis.barh(
            range(len(rows)),
            widths,
            left=left,
            color=colour,
            label=head,
            xerr=error,
            ecolor="#59626d",
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for at, whole in enumerate(left):
        axis.annotate(
            number(whole), (whole, at), (4, 0), textcoords="offset points", va="center"
        )
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)


def _curves(curves: Curves) -> Figure:
    figure = _figure(4.2)
    axis = figure.subplots()
    for colour, (name, points) in zip(COLOURS * 3, curves.lines.items(), strict=False):
        if not points:
            continue
        xs, ys = zip(*(point[:2] for point in points), strict=True)
        style = {"ls": "-", "marker": "o"}
        if name in curves.dashed:
            style = {"ls": "--", "marker": "o", "mfc": "none"}
        axis.plot(xs, ys, color=colour, label=name, ms=4, **style)
        if all(len(point) == 4 for point in points):
            axis.fill_between(
                xs,
                [p[2] for p in points],
                [p[3] for p in points],
                color=colour,
                alpha=0.15,
                lw=0,
            )
    axis.set(title=curves.title, xlabel=curves.x, ylabel=curves.y)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return figure
