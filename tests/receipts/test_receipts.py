"""A rank's receipts hold what it was handed, however its program ends."""

from __future__ import annotations

import errno
import gc
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest
from ledgers import keys_in, lines_in, logs_in

from mpiter import (
    DataLoader,
    MultiprocessIterator,
    OptionError,
    SerialIterator,
    batches,
)
from mpiter import receipts as writing
from mpiter.audit import audit
from mpiter.receipts import Receipts

LENGTH = 50


class Numbers:
    """Samples are filled with their index, and some fail."""

    def __init__(self, length=LENGTH, failing=()):
        self.length = length
        self.failing = failing

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.failing:
            raise ValueError(f"sample {index}")
        return np.full(3, index)


def numbers_of(batch):
    """Return the indices of a batch's samples."""
    return [int(np.asarray(sample).ravel()[0]) for sample in batch]


class Named(Numbers):
    """Each sample is the ``repr`` of the key that a sampler has given."""

    def __getitem__(self, key):
        return repr(key)


class Circle:
    def __init__(self, stream):
        self.stream = stream
        self.itself = self


def test_the_garbage_collector_may_end_another_loop_while_a_line_is_written(
    tmp_path, monkeypatch
):
    notes = Receipts(tmp_path, 0, 1)
    gc.disable()
    try:
        # It is dropped, but as part of a circle it stays until the collector runs.
        dropped = Circle(batches(Numbers(12), 4, n_processes=0, hooks=notes))
        next(dropped.stream)
        notes.close()
        gone = weakref.ref(dropped)
        del dropped

        def with_collection(*arguments):
            gc.collect()
            return weakref.finalize(*arguments)

        # It is called between the opening of the file and the first line.
        monkeypatch.setattr(writing, "weakref", Weak(with_collection))
        with batches(Numbers(12), 4, n_processes=0, hooks=notes) as stream:
            assert len(list(stream)) == 3
    finally:
        gc.enable()
    assert gone() is None
    assert len(keys_in(logs_in(tmp_path)[0])) == 4 + 12


class Weak:
    def __init__(self, finalize):
        self.finalize = finalize


def test_a_file_has_a_line_of_json_for_each_batch(tmp_path):
    keys = ["a", np.int64(7), (1, 2), "\udcff", b"x"]
    with DataLoader(Named(), 3, sampler=keys, hooks=Receipts(tmp_path, 1, 4)) as loader:
        list(loader)
    lines = lines_in(logs_in(tmp_path)[0])
    assert [{**line, "time": 0} for line in lines] == [
        {
            "epoch": 0,
            "place": 0,
            "receipts": 1,
            "rank": 1,
            "size": 4,
            "length": None,
            "step": 0,
            "time": 0,
        },
        {"epoch": 0, "place": 0, "keys": ["a", 7, [1, 2]], "time": 0},
        {"epoch": 0, "place": 3, "keys": ["\udcff", "b'x'"], "time": 0},
        {"epoch": 0, "time": 0},
    ]


MAKES = {
    "MultiprocessIterator": lambda **k: MultiprocessIterator(
        Numbers(), 8, n_processes=1, repeat=False, **k
    ),
    "repeating": lambda **k: SerialIterator(Numbers(), 8, **k),
    "larger than the dataset": lambda **k: SerialIterator(Numbers(), 70, **k),
    "an order sampler": lambda **k: SerialIterator(
        Numbers(), 8, order_sampler=lambda order, _: order[::-1], **k
    ),
    "batches": lambda **k: batches(Numbers(), 8, n_processes=0, epochs=2, **k),
    "a collate_fn": lambda **k: DataLoader(
        Numbers(), 8, shuffle=True, num_workers=1, collate_fn=list, **k
    ),
    "a sampler": lambda **k: DataLoader(
        Numbers(), 3, sampler=[7, 3, 3, 1, 0, 9, 8], **k
    ),
    "a batch sampler": lambda **k: DataLoader(
        Numbers(), batch_sampler=[[7, 3], [3, 1, 0], [9, 8]], **k
    ),
    "a shard": lambda **k: batches(
        Numbers(), 8, n_processes=0, shard=(1, 3), epochs=2, **k
    ),
    "a shard in one": lambda **k: DataLoader(
        Numbers(), 4, shuffle=True, collate_fn=list, shard=(2, 3), **k
    ),
}


