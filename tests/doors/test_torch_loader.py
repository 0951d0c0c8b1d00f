"""Under one seed ``mpiter.torch.DataLoader`` gives the batches of torch's loader.

It has the same types, and refuses the same arguments.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Attributes, Built, Pair, Record, Several, Squares
from loader_kinds import NO_TORCH, epoch, flat, plain, some

torch = pytest.importorskip("torch", reason=NO_TORCH)

from torch.utils import data  # noqa: E402

import mpiter  # noqa: E402
import mpiter.torch  # noqa: E402
from mpiter.tuning import Trace  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    # There may be more workers than cores here.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
Theirs = data.DataLoader
Ours = mpiter.torch.DataLoader
both_workers = pytest.mark.parametrize("workers", [0, 1])


# -- order -----------------------------------------------------------------------------

LENGTH = 23


class DrawsAtOnce:
    """A batch sampler that draws as soon as ``iter()`` is called."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(LENGTH)[:20].reshape(5, 4).tolist())


class DrawsOnTheWay:
    """A sampler that draws each key when it is asked for."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            yield int(torch.randint(LENGTH, ()))


def generator() -> Any:
    return torch.Generator().manual_seed(11)


CHOICES: dict[str, Any] = {
    "in sequence": lambda: {"batch_size": 4},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "drop_last": lambda: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "one by one": lambda: {"batch_size": None, "shuffle": True},
    "RandomSampler, replacement": lambda: {
        "sampler": data.RandomSampler(range(LENGTH), replacement=True)
    },
    "RandomSampler, generator": lambda: {
        "sampler": data.RandomSampler(range(LENGTH), generator=generator())
    },
    "WeightedRandomSampler": lambda: {
        "sampler": data.WeightedRandomSampler(torch.arange(1.0, 24), 30)
    },
    "BatchSampler": lambda: {
        "batch_sampler": data.BatchSampler(data.RandomSampler(range(LENGTH)), 5, True)
    },
    "DistributedSampler": lambda: {
        "sampler": data.DistributedSampler(range(LENGTH), 3, 1),
        "batch_size": 2,
    },
    "draws at once": lambda: {"batch_sampler": DrawsAtOnce()},
    "draws on the way": lambda: {"sampler": DrawsOnTheWay()},
    "in bulk": lambda: {
        "sampler": data.BatchSampler(data.RandomSampler(range(LENGTH)), 5, False),
        "batch_size": None,
    },
}


def numbers(choice: Any) -> Any:
    if choice().get("batch_size", 0) is None:
        return torch.arange(LENGTH) * 10
    return list(range(LENGTH))


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 0) for name in CHOICES),
        ("shuffled", 2),
        ("draws on the way", 2),
        ("in bulk", 2),
    ],
)
def test_the_order_is_torchs_under_the_same_seed(name: str, workers: int) -> None:
    choice = CHOICES[name]
    seen = []
    for class_ in (Theirs, Ours):
        torch.manual_seed(5)
        loader = class_(
            numbers(choice), num_workers=workers if class_ is Ours else 0, **choice()
        )
        seen.append([(epoch(loader), torch.rand(()).item()) for _ in range(3)])
        assert class_ is Theirs or loader.close() is None
    assert seen[0] == seen[1]


@both_workers
def test_a_state_is_right_though_the_program_has_drawn_between_iter_and_the_first_batch(
    workers: int,
) -> None:
    torch.manual_seed(5)
    more = {"num_workers": workers, "backend": "thread"} if workers else {}
    samples = list(range(LENGTH))
    with (
        Ours(samples, 4, shuffle=True, **more) as loader,
        Ours(samples, 4, shuffle=True) as again,
    ):
        batches = iter(loader)
        torch.rand(3)
        some(batches, 2)
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert epoch(again) == epoch(batches)


def drawing(class_: Any, how: str, given: bool, dataset: Any, **options: Any) -> Any:
    """Return a loader that draws its order from a generator.

    It is the loader's own if ``given``, else torch's global one.
    """
    own = generator() if given else None
    sampler = data.RandomSampler(range(LENGTH), generator=own)
    choices: dict[str, Any] = {
        "shuffle": {"shuffle": True, "batch_size": 4},
        "sampler": {"sampler": sampler, "batch_size": 4},
        "batch_sampler": {"batch_sampler": data.BatchSampler(sampler, 4, False)},
    }
    return class_(dataset, generator=own, **choices[how], **options)


WAYS = [
    {"num_workers": 0},
    *({"num_workers": 2, "persistent_workers": one} for one in (False, True)),
]


@pytest.mark.parametrize(
    "way", WAYS, ids=["no workers", "new workers", "persistent workers"]
)
def test_three_epochs_draw_what_torchs_do(way: dict[str, Any]) -> None:
    # Threads have the same plans as processes, and start at once.
    mine = {"backend": "thread"} if way["num_workers"] else {}
    for how, given in itertools.product(
        ("shuffle", "sampler", "batch_sampler"), (False, True)
    ):
        seen = []
        for class_, more in ((Theirs, {}), (Ours, mine)):
            torch.manual_seed(5)
            loader = drawing(class_, how, given, list(range(LENGTH)), **way, **more)
            seen.append([])
            for _ in range(3):
                seen[-1].append((epoch(loader), torch.rand(()).item()))
                if given:
                    seen[-1].append(torch.rand((), generator=loader.generator).item())
            assert class_ is Theirs or loader.close() is None
        assert seen[0] == seen[1], (how, given)


class DrawsAtItsPlace(Squares):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, mpiter.get_rng().random()


def test_a_later_epoch_of_persistent_workers_goes_on_from_its_state() -> None:
    def loader(**options: Any) -> Any:
        return drawing(Ours, "shuffle", True, DrawsAtItsPlace(LENGTH), **options)

    persistent = {"num_workers": 2, "persistent_workers": True, "backend": "thread"}
    with loader(**persistent) as first:
        epoch(first)
        within, rest = state_within(first)
        between = json.loads(json.dumps(first.state_dict()))
        third = epoch(first)
    for options in ({}, persistent):
        with loader(**options) as other:
            other.load_state_dict(within)
            assert epoch(other) == rest
            assert not options or epoch(other) == third, (
                "workers that persist draw no seed"
            )
            other.load_state_dict(between)
            assert epoch(other) == third


def test_a_state_has_the_loaders_generator_though_no_sampler_draws_from_it() -> None:
    def loader(seed: int) -> Any:
        own = torch.Generator().manual_seed(seed)
        return Ours(Draws(), 4, generator=own)

    first = loader(1)
    other = loader(2)
    list(first)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    later = [described(batch) for batch in first]
    assert [described(batch) for batch in other] == later


def test_a_state_has_a_generator_once_however_many_hold_it() -> None:
    def loader(*, is_held_twice: bool) -> Any:
        own = generator()
        sampler = data.RandomSampler(range(LENGTH), generator=own)
        batches = data.BatchSampler(sampler, 4, False)
        if is_held_twice:
            batches.generator = own  # type: ignore[attr-defined]
        return Ours(range(LENGTH), batch_sampler=batches)

    first = loader(is_held_twice=True)
    other = loader(is_held_twice=False)
    iterator = iter(first)
    some(iterator, 2)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert epoch(other) == [batch.tolist() for batch in iterator]


def test_a_distributed_sampler_is_told_of_epochs() -> None:
    seen = []
    for class_ in (Theirs, Ours):
        sampler = data.DistributedSampler(range(LENGTH), 2, 1, seed=4)
        loader = class_(list(range(LENGTH)), 4, sampler=sampler)
        for number in (0, 1, 1):
            sampler.set_epoch(number)
            seen.append(epoch(loader))
        assert class_ is Theirs or loader.close() is None
    assert seen[:3] == seen[3:]
    assert seen[0] != seen[1] == seen[2]


class Negated(data.Subset[Any]):
    """A subset whose samples aren't those of its tensors, but made from them."""

    def __getitem__(self, index: Any) -> Any:
        row, label = self.dataset[self.indices[index]]
        return -row, label

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


