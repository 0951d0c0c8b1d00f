"""Reads and changes logs of receipts, and writes those of pretended trainers."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from mpiter.engine.hooks import ToldPlan
from mpiter.order.cursor import Cursor, Pace, Share
from mpiter.order.order import Shuffled
from mpiter.order.ranks import Shard
from mpiter.receipts import Notes, Receipts


def logs_in(folder):
    return sorted(Path(folder).glob("*.receipts.jsonl"))


def lines_in(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def alter(path, change):
    """Write the file again, with the lines that ``change`` makes of its lines."""
    lines = [json.dumps(line) + "\n" for line in change(lines_in(path))]
    Path(path).write_text("".join(lines))


def keys_in(path, kind="handed"):
    """Return the keys that were handed out, according to a file, in their order.

    With another ``kind``, return those that were "skipped" or have "failed".
    """
    found = []
    for line in lines_in(path):
        for row, key in enumerate(line.get("keys", ())):
            became = "handed"
            if row in line.get("skipped", ()):
                became = "skipped"
            elif line.get("failed", False):
                became = "failed"
            if became == kind:
                found.append(key)
    return found


def train(folder, size, batch_size, steps, length, start=(0, 0), epochs=1, seeds=None):
    """Write the logs of ranks that are handed their parts of steps from ``start`` on.

    Return the places of each rank.  ``steps`` is a number for all ranks, or one for
    each.  ``seeds`` has those of ranks whose seed differs.
    """
    steps = [steps] * size if isinstance(steps, int) else steps
    places = []
    for rank in range(size):
        pace = Pace(batch_size, wrap=False, epochs=epochs, share=Share(rank, size))
        order = Shuffled(length, (seeds or {}).get(rank, 5), start[0])
        cursor = Cursor(start[1], start[0], False, order)
        places.append([start])
        with closing(Receipts(folder, rank, size)) as receipts:
            notes = Notes(receipts, Shard(rank, size))
            notes.begun(cursor, pace)
            for _ in range(steps[rank]):
                if (plan := pace.step(cursor)) is None:
                    notes.end()
                    break
                notes.batch(ToldPlan(plan), ())
                cursor = plan.after
                places[-1].append((cursor.epoch, cursor.position))
    return places
