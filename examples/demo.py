"""The demo: a folder of JPEGs, a small classifier, and what a loader changes. `python3 examples` runs it.

What: one step after the other (see STEPS), each a function of the demo's state; later versions add steps to that list.
Where: in the environment that examples/__main__.py prepares; pictures and the saved state go to `.demo` in the clone.
Guarantees: every number shown was measured in this run; resuming in another order is a failure.
"""

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from threadpoolctl import threadpool_limits

import mpiter

FOLDER = Path(__file__).resolve().parent.parent / ".demo"
NAMES = ("circle", "square", "triangle", "cross")
PICTURES, HELD_OUT = 3000, 440  # how many there are, and how many of them are kept for the accuracy
SIDE, SMALL = 224, 32  # pixels a side: as stored, and as the classifier sees them
BATCH, EPOCHS, HIDDEN = 64, 3, 256
WORKERS = os.cpu_count() or 1
STOP_AFTER, COMPARED = 17, 30  # batches before the stop, and after it (which crosses into the next epoch)


def draw(number: int, noise: np.ndarray) -> Image.Image:
    """Picture `number`: a bright shape of random place and size on a dark ground, under noise."""
    rng = np.random.default_rng(number)
    picture = Image.new("RGB", (SIDE, SIDE), tuple(rng.integers(0, 90, 3).tolist()))
    pen, colour = ImageDraw.Draw(picture), tuple(rng.integers(130, 256, 3).tolist())
    x, y = (SIDE / 2 + rng.uniform(-0.1, 0.1, 2) * SIDE).tolist()
    r = float(rng.uniform(0.18, 0.28) * SIDE)
    match NAMES[number % len(NAMES)]:
        case "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        case "square":
            pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
        case "triangle":
            pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=colour)
        case "cross":
            pen.rectangle((x - r, y - r / 4, x + r, y + r / 4), fill=colour)
            pen.rectangle((x - r / 4, y - r, x + r / 4, y + r), fill=colour)
    return Image.fromarray(np.clip(np.asarray(picture, np.int16) + noise, 0, 255).astype(np.uint8))


def write_pictures(folder: Path) -> bool:
    """Fills the folder unless it is complete already; says whether it had to."""
    complete, recipe = folder / "complete.json", json.dumps([PICTURES, SIDE, NAMES])
    if complete.exists() and complete.read_text() == recipe:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    noises = np.random.default_rng(0).normal(0, 12, (8, SIDE, SIDE, 3)).astype(np.int16)
    progress = Progress("drawing", PICTURES)

    def write(number: int) -> None:
        draw(number, noises[number % len(noises)]).save(folder / f"{number:05}.jpg", quality=90)
        progress.step()

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(write, range(PICTURES)))
    progress.end()
    complete.write_text(recipe)
    return True


class Shapes:
    """The dataset: sample i is (pixels, label), decoded from its file (in grey) and augmented with mpiter.get_rng()."""

    def __init__(self, folder: Path, numbers: range, augment: bool = True) -> None:
        self.folder, self.numbers, self.augment = folder, numbers, augment

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        number = self.numbers[i]
        with Image.open(self.folder / f"{number:05}.jpg") as file:
            picture = file.convert("L")
        box = self.crop() if self.augment else (0, 0, SIDE, SIDE)
        pixels = np.asarray(picture.resize((SMALL, SMALL), Image.Resampling.BILINEAR, box), np.float32)
        if self.augment and mpiter.get_rng().random() < 0.5:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels) / 255 - 0.5, number % len(NAMES)

    def crop(self) -> tuple[float, float, float, float]:
        """A random window, nearly as large as the picture."""
        rng = mpiter.get_rng()
        side = SIDE * rng.uniform(0.85, 1.0)
        left, top = rng.uniform(0, SIDE - side, 2)
        return left, top, left + side, top + side


