"""Orders that datasets bring, in a module that every worker can import."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mpiter

# What the key of sample ``number`` may be.
KEYS: dict[str, Callable[[int], Any]] = {
    "numbers": lambda number: number,
    "names": lambda number: ("web" if number % 2 else "code", number),
    "rows": lambda number: (number, (number + 1, number + 2), None, 0.5),
}


def number_of(key: Any) -> int:
    """Return the number of the sample that a key of any kind is of."""
    if isinstance(key, tuple):
        return next(part for part in key if type(part) is int)
    return int(key)


class EveryThird(mpiter.Order):
    """Every third sample, then the others; each epoch begins with another one."""

    def __init__(self, length: int, keys: str, seed: int = 0, epoch: int = 0) -> None:
        self.length = length
        self.keys = keys
        self.seed = seed
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def number(self, at: int) -> int:
        for first in range(3):
            numbers = range(first, self.length, 3)
            if at < len(numbers):
                return (numbers[at] + self.seed + self.epoch) % self.length
            at -= len(numbers)
        raise IndexError(at)

    def take(self, start: int, stop: int) -> Any:
        assert 0 <= start <= stop <= self.length
        numbers = [self.number(at) for at in range(start, stop)]
        if self.keys == "numbers":
            return np.array(numbers, np.uint16)
        return [KEYS[self.keys](number) for number in numbers]

    def later(self, epochs: int) -> EveryThird:
        return EveryThird(self.length, self.keys, self.seed, self.epoch + epochs)


class Thirds:
    """A dataset that brings its order, of more samples than it has itself."""

    def __init__(self, length: int = 20, keys: str = "names") -> None:
        self.length = length
        self.keys = keys

    def __len__(self) -> int:
        return max(1, self.length - 3)

    def __getitem__(self, key: Any) -> tuple[Any, int]:
        number = number_of(key)
        assert key == KEYS[self.keys](number)
        return np.full(2, number, np.float32), number

    def mpiter_order(self, seed: int, shuffle: bool | None) -> EveryThird:
        return EveryThird(self.length, self.keys, seed)

    def expected(self, epochs: int, seed: int = 0) -> list[int]:
        """Return the numbers of the samples of the first epochs."""
        found = []
        for epoch in range(epochs):
            order = EveryThird(self.length, self.keys, seed, epoch)
            found += [order.number(at) for at in range(self.length)]
        return found


class ThirdsAtOnce(Thirds):
    """The same, whose samples can be read many at a time."""

    def __getitems__(self, keys: Any) -> list[Any]:
        assert type(keys) is list
        return [self[key] for key in keys]


class Failing(Thirds):
    """Sample 4 fails."""

    def __getitem__(self, key: Any) -> tuple[Any, int]:
        if number_of(key) == 4:
            raise ValueError("no such page")
        return super().__getitem__(key)


class Killing(Thirds):
    """Sample 4 kills its worker, as often as ``times`` says."""

    def __init__(self, folder: Path, times: int, length: int = 20) -> None:
        super().__init__(length)
        self.folder = folder
        self.times = times

    def __getitem__(self, key: Any) -> tuple[Any, int]:
        if number_of(key) == 4:
            killed = len(list(self.folder.iterdir()))
            if killed < self.times:
                (self.folder / str(killed)).touch()
                os._exit(3)
        return super().__getitem__(key)


class Weighted(mpiter.Order):
    """Samples of two sources by weight, each of them in sequence: ("a", 0), …

    Its state has the number of samples of each, by name, so that it can be loaded into
    one with other weights.
    """

    def __init__(
        self,
        a: int,
        b: int,
        begun: tuple[int, int, int] = (0, 0, 0),
        length: int = 60,
    ) -> None:
        self.a = a
        self.b = b
        # A position, and the samples of each before it.
        self.begun = begun
        self.length = length

    def __len__(self) -> int:
        return self.length

    def before(self, position: int) -> tuple[int, int]:
        place, a, b = self.begun
        since = position - place
        of_a = since * self.a // (self.a + self.b)
        return a + of_a, b + since - of_a

    def take(self, start: int, stop: int) -> Any:
        keys = []
        for at in range(start, stop):
            a, b = self.before(at)
            is_of_a = self.before(at + 1)[0] > a
            keys.append(("a", np.int64(a)) if is_of_a else ("b", np.int64(b)))
        return keys

    def later(self, epochs: int) -> Weighted:
        if not epochs:
            return self
        a, b = self.before(self.length)
        each = Weighted(self.a, self.b).before(self.length)
        more = epochs - 1
        counts = (0, a + more * each[0], b + more * each[1])
        return Weighted(self.a, self.b, counts, self.length)

    def state(self, position: int) -> Any:
        a, b = self.before(position)
        weights = [self.a, self.b]
        return {"a": a, "b": b, "weights": weights, "begun": list(self.begun)}

    def restored(self, state: Any, position: int) -> Weighted:
        begun = (position, state["a"], state["b"])
        # With the same weights it goes on exactly as it was.
        if state["weights"] == [self.a, self.b]:
            place, a, b = state["begun"]
            begun = (place, a, b)
        return Weighted(self.a, self.b, begun, self.length)


class Mixed:
    """A dataset that brings such an order."""

    def __init__(self, a: int, b: int) -> None:
        self.order = Weighted(a, b)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, key: Any) -> tuple[bool, int]:
        source, number = key
        assert type(number) is int
        return source == "a", number

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Weighted:
        return self.order
