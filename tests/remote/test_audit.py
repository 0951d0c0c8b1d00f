"""The audit: what was lost or repeated is found and named, and what was not is not; damaged logs are said to be so."""

from __future__ import annotations

import json
import struct

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import SEED, logs_in, objects_in, records_in, rewrite, train

import mpiter
from mpiter.__main__ import main
from mpiter.errors import OptionError
from mpiter.order.order import Shuffled
from mpiter.remote.audit import audit
from mpiter.remote.receipts import Receipts

LENGTH = 103
anew = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def epoch_of(folder, epoch=0):
    return {found.epoch: found for found in audit(folder).epochs}[epoch]


def altered(folder, change, at=0, checksums=False):
    """One file, its records changed; without checksums, as other loaders may write them."""
    path = logs_in(folder)[at]
    header, *records = (one for one in objects_in(path) if not isinstance(one, int))
    rewrite(path, [header, *change(records)], checksums)


# -- what is sound -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "batch_size", "length"), [(1, 10, 103), (4, 10, 103), (8, 3, 7), (3, 5, 1), (2, 4, 16)]
)
def test_each_sample_exactly_once_is_said_so(tmp_path, size, batch_size, length):
    train(tmp_path, size, batch_size, 1000, length, epochs=3)
    found = audit(tmp_path)
    assert found.is_sound
    assert [(epoch.state, epoch.samples, epoch.length) for epoch in found.epochs] == [("whole", length, length)] * 3
    assert (found.missing, found.twice, found.absent) == (0, 0, ())
    step = size * batch_size
    assert found.epochs[0].fillings == (-length % size if length % step else 0)


def test_restarts_with_other_numbers_of_ranks_and_batch_sizes_are_joined(tmp_path):
    places = train(tmp_path, 8, 2, 4, LENGTH)
    train(tmp_path, 3, 5, 3, LENGTH, start=places[0][2])
    assert epoch_of(tmp_path).state == "incomplete"
    train(tmp_path, 2, 7, 100, LENGTH, start=(0, 32 + 15), epochs=2)
    found = audit(tmp_path)
    assert found.is_sound
    assert found.starts == (8, 3, 2)
    assert [epoch.samples for epoch in found.epochs] == [LENGTH, LENGTH]


