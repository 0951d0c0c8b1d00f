"""How blocks and answers travel: what is short comes back as it was, and what marshal would change is not short."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter.worker.block import Block, Done, Fault, from_short, short

wholes = st.integers(-(1 << 130), 1 << 130)  # seeds have 128 bits
seconds = st.floats(0, 1e9)


@settings(max_examples=25)
@given(number=wholes, seed=wholes, place=st.tuples(wholes, wholes), keys=st.binary(), sent=seconds)
def test_a_block_of_numbers_is_short_and_comes_back_as_it_was(number, seed, place, keys, sent):
    block = Block(number, 1 << 40, seed, 3, 0, 4, ((0, *place, keys),), b"a layout", 4096, False, sent)
    again = from_short(short(block))
    assert type(again) is Block
    assert again == block
    assert [type(value) for value in again] == [type(value) for value in block]


@settings(max_examples=25)
@given(number=wholes, worker=wholes, spent=st.tuples(seconds, seconds, seconds, seconds))
def test_an_answer_of_numbers_is_short_and_comes_back_as_it_was(number, worker, spent):
    took, began, queue_s, cpu_s = spent
    drawn = frozenset({"random", "torch"})
    done = Done(number, worker, 128, took, began=began, queue_s=queue_s, cpu_s=cpu_s, drawn=drawn)
    assert type(from_short(short(done))) is Done
    assert from_short(short(done)) == done


FAULT = Fault(0, 0, 0, 0, 0, "worker 0", "ValueError: no", "", None)


@pytest.mark.parametrize(
    "value",
    [
        Done(1, 2, payload=(None, [0], b"")),
        Done(1, 2, faults=(FAULT,)),
        Done(1, 2, mail=(("stdout", "hello"),)),
        Done(1, 2, startup="no"),
        Block(1, 2, 3, 4, 0, 2, ((0, 0, 0, ("a", np.int64(1))),)),  # keys of a sampler's
        Block(1, 2, 3, 4, 0, 2, ((0, 0, 0, np.arange(2)),)),
        Block(1, 2, 3, 4, 0, 2, ((0, np.int64(0), 0, b"12345678"),)),  # which marshal would make bytes of
        Block(1, 2, 3, 4, 0, np.int64(1), ((0, 0, 0, b"12345678"),)),
        Done(1, 2, np.int64(3)),
        Done(1, 2, 3, np.float64(0.5)),
        Block(1, 2, 3, 4, 0, 2, ((0, 0, 0, b"12345678"), (1, 1, 0, b"12345678"))),
        Block(1, 2, 3, 4, 0, 2, iter(())),
        ("a", 1),
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_pickled(value):
    assert short(value) is None


def test_a_pickle_is_not_taken_for_something_short():
    assert from_short(b"\x80\x05N.") is None


def test_whole_numbers_may_be_numpys():
    samples, whole = [*range(40)], np.uint8
    with mpiter.DataLoader(samples, whole(7), shuffle=True, num_workers=2) as loader:
        assert sorted(index for batch in loader for index in batch.tolist()) == samples
        json.dumps(loader.state_dict())
    found = []
    for rank in range(2):
        shard = mpiter.Shard(whole(rank), whole(2))
        with mpiter.batches(samples, whole(13), n_processes=2, epochs=1, shard=shard) as part:
            found += [index for batch in part for index in batch.tolist()]
    assert sorted(found) == samples