class Classifier:
    """One hidden layer in plain NumPy, trained with Adam."""

    def __init__(self, inputs: int, outputs: int) -> None:
        rng = np.random.default_rng(0)
        sizes = [(inputs, HIDDEN), (1, HIDDEN), (HIDDEN, outputs), (1, outputs)]
        self.weights = [rng.normal(0, n**-0.5, (n, m)).astype(np.float32) * (n > 1) for n, m in sizes]
        self.means = [np.zeros_like(weight) for weight in self.weights]
        self.squares = [np.zeros_like(weight) for weight in self.weights]
        self.steps = 0

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(inputs, hidden layer, probabilities) of a batch."""
        flat = x.reshape(len(x), -1)
        hidden = np.maximum(flat @ self.weights[0] + self.weights[1], 0)
        scores = hidden @ self.weights[2] + self.weights[3]
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return flat, hidden, powers / powers.sum(1, keepdims=True)

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        """Learns from one batch."""
        flat, hidden, error = self.forward(x)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ self.weights[2].T) * (hidden > 0)
        self.adam([flat.T @ back, back.sum(0, keepdims=True), hidden.T @ error, error.sum(0, keepdims=True)])

    def adam(self, gradients: list[np.ndarray], rate: float = 1e-3) -> None:
        """One step of Adam with its usual constants."""
        self.steps += 1
        rate *= (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for weight, gradient, mean, square in zip(self.weights, gradients, self.means, self.squares, strict=True):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            weight -= rate * mean / (np.sqrt(square) + 1e-8)

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """The share of samples it names rightly."""
        return float((self.forward(x)[2].argmax(1) == y).mean())


class Progress:
    """A line that is rewritten on a terminal; elsewhere a line every quarter of the way."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done, self.began = what, total, 0, time.perf_counter()
        self.live = sys.stdout.isatty()

    def step(self, note: str = "") -> None:
        """One more is done."""
        self.done += 1
        due = self.done % max(1, self.total // (100 if self.live else 4)) == 0
        if due or self.done == self.total:
            self.show(note)

    def show(self, note: str) -> None:
        """Says how far it is."""
        seconds = time.perf_counter() - self.began
        line = f"  {self.what:<12} {self.done:>5} of {self.total}  {seconds:5.1f} s  {note}"
        print(f"\r{line:<78}" if self.live else line, end="" if self.live else "\n", flush=True)

    def end(self) -> None:
        """Leaves the last line standing."""
        if self.live:
            print()


@dataclass(frozen=True)
class Run:
    """What one training cost, measured from before its loader was made until after it was closed."""

    name: str
    images: int
    batches: int
    wall_s: float
    first_s: float
    wait_s: float
    cpu_s: float
    accuracy: float


@dataclass
class Demo:
    """What the steps hand on to each other."""

    folder: Path = FOLDER
    runs: list[Run] = field(default_factory=list)
    held_out: tuple[np.ndarray, ...] = ()

    def shapes(self) -> Shapes:
        """The pictures to learn from."""
        return Shapes(self.folder, range(HELD_OUT, PICTURES))


def stack(samples: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Samples as a batch, the way a plain loop does it."""
    return np.stack([x for x, _ in samples]), np.array([y for _, y in samples])


def plain_loop(dataset: Shapes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches from a loop in this process: what one writes without a loader."""
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(len(dataset))
        for start in range(0, len(order), BATCH):
            yield stack([dataset[int(i)] for i in order[start : start + BATCH]])


def cpu_seconds() -> float:
    """Processor time so far of this process and of everything it started, the ended included.

    Workers may be children of a helper process, so the whole tree is added up where the system shows it in /proc.
    """
    if not Path("/proc/self/stat").exists():
        return sum(os.times()[:4])
    parent, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(stat.parent.name)
        parent[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    return sum(ticks[pid] for pid in parent if is_ours(pid, parent)) / os.sysconf("SC_CLK_TCK")


def is_ours(pid: int, parent: dict[int, int]) -> bool:
    """Whether the process is this one or descends from it."""
    while pid in parent and pid != os.getpid():
        pid = parent[pid]
    return pid == os.getpid()


def train(name: str, demo: Demo, feed: Callable[[], Any]) -> Run:
    """Trains a new classifier on every batch of the feed, and measures; its products are too small for two cores."""
    cpu, began = cpu_seconds(), time.perf_counter()
    model, images, waits = Classifier(SMALL * SMALL, len(NAMES)), 0, list[float]()
    progress = Progress(name, EPOCHS * -(-(PICTURES - HELD_OUT) // BATCH))
    with threadpool_limits(1), closing(feed()) as batches:
        for x, y in clocked(batches, waits):
            model.step(x, y)
            images += len(x)
            progress.step(f"{images / (time.perf_counter() - began):6.0f} images/s")
    wall_s, cpu_s = time.perf_counter() - began, cpu_seconds() - cpu
    progress.end()
    return Run(name, images, progress.done, wall_s, waits[0], sum(waits), cpu_s, model.accuracy(*demo.held_out))


def clocked(batches: Iterable[Any], waits: list[float]) -> Iterator[Any]:
    """The same batches; how long each was waited for is noted, the end included."""
    source = iter(batches)
    while True:
        began = time.perf_counter()
        batch = next(source, None)
        waits.append(time.perf_counter() - began)
        if batch is None:
            return
        yield batch


def pictures(demo: Demo) -> None:
    """Draws the pictures, and loads those that the accuracy is measured on."""
    new = write_pictures(demo.folder)
    held_out = Shapes(demo.folder, range(HELD_OUT), augment=False)
    demo.held_out = stack([held_out[i] for i in range(HELD_OUT)])
    size = sum(file.stat().st_size for file in demo.folder.glob("*.jpg"))
    when = "drawn now" if new else "drawn earlier"
    print(f"  {PICTURES} JPEGs of {SIDE}x{SIDE}, {size / 1e6:.0f} MB, {when}, in {demo.folder.name}/")


def train_plain(demo: Demo) -> None:
    """Trains from a loop in this process."""
    demo.runs.append(train("plain loop", demo, lambda: plain_loop(demo.shapes())))


def train_mpiter(demo: Demo) -> None:
    """Trains from worker processes: the loop is the same, the batches come ready."""
    dataset = demo.shapes()
    demo.runs.append(
        train("mpiter", demo, lambda: mpiter.batches(dataset, BATCH, n_processes=WORKERS, seed=0, epochs=EPOCHS))
    )


def table(demo: Demo) -> None:
    """Sets the two side by side."""
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("images/s, start and end included", lambda run: f"{run.images / run.wall_s:.0f}"),
        ("seconds until the first batch", lambda run: f"{run.first_s:.2f}"),
        ("share of time waited for data", lambda run: f"{run.wait_s / run.wall_s:.0%}"),
        ("CPU ms per batch, workers included", lambda run: f"{1000 * run.cpu_s / run.batches:.1f}"),
        (f"accuracy on {HELD_OUT} other pictures", lambda run: f"{run.accuracy:.1%}"),
    ]
    print(f"  {'':<36}" + "".join(f"{run.name:>12}" for run in demo.runs))
    for title, value in rows:
        print(f"  {title:<36}" + "".join(f"{value(run):>12}" for run in demo.runs))
    print(f"  ({WORKERS} workers on {WORKERS} cores, batches of {BATCH}, {EPOCHS} epochs)")


def checksums(iterator: Any, count: int) -> list[int]:
    """A checksum of each of the next batches, pixels and labels."""
    found = []
    for _ in range(count):
        x, y = next(iterator).columns
        found.append(zlib.crc32(y.tobytes(), zlib.crc32(x.tobytes())))
    return found


def stop_and_resume(demo: Demo) -> None:
    """Stops in the middle of an epoch, resumes with another number of workers, and compares with going on unbroken."""
    saved, others = demo.folder / "state.json", WORKERS + 1
    with mpiter.MultiprocessIterator(demo.shapes(), BATCH, n_processes=WORKERS, seed=7) as iterator:
        checksums(iterator, STOP_AFTER)
        saved.write_text(json.dumps(iterator.state_dict()))
        print(f"  stopped at epoch {iterator.epoch_detail:.2f}; the state is {saved.stat().st_size} bytes of JSON")
        unbroken = checksums(iterator, COMPARED)
    with mpiter.MultiprocessIterator(demo.shapes(), BATCH, n_processes=others, seed=8) as iterator:
        iterator.load_state_dict(json.loads(saved.read_text()))
        resumed = checksums(iterator, COMPARED)
        print(f"  resumed with {others} workers instead of {WORKERS}, up to epoch {iterator.epoch_detail:.2f}")
    same = sum(a == b for a, b in zip(unbroken, resumed, strict=True))
    if same < COMPARED:
        raise SystemExit(f"  only {same} of {COMPARED} batches identical: the resumed order is wrong")
    print(f"  {COMPARED} batches identical, augmentation included")


def five_lines(demo: Demo) -> None:
    """What to type first."""
    print(
        "  import mpiter\n"
        "  dataset = ...                            # anything with len(dataset) and dataset[i]\n"
        "  with mpiter.batches(dataset, 64, seed=0, epochs=10) as loader:\n"
        "      for x, y in loader:                  # stacked arrays, ready when you ask\n"
        "          model.step(x, y)"
    )


STEPS: list[tuple[str, Callable[[Demo], None]]] = [
    ("Pictures", pictures),
    ("Training from a plain loop", train_plain),
    ("Training from mpiter", train_mpiter),
    ("Side by side", table),
    ("Stop in the middle of an epoch, resume elsewhere", stop_and_resume),
    ("Five lines to start from", five_lines),
]


def main() -> None:
    """Takes the steps in turn."""
    demo = Demo()
    for number, (title, step) in enumerate(STEPS, 1):
        print(f"\n{number}. {title}", flush=True)
        step(demo)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
