"""Classes that can't be imported by name come back as the caller's own classes.

They are those of samples, exceptions and parts of datasets.
"""

import dataclasses
import pickle
import shutil
from collections import namedtuple
from pathlib import Path

import class_kinds
import imported_bases
import numpy as np
import pytest
from scripts import run

import mpiter
from mpiter.datasets.ship import by_value

either_method = pytest.mark.parametrize("method", ["fork", "forkserver"])


class Outer:
    Point = namedtuple("Point", "a b")

    class Inner:
        @dataclasses.dataclass
        class Pair:
            a: int


class Renamed:
    pass


Other = Renamed
Renamed.__name__ = Renamed.__qualname__ = "Gone"


class Odd:
    """Samples of classes that can't be found by their names, or that a worker makes."""

    def __init__(self):
        class Thing:
            __slots__ = ("index",)

        self.thing = Thing
        self.point = namedtuple("Point", "a")
        self.numbers = memoryview(
            bytearray(np.arange(12, dtype=np.int32).tobytes())
        ).cast("i", (3, 4))

    def __len__(self):
        return 3

    def __getitem__(self, index):
        renamed = Other()
        thing = self.thing()
        renamed.index = thing.index = index
        made = type("Made", (), {"index": index})()
        views = (
            self.numbers[index, 1],
            memoryview(np.arange(index + 1, dtype=np.uint16)),
        )
        points = (
            Outer.Point(np.full(2, index), 2),
            Outer.Inner.Pair(index),
            self.point(index),
        )
        return *points, renamed, thing, made, *views


@either_method
def test_classes_come_back_as_the_callers_and_what_only_a_worker_knows_by_value(method):
    dataset = Odd()
    backend = mpiter.Process(method)
    with mpiter.MultiprocessIterator(
        dataset, 2, repeat=False, shuffle=False, n_processes=2, backend=backend
    ) as it:
        found = [sample for batch in it for sample in batch]
    for index, (outer, pair, point, renamed, thing, made, number, view) in enumerate(
        found
    ):
        assert [*map(type, (outer, pair, point))] == [
            Outer.Point,
            Outer.Inner.Pair,
            dataset.point,
        ]
        assert [*map(type, (renamed, thing))] == [Other, dataset.thing]
        assert type(made).__name__ == "Made"
        values = *outer.a, pair.a, point.a, renamed.index, thing.index, made.index
        assert [*values] == [index] * 7
        assert number == 4 * index + 1
        assert (type(view), view.format, view.tolist()) == (
            memoryview,
            "H",
            list(range(index + 1)),
        )
    assert len(found) == 3


SCRIPT = """
    import multiprocessing, sys
    from collections import namedtuple
    from dataclasses import dataclass

    import mpiter

    class Slots:
        __slots__ = ("index", "__hidden", "__weakref__")
        def __init__(self, index):
            self.index = self.__hidden = index
        def hidden(self):
            return self.__hidden

    class More(Slots):
        __slots__ = "more"

    class Open(Slots):
        pass

    @dataclass(slots=True, frozen=True)
    class Frozen:
        index: int

    Pair = namedtuple("Pair", "index name")
    KINDS = [Slots, More, Open, Frozen, Pair]

    class Refused(Exception):
        pass

    def made(index):
        return [kind(index) for kind in KINDS[:-1]] + [Pair(index, "a")]

    def doubled(index):
        return 2 * index

    class Things:
        def __init__(self, transform):
            self.transform = transform
            self.packed = mpiter.Packed(map(made, range(0, 8, 2)))
        def worker_init(self, info):
            self.is_open = True
        def __len__(self):
            return 5
        def __getitem__(self, index):
            assert self.is_open
            if index == 4:
                raise Refused(index)
            return made(self.transform(index)) + self.packed[index]

    def main(outer, method):
        if outer:
            context = multiprocessing.get_context(outer[0])
            child = context.Process(target=main, args=(outer[1:], method))
            child.start()
            child.join()
            sys.exit(child.exitcode)
        backend, method = mpiter.Process(method), Slots.hidden
        with mpiter.MultiprocessIterator(
            Things(doubled), 2, shuffle=False, n_processes=2, backend=backend
        ) as it:
            found = [*next(it), *next(it)]
            try:
                next(it)
            except Refused as error:
                assert error.args == (4,)
            else:
                raise AssertionError("it wasn't refused")
        assert Slots.hidden is method  # no copy of the class has taken its place
        for at, kind in enumerate(KINDS * 2):
            assert [type(sample[at]) for sample in found] == [kind] * 4, (kind, found)
            assert [sample[at].index for sample in found] == [0, 2, 4, 6]
            assert kind in (Open, Pair) or not hasattr(found[0][at], "__dict__")
            assert not issubclass(kind, Slots) or found[1][at].hidden() == 2

    if __name__ == "__main__":
        main(sys.argv[1].split(), sys.argv[2])
"""


