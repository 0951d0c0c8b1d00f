"""mpiter's main job, in front of your eyes: trainings that no longer wait for their
data, and that can be interrupted.

What: draws JPEG files of four shapes.  Trains on them in torch, if there is one, and in
NumPy, with a Ctrl-C in mid-epoch, and compares.  Trains a small classifier three times
with the very same Chainer trainer: from Chainer's SerialIterator, from Chainer's
MultiprocessIterator and from mpiter's.  Then it kills a worker half-way through an
epoch, stops a training within an epoch, resumes it from the snapshot under another
number of workers, and compares. Where: in the environment that examples/__main__.py
prepares; pictures and snapshots go to `.demo` in the clone.  Its arguments are why
there is no torch, if so, and the folders that have it. Guarantees: every number shown
was measured in this run; a difference where there must be none is a failure.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# isort: off
# Before Chainer, which it lets run on today's NumPy.
import mpiter.chainer_compat  # noqa: F401
# isort: on

import chainer
import interrupted
import meters
import numpy as np
import pictures
from chainer import functions, links, training
from chainer.iterators import MultiprocessIterator as ChainersIterator
from chainer.iterators import SerialIterator
from chainer.training import extensions
from meters import Plain, Progress
from pictures import HELD_OUT, NAMES, PICTURES, SIDE, Shapes
from threadpoolctl import threadpool_limits

from mpiter.chainer import MultiprocessIterator, converter
from mpiter.machine import cores

FOLDER = Path(__file__).resolve().parent.parent / ".demo"
BATCH = 64
EPOCHS = 2
HIDDEN = 256
# Cores that we may use, which may be fewer than the machine has.
WORKERS = min(8, cores())
# The batch after which the snapshot is taken, and how many are compared after it.
SAVED_AT = 17
COMPARED = 30
COLUMNS = [
    "epoch",
    "iteration",
    "main/loss",
    "validation/main/accuracy",
    "elapsed_time",
]


class Net(chainer.Chain):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.hidden = links.Linear(None, HIDDEN)
            self.out = links.Linear(HIDDEN, len(NAMES))

    def forward(self, x: Any) -> Any:
        """The scores of a batch."""
        return self.out(functions.relu(self.hidden(x)))


@dataclass(frozen=True)
class Run:
    """What one training cost, measured from before its iterator was made until after
    it was finalized.
    """

    name: str
    images: int
    batches: int
    wall_s: float
    first_s: float
    wait_s: float
    cpu: meters.Cpu
    accuracy: float


@dataclass
class Demo:
    """What the steps hand on to each other."""

    folder: Path = FOLDER
    runs: list[Run] = field(default_factory=list)
    held_out: Any = None
    lacks_torch: str = ""
    # Folders that have torch and what it needs.
    torchs: list[str] = field(default_factory=list)
    has_failed: bool = False

    def shapes(self) -> Shapes:
        """The pictures to learn from."""
        return Shapes(self.folder, range(HELD_OUT, PICTURES))


def make_trainer(
    demo: Demo, iterator: Any, length: tuple[int, str], collate: Callable[..., Any]
) -> training.Trainer:
    """An ordinary trainer of Chainer's, without anything that is shown."""
    np.random.seed(0)  # of the weights
    optimizer = chainer.optimizers.Adam().setup(links.Classifier(Net()))
    updater = training.StandardUpdater(iterator, optimizer, converter=collate)
    trainer = training.Trainer(updater, length, out=str(demo.folder / "result"))
    test = SerialIterator(demo.held_out, 110, repeat=False, shuffle=False)
    trainer.extend(extensions.Evaluator(test, optimizer.target))
    trainer.extend(extensions.LogReport(filename=None))
    return trainer


def show(trainer: training.Trainer, columns: list[str]) -> None:
    """Lets the trainer say what it does."""
    trainer.extend(extensions.PrintReport(columns, out=Plain()))
    if sys.stdout.isatty():
        trainer.extend(extensions.ProgressBar(update_interval=10))


def train(
    demo: Demo,
    name: str,
    make: Callable[[], Any],
    collate: Any = chainer.dataset.concat_examples,
) -> None:
    """Trains a new classifier, and measures; its products are too small for more
    than one thread.
    """
    cpu = meters.cpu_seconds()
    began = time.perf_counter()
    iterator = make()
    made_s = time.perf_counter() - began
    waits = meters.clock(iterator)
    trainer = make_trainer(demo, iterator, (EPOCHS, "epoch"), collate)
    trainer.extend(
        extensions.snapshot(filename="snapshot-{.updater.epoch}"), trigger=(1, "epoch")
    )
    show(trainer, COLUMNS)
    with threadpool_limits(1):
        trainer.run()  # which finalizes the iterator
    wall_s = time.perf_counter() - began
    cpu = meters.cpu_seconds() - cpu
    accuracy = float(trainer.observation["validation/main/accuracy"])
    batches = trainer.updater.iteration
    demo.runs.append(
        Run(
            name,
            batches * BATCH,
            batches,
            wall_s,
            made_s + waits[0],
            sum(waits),
            cpu,
            accuracy,
        )
    )


