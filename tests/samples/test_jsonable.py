"""Every value of a state comes back from JSON with its type, or is refused.

The error has the path of the value.
"""

from __future__ import annotations

import collections
import decimal
import json
import random
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loader_kinds import NO_TORCH
from samples import assert_same, text

from mpiter import StateError
from mpiter.samples.jsonable import decoded, encoded


def through_json(value: Any) -> Any:
    return decoded(json.loads(json.dumps(encoded(value), allow_nan=False)))


numbers = st.none() | st.booleans() | st.integers() | st.floats()
members = (
    st.none()
    | st.booleans()
    | st.integers()
    | text()
    | st.binary()
    | st.tuples(st.integers(), text())
)
keys = numbers | text() | st.binary() | st.tuples(st.integers(), text())
arrays = hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_side=3))
leaves = keys | arrays | arrays.map(lambda array: array.reshape(-1)[0])
values = st.recursive(
    leaves,
    lambda part: (
        st.lists(part, max_size=3)
        | st.lists(part, max_size=3).map(tuple)
        | st.lists(part, max_size=3).map(lambda parts: collections.deque(parts, 5))
        | st.dictionaries(
            text() | st.sampled_from(["~", "~tuple", "~dict"]), part, max_size=3
        )
        | st.dictionaries(keys, part, max_size=3)
        | st.dictionaries(keys, part, max_size=3).map(collections.OrderedDict)
        | st.sets(members, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert_same(value, through_json(value))


def test_the_generators_states_are_such_values() -> None:
    for state in (
        random.getstate(),
        np.random.get_state(),
        np.random.default_rng(3).bit_generator.state,
        np.random.Generator(np.random.Philox(3)).bit_generator.state,
    ):
        assert_same(state, through_json(state))


@pytest.mark.parametrize("name", ["~tuple", "~set", "~", "~of no kind"])
def test_a_dict_that_looks_like_another_value_comes_back_as_a_dict(name: str) -> None:
    assert_same({name: [1, 2]}, through_json({name: [1, 2]}))


def test_what_is_plain_stays_as_it_is() -> None:
    plain = {"at": 5, "files": ["a", None, 1.5], "~": {"done": True}}
    assert encoded(plain) == plain


@pytest.mark.torch
def test_tensors_come_back_as_they_were() -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    for tensor in (
        torch.get_rng_state(),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.zeros(0, 2, dtype=torch.complex64),
        torch.tensor([True, False]),
    ):
        back = through_json({"g": tensor})["g"]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(back, tensor)
        # The tensor may be changed.
        back.zero_()
    for odd in (
        torch.eye(2).to_sparse(),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, device="meta"),
        torch.nn.Parameter(torch.zeros(2)),
        torch.Generator(),
    ):
        with pytest.raises(StateError, match=r"state\['g'\]"):
            encoded({"g": odd})


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (threading.Lock(), "state"),
        ({"a": [0, 1, Point(1)]}, "state['a'][2]"),
        ({"a": {7: (0, lambda: 0)}}, "state['a'][7][1]"),
        ({"a": {decimal.Decimal(1)}}, "state['a'][0]"),
        ([np.array([None])], "state[0]"),
        ([np.zeros(1, [("a", "i4")])], "state[0]"),
        ([np.ma.masked_array([1], [True])], "state[0]"),
        ({"a": collections.deque([iter(())])}, "state['a'][0]"),
        ({"a": collections.defaultdict(int)}, "state['a']"),
    ],
)
def test_what_no_state_can_hold_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(StateError) as refusal:
        encoded(value)
    assert str(refusal.value).startswith(f"{path} is of type ")


def test_equal_sets_have_equal_states() -> None:
    """Python walks through these two in different orders."""
    one = {0, 8}
    other = {8, 0}
    assert [*one] != [*other]
    assert encoded(one) == encoded(other)


def test_what_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(StateError, match="holds itself"):
        encoded(value)


@pytest.mark.parametrize(
    "damage",
    [
        {"~unknown": 1},
        {"~int": 5},
        {"~bytes": "not base64!"},
        {"~array": ["O", [1], "AAAAAAAAAAA="]},
        {"~array": ["<f4", [3], "AAAA"]},
        {"~array": []},
        {"~dict": [[{"~set": []}, 1]]},
        {"~tuple": 3},
        {"~tensor": ["load", [1], "AAAA"]},
        {"~tensor": ["float32", [1 << 28], ""]},
        {"~array": ["<f4", [1 << 28], ""]},
        {"~array": [[["a", "<f4"]], [1], "AAAAAA=="]},
        {"~tuple": {"~array": ["|S0", [1 << 28], ""]}},
        {"~deque": [{"~array": ["|S0", [1 << 28], ""]}, None]},
        {"~set": "text"},
        {"a": object()},
    ],
)
def test_damage_is_refused(damage: Any) -> None:
    with pytest.raises(StateError):
        decoded([damage])


def test_no_array_takes_more_memory_than_was_kept_of_it() -> None:
    empty = decoded({"~array": ["|S0", [1 << 30], ""]})
    assert (empty.shape, empty.dtype.str, empty.nbytes) == ((1 << 30,), "|S0", 0)
    with pytest.raises(StateError):
        decoded([{"~bytes": 0}] * 1000, [np.zeros(1 << 20, np.uint8)])


@pytest.mark.torch
def test_the_name_of_a_dtype_has_torch_import_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    asked: list[str] = []
    # This is where torch imports submodules on demand.
    monkeypatch.setattr(torch, "__getattr__", asked.append)
    with pytest.raises(StateError, match="'_planted' is no dtype"):
        decoded({"~tensor": ["_planted", [1], "AAAA"]})
    assert asked == []
