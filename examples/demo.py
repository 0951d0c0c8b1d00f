"""mpiter's main job, in front of your eyes: trainings that don't wait for their data.

They can be interrupted, too. The demo does this, one step after the other:

1. It draws JPEG files of four shapes.
2. It trains on them in torch, if there is one, and in NumPy, with a Ctrl-C in
   mid-epoch, and compares.
3. It trains a small language model in several ranks, from a mixture of packed rows.
4. It trains a small classifier three times with the very same Chainer trainer: from
   Chainer's SerialIterator, from Chainer's MultiprocessIterator and from mpiter's.
5. It kills a worker half-way through an epoch, and compares.
6. It stops a training within an epoch, resumes it from the snapshot under another
   number of workers, and compares.

Every number shown is measured in this run. A difference where there must be none is a
failure. The demo runs in the environment that examples/__main__.py prepares; pictures
and snapshots go to `.demo` in the clone. Its arguments are the reason why there is no
torch, or "", and the folders that have torch.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# isort: off
# This comes before Chainer, which it lets run on today's NumPy.
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
# One for each core that this process may use: a container may allow fewer than the
# machine has.
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
        """Return the scores of a batch."""
        return self.out(functions.relu(self.hidden(x)))


@dataclass(frozen=True)
class Run:
    """What one training cost.

    It is measured from before its iterator was made until after it was finalized.
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
    # These folders have torch and what it needs.
    torchs: list[str] = field(default_factory=list)
    has_failed: bool = False

    def shapes(self) -> Shapes:
        """Return the pictures to learn from."""
        return Shapes(self.folder, range(HELD_OUT, PICTURES))


def make_trainer(
    demo: Demo, iterator: Any, length: tuple[int, str], collate: Callable[..., Any]
) -> training.Trainer:
    """Return an ordinary trainer of Chainer's, without anything that is shown."""
    # Each training begins with the same weights.
    np.random.seed(0)
    optimizer = chainer.optimizers.Adam().setup(links.Classifier(Net()))
    updater = training.StandardUpdater(iterator, optimizer, converter=collate)
    trainer = training.Trainer(updater, length, out=str(demo.folder / "result"))
    test = SerialIterator(demo.held_out, 110, repeat=False, shuffle=False)
    trainer.extend(extensions.Evaluator(test, optimizer.target))
    trainer.extend(extensions.LogReport(filename=None))
    return trainer


def show(trainer: training.Trainer, columns: list[str]) -> None:
    """Have the trainer say what it does."""
    trainer.extend(extensions.PrintReport(columns, out=Plain()))
    if sys.stdout.isatty():
        trainer.extend(extensions.ProgressBar(update_interval=10))


def train(
    demo: Demo,
    name: str,
    make: Callable[[], Any],
    collate: Any = chainer.dataset.concat_examples,
) -> None:
    """Train a new classifier, and measure what that costs.

    Its matrix products are too small for more than one thread.
    """
    cpu = meters.cpu_seconds()
    began = time.perf_counter()
    iterator = make()
    made_s = time.perf_counter() - began
    waits = meters.clock(iterator)
    trainer = make_trainer(demo, iterator, (EPOCHS, "epoch"), collate)
    snapshot = extensions.snapshot(filename="snapshot-{.updater.epoch}")
    trainer.extend(snapshot, trigger=(1, "epoch"))
    show(trainer, COLUMNS)
    with threadpool_limits(1):
        # The trainer finalizes the iterator, so its end is in the time as well.
        trainer.run()
    wall_s = time.perf_counter() - began
    cpu = meters.cpu_seconds() - cpu
    accuracy = float(trainer.observation["validation/main/accuracy"])
    batches = trainer.updater.iteration
    run = Run(
        name=name,
        images=batches * BATCH,
        batches=batches,
        wall_s=wall_s,
        first_s=made_s + waits[0],
        wait_s=sum(waits),
        cpu=cpu,
        accuracy=accuracy,
    )
    demo.runs.append(run)


