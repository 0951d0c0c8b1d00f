"""A stream's own attributes are kept between epochs where torch's loader keeps them.

Without workers the user's own stream is read.  With ``persistent_workers=True`` each
worker keeps its copy.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

import mpiter


class Epochs:
    """A stream that counts its epochs, and has other elements in each."""

    def __init__(self) -> None:
        self.epoch = self.seen = 0

    def __iter__(self) -> Any:
        self.epoch += 1
        for number in range(7):
            self.seen += 1
            yield 100 * self.epoch + number


class OnAndOn:
    """A stream that is its own iterator, and goes on where it was.

    It does so even after StopIteration.
    """

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at % 8 == 0:
            raise StopIteration
        return self.at


class Telling(Epochs):
    """A stream that saves and loads its epoch and its place."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Any:
        self.epoch += not self.at
        while self.at < 7:
            self.at += 1
            yield 100 * self.epoch + self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]
        self.at = state["at"]


def batches(epoch: Any) -> list[list[int]]:
    return [batch.tolist() for batch in epoch]


def read(loader: Any) -> list[list[list[int]]]:
    """Read two epochs, one batch of a third, and one more epoch."""
    found = [batches(loader), batches(loader)]
    for batch in loader:
        found.append(batches([batch]))
        break
    return [*found, batches(loader)]


@pytest.mark.parametrize("stream", [Epochs, OnAndOn, Telling])
def test_without_workers_the_users_own_stream_is_read(stream: Any) -> None:
    mine = stream()
    with mpiter.DataLoader(mine, 3) as loader:
        first, second, broken_off, last = read(loader)
    assert first != second
    if stream is Epochs:
        assert [epoch[0][0] for epoch in (first, second, broken_off, last)] == [
            100,
            200,
            300,
            400,
        ]
        assert mine.seen == 7 + 7 + 3 + 7, "nothing is read ahead"
    elif stream is OnAndOn:
        assert [second, broken_off, last] == [
            [[9, 10, 11], [12, 13, 14], [15]],
            [[17, 18, 19]],
            [[20, 21, 22], [23]],
        ]
        assert mine.at == 24, "it isn't asked once more"
    else:
        assert broken_off == [[300, 301, 302]]
        assert last == [[303, 304, 305], [306]]


@pytest.mark.parametrize("persistent", [None, False])
@pytest.mark.parametrize("stream", [Epochs, Telling])
def test_with_workers_each_epoch_begins_with_the_stream_as_it_is_here(
    stream: Any, persistent: bool | None
) -> None:
    mine = stream()
    with mpiter.DataLoader(
        mine, 3, num_workers=1, persistent_workers=persistent
    ) as loader:
        first, second, broken_off, last = read(loader)
        assert first == second == last
        assert broken_off == first[:1]
        assert mine.epoch == 0
        if persistent is None:
            mine.epoch = 5
            assert batches(loader)[0] == [600, 601, 602]


def test_in_workers_that_persist_a_stream_keeps_what_it_notes_of_itself() -> None:
    mine = Telling()
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    with mpiter.DataLoader(mine, 3, **options) as loader:
        epochs = [batches(loader), batches(loader)]
        assert epochs == [
            [[n, n + 1, n + 2], [n + 3, n + 4, n + 5], [n + 6]] for n in (100, 200)
        ]
        assert mine.epoch == 0
        state = json.loads(json.dumps(loader.state_dict()))
        third = batches(loader)
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        with pytest.warns(
            RuntimeWarning, match="a worker was replaced, and what its stream had noted"
        ):
            batches(loader)
    with mpiter.DataLoader(mine, 3, **options) as loader:
        loader.load_state_dict(state)
        assert batches(loader) == third
        assert third[0] == [300, 301, 302]


def test_the_next_epoch_follows_the_newest_even_if_another_still_lasted() -> None:
    with mpiter.DataLoader(
        Telling(), 3, num_workers=1, persistent_workers=True
    ) as loader:
        batches(loader)
        state = loader.state_dict()
        second = batches(loader)
        third = batches(loader)
        assert second != third
    with mpiter.DataLoader(
        Telling(), 3, num_workers=1, persistent_workers=True
    ) as loader:
        older = iter(loader)
        next(older)
        loader.load_state_dict(state)
        newer = iter(loader)
        del older
        assert batches(newer) == second
        assert batches(loader) == third


@pytest.mark.torch
@pytest.mark.parametrize("stream", [Epochs, OnAndOn, Telling])
def test_so_it_is_in_torchs_persistent_workers(stream: Any) -> None:
    torch = pytest.importorskip("torch")
    from mpiter.torch import DataLoader

    class Stream(stream, torch.utils.data.IterableDataset):  # type: ignore[misc]
        pass

    def told(loader_of: Any) -> Any:
        loader = loader_of(
            Stream(), batch_size=3, num_workers=1, persistent_workers=True
        )
        return [batches(loader) for _ in range(3)]

    mine = told(DataLoader)
    assert mine == told(torch.utils.data.DataLoader)
    assert mine[0] != mine[1] != mine[2]


@pytest.mark.torch
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("stream", [Epochs, OnAndOn, Telling])
def test_so_it_is_with_torchs_loader(stream: Any, num_workers: int) -> None:
    torch = pytest.importorskip("torch")
    from mpiter.torch import DataLoader

    class Stream(stream, torch.utils.data.IterableDataset):  # type: ignore[misc]
        pass

    def told(loader_of: Any) -> Any:
        mine = Stream()
        loader = loader_of(mine, batch_size=3, num_workers=num_workers)
        return read(loader), vars(mine)

    assert told(DataLoader) == told(torch.utils.data.DataLoader)
