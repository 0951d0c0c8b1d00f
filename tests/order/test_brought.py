"""An order that the dataset brings is followed exactly, or refused by its name."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import pickle
from typing import Any

import numpy as np
import pytest
from brought_orders import KEYS, EveryThird, Failing, Mixed, Thirds, Weighted
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter import OptionError, Shard, StateError
from mpiter.audit import audit
from mpiter.echo import Bundles, Echo
from mpiter.order.brought import Brought
from mpiter.receipts import Receipts
from mpiter.staging import Staging
from mpiter.testing import check_dataset, check_resume


class Given:
    """A dataset with the order that it was given; a sample is its key."""

    def __init__(self, order: Any) -> None:
        self.order = order

    def __len__(self) -> int:
        return 10

    def __getitem__(self, key: Any) -> Any:
        return key

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Any:
        return self.order


class Takes(mpiter.Order):
    """Ten keys, of which ``take`` gives whatever it was given."""

    def __init__(self, found: Any, length: Any = 10) -> None:
        self.found = found
        self.length = length

    def __len__(self) -> int:
        return self.length

    def take(self, start: int, stop: int) -> Any:
        if isinstance(self.found, type):
            raise self.found("no luck")
        if callable(self.found):
            return self.found(start, stop)
        return self.found

    def later(self, epochs: int) -> Any:
        return self


class Growing(mpiter.Order):
    """Each epoch is a sample longer than the one before."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 3 + self.epoch

    def take(self, start: int, stop: int) -> Any:
        return [(self.epoch, at) for at in range(start, stop)]

    def later(self, epochs: int) -> Any:
        return Growing(self.epoch + epochs)


def serial(dataset: Any, batch_size: int = 4, **options: Any) -> Any:
    return mpiter.SerialIterator(dataset, batch_size, **{"seed": 0, **options})


def numbers(batch: Any) -> list[int]:
    return [number for _, number in batch]


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


@settings(max_examples=40, deadline=None)
@given(
    keys=st.sampled_from(list(KEYS)),
    length=st.integers(1, 40),
    seed=st.integers(0, 5),
    legs=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(0, 5)),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
)
def test_any_ranks_and_batch_sizes_go_on_where_others_were(
    keys, length, seed, legs, data
):
    dataset = Thirds(length, keys)
    found: list[int] = []
    state = None
    for size, batch_size, steps in legs:
        its = []
        for rank in range(size):
            # The seed comes with the state.
            own = seed if state is None else 1000
            it = serial(dataset, batch_size, shard=(rank, size), seed=own)
            if state is not None:
                it.load_state_dict(state)
            its.append(it)
        for _ in range(steps):
            for it in its:
                found += numbers(next(it))
        states = [through_json(it.state_dict()) for it in its]
        assert states.count(states[0]) == size
        state = data.draw(st.sampled_from(states))
    epochs = len(found) // length + 1
    assert found == dataset.expected(epochs, seed)[: len(found)]


def test_a_state_costs_the_same_whatever_the_place():
    class Endless(Takes):
        def take(self, start, stop):
            assert stop - start < 100, "nothing is replayed"
            return range(start, stop)

    it = serial(Given(Endless(None, 10**15)))
    state = it.state_dict() | {"epoch": 10**6, "position": 10**14}
    keys = range(10**14 - 8, 10**14 + 8)
    state["order_checksum"] = Brought(Takes([*keys], 16), Takes)._checksum(8)
    it.load_state_dict(state)
    assert next(it) == [*range(10**14, 10**14 + 4)]
    assert len(json.dumps(it.state_dict())) < 400


def test_epochs_and_len_follow_the_order_not_the_dataset():
    dataset = Thirds(20)
    loader = mpiter.DataLoader(dataset, 6, seed=1)
    assert len(loader) == len(list(loader)) == 4
    stream = mpiter.batches(dataset, 6, n_processes=0, epochs=2, seed=1)
    assert len(stream) == len(list(stream)) == 8
    assert "sample 6 of 20" in repr(_after(serial(dataset, 6), 1))
    assert check_dataset(Thirds(5), uneven=True).samples == 5


