"""Samples of tar shards: ours beside webdataset, in speed and in resuming.

    python bench/tar.py --python-torch PATH --out bench/results/tar.json
    python bench/tar.py --small  # a smoke test, never a conclusion

Pictures are JPEG of 256x192, decoded by Pillow for all; records are a `.npy` of 16
numbers and a `.cls`. Shards are written on the spot and lie in the page cache. Two
workers make batches; webdataset's are collated in its workers, as its guide has it,
with its shuffle of 1,000 samples. In the scenes a loader hands out a third of an
epoch, and another one goes on to the epoch's end from its state. webdataset's guide
has no state: it begins the epoch again, or torchdata's StatefulDataLoader skips what
was handed out, with its deterministic shuffles. Must: ours is as fast as webdataset,
loses nothing and gives nothing twice. Exit status: 0, or 1 when a requirement fails or
a turn raises.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import photographs
from checkout import ROOT
from driver import (
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_least,
    at_most,
    command_line,
    conduct,
    ratio,
)
from measuring import flowing

import mpiter
from mpiter.files import Tar

FOLDER = ROOT / ".demo" / "tar"
SHARDS = 4
PICTURE = photographs.Size(256, 192, 14)
# So many of these differ.
PHOTOGRAPHS = 256
VALUES = 16
BUFFER = 1000
WARM = 8
RATE = "samples_per_s"
HEADER = "header_us"
LOST = "lost"
TWICE = "twice"
BAD = "bad"


@dataclass(frozen=True)
class Kind:
    """Samples of one kind, and how they are read."""

    samples: int
    batch_size: int
    # The fields that a training gets.
    fields: tuple[str, ...]


KINDS = {
    "pictures": Kind(2048, 32, ("jpg", "cls")),
    "records": Kind(20_000, 128, ("npy", "cls")),
}
SCENES = {
    "resume": "two workers, then two",
    "resized": "two workers, then three",
}
CASES = {
    "pictures": "JPEG of 256x192, batches of 32",
    "records": "16 numbers and a class, batches of 128",
    **SCENES,
}
ORDERED = ("ours, in order", "webdataset, in order")
SKIPPED = "webdataset, StatefulDataLoader"
ROWS = {
    "ours": "batches() over a Tar, window of 64 MB",
    "ours, full": "batches() over a Tar, fully random",
    ORDERED[0]: "batches() over a Tar, shuffle=False",
    "webdataset": "WebLoader, shuffled shards and a shuffle of 1,000",
    ORDERED[1]: "WebLoader, not shuffled",
    SKIPPED: "the same in torchdata's StatefulDataLoader, detshuffle of 1,000",
}


def rows_of(case: str) -> list[str]:
    if case in SCENES:
        return ["ours", "webdataset", SKIPPED]
    return [row for row in ROWS if row != SKIPPED]


def environment(row: str, case: str) -> str:
    return "torch" if row.startswith("webdataset") else "ours"


# -- shards ----------------------------------------------------------------------------


def kind_of(case: str) -> str:
    return "records" if case in SCENES else case


def prepare(options: argparse.Namespace) -> None:
    """Write the shards, once."""
    for name in dict.fromkeys(map(kind_of, options.cases)):
        folder = FOLDER / name
        if folder.exists():
            continue
        FOLDER.mkdir(parents=True, exist_ok=True)
        # What is written in part must not look whole.
        with tempfile.TemporaryDirectory(dir=FOLDER) as unfinished:
            inner = Path(unfinished, name)
            inner.mkdir()
            write(inner, name)
            os.rename(inner, folder)


def write(folder: Path, name: str) -> None:
    kind = KINDS[name]
    pictures = list[bytes]()
    if name == "pictures":
        for number in range(PHOTOGRAPHS):
            rng = np.random.default_rng(number)
            pictures.append(photographs.photograph(rng, PICTURE))
    each = kind.samples // SHARDS
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as opened:
            for number in range(shard * each, (shard + 1) * each):
                data = record(number)
                if pictures:
                    data = pictures[number % PHOTOGRAPHS]
                add(opened, f"{number:06}.{kind.fields[0]}", data)
                add(opened, f"{number:06}.cls", b"%d" % (number % 1000))


def record(number: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(number, number + VALUES, dtype=np.float32))
    return file.getvalue()


def add(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


def paths_of(case: str) -> list[str]:
    return [*map(str, sorted((FOLDER / kind_of(case)).glob("*.tar")))]


# -- speed -----------------------------------------------------------------------------


def pixels(data: bytes) -> Any:
    """Decode a picture as all do here."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    if turn.case in SCENES:
        return scene(turn)
    if turn.row.startswith("webdataset"):
        return theirs(turn)
    return ours(turn)


def ours(turn: Turn) -> Answer:
    kind = KINDS[turn.case]
    # Headers are read once for all turns; here that is measured, too.
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as index:
        began = time.perf_counter()
        Tar(paths_of(turn.case), index=index)
        took = time.perf_counter() - began
    dataset = Tar(
        paths_of(turn.case),
        shuffle="full" if turn.row == "ours, full" else "window",
        decode={"jpg": pixels} if "jpg" in kind.fields else None,
    )
    with mpiter.batches(
        dataset,
        kind.batch_size,
        n_processes=turn.workers,
        shuffle=turn.row not in ORDERED,
        seed=turn.round,
        epochs=None,
    ) as stream:
        shapes = [np.shape(next(stream)[field]) for field in kind.fields]
        answer = measured(turn, lambda: next(stream))
    answer[HEADER] = 1e6 * took / (2 * kind.samples)
    return answer | {"problems": [*wrong(turn.case, shapes)]}


