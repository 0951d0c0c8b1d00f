"""Receipts: what a rank was handed stands in its file, in the documented format, whatever becomes of the program."""

from __future__ import annotations

import errno
import gc
import json
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import zlib
from itertools import chain

import msgpack
import numpy as np
import pytest
from ledgers import keys_in, logs_in, objects_in, records_in
from pairs import slow_but

import mpiter
from mpiter import DataLoader, MultiprocessIterator, MultithreadIterator, OptionError, SerialIterator, batches
from mpiter.remote import receipts as writing
from mpiter.remote.audit import audit
from mpiter.remote.audit.logs import Kind
from mpiter.remote.receipts import Receipts

LENGTH = 50


class Numbers:
    """Samples that say which they are; some fail."""

    def __init__(self, length=LENGTH, failing=()):
        self.length, self.failing = length, failing

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.failing:
            raise ValueError(f"sample {index}")
        return np.full(3, index)


def numbers_of(batch):
    """The samples of a batch, of whatever kind."""
    return [int(np.asarray(sample).ravel()[0]) for sample in batch]


# -- the format --------------------------------------------------------------------------------------------------------


def test_a_loader_of_any_kind_writes_a_header_and_a_record_for_each_batch(tmp_path):
    with Receipts(tmp_path, 1, 4, loader="theirs 1.0") as receipts:
        receipts.begin(0, 0, length=5)
        receipts.handed(0, 0, np.array([3, 1]))
        receipts.handed(0, np.int64(1), ["a", 7, (1, 2), "\udcff"], fills=1)
        receipts.failed(0, 2, [4])
        receipts.end(0)
    [path] = logs_in(tmp_path)
    header = objects_in(path)[0]
    assert {**header, "time": 0} == {"receipts": 1, "rank": 1, "size": 4, "time": 0, "loader": "theirs 1.0"}
    assert records_in(path) == [
        ["from", 0, 0, {"length": 5, "order": None, "seed": None, "step": None}],
        ["batch", 0, 0, None, [3, 1], 0, None],
        ["batch", 0, 1, None, ["a", 7, "(1, 2)", "\\udcff"], 1, None],
        ["failed", 0, 2, None, [4]],
        ["end", 0, records_in(path)[-1][2]],
    ]
    assert header["time"] <= records_in(path)[-1][2]


def test_after_each_record_comes_a_checksum_of_all_before_it(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=5)
        receipts.handed(0, 0, [3, 1])
    [header, *records] = objects_in(logs_in(tmp_path)[0])
    chain = zlib.crc32(msgpack.packb(header))
    for record, told in zip(records[::2], records[1::2], strict=True):
        chain = zlib.crc32(msgpack.packb(record), chain)
        assert told == chain


def test_keys_that_follow_from_the_order_are_in_the_checksum_alone(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=5, order="sequential")
        before = receipts._chain
        receipts.handed(0, 0, [2, 3], positions=(2, 2))
    record, told = objects_in(logs_in(tmp_path)[0])[3:]
    assert record == ["batch", 0, 0, [2, 2], None, 0, None]
    assert told == zlib.crc32(np.array([2, 3], "<i8").tobytes(), zlib.crc32(msgpack.packb(record), before))


def test_a_batch_is_a_few_bytes(tmp_path):
    with batches(np.zeros(100_000), 128, n_processes=0, receipts=tmp_path) as it:
        count = sum(1 for _ in it)
    assert logs_in(tmp_path)[0].stat().st_size < 30 * count


# -- what is noted -----------------------------------------------------------------------------------------------------


def _sampler():
    return iter([7, 3, 3, 1, 0, 9, 8])


