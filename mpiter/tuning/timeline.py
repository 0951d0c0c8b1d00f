"""``mpiter trace run.json``: the timeline of a trace as one page of HTML.

Reads the file that a ``Trace`` has written: ``Loading`` is what some loops in it did,
``page`` draws it. Guarantees that the page loads nothing from elsewhere and runs no
script, and that it stays small: it has at most ``SHAPES`` shapes. A row with more
events than its part of them is drawn in slices of time, and the page says so.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptionError
from ..machine import replacing
from .trace import CONSUMER, WORKER

# A page with this many shapes has some 3 MB.
SHAPES = 20_000
MOST_LOADINGS = 6
MOST_ROWS = 66
MOST_MARKS = 100
# More shapes than this can't be told apart in one row.
_A_ROW = 400
# This many batches before and after the longest wait are shown closer.
_CLOSE = 15
# Microseconds, of 35 years: a float of seconds still tells such times apart.
_LARGEST = 1 << 50
_GENERATOR = '<meta name="generator" content="mpiter trace">'

WIDTH = 1000  # pixels
BESIDE = 205
MARGIN = 14
ROW = 28
BAR = 22
_DRAWN = WIDTH - BESIDE - MARGIN
# What each kind of activity is, and whose.
KINDS = {
    "step": "your program's step",
    "wait": "your program waits for a batch",
    "open": "it takes the batch out of shared memory",
    "order": "which samples come next is computed",
    "fetch": "a worker fetches samples",
    "ready": "finished batches wait to be taken",
}
STYLE = """
:root { --ground: #fdfdfc; --ink: #1c2127; --faint: #59626d; --track: #e8ebee;
  --line: #c9d0d6; --step: #0072b2; --wait: #d55e00; --open: #e69f00; --order: #8a939d;
  --fetch: #009e73; --ready: #cc79a7; --lost: #b00020; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171b; --ink: #e4e7ea; --faint: #a0a9b3; --track: #2a3037;
    --line: #46505a; --step: #56b4e9; --wait: #e8873a; --open: #f0c04a;
    --order: #7f8994; --fetch: #2fbf93; --ready: #cc79a7; --lost: #ff6b81; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--ground); max-width: 1060px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; } .faint { color: var(--faint); font-size: 13px; }
ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem;
  font-size: 13px; }
li::before { content: ""; display: inline-block; width: 12px; height: 12px;
  border-radius: 2px; margin-right: .4rem; vertical-align: -1px;
  background: var(--colour); }