TENSORS = data.TensorDataset(torch.arange(46.0).reshape(23, 2), torch.arange(23))
NEGATED = Negated(TENSORS, range(1, 23))
DATASETS: dict[str, Any] = {
    "TensorDataset": TENSORS,
    "a subset": data.Subset(TENSORS, [3, -1, 3, *range(20)]),
    "a subset by an array": data.Subset(TENSORS, np.arange(20)[::-1]),  # type: ignore[arg-type]
    "a subset by a tensor": data.Subset(TENSORS, torch.arange(20)),  # type: ignore[arg-type]
    "a subset of a subset": data.Subset(
        data.Subset(TENSORS, range(1, 23)), range(1, 22)
    ),
    "a subset that reads samples itself": NEGATED,
    "a subset of one that reads samples itself": data.Subset(NEGATED, range(1, 22)),
    "a part of a random split": data.random_split(
        TENSORS, [0.9, 0.1], torch.Generator().manual_seed(3)
    )[0],
    "a subset of samples": data.Subset(
        [(torch.full((2,), at), at) for at in range(23)], range(1, 23)
    ),  # type: ignore[arg-type]
    "StackDataset": data.StackDataset(a=list(range(12)), b=torch.arange(12.0)),
    "a tensor": torch.arange(46).reshape(23, 2),
    "a list of two arrays": [np.arange(6).reshape(3, 2), np.arange(6.0).reshape(3, 2)],
    "a tuple of two tensors": (
        torch.arange(46.0).reshape(23, 2),
        torch.arange(46.0).reshape(23, 2),
    ),
    "a named tuple of two": Pair(np.arange(23), np.arange(23)),
    "a dict by number": {at: np.full(2, at) for at in range(5)},
}


WITH_A_WORKER = "a named tuple of two", "a subset"


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((one, 0) for one in DATASETS), *((one, 1) for one in WITH_A_WORKER)],
)
def test_datasets_give_what_torchs_loader_makes_of_them(
    name: str, workers: int
) -> None:
    dataset = DATASETS[name]
    with Ours(
        dataset, 4, shuffle=True, generator=generator(), num_workers=workers
    ) as ours:
        theirs = Theirs(dataset, 4, shuffle=True, generator=generator())
        assert [described(batch) for batch in ours] == [
            described(batch) for batch in theirs
        ]


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (1, {}),
        (0, {"collate_fn": data.default_collate}),
        (0, {"batch_size": None}),
    ],
)
def test_the_rows_of_columns_are_samples_which_torch_collates(
    workers: int, options: Any
) -> None:
    columns = {
        "x": np.arange(46.0).reshape(23, 2),
        "y": torch.arange(23),
        "name": [f"sample {at}" for at in range(23)],
    }
    samples = [mpiter.DataLoader(columns, None).dataset[at] for at in range(23)]
    options = {"batch_size": 4, "shuffle": True} | options
    with Ours(columns, generator=generator(), num_workers=workers, **options) as ours:
        theirs = Theirs(samples, generator=generator(), **options)
        assert len(ours) == len(theirs)
        assert [described(batch) for batch in ours] == [
            described(batch) for batch in theirs
        ]


@pytest.mark.parametrize("options", [{}, {"seed": 0, "shard": (1, 2)}])
def test_the_length_is_that_of_a_whole_epoch_after_a_resume_too(options):
    loader = Ours(range(40), 2, shuffle=True, **options)
    length = len(loader)
    epoch = iter(loader)
    next(epoch), next(epoch)
    again = Ours(range(40), 2, shuffle=True, **options)
    again.load_state_dict(loader.state_dict())
    assert (len(again), len(iter(again)), len(again)) == (length, length - 2, length)


def test_a_dict_that_a_sampler_has_keys_for_is_samples() -> None:
    given = {"a": 1, "b": 2, "c": 3}
    keys = ["c", "a"]
    assert [described(batch) for batch in Ours(given, 2, sampler=keys)] == [
        described(batch) for batch in Theirs(given, 2, sampler=keys)
    ]
    with pytest.raises(mpiter.OptionError, match="'a' is int"):
        Ours(given, 2)


def test_what_is_no_dataset_is_refused_before_torch_is_asked() -> None:
    apart = torch.zeros(8, 2), torch.zeros(8)
    for given, says in (
        ((4, Squares), "4 is no dataset"),
        ((Squares, 4), r"Squares is a class: .* Squares\(…\)"),
        (apart, "batch_size is of type Tensor: arrays go together"),
    ):
        with pytest.raises(mpiter.OptionError, match=says):
            Ours(*given)


