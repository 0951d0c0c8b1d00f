"""Random histories lose nothing, repeat nothing, and keep to the weights.

A history is steps of a training, whose state is then loaded by other ranks with another
batch size, and, for mixtures, other weights and other components.  CI goes through a
hundred of each kind.  A change of what is planned, or of a state, wants a thousand:

    MPITER_HISTORIES=1000 python3 tests -m slow -k histories
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from documents import Documents, Named, lognormal, tokens_in

import mpiter
from mpiter.language.shares import BLOCK

# More ranks than rows are no mistake here.
pytestmark = pytest.mark.filterwarnings("ignore:there was no batch")

FEW = 25
MANY = int(os.environ.get("MPITER_HISTORIES", "100"))
EACH = 25


class Ranks:
    """Several ranks that train together, as loaders without workers."""

    def __init__(self, dataset: Any, ranks: int, batch_size: int, state: Any) -> None:
        self.loaders = []
        for rank in range(ranks):
            shard = mpiter.Shard(rank, ranks, exact=True)
            loader: Any = mpiter.DataLoader(
                dataset, batch_size, shuffle=True, seed=7, shard=shard
            )
            if state is not None:
                loader.load_state_dict(json.loads(state))
            self.loaders.append(loader)

    def steps(self, most: int) -> Iterator[list[Any]]:
        """Yield the batches of each step, until an epoch or ``most`` steps are over."""
        epochs = [iter(loader) for loader in self.loaders]
        for _ in range(most):
            batches = [next(epoch, None) for epoch in epochs]
            if batches[0] is None:
                return
            yield [batch for batch in batches if batch is not None]

    def state(self) -> str:
        # Of an epoch's last samples the first rank gets one, if any rank does.
        return json.dumps(self.loaders[0].state_dict())


# -- mixtures --------------------------------------------------------------------------


class Model:
    """What a mixture must give: whole passes of its components, and their shares."""

    def __init__(self) -> None:
        self.given: dict[str, list[int]] = {}
        self.since: Counter[str] = Counter()

    def change(self) -> None:
        """Other weights hold from here on."""
        self.since.clear()

    def take(self, samples: list[Any], lengths: dict[str, int], weights: Any) -> None:
        for sample in samples:
            name, number = sample.split()
            self.given.setdefault(name, []).append(int(number))
            self.since[name] += 1
            if self.since.total() % BLOCK == 0:
                total = sum(weights.values())
                for one, weight in weights.items():
                    due = self.since.total() * weight / total
                    assert abs(self.since[one] - due) < 2, (one, self.since)
        for name, length in lengths.items():
            numbers = self.given.get(name, [])
            for begin in range(0, len(numbers), length):
                one_pass = numbers[begin : begin + length]
                assert len({*one_pass}) == len(one_pass), f"{name} came twice in a pass"


def history_of_a_mixture(seed: int) -> None:
    rng = random.Random(seed)
    names = itertools.count()
    lengths = {f"c{next(names)}": rng.randint(1, 700) for _ in range(rng.randint(1, 4))}
    weights: dict[str, Fraction] = {}
    model = Model()
    state: str | None = None
    has_changed = True
    for _ in range(rng.randint(1, 6)):
        if has_changed:
            weights = {name: Fraction(rng.randint(1, 99), 10) for name in lengths}
            model.change()
        datasets = {name: Named(name, length) for name, length in lengths.items()}
        mix = mpiter.Mix(datasets, weights, length=rng.choice([None, 400, 5000]))
        # Another length of the epoch is another mixture.
        if not has_changed and state is not None:
            told = json.loads(state)["order_state"]["terms"]["length"]
            mix = mpiter.Mix(datasets, weights, length=told)
        ranks = Ranks(mix, rng.randint(1, 4), rng.randint(1, 33), state)
        for step in ranks.steps(rng.randint(0, 40)):
            samples = [sample for batch in step for sample in batch]
            model.take(samples, lengths, weights)
        state = ranks.state()
        has_changed = rng.random() < 0.5
        if has_changed and rng.random() < 0.5:
            lengths[f"c{next(names)}"] = rng.randint(1, 700)
        if has_changed and rng.random() < 0.3 and len(lengths) > 1:
            del lengths[rng.choice([*lengths])]


# -- packed rows -----------------------------------------------------------------------


def history_of_packed_rows(seed: int) -> None:
    rng = random.Random(seed)
    how = rng.choice(["fit", "cut"])
    capacity = rng.choice([16, 64, 100])
    long = rng.choice(["split", "drop", "truncate"])
    parts = rng.randint(0, 3)
    window = rng.choice([1, 16, 64, 8192])
    # Each window costs some 50 µs, so there are fewer documents if windows are small.
    most = {1: 40, 16: 150}.get(window, 400)
    lengths = lognormal(rng.randint(1, most), seed, most=rng.choice([16, 64, 200]))
    whole = Documents(lengths)
    options = {"how": how, "long": long, "window": window}
    first = 1 + len(whole)
    documents = {"a": whole}
    for part in range(parts):
        more = Documents(lognormal(rng.randint(1, most // 2), seed + part), first)
        documents[f"b{part}"] = more
        first += len(more)

    def dataset() -> Any:
        weights = {name: rng.randint(1, 5) for name in documents}
        if parts == 0:
            return mpiter.Pack(whole, capacity, **options)
        if seed % 2:
            packs = dict[str, mpiter.Pack]()
            for name, one in documents.items():
                pack = mpiter.Pack(one, capacity, **options)
                # All its documents may be dropped.
                if len(pack):
                    packs[name] = pack
            if not packs:
                return mpiter.Pack(whole, capacity, **options)
            kept = {name: weights[name] for name in packs}
            return mpiter.Mix(packs, kept, short="renormalise")
        mix = mpiter.Mix(documents, weights, short="renormalise")
        return mpiter.Pack(mix, capacity, **options)

    given = []
    state = None
    present = dataset()
    while True:
        ranks = Ranks(present, rng.randint(1, 4), rng.randint(1, 9), state)
        most = rng.randint(0, 12)
        taken = 0
        for step in ranks.steps(most):
            given += step
            taken += 1
        if taken < most:
            break
        state = ranks.state()
        # Other weights hold from here on.
        if rng.random() < 0.5:
            present = dataset()
    due = Counter[int]()
    for one in documents.values():
        due.update(one.tokens())
    if how == "fit" and long == "drop":
        due = Counter({one: count for one, count in due.items() if count <= capacity})
    if how == "fit" and long == "truncate":
        due = Counter({one: min(count, capacity) for one, count in due.items()})
    assert tokens_in(given) == due


def history_of_repeated_rows(seed: int) -> None:
    """Passes go on across epochs, and what is planned in one is given in it."""
    rng = random.Random(seed)
    options = {
        "how": rng.choice(["fit", "cut"]),
        "long": "split",
        "window": rng.choice([16, 64, 8192]),
    }
    documents: dict[str, Documents] = {}
    first = 1

    def add() -> None:
        nonlocal first
        lengths = lognormal(rng.randint(1, 60), seed + first, most=40)
        documents[f"c{first}"] = Documents(lengths, first)
        first += len(lengths)

    def dataset() -> Any:
        weights = {name: rng.randint(1, 9) for name in documents}
        length = rng.choice([None, 20, 150])
        return mpiter.Pack(mpiter.Mix(documents, weights, length=length), 32, **options)

    add()
    present = dataset()
    state: str | None = None
    given = Counter[int]()
    for _ in range(rng.randint(2, 5)):
        if rng.random() < 0.5:
            add()
        # Other weights hold from here on, and each epoch may have another length.
        if rng.random() < 0.7:
            present = dataset()
        ranks = Ranks(present, rng.randint(1, 3), rng.randint(1, 9), state)
        most = rng.choice([1, 3, 1 << 30])
        taken = 0
        for step in ranks.steps(most):
            given += tokens_in(step)
            taken += 1
        state = ranks.state()
        if taken == most:
            continue
        # The epoch is over: each document came as often as the others, or once more.
        for one in documents.values():
            passes = {divmod(given[number], n) for number, n in one.tokens().items()}
            assert all(rest == 0 for _, rest in passes)
            assert max(passes)[0] - min(passes)[0] <= 1


HISTORIES = [history_of_a_mixture, history_of_packed_rows, history_of_repeated_rows]


@pytest.mark.parametrize("history", HISTORIES)
def test_few_histories_lose_and_repeat_nothing(history: Any) -> None:
    for seed in range(FEW):
        history(seed)


# So many at a time that each part takes a few seconds.
@pytest.mark.slow
@pytest.mark.parametrize("begin", range(FEW, FEW + MANY, EACH))
@pytest.mark.parametrize("history", HISTORIES)
def test_many_histories_lose_and_repeat_nothing(history: Any, begin: int) -> None:
    for seed in range(begin, begin + EACH):
        history(seed)