figure { margin: .6rem 0; overflow-x: auto; }
figcaption { font-weight: 600; font-size: 14px; position: sticky; left: 0; }
svg { display: block; width: 100%; min-width: 720px; height: auto; }
text { font: 13px system-ui, sans-serif; fill: var(--ink); }
text.faint { font-size: 11px; fill: var(--faint); }
.end { text-anchor: end; } .middle { text-anchor: middle; }
"""


class Span(NamedTuple):
    """What went on in a row from ``begin`` to ``end``, in seconds of the trace."""

    begin: float
    end: float
    kind: str
    says: str = ""  # beside its kind and its time
    height: float = 1.0  # of the row's

    @property
    def took_s(self) -> float:
        return self.end - self.begin


@dataclass(slots=True)
class Loading:
    """What loops of the same kind did, one after the other, in the same rows.

    ``rows`` has the name of each row by its thread number.  ``counts`` has times, and
    how many batches were ready and on their way then; ``losses`` has times, and what
    was lost.
    """

    name: str
    rows: dict[int, str]
    spans: dict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))
    counts: list[tuple[float, int, int]] = field(default_factory=list)
    losses: list[tuple[float, str]] = field(default_factory=list)
    loops: int = 1

    @property
    def begin(self) -> float:
        return min((spans[0].begin for spans in self._drawn), default=0.0)

    @property
    def end(self) -> float:
        return max((spans[-1].end for spans in self._drawn), default=0.0)

    @property
    def _drawn(self) -> list[list[Span]]:
        return [spans for spans in self.spans.values() if spans]

    def add(self, later: Loading) -> None:
        """Add what a later loop did."""
        self.rows |= later.rows
        for thread, spans in later.spans.items():
            self.spans[thread] += spans
        self.counts += later.counts
        self.losses += later.losses
        self.loops += later.loops

    def within(self, begin: float, end: float) -> Loading:
        """Return the part from ``begin`` to ``end``."""
        found = Loading(self.name, self.rows, loops=self.loops)
        for thread, spans in self.spans.items():
            for span in spans:
                if span.end > begin and span.begin < end:
                    cut = span._replace(
                        begin=max(begin, span.begin),
                        end=min(end, span.end),
                    )
                    found.spans[thread].append(cut)
        # The numbers that were noted last before ``begin`` are those at ``begin``.
        before = [count for count in self.counts if count[0] < begin]
        if before:
            _, ready, coming = before[-1]
            found.counts.append((begin, ready, coming))
        for count in self.counts:
            if begin <= count[0] < end:
                found.counts.append(count)
        for loss in self.losses:
            if begin <= loss[0] < end:
                found.losses.append(loss)
        return found

    def ready(self) -> list[Span]:
        """Return the numbers of finished batches as spans.

        The largest is as high as the row.
        """
        counts = sorted(self.counts)
        most = max((ready for _, ready, _ in counts), default=0) or 1
        # Numbers hold until the next are noted, and the last ones to the end.
        ends = [at for at, _, _ in counts[1:]]
        ends.append(max(self.end, counts[-1][0]))
        spans = list[Span]()
        for count, end in zip(counts, ends, strict=True):
            begin, ready, coming = count
            says = f"{ready}, and {coming} on their way"
            height = ready / most
            spans.append(Span(begin, end, "ready", says, height))
        return spans


# -- the trace -------------------------------------------------------------------------


def read(path: str) -> list[Loading]:
    """Return what the trace in the file ``path`` says.

    Raise an OptionError if the file can't be one.
    """
    loops = dict[int, Loading]()
    # An error names the event that is being read; 0 stands for the file.
    number = 0
    # Another machine's clock may have begun later than this one's, so that its workers'
    # times are below zero.
    earliest = 0
    try:
        events = json.loads(Path(path).read_bytes())
        if not isinstance(events, list):
            raise ValueError("it is no list of events")
        for event in events:
            number += 1
            if event["cat"] != "mpiter":
                raise ValueError("another program wrote it")
            at = _whole(event["ts"], least=-_LARGEST)
            earliest = min(earliest, at)
        number = 0
        for event in events:
            number += 1
            _note(loops, event, earliest)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        where = path
        if number:
            where = f"event {number} of {path}"
        raise OptionError(
            f"{where} is damaged, or of no trace of mpiter's ({error!r:.90}): name a "
            "file that a Trace has written, or record it again."
        ) from error
    for loop in loops.values():
        for spans in loop.spans.values():
            spans.sort()
    found = list[Loading]()
    with_spans = (loop for loop in loops.values() if loop.spans)
    for loop in sorted(with_spans, key=lambda loop: loop.begin):
        # It goes into the rows of a loop of the same kind that had ended by then.
        for earlier in found:
            if earlier.name == loop.name and earlier.end <= loop.begin:
                earlier.add(loop)
                break
        else:
            found.append(loop)
    if not found:
        raise OptionError(
            f"{path} has nothing to draw: take some batches while a Trace records."
        )
    return found


def _note(
    loops: dict[int, Loading],
    event: dict[str, Any],
    earliest: int,
) -> None:
    """Add an event, in the form that ``trace.py`` gives it.

    Its time counts from ``earliest``.
    """
    phase = event["ph"]
    name = event["name"]
    args = event["args"]
    loop = _whole(event["pid"])
    thread = _whole(event["tid"])
    since_us = _whole(event["ts"], least=earliest) - earliest
    begin = since_us / 1e6
    end = begin + _whole(event["dur"]) / 1e6
    if phase == "M" and name == "process_name":
        _, _, what = str(args["name"]).partition(": ")
        loops[loop] = Loading(what, {})
    elif phase == "M":
        loops[loop].rows[thread] = str(args["name"])
    elif phase == "C":
        ready = _whole(args["ready"])
        coming = _whole(args["on their way"])
        loops[loop].counts.append((begin, ready, coming))
    elif phase == "i":
        loops[loop].losses.append((begin, str(name)))
    elif name in KINDS and thread in loops[loop].rows:
        span = Span(begin, end, name, _about(args))
        loops[loop].spans[thread].append(span)
    else:
        raise ValueError(f"unknown: {name!r}")


def _whole(value: object, least: int = 0) -> int:
    # ``True`` is an int too, but no number of an event.
    if type(value) is not int or not least <= value < _LARGEST:
        raise ValueError(f"{value!r} is no number of such an event")
    return value


def _seconds(value: object) -> float:
    # Python's JSON has NaN and Infinity, and whole numbers beyond any float.
    if not isinstance(value, (int, float)) or not abs(value) < _LARGEST:
        raise ValueError(f"{value!r} is no number of seconds")
    return float(value)


def _about(args: dict[str, Any]) -> str:
    """Say what the event's figures are."""
    if "samples" in args:
        return f"a batch of {_whole(args['samples']):,}"
    if "rows" in args:
        queue_s = _seconds(args["queue_s"])
        cpu_s = _seconds(args["cpu_s"])
        return (
            f"samples: {_whole(args['rows']):,}; {_time(cpu_s)} of processor time; "
            f"waited {_time(queue_s)} for its turn"
        )
    return ""