def _after(it: Any, steps: int) -> Any:
    for _ in range(steps):
        next(it)
    return it


def test_epochs_may_differ_in_length():
    expected = [(epoch, at) for epoch in range(9) for at in range(3 + epoch)]
    for batch_size in (1, 2, 5, 20):
        it = serial(Given(Growing()), batch_size)
        found: list[Any] = []
        while len(found) < 30:
            found += next(it)
            assert it.epoch == next(e for e, at in expected[len(found) :])
            other = serial(Given(Growing()), 4)
            other.load_state_dict(through_json(it.state_dict()))
            assert next(other) == expected[len(found) : len(found) + 4]
        assert found == expected[: len(found)]
    stream = mpiter.batches(Given(Growing()), 2, n_processes=0, epochs=3)
    assert len(stream) == len(list(stream)) == 2 + 2 + 3
    assert len(stream) == len(list(stream)) == 3 + 4 + 4
    loader = mpiter.DataLoader(Given(Growing()), 2)
    lengths = [(len(loader), len(list(loader))) for _ in range(4)]
    assert lengths == [(2, 2), (2, 2), (3, 3), (3, 3)]


@pytest.mark.parametrize("shuffle", [None, True, False])
def test_the_method_gets_the_seed_and_shuffle_as_it_was_passed(shuffle):
    asked = []

    class Asked(Thirds):
        def mpiter_order(self, seed, shuffle):
            asked.append((seed, shuffle))
            return super().mpiter_order(seed, shuffle)

    serial(Asked(), shuffle=shuffle, seed=7)
    mpiter.batches(Asked(), 2, n_processes=0, shuffle=shuffle, seed=7)
    mpiter.DataLoader(Asked(), 2, shuffle=shuffle, seed=7)
    mpiter.DataLoader(Asked(), 2, shuffle=shuffle, shard=(0, 2))
    assert asked == [(7, shuffle), (7, shuffle), (7, shuffle), (0, shuffle)]


def test_named_tuples_and_numpys_numbers_arrive_as_pythons_own():
    from collections import namedtuple

    Key = namedtuple("Key", "source number")
    keys = [Key("web", np.int32(3)), (np.str_("a"), (np.float32(0.5),)), np.uint8(7)]
    it = serial(Given(Takes(lambda start, stop: keys[start:stop], 3)), 3)
    found = next(it)
    assert found == [("web", 3), ("a", (0.5,)), 7]
    assert [type(key) for key in found] == [tuple, tuple, int]
    assert [type(part) for part in found[0]] == [str, int]


# -- states ----------------------------------------------------------------------------


def test_copies_go_on_from_the_same_place():
    it = _after(serial(Thirds()), 3)
    for other in (copy.copy(it), pickle.loads(pickle.dumps(it))):
        assert other.state_dict() == it.state_dict()
        assert numbers(next(other)) == numbers(next(copy.copy(it)))
    loader = mpiter.DataLoader(Mixed(1, 2), 4)
    taken = iter(loader)
    next(taken)
    other = pickle.loads(pickle.dumps(loader))
    assert [b[1].tolist() for b in other] == [b[1].tolist() for b in taken]


@pytest.mark.parametrize("dataset", [Thirds(11), Mixed(3, 1)])
def test_every_state_resumes(dataset):
    ways = [
        lambda: serial(dataset, 3),
        lambda: mpiter.batches(dataset, 3, n_processes=0, epochs=2),
        lambda: mpiter.DataLoader(dataset, 3, drop_last=True),
        lambda: mpiter.DataLoader(dataset, 3, collate_fn=list),
    ]
    for make in ways:
        assert check_resume(make, batches=12) == 13


def test_a_training_with_a_checkpoint_resumes():
    def train(path, workers):
        loader = mpiter.DataLoader(Mixed(1, 2), 20, num_workers=workers)
        model: dict[str, Any] = {"seen": []}
        with loader, mpiter.Checkpoint(path, loader, model=model) as c:
            for _ in c.epochs(2):
                for _, batch in c.steps(loader):
                    model["seen"] += batch.tolist()
        return model

    assert check_resume(train, interruptions=4, workers=(0,)) == 4


