"""A signal that ends a training goes from stage to stage, and is never lost."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import mpiter
from mpiter.checkpoint import ending
from mpiter.checkpoint.agreement import Agreement
from mpiter.checkpoint.ending import Ending
from mpiter.checkpoint.ranks import OneRank

INT = signal.SIGINT
TERM = signal.SIGTERM


class Training:
    """What an ``Ending`` belongs to: it can be saved, or not."""

    def __init__(self, path: Path, ranks: int = 1) -> None:
        self.ending = Ending(path, Agreement(OneRank(0, ranks)))
        self.can_be_saved = False
        self.saves = 0
        # What comes while it is being saved.
        self.while_saving: list[signal.Signals | Exception] = []

    def react(self, frame: FrameType | None) -> None:
        if self.can_be_saved:
            self.ending.end(self.save, frame)
        else:
            self.ending.say_it_waits("")

    def save(self) -> None:
        while self.while_saving:
            one = self.while_saving.pop(0)
            if isinstance(one, Exception):
                raise one
            signal.raise_signal(one)
        self.saves += 1


Heard = list[int]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What the program's own handlers have heard; they let the program go on."""
    came: Heard = []
    before = {}
    for number in (INT, TERM):
        before[number] = signal.signal(number, lambda one, frame: came.append(one))
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def training(tmp_path: Path, heard: Heard) -> Iterator[Training]:
    made = Training(tmp_path / "run.npz")
    made.ending.listen(made.react)
    yield made
    made.ending.stop()


def test_a_signal_waits_until_all_can_be_saved_and_is_said_to(
    training: Training, heard: Heard, capfd: pytest.CaptureFixture[str]
) -> None:
    signal.raise_signal(TERM)
    assert training.ending.is_waiting
    assert (heard, training.saves) == ([], 0)
    assert "SIGTERM waits for the end of this step" in capfd.readouterr().err
    training.ending.end(training.save)
    assert not training.ending.is_waiting
    assert (heard, training.saves) == ([TERM], 1)


def test_where_all_can_be_saved_a_signal_is_delivered_at_once(
    training: Training, heard: Heard, capfd: pytest.CaptureFixture[str]
) -> None:
    training.can_be_saved = True
    signal.raise_signal(TERM)
    assert (heard, training.saves) == ([TERM], 1)
    assert capfd.readouterr().err.startswith("mpiter: saved: ")


def test_after_a_handler_that_returns_the_next_signal_is_held_back_again(
    training: Training, heard: Heard
) -> None:
    training.can_be_saved = True
    signal.raise_signal(TERM)
    training.can_be_saved = False
    signal.raise_signal(TERM)
    assert training.ending.is_waiting
    assert heard == [TERM]


def test_a_signal_that_comes_as_another_is_delivered_waits(
    training: Training, heard: Heard
) -> None:
    class Interrupted(dict[int, object]):
        """Has a signal come while the handler of the first is looked up."""

        def get(self, number: int, default: object = None) -> object:
            signal.raise_signal(TERM)
            return super().get(number, default)

    training.ending._handlers = Interrupted(training.ending._handlers)
    signal.raise_signal(INT)
    training.ending.deliver()
    assert heard == [INT]
    assert training.ending.is_waiting
    training.ending._handlers = dict(training.ending._handlers)
    training.ending.deliver()
    assert heard == [INT, TERM]
    assert not training.ending.is_waiting


@pytest.mark.parametrize("second", [TERM, INT])
def test_a_further_signal_waits_in_silence_until_all_is_saved(
    training: Training,
    heard: Heard,
    second: signal.Signals,
    capfd: pytest.CaptureFixture[str],
) -> None:
    training.can_be_saved = True
    training.while_saving = [second]
    signal.raise_signal(TERM)
    assert (heard, training.saves) == ([second], 1)
    assert " waits for " not in capfd.readouterr().err


def test_a_second_ctrl_c_interrupts_what_is_being_saved(
    training: Training, heard: Heard
) -> None:
    def interrupts(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    training.ending.stop()
    signal.signal(INT, interrupts)
    training.ending.listen(training.react)
    training.can_be_saved = True
    training.while_saving = [INT]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(INT)
    assert training.saves == 0
    assert signal.getsignal(INT) is interrupts


def test_a_signal_whose_save_fails_is_held_back_until_the_block_ends(
    training: Training, heard: Heard
) -> None:
    training.can_be_saved = True
    training.while_saving = [OSError("the disk is gone")]
    with pytest.raises(OSError, match="the disk is gone"):
        signal.raise_signal(TERM)
    assert training.ending.is_waiting
    training.ending.stop()
    assert heard == []
    training.ending.deliver()
    assert heard == [TERM]


def test_ctrl_c_that_another_rank_has_told_of_comes_once_more_by_the_launcher(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(ending.time, "monotonic", lambda: now[0])
    training = Training(tmp_path / "run.npz", ranks=2)
    training.ending.listen(training.react)
    try:
        training.ending.agree(INT)
        now[0] += 1
        signal.raise_signal(INT)
        assert heard == []
        now[0] += 2
        signal.raise_signal(INT)
        assert heard == [INT]
    finally:
        training.ending.stop()


def test_a_checkpoint_whose_block_has_ended_keeps_no_loader_alive(
    tmp_path: Path,
) -> None:
    def train() -> weakref.ref[object]:
        loader = mpiter.DataLoader(range(4), 2)
        with mpiter.Checkpoint(tmp_path / "run.npz", loader) as c:
            for _ in c.steps(loader):
                pass
        return weakref.ref(loader)

    gc.collect()
    gc.disable()
    try:
        left = train()
        assert left() is None
    finally:
        gc.enable()