# -- the page --------------------------------------------------------------------------


def page(title: str, found: Sequence[Loading]) -> str:
    """Return the page.

    It has for each loading what it comes to in a sentence, all of it, and a part
    closer.
    """
    drawn = found[:MOST_LOADINGS]
    # Each has a row of ready batches too, and is drawn twice at most: all, and a part.
    rows = 0
    for one in drawn:
        rows += min(len(one.rows), MOST_ROWS) + 1
    shapes = min(_A_ROW, SHAPES // (2 * rows))
    body = [f"<h1>{escape(title)}</h1>"]
    body += _legend(drawn)
    for one in drawn:
        body += _section(one, shapes)
    more = len(found) - len(drawn)
    if more:
        body.append(f"<p>{more} more, which overlap these, aren't drawn.</p>")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"{_GENERATOR}<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    lines = [
        f'<!doctype html><html lang="en"><head>{head}</head><body>',
        *body,
        "</body></html>",
    ]
    return "\n".join([*lines, ""])


def _legend(found: Sequence[Loading]) -> Iterator[str]:
    kinds = set[str]()
    for one in found:
        for spans in one.spans.values():
            kinds.update(span.kind for span in spans)
        if one.counts:
            kinds.add("ready")
    marks = dict[str, str]()
    for kind, says in KINDS.items():
        if kind in kinds:
            marks[kind] = f"<b>{kind}</b>: {says}"
    if any(one.losses for one in found):
        marks["lost"] = "a worker was lost, and replaced"
    items = ""
    for kind, says in marks.items():
        items += f'<li style="--colour: var(--{kind})">{says}'
    yield f"<ul>{items}</ul>"
    yield "<p class=faint>Point at a bar to read what it is and how long it took.</p>"