@pytest.mark.parametrize("way", ["iterator", "loader"])
def test_an_orders_own_state_is_loaded_into_one_with_other_weights(way):
    def make(*weights):
        if way == "iterator":
            return serial(Mixed(*weights), 8)
        return mpiter.DataLoader(Mixed(*weights), 8)

    first = make(3, 1)
    for _, _batch in zip(range(3), first, strict=False):
        pass
    state = through_json(first.state_dict())
    assert (state["order_state"]["a"], state["order_state"]["b"]) == (18, 6)
    second = make(1, 1)
    second.load_state_dict(state)
    samples: list[Any] = []
    for _, batch in zip(range(4), second, strict=False):
        if way == "loader":
            batch = zip(*(column.tolist() for column in batch), strict=True)
        samples += batch
    of_a = [number for is_a, number in samples if is_a]
    of_b = [number for is_a, number in samples if not is_a]
    assert of_a == [*range(18, 34)]
    assert of_b == [*range(6, 22)]
    # What was saved on the way has the counts since the beginning.
    own = second.state_dict()["order_state"]
    assert (own["a"], own["b"]) == (34, 22)


def test_a_state_of_another_order_is_refused():
    state = _after(serial(Thirds(20)), 2).state_dict()
    others = [
        (Thirds(21), "saved with order_length=20, and the order EveryThird has 21"),
        (Thirds(20, "numbers"), "other keys around position 8 of epoch 0"),
        (Given(Takes([])), "saved with order='EveryThird', this iterator has order"),
        (range(17), "saved with order='EveryThird', this iterator has order='shuffled"),
    ]
    for dataset, text in others:
        it = serial(dataset)
        before = it.state_dict() if not isinstance(dataset, Given) else None
        with pytest.raises(StateError, match=text):
            it.load_state_dict(state)
        assert before is None or it.state_dict() == before
    with pytest.raises(StateError, match="saved with order='shuffled'"):
        serial(Thirds()).load_state_dict(serial(range(20)).state_dict())
    loaded = mpiter.DataLoader(Thirds(20), 4, seed=0).state_dict()
    with pytest.raises(StateError, match="order_length=20"):
        mpiter.DataLoader(Thirds(21), 4).load_state_dict(loaded)


class Forgets(Weighted):
    """Its class has lost the state of its own, and kept the name."""

    state = mpiter.Order.state
    restored = mpiter.Order.restored


Forgets.__name__ = "Weighted"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_states_are_refused_and_change_nothing(data):
    dataset = data.draw(st.sampled_from([Thirds(11), Mixed(2, 1)]))
    make = data.draw(
        st.sampled_from(
            [lambda: serial(dataset, 3), lambda: mpiter.DataLoader(dataset, 3, seed=0)]
        )
    )
    state = through_json(_after_any(make()).state_dict())
    it = make()
    before = it.state_dict()
    name = data.draw(st.sampled_from(sorted(state)))
    junk = st.one_of(
        st.none(), st.integers(-3, 2**60), st.text(max_size=3), st.just([]), st.just({})
    )
    damaged = dict(state)
    if data.draw(st.booleans()):
        del damaged[name]
    else:
        damaged[name] = data.draw(junk)
    try:
        it.load_state_dict(damaged)
    except StateError:
        assert it.state_dict() == before
    else:
        next(iter(it))


def _after_any(it: Any) -> Any:
    for _, _batch in zip(range(2), it, strict=False):
        pass
    return it


class Anything:
    """What an order may put into its keys; its ``repr()`` has its address."""


def test_keys_of_objects_that_lie_elsewhere_in_memory_are_the_same_keys():
    def made():
        held = [Anything() for _ in range(12)]
        return serial(
            Given(Takes(lambda start, stop: [(i, held[i]) for i in range(start, stop)]))
        )

    one = made()
    other = made()
    state = one.state_dict()
    assert "order_checksum" in state
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_an_order_refuses_a_state_in_its_own_words():
    class Refuses(Takes):
        def state(self, position):
            return {"at": position}

        def restored(self, state, position):
            raise StateError("the corpus has moved")

    it = serial(Given(Refuses(lambda start, stop: range(start, stop))))
    with pytest.raises(StateError, match=r"^the corpus has moved"):
        it.load_state_dict(it.state_dict())