def draw_pictures(demo: Demo) -> None:
    """Draws the pictures, and loads those that the accuracy is measured on."""
    progress = Progress("drawing", PICTURES)
    new = pictures.write(demo.folder, progress.step)
    if new:
        progress.end()
    held_out = Shapes(demo.folder, range(HELD_OUT), augment=False)
    demo.held_out = [held_out[i] for i in range(HELD_OUT)]
    size = sum(file.stat().st_size for file in demo.folder.glob("*.jpg"))
    when = "drawn now" if new else "drawn earlier"
    print(
        f"  {PICTURES} JPEGs of {SIDE}x{SIDE}, {size / 1e6:.0f} MB, {when}, in "
        f"{demo.folder.name}/"
    )


def numpy_training(demo: Demo) -> None:
    """A training in NumPy, interrupted and resumed."""
    interrupted.numpy_training(demo.folder, WORKERS)


def torch_training(demo: Demo) -> None:
    """The same in torch, in a process of its own."""
    if demo.lacks_torch:
        print(f"  left out: {demo.lacks_torch}")
        return
    script = Path(__file__).with_name("with_torch.py")
    command = [
        sys.executable,
        str(script),
        str(demo.folder),
        str(WORKERS),
        *demo.torchs,
    ]
    demo.has_failed = subprocess.run(command).returncode != 0


def train_serial(demo: Demo) -> None:
    """The pictures are loaded in between, by the training process."""
    train(demo, "Serial", lambda: SerialIterator(demo.shapes(), BATCH))


def train_chainers(demo: Demo) -> None:
    """Chainer's worker processes."""
    train(
        demo,
        "Chainer's",
        lambda: ChainersIterator(
            demo.shapes(), BATCH, n_processes=WORKERS, n_prefetch=2
        ),
    )


def train_ours(demo: Demo) -> None:
    """Ours; the same trainer."""
    make = lambda: MultiprocessIterator(
        demo.shapes(), BATCH, n_processes=WORKERS, n_prefetch=2
    )  # noqa: E731
    train(demo, "mpiter's", make, converter)


def table(demo: Demo) -> None:
    """Sets the three side by side."""
    rows: list[tuple[str, Callable[[Run], str]]] = [
        (
            "images/s, start and end included",
            lambda run: f"{run.images / run.wall_s:.0f}",
        ),
        ("seconds until the first batch", lambda run: f"{run.first_s:.2f}"),
        ("share of time waited for data", lambda run: f"{run.wait_s / run.wall_s:.0%}"),
        (
            "CPU ms per batch, training process",
            lambda run: f"{1000 * run.cpu.parent_s / run.batches:.1f}",
        ),
        (
            "CPU ms per batch, its workers",
            lambda run: f"{1000 * run.cpu.workers_s / run.batches:.1f}",
        ),
        (f"accuracy on {HELD_OUT} other pictures", lambda run: f"{run.accuracy:.1%}"),
    ]
    names = [run.name for run in demo.runs]
    meters.side_by_side(
        names, {title: [value(run) for run in demo.runs] for title, value in rows}
    )
    print(
        f"  ({WORKERS} workers on {cores()} cores, batches of {BATCH}, {EPOCHS} "
        "epochs, n_prefetch=2)"
    )