@anew
@given(st.data())
def test_however_often_a_training_is_killed_and_goes_on_it_is_sound(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("receipts")
    length = data.draw(st.integers(1, 60), "length")
    place, epochs = (0, 0), 2
    for _ in range(data.draw(st.integers(0, 4), "kills")):
        size, batch_size = data.draw(st.integers(1, 4), "ranks"), data.draw(st.integers(1, 7), "batch")
        least = data.draw(st.integers(0, 5), "steps")
        ahead = [least + data.draw(st.integers(0, 1), "ahead") for _ in range(size)]
        places = train(folder, size, batch_size, ahead, length, start=place, epochs=epochs)
        saved = [each for each in places[0] if all(each in others for others in places)]
        place = data.draw(st.sampled_from(saved), "saved")
    train(folder, data.draw(st.integers(1, 4), "ranks"), 5, 1000, length, start=place, epochs=epochs)
    found = audit(folder)
    assert found.is_sound, "\n".join(found.lines())
    assert all(epoch.samples == length for epoch in found.epochs if epoch.epoch >= place[0])


def test_a_restart_with_as_many_ranks_is_one_start(tmp_path):
    for place in (0, 0), (0, 30), (0, 60):
        train(tmp_path, 3, 5, 2 if place[1] < 60 else 100, LENGTH, start=place)
    assert audit(tmp_path).starts == (3, 3, 3)


def test_a_rank_that_does_not_come_back_in_a_restart_is_named_though_its_old_log_is_there(tmp_path):
    train(tmp_path, 2, 5, 3, LENGTH)
    with Receipts(tmp_path, 0, 2) as receipts:
        receipts.begin(0, 30, length=LENGTH, order="shuffled", seed=SEED)
        receipts.handed(0, 30, Shuffled(LENGTH, SEED).take(30, 35), positions=(30, 5))
    found = audit(tmp_path)
    assert (found.absent, found.is_sound) == ((1,), False)


def test_an_epoch_that_has_not_come_to_its_end_is_incomplete_and_nothing_is_lost(tmp_path):
    train(tmp_path, 4, 5, [3, 3, 2, 2], LENGTH)
    found = audit(tmp_path)
    assert found.is_sound
    [epoch] = found.epochs
    assert (epoch.state, epoch.samples, epoch.not_yet) == ("incomplete", 50, 53)
    assert "incomplete" in "\n".join(found.lines())


def test_what_came_before_the_logs_begin_is_not_lost(tmp_path):
    train(tmp_path, 2, 5, 100, LENGTH, start=(3, 40), epochs=4)
    assert (epoch_of(tmp_path, 3).before, audit(tmp_path).is_sound) == (40, True)


def test_what_drop_last_leaves_out_is_not_lost(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=10, order="sequential", step=4)
        for at in (0, 4):
            receipts.handed(0, at, np.arange(at, at + 4), positions=(at, 4))
        receipts.end(0)
    assert (epoch_of(tmp_path).dropped, audit(tmp_path).is_sound) == (2, True)


def test_a_training_that_starts_anew_makes_what_was_there_void(tmp_path):
    train(tmp_path, 2, 5, 4, LENGTH)
    train(tmp_path, 2, 5, 100, LENGTH, seed=SEED + 1)
    assert audit(tmp_path).is_sound


def test_logs_of_several_folders_are_joined(tmp_path):
    for rank in range(2):
        train(tmp_path / str(rank), 2, 5, 100, LENGTH)
        for path in logs_in(tmp_path / str(rank)):
            if not path.name.startswith(f"rank-{rank}-"):
                path.unlink()
    assert not audit(tmp_path / "0").is_sound
    assert audit([tmp_path / "0", tmp_path / "1"]).is_sound
    assert audit([*logs_in(tmp_path / "0"), *logs_in(tmp_path / "1")]).is_sound


# -- what is not -------------------------------------------------------------------------------------------------------


def test_a_sample_that_was_left_out_is_named_with_its_epoch_and_position(tmp_path):
    train(tmp_path, 4, 5, 100, LENGTH, epochs=2)
    altered(tmp_path, lambda records: [one for one in records if one[:3] != ["batch", 1, 20]], at=2)
    found = audit(tmp_path)
    assert not found.is_sound
    assert [epoch.is_sound for epoch in found.epochs] == [True, False]
    missing = found.epochs[1].missing
    assert missing.count == 5
    assert [(one.position, one.key) for one in missing.first] == [
        (position, Shuffled(LENGTH, SEED, 1).take(position, position + 1)[0]) for position in range(30, 35)
    ]


def test_a_sample_that_came_twice_is_named_with_the_ranks_and_places_that_had_it(tmp_path):
    train(tmp_path, 4, 5, 100, LENGTH)
    stolen = records_in(logs_in(tmp_path)[3])[2]
    altered(tmp_path, lambda records: [*records[:4], stolen, *records[4:]], at=1)
    found = audit(tmp_path)
    assert (found.twice, found.missing) == (5, 0)
    one = found.epochs[0].twice.first[0]
    assert one.position == 35
    assert one.key == Shuffled(LENGTH, SEED, 0).take(35, 36)[0]
    assert [(where.rank, where.place) for where in one.where] == [(1, 20), (3, 20)]
    assert "rank 3 of 4 at place 20" in "\n".join(found.lines())


def test_a_restart_that_goes_back_too_far_or_not_far_enough_is_found(tmp_path):
    train(tmp_path / "not", 2, 5, 4, LENGTH)
    train(tmp_path / "not", 2, 5, 100, LENGTH, start=(0, 60))
    assert (audit(tmp_path / "not").missing, audit(tmp_path / "not").twice) == (20, 0)
    train(tmp_path / "too far", 2, 5, 10, LENGTH)
    train(tmp_path / "too far", 2, 5, 100, LENGTH, start=(0, 60))
    for at, path in enumerate(logs_in(tmp_path / "too far")):  # which say that the state was of place 80
        if records_in(path)[0][2] == 60:
            altered(tmp_path / "too far", lambda records: [["from", 0, 80, records[0][3]], *records[1:]], at)
    assert (audit(tmp_path / "too far").missing, audit(tmp_path / "too far").twice) == (0, 20)


def test_work_that_was_repeated_without_a_restart_is_found(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=6)
        for place, keys in enumerate(([0, 1], [2, 3], [2, 3], [4, 5])):
            receipts.handed(0, place, keys)
        receipts.end(0)
    found = audit(tmp_path)
    assert (found.twice, found.missing) == (2, 0)
    assert [one.key for one in found.epochs[0].twice.first] == [2, 3]


def test_a_rank_with_another_seed_parts_from_the_others(tmp_path):
    train(tmp_path, 3, 5, 100, LENGTH, seeds={1: 77})
    found = audit(tmp_path)
    assert not found.is_sound
    assert len(found.parted) == 1
    assert "rank 0 goes by" in found.parted[0]
    assert "seed 77" in found.parted[0]
    assert found.missing == found.twice > 0, "two orders: what the one has twice the other has not"


def test_a_rank_that_says_one_seed_and_goes_by_another_is_found_by_the_checksum(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=LENGTH, order="shuffled", seed=5)
        receipts.handed(0, 0, Shuffled(LENGTH, 6, 0).take(0, LENGTH), positions=(0, LENGTH))
        receipts.end(0)
    found = audit(tmp_path)
    assert (found.missing, found.twice) == (0, 0)
    assert "the checksum of record 2 does not follow" in found.parted[0]


def test_a_sampler_that_gives_other_keys_after_a_restart_is_found(tmp_path):
    for keys in ([3, 1, 2, 0], [3, 2, 1, 0]):
        with Receipts(tmp_path, 0, 1) as receipts:
            receipts.begin(1, 0)
            for at in range(0, 4, 2):
                receipts.handed(1, at, keys[at : at + 2], positions=(at, 2))
            receipts.end(1)
    found = audit(tmp_path)
    assert (found.missing, found.twice) == (0, 0)
    assert [told for told in found.parted if "other samples the second time" in told]


def test_other_bytes_the_second_time_are_found(tmp_path):
    for contents in (b"12345678", b"87654321"):
        with Receipts(tmp_path, 0, 1) as receipts:
            receipts.begin(1, 0, length=4, order="sequential")
            receipts.handed(1, 0, np.arange(4), positions=(0, 4), contents=contents)
            receipts.end(1)
    assert [told for told in audit(tmp_path).parted if "other bytes the second time" in told]


def test_an_epoch_that_was_broken_off_is_not_sound(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=4)
        receipts.handed(0, 0, [0, 1])
        receipts.begin(1, 0, length=4)
        receipts.handed(1, 0, [0, 1])
    found = audit(tmp_path)
    assert [epoch.state for epoch in found.epochs] == ["broken off", "incomplete"]
    assert not found.is_sound


def test_a_rank_without_a_log_is_named(tmp_path):
    train(tmp_path, 4, 5, 100, LENGTH)
    logs_in(tmp_path)[2].unlink()
    found = audit(tmp_path)
    assert found.absent == (2,)
    assert not found.is_sound


def test_failed_and_skipped_samples_are_told_apart(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=6)
        receipts.handed(0, 0, [0, 1])
        receipts.skipped(0, 0, [2])
        receipts.handed(0, 1, [3, 4, 5])
        receipts.end(0)
    found = epoch_of(tmp_path)
    assert found.is_sound
    assert (found.skipped.count, found.skipped.first[0].key, found.samples) == (1, 2, 5)
    altered(tmp_path, lambda records: [["failed", *one[1:]] if one[0] == "skipped" else one for one in records])
    found = epoch_of(tmp_path)
    assert not found.is_sound
    assert (found.failed.count, found.missing.count) == (1, 0)


def test_keys_may_be_strings(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=4)
        receipts.handed(0, 0, ["a.jpg", "b.jpg"])
        receipts.handed(0, 1, ["ä.jpg", "b.jpg"])
        receipts.end(0)
    found = epoch_of(tmp_path)
    assert (found.missing.count, found.missing.first) == (1, ())
    assert [one.key for one in found.twice.first] == ["b.jpg"]


def test_a_length_can_be_promised_to_the_audit(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0)
        receipts.handed(0, 0, [3, 1, 0])
        receipts.end(0)
    assert audit(tmp_path).is_sound
    found = audit(tmp_path, length=4)
    assert [one.key for one in found.epochs[0].missing.first] == [2]


@pytest.mark.parametrize(
    ("keys", "missing"), [([0, 1, 2, 7], [3]), ([1, 2, 3, 4], [0]), ([-1, 0, 1], [2, 3]), ([9], range(4))]
)
def test_a_number_that_is_none_of_those_promised_stands_for_none_of_them(tmp_path, keys, missing):
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=4)
        receipts.handed(0, 0, keys)
        receipts.end(0)
    found = epoch_of(tmp_path).missing
    assert (found.count, [one.key for one in found.first]) == (len(missing), list(missing))


