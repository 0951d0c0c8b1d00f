"""The audit finds and names what was lost or repeated, and nothing else.

It says which logs are damaged.
"""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import alter, lines_in, logs_in, train

import mpiter
from mpiter.__main__ import main
from mpiter.audit import audit
from mpiter.errors import OptionError
from mpiter.order.order import Shuffled
from mpiter.receipts import Receipts

LENGTH = 103
anew = settings(
    max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def epoch_of(folder, epoch=0):
    return {found.epoch: found for found in audit(folder).epochs}[epoch]


def note(
    folder,
    *batches,
    place=0,
    rank=0,
    size=1,
    end=True,
    epoch=0,
    at=None,
    length=None,
    step=0,
):
    """Write the log of a rank that was handed these batches, each a list of keys."""
    start = {
        "receipts": 1,
        "rank": rank,
        "size": size,
        "place": place,
        "length": length,
        "step": step,
    }
    lines = [
        start,
        *(
            {"place": place + number, "keys": list(keys)}
            for number, keys in enumerate(batches)
        ),
        {},
    ]
    for line, position in zip(lines[1:], at or (), strict=False):
        line["at"] = position
    folder.mkdir(exist_ok=True)
    if not end:
        lines.pop()
    name = f"rank-{rank}-of-{size}-{time.time_ns():x}.receipts.jsonl"
    with open(folder / name, "a") as file:
        for line in lines:
            whole = line | {"epoch": epoch, "time": time.time()}
            file.write(json.dumps(whole, default=int) + "\n")


@pytest.mark.parametrize(
    ("size", "batch_size", "length"), [(1, 10, 103), (8, 3, 7), (2, 4, 16)]
)
def test_each_sample_exactly_once_is_said_so(tmp_path, size, batch_size, length):
    train(tmp_path, size, batch_size, 1000, length, epochs=3)
    found = audit(tmp_path)
    assert found.is_sound
    assert len(found.epochs) == 3
    for epoch in found.epochs:
        assert (epoch.is_over, epoch.samples, epoch.length) == (True, length, length)
    assert (found.missing, found.twice, found.starts) == (0, 0, (size,))
    fills = -length % size if length % (size * batch_size) else 0
    assert (f"{fills} came again to fill up" in found.lines[1]) == (fills > 0)
    assert f"epochs 0 to 2: each of {length} samples exactly once" in found.lines[1]


@anew
@given(st.data())
def test_however_often_a_training_is_killed_and_goes_on_it_is_sound(
    tmp_path_factory, data
):
    folder = tmp_path_factory.mktemp("receipts")
    length = data.draw(st.integers(1, 60), "length")
    place = (0, 0)
    epochs = 2
    for _ in range(data.draw(st.integers(0, 4), "kills")):
        size = data.draw(st.integers(1, 4), "ranks")
        batch_size = data.draw(st.integers(1, 7), "batch")
        least = data.draw(st.integers(0, 5), "steps")
        ahead = [least + data.draw(st.integers(0, 1), "ahead") for _ in range(size)]
        places = train(
            folder, size, batch_size, ahead, length, start=place, epochs=epochs
        )
        saved = [each for each in places[0] if all(each in others for others in places)]
        place = data.draw(st.sampled_from(saved), "saved")
    train(
        folder,
        data.draw(st.integers(1, 4), "ranks"),
        5,
        1000,
        length,
        start=place,
        epochs=epochs,
    )
    found = audit(folder)
    assert found.is_sound, "\n".join(found.lines)
    assert all(
        epoch.samples == length for epoch in found.epochs if epoch.epoch >= place[0]
    )


def test_what_came_before_the_logs_begin_is_not_lost(tmp_path):
    train(tmp_path, 2, 5, 100, LENGTH, start=(3, 40), epochs=4)
    assert "40 may have come before" in epoch_of(tmp_path, 3).lines[0]
    assert audit(tmp_path).is_sound


@pytest.mark.parametrize("at", [None, (0, 4)], ids=["by keys", "by positions"])
def test_what_drop_last_leaves_out_is_not_lost(tmp_path, at):
    note(tmp_path, range(4), range(4, 8), at=at, length=10, step=4)
    assert "2 were left out by drop_last" in epoch_of(tmp_path).lines[0]
    assert audit(tmp_path).is_sound
    note(tmp_path, range(4), range(5, 9), at=at and (0, 5), length=10, step=2)
    assert (audit(tmp_path).missing, epoch_of(tmp_path).twice) == (2, 0)


def rank_of(folder, make, rank, size, batch_size, state, steps, **options):
    """Run one rank for an epoch, or for some steps of it, and return its state."""
    shard = mpiter.Shard(rank, size, exact=options.pop("exact", False))
    loader = make(
        range(23), batch_size, shard=shard, hooks=Receipts(folder), seed=5, **options
    )
    with loader:
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        state = loader.state_dict()
        while steps is None or steps > 0:
            if next(batches, None) is None:
                break
            state = loader.state_dict()
            steps = steps and steps - 1
            if loader.is_new_epoch:
                break
    return state


MAKES = {
    "loader": lambda *given, **options: mpiter.DataLoader(
        *given, shuffle=True, **options
    ),
    "batches": lambda *given, **options: mpiter.batches(
        *given, n_processes=0, epochs=2, **options
    ),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(
    # Each run has a number of ranks, a batch size, and a number of steps.
    "ways",
    [
        [(3, 4, 1), (1, 1, None)],
        [(2, 1, 10), (3, 4, None)],
        [(1, 2, 2), (2, 4, 1), (3, 4, None), (3, 1, None)],
    ],
)
def test_what_drop_last_leaves_out_after_a_resume_is_told_from_what_is_lost(
    tmp_path, make, ways
):
    state = None
    for size, batch_size, steps in ways:
        states = [
            rank_of(
                tmp_path, make, rank, size, batch_size, state, steps, drop_last=True
            )
            for rank in range(size)
        ]
        state = states[0]
    found = audit(tmp_path)
    assert found.is_sound, "\n".join(found.lines)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(
    ("size", "batch_size", "steps"), [(2, 1, 11), (3, 7, 1), (4, 1, 5)]
)
def test_ranks_of_which_some_have_nothing_left_of_an_epoch_may_resume_exactly(
    tmp_path, make, size, batch_size, steps
):
    for rank in range(size):
        state = rank_of(tmp_path, make, rank, size, batch_size, None, steps, exact=True)
        rank_of(tmp_path, make, rank, size, batch_size, state, None, exact=True)
    found = audit(tmp_path)
    assert found.is_sound, "\n".join(found.lines)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_ranks_last_batch_is_missed_though_drop_last_may_leave_out_as_many(
    tmp_path, make
):
    for rank in range(2):
        rank_of(tmp_path, make, rank, 2, 5, None, None, drop_last=True)
    alter(
        logs_in(tmp_path)[1],
        lambda lines: [one for one in lines if one.get("place") != 10],
    )
    [epoch] = audit(tmp_path).epochs
    assert epoch.lines[0].startswith(
        "15 of 23 samples; 5 never came; 3 were left out by drop_last"
    )
    assert epoch.lines[1:] == ("  never came: position 15 to 19",)


def test_a_loop_that_stops_at_the_last_batch_is_whole(tmp_path):
    """Lightning's loop counts the batches, and stops at the last one."""
    for name, options in {"all": {}, "but the last": {"drop_last": True}}.items():
        with mpiter.DataLoader(
            range(22), 4, hooks=Receipts(tmp_path / name), **options
        ) as loader:
            for _ in range(3):
                for _, _ in zip(range(len(loader)), loader, strict=False):
                    pass
        found = audit(tmp_path / name)
        assert found.is_sound, "\n".join(found.lines)
        assert [epoch.samples for epoch in found.epochs] == [20 if options else 22] * 3


def test_a_sample_that_was_left_out_is_named_with_its_epoch(tmp_path):
    train(tmp_path, 4, 5, 100, LENGTH, epochs=2)
    alter(
        logs_in(tmp_path)[2],
        lambda lines: [
            one for one in lines if (one["epoch"], one.get("place")) != (1, 20)
        ],
    )
    found = audit(tmp_path)
    assert [epoch.is_sound for epoch in found.epochs] == [True, False]
    assert (found.missing, found.twice) == (5, 0)
    lost = sorted(Shuffled(LENGTH, 5, 1).take(30, 35).tolist())
    assert found.epochs[1].lines[1:] == tuple(
        f"  never came: sample {one}" for one in lost
    )


def test_a_batch_that_is_lost_is_found_before_the_epoch_is_over(tmp_path):
    train(tmp_path, 4, 5, [4, 4, 4, 3], LENGTH)
    [epoch] = audit(tmp_path).epochs
    assert (epoch.is_sound, epoch.is_over, epoch.samples) == (True, False, 75)
    assert "incomplete" in epoch.lines[0]
    alter(logs_in(tmp_path)[2], lambda lines: [*lines[:2], *lines[3:]])
    assert epoch_of(tmp_path).lines[1:] == ("  never came: position 30 to 34",)
    assert audit(tmp_path).missing == 5


def test_a_sample_that_came_twice_is_named_with_the_ranks_and_places_that_had_it(
    tmp_path,
):
    train(tmp_path, 4, 5, 100, LENGTH)
    stolen = lines_in(logs_in(tmp_path)[3])[2]
    alter(logs_in(tmp_path)[1], lambda lines: [*lines[:4], stolen, *lines[4:]])
    found = audit(tmp_path)
    assert (found.twice, found.missing) == (5, 0)
    first = min(stolen["keys"])
    [line] = [
        line
        for line in found.lines
        if f"came several times: sample {first} at position" in line
    ]
    assert "rank 1 of 4 at place 20, line 5 of rank-1-of-4" in line
    assert "rank 3 of 4 at place 20, line 3 of rank-3-of-4" in line


def test_a_restart_that_goes_back_too_far_or_not_far_enough_is_found(tmp_path):
    train(tmp_path / "not", 2, 5, 4, LENGTH)
    train(tmp_path / "not", 2, 5, 100, LENGTH, start=(0, 60))
    assert (audit(tmp_path / "not").missing, audit(tmp_path / "not").twice) == (20, 0)
    train(tmp_path / "too far", 2, 5, 10, LENGTH)
    train(tmp_path / "too far", 2, 5, 100, LENGTH, start=(0, 60))
    # These logs are altered to say that the state was of place 80.
    for path in logs_in(tmp_path / "too far"):
        if lines_in(path)[0]["place"] == 60:
            alter(path, lambda lines: [lines[0] | {"place": 80}, *lines[1:]])
    assert (audit(tmp_path / "too far").missing, audit(tmp_path / "too far").twice) == (
        0,
        20,
    )


def test_a_rank_with_another_seed_is_found(tmp_path):
    train(tmp_path, 3, 5, 100, LENGTH, seeds={1: 77})
    found = audit(tmp_path)
    assert found.missing == found.twice > 0, (
        "two orders: what the one has twice the other has not"
    )


def test_a_sampler_that_repeats_is_judged_by_its_positions(tmp_path):
    note(tmp_path, [3, 3], [1, 3], at=(0, 2))
    assert audit(tmp_path).is_sound
    note(tmp_path, [3, 3], [1, 3], at=(0, 1))
    assert audit(tmp_path).twice == 1
    note(tmp_path, [3, 3], [1, 3], at=(0, 3))
    assert audit(tmp_path).missing == 1


def test_a_rank_that_does_not_come_along_when_another_goes_back_is_named(tmp_path):
    for rank, place in ((0, 0), (1, 0), (0, 1)):
        note(tmp_path, [rank], [2 + rank], place=place, rank=rank, size=2, end=False)
    [told] = [
        line
        for line in audit(tmp_path).lines
        if line.startswith("rank 1 of 2 has no log")
    ]
    assert told.endswith("begins as the last start, at epoch 0, place 1")


def test_keys_may_be_strings(tmp_path):
    note(tmp_path, ["a.jpg", "b.jpg"], ["ä.jpg", "b.jpg"], length=4)
    found = epoch_of(tmp_path)
    assert (found.missing, found.twice) == (1, 1)
    assert "came several times: sample b.jpg" in found.lines[1]


def test_a_number_that_is_none_of_those_promised_stands_for_none_of_them(tmp_path):
    for keys, missing in (
        ([0, 1, 2, 7], "3"),
        ([1, 2, 3, 4], "0"),
        ([-1, 0, 1], "2 to 3"),
        ([9], "0 to 3"),
    ):
        note(tmp_path, keys, length=4)
        assert epoch_of(tmp_path).lines[1:] == (f"  never came: sample {missing}",)


def test_epochs_without_a_line_are_a_gap(tmp_path):
    for epoch in (0, 3):
        note(tmp_path, [0], epoch=epoch, length=1)
    assert "of the epochs between 0 and 3 nothing was noted" in audit(tmp_path).lines
    assert not audit(tmp_path).is_sound


@anew
@given(st.data())
def test_any_line_that_is_dropped_or_repeated_is_found(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("receipts")
    train(folder, 3, 4, 100, 50, epochs=2)
    path = logs_in(folder)[data.draw(st.integers(0, 2))]
    lines = lines_in(path)
    row = data.draw(
        st.sampled_from(
            [
                row
                for row, one in enumerate(lines)
                if "keys" in one and "fills" not in one
            ]
        )
    )
    again = data.draw(st.booleans())
    count = len(lines[row]["keys"])
    alter(
        path,
        lambda lines: lines[:row] + lines[row : row + 1] * 2 * again + lines[row + 1 :],
    )
    found = audit(folder)
    assert not found.is_sound
    assert (found.twice, found.missing) == ((count, 0) if again else (0, count))


def test_a_torn_last_line_is_left_out(tmp_path):
    train(tmp_path, 1, 5, 4, LENGTH)
    [path] = logs_in(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    assert (audit(tmp_path).is_sound, epoch_of(tmp_path).samples) == (True, 15)


def test_a_file_that_ends_before_it_says_where_it_starts_is_as_good_as_none(tmp_path):
    train(tmp_path, 1, 5, 100, LENGTH)
    [path] = logs_in(tmp_path)
    for size in (0, 1, 30):
        cut_off = tmp_path / "rank-0-of-1-0-1.receipts.jsonl"
        cut_off.write_bytes(path.read_bytes()[:size])
        assert audit(tmp_path).is_sound
    path.unlink()
    with pytest.raises(OptionError, match="no receipts"):
        audit(tmp_path)


START = {
    "receipts": 1,
    "rank": 0,
    "size": 1,
    "time": 1.0,
    "epoch": 0,
    "place": 0,
    "length": 4,
    "step": 0,
}
BATCH = {"epoch": 0, "place": 0, "time": 1.0, "keys": [0, 1], "at": 0}


def test_what_no_line_may_be_is_refused_in_a_sentence(tmp_path, capfd):
    for lines in (
        [{}],
        [BATCH],
        [START | {"time": None}],
        [START, BATCH | {"skipped": [2]}],
        [START | {"length": "x"}],
        ["[" * 100_000],
    ):
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / "x.receipts.jsonl").write_text(
            "".join(text + "\n" for text in texts)
        )
        assert main(["audit", str(tmp_path)]) == 2
        said = capfd.readouterr().err
        assert said.startswith("mpiter: ")
        assert f": line {len(lines)} is damaged, or no receipt (" in said
        assert len(said.splitlines()) == 1


def test_a_step_that_is_not_told_is_none(tmp_path):
    lines = START | {"step": None}, BATCH, {"epoch": 0, "time": 1.0}
    (tmp_path / "x.receipts.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    assert audit(tmp_path).missing == 2


def test_the_command_says_it_all_and_its_status_is_0_1_or_2(tmp_path, capfd):
    train(tmp_path, 2, 5, 100, LENGTH, epochs=3)
    assert main(["audit", str(tmp_path)]) == 0
    assert "epochs 0 to 2: each of 103 samples exactly once" in capfd.readouterr().out
    alter(logs_in(tmp_path)[0], lambda lines: lines[:3] + lines[4:])
    assert main(["audit", str(tmp_path)]) == 1
    assert "5 never came" in capfd.readouterr().out
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none"):
        assert main(["audit", str(folder)]) == 2
        assert str(folder) in capfd.readouterr().err


def test_a_length_beyond_all_memory_costs_nothing(tmp_path):
    note(tmp_path, np.arange(5), length=10**12)
    assert audit(tmp_path).missing == 10**12 - 5