def draw_pictures(demo: Demo) -> None:
    """Draw the pictures, and load those that the accuracy is measured on."""
    progress = Progress("drawing", PICTURES)
    new = pictures.write(demo.folder, progress.step)
    if new:
        progress.end()
    held_out = Shapes(demo.folder, range(HELD_OUT), augment=False)
    demo.held_out = [held_out[i] for i in range(HELD_OUT)]
    size = sum(file.stat().st_size for file in demo.folder.glob("*.jpg"))
    when = "drawn now" if new else "drawn earlier"
    files = f"{PICTURES} JPEGs of {SIDE}x{SIDE}, {size / 1e6:.0f} MB"
    print(f"  {files}, {when}, in {demo.folder.name}/")


def numpy_training(demo: Demo) -> None:
    """Train in NumPy, interrupted and resumed."""
    interrupted.numpy_training(demo.folder, WORKERS)


def torch_training(demo: Demo) -> None:
    """Train the same in torch, in a process of its own."""
    if demo.lacks_torch:
        print(f"  left out: {demo.lacks_torch}")
        return
    script = str(Path(__file__).with_name("with_torch.py"))
    arguments = [str(demo.folder), str(WORKERS), *demo.torchs]
    command = [sys.executable, script, *arguments]
    demo.has_failed = subprocess.run(command).returncode != 0


def language_training(_: Demo) -> None:
    """Train a language model in two ranks and then in three."""
    script = str(Path(__file__).with_name("language_model.py"))
    command = [sys.executable, "-u", script]
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(textwrap.indent(ran.stdout, "  "), end="")
    if ran.returncode:
        sys.exit("  the language model failed")


def train_serial(demo: Demo) -> None:
    """Train from pictures that the training process loads itself, between steps."""
    train(demo, "Serial", lambda: SerialIterator(demo.shapes(), BATCH))


def train_chainers(demo: Demo) -> None:
    """Train from the worker processes of Chainer's iterator."""

    def make() -> ChainersIterator:
        return ChainersIterator(demo.shapes(), BATCH, n_processes=WORKERS, n_prefetch=2)

    train(demo, "Chainer's", make)


def train_ours(demo: Demo) -> None:
    """Train from the worker processes of mpiter's iterator, by the same trainer."""

    def make() -> MultiprocessIterator:
        return MultiprocessIterator(
            demo.shapes(), BATCH, n_processes=WORKERS, n_prefetch=2
        )

    train(demo, "mpiter's", make, converter)


def table(demo: Demo) -> None:
    """Set the three trainings side by side."""
    columns = []
    for run in demo.runs:
        parent_ms = 1000 * run.cpu.parent_s / run.batches
        workers_ms = 1000 * run.cpu.workers_s / run.batches
        column = {
            "images/s, start and end included": f"{run.images / run.wall_s:.0f}",
            "seconds until the first batch": f"{run.first_s:.2f}",
            "share of time waited for data": f"{run.wait_s / run.wall_s:.0%}",
            "CPU ms per batch, training process": f"{parent_ms:.1f}",
            "CPU ms per batch, its workers": f"{workers_ms:.1f}",
            f"accuracy on {HELD_OUT} other pictures": f"{run.accuracy:.1%}",
        }
        columns.append(column)
    rows = {title: [column[title] for column in columns] for title in columns[0]}
    meters.side_by_side([run.name for run in demo.runs], rows)
    print(
        f"  ({WORKERS} workers on {cores()} cores, batches of {BATCH}, "
        f"{EPOCHS} epochs, n_prefetch=2)"
    )