def test_more_samples_than_were_promised_are_not_sound(tmp_path):
    train(tmp_path, 2, 5, 100, LENGTH)
    found = audit(tmp_path, length=100)
    assert (found.is_sound, found.missing, found.twice) == (False, 0, 0)
    assert "103 different samples came of 100 that were promised" in "\n".join(found.lines())


def test_epochs_that_nobody_noted_are_a_gap(tmp_path):
    with Receipts(tmp_path, 0, 1) as receipts:
        for epoch in (0, 3):
            receipts.begin(epoch, 0, length=1)
            receipts.handed(epoch, 0, [0])
            receipts.end(epoch)
    assert not audit(tmp_path).is_sound
    assert "between 0 and 3" in audit(tmp_path).parted[0]


@anew
@given(st.data())
def test_any_record_that_is_dropped_or_repeated_is_found(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("receipts")
    train(folder, 3, 4, 100, 50, epochs=2)
    at = data.draw(st.integers(0, 2))
    records = records_in(logs_in(folder)[at])
    row = data.draw(st.sampled_from([row for row, one in enumerate(records) if one[0] == "batch" and not one[5]]))
    again, count = data.draw(st.booleans()), sum(records[row][3][1::2])
    altered(folder, lambda records: records[:row] + records[row : row + 1] * 2 * again + records[row + 1 :], at)
    found = audit(folder)
    assert not found.is_sound
    assert (found.twice, found.missing) == ((count, 0) if again else (0, count))


def test_a_loop_that_stops_at_the_last_batch_is_whole(tmp_path):
    """As Lightning's, which counts."""
    for name, options in {"all": {}, "but the last": {"drop_last": True}}.items():
        with mpiter.DataLoader(range(22), 4, receipts=tmp_path / name, **options) as loader:
            for _ in range(3):
                for _, _ in zip(range(len(loader)), loader, strict=False):
                    pass
        found = audit(tmp_path / name)
        assert found.is_sound, "\n".join(found.lines())
        assert [epoch.samples for epoch in found.epochs] == [20 if options else 22] * 3


def test_a_rank_that_does_not_come_along_when_another_goes_back_is_found(tmp_path):
    def note(rank, place, steps):
        with Receipts(tmp_path, rank, 2) as receipts:
            receipts.begin(0, place, length=16, order="sequential")
            for at in range(place, place + 4 * steps, 4):
                keys = [at + 2 * rank, at + 2 * rank + 1]
                receipts.handed(0, at, keys, positions=(keys[0], 2))

    for rank in (0, 1):
        note(rank, 0, 2)
    assert audit(tmp_path).is_sound
    note(0, 4, 3)
    [told] = audit(tmp_path).parted
    assert "rank 0 began anew at epoch 0, place 4" in told
    assert "rank 1, which had come further, did not go back there" in told
    note(1, 8, 2)
    assert not audit(tmp_path).is_sound
    for rank in (0, 1):
        note(rank, 4, 3)
    found = audit(tmp_path)
    assert found.is_sound, "\n".join(found.lines())


def test_who_comes_to_the_end_says_how_much_may_be_left_out(tmp_path):
    for before, step, size in ((0, 4, 2), (8, 8, 1)):
        for rank in range(size):
            with Receipts(tmp_path, rank, size) as receipts:
                receipts.begin(0, before, length=14, order="sequential", step=step)
                if size == 2:
                    for at in (0, 4):
                        receipts.handed(0, at, [at + 2 * rank, at + 2 * rank + 1], positions=(at + 2 * rank, 2))
                else:
                    receipts.end(0)
    [epoch] = audit(tmp_path).epochs
    assert (epoch.is_sound, epoch.dropped) == (True, 6)


RAGGED = [np.arange(1 + index % 3) for index in range(30)]


@pytest.mark.parametrize(
    "make",
    [
        lambda size, **k: mpiter.SerialIterator(range(10), size, repeat=True, shard=(0, 1), **k),
        lambda size, **k: mpiter.DataLoader(range(11), size, shuffle=True, shard=(1, 2), **k),
        lambda size, **k: mpiter.batches(RAGGED, size, n_processes=0, seed=0, shard=(0, 1), ragged="pad", **k),
        lambda size, **k: mpiter.DataLoader(RAGGED, size, shuffle=True, shard=(0, 1), collate_fn=list, **k),
    ],
    ids=["over epochs", "filled up", "padded", "a collate_fn"],
)
def test_contents_are_the_same_however_batches_are_cut_after_a_restart(tmp_path, make):
    state = None
    for batch_size in (4, 4, 3):
        it = make(batch_size, receipts=Receipts(tmp_path, 0, 1, contents=True))
        if state is not None:
            it.load_state_dict(state)
        for step, _ in zip(range(6), it, strict=False):
            if step == 0:
                state = it.state_dict()
        it.close() if hasattr(it, "close") else it.finalize()
    assert audit(tmp_path).parted == ()


# -- logs that are no good ---------------------------------------------------------------------------------------------


def test_a_torn_last_record_is_left_out(tmp_path):
    train(tmp_path, 1, 5, 4, LENGTH)
    [path] = logs_in(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    found = audit(tmp_path)
    assert (found.is_sound, found.torn, found.epochs[0].samples) == (True, 1, 15)


@pytest.mark.parametrize("size", [0, 1, 9, 30, 100, 120])
def test_a_file_that_ends_before_it_says_where_it_starts_is_as_good_as_none(tmp_path, size):
    train(tmp_path, 1, 5, 100, LENGTH)
    [path] = logs_in(tmp_path)
    (tmp_path / "rank-0-of-1-0-1.receipts").write_bytes(path.read_bytes()[:size])
    assert audit(tmp_path).is_sound


@settings(anew, max_examples=200)
@given(st.data())
def test_a_bit_that_is_flipped_anywhere_never_goes_unnoticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("receipts")
    train(folder, 2, 4, 100, 50)
    path = logs_in(folder)[data.draw(st.integers(0, 1))]
    found = bytearray(path.read_bytes())
    found[data.draw(st.integers(0, 1 << 20)) % len(found)] ^= 1 << data.draw(
        st.integers(0, 7)
    )  # times differ in length
    path.write_bytes(found)
    try:
        verdict = audit(folder)
    except OptionError:
        return
    assert verdict.torn or not verdict.is_sound


HEADER = {"receipts": 1, "rank": 0, "size": 1, "time": 1.0, "loader": ""}
FROM = ["from", 0, 0, {"length": 4, "order": None, "seed": None, "step": None}]
NAMED = ["from", 0, 0, {"length": 4, "order": "shuffled", "seed": "5", "step": None}]


@pytest.mark.parametrize(
    "objects",
    [
        [],
        [7],
        [[1, 2]],
        [{}],
        [HEADER | {"receipts": 2}],
        [HEADER | {"rank": 1}],
        [HEADER | {"rank": "0"}],
        [HEADER | {"size": 0}],
        [HEADER | {"size": 1 << 60}],
        [HEADER | {"time": float("nan")}],
        [HEADER, 5],
        [HEADER, FROM, 5, 5],
        [HEADER, ["end", 0, None]],
        [HEADER, FROM, ["end", 0, "now"]],
        [HEADER, ["from", 0, 0, None]],
        [HEADER, ["from", -1, 0, FROM[3]]],
        [HEADER, ["from", 0, 0, FROM[3] | {"order": "shuffled"}]],
        [HEADER, ["from", 0, 0, NAMED[3] | {"seed": "9" * 39}]],
        [HEADER, ["from", 0, 0, NAMED[3] | {"seed": "-"}]],
        [HEADER, ["from", 0, 0, FROM[3] | {"length": -4}]],
        [HEADER, FROM, ["batch", 0, 0, None, None, 0, None]],
        [HEADER, FROM, ["batch", 0, 0, None, [1.5], 0, None]],
        [HEADER, FROM, ["batch", 0, 0, None, [1 << 63], 0, None]],
        [HEADER, FROM, ["batch", 0, 0, None, [None], 0, None]],
        [HEADER, FROM, ["batch", 0, 0, None, ["a", 1 << 63], 0, None]],
        [HEADER, FROM, ["batch", 0, 0, [0, 2], [1], 0, None]],
        [HEADER, FROM, ["batch", 0, 0, [0, 2], None, 0, None]],
        [HEADER, FROM, ["batch", 0, 0, [0], [1], 0, None]],
        [HEADER, FROM, ["batch", 0, 0, None, [1], 2, None]],
        [HEADER, FROM, ["batch", 0, 0, None, [1], 0, b"12"]],
        [HEADER, FROM, ["batch", 0, "0", None, [1], 0, None]],
        [HEADER, NAMED, ["batch", 0, 0, [0, 5], None, 0, None]],
        [HEADER, NAMED, ["batch", 0, 0, [0, 1 << 50], None, 0, None]],
        [HEADER, FROM, ["batch", 0, 0]],
        [HEADER, FROM, ["sold", 0, 0]],
        [HEADER, FROM, "batch"],
        [HEADER, FROM, None],
        [HEADER, FROM, [[[[]]]]],
        [HEADER, FROM, ["batch", 1 << 60, 0, None, [1], 0, None]],
        [HEADER, FROM, msgpack.Timestamp(1)],
    ],
    ids=lambda objects: repr(objects[1:] or objects)[:60],
)
def test_what_no_record_may_be_is_refused_in_a_sentence(tmp_path, objects, capfd):
    (tmp_path / "x.receipts").write_bytes(b"".join(map(msgpack.packb, objects)) or b"\x00")
    assert main(["audit", str(tmp_path)]) == 2
    said = capfd.readouterr().err
    assert said.startswith("mpiter audit: ")
    assert said.endswith(").\n")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "tail",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xc1",
        b"\xa1\xff",
        struct.pack(">BI", 0xDD, 1 << 24) + b"\x00",
    ],
    ids=repr,
)
def test_lengths_and_depths_are_not_believed(tmp_path, tail):
    (tmp_path / "x.receipts").write_bytes(b"".join(map(msgpack.packb, [HEADER, FROM])) + tail)
    with pytest.raises(OptionError, match=r"damaged|none"):
        audit(tmp_path)


