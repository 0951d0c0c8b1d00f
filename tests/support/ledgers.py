"""Logs of receipts for tests: what is in a folder, and pretended trainers that write
some.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from mpiter.order.cursor import Cursor, Pace, Share
from mpiter.order.order import Shuffled
from mpiter.order.ranks import Shard
from mpiter.receipts import Notes, Receipts


def logs_in(folder):
    return sorted(Path(folder).glob("*.receipts.jsonl"))


def lines_in(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def alter(path, change):
    """The file anew, with the lines that ``change`` makes of its lines."""
    Path(path).write_text(
        "".join(json.dumps(line) + "\n" for line in change(lines_in(path)))
    )


def keys_in(path, kind="handed"):
    """The keys that a file says were handed out, were skipped or have failed, in their
    order.
    """
    found = []
    for line in lines_in(path):
        for row, key in enumerate(line.get("keys", ())):
            is_skipped = row in line.get("skipped", ())
            has_failed = line.get("failed", False)
            if kind == (
                "skipped" if is_skipped else "failed" if has_failed else "handed"
            ):
                found.append(key)
    return found


def train(folder, size, batch_size, steps, length, start=(0, 0), epochs=1, seeds=None):
    """Ranks that are handed their parts of so many steps each, from ``start`` on; where
    they then are.

    ``steps``: of each rank, or of all; ``seeds``: of ranks whose own differs.
    """
    steps = [steps] * size if isinstance(steps, int) else steps
    places = []
    for rank in range(size):
        pace = Pace(batch_size, wrap=False, epochs=epochs, share=Share(rank, size))
        cursor = Cursor(
            start[1],
            start[0],
            False,
            Shuffled(length, (seeds or {}).get(rank, 5), start[0]),
        )
        places.append([start])
        with closing(Receipts(folder, rank, size)) as receipts:
            notes = Notes(receipts, Shard(rank, size))
            notes.begun(cursor, pace)
            for _ in range(steps[rank]):
                if (plan := pace.step(cursor)) is None:
                    notes.end()
                    break
                notes.batch(plan, ())
                cursor = plan.after
                places[-1].append((cursor.epoch, cursor.position))
    return places