def test_what_an_order_puts_into_a_state_must_come_back_from_json():
    class Puts(Takes):
        def state(self, position):
            return self.own

    order = Puts(lambda start, stop: range(start, stop))
    it = serial(Given(order))
    for own, text in [
        ({1: 2}, 'would come back from JSON as {"1": 2}'),
        ({"a": (1,)}, "would come back"),
        ({"a": np.int64(1)}, r"state\(\) of the order Puts returned what JSON can't"),
        (float("nan"), "what JSON can't hold"),
    ]:
        order.own = own
        with pytest.raises(OptionError, match=text):
            it.state_dict()
    order.own = {"a": 1}
    with pytest.raises(StateError, match=r"Puts has no restored\(state, position\)"):
        it.load_state_dict(it.state_dict())


def test_what_restored_raises_is_a_state_error_that_names_the_order():
    state = serial(Mixed(1, 1)).state_dict()
    del state["order_state"]["a"]
    with pytest.raises(StateError, match="doesn't fit the order Weighted: KeyError"):
        serial(Mixed(1, 1)).load_state_dict(state)
    state = serial(Mixed(1, 1)).state_dict()
    with pytest.raises(StateError, match=r"has no restored\(state, position\)"):
        serial(Given(Forgets(1, 1))).load_state_dict(state)


# -- what contradicts it, and orders that misbehave ------------------------------------


def test_a_sampler_beside_it_is_refused_with_the_remedy():
    def sampler(order, position):
        return order

    text = "Thirds brings its order, by mpiter_order.., and {} says another: leave {}"
    with pytest.raises(OptionError, match=text.format(*["order_sampler"] * 2)):
        serial(Thirds(), order_sampler=sampler)
    it = serial(Thirds())
    with pytest.raises(OptionError, match="order_sampler says another"):
        it.order_sampler = sampler
    with pytest.raises(OptionError, match="sampler says another"):
        mpiter.DataLoader(Thirds(), 2, sampler=[1, 2])
    with pytest.raises(OptionError, match="batch_sampler says another"):
        mpiter.DataLoader(Thirds(), batch_sampler=[[1], [2]])
    # What wraps a dataset has its order.
    with pytest.raises(OptionError, match="Stored brings its order"):
        serial(Bundles(Stored(), 2), order_sampler=sampler)
    assert numbers(next(it)) == Thirds().expected(1)[:4]


def test_a_dataset_that_brings_an_order_is_refused_beside_a_sampler_set_later():
    it = serial(range(20), shuffle=False)
    it.order_sampler = backwards
    for one in (it, pickle.loads(pickle.dumps(it)), copy.copy(it)):
        with pytest.raises(OptionError, match="order_sampler says another"):
            one.dataset = Thirds(20)
        # This epoch's order stays, and the next one is the sampler's.
        assert list(itertools.islice(one, 6))[4:] == [
            [16, 17, 18, 19],
            [19, 18, 17, 16],
        ]


def backwards(order, position):
    return np.arange(20)[::-1]


def test_a_dataset_that_is_assigned_brings_its_order_with_it():
    it = _after(serial(range(20), shuffle=False), 2)
    it.dataset = Thirds(20)
    assert numbers(next(it)) == Thirds(20).expected(1)[8:12]
    it.dataset = list(range(20))
    assert next(it) == [12, 13, 14, 15]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([1, 2], r"Takes has 10 keys, and take\(0, 4\) returned 2 of them, not 4"),
        ([1, 2, 3, 4, 5], "returned 5 of them, not 4"),
        (None, r"Takes gives no keys: take\(0, 4\) returned NoneType None"),
        ([1.0, 2.0, 3.0, 4.0], "gives no keys: .* returned list .1.0, 2.0"),
        (np.arange(4.0), "gives no keys"),
        (np.ones(4, bool), "gives no keys"),
        (np.ones((4, 2), int), "gives no keys"),
        (["a", "b", "c", "d"], "gives no keys"),
        ("abcd", "gives no keys"),
        ([True, 1, 2, 3], "gives no keys"),
        ([[1], [2], [3], [4]], "gives no keys"),
        ((key for key in range(4)), "gives no keys: .* returned generator"),
        ([2**64, 1, 2, 3], "gives no keys"),
        (np.array([2**63, 1, 2, 3], np.uint64), "gives no keys"),
    ],
)
def test_a_take_that_gives_no_keys_is_named(found, text):
    it = serial(Given(Takes(found)))
    with pytest.raises(OptionError, match=text):
        next(it)