MAKES = {
    "MultiprocessIterator": lambda **k: MultiprocessIterator(Numbers(), 8, n_processes=2, repeat=False, **k),
    "its serial backend": lambda **k: MultiprocessIterator(Numbers(), 8, n_processes=0, repeat=False, **k),
    "repeating": lambda **k: MultiprocessIterator(Numbers(), 8, n_processes=2, n_prefetch=3, **k),
    "larger than the dataset": lambda **k: SerialIterator(Numbers(), 70, **k),
    "MultithreadIterator": lambda **k: MultithreadIterator(Numbers(), 8, n_threads=2, repeat=False, **k),
    "SerialIterator": lambda **k: SerialIterator(Numbers(), 8, repeat=False, **k),
    "an order sampler": lambda **k: SerialIterator(Numbers(), 8, order_sampler=lambda order, _: order[::-1], **k),
    "batches": lambda **k: batches(Numbers(), 8, n_processes=2, epochs=2, **k),
    "batches of threads": lambda **k: batches(Numbers(), 8, n_processes=2, backend="thread", **k),
    "batches of packed rows": lambda **k: batches(Numbers(), 8, n_processes=2, serializer="packed", **k),
    "batches in sequence": lambda **k: batches(Numbers(), 8, n_processes=0, shuffle=False, drop_last=True, **k),
    "DataLoader": lambda **k: DataLoader(Numbers(), 8, num_workers=2, shuffle=True, **k),
    "DataLoader without workers": lambda **k: DataLoader(Numbers(), 8, shuffle=True, **k),
    "a collate_fn": lambda **k: DataLoader(Numbers(), 8, shuffle=True, num_workers=1, collate_fn=list, **k),
    "a sampler": lambda **k: DataLoader(Numbers(), 3, sampler=[7, 3, 3, 1, 0, 9, 8], **k),
    "a batch sampler": lambda **k: DataLoader(Numbers(), batch_sampler=[[7, 3], [3, 1, 0], [9, 8]], num_workers=1, **k),
    "a shard": lambda **k: batches(Numbers(), 8, n_processes=0, shard=(1, 3), epochs=2, **k),
    "a loader's shard": lambda **k: DataLoader(Numbers(), 8, shuffle=True, shard=(2, 3), **k),
    "a shard in one": lambda **k: DataLoader(Numbers(), 4, shuffle=True, collate_fn=list, shard=(2, 3), **k),
}


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("most", slow_but([2, 9], 2))
def test_what_was_handed_out_is_noted_and_nothing_that_was_only_fetched(tmp_path, name, most):
    found: list[int] = []
    it = MAKES[name](receipts=tmp_path)
    for _, batch in zip(range(most), it, strict=False):
        found += numbers_of(batch)
        [path] = logs_in(tmp_path)
        assert keys_in(path, (Kind.BATCH, Kind.FILL)) == found, "at once"
    it.close()
    assert keys_in(path, (Kind.BATCH, Kind.FILL)) == found
    if not name.startswith(("a sampler", "a batch sampler", "a shard", "a loader's")):
        verdict = audit(tmp_path)
        assert verdict.is_sound, "\n".join(verdict.lines())


@pytest.mark.torch
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "num_workers": 1, "drop_last": True}])
def test_torchs_loader_notes_too(tmp_path, options):
    torch = pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    from mpiter.torch import DataLoader

    with DataLoader(torch.arange(LENGTH), 8, receipts=tmp_path, **options) as loader:
        found = [number for _ in range(2) for batch in loader for number in numbers_of(batch)]
    assert keys_in(logs_in(tmp_path)[0]) == found
    epochs = audit(tmp_path).epochs
    assert [(epoch.state, epoch.is_sound, epoch.length) for epoch in epochs] == [("whole", True, LENGTH)] * 2


