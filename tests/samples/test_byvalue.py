"""Classes that nobody can import by name, as samples, exceptions and parts of datasets: the caller's own again."""

import dataclasses
import pickle
from collections import namedtuple

import numpy as np
import pytest
from scripts import METHODS, run

import mpiter
from mpiter.datasets.ship import by_value

every_method = pytest.mark.parametrize("method", METHODS)


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


class Hidden:
    """Samples of classes that aren't where their names say."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        renamed = Other()
        renamed.index = index
        return Outer.Point(index, 2), Outer.Inner.Pair(index), renamed


class Local:
    """Samples of classes that are nowhere: made in a function."""

    def __init__(self):
        class Thing:
            __slots__ = ("index",)

        self.thing, self.point = Thing, namedtuple("Point", "a")

    def __len__(self):
        return 4

    def __getitem__(self, index):
        thing = self.thing()
        thing.index = index
        return thing, self.point(index)


def samples(dataset, method):
    with mpiter.MultiprocessIterator(
        dataset, 2, repeat=False, shuffle=False, n_processes=2, backend=mpiter.Process(method)
    ) as it:
        return [sample for batch in it for sample in batch]


@pytest.mark.slow
@every_method
def test_classes_within_classes_and_under_other_names_come_back_as_the_callers(method):
    found = samples(Hidden(), method)
    assert [[type(part) for part in sample] for sample in found] == [[Outer.Point, Outer.Inner.Pair, Other]] * 4
    assert [(point.a, pair.a, other.index) for point, pair, other in found] == [(i, i, i) for i in range(4)]


@pytest.mark.slow
@every_method
def test_classes_made_in_a_function_come_back_as_the_callers(method):
    dataset = Local()
    found = samples(dataset, method)
    assert [[type(part) for part in sample] for sample in found] == [[dataset.thing, dataset.point]] * 4
    assert [(thing.index, point.a) for thing, point in found] == [(i, i) for i in range(4)]


class MadeThere:
    """Samples of a class that each worker makes for itself."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return dataclasses.make_dataclass("Made", [("index", int)])(index)


@every_method
def test_a_class_that_only_a_worker_knows_arrives_by_value(method):
    assert [(type(made).__name__, made.index) for made in samples(MadeThere(), method)] == [
        ("Made", i) for i in range(4)
    ]


def test_a_default_loader_stacks_namedtuples_of_a_class_body():
    class Points:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return Outer.Point(np.full(2, index), index)

    with mpiter.DataLoader(Points(), 2, num_workers=1) as loader:
        batches = list(loader)
    assert [type(batch) for batch in batches] == [Outer.Point] * 2
    assert [batch.b.tolist() for batch in batches] == [[0, 1], [2, 3]]


class Views:
    """A memoryview in the dataset, and one in each sample."""

    def __init__(self):
        self.numbers = memoryview(bytearray(np.arange(12, dtype=np.int32).tobytes())).cast("i", (3, 4))

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.numbers[index, 1], memoryview(np.arange(index + 1, dtype=np.uint16))


@every_method
def test_a_memoryview_stays_one(method):
    found = samples(Views(), method)
    assert [number for number, _ in found] == [1, 5, 9]
    assert [(type(view), view.format, view.tolist()) for _, view in found] == [
        (memoryview, "H", list(range(index + 1))) for index in range(3)
    ]


SCRIPT = """
    import multiprocessing, sys
    from collections import namedtuple
    from dataclasses import dataclass

    import numpy as np
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

    @dataclass(slots=True)
    class Item:
        index: int
        name: str = "x"

    @dataclass(slots=True, frozen=True)
    class Frozen:
        index: int

    Pair = namedtuple("Pair", "image index")
    KINDS = [Slots, More, Open, Item, Frozen, Pair]

    class Refused(Exception):
        pass

    def made(kind, index):
        if kind is Pair:
            return Pair(np.full(2, index), index)
        thing = kind(index)
        if kind is More:
            thing.more = index
        return thing

    class Things:
        def __init__(self, transform=None):
            self.transform, self.started = transform, False
        def worker_init(self, info):
            self.started = True
        def __len__(self):
            return 4
        def __getitem__(self, index):
            assert self.started
            if self.transform is None and index == 2:
                raise Refused(index)
            return [made(kind, self.transform(index) if self.transform else index) for kind in KINDS]

    def doubled(index):
        return 2 * index

    def images(samples):
        return Pair(np.stack([sample[-1].image for sample in samples]), [sample[-1].index for sample in samples])

    def greet(worker):
        assert worker in (0, 1)

    def train(methods):
        for method in methods:
            options = dict(repeat=False, shuffle=False, n_processes=2, backend=mpiter.Process(method))
            with mpiter.MultiprocessIterator(Things(doubled), 2, **options) as it:
                found = [sample for batch in it for sample in batch]
            for at, kind in enumerate(KINDS):
                assert [type(sample[at]) for sample in found] == [kind] * 4, (method, kind, found)
                assert [sample[at].index for sample in found] == [0, 2, 4, 6]
                assert kind in (Open, Pair) or not hasattr(found[0][at], "__dict__")
                assert not issubclass(kind, Slots) or found[1][at].hidden() == 2
            with mpiter.DataLoader(Things(doubled), 2, num_workers=2, collate_fn=images, worker_init_fn=greet,
                                   multiprocessing_context=method) as loader:
                assert [(type(batch), batch.index) for batch in loader] == [(Pair, [0, 2]), (Pair, [4, 6])]
            with mpiter.MultiprocessIterator(Things(), 2, **options) as it:
                next(it)
                try:
                    next(it)
                except Refused as error:
                    assert error.args == (2,)
                else:
                    raise AssertionError("nobody refused")

    def main(outer, methods):
        if not outer:
            return train(methods)
        context = multiprocessing.get_context(outer[0])
        child = context.Process(target=main, args=(outer[1:], methods))
        child.start()
        child.join()
        sys.exit(child.exitcode)

    if __name__ == "__main__":
        main(sys.argv[1].split(), sys.argv[2].split())
"""


@pytest.mark.slow
@pytest.mark.parametrize("outer", ["", "forkserver", "spawn spawn", "fork spawn"])
def test_what_a_script_defines_works_wherever_the_script_runs(tmp_path, outer):
    """Outer processes as ``torch.multiprocessing.spawn`` starts them: the script is ``__mp_main__`` there."""
    run(tmp_path, SCRIPT, outer, " ".join(METHODS)).ended_well()


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
    loader = mpiter.DataLoader(dataset, 1, num_workers=1, collate_fn=list, multiprocessing_context=sys.argv[1])
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


@every_method
def test_what_workers_cannot_import_goes_by_value_and_what_only_seems_so_by_name(tmp_path, method):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "of_a_plugin.py").write_text(OF_A_PLUGIN)
    assert run(tmp_path, BY_HAND, method).ended_well().lines == ["3 7 7 True", "4 7 7 True"]


def test_code_that_goes_by_value_knows_its_file_so_that_tracebacks_name_it_and_show_its_lines():
    def outer():
        return lambda: 1 / 0

    again = pickle.loads(by_value(outer))
    assert again is not outer
    assert again.__code__.co_filename == again().__code__.co_filename == __file__