def theirs(turn: Turn) -> Answer:
    import webdataset

    kind = KINDS[turn.case]
    pictures = webdataset.handle_extension("jpg", tensor)
    # Arrays and classes are decoded without being named.
    samples = webdataset_of(turn).decode(pictures).to_tuple(*kind.fields)
    endless = samples.batched(kind.batch_size, partial=False).repeat()
    loader = webdataset.WebLoader(endless, batch_size=None, num_workers=turn.workers)
    stream = iter(loader)
    shapes = [np.shape(part) for part in next(stream)]
    answer = measured(turn, lambda: next(stream))
    return answer | {"problems": [*wrong(turn.case, shapes)]}


def webdataset_of(turn: Turn) -> Any:
    """Return the samples of shards in bytes, shuffled as the row says."""
    import webdataset

    shuffles = turn.row not in ORDERED
    is_exact = turn.row == SKIPPED
    samples = webdataset.WebDataset(
        paths_of(turn.case),
        shardshuffle=SHARDS if shuffles else False,
        detshuffle=is_exact,
        seed=turn.round,
    )
    if is_exact:
        samples = samples.compose(webdataset.detshuffle(BUFFER, seed=turn.round))
    elif shuffles:
        samples = samples.shuffle(BUFFER)
    return samples


def tensor(data: bytes) -> Any:
    import torch

    # A copy, since torch refuses read-only arrays.
    return torch.from_numpy(pixels(data).copy())


def measured(turn: Turn, take_one: Callable[[], Any]) -> Answer:
    count, seconds, cpu = flowing(take_one, turn.warmup_s, turn.seconds, warm=WARM)
    samples = count * KINDS[turn.case].batch_size
    return {RATE: samples / seconds, **cpu.ms(samples)}


def wrong(case: str, shapes: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """Yield what is wrong with a batch."""
    size = KINDS[case].batch_size
    one = (VALUES,) if case == "records" else (PICTURE.height, PICTURE.width, 3)
    if shapes != [(size, *one), (size,)]:
        yield f"a batch has {shapes}"


# -- resuming --------------------------------------------------------------------------


def scene(turn: Turn) -> Answer:
    """Count what is lost and given twice in an epoch with an interruption."""
    kind = KINDS["records"]
    batches = kind.samples // kind.batch_size // 3
    second = turn.workers + (turn.case == "resized")
    play = sat_ours if turn.row == "ours" else sat_theirs
    try:
        first, state = play(turn, turn.workers, None, batches)
        rest, _ = play(turn, second, state, None)
    except Exception as error:
        # What another loader refuses is its answer.
        if turn.row == "ours":
            raise
        says = (str(error).splitlines() or [""])[0]
        return {BAD: 1.0, "says": f"refuses: {type(error).__name__}: {says:.200}"}
    had = Counter(first + rest)
    lost = kind.samples - len(had)
    twice = sum(count - 1 for count in had.values())
    return {LOST: lost, TWICE: twice, BAD: lost + twice}


def sat_ours(
    turn: Turn, workers: int, state: Any, batches: int | None
) -> tuple[list[str], Any]:
    keys = list[str]()
    with mpiter.batches(
        Tar(paths_of(turn.case)),
        KINDS["records"].batch_size,
        n_processes=workers,
        seed=turn.round,
        epochs=1,
    ) as stream:
        if state is not None:
            stream.load_state_dict(state)
        for batch in itertools.islice(stream, batches):
            keys += batch["__key__"]
        return keys, stream.state_dict()


def sat_theirs(
    turn: Turn, workers: int, state: Any, batches: int | None
) -> tuple[list[str], Any]:
    import webdataset

    size = KINDS["records"].batch_size
    samples = webdataset_of(turn).to_tuple("__key__").batched(size)
    if turn.row == SKIPPED:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader(samples, batch_size=None, num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
    else:
        loader = webdataset.WebLoader(samples, batch_size=None, num_workers=workers)
    keys = list[str]()
    for (some,) in itertools.islice(loader, batches):
        keys += some
    return keys, loader.state_dict() if turn.row == SKIPPED else None


# -- the answer ------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for case in KINDS:
        for row, other in (("ours", "webdataset"), ORDERED):
            found = ratio(summary, case, row, other, RATE)
            yield at_least(case, f"{row}: samples a second", found, 1.0, f" x {other}")
    for case in SCENES:
        # The worst of all rounds counts: once is too often.
        figure = summary.get((case, "ours"), {}).get(BAD)
        worst = max(figure.values) if figure else None
        yield at_most(case, "lost or given twice", worst, 0)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures={
        RATE: "samples/s",
        "cpu_ms": "CPU ms/sample",
        "parent_cpu_ms": "parent's",
        HEADER: "us a header",
        LOST: "lost",
        TWICE: "twice",
        BAD: "not as it must be",
    },
    take=take,
    claims=claims,
    rows_of=rows_of,
    against="webdataset",
    environment=environment,
    prepare=prepare,
    small={"cases": ["records", "resume"], "rows": ["ours", *ORDERED[:1]]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=1.0, timeout=180.0)))