@pytest.mark.chainer
def test_an_order_out_of_a_snapshot_of_chainers_is_noted_by_its_keys(tmp_path):
    chainer = pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests --all`")
    from mpiter.chainer import SerialIterator

    theirs = chainer.iterators.SerialIterator(list(range(LENGTH)), 8)
    found = [number for _ in range(3) for number in theirs.next()]
    chainer.serializers.save_npz(tmp_path / "snapshot.npz", theirs)
    ours = SerialIterator(list(range(LENGTH)), 8, receipts=tmp_path)
    chainer.serializers.load_npz(tmp_path / "snapshot.npz", ours)
    for _ in range(6):
        found += ours.next()
    ours.close()
    assert keys_in(logs_in(tmp_path)[0]) == found[24:]
    verdict = audit(tmp_path)
    assert verdict.is_sound, "\n".join(verdict.lines())
    assert [(one.samples, one.before, one.state) for one in verdict.epochs] == [
        (26, 24, "whole"),
        (22, 0, "incomplete"),
    ]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("make", [batches, DataLoader])
@pytest.mark.parametrize("more", [{}, {"collate_fn": list}])
def test_all_ranks_of_one_epoch_are_sound_together(tmp_path, make, exact, more):
    if make is batches and more:
        pytest.skip("batches() collates nothing")
    workers = "n_processes" if make is batches else "num_workers"
    for rank in range(4):
        shard = mpiter.Shard(rank, 4, exact=exact)
        with make(Numbers(61), 4, shuffle=True, seed=3, shard=shard, receipts=tmp_path, **{workers: 0}, **more) as it:
            for _ in it:
                pass
    found = audit(tmp_path)
    assert found.is_sound, "\n".join(found.lines())
    assert (found.epochs[0].state, found.epochs[0].fillings) == ("whole", 0 if exact else 3)


@pytest.mark.parametrize("make", [batches, DataLoader])
@pytest.mark.parametrize("more", [{}, {"collate_fn": list}])
@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_samples_are_noted_as_such(tmp_path, make, more, workers):
    if make is batches and more:
        pytest.skip("batches() collates nothing")
    name = "n_processes" if make is batches else "num_workers"
    dataset = Numbers(20, failing=(1, 2, 8, 9, 10, 11, 19))
    options = {name: workers, "shuffle": False, "on_error": "skip", "receipts": tmp_path} | more
    with make(dataset, 4, **options) as it:
        found = [number for batch in it for number in numbers_of(batch)]
    [path] = logs_in(tmp_path)
    assert keys_in(path) == found == [0, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18]
    assert sorted(keys_in(path, Kind.SKIPPED)) == [1, 2, 8, 9, 10, 11, 19]
    verdict = audit(tmp_path)
    assert verdict.is_sound
    assert verdict.epochs[0].skipped.count == 7


def test_an_error_in_a_batchs_place_is_noted_as_such(tmp_path):
    with batches(Numbers(12, failing=[5]), 4, n_processes=0, shuffle=False, receipts=tmp_path) as it:
        next(it)
        with pytest.raises(ValueError, match="sample 5"):
            next(it)
        next(it)
    [path] = logs_in(tmp_path)
    assert keys_in(path, Kind.FAILED) == [4, 5, 6, 7]
    assert keys_in(path) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert not audit(tmp_path).is_sound


def test_samples_that_cannot_be_stacked_are_noted_as_failed(tmp_path):
    it = batches([np.zeros(1), np.zeros(2)], 2, n_processes=0, shuffle=False, receipts=tmp_path)
    with it, pytest.raises(mpiter.UnevenSamples):
        next(it)
    assert keys_in(logs_in(tmp_path)[0], Kind.FAILED) == [0, 1]


def test_a_batch_that_was_taken_back_by_ctrl_c_is_noted_once(tmp_path, monkeypatch):
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as it:
        next(it)
        note, calls = it._pump.composer.handed_out, []

        def interrupted():
            if not calls:
                calls.append(1)
                it._pump.cursor = before
                raise KeyboardInterrupt
            note()

        before = it._pump.cursor
        monkeypatch.setattr(it._pump.composer, "handed_out", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(it)
        list(it)
    assert audit(tmp_path).is_sound


@pytest.mark.parametrize("is_written", [False, True], ids=["before", "after"])
def test_a_record_that_ctrl_c_cuts_short_is_noted_anew(tmp_path, monkeypatch, is_written):
    class Interrupted:
        left = 4

        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, descriptor, data):
            self.left -= 1
            if self.left or is_written:
                written = os.write(descriptor, data)
            if not self.left:
                raise KeyboardInterrupt
            return written

    monkeypatch.setattr(writing, "os", Interrupted())
    found = []
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as it:
        with pytest.raises(KeyboardInterrupt):
            for batch in it:
                found += numbers_of(batch)
        for batch in it:
            found += numbers_of(batch)
    assert sorted(found) == list(range(LENGTH))
    verdict = audit(tmp_path)
    assert verdict.is_sound, "\n".join(verdict.lines())
    assert verdict.epochs[0].samples == LENGTH


def test_contents_are_the_same_whoever_fetched_them_and_others_if_a_byte_is(tmp_path):
    def hashes(name, dataset, **options):
        with batches(dataset, 8, seed=3, receipts=Receipts(tmp_path / name, contents=True), **options) as it:
            list(it)
        return [record[6] for record in records_in(logs_in(tmp_path / name)[0]) if record[0] == "batch"]

    data = np.arange(60.0).reshape(20, 3)
    alone = hashes("alone", data, n_processes=0)
    assert None not in alone
    assert hashes("workers", data, n_processes=2) == alone
    assert hashes("packed", data, n_processes=2, serializer="packed") == alone
    changed = data.copy()
    changed[7, 1] += 1
    assert sum(one != other for one, other in zip(hashes("changed", changed, n_processes=0), alone, strict=True)) == 1


@pytest.mark.parametrize("sample", ["text", {"a": [1, 2.5], "b": None}, (b"bytes", {1, 2}), [np.array(["x", None])]])
def test_contents_of_any_kind_are_hashed(tmp_path, sample):
    for name in "ab":
        receipts = Receipts(tmp_path / name, contents=True)
        with batches([sample] * 4, 2, n_processes=0, ragged="list", receipts=receipts) as it:
            list(it)
    one, other = ([record[6] for record in records_in(logs_in(tmp_path / name)[0])[1:3]] for name in "ab")
    assert one == other
    assert None not in one


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_going_back_within_one_program_makes_void_what_came_after(tmp_path):
    with batches(Numbers(), 8, n_processes=2, receipts=tmp_path) as it:
        next(it)
        state = it.state_dict()
        next(it), next(it)
        it.load_state_dict(state)
        list(it)
    assert len(logs_in(tmp_path)) == 1
    assert audit(tmp_path).is_sound
    assert audit(tmp_path).epochs[0].samples == LENGTH


def test_a_reset_before_a_state_is_loaded_makes_nothing_void(tmp_path):
    with batches(Numbers(), 8, n_processes=2, receipts=tmp_path) as it:
        next(it), next(it)
        state = it.state_dict()
        next(it)
        it.reset()
        it.load_state_dict(state)
        list(it)
    assert audit(tmp_path).epochs[0].samples == LENGTH


def test_a_closed_iterator_that_revives_goes_on_in_its_file(tmp_path):
    it = SerialIterator(Numbers(), 8, repeat=False, receipts=tmp_path)
    next(it)
    it.close()
    list(it)
    it.close()
    assert audit(tmp_path).is_sound
    assert len(logs_in(tmp_path)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_go_on_from_a_state_with_other_numbers_of_ranks_and_batch_sizes(tmp_path, workers):
    state = None
    for size, batch_size, saved in ((8, 2, 2), (3, 5, 1), (2, 7, None)):
        states = []
        for rank in range(size):
            options = {"shuffle": True, "seed": 3, "shard": (rank, size), "num_workers": workers * (rank == 0)}
            with DataLoader(Numbers(103), batch_size, receipts=tmp_path, **options) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for at, _ in enumerate(loader, 1):
                    if at == saved:
                        states.append(loader.state_dict())
                    if saved is not None and at == saved + 1 + rank % 2:  # killed when not all had got equally far
                        break
        state = states[0] if states else None
    found = audit(tmp_path)
    assert found.is_sound, "\n".join(found.lines())
    assert found.starts == (8, 3, 2)
    assert (found.epochs[0].samples, found.epochs[0].state) == (103, "whole")


TRAINER = """
    import json, os, signal, sys
    import mpiter

    rank, size, batch_size, save, die, folder = *map(int, sys.argv[1:6]), sys.argv[6]
    state = folder + "/state.json"
    it = mpiter.batches(range(103), batch_size, n_processes={workers}, seed=3, epochs=2, shard=(rank, size),
                        receipts=folder)
    if os.path.exists(state):
        it.load_state_dict(json.load(open(state)))
    for step, _ in enumerate(it, 1):
        if step == save and rank == 0:
            json.dump(it.state_dict(), open(state + ".new", "w"))
        if step == die:
            os.kill(os.getpid(), signal.SIGKILL)
    it.close()
"""


def _trained(folder, script, size, batch_size, save=0, die=0):
    """Real programs, at once; killed ones leave the state that their first rank saved."""
    command = [sys.executable, str(script)]
    trainers = [
        subprocess.Popen([*command, *map(str, (rank, size, batch_size, save, die and die + rank % 2, folder))])
        for rank in range(size)
    ]
    codes = {trainer.wait(timeout=120) for trainer in trainers}
    assert codes == {-signal.SIGKILL if die else 0}
    if save:
        os.replace(folder / "state.json.new", folder / "state.json")


@pytest.mark.parametrize("workers", slow_but([0, 1], 0))
def test_trainers_that_are_killed_and_go_on_are_sound_and_a_lost_batch_is_found(tmp_path, workers):
    script = tmp_path / "trainer.py"
    script.write_text(textwrap.dedent(TRAINER.format(workers=workers)))
    folder = tmp_path / "receipts"
    folder.mkdir()
    _trained(folder, script, 4, 5, save=2, die=3)
    _trained(folder, script, 2, 3, save=3, die=5)
    saved = json.loads((folder / "state.json").read_text())
    _trained(folder, script, 1, 9)
    found = audit(folder)
    assert found.is_sound, "\n".join(found.lines())
    assert found.starts == (4, 2, 1)
    assert [epoch.samples for epoch in found.epochs] == [103, 103]
    for path in logs_in(folder):
        if path.name.startswith("rank-0-of-1-"):
            path.unlink()
    (folder / "state.json").write_text(json.dumps(saved | {"position": saved["position"] + 40}))
    _trained(folder, script, 1, 9)
    assert audit(folder).missing == 40 - 2 * 6 - 3, "but for what they were handed before they were killed"


def test_epochs_may_overlap(tmp_path):
    with DataLoader(Numbers(), 8, shuffle=True, seed=1, receipts=tmp_path) as loader:
        held = iter(loader)
        found = numbers_of(next(held))
        whole = [*loader]
        for batch in held:
            found += numbers_of(batch)
    assert sorted(found) == sorted(chain.from_iterable(map(numbers_of, whole))) == list(range(LENGTH))
    verdict = audit(tmp_path)
    assert verdict.is_sound, "\n".join(verdict.lines())
    assert [epoch.state for epoch in verdict.epochs] == ["whole", "whole"]


# -- what may go wrong -------------------------------------------------------------------------------------------------


def test_batches_as_they_finish_are_refused(tmp_path):
    with pytest.raises(OptionError, match="receipts need in_order=True"):
        batches(Numbers(), 8, n_processes=2, receipts=tmp_path, in_order=False)


def test_a_stream_is_refused(tmp_path):
    class Stream:
        def __iter__(self):
            return iter(range(4))

    with pytest.raises(OptionError, match="read as a stream"):
        DataLoader(Stream(), 2, receipts=tmp_path)


@pytest.mark.parametrize("given", [3, Receipts, object()])
def test_what_is_no_folder_is_refused(given):
    with pytest.raises(OptionError, match="is no folder"):
        batches(Numbers(), 8, n_processes=0, receipts=given)


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="the folder cannot be made"):
        batches(Numbers(), 8, n_processes=0, receipts=tmp_path / "file" / "receipts")


def test_a_folder_that_may_not_be_written_to_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may
    with pytest.raises(OptionError, match="may not write there"):
        batches(Numbers(), 8, n_processes=0, receipts=tmp_path)


@pytest.mark.parametrize("partly", [False, True])
def test_a_full_disk_ends_the_log_with_one_warning_and_not_the_training(tmp_path, monkeypatch, caplog, partly):
    class FullAfterTwoBatches:
        left = 4

        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, descriptor, data):
            self.left -= 1
            if self.left < 0 and not partly:
                raise OSError(errno.ENOSPC, "No space left on device")
            return os.write(descriptor, data if self.left >= 0 else data[:5])

    monkeypatch.setattr(writing, "os", FullAfterTwoBatches())
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as it, caplog.at_level(logging.WARNING):
        assert sum(map(len, it)) == LENGTH
    assert len([one for one in caplog.records if "cannot be written, and end here" in one.message]) == 1
    found = audit(tmp_path)
    assert (found.torn, found.epochs[0].samples, found.epochs[0].state) == (int(partly), 16, "incomplete")


def test_whoever_notes_before_a_beginning_is_told(tmp_path):
    with pytest.raises(OptionError, match="receipts begin with begin"):
        Receipts(tmp_path, 0, 1).handed(0, 0, [1])


# -- who writes --------------------------------------------------------------------------------------------------------


def test_the_rank_is_the_launchers_unless_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "5")
    for receipts in (tmp_path, Receipts(tmp_path, 1, 2)):
        with batches(Numbers(), 8, n_processes=0, receipts=receipts) as it:
            next(it)
    assert [path.name[:13] for path in logs_in(tmp_path)] == ["rank-1-of-2-1", "rank-3-of-5-1"]


def test_ranks_that_all_go_through_everything_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with batches(Numbers(), 8, n_processes=0, seed=1, receipts=tmp_path) as it:
            list(it)
    assert audit(tmp_path).twice == LENGTH


def test_two_who_take_each_other_for_a_restart_are_found(tmp_path):
    its = [batches(Numbers(), 8, n_processes=0, receipts=tmp_path) for _ in range(2)]
    for _ in zip(*its, strict=True):
        pass
    assert "were rank 0 of 1 at the same time" in audit(tmp_path).parted[0]
    for it in its:
        it.close()


def test_two_loaders_of_one_program_that_share_a_folder_are_told(tmp_path, caplog):
    def noted(folder, rank=0):
        receipts = Receipts(folder, rank, 2)
        receipts.begin(0, 0)
        return receipts

    with noted(tmp_path / "train"), noted(tmp_path / "train", 1), noted(tmp_path / "test"):
        assert not caplog.records
        with noted(tmp_path / "train") as closed:
            [record] = caplog.records
    assert record.getMessage().startswith(f"two loaders of this program write receipts into {tmp_path / 'train'}, and")
    with noted(tmp_path / "train"):  # nobody else's is open now
        assert caplog.records == [record]
        closed.begin(0, 0)  # but one that goes on
        assert [one.getMessage() for one in caplog.records] == 2 * [record.getMessage()]
        closed.close()


@pytest.mark.parametrize("make", [batches, DataLoader])
def test_a_loader_that_nobody_holds_any_more_is_no_other(tmp_path, caplog, request, make):
    gc.disable()  # else it may run by itself in between
    request.addfinalizer(gc.enable)
    for _ in range(2):  # as a notebook's cell that is run again, after a loop that was broken off
        loader = make(Numbers(), 8, receipts=tmp_path)
        for _ in loader:
            break
    assert len(logs_in(tmp_path)) == 2
    assert not caplog.records
    loader.close()


def test_samplers_of_the_ranks_own_are_judged_by_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with DataLoader(Numbers(), 8, sampler=range(rank, LENGTH, 2), receipts=tmp_path) as loader:
            for _ in loader:
                pass
    found = audit(tmp_path, length=LENGTH)
    assert found.is_sound
    assert found.epochs[0].samples == LENGTH


def test_a_copy_elsewhere_has_a_file_of_its_own(tmp_path):
    receipts = Receipts(tmp_path, 0, 1, contents=True, loader="x")
    receipts.begin(0, 0)
    other = pickle.loads(pickle.dumps(receipts))
    assert (other.folder, other.contents, other.loader) == (receipts.folder, True, "x")
    other.begin(0, 0)
    assert len(logs_in(tmp_path)) == 2
    it = batches(Numbers(), 8, n_processes=0, receipts=tmp_path / "it")
    next(it)
    list(pickle.loads(pickle.dumps(it)))
    assert len(logs_in(tmp_path / "it")) == 2
    assert audit(tmp_path / "it").is_sound
    it.close()


def _child(receipts):
    receipts.begin(0, 0)
    receipts.handed(0, 0, [1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_a_file_of_its_own(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0)
        child = multiprocessing.get_context("fork").Process(target=_child, args=(receipts,))
        child.start()
        child.join()
        receipts.handed(0, 0, [2])
    assert child.exitcode == 0
    assert sorted(keys_in(path) for path in logs_in(tmp_path)) == [[1], [2]]