def _section(one: Loading, shapes: int) -> Iterator[str]:
    yield f"<h2>{escape(one.name)}</h2>"
    yield f"<p>{escape(_told(one))}</p>"
    if len(one.rows) > MOST_ROWS:
        yield f"<p class=faint>{len(one.rows) - MOST_ROWS} more rows aren't drawn.</p>"
    if len(one.losses) > MOST_MARKS:
        yield (
            f"<p class=faint>Of {len(one.losses)} losses the first {MOST_MARKS} are "
            "marked.</p>"
        )
    is_merged = any(len(spans) > shapes for _, spans in _lanes(one))
    if not is_merged:
        yield from _figure("", one, shapes)
        return
    yield from _figure("All of it", one, shapes)
    slice_s = (one.end - one.begin) / shapes
    yield (
        "<p class=faint>There are more events than can be told apart: rows marked ≈ "
        f"are drawn in slices of {_time(slice_s)} or a few times that, each filled by "
        "the share of its time that an activity took. <code>mpiter trace FILE --from "
        "S --to S</code> shows a part.</p>"
    )
    longest = _longest(one)
    if longest is not None:
        begin, end = _around(one, longest)
        caption = f"Closer: around the longest wait, at {_time(longest.begin)}"
        yield from _figure(caption, one.within(begin, end), shapes)


def _told(one: Loading) -> str:
    """What it comes to, in sentences."""
    spans = one.spans.get(CONSUMER, [])
    batches = sum(span.kind == "open" for span in spans)
    waits = [span for span in spans if span.kind == "wait"]
    took_s = one.end - one.begin
    noun = "batch" if batches == 1 else "batches"
    says = f"{batches:,} {noun} in {_time(took_s)}"
    if one.loops > 1:
        says += f", by {one.loops} loops, one after the other"
    says += "."
    if waits and took_s:
        waited_s = sum(wait.took_s for wait in waits)
        says += f" The program waited {_share(waited_s / took_s)} of the time."
        says += f" Its first wait took {_time(waits[0].took_s)}"
        longest = _longest(one)
        if longest is not None:
            took = _time(longest.took_s)
            says += f", the longest of the others {took}, at {_time(longest.begin)}"
        says += "."
    return says


def _longest(one: Loading) -> Span | None:
    """The longest wait after the first batch, which waits for workers to start."""
    spans = one.spans.get(CONSUMER, [])
    waits = [span for span in spans if span.kind == "wait"]
    return max(waits[1:], key=lambda wait: wait.took_s, default=None)


def _around(one: Loading, longest: Span) -> tuple[float, float]:
    """The interval of some batches before and after a wait."""
    spans = one.spans[CONSUMER]
    waits = [span for span in spans if span.kind == "wait"]
    at = waits.index(longest)
    first = max(0, at - _CLOSE)
    last = min(len(waits) - 1, at + _CLOSE)
    return waits[first].begin, waits[last].end


