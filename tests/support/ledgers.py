"""Logs of receipts for tests: what is in a folder, written by pretended trainers, and damaged."""

from __future__ import annotations

import zlib
from io import BytesIO
from pathlib import Path

import msgpack
import numpy as np

from mpiter.order.cursor import Cursor, Pace
from mpiter.order.order import Shuffled
from mpiter.order.share import Share
from mpiter.remote.audit.logs import Kind, spread
from mpiter.remote.audit.reading import read
from mpiter.remote.receipts import Receipts

SEED = 5


def logs_in(folder):
    return sorted(Path(folder).glob("*.receipts"))


def objects_in(path):
    """What a file holds, checksums included."""
    return list(msgpack.Unpacker(BytesIO(Path(path).read_bytes())))


def records_in(path):
    return [one for one in objects_in(path) if isinstance(one, list)]


def rewrite(path, objects, checksums=True):
    """The file anew, with checksums that follow or without any."""
    header, *records = (one for one in objects if not isinstance(one, int))
    data = msgpack.packb(header)
    chain = zlib.crc32(data)
    for record in records:
        packed = msgpack.packb(record)
        data += packed
        if checksums:
            chain = zlib.crc32(packed, chain)
            data += msgpack.packb(chain)
    Path(path).write_bytes(data)


def keys_in(path, kind=Kind.BATCH):
    """The keys that a file says were handed out, in their order."""
    log = read(path)
    columns = {name: np.array(column) for name, column in log.columns.items()}
    found = []
    for row in np.flatnonzero(np.isin(columns["kind"], kind)):
        first, count, key = (int(columns[name][row]) for name in ("first", "count", "key"))
        if key >= 0:
            found += log.keys[key : key + count]
        else:
            told = log.starts[columns["start"][row]].told
            found += told.keys(int(columns["epoch"][row]), spread(np.array([first]), np.array([count]))).tolist()
    return found


def train(folder, size, batch_size, steps, length, start=(0, 0), epochs=1, seed=SEED, seeds=None):
    """Ranks that are handed their parts of so many steps each, from ``start`` on; where they then are.

    ``steps``: of each rank, or of all; ``seeds``: of ranks whose own differs.
    """
    steps = [steps] * size if isinstance(steps, int) else steps
    places = []
    for rank in range(size):
        mine = (seeds or {}).get(rank, seed)
        pace = Pace(batch_size, wrap=False, epochs=epochs, share=Share(rank, size))
        cursor = Cursor(start[1], start[0], False, Shuffled(length, mine, start[0]))
        with Receipts(folder, rank, size) as receipts:
            receipts.begin(*start, length=length, order="shuffled", seed=mine)
            places.append([start])
            for _ in range(steps[rank]):
                if (plan := pace.step(cursor)) is None:
                    break
                rows = plan.rows
                for stretch in plan.stretches:
                    count = len(stretch.indices)
                    fills = min(count, max(0, stretch.row + count - rows + plan.fills))
                    run = (stretch.position, count)
                    receipts.handed(cursor.epoch, cursor.position, stretch.indices, positions=run, fills=fills)
                if plan.after.epoch > cursor.epoch:
                    receipts.end(cursor.epoch)
                cursor = plan.after
                places[-1].append((cursor.epoch, cursor.position))
    return places