@pytest.mark.parametrize("name", MAKES)
def test_what_was_handed_out_is_noted_and_nothing_that_was_only_fetched(tmp_path, name):
    found: list[int] = []
    it = MAKES[name](hooks=Receipts(tmp_path))
    for number, batch in zip(range(9), it, strict=False):
        found += numbers_of(batch)
        [path] = logs_in(tmp_path)
        assert keys_in(path) == found, "at once"
        if number in (1, 8) and not name.startswith(
            ("a sampler", "a batch sampler", "a shard")
        ):
            verdict = audit(tmp_path)
            assert verdict.is_sound, "\n".join(verdict.lines)
    it.close()
    assert keys_in(path) == found


@pytest.mark.torch
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "num_workers": 1, "drop_last": True}]
)
def test_torchs_loader_notes_too(tmp_path, options):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    from mpiter.torch import DataLoader

    with DataLoader(
        torch.arange(LENGTH), 8, hooks=Receipts(tmp_path), **options
    ) as loader:
        found = [
            number for _ in range(2) for batch in loader for number in numbers_of(batch)
        ]
    assert keys_in(logs_in(tmp_path)[0]) == found
    epochs = audit(tmp_path).epochs
    assert len(epochs) == 2
    for epoch in epochs:
        assert (epoch.is_over, epoch.is_sound, epoch.length) == (True, True, LENGTH)


@pytest.mark.parametrize(("options", "workers"), [({}, 0), ({"collate_fn": list}, 1)])
def test_skipped_samples_are_noted_as_such(tmp_path, options, workers):
    dataset = Numbers(20, failing=(1, 2, 8, 9, 10, 11, 19))
    with DataLoader(
        dataset,
        4,
        num_workers=workers,
        on_error="skip",
        hooks=Receipts(tmp_path),
        **options,
    ) as loader:
        found = [number for batch in loader for number in numbers_of(batch)]
    [path] = logs_in(tmp_path)
    assert keys_in(path) == found == [0, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18]
    assert sorted(keys_in(path, "skipped")) == [1, 2, 8, 9, 10, 11, 19]
    [epoch] = audit(tmp_path).epochs
    assert epoch.is_sound
    assert "7 were skipped since they failed" in epoch.lines[0]


def test_an_error_in_a_batchs_place_is_noted_as_such(tmp_path):
    with batches(
        Numbers(12, failing=[5]),
        4,
        n_processes=0,
        shuffle=False,
        hooks=Receipts(tmp_path),
    ) as it:
        next(it)
        with pytest.raises(ValueError, match="sample 5"):
            next(it)
        next(it)
    [path] = logs_in(tmp_path)
    assert keys_in(path, "failed") == [4, 5, 6, 7]
    assert keys_in(path) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert not audit(tmp_path).is_sound