# -- a picture -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that a picture shows, from left to right."""

    begin: float
    end: float

    @property
    def span_s(self) -> float:
        return self.end - self.begin

    def x(self, at: float) -> float:
        return BESIDE + _DRAWN * (at - self.begin) / self.span_s

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield three to nine round times: in seconds, and as a text with its unit."""
        if self.end < 1:
            unit = "ms"
            factor = 1e3
        elif self.end < 300:
            unit = "s"
            factor = 1.0
        else:
            unit = "min"
            factor = 1 / 60
        rough = factor * self.span_s / 8
        scale = 10.0 ** math.floor(math.log10(rough))
        steps = (scale * digit for digit in (1, 2, 5, 10))
        step = next(step for step in steps if step >= rough)
        digits = max(0, -math.floor(math.log10(step)))
        first = math.ceil(factor * self.begin / step)
        last = int(factor * self.end / step)
        for number in range(first, last + 1):
            at = number * step
            yield at / factor, f"{at:,.{digits}f} {unit}"


def _lanes(one: Loading) -> Iterator[tuple[int, list[Span]]]:
    """Yield the rows of a picture, by their thread numbers.

    The row of the batches that are ready has the number 0.
    """
    for thread in sorted(one.rows)[:MOST_ROWS]:
        yield thread, one.spans.get(thread, [])
    if one.counts:
        yield 0, one.ready()


def _figure(caption: str, one: Loading, shapes: int) -> Iterator[str]:
    # A single moment has no width to draw in.
    end = max(one.end, one.begin + 1e-6)
    axis = Axis(one.begin, end)
    lanes = list(_lanes(one))
    bottom = 6 + ROW * len(lanes)
    parts = list[str]()
    for at, says in axis.ticks():
        x = axis.x(at)
        line = f'd="M{x:.1f} 2V{bottom + 2}" stroke="var(--line)" stroke-width=".6"'
        parts.append(f"<path {line}/>")
        place = f'x="{x:.1f}" y="{bottom + 16}"'
        parts.append(f'<text {place} class="faint middle">{says}</text>')
    for number, (thread, spans) in enumerate(lanes):
        top = 4 + ROW * number
        is_merged = len(spans) > shapes
        name = one.rows.get(thread, "ready batches")
        if is_merged:
            name += " ≈"
        parts.append(f'<text x="6" y="{top + 15}">{escape(name)}</text>')
        aside = escape(_aside(thread, spans, axis))
        place = f'x="{BESIDE - 8}" y="{top + 15}"'
        parts.append(f'<text {place} class="faint end">{aside}</text>')
        parts.append(_bar(BESIDE, top, _DRAWN, BAR, "track"))
        if is_merged:
            parts += _merged(spans, axis, top, shapes)
        else:
            parts += _single(spans, axis, top)
    for at, says in one.losses[:MOST_MARKS]:
        within = min(max(at, axis.begin), axis.end)
        x = axis.x(within)
        told = f"<title>{escape(says)}, at {_time(at)}</title>"
        mark = f"M{x - 5:.1f} 0h10l-4 7V{bottom}h-2V7z"
        parts.append(f'<path d="{mark}" fill="var(--lost)">{told}</path>')
    size = f'viewBox="0 0 {WIDTH} {bottom + 22}" role="img"'
    yield "<figure>"
    if caption:
        yield f"<figcaption>{escape(caption)}</figcaption>"
    yield f"<svg {size}><title>{escape(caption or one.name)}</title>"
    yield from parts
    yield "</svg></figure>"


def _aside(thread: int, spans: Sequence[Span], axis: Axis) -> str:
    """The figure beside a row's name."""
    if not thread:
        # Such a span says "3, and 2 on their way".
        most = 0
        for span in spans:
            ready, _, _ = span.says.partition(",")
            most = max(most, int(ready))
        return f"at most {most}"
    kind = "fetch" if thread >= WORKER else "order"
    does = "busy"
    if thread == CONSUMER:
        kind = "wait"
        does = "waiting"
    took_s = sum(span.took_s for span in spans if span.kind == kind)
    return f"{_share(took_s / axis.span_s)} {does}"


def _single(
    spans: Iterable[Span],
    axis: Axis,
    top: float,
) -> Iterator[str]:
    """Draw each span."""
    for span in spans:
        left = axis.x(span.begin)
        right = axis.x(span.end)
        tall = BAR * span.height
        took = _time(span.took_s)
        says = f"{span.kind}: {took} from {_time(span.begin)} on"
        if span.says:
            says += f"; {span.says}"
        # The gap tells neighbours apart.
        wide = max(right - left - 0.7, 0.6)
        if tall:
            y = top + BAR - tall
            yield _bar(left, y, wide, tall, span.kind, says)