def test_what_follows_a_damaged_record_is_not_taken_for_torn(tmp_path):
    train(tmp_path, 1, 5, 100, LENGTH)
    [path] = logs_in(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x97\xa5batch")
    data[at] = 0xDC  # an array of more than there is
    path.write_bytes(data)
    with pytest.raises(OptionError):
        audit(tmp_path)


@anew
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_judged_or_refused(tmp_path_factory, data, is_tail):
    folder = tmp_path_factory.mktemp("receipts")
    start = b"".join(map(msgpack.packb, [HEADER, FROM])) if is_tail else b""
    (folder / "x.receipts").write_bytes(start + data)
    assert main(["audit", str(folder)]) in (0, 1, 2)


@anew
@given(
    st.lists(
        st.recursive(
            st.none() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=5) | st.binary(max_size=9),
            lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
            max_leaves=12,
        ),
        max_size=5,
    ),
    st.sampled_from(["batch", "from", "end", "skipped", "failed", "x"]),
)
def test_any_objects_are_judged_or_refused(tmp_path_factory, objects, kind):
    folder = tmp_path_factory.mktemp("receipts")
    some = [[kind, *objects], *objects]
    (folder / "x.receipts").write_bytes(b"".join(map(msgpack.packb, [HEADER, FROM, *some])))
    assert main(["audit", str(folder)]) in (0, 1, 2)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_says_it_all_and_its_status_is_0_1_or_2(tmp_path, capfd):
    train(tmp_path, 2, 5, 100, LENGTH, epochs=3)
    assert main(["audit", str(tmp_path)]) == 0
    assert "epochs 0 to 2: each of 103 samples exactly once" in capfd.readouterr().out
    assert main(["audit", "--epochs", str(tmp_path)]) == 0
    assert "epoch 1: each of 103 samples exactly once" in capfd.readouterr().out
    altered(tmp_path, lambda records: records[:3] + records[4:])
    assert main(["audit", str(tmp_path)]) == 1
    assert "5 never came:\n" in capfd.readouterr().out
    assert main(["audit", "--json", str(tmp_path)]) == 1
    assert json.loads(capfd.readouterr().out)["epochs"][0]["missing"]["count"] == 5
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none"):
        assert main(["audit", str(folder)]) == 2
        assert capfd.readouterr().err.count(str(folder)) == 1


def test_billions_of_samples_of_a_named_order_are_judged_as_a_few_intervals(tmp_path):
    length, size = 10**12, 1 << 27
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=length, order="sequential")
        for place in range(0, 20 * size, size):
            receipts._write(["batch", 0, place, [place, size], None, 0, None])
    altered(tmp_path, lambda records: records[:5] + records[6:])  # and without checksums: nobody has seen these keys
    found = epoch_of(tmp_path)
    assert (found.missing.count, found.samples, found.not_yet) == (size, 19 * size, length - 20 * size)