def test_what_an_order_raises_keeps_its_type_and_names_the_call():
    for kind in (KeyError, RuntimeError, ZeroDivisionError):
        it = serial(Given(Takes(kind)))
        with pytest.raises(kind) as caught:
            next(it)
        assert caught.value.__notes__ == [
            "mpiter: Takes.take(0, 4) of the dataset's order raised this."
        ]
    with pytest.raises(RuntimeError, match=r"Takes.take\(0, 4\) raised StopIteration"):
        next(serial(Given(Takes(StopIteration))))


def test_the_batches_planned_before_an_error_come_first():
    def take(start, stop):
        if stop > 8:
            raise ValueError("no more")
        return range(start, stop)

    with mpiter.MultithreadIterator(Given(Takes(take)), 4, repeat=False) as it:
        assert [next(it), next(it)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(ValueError, match="no more"):
            next(it)
        with pytest.raises(ValueError, match="no more"):
            next(it)


def test_what_is_no_order_and_a_wrong_length_are_refused_at_construction():
    with pytest.raises(OptionError, match=r"of Given returned list \[1, 2\]; return"):
        serial(Given([1, 2]))
    for length in (-1, 2.5, None):
        with pytest.raises(OptionError, match=r"len\(\) of the order Takes is"):
            serial(Given(Takes([], length)))
    with pytest.raises(TypeError, match="abstract"):
        mpiter.Order()
    with pytest.raises(OptionError, match="the order is empty, so it cannot be rep"):
        serial(Given(Takes([], 0)))
    with pytest.warns(RuntimeWarning, match="no batch in an epoch: the order is empty"):
        mpiter.batches(Given(Takes([], 0)), 2, n_processes=0)


class Columns(dict[str, Any]):
    """Columns with an order of their own."""

    def mpiter_order(self, seed: int, shuffle: bool | None) -> mpiter.Order:
        return Takes(lambda start, stop: range(9 - start, 9 - stop, -1))


class Pairs(tuple[Any, ...]):
    """The same, as a tuple."""

    mpiter_order = Columns.mpiter_order


@pytest.mark.parametrize("workers", [0, 1])
def test_columns_of_a_class_that_brings_an_order_are_columns_in_that_order(workers):
    numbers = np.arange(10)
    with mpiter.batches(Columns(x=numbers), 4, n_processes=workers) as stream:
        assert [batch["x"].tolist() for batch in stream] == [
            [9, 8, 7, 6],
            [5, 4, 3, 2],
            [1, 0],
        ]
    with mpiter.DataLoader(Pairs((numbers, numbers)), 5, num_workers=workers) as loader:
        first, second = next(iter(loader))
    assert first.tolist() == second.tolist() == [9, 8, 7, 6, 5]


def test_an_order_in_place_of_the_method_is_told_to_be_no_method():
    class Brings(Given):
        mpiter_order = Takes([])

    with pytest.raises(OptionError, match=r"mpiter_order of Brings is Takes .* method"):
        serial(Brings(None))


def test_later_must_return_an_order():
    class Ends(EveryThird):
        def later(self, epochs):
            return None

    class Dries(EveryThird):
        def later(self, epochs):
            return Ends(0, self.keys)

    it = serial(Given(Ends(4, "names")), 3)
    next(it)
    with pytest.raises(OptionError, match=r"later\(\) of the order Ends returned None"):
        next(it)
    with pytest.raises(OptionError, match="order Dries has no keys in epoch 1"):
        next(serial(Given(Dries(4, "names")), 5))


def test_costs_are_checked():
    class Costs(Takes):
        def costs(self, start, stop):
            return self.found

    def costs(found):
        return Brought(Costs(found), Costs).costs(0, 3)

    assert costs(None) is None
    assert costs([1, np.float32(2), 0.5]).tolist() == [1.0, 2.0, 0.5]
    for found in ([1, 2], [1, 2, -1], [1, 2, float("nan")], ["a", 1, 2], [1, 2, 3, 4]):
        with pytest.raises(OptionError, match=r"costs\(0, 3\) of the order Costs"):
            costs(found)


# -- ranks, receipts -------------------------------------------------------------------


def test_receipts_and_the_audit_have_the_keys(tmp_path):
    for rank in range(2):
        shard = Shard(rank, 2, exact=True)
        list(
            mpiter.batches(
                Failing(),
                3,
                n_processes=0,
                shard=shard,
                hooks=Receipts(tmp_path / "good"),
                on_error="skip",
            )
        )
        list(
            mpiter.DataLoader(
                Thirds(), 4, shard=shard, hooks=Receipts(tmp_path / "loaded")
            )
        )
    assert audit(tmp_path / "good").is_sound
    assert audit(tmp_path / "loaded").is_sound
    for path in (tmp_path / "good").iterdir():
        lines = path.read_text().splitlines()
        if path.name.startswith("rank-0"):
            assert json.loads(lines[1])["keys"][0] == ["code", 0]
            path.write_text("\n".join([*lines, lines[1]]) + "\n")
    twice = audit(tmp_path / "good")
    assert not twice.is_sound
    assert "sample ('code', 0)" in "\n".join(twice.lines)


def reversing(order, position):
    return order[::-1]


def test_an_order_sampler_serves_all_ranks_that_get_the_same_from_it(caplog):
    caplog.set_level(logging.INFO, "mpiter")
    whole = serial(range(10), 4, order_sampler=reversing)
    expected = [next(whole) for _ in range(6)]
    its = [
        serial(range(10), 2, shard=(rank, 2), order_sampler=reversing)
        for rank in range(2)
    ]
    for step in expected[:4]:
        assert [key for it in its for key in next(it)] == step
    state = through_json(its[1].state_dict())
    assert state == through_json(its[0].state_dict())
    again = [
        serial(range(10), 2, shard=(rank, 2), order_sampler=reversing)
        for rank in range(2)
    ]
    for it in again:
        it.load_state_dict(state)
    assert [key for it in again for key in next(it)] == expected[4]
    sums = [record.args for record in caplog.records if "checksum" in record.msg]
    assert len(sums) == 4
    assert len(set(sums)) == 1


def test_a_rank_whose_order_sampler_gives_another_order_is_told_on_resuming():
    def other(order, position):
        return np.roll(order, 1)

    it = _after(serial(range(10), shard=(0, 2), order_sampler=reversing), 3)
    state = through_json(it.state_dict())
    rank = serial(range(10), shard=(1, 2), order_sampler=other)
    with pytest.raises(StateError, match="gives another first order"):
        rank.load_state_dict(state)
    # Where there are no ranks, a sampler may draw what it likes.
    alone = serial(range(10), order_sampler=other)
    alone.load_state_dict(state)
    assert alone.epoch == it.epoch


class Stored(Thirds):
    """A dataset that can be staged, and whose samples can be transformed."""

    def source(self, key: Any) -> str:
        return f"store/{key}"

    def fetch(self, key: Any) -> bytes:
        return str(key).encode()

    def read(self, key: Any) -> int:
        return super().__getitem__(key)[1]

    def transform(self, number: int) -> int:
        return number

    def __getitem__(self, key: Any) -> Any:
        return self.fetch(key).decode()


def test_what_wraps_a_dataset_passes_its_order_on_or_has_its_own(tmp_path):
    wanted = Stored().expected(1)
    keys = [str(KEYS["names"](number)) for number in wanted]
    staging = Staging(tmp_path, "1MB")
    with serial(staging.of(Stored()), 5) as it:
        assert next(it) + next(it) == keys[:10]
    assert staging.stats().copied >= 10
    with serial(Bundles(Stored(), 2), 5) as it:
        assert next(it) == [(number, number) for number in wanted[:5]]
        assert next(Echo(it, 2, shuffle_buffer=0)) == wanted[5:10]