@pytest.mark.parametrize(
    ("outer", "method"), [("", "forkserver"), ("fork spawn", "forkserver")]
)
def test_what_a_script_defines_works_wherever_the_script_runs(tmp_path, outer, method):
    """In processes that ``torch.multiprocessing.spawn`` starts, it is ``__mp_main__``.

    ``outer`` names the start methods of such processes, from the outermost on.
    """
    run(tmp_path, SCRIPT, outer, method).ended_well()


def test_a_class_of_every_kind_is_in_workers_what_it_is_in_forked_ones(tmp_path):
    """The classes are those of the table ``class_kinds.ROWS``."""
    table = Path(class_kinds.__file__).read_text()
    shutil.copy(imported_bases.__file__, tmp_path)
    assert run(tmp_path, table, "forkserver").ended_well().lines == []


REFUSED = """
    import enum, sys
    import __main__ as script
    import mpiter

    class Unit(bytes, enum.Enum):
        KM = (1, "km")

        def __new__(cls, value, label):
            made = bytes.__new__(cls, [value])
            made._value_, made.label = value, label
            return made

    class Missing:
        def __reduce__(self):
            return "MISSING"

    MISSING, SIZE = Missing(), 3

    def shows():
        return bytes(Unit.KM), Unit.KM.label
    def knows():
        return script.SIZE
    def holds():
        return isinstance(MISSING, Missing)

    class Calls:
        def __init__(self, function):
            self.function = function
        def __len__(self):
            return 1
        def __getitem__(self, index):
            return self.function()

    backend = mpiter.Process("forkserver")
    for function in (shows, knows, holds):
        it = mpiter.MultiprocessIterator(
            Calls(function), 1, n_processes=1, backend=backend
        )
        try:
            it.next()
        except mpiter.errors.DatasetNotPicklable as error:
            print(str(error).partition(". ")[0])
    with mpiter.MultiprocessIterator(Calls(knows), 1, n_processes=1) as it:
        print(next(it))
"""


def test_workers_are_forked_if_packing_finds_what_they_could_not_look_up_in_the_script(
    tmp_path,
):
    outcome = run(tmp_path, REFUSED)
    assert (outcome.code, len(outcome.lines), outcome.lines[-1]) == (0, 4, "[3]")
    for line, part, reason in zip(
        outcome.lines,
        ("Unit", "script (module)", "MISSING (Missing)"),
        (
            "the bytes that each of its members is cannot be made again from its value",
            "it is the script, which workers do not import",
            "it is known as MISSING of __main__, which workers do not import",
        ),
        strict=False,
    ):
        assert line.startswith(f"dataset.function:{part}")
        assert line.endswith(f" cannot be pickled: {reason}")
    assert "which workers do not import" in outcome.err


BY_HAND = """
import importlib.util, sys, types
import numpy as np
import mpiter

def loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def made(name, source):
    sys.modules[name] = module = types.ModuleType(name)
    exec(source, vars(module))
    return module

class Holds:
    def __init__(self, *parts):
        self.parts = parts

    def __len__(self):
        return 2

    def __getitem__(self, index):
        row, first, second = self.parts
        return row.rows[index].a, first[index], second[index]

class Rows:
    def __init__(self):
        self.rows = np.rec.array([(3, 2.0), (4, 2.0)], dtype=[("a", "i4"), ("b", "f4")])

if __name__ == "__main__":
    source = open("hidden/of_a_plugin.py").read()
    modules = loaded("a_plugin", "hidden/of_a_plugin.py"), made("made_up", source)
    for module in modules:
        module.SIZE = 7
    dataset = Holds(Rows(), *(module.Sizes() for module in modules))
    loader = mpiter.DataLoader(
        dataset, 1, num_workers=1, collate_fn=list, multiprocessing_context=sys.argv[1]
    )
    for ((a, first, second),) in loader:
        kinds = [type(made) for _, made in (first, second)]
        print(a, first[0], second[0], kinds == [module.Made for module in modules])
"""

OF_A_PLUGIN = """
SIZE = 1

class Made:
    pass

class Sizes:
    def __getitem__(self, index):
        return SIZE, Made()
"""


@either_method
def test_what_workers_cannot_import_goes_by_value_and_what_only_seems_so_by_name(
    tmp_path, method
):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "of_a_plugin.py").write_text(OF_A_PLUGIN)
    assert run(tmp_path, BY_HAND, method).ended_well().lines == [
        "3 7 7 True",
        "4 7 7 True",
    ]


def test_code_by_value_knows_its_file_so_that_tracebacks_name_it_and_show_its_lines():
    def outer():
        return lambda: 1 / 0

    again = pickle.loads(by_value(outer))
    assert again is not outer
    assert again.__code__.co_filename == again().__code__.co_filename == __file__
