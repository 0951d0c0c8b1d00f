"""What real samples take: photographs of several sizes, read, decoded and resized; JSON for a simulation.

    python bench/service_times.py --out bench/results/service_times.json

Writes the seconds of a processor and of waiting of each sample, in the order they came.  `bench/tuning.py` has 64
simulated cores fetch them.  Needs Pillow.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from driver import add_common, heading, keep_result, refuse_to_overwrite, versions
from PIL import Image

FILES, SAMPLES, OUTPUT = 200, 3000, (224, 224)
SIZES = ((320, 240), (500, 375), (640, 480), (1024, 768), (1600, 1200))


class Photographs:
    """Files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            return np.asarray(image.convert("RGB").resize(OUTPUT))


def photograph(folder: Path, number: int) -> None:
    """Noise of several coarsenesses, as large as one of the sizes."""
    draw = np.random.default_rng(number)
    width, height = SIZES[int(draw.integers(len(SIZES)))]
    sum_ = np.zeros((height, width, 3), np.float32)
    for coarse in (2, 8, 32, 128):
        small = draw.integers(0, 255, (-(-height // coarse), -(-width // coarse), 3), np.uint8)
        sum_ += np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    Image.fromarray((sum_ / 4).astype(np.uint8)).save(folder / f"{number:04}.jpg", quality=88)


def measured(samples: int) -> list[tuple[float, float]]:
    """Of each sample the seconds of a processor, and those beside it."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            photograph(Path(folder), number)
        dataset = Photographs(Path(folder))
        for number in np.random.default_rng(0).integers(len(dataset), size=samples).tolist():
            began, cpu_began = time.perf_counter(), time.thread_time()
            dataset[number]
            cpu_s = time.thread_time() - cpu_began
            found.append((cpu_s, max(0.0, time.perf_counter() - began - cpu_s)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser)
    options = parser.parse_args()
    refuse_to_overwrite(parser, options)
    began, load = time.time(), os.getloadavg()
    times = measured(20 if options.small else SAMPLES)
    cpu_s = [one for one, _ in times]
    print(
        f"{len(times)} samples: {1e3 * statistics.median(cpu_s):.1f} ms of a processor in the middle, "
        f"{1e3 * min(cpu_s):.1f} to {1e3 * max(cpu_s):.1f}"
    )
    cpu_us, wait_us = (" ".join(f"{1e6 * value:.0f}" for value in some) for some in zip(*times, strict=True))
    found = {"versions": versions(), "cpu_us": cpu_us, "wait_us": wait_us}
    keep_result(options.out, heading("service_times", began, load) | found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