@pytest.mark.parametrize(
    ("dataset", "options", "told"),
    [
        ([1, 2], {"collate_fn": 3}, "collate_fn=3 cannot be called"),
        ([1, 2], {"worker_init_fn": 3}, "worker_init_fn=3 cannot be called"),
        (
            [1, 2],
            {"generator": 5},
            r"generator=5 isn't a generator of torch's: "
            r"pass torch.Generator\(\).manual_seed",
        ),
        (
            [1, 2],
            {"sampler": torch.utils.data.RandomSampler},
            r"sampler=RandomSampler is a class: .* RandomSampler\(…\)",
        ),
        ([1, 2], {"batch_sampler": 3}, "batch_sampler=3 is no iterable"),
        (
            lambda index: index,
            {},
            "<lambda> is a function: pass an object with __getitem__ and __len__",
        ),
        (
            (n for n in range(3)),
            {},
            "generator can only be iterated over: derive from .*IterableDataset",
        ),
        (None, {}, "NoneType has neither"),
    ],
    ids=[
        "collate_fn",
        "worker_init_fn",
        "generator",
        "sampler",
        "batch_sampler",
        "function",
        "iterator",
        "None",
    ],
)
def test_what_torch_finds_out_late_is_refused_at_construction(
    dataset: Any, options: Any, told: str
) -> None:
    with pytest.raises(mpiter.OptionError, match=told):
        Ours(dataset, **options)


def test_what_torch_refuses_itself_it_says_in_its_own_words() -> None:
    with pytest.raises(
        ValueError, match="sampler option is mutually exclusive with shuffle"
    ):
        Ours([1, 2], sampler=[0], shuffle=3)  # type: ignore[arg-type]
    stream = torch.utils.data.ChainDataset([])
    for name in ("shuffle", "sampler", "batch_sampler"):
        options: dict[str, Any] = {name: 3}
        with pytest.raises(
            ValueError, match=f"IterableDataset: expected unspecified {name} option"
        ):
            Ours(stream, **options)


def test_what_a_hook_does_is_no_argument_of_torchs_door_either() -> None:
    with pytest.raises(TypeError, match=r"use hooks=mpiter\.tuning\.Trace\("):
        mpiter.torch.DataLoader([1, 2], 2, trace="x.json")
    with pytest.raises(TypeError, match=r"use hooks=mpiter\.receipts\.Receipts\("):
        mpiter.torch.DataLoader([1, 2], 2, receipts="folder")


def test_the_second_epoch_of_a_sampler_that_is_an_iterator_is_warned_of() -> None:
    loader = Ours(torch.arange(4.0), 2, sampler=iter([1, 0]))
    assert len(list(loader)) == 1
    with pytest.warns(
        RuntimeWarning, match=r"the sampler is an iterator \(list_iterator\)"
    ):
        assert list(loader) == []


def test_a_word_is_no_shuffle() -> None:
    with pytest.raises(mpiter.OptionError, match="shuffle='no' must be True or False"):
        Ours(torch.arange(4.0), 2, shuffle="no")


# -- collating -------------------------------------------------------------------------


def described(batch: Any) -> Any:
    """Describe a batch so that ``==`` compares it to the last bit, types included."""
    if isinstance(batch, torch.Tensor):
        return (
            type(batch),
            batch.dtype,
            batch.shape,
            batch.layout,
            batch.requires_grad,
            repr(batch.tolist()),
        )
    if isinstance(batch, Mapping):
        return (
            type(batch),
            [(key, described(value)) for key, value in batch.items()],
            vars_of(batch),
        )
    if isinstance(batch, (list, tuple)):
        return type(batch), [described(part) for part in batch], vars_of(batch)
    return type(batch), repr(batch)


def vars_of(value: Any) -> Any:
    return {
        name: described(held) for name, held in getattr(value, "__dict__", {}).items()
    }


def outcomes(batches: Any) -> list[Any]:
    """Describe each batch, or the error that came in its place."""
    found: list[Any] = []
    while len(found) < 20:
        try:
            found.append(described(next(batches)))
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error), str(error).splitlines()[0]))
    raise AssertionError(f"no end: {found}")


def coloured(i: int) -> Attributes:
    made = Attributes(x=i, y=np.full(2, i))
    made.colour = "blue"
    return made


def memmapped(i: int) -> Any:
    return np.memmap(__file__, np.uint8, "r", shape=(4, 2))[:2] + np.uint8(i)


