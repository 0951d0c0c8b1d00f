"""What has come of an epoch, counted: of intervals of positions, or of keys.

Pure arithmetic.  Guarantees memory for each interval, or for each key, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .logs import LARGEST, Ints, spread

FIRST = 5  # samples that are named


@dataclass(frozen=True, slots=True)
class Count:
    """How many samples, and the first of them, as positions or keys."""

    samples: int = 0  # that were handed out
    missing: int = 0
    first_missing: tuple[int, ...] = ()
    twice: int = 0
    first_twice: tuple[int, ...] = ()
    dropped: int = 0
    before: int = 0
    not_yet: int = 0


class About(NamedTuple):
    """What must be known of an epoch to say what is missing."""

    length: int | None
    step: int  # fewer than so many may be left out at the end
    has_ended: bool
    frontier: int | None  # positions from here on may be still to come; None: none may
    begins_within: bool  # what came before isn't in the logs


def by_position(coming: tuple[Ints, Ints], handed: tuple[Ints, Ints], about: About) -> Count:
    """Of runs of positions, as firsts and counts: all that came, and what of it was handed out."""
    begins, ends, depth = _covered(*coming)
    length = max(about.length or 0, int(ends[-1]) if len(ends) else 0)
    twice, there = depth > 1, depth > 0
    starts, stops = np.append(0, ends[there]), np.append(begins[there], length)
    gap_begins, gap_ends = starts[starts < stops], stops[starts < stops]
    before = dropped = 0
    if about.begins_within and len(gap_begins) and gap_begins[0] == 0:
        before, gap_begins, gap_ends = int(gap_ends[0]), gap_begins[1:], gap_ends[1:]
    if about.has_ended and len(gap_ends) and gap_ends[-1] == length and gap_ends[-1] - gap_begins[-1] < about.step:
        dropped, gap_begins, gap_ends = int(gap_ends[-1] - gap_begins[-1]), gap_begins[:-1], gap_ends[:-1]
    is_lost = gap_begins < (LARGEST if about.frontier is None else about.frontier)
    sizes = gap_ends - gap_begins
    handed_begins, handed_ends, of_handed = _covered(*handed)
    return Count(
        samples=int((handed_ends - handed_begins)[of_handed > 0].sum()),
        missing=int(sizes[is_lost].sum()),
        first_missing=_first_of(gap_begins[is_lost], sizes[is_lost]),
        twice=int((ends - begins)[twice].sum()),
        first_twice=_first_of(begins[twice], (ends - begins)[twice]),
        dropped=dropped,
        before=before,
        not_yet=int(sizes[~is_lost].sum()),
    )


def _covered(firsts: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Intervals from begin to end, in order, and how many of the runs go over each."""
    edges = np.concatenate([firsts, firsts + counts])
    order = np.argsort(edges, kind="stable")
    edges, depth = edges[order], np.cumsum(np.where(order < len(firsts), 1, -1))
    wide = np.flatnonzero(np.diff(edges))
    return edges[wide], edges[wide + 1], depth[wide]


def _first_of(begins: Ints, counts: Ints) -> tuple[int, ...]:
    return tuple(spread(begins[:FIRST], np.minimum(counts[:FIRST], FIRST))[:FIRST].tolist())


def by_key(ids: Ints, handed: Ints, about: About, are_numbers: bool) -> Count:
    """Of keys: all that came, and those that were handed out; or of numbers that stand for them."""
    found = np.sort(ids)
    is_new = np.append(True, found[1:] != found[:-1])[: len(found)]
    twice, different = np.unique(found[~is_new]), found if is_new.all() else found[is_new]
    missing, first = 0, tuple[int, ...]()
    if about.length is not None:
        promised = different[(different >= 0) & (different < about.length)] if are_numbers else different
        missing = max(0, about.length - len(promised))
        if not len(promised) or are_numbers:
            edges = np.concatenate([[-1], promised, [about.length]]) if missing else promised[:1]
            sizes = np.diff(edges) - 1
            gaps = np.flatnonzero(sizes)
            first = _first_of(edges[gaps] + 1, sizes[gaps])
    may_be_left = about.has_ended and missing < about.step
    is_known = about.has_ended and not about.begins_within and not may_be_left
    return Count(
        samples=len(different) if handed is ids else len(np.unique(handed)),
        missing=missing if is_known else 0,
        first_missing=first if is_known else (),
        twice=len(twice),
        first_twice=tuple(twice[:FIRST].tolist()),
        dropped=missing if may_be_left else 0,
        before=missing if about.begins_within and not may_be_left else 0,
        not_yet=0 if about.has_ended or about.begins_within else missing,
    )