def test_a_batch_that_ctrl_c_kept_from_the_user_is_noted_anew(tmp_path, monkeypatch):
    def interrupted(receipts, record):
        monkeypatch.undo()
        receipts._write(record)
        raise KeyboardInterrupt

    with batches(Numbers(), 8, n_processes=0, hooks=Receipts(tmp_path)) as it:
        found = numbers_of(next(it))
        monkeypatch.setattr(Receipts, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(it)
        found += [number for batch in it for number in numbers_of(batch)]
    [epoch] = audit(tmp_path).epochs
    assert (epoch.is_sound, epoch.samples, sorted(found)) == (
        True,
        LENGTH,
        [*range(LENGTH)],
    )


def test_going_back_in_one_program_voids_what_came_after_and_a_reset_before_nothing(
    tmp_path,
):
    with batches(Numbers(), 8, n_processes=1, hooks=Receipts(tmp_path)) as it:
        next(it), next(it)
        state = it.state_dict()
        next(it), next(it)
        it.reset()
        it.load_state_dict(state)
        list(it)
    assert len(logs_in(tmp_path)) == 1
    [epoch] = audit(tmp_path).epochs
    assert (epoch.is_sound, epoch.samples) == (True, LENGTH)


TRAINER = """
    import json, os, signal, sys
    import mpiter
    from mpiter.receipts import Receipts

    rank, folder = int(sys.argv[1]), sys.argv[2]
    with mpiter.DataLoader(
        range(103), 5, shuffle=True, seed=3, shard=(rank, 2), hooks=Receipts(folder)
    ) as loader:
        for step, _ in enumerate(loader, 1):
            if step == 2 and rank == 0:
                with open(folder + "/state.json", "w") as file:
                    json.dump(loader.state_dict(), file)
            if step == 3 + rank:
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_trainers_that_are_killed_and_go_on_with_other_ranks_and_batch_sizes_are_sound(
    tmp_path,
):
    script = tmp_path / "trainer.py"
    script.write_text(textwrap.dedent(TRAINER))
    trainers = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path)])
        for rank in range(2)
    ]
    assert [trainer.wait(timeout=120) for trainer in trainers] == [-signal.SIGKILL] * 2
    with DataLoader(
        range(103), 9, shuffle=True, seed=3, hooks=Receipts(tmp_path)
    ) as loader:
        loader.load_state_dict(json.loads((tmp_path / "state.json").read_text()))
        assert sum(map(len, loader)) == 103 - 20
    found = audit(tmp_path)
    assert found.is_sound, "\n".join(found.lines)
    assert (found.starts, found.epochs[0].samples) == ((2, 1), 103)


class Stream:
    def __iter__(self):
        return iter(range(4))


def test_what_cannot_be_noted_is_refused_at_once(tmp_path):
    for refused, why in (
        (
            lambda: batches(
                Numbers(), 8, n_processes=2, hooks=Receipts(tmp_path), in_order=False
            ),
            "receipts need in_order",
        ),
        (lambda: DataLoader(Stream(), 2, hooks=Receipts(tmp_path)), "read as a stream"),
    ):
        with pytest.raises(OptionError, match=why):
            refused()


@pytest.mark.parametrize("partly", [False, True])
def test_a_full_disk_ends_the_log_with_one_warning_and_not_the_training(
    tmp_path, monkeypatch, caplog, partly
):
    class FullAfterTwoBatches:
        left = 3

        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, descriptor, data):
            self.left -= 1
            if self.left < 0 and not partly:
                raise OSError(errno.ENOSPC, "No space left on device")
            return os.write(descriptor, data if self.left >= 0 else data[:5])

    monkeypatch.setattr(writing, "os", FullAfterTwoBatches())
    with (
        batches(Numbers(), 8, n_processes=0, hooks=Receipts(tmp_path)) as it,
        caplog.at_level(logging.WARNING),
    ):
        assert sum(map(len, it)) == LENGTH
    assert (
        len(
            [
                one
                for one in caplog.records
                if "cannot be written, and end here" in one.message
            ]
        )
        == 1
    )
    found = audit(tmp_path)
    assert (found.epochs[0].samples, found.epochs[0].is_over) == (16, False)


def test_the_rank_is_the_launchers_unless_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "5")
    for receipts in (Receipts(tmp_path), Receipts(tmp_path, 1, 2)):
        with batches(Numbers(), 8, n_processes=0, hooks=receipts) as it:
            next(it)
    assert [path.name[:13] for path in logs_in(tmp_path)] == [
        "rank-1-of-2-1",
        "rank-3-of-5-1",
    ]


def test_two_ranks_that_take_each_other_for_a_restart_are_found(tmp_path):
    its = [
        batches(Numbers(), 8, n_processes=0, hooks=Receipts(tmp_path)) for _ in range(2)
    ]
    for _ in zip(*its, strict=True):
        pass
    assert "were rank 0 of 1 at the same time" in "".join(audit(tmp_path).lines)
    for it in its:
        it.close()


def test_samplers_of_the_ranks_own_are_judged_by_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        receipts = Receipts(tmp_path, length=LENGTH)
        with DataLoader(
            Numbers(), 8, sampler=range(rank, LENGTH, 2), hooks=receipts
        ) as loader:
            for _ in loader:
                pass
    [epoch] = audit(tmp_path).epochs
    assert (epoch.is_sound, epoch.samples, epoch.length) == (True, LENGTH, LENGTH)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_a_file_of_its_own(tmp_path):
    with batches(
        Numbers(), 8, n_processes=0, shuffle=False, hooks=Receipts(tmp_path)
    ) as it:
        next(it)
        child = multiprocessing.get_context("fork").Process(target=next, args=(it,))
        child.start()
        child.join()
        next(it)
    assert child.exitcode == 0
    second = [*range(8, 16)]
    assert sorted(keys_in(path) for path in logs_in(tmp_path)) == [
        [*range(8), *second],
        second,
    ]