def _merged(
    spans: Sequence[Span],
    axis: Axis,
    top: float,
    shapes: int,
) -> Iterator[str]:
    """Draw slices of time, each filled by the shares of what went on in it."""
    present = {span.kind for span in spans}
    kinds = [kind for kind in KINDS if kind in present]
    slices = max(1, shapes // len(kinds))
    each_s = axis.span_s / slices
    shares = {kind: [0.0] * slices for kind in kinds}
    counts = [0] * slices
    for span in spans:
        begin = int((span.begin - axis.begin) / each_s)
        end = int((span.end - axis.begin) / each_s)
        first = min(slices - 1, max(0, begin))
        last = min(slices - 1, max(0, end))
        counts[first] += 1
        for number in range(first, last + 1):
            begins = axis.begin + number * each_s
            ends = begins + each_s
            within_s = min(span.end, ends) - max(span.begin, begins)
            filled = span.height * max(0.0, within_s) / each_s
            shares[span.kind][number] += filled
    # Browsers would otherwise draw seams between the slices.
    yield '<g shape-rendering="crispEdges">'
    for number, count in enumerate(counts):
        begins = axis.begin + number * each_s
        found = {kind: min(1.0, shares[kind][number]) for kind in kinds}
        told = [f"{kind} {_share(share)}" for kind, share in found.items()]
        when = f"{_time(each_s)} from {_time(begins)} on"
        says = f"{when}: {', '.join(told)}; events: {count:,}"
        base = top + BAR
        for kind, share in found.items():
            tall = min(BAR * share, base - top)
            base -= tall
            if tall >= 0.05:
                left = axis.x(begins)
                wide = axis.x(begins + each_s) - left
                yield _bar(left, base, wide, tall, kind, says)
    yield "</g>"


def _bar(
    x: float,
    y: float,
    wide: float,
    tall: float,
    kind: str,
    says: str = "",
) -> str:
    box = f'x="{x:.2f}" y="{y:.1f}" width="{wide:.2f}" height="{tall:.1f}"'
    box += f' fill="var(--{kind})"'
    if says:
        return f"<rect {box}><title>{escape(says)}</title></rect>"
    return f"<rect {box}/>"


def _time(seconds: float) -> str:
    """Three digits, and the unit.

    >>> [_time(seconds).split() for seconds in (0.0000123, 1.234, 123.4, 1234.0)]
    [['12.3', 'µs'], ['1.23', 's'], ['123', 's'], ['20.6', 'min']]
    """
    units = (
        (1e-3, 1e6, "µs"),
        (1, 1e3, "ms"),
        (600, 1, "s"),
        (math.inf, 1 / 60, "min"),
    )
    fitting = ((factor, unit) for limit, factor, unit in units if seconds < limit)
    factor, unit = next(fitting)
    value = seconds * factor
    digits = 2
    if value >= 100 or not value:
        digits = 0
    elif value >= 10:
        digits = 1
    return f"{value:,.{digits}f}\N{NO-BREAK SPACE}{unit}"


def _share(share: float) -> str:
    if 0 < share < 0.01:
        return "<1%"
    return f"{share:.0%}"


# -- the command -----------------------------------------------------------------------


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Draw what a Trace has recorded as a page of HTML that opens in any browser, "
        "without a network."
    )
    parser = commands.add_parser(
        "trace",
        help="draw the timeline of a trace",
        description=about,
    )
    parser.add_argument("file", metavar="FILE.json", help="what a Trace has written")
    parser.add_argument(
        "--out",
        metavar="FILE.html",
        help="the page (default: beside the trace)",
    )
    parser.add_argument(
        "--from",
        dest="begin",
        type=float,
        metavar="S",
        help="draw from this second on",
    )
    parser.add_argument(
        "--to",
        dest="end",
        type=float,
        metavar="S",
        help="draw up to this second",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    file = Path(options.file)
    found = read(options.file)
    out = Path(options.out or file.with_suffix(".html"))
    if out.exists() and _GENERATOR not in _beginning(out):
        raise OptionError(
            f"{out} isn't a page of mpiter trace: name another file by --out."
        )
    if options.begin is not None or options.end is not None:
        begin = 0.0
        if options.begin is not None:
            begin = options.begin
        end = math.inf
        if options.end is not None:
            end = options.end
        parts = [one.within(begin, end) for one in found]
        found = [one for one in parts if one.spans]
        if not found:
            raise OptionError(
                f"nothing was recorded from {begin:g} to {end:g} s: choose other "
                "seconds."
            )
    text = page(f"Timeline of {file.name}", found)
    with replacing(out) as written:
        written.write(text.encode())
    print(out)
    return 0


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(1000).decode(errors="replace")