class Numbered:
    """Samples that tell which they are."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return (*self.dataset[i], i)


def checksum(batch: Any) -> int:
    """A checksum of a batch to its last byte."""
    return zlib.crc32(
        b"".join(np.asarray(part).tobytes() for sample in batch for part in sample)
    )


def one_epoch(demo: Demo, kill_after: int | None) -> tuple[list[int], list[int]]:
    """(numbers, checksums) of an epoch; a worker is killed after so many batches."""
    numbers = list[int]()
    checksums = list[int]()
    dataset = Numbered(demo.shapes())
    with MultiprocessIterator(
        dataset, BATCH, repeat=False, n_processes=WORKERS, seed=5
    ) as iterator:
        for batch in iterator:
            numbers += [number for *_, number in batch]
            checksums.append(checksum(batch))
            if len(checksums) == kill_after:
                os.kill(iterator.worker_pids[0], signal.SIGKILL)
                print(
                    f"  killed worker {iterator.worker_pids[0]} after {kill_after} "
                    "batches",
                    flush=True,
                )
        restarts = iterator.stats().restarts
    assert bool(restarts) == (kill_after is not None), "only the worker has died"
    return numbers, checksums


def kill_a_worker(demo: Demo) -> None:
    """The same epoch twice, the second time with a worker killed half-way."""
    numbers, undisturbed = one_epoch(demo, None)
    found, checksums = one_epoch(demo, len(undisturbed) // 2)
    seen = Counter(found)
    lost = len(set(numbers) - set(seen))
    repeated = sum(seen.values()) - len(seen)
    same = checksums == undisturbed
    print(
        f"  lost {lost}, repeated {repeated}, checksums "
        f"{'equal' if same else 'DIFFERENT'}"
    )
    if lost or repeated or not same:
        sys.exit("  a killed worker has changed the batches")


def weights(trainer: training.Trainer) -> list[bytes]:
    """All parameters, to the last bit."""
    model = trainer.updater.get_optimizer("main").target
    return [parameter.array.tobytes() for _, parameter in sorted(model.namedparams())]


def resumable(
    demo: Demo, n_processes: int, batches: int
) -> tuple[training.Trainer, list[int]]:
    """A trainer, and the list into which the checksums of its batches go."""
    iterator = MultiprocessIterator(
        demo.shapes(), BATCH, n_processes=n_processes, seed=n_processes
    )
    checksums = list[int]()
    following = iterator.next

    def noted() -> Any:
        batch = following()
        checksums.append(checksum(batch))
        return batch

    iterator.next = noted  # type: ignore[method-assign]
    return make_trainer(demo, iterator, (batches, "iteration"), converter), checksums


def stop_and_resume(demo: Demo) -> None:
    """Resumes from a snapshot within an epoch, with another number of workers, and
    compares with going on unbroken.
    """
    unbroken, expected = resumable(demo, WORKERS, SAVED_AT + COMPARED)
    once = training.triggers.ManualScheduleTrigger(SAVED_AT, "iteration")
    unbroken.extend(extensions.snapshot(filename="within-an-epoch"), trigger=once)
    resumed, found = resumable(demo, WORKERS + 1, SAVED_AT + COMPARED)
    with threadpool_limits(1):
        unbroken.run()
        chainer.serializers.load_npz(
            str(demo.folder / "result" / "within-an-epoch"), resumed
        )
        place = resumed.updater.epoch_detail
        resumed.run()
    print(
        f"  saved at epoch {place:.2f} with {WORKERS} workers, resumed with "
        f"{WORKERS + 1}"
    )
    if found != expected[SAVED_AT:] or weights(resumed) != weights(unbroken):
        sys.exit("  the resumed training differs from the unbroken one")
    print(
        f"  {len(found)} batches identical, augmentation included; parameters "
        "identical to the last bit"
    )


def the_change(demo: Demo) -> None:
    """Print the change that a user types."""
    print(
        "  torch    - from torch.utils.data import DataLoader\n           + from "
        "mpiter.torch import DataLoader\n  NumPy    - batches = (np.stack([decode(f) "
        "for f in files[i : i + 64]]) for i in range(0, n, 64))\n           + batches "
        "= mpiter.batches(images, 64, shuffle=False)  # images[i] is "
        "decode(files[i])\n  Chainer  - from chainer.iterators import "
        "MultiprocessIterator\n           + from mpiter.chainer import "
        "MultiprocessIterator"
    )


STEPS: list[tuple[str, str, Callable[[Demo], None]]] = [
    ("pictures", "Pictures", draw_pictures),
    (
        "torch",
        "A torch training: Ctrl-C in mid-epoch, and on with another number of workers",
        torch_training,
    ),
    ("NumPy", "The same in NumPy", numpy_training),
    ("Chainer", "A Chainer trainer with Chainer's SerialIterator", train_serial),
    ("Chainer", "The same with Chainer's MultiprocessIterator", train_chainers),
    ("Chainer", "The same with mpiter's", train_ours),
    ("Chainer", "Side by side", table),
    ("Chainer", "Kill a worker half-way through an epoch", kill_a_worker),
    (
        "Chainer",
        "Stop within an epoch, resume with another number of workers",
        stop_and_resume,
    ),
    ("Chainer", "The change of one line", the_change),
]


def main(lacks_torch: str = "", *torchs: str) -> None:
    """Takes the steps in turn, and says which part took what."""
    demo = Demo(lacks_torch=lacks_torch, torchs=list(torchs))
    logging.basicConfig(stream=sys.stdout, format="  mpiter: %(message)s")
    shutil.rmtree(demo.folder / "result", ignore_errors=True)
    (demo.folder / "result").mkdir(parents=True)
    took = dict[str, float]()
    for number, (part, title, step) in enumerate(STEPS, 1):
        print(f"\n{number}. {title}", flush=True)
        began = time.perf_counter()
        step(demo)
        took[part] = took.get(part, 0.0) + time.perf_counter() - began
    parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in took.items())
    print(f"\n{sum(took.values()):.0f} s in all: {parts}")
    if demo.has_failed:
        sys.exit(
            "the part in torch failed, as is said above: `python3 examples --torch` "
            "has a torch of its own"
        )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