class Numbered:
    """Samples of another dataset, each with its number at the end."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return (*self.dataset[i], i)


def checksum(batch: Any) -> int:
    """Return a checksum of a batch to its last byte."""
    parts = [np.asarray(part).tobytes() for sample in batch for part in sample]
    return zlib.crc32(b"".join(parts))


def one_epoch(demo: Demo, kill_after: int | None) -> tuple[list[int], list[int]]:
    """Return (numbers, checksums) of an epoch in which a worker may be killed."""
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
                worker = iterator.worker_pids[0]
                os.kill(worker, signal.SIGKILL)
                print(
                    f"  killed worker {worker} after {kill_after} batches", flush=True
                )
        restarts = iterator.stats().restarts
    assert bool(restarts) == (kill_after is not None), "only the worker has died"
    return numbers, checksums


def kill_a_worker(demo: Demo) -> None:
    """Run the same epoch twice, the second time with a worker killed half-way."""
    numbers, undisturbed = one_epoch(demo, None)
    found, checksums = one_epoch(demo, len(undisturbed) // 2)
    seen = Counter(found)
    lost = len(set(numbers) - set(seen))
    repeated = sum(seen.values()) - len(seen)
    is_same = checksums == undisturbed
    verdict = "equal" if is_same else "DIFFERENT"
    print(f"  lost {lost}, repeated {repeated}, checksums {verdict}")
    if lost or repeated or not is_same:
        sys.exit("  a killed worker has changed the batches")


def weights(trainer: training.Trainer) -> list[bytes]:
    """Return all parameters, to the last bit."""
    model = trainer.updater.get_optimizer("main").target
    return [parameter.array.tobytes() for _, parameter in sorted(model.namedparams())]


def resumable(
    demo: Demo, n_processes: int, batches: int
) -> tuple[training.Trainer, list[int]]:
    """Return a trainer, and the list into which its batches' checksums go."""
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
    """Resume from a snapshot in mid-epoch, and compare with going on unbroken.

    The resumed training has another number of workers.
    """
    unbroken, expected = resumable(demo, WORKERS, SAVED_AT + COMPARED)
    once = training.triggers.ManualScheduleTrigger(SAVED_AT, "iteration")
    unbroken.extend(extensions.snapshot(filename="within-an-epoch"), trigger=once)
    resumed, found = resumable(demo, WORKERS + 1, SAVED_AT + COMPARED)
    saved = str(demo.folder / "result" / "within-an-epoch")
    with threadpool_limits(1):
        unbroken.run()
        chainer.serializers.load_npz(saved, resumed)
        place = resumed.updater.epoch_detail
        resumed.run()
    print(
        f"  saved at epoch {place:.2f} with {WORKERS} workers, "
        f"resumed with {WORKERS + 1}"
    )
    if found != expected[SAVED_AT:] or weights(resumed) != weights(unbroken):
        sys.exit("  the resumed training differs from the unbroken one")
    print(
        f"  {len(found)} batches identical, augmentation included; parameters "
        "identical to the last bit"
    )


def the_change(demo: Demo) -> None:
    """Print the line that a user changes, before and after."""
    print("  torch    - from torch.utils.data import DataLoader")
    print("           + from mpiter.torch import DataLoader")
    print(
        "  NumPy    - batches = (np.stack([decode(f) for f in files[i : i + 64]]) "
        "for i in range(0, n, 64))"
    )
    print(
        "           + batches = mpiter.batches(images, 64, shuffle=False)"
        "  # images[i] is decode(files[i])"
    )
    print("  Chainer  - from chainer.iterators import MultiprocessIterator")
    print("           + from mpiter.chainer import MultiprocessIterator")


STEPS: list[tuple[str, str, Callable[[Demo], None]]] = [
    ("pictures", "Pictures", draw_pictures),
    (
        "torch",
        "A torch training: Ctrl-C in mid-epoch, and on with another number of workers",
        torch_training,
    ),
    ("NumPy", "The same in NumPy", numpy_training),
    (
        "language",
        "A language model: Ctrl-C stops two ranks, three go on by other weights",
        language_training,
    ),
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
    """Take the steps in turn, and say how long each part took."""
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