DTYPES = sorted(
    {np.dtype(code).newbyteorder("=").str for code in np.typecodes["All"]}
    | {"U3", "S3", ">i2", ">f4"}
)
RECORD = np.dtype([("a", "i4"), ("b", "f8")])
BUILDS: dict[str, Any] = {
    **{
        f"arrays of {name}": lambda i, name=name: np.full((2, 3), i, "i4").astype(name)
        for name in DTYPES
    },
    **{
        f"no dimensions, {name}": lambda i, name=name: np.array(i).astype(name)
        for name in DTYPES
    },
    **{
        f"scalars of {name}": lambda i, name=name: np.array([i]).astype(name)[0]
        for name in DTYPES
        if name != "<u8"
    },
    "int": lambda i: i,
    "nan": lambda i: float("nan") if i % 2 else float("inf"),
    "bool": lambda i: i % 2 == 0,
    "complex": lambda i: complex(i, 1),
    "str": lambda i: f"sample {i}",
    "bytes": lambda i: b"x" * i,
    "None": lambda i: None,
    "tuple": lambda i: (i, np.full(2, i), "x"),
    "tuple of one": lambda i: (i,),
    "empty tuple": lambda i: (),
    "list": lambda i: [i, float(i)],
    "empty list": lambda i: [],
    "list subclass": lambda i: Several([i, float(i)]),
    "namedtuple": lambda i: Pair(np.full(2, i), i),
    "dataclass": lambda i: Record(np.full(2, i), "x"),
    "dict": lambda i: {"x": np.full(2, i), "y": i},
    "dict by number": lambda i: {0: i, True: float(i)},
    "empty dict": lambda i: {},
    "dict subclass": coloured,
    "OrderedDict": lambda i: collections.OrderedDict(b=i, a=float(i)),
    "defaultdict": lambda i: collections.defaultdict(list, b=i),
    "UserDict": lambda i: collections.UserDict(a=i),
    "nested": lambda i: {
        "a": (np.full(2, i), [i, float(i)]),
        "b": {"c": i % 2 == 0, "d": ("x", (i,))},
    },
    "memmap": memmapped,
    "masked": lambda i: np.ma.masked_array([1, 2, i], [False, True, False]),
    "record": lambda i: np.array([(i, i / 2)], RECORD),
    "transposed": lambda i: np.arange(6).reshape(2, 3).T + i,
    "tensor": lambda i: torch.full((2, 3), i),
    "bool tensor": lambda i: torch.tensor([i % 2 == 0]),
    "bfloat16": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "float8": lambda i: torch.full((2,), i, dtype=torch.float32).to(
        torch.float8_e4m3fn
    ),
    "conjugate": lambda i: torch.full((2,), complex(i, 1)).conj(),
    "transposed tensor": lambda i: torch.arange(6).reshape(2, 3).T + i,
    "expanded tensor": lambda i: torch.tensor([i]).expand(4),
    "wants gradient": lambda i: torch.full((2,), float(i), requires_grad=True),
    "parameter": lambda i: torch.nn.Parameter(torch.full((2,), float(i))),
    "sparse": lambda i: torch.eye(2).to_sparse(),
    "tensor and NumPy's number": lambda i: (torch.full((2, 3), i), np.int64(i)),
    "tensor, dict and array": lambda i: {
        "x": torch.full((2, 3), i),
        "y": {"z": np.full(2, i), "n": i},
    },
    "sparse beside a tensor": lambda i: (torch.eye(2), torch.eye(2).to_sparse()),
    "huge int": lambda i: 2**70 + i,
    "sometimes huge": lambda i: 2**63 - 1 + i // 5,
    # These samples differ from each other.
    "int, then float": lambda i: i if i < 4 else float(i),
    "array and tensor": lambda i: np.full(2, i) if i % 2 else torch.full((2,), i),
    "float32, then float64": lambda i: np.full(
        2, i, np.float32 if i < 4 else np.float64
    ),
    "of several lengths": lambda i: np.zeros(i // 3),
    "lists of several lengths": lambda i: [1] * (1 + i // 3),
    "lists that get longer": lambda i: [1] * (1 + i),
    "keys in another order": lambda i: (
        {"a": i, "b": 1.0} if i % 3 else {"b": 1.0, "a": i}
    ),
    "fewer keys": lambda i: {"a": i, "b": i} if i % 3 == 0 else {"a": i},
    "tuple and list": lambda i: (i, i) if i % 3 else [i, i],
    "None now and then": lambda i: None if i == 4 else i,
}


FORKED = {"num_workers": 1, "multiprocessing_context": "fork"}
# These samples travel between processes.  test_codec.py tries all others.
TRAVELLING = [
    *(
        "scalars of <f4",
        "str",
        "None",
        "list subclass",
        "dataclass",
        "dict by number",
        "dict subclass",
        "nested",
    ),
    *(
        "memmap",
        "masked",
        "transposed",
        "bool tensor",
        "bfloat16",
        "float8",
        "conjugate",
        "expanded tensor",
    ),
    *(
        "wants gradient",
        "parameter",
        "sparse",
        "sometimes huge",
        "int, then float",
        "array and tensor",
    ),
    *(
        "float32, then float64",
        "of several lengths",
        "lists that get longer",
        "keys in another order",
        "fewer keys",
    ),
    *("tuple and list", "None now and then"),
]


@pytest.mark.parametrize(
    ("names", "options"), [(BUILDS, {}), (TRAVELLING, FORKED)], ids=["here", "forked"]
)
def test_batches_are_what_torchs_default_collate_makes(
    names: Any, options: dict[str, Any]
) -> None:
    for name in names:
        expected = outcomes(iter(Theirs(Built(BUILDS[name], LENGTH), 3)))
        with Ours(Built(BUILDS[name], LENGTH), 3, **options) as ours:
            assert outcomes(iter(ours)) == expected, name


def test_batches_are_torchs_where_samples_differ_after_many_that_were_alike() -> None:
    """By then whole batches are read at once, in a way that suits the first ones."""
    for name, build in BUILDS.items():

        def later(i: int, build: Any = build) -> Any:
            return build(max(0, i - 10))

        with Ours(Built(later, LENGTH), 3) as ours:
            assert outcomes(iter(ours)) == outcomes(
                iter(Theirs(Built(later, LENGTH), 3))
            ), name


@pytest.mark.parametrize("options", [{}, FORKED], ids=["here", "forked"])
def test_samples_alone_and_whole_batches_are_collated_as_torch_does(
    options: dict[str, Any],
) -> None:
    class Together(Built):
        def __getitems__(self, keys: list[int]) -> list[Any]:
            return [self.build(key) for key in keys]

    for name in ("nested", "namedtuple", "tensor", "scalars of <f4"):
        with Ours(Built(BUILDS[name], 3), None, **options) as ours:
            assert outcomes(iter(ours)) == outcomes(
                iter(Theirs(Built(BUILDS[name], 3), None))
            ), name
    for name in ("nested", "of several lengths", "sparse"):
        with Ours(Together(BUILDS[name], LENGTH), 3, **options) as ours:
            assert outcomes(iter(ours)) == outcomes(
                iter(Theirs(Together(BUILDS[name], LENGTH), 3))
            ), name


@pytest.mark.parametrize(
    "samples", [[*"abcdefg"], [*enumerate("abcdefg")], [{"x": x} for x in "abcdefg"]]
)
def test_a_list_of_texts_comes_in_every_epoch_as_torch_gives_it(
    samples: list[Any],
) -> None:
    ours = Ours(samples, 2)
    theirs = Theirs(samples, 2)
    for _ in range(3):
        assert [*map(repr, ours)] == [*map(repr, theirs)]


@pytest.mark.parametrize(
    ("type_", "workers"), [(Record, 0), (Record, 1), (np.ndarray, 0)]
)
def test_collating_that_has_been_registered_is_used(
    type_: Any, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(
        ways, type_, lambda samples, *, collate_fn_map: f"{len(samples)} of them"
    )
    values = {Record: Record(1, "x"), np.ndarray: np.zeros(2)}
    with Ours([(values[type_], 0.5)] * 3, 2, num_workers=workers) as loader:
        assert [batch[0] for batch in loader] == ["2 of them", "1 of them"]


def test_tensors_are_stacked_once_though_there_are_numbers_of_numpys_beside_them(
    monkeypatch: Any,
) -> None:
    stacked = []
    stack = torch.stack

    def noted(tensors: Any, *args: Any, **options: Any) -> Any:
        stacked.append(len(tensors))
        return stack(tensors, *args, **options)

    monkeypatch.setattr(torch, "stack", noted)
    for build in (
        BUILDS["tensor and NumPy's number"],
        lambda i: {"x": torch.full((2,), i), "y": np.float32(i)},
    ):
        stacked.clear()
        assert len(list(Ours(Built(build, 20), 2))) == 10
        assert stacked == [2] * 10


def test_collating_that_has_been_registered_for_tensors_is_used_in_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(
        ways, torch.Tensor, lambda samples, *, collate_fn_map: f"{len(samples)} of them"
    )
    assert [*Ours(data.TensorDataset(torch.arange(8)), 2)] == [["2 of them"]] * 4
    assert [*Ours({"x": torch.arange(8)}, 2)] == [{"x": "2 of them"}] * 4


@both_workers
def test_tensors_can_be_written_to_resized_and_kept(workers: int) -> None:
    with Ours(
        Built(lambda i: (np.zeros(3), [0.5], torch.zeros(3)), 8), 4, num_workers=workers
    ) as loader:
        kept = [leaves(batch) for batch in loader]
    for first in flat(kept):
        first += 1
        assert first.is_contiguous()
        assert not first.requires_grad
        assert first.numpy() is not None
    assert torch.equal(kept[0][-1], kept[1][-1])


def test_other_backends_fetch_the_same_batches() -> None:
    for options in (
        {"batch_size": 4},
        {"batch_size": 4, "collate_fn": list},
        {"batch_size": None},
    ):
        with Ours(Squares(), num_workers=2, backend="thread", **options) as loader:
            assert [*map(described, loader)] == [
                *map(described, Theirs(Squares(), **options))
            ]
        assert loader.backend == "thread", (
            "frameworks make a loader anew from what it says"
        )
    assert data.get_worker_info() is None, "it is this process's"


def leaves(batch: Any) -> list[Any]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return flat(map(leaves, batch))


class TellsItsEpoch:
    """Each sample begins with the epoch, which lies in shared memory.

    So does what the workers note.
    """

    def __init__(self) -> None:
        self.epoch = torch.tensor([0, 7]).share_memory_()
        self.same = self.epoch[:1]
        self.notes = torch.zeros(8).share_memory_()
        self.weight = torch.nn.Parameter(torch.zeros(1)).share_memory_()

    def __len__(self) -> int:
        return len(self.notes)

    def __getitem__(self, index: int) -> tuple[int, ...]:
        self.notes[index] = index
        return int(self.epoch[0]), int(self.same), int(self.weight), index


class StreamThatTellsItsEpoch(data.IterableDataset[Any]):
    def __init__(self) -> None:
        self.epoch = torch.tensor(0).share_memory_()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for element in range(6):
            yield int(self.epoch), element


@pytest.mark.parametrize("persistent", [True, None])
def test_a_tensor_in_shared_memory_is_the_workers_too(persistent: bool | None) -> None:
    dataset = TellsItsEpoch()
    pids = set()
    loader = Ours(dataset, 4, num_workers=1, persistent_workers=persistent)
    for number in range(2):
        dataset.epoch[0] = number
        dataset.weight.data[0] = number
        told = [column.tolist() for column in next(iter(loader))]
        assert told == [[number] * 4, [number] * 4, [number] * 4, [0, 1, 2, 3]]
        pids.add(loader.worker_pids)
    assert len(pids) == 1, "what the workers see anyway is no change of the dataset"
    assert dataset.notes[:4].tolist() == [0, 1, 2, 3]
    dataset.epoch = torch.tensor([5, 7]).share_memory_()
    if persistent is None:
        assert next(iter(loader))[0].tolist() == [5] * 4
    loader.close()


def test_a_stream_whose_epoch_lies_in_shared_memory_has_it_in_persistent_workers() -> (
    None
):
    stream = StreamThatTellsItsEpoch()
    with Ours(stream, 3, num_workers=1, persistent_workers=True) as loader:
        for number in range(3):
            stream.epoch.fill_(number)
            assert epoch(loader) == [
                [[number] * 3, [0, 1, 2]],
                [[number] * 3, [3, 4, 5]],
            ]


def test_without_workers_a_batch_is_no_part_of_the_dataset() -> None:
    mine = torch.zeros(4, 2)
    with Ours(data.TensorDataset(mine), 1) as loader:
        for (batch,) in loader:
            batch += 1
    assert not mine.any()


NOT_DENSE: dict[str, Any] = {
    "nested": lambda i: torch.nested.nested_tensor(
        [torch.arange(i + 1.0), torch.arange(2.0)]
    ),
    "COO": lambda i: (torch.eye(3) * i).to_sparse(),
    "CSR": lambda i: (torch.eye(3) * i).to_sparse_csr(),
    "quantized": lambda i: torch.quantize_per_tensor(
        torch.arange(4.0) + i, 0.1, 2, torch.qint8
    ),
}


class NotDense(Squares):
    def __getitem__(self, index: int) -> list[Any]:
        return [build(index) for build in NOT_DENSE.values()]


# Torch warns of features that are in beta, or old.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensors_that_are_not_dense_come_from_workers() -> None:
    with Ours(NotDense(4), batch_size=2, collate_fn=list, num_workers=1) as loader:
        assert repr(flat(list(loader))) == repr(
            [NotDense(4)[index] for index in range(4)]
        )


# -- randomness and workers ------------------------------------------------------------


class Draws(Squares):
    """Each sample draws from every generator that there is."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (
            index,
            torch.rand(2),
            random.random(),
            np.random.random(),
            mpiter.get_rng().random(),
        )


@pytest.mark.parametrize("options", [{"collate_fn": list}, {"shuffle": True}])
def test_random_samples_are_the_same_for_any_number_of_workers(
    options: dict[str, Any],
) -> None:
    seen = []
    for workers in (0, 2):
        torch.manual_seed(3)
        with Ours(Draws(), 3, num_workers=workers, **options) as loader:
            seen.append([described(batch) for _ in range(2) for batch in loader])
            seen[-1].append(torch.rand(()).item())
    assert seen[0] == seen[1]
    assert seen[0][:7] != seen[0][7:14]


class Info(Squares):
    """Each sample is what torch's own function says of the worker."""

    def __getitem__(self, index: int) -> list[Any]:
        info = data.get_worker_info()
        with pytest.raises((RuntimeError, AttributeError)):
            info.id = 5
        assert info.dataset is self
        return [
            info.id,
            info.num_workers,
            info.seed,
            os.getpid(),
            torch.get_num_threads(),
        ]


def test_torchs_get_worker_info_knows_our_workers() -> None:
    told: dict[type, set[Any]] = {}
    for class_ in (Theirs, Ours):
        torch.manual_seed(7)
        loader = class_(Info(12), 1, num_workers=2)
        told[class_] = {tuple(flat(leaves_or_lists(batch))) for batch in loader}
        assert data.get_worker_info() is None
        assert class_ is Theirs or loader.close() is None
    assert {one[:3] for one in told[Ours]} <= {one[:3] for one in told[Theirs]}
    assert {one[4] for one in told[Ours]} == {1}
    assert os.getpid() not in {one[3] for one in told[Ours]}


def leaves_or_lists(batch: Any) -> list[list[Any]]:
    if isinstance(batch[0], list):
        return plain(batch)
    return [[value] for value in flat(map(plain, batch))]


def test_worker_init_fn_runs_where_torchs_worker_info_is_known() -> None:
    def renumber(worker: int) -> None:
        info = data.get_worker_info()
        assert info.id == worker
        # Torch's documentation changes the worker's copy of the dataset like this.
        info.dataset.length = 100 + worker

    class Length(Squares):
        def __getitem__(self, index: int) -> int:
            return self.length

    dataset = Length(8)
    with Ours(dataset, 2, num_workers=2, worker_init_fn=renumber) as loader:
        assert set(flat(epoch(loader))) <= {100, 101}
    assert dataset.length == 8


class Begins(Squares):
    """Each sample says how its worker's generators began.

    It also has the seed that torch gives at the worker's first sample.
    """

    told: Any = None
    first: int | None = None

    def __getitem__(self, index: int) -> Any:
        if self.first is None:
            self.first = torch.initial_seed()
        return (data.get_worker_info().id, self.told, self.first)


class BeginsStream(data.IterableDataset):  # type: ignore[misc]
    told: Any = None

    def __iter__(self) -> Iterator[Any]:
        yield data.get_worker_info().id, self.told


def tell_how_it_began(worker: int) -> None:
    drawn = random.random(), np.random.random(), torch.rand(()).item()
    data.get_worker_info().dataset.told = torch.initial_seed(), *drawn


@pytest.mark.parametrize("dataset", [Begins(8), BeginsStream()])
def test_a_worker_begins_seeded_as_torchs(dataset: Any) -> None:
    told = []
    for class_ in (Theirs, Ours):
        torch.manual_seed(3)
        loader = class_(
            dataset,
            1,
            collate_fn=list,
            worker_init_fn=tell_how_it_began,
            **FORKED | {"num_workers": 2},
        )
        told.append({batch[0] for batch in loader})
        assert class_ is Theirs or loader.close() is None
    assert told[1]
    assert told[1] <= told[0], "any worker may fetch all samples"


class Counts(data.IterableDataset):  # type: ignore[misc]
    """A stream that every worker reads as a whole."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))

    def __repr__(self) -> str:
        return "Counts"


class CountsInShards(Counts):
    shards_itself = False


def test_a_stream_that_gives_more_than_it_says_is_warned_of_in_torchs_words() -> None:
    loader = Ours(Counts(), 4, num_workers=3, backend="thread")
    assert len(flat(epoch(loader))) == 18, (
        "without a warning, as by torch: nobody has asked for the length"
    )
    assert len(loader) == 2
    told = (
        "Length of IterableDataset Counts was reported to be 6 .*, "
        r"but 8 samples have been fetched\. For multiproc"
    )
    batches = iter(loader)
    some(batches, 1)
    with pytest.warns(UserWarning, match=told):
        some(batches, 1)
    loader.close()
    for right in (
        Ours(CountsInShards(), 4, num_workers=3, backend="thread"),
        Ours(Counts(), 4),
    ):
        assert len(right) == 2
        assert flat(epoch(right)) == [0, 1, 2, 3, 4, 5]
        right.close()


# -- state -----------------------------------------------------------------------------

RESUMABLE = {
    name: choice
    for name, choice in CHOICES.items()
    if name not in ("draws on the way", "draws at once")
}


@pytest.mark.parametrize("choice", RESUMABLE.values(), ids=RESUMABLE)
def test_every_sampler_of_torch_goes_on_where_it_was(choice: Any) -> None:
    torch.manual_seed(1)
    with Ours(numbers(choice), num_workers=2, backend="thread", **choice()) as loader:
        epoch(loader)
        under_way = iter(loader)
        some(under_way, 2)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = epoch(under_way)
    torch.manual_seed(2)
    users = torch.get_rng_state()
    with Ours(numbers(choice), **choice()) as other:
        other.load_state_dict(state)
        assert epoch(other) == rest
    assert torch.equal(torch.get_rng_state(), users)


class Stream(data.IterableDataset):  # type: ignore[misc]
    """A stream with a shard for each worker.

    The state of its iterator is a place and a generator's state.
    """

    def __iter__(self) -> Any:
        info = data.get_worker_info()
        shard, shards = (info.id, info.num_workers) if info else (0, 1)
        return Elements(range(shard, LENGTH, shards))


class Elements:
    def __init__(self, numbers: range) -> None:
        self.numbers = numbers
        self.at = 0
        self.generator = torch.Generator().manual_seed(5)
        self.asked = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return (
            self.numbers[self.at - 1],
            torch.rand((), generator=self.generator).item(),
            self.asked,
        )

    def state_dict(self) -> dict[Any, Any]:
        self.asked += 1
        return {0: self.at, "g": self.generator.get_state(), "asked": self.asked}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.at = state[0]
        self.asked = state["asked"]
        self.generator.set_state(state["g"])


def test_a_stream_that_tells_its_place_by_tensors_goes_on() -> None:
    def loader() -> Any:
        return Ours(Stream(), 4, num_workers=2)

    def without_count(batches: Any) -> Any:
        return [(plain(numbers), plain(drawn)) for numbers, drawn, _ in batches]

    with loader() as first, loader() as second:
        epoch(first)
        under_way = iter(first)
        some(under_way, 3)
        state = json.loads(json.dumps(first.state_dict()))
        rest = without_count(under_way)
        second.load_state_dict(state)
        assert without_count(second) == rest


def share(rank: int, replicas: int = 2, told: int = 0) -> Any:
    """Return a loader for one of several processes, at the sampler's epoch ``told``."""
    sampler = data.DistributedSampler(range(LENGTH), replicas, rank, seed=4)
    sampler.set_epoch(told)
    return Ours(list(range(LENGTH)), 2, sampler=sampler)


def state_within(loader: Any) -> tuple[Any, list[Any]]:
    """Return the state after two batches, and the rest of the epoch."""
    under_way = iter(loader)
    some(under_way, 2)
    return json.loads(json.dumps(loader.state_dict())), epoch(under_way)


@pytest.mark.parametrize("told", [0, 2])
def test_the_state_within_an_epoch_knows_which_epoch_the_sampler_was_told_of(
    told: int,
) -> None:
    state, rest = state_within(share(0, told=1))
    # Some frameworks call set_epoch() only after iter().
    other = share(0, told=told)
    other.load_state_dict(state)
    assert epoch(other) == rest
    assert other.sampler.epoch == 1


def test_a_process_goes_on_from_the_state_of_another() -> None:
    # Frameworks save only the state of the first process.
    state, _ = state_within(share(0, told=1))
    _, rest = state_within(share(1, told=1))
    other = share(1)
    other.load_state_dict(state)
    assert epoch(other) == rest


def test_the_state_of_another_number_of_processes_is_refused() -> None:
    state, _ = state_within(share(0, told=1))
    other = share(1, replicas=3)
    other.load_state_dict(state)
    with pytest.raises(mpiter.StateError, match="one of 2 processes, this is one of 3"):
        iter(other)


def test_damage_to_what_a_sampler_was_told_is_a_state_error_or_ignored() -> None:
    state, rest = state_within(share(0, told=1))
    for told in (["1"], []):
        other = share(0)
        other.load_state_dict(
            {**state, "generators": {**state["generators"], "told": told}}
        )
        with pytest.raises(mpiter.StateError):
            iter(other)
    other = share(0)
    other.load_state_dict({**state, "generators": {**state["generators"], "share": 7}})
    assert epoch(other) == rest


class OfAnother:
    """A batch sampler over another one, in an attribute that many libraries use."""

    def __init__(
        self, batch_sampler: Any, process_index: int = 0, num_processes: int = 1
    ) -> None:
        self.batch_sampler = batch_sampler
        self.process_index = process_index
        self.num_processes = num_processes

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(
            self.batch_sampler, self.process_index, None, self.num_processes
        )


def test_a_process_goes_on_from_the_state_of_another_by_a_sampler_in_a_sampler() -> (
    None
):
    def loader(process: int, seed: int) -> Any:
        sampler = data.RandomSampler(
            range(LENGTH), generator=torch.Generator().manual_seed(seed)
        )
        return Ours(
            range(LENGTH),
            batch_sampler=OfAnother(data.BatchSampler(sampler, 4, False), process, 2),
        )

    state, _ = state_within(loader(0, 1))
    _, rest = state_within(loader(1, 1))
    other = loader(1, 2)
    other.load_state_dict(state)
    assert epoch(other) == rest


# -- being torch's ---------------------------------------------------------------------


def test_it_is_a_torch_loader_with_torchs_attributes() -> None:
    dataset = Squares()
    sampler = data.SequentialSampler(Squares())
    options: dict[str, Any] = {
        "batch_size": 4,
        "sampler": sampler,
        "num_workers": 2,
        "drop_last": True,
        "timeout": 9,
    }
    theirs = Theirs(dataset, **options)
    with Ours(dataset, **options) as ours:
        assert isinstance(ours, Theirs)
        for name in (
            "dataset",
            "batch_size",
            "sampler",
            "num_workers",
            "drop_last",
            "timeout",
            "collate_fn",
        ):
            mine = getattr(ours, name)
            other = getattr(theirs, name)
            assert mine is other or mine == other
        assert len(ours) == len(theirs)
        assert isinstance(ours.batch_sampler, data.BatchSampler)


@pytest.mark.parametrize("class_", [Theirs, Ours])
def test_what_was_not_said_stays_unsaid_when_a_framework_makes_the_loader_anew(
    class_: Any,
) -> None:
    names = ("prefetch_factor", "persistent_workers")
    with (
        Ours([1, 2, 3], num_workers=1) as loader,
        Ours([1, 2, 3], num_workers=1, prefetch_factor=3) as other,
    ):
        assert [getattr(loader, name) for name in names] == [None, None]
        assert [getattr(other, name) for name in names] == [3, None]
        again = class_(
            [1, 2, 3], num_workers=1, **{name: getattr(loader, name) for name in names}
        )
        assert class_ is Ours or not again.persistent_workers
        assert class_ is Theirs or again.close() is None


@pytest.mark.parametrize("class_", [Theirs, Ours])
def test_a_negative_number_of_workers_is_refused_in_torchs_words(class_: Any) -> None:
    with pytest.raises(ValueError, match="num_workers option should be non-negative"):
        class_([1, 2, 3], num_workers=-1)


def made_anew(loader: Any) -> Any:
    """Make a loader again as Lightning does it.

    Each argument of the constructor comes from the attribute of that name.
    """
    attributes = {
        name: value for name, value in vars(loader).items() if not name.startswith("_")
    }
    given = {
        name: attributes[name]
        for name in inspect.signature(type(loader)).parameters
        if name in attributes
    }
    return type(loader)(**{**given, "batch_sampler": None})


def test_each_argument_is_an_attribute_for_frameworks_that_make_the_loader_anew(
    tmp_path: Path,
) -> None:
    told: dict[str, Any] = {
        "sampler": data.SequentialSampler(range(3)),
        "collate_fn": list,
        "timeout": 9,
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
        "in_order": False,
        "hooks": [Trace(str(tmp_path / "run.json"))],
        "on_error": mpiter.Skip(most=2),
    }
    # Torch's loader doesn't keep these arguments as they are in attributes.
    unlike = {"shuffle", "batch_sampler", "multiprocessing_context"}
    assert {*inspect.signature(Ours).parameters} - unlike <= {*vars(Ours([1, 2, 3]))}
    with (
        Ours([1, 2, 3], 2, num_workers=1, **told) as loader,
        made_anew(loader) as again,
    ):
        assert {name: getattr(again, name) for name in told} == told
        assert epoch(again) == [[1, 2], [3]]
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    "name", ["collate_fn", "num_workers", "worker_init_fn", "timeout", "pin_memory"]
)
def test_what_workers_have_got_is_refused_when_it_is_set_later_rather_than_ignored(
    name: str,
) -> None:
    loader = Ours([1, 2, 3], 2)
    setattr(loader, name, getattr(loader, name))
    with pytest.raises(
        mpiter.OptionError, match=f"{name} is fixed once the loader is made"
    ):
        setattr(loader, name, 3)
    # Torch itself refuses others.
    with pytest.raises(ValueError, match="sampler attribute should not be set"):
        loader.sampler = [1]


def test_a_library_that_looks_torchs_loader_up_gets_ours_in_its_place(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(data, "DataLoader", Ours)
    monkeypatch.setattr(data.dataloader, "DataLoader", Ours)

    class Librarys(data.DataLoader):  # type: ignore[name-defined,misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)

        def __iter__(self) -> Any:
            return iter(super().__iter__())

    for found in (data.DataLoader, data.dataloader.DataLoader, Librarys):
        loader = found(data.TensorDataset(torch.arange(6)), batch_size=2, num_workers=0)
        assert isinstance(loader, data.DataLoader)
        assert isinstance(loader, Theirs)
        assert [x.tolist() for (x,) in loader] == [[0, 1], [2, 3], [4, 5]]
        assert [x.tolist() for (x,) in Theirs(loader.dataset, 3)] == [
            [0, 1, 2],
            [3, 4, 5],
        ]


class Again:
    """Goes through a sampler again and again, without end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


def endless(class_: Any) -> Any:
    """Derive a loader with one iterator for all epochs, as several libraries do."""

    class Endless(class_):  # type: ignore[misc]
        """Replaces its sampler without the check that torch makes."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return Endless


def endless_unchecked(class_: Any) -> Any:
    """Derive such a loader with torch's check switched off.

    It also loads samples one by one.
    """

    class Endless(class_):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._DataLoader__initialized = False
            name = "sampler" if self.batch_sampler is None else "batch_sampler"
            setattr(self, name, Again(getattr(self, name)))
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len((self.batch_sampler or self.sampler).sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

    return Endless


@pytest.mark.parametrize("derived", [endless, endless_unchecked])
def test_a_sampler_that_a_subclass_has_replaced_is_used(derived: Any) -> None:
    for options in (
        {"batch_size": 4},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": 5, "collate_fn": list},
    ):
        seen = []
        for class_, more in (
            (Theirs, {}),
            (Ours, {}),
            (Ours, {"num_workers": 2, "backend": "thread"}),
        ):
            loader = derived(class_)(
                range(LENGTH), shuffle=True, generator=generator(), **options, **more
            )
            seen.append((len(loader), [epoch(loader) for _ in range(3)]))
            assert class_ is Theirs or loader.close() is None
        assert seen[1:] == [seen[0]] * 2


def test_an_endless_sampler_that_a_subclass_has_put_in_place_goes_on_from_a_state() -> (
    None
):
    def loader() -> Any:
        return endless(Ours)(range(LENGTH), 4, shuffle=True, generator=generator())

    first = loader()
    other = loader()
    epoch(first)
    some(first.iterator, 2)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    other.reset()
    assert epoch(other) == epoch(first)


class ThreeTimes(Ours):  # type: ignore[type-arg]
    """Goes through its samples three times an epoch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keys = [*range(10)] * 3
        other = data.BatchSampler(keys, 4, False)
        object.__setattr__(self, "batch_sampler", other)


def three_times_within() -> Any:
    loader = Ours(range(10), 4)
    loader.batch_sampler.sampler = [*range(10)] * 3
    return loader


@pytest.mark.parametrize(
    "make", [lambda: ThreeTimes(range(10), 4), three_times_within], ids=["whole", "in"]
)
def test_states_go_beyond_the_dataset_where_another_sampler_was_put_in_place(
    make: Any,
) -> None:
    first = make()
    iterator = iter(first)
    some(iterator, 5)
    other = make()
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    left = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch.tolist() for batch in iterator] == left
    assert epoch(other) == left


def test_samples_one_by_one_come_from_a_replaced_sampler() -> None:
    def endless(class_: Any) -> Any:
        make = endless_unchecked(class_)
        return make(range(LENGTH), None, shuffle=True, generator=generator())

    theirs = endless(Theirs)
    ours = endless(Ours)
    assert [epoch(ours) for _ in range(3)] == [epoch(theirs) for _ in range(3)]


# -- errors of collating ---------------------------------------------------------------


class Uneven(data.Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3 if index == 6 else 2)

    def __len__(self) -> int:
        return 8


def _refuses(samples: Any) -> Any:
    raise KeyError("label")


@pytest.mark.parametrize(("workers", "batched"), [(0, False), (1, True)])
def test_an_error_of_collating_names_the_samples(workers: int, batched: bool) -> None:
    order: dict[str, Any] = {"batch_size": 3, "sampler": [7, 6, 5]}
    if batched:
        order = {"batch_sampler": [[7, 6, 5]]}
    with (
        Ours(Uneven(), num_workers=workers, **order) as loader,
        pytest.raises(RuntimeError, match="equal size") as raised,
    ):
        list(loader)
    notes = "\n".join(raised.value.__notes__)
    assert "sample 7 in row 0; dataset[7] repeats it" in notes
    assert "sample 6 in row 1; dataset[6] repeats it" in notes
    with (
        Ours(Uneven(), num_workers=workers, collate_fn=_refuses, **order) as loader,
        pytest.raises(KeyError, match="label") as others,
    ):
        list(loader)
    assert "[dataset[i] for i in [7, 6, 5]]" in "\n".join(others.value.__notes__)
