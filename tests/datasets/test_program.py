"""What a program has set its workers see: each cell of the table in docs/datasets.md; what differs is told."""

import argparse
import configparser
import copy
import enum
import functools
import json
import logging
import re
import sqlite3
import sys
import types
from collections import defaultdict, deque
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scripts import METHODS, run

import mpiter
from mpiter.datasets import parts, plain, program, putting, reach, ship, variables

pytestmark = pytest.mark.slow  # this Python shows it; the further ones are spared

CONFIG = """
import argparse, dataclasses, re, threading
SIZE = 32
WIDTHS = [1, 2]
OPTIONS = {"lr": 1.0, "act": print}
ARGS = argparse.Namespace(size=1)
LATER = None
lock = threading.Lock()

class Defaults:
    depth = 3
    class Train:
        rate = 0.1

@dataclasses.dataclass(slots=True)
class Slotted:
    size: int

SLOTTED, PATTERN = Slotted(1), re.compile("a")

def schedule():
    return schedule.decay
schedule.decay = 1

class Holder:
    def __init__(self):
        self.lock, self.rate = threading.Lock(), 1

HOLDER = Holder()
"""

HELPER = """
from config import ARGS, HOLDER, OPTIONS, SIZE, SLOTTED, WIDTHS
import config

def seen():
    return {
        "a number in a module": config.SIZE,
        "a list in a module": [list(WIDTHS), WIDTHS is config.WIDTHS],
        "a dict in a module": [OPTIONS["lr"], OPTIONS is config.OPTIONS],
        "a namespace in a module": [ARGS.size, ARGS is config.ARGS],
        "what was None at first": config.LATER and config.LATER.size,
        "an object's attribute": [HOLDER.rate, HOLDER is config.HOLDER],
        "an attribute in a slot": [SLOTTED.size, SLOTTED is config.SLOTTED],
        "a class's attribute": [config.Defaults.depth, config.Defaults.Train.rate],
        "a function's attribute": config.schedule(),
        "a compiled expression": config.PATTERN.pattern,
    }
"""

SCRIPT = """
    import argparse, csv, decimal, importlib.util, json, locale, os, socket, sys, time

    import numpy as np
    import PIL.Image
    import PIL.ImageFile

    import config
    import helper
    import lazily

    HAS = {name: importlib.util.find_spec(name) is not None for name in ("torch", "jax", "chainer")}
    GREETING = "good morning"

    def the_chainer():
        if int(np.__version__.partition(".")[0]) >= 2 or sys.version_info >= (3, 12):
            import mpiter.chainer_compat
        import chainer
        return chainer

    def umask():
        mask = os.umask(0)
        os.umask(mask)
        return mask

    def change():
        global GREETING
        GREETING = "good evening"
        config.SIZE = 64
        config.WIDTHS.append(3)
        config.OPTIONS["lr"] = 0.5
        config.ARGS.size = 9
        config.LATER = argparse.Namespace(size=5)
        config.HOLDER.rate = 7
        config.SLOTTED.size = 6
        config.Defaults.depth = 11
        config.Defaults.Train.rate = 0.2
        config.schedule.decay = 2
        config.PATTERN = __import__("re").compile("b")
        lazily.VALUE = 2
        os.environ.update(TZ="Asia/Tokyo", GREETING="good evening")
        time.tzset()
        os.chdir("..")
        os.umask(0o027)
        sys.setrecursionlimit(4321)
        sys.set_int_max_str_digits(5000)
        locale.setlocale(locale.LC_CTYPE, "C")
        decimal.getcontext().prec = 9
        csv.field_size_limit(10**9)
        socket.setdefaulttimeout(3.5)
        np.seterr(divide="raise")
        np.set_printoptions(precision=2)
        PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True
        PIL.Image.MAX_IMAGE_PIXELS = None
        if HAS["torch"]:
            import torch
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.set_float32_matmul_precision("medium")
            torch.set_grad_enabled(False)
        if HAS["jax"]:
            import jax
            jax.config.update("jax_enable_x64", True)
        if HAS["chainer"]:
            the_chainer().global_config.dtype = np.float16

    def seen():
        import lazily
        found = {
            "a variable of the script": GREETING,
            "a module imported late": lazily.VALUE,
            "`os.environ`": os.environ.get("GREETING"),
            "`os.chdir`": os.getcwd(),
            "`os.umask`": umask(),
            "`time.tzset`": time.strftime("%H %Z", time.localtime(0)),
            "`sys.setrecursionlimit`": sys.getrecursionlimit(),
            "`sys.set_int_max_str_digits`": sys.get_int_max_str_digits(),
            "`locale.setlocale`": locale.setlocale(locale.LC_CTYPE),
            "`decimal.getcontext`": str(decimal.Decimal(1) / 3),
            "`csv.field_size_limit`": csv.field_size_limit(),
            "`socket.setdefaulttimeout`": socket.getdefaulttimeout(),
            "`np.seterr`": np.geterr(),
            "`np.set_printoptions`": str(np.array([1 / 3])),
            "`PIL.ImageFile.LOAD_TRUNCATED_IMAGES`": PIL.ImageFile.LOAD_TRUNCATED_IMAGES,
            "`PIL.Image.MAX_IMAGE_PIXELS`": PIL.Image.MAX_IMAGE_PIXELS,
        }
        if HAS["torch"]:
            import torch
            found["`torch.set_default_dtype`"] = str(torch.zeros(1).dtype)
            found["`torch.use_deterministic_algorithms`"] = [
                torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
            ]
            found["`torch.set_float32_matmul_precision`"] = torch.get_float32_matmul_precision()
            found["`torch.set_grad_enabled`"] = torch.is_grad_enabled()
        if HAS["jax"]:
            import jax
            found["`jax.config`"] = jax.config.jax_enable_x64
        if HAS["chainer"]:
            found["`chainer.config`"] = str(np.dtype(the_chainer().get_dtype()))
        return {**found, **helper.seen()}

    class Looks:
        def __len__(self):
            return 1
        def __getitem__(self, index):
            return json.dumps(seen())

    def main(library, method):
        before = seen()
        change()
        if library == "torch":
            from torch.utils.data import DataLoader
            loader = DataLoader(Looks(), 1, num_workers=1, multiprocessing_context=method)
        else:
            from mpiter import DataLoader
            loader = DataLoader(Looks(), 1, num_workers=1, multiprocessing_context=method)
        (batch,) = loader
        here, there = seen(), json.loads(batch[0])
        same = {name: here[name] == there[name] for name in here}
        changed = [name for name in here if here[name] != before[name]]
        print(json.dumps([same, changed]))

    if __name__ == "__main__":
        main(*sys.argv[1:])
"""

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"
COLUMNS = [(library, method) for library in ("mpiter", "torch") for method in METHODS]


def table():
    """The page's: for each setting, what each column says."""
    rows = re.findall(r"^\| (.+?) \| ((?:[✓–] \| ){5}[✓–]) \|$", PAGE.read_text(), re.M)
    return {name: dict(zip(COLUMNS, (mark == "✓" for mark in marks.split(" | ")), strict=True)) for name, marks in rows}


@functools.cache
def looked(library, method, folder):
    folder.mkdir()
    (folder / "config.py").write_text(CONFIG)
    (folder / "helper.py").write_text(HELPER)
    (folder / "lazily.py").write_text("VALUE = 1\n")
    outcome = run(folder, SCRIPT, library, method, PYTHONWARNINGS="ignore")
    assert (outcome.code, outcome.left_running) == (0, []), outcome
    return json.loads(outcome.lines[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("program")


def told(library, method, folder):
    same, changed = looked(library, method, folder / f"{library}-{method}")
    assert set(same) == set(changed), "something is looked at that the program has not changed"
    return same


def agrees_with_the_page(same, library, method):
    said = {name: columns[library, method] for name, columns in table().items() if name in same}
    assert said == same


@pytest.mark.parametrize("method", METHODS)
def test_what_a_program_has_set_its_workers_see(method, folder):
    same = told("mpiter", method, folder)
    assert all(same.values()), same
    agrees_with_the_page(same, "mpiter", method)


@pytest.mark.torch
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", ["mpiter", "torch"])
def test_the_page_tells_what_torchs_loader_and_ours_do(library, method, folder):
    pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    agrees_with_the_page(told(library, method, folder), library, method)


class ImportsTorch:
    """Says what has been imported beside it."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        import torch

        return "torch._inductor" in sys.modules, torch.__name__ in sys.modules


@pytest.mark.torch
def test_what_is_set_already_is_not_set_again():
    """torch imports a great deal, for many seconds, if it is only told to be no more deterministic than it was."""
    pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    with mpiter.MultiprocessIterator(ImportsTorch(), 1, n_processes=1, backend=mpiter.Process("spawn")) as it:
        assert next(it) == [(False, True)]


DIFFERS = """
    import sys, threading
    import config
    import mpiter

    class Tokenizer:
        pass

    class Uses:
        def __len__(self):
            return 2
        def __getitem__(self, index):
            return str(self.tokens())
        def tokens(self):
            return [config.LATER is None, config.lock.locked()]

    class Ignores:
        def __len__(self):
            return 2
        def __getitem__(self, index):
            return str(self.tokens())
        def tokens(self):
            return config.SIZE

    if __name__ == "__main__":
        config.LATER = Tokenizer()
        config.SIZE = 5
        backend = mpiter.Process(sys.argv[2])
        dataset = globals()[sys.argv[1]]()
        with mpiter.MultiprocessIterator(dataset, 2, repeat=False, n_processes=2, backend=backend) as it:
            print(next(it))
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_travel_is_told_once_where_the_dataset_can_come_upon_it(tmp_path, method):
    (tmp_path / "config.py").write_text(CONFIG)
    outcome = run(tmp_path, DIFFERS, "Uses", method)
    if method == "fork":
        assert outcome.ended_well().lines == ["['[False, False]', '[False, False]']"]
        return
    assert (outcome.code, outcome.left_running) == (0, [])
    assert outcome.lines == ["['[True, False]', '[True, False]']"]
    assert outcome.err.count("RuntimeWarning") == 1
    assert "config.LATER (__main__.Tokenizer in the program, None in its workers)" in outcome.err
    assert "config.lock" not in outcome.err
    assert "worker_init" in outcome.err
    assert "print(next(it))" in outcome.err, "the line of the program, not one of ours"


@pytest.mark.parametrize("method", METHODS)
def test_what_differs_is_not_told_where_the_dataset_has_nothing_to_do_with_it(tmp_path, method):
    (tmp_path / "config.py").write_text(CONFIG)
    assert run(tmp_path, DIFFERS, "Ignores", method).ended_well().lines == ["['5', '5']"]


# -- the pure parts --------------------------------------------------------------------------------------------------


def travelled(theirs, mine, own=()):
    """What becomes of ``mine`` in a worker when the caller has ``theirs``."""
    module = types.ModuleType("theirs")
    module.__dict__.update(theirs)
    here = types.ModuleType("mine")
    here.__dict__.update(mine)
    packed = variables.packed(variables.read(module, plain.Reader(own)))
    differing = [(where, how) for _, (where, how) in putting.Putting().into(vars(here), packed)]
    return {name: value for name, value in vars(here).items() if not name.startswith("__")}, differing


class Own:
    def __init__(self, **held):
        self.__dict__.update(held)


class Pair(NamedTuple):
    left: int
    right: object = None


class Names(list):
    pass


class Name(str):
    pass


@dataclass(slots=True, frozen=True)
class Slotted:
    size: int
    others: object = None


@pytest.mark.parametrize("value", [1, True, 1.5, "a", b"a", None, (1, [2]), {1: {"a": {2}}}, range(3), frozenset([1])])
@pytest.mark.parametrize("mine", [None, 1, 1.0, [5], {"b": 1}, "a"])
def test_a_plain_value_is_the_callers_afterwards(value, mine):
    there, differing = travelled({"x": value}, {"x": mine})
    assert (there["x"], type(there["x"]), differing) == (value, type(value), [])


RARER = {
    "NamedTuple": Pair(1, [2]),
    "list of its own": Names([1, 2]),
    "string of its own": Name("a"),
    "regular expression": re.compile("a+", re.I),
    "deque": deque([1, 2], maxlen=3),
    "bytearray": bytearray(b"a"),
    "fraction": Fraction(1, 3),
    "partial": functools.partial(int, base=7),
    "slots": Slotted(2, [3]),
    "namespace": types.SimpleNamespace(size=3),
    "arguments": argparse.Namespace(size=3, later=[4]),
}


@pytest.mark.parametrize("mine", ["nothing", "another", "the same"])
@pytest.mark.parametrize("name", RARER)
def test_a_value_of_another_kind_is_the_callers_afterwards_too(name, mine):
    value = RARER[name]
    others = [Pair(2), Names([3]), Name("b"), re.compile("b"), deque([5]), bytearray(b"bc"), Fraction(1, 2)]
    others += [functools.partial(int, base=9), Slotted(5), types.SimpleNamespace(depth=1), argparse.Namespace(a=1)]
    mine = {"nothing": None, "another": dict(zip(RARER, others, strict=True))[name], "the same": copy.deepcopy(value)}[
        mine
    ]
    there, differing = travelled({"x": value, "again": value}, {"x": mine, "again": mine}, own={__name__})
    assert (repr(there["x"]), type(there["x"]), differing) == (repr(value), type(value), [])
    assert there["x"] is there["again"] or isinstance(value, (str, tuple, Fraction))


@pytest.mark.torch
def test_tensors_and_what_describes_them_are_the_callers_afterwards():
    torch = pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    theirs = {"kind": torch.float16, "device": torch.device("meta"), "size": torch.Size([3]), "mean": torch.ones(3)}
    mine = {"kind": torch.float32, "device": torch.device("cpu"), "size": torch.Size([1]), "mean": torch.zeros(3)}
    there, differing = travelled(
        {**theirs, "args": argparse.Namespace(device=torch.device("meta"), model=[iter(())])}, mine
    )
    assert there["mean"].tolist() == [1, 1, 1]
    assert {**there, "mean": theirs["mean"]} == theirs
    assert [name for name, _ in differing] == ["args"]
    large = torch.zeros(2 << 20)
    assert travelled({"x": large}, {"x": large.clone()})[1] == []
    assert travelled({"x": large}, {"x": large + 1})[1] == [
        ("x", "torch.Tensor in the program, another torch.Tensor in its workers")
    ]


@pytest.mark.parametrize("make", [list, tuple, bytes, np.array, lambda items: "".join(map(chr, items))])
def test_what_stays_at_home_is_looked_at_here_and_there(make):
    large = [n % 100 for n in range(2 << 20)]
    assert travelled({"x": make(large)}, {"x": make(large)})[1] == []
    ((name, how),) = travelled({"x": make(large)}, {"x": make([*large[1:], 1])})[1]
    assert (name, "another" in how) == ("x", True)


def outer_and_inner(lr, decay, momentum):
    class Outer:
        schedule = Own(decay=decay)

        class Train:
            rate = lr

    def step():
        return step.momentum

    Outer.__qualname__, Outer.Train.__qualname__, step.__qualname__ = "Outer", "Outer.Train", "step"
    Outer.__module__ = Outer.Train.__module__ = step.__module__ = "theirs"
    step.momentum = momentum
    return {"Outer": Outer, "step": step}


def test_of_classes_within_classes_and_of_functions_the_attributes_travel():
    theirs, mine = outer_and_inner(1, 2, 3), outer_and_inner(0.1, 0.2, 0.3)
    there, differing = travelled(theirs, mine, own={__name__})
    assert there["Outer"] is mine["Outer"]
    found = there["Outer"].Train.rate, there["Outer"].schedule.decay, there["step"].momentum
    assert (found, differing) == ((1, 2, 3), [])


def test_keys_that_are_gone_are_gone_from_what_holds_other_things_as_well():
    mine = {"a": 1, "act": print, "model": (model := iter(())), "old": 3, "worse": [iter(())]}
    there, differing = travelled({"x": {"a": 2, "act": print, "model": iter(())}}, {"x": mine})
    assert (there["x"] is mine, mine, differing) == (True, {"a": 2, "act": print, "model": model}, [])


def test_what_cannot_be_put_keeps_nothing_else_from_being_put():
    theirs = {"x": {"a": Own(lock=iter(())), "b": 2}}
    there, differing = travelled(theirs, {"x": {"a": 1, "b": 1}}, own={__name__})
    assert (there["x"]["b"], [name for name, _ in differing]) == (2, ["x['a']"])


class Color(enum.Enum):
    RED, GREEN = 1, 2


def test_an_enum_of_the_script_is_left_alone_and_told(monkeypatch):
    monkeypatch.setattr(Color, "__module__", "__main__")
    assert travelled({"x": Color.RED}, {"x": Color.RED})[1] == []
    there, differing = travelled({"x": Color.RED}, {"x": Color.GREEN})
    assert (there, len(differing), Color.GREEN.value) == ({"x": Color.GREEN}, 1, 2)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, {3}])
def test_containers_are_changed_in_place_so_that_every_name_shows_it(value):
    mine = type(value)()
    there, _ = travelled({"x": value}, {"x": mine})
    assert there["x"] is mine
    assert mine == value


@pytest.mark.parametrize("lock", [None, "another", iter(())])
def test_an_object_travels_whole_or_not_at_all(lock):
    """The index of a cache without what it points at would be worse than none."""
    mine, nested = Own(size=1, lock=lock, inner=(inner := Own(a=1))), inner
    theirs = Own(size=2, lock=iter(()), inner=Own(a=2), more=[3])
    there, differing = travelled({"x": theirs}, {"x": mine}, own={Own.__module__})
    assert there["x"] is mine
    assert mine.inner is nested
    if isinstance(lock, (str, type(None))):
        assert (mine.size, nested.a, [name for name, _ in differing]) == (1, 1, ["x.lock"])
    else:
        assert (vars(mine), nested.a, differing) == ({"size": 2, "lock": lock, "inner": nested, "more": [3]}, 2, [])


def test_what_was_one_object_at_first_and_is_two_by_now_is_not_put_together_of_what_is_missing():
    shared = Own(lock=iter(()), size=1)
    theirs = {"x": Own(first=Own(lock=iter(()), size=2), second=Own(lock=iter(()), size=3))}
    there, differing = travelled(theirs, {"x": Own(first=shared, second=shared)}, own={Own.__module__})
    assert [name for name, _ in differing] == ["x.second"]
    assert (there["x"].first, there["x"].second, shared.size) == (shared, shared, 1)


def test_what_refers_to_itself_and_what_others_classes_have_made_travels():
    parser, ring = configparser.ConfigParser(), Own(value=7)
    parser.read_dict({"a": {"b": "7"}})
    ring.next = Own(value=8, next=ring)
    rows = np.rec.array([(7,), (8,)], dtype=[("a", "i4")])
    theirs = {"parser": parser, "ring": ring, "objects": Own(held={Own(value=3)}), "rows": rows}
    theirs["lists"] = defaultdict(list, a=[1])
    for mine in ({}, {"parser": configparser.ConfigParser(), "objects": Own(held=set()), "lists": defaultdict(list)}):
        there, differing = travelled(theirs, mine, own={__name__})
        assert differing == []
        assert (there["parser"]["a"]["b"], there["ring"].next.value, there["rows"].a.tolist()) == ("7", 8, [7, 8])
        assert there["ring"].next.next is there["ring"] is not ring
        assert [held.value for held in there["objects"].held] == [3]
        assert (there["lists"], there["lists"]["new"]) == ({"a": [1], "new": []}, [])


def test_loggers_are_the_workers_own():
    theirs, mine = logging.Logger("theirs", level=30), logging.Logger("mine")
    there, differing = travelled({"x": theirs}, {"x": mine})
    assert (there["x"], mine.name, differing) == (mine, "mine", [])


def test_what_does_not_travel_is_told_if_it_is_of_another_kind_or_length():
    large = list(range(plain._MOST_PARTS + 1))
    same = {"a": large, "b": iter(()), "c": [iter(())]}
    assert travelled(same, dict(same))[1] == []
    _, differing = travelled(same, {"a": [], "b": None, "c": []})
    assert [name for name, _ in differing] == ["a", "b", "c[0]"]


def test_modules_and_a_modules_own_functions_are_no_variables():
    module = types.ModuleType(__name__)
    module.__dict__.update(f=print, sys=sys, opens_it=opens_it, __path__=[], lost=lambda: 1)
    found = variables.read(module, plain.Reader())
    assert found.pop("lost").kind == "builtins:function"
    assert found == {"f": print}


def reached(value, *own):
    """From a dataset that holds this."""
    modules = reach.Modules({name: sys.modules[name] for name in own})
    return reach.reached_from(ship._packed(value, by_value=True)[2], modules)


def helper_that_names_it():
    return plain.DEEPEST


class Reaches:
    def __init__(self, transform=None):
        self.transform = transform

    def __getitem__(self, index):
        return [helper_that_names_it() for _ in range(2)]


@pytest.mark.parametrize("value", [Reaches(), [Reaches()], Reaches([Reaches()]), lambda: helper_that_names_it()])
def test_what_code_names_is_reached_by_way_of_functions_classes_and_modules(value):
    named = reached(value, __name__, "mpiter.datasets.plain").named
    assert ("mpiter.datasets.plain", "DEEPEST") in named
    assert ("mpiter.datasets.plain", "_MOST_BYTES") not in named


# -- what strangers' programs have shown -----------------------------------------------------------------------------

REGISTRY = """
ITEMS, ORDER = {}, []

def register(name, item):
    if name in ITEMS:
        raise KeyError(f"{name} is already registered")
    ITEMS[name] = item
    ORDER.append(name)
    return len(ORDER)
"""

PLUGIN = """
import config, registry
FIRST, SECOND = registry.register("first", {"root": 1}), registry.register("second", {"root": 2})

def width(size=config.SIZE):
    return size

class Reads:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        found = [registry.ITEMS, registry.ORDER, FIRST, SECOND, width(), config.SIZE, config.OPTIONS["lr"]]
        return repr([*found, config.WIDTHS, config.DEFAULT, config.KIND.__name__, config.KIND.scale, config.Slow.scale])
"""

ALIASES = """
    import sys
    import config
    import mpiter
    import plugin

    if __name__ == "__main__":
        config.SIZE = 64
        config.WIDTHS = [7]
        config.KIND = config.Fast
        backend = "serial" if sys.argv[1] == "serial" else mpiter.Process(sys.argv[1])
        with mpiter.MultiprocessIterator(plugin.Reads(), 2, repeat=False, n_processes=1, backend=backend) as it:
            print(next(it)[0])
"""

CLASSES = """
class Slow:
    scale = 1

class Fast:
    scale = 100

KIND = Slow
DEFAULT = WIDTHS
"""


@pytest.mark.parametrize("method", METHODS)
def test_modules_begin_with_each_others_first_values_and_names_share_what_they_shared(tmp_path, method):
    (tmp_path / "config.py").write_text(CONFIG + CLASSES)
    (tmp_path / "registry.py").write_text(REGISTRY)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    expected = run(tmp_path, ALIASES, "serial").ended_well().lines
    assert "1, 2, 32, 64, 1.0, [7], [1, 2], 'Fast', 100, 1]" in expected[0]
    assert run(tmp_path, ALIASES, method).ended_well().lines == expected


BY_IMPORT = """
    import sys, threading
    import mpiter

    lock, SIZE = threading.Lock(), 32

    class Options:
        depth = 3
        def __init__(self):
            self.rate = 1

    OPTIONS = Options()

    class Uses:
        def __len__(self):
            return 2
        def __getitem__(self, index):
            with lock:
                return SIZE, OPTIONS.rate, Options.depth

    if __name__ == "__main__":
        SIZE, OPTIONS.rate, Options.depth = 64, 2, 5
        backend = mpiter.Process(sys.argv[1])
        with mpiter.MultiprocessIterator(Uses(), 2, repeat=False, n_processes=1, backend=backend) as it:
            print(next(it))
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_variables_of_a_script_that_workers_import_are_its_own(tmp_path, method):
    assert run(tmp_path, BY_IMPORT, method).ended_well().lines == ["[(64, 2, 5), (64, 2, 5)]"]


EPOCHS = """
    import config, other
    import mpiter

    if __name__ == "__main__":
        loader = mpiter.DataLoader(other.Sizes(), 2, num_workers=1)
        workers = set()
        for epoch in range(3):
            config.SIZE, config.WIDTHS[0] = 10 + epoch // 2, epoch  # the second is nothing to the dataset
            print(*(batch.tolist() for batch in loader))
            workers |= set(loader.worker_pids)
        print(len(workers))
"""

OTHER = """
import config

class Sizes:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return config.SIZE
"""


def test_a_loader_sees_at_its_next_epoch_what_its_dataset_names(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "other.py").write_text(OTHER)
    assert run(tmp_path, EPOCHS).ended_well().lines == ["[10, 10]", "[10, 10]", "[11, 11]", "2"]


def test_a_variable_is_looked_at_without_asking_it_and_within_bounds():
    class Proxy:
        def __getattr__(self, name):
            raise AssertionError(f"asked for {name}")

        def __call__(self):
            raise AssertionError("called")

    module = types.ModuleType("theirs")
    module.proxy, module.cache, module.fine = Proxy(), {n: bytes(1 << 19) for n in range(40)}, 1
    found = variables.read(module, plain.Reader({__name__}))
    assert found["fine"] == 1
    assert sum(map(len, variables.packed(found).values())) < 2 << 20


def opens_it():
    global _opened
    if _opened is None:
        _opened = object()
    return _opened, plain.DEEPEST


_opened = None


def test_what_the_code_looks_at_and_sets_itself_may_be_opened_on_first_use():
    found = reached(opens_it, __name__, "mpiter.datasets.plain")
    assert {(__name__, "_opened"), ("mpiter.datasets.plain", "DEEPEST")} <= found.named
    assert "_opened" in found.opened
    assert "DEEPEST" not in found.opened


@functools.wraps(opens_it)
def wrapped():
    import mpiter.datasets.reach

    return mpiter.datasets.reach._MOST


@pytest.mark.parametrize("name", [("mpiter.datasets.plain", "DEEPEST"), ("mpiter.datasets.reach", "_MOST")])
def test_wrapped_functions_and_imports_within_functions_are_followed(name):
    assert name in reached(wrapped, __name__, "mpiter.datasets.plain", "mpiter.datasets.reach").named


LAZY = """
import os
_file, _conns, AUGMENT, SIZE = None, {}, {}, 1
def plain(x): return x
def load(x): return x
class Pipeline:
    step = staticmethod(plain)
class Conn:
    def __init__(self, name): self.file = open(__file__)
def read(i):
    global _file
    if _file is None: _file = open(__file__, "rb", 0)
    if i not in _conns: _conns[i] = Conn(i)
    return os.pread(_file.fileno(), 1, i)[0]
"""

READS = """
import sys, lazy, mpiter
class Reads:
    def __len__(self): return 4
    def __getitem__(self, i): return lazy.read(i), lazy.SIZE
if __name__ == "__main__":
    lazy.SIZE = 7
    here = [Reads()[i] for i in range(4)]
    with mpiter.MultiprocessIterator(Reads(), 4, repeat=False, shuffle=False, n_processes=1,
                                     backend=mpiter.Process(sys.argv[1])) as it:
        print(next(it) == here)
"""

CHANGED = """
import functools, sys, lazy, mpiter
def flip(x): return -x
class Calls:
    def __len__(self): return 2
    def __getitem__(self, i): return lazy.AUGMENT["train"](i) if lazy.AUGMENT else lazy.load(lazy.Pipeline.step(i))
if __name__ == "__main__":
    change = sys.argv[2]
    if change == "AUGMENT": lazy.AUGMENT["train"] = flip
    elif change == "load": lazy.load = functools.wraps(lazy.load)(lambda x: -x)
    else: lazy.Pipeline.step = staticmethod(flip)
    with mpiter.MultiprocessIterator(Calls(), 2, repeat=False, shuffle=False, n_processes=1,
                                     backend=mpiter.Process(sys.argv[1])) as it:
        next(it)
"""

SETTING = """
import numpy as np, mpiter
class Divides:
    def __len__(self): return 1
    def __getitem__(self, i): return np.array([1.0]) / np.array([0.0])
if __name__ == "__main__":
    loader = mpiter.DataLoader(Divides(), 1, num_workers=1)
    np.seterr(divide="ignore")
    print(*loader)
    np.seterr(divide="raise")
    try:
        print(*loader)
    except FloatingPointError:
        print("raised")
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_the_datasets_code_sets_on_first_use_stays_at_home_without_a_word(tmp_path, method):
    (tmp_path / "lazy.py").write_text(LAZY)
    ran = run(tmp_path, READS, method).ended_well()
    assert ran.lines == ["True"]
    assert "differs" not in ran.err


@pytest.mark.parametrize("change", ["AUGMENT", "load", "Pipeline"])
def test_functions_of_the_script_that_are_set_in_a_module_are_told_of(tmp_path, change):
    (tmp_path / "lazy.py").write_text(LAZY)
    ran = run(tmp_path, CHANGED, "forkserver", change)
    assert "differs in its workers" in ran.err
    assert f"lazy.{change}" in ran.err


def test_a_setting_that_is_changed_between_epochs_reaches_the_workers(tmp_path):
    assert run(tmp_path, SETTING).ended_well().lines == ["[[inf]]", "raised"]


def opens_many():
    found, key = _opened, "a"
    if key not in _conns:
        _conns[(key, len(_conns))[0]] = sqlite3.connect(key)
    if not _handles:
        _handles.append(found)
    _counts["n"] += plain.DEEPEST + plain.DEEPEST
    return _conns[key], _cached.setdefault(key, object())


_conns, _handles, _cached, _counts = {}, [], {}, {}


def test_only_what_is_filled_or_set_counts_as_opened():
    assert reach._deeds(opens_many.__code__).opens == {"_conns", "_handles", "_cached"}
    assert reach._deeds(opens_it.__code__).opens == {"_opened"}


class InManyWays:
    def method(self):
        return opens_it()

    @staticmethod
    def of_none():
        return opens_it()

    @classmethod
    def of_the_class(cls):
        return opens_it()

    @property
    def asked(self):
        return opens_it()


@pytest.mark.parametrize("way", ["method", "of_none", "of_the_class", "asked"])
def test_the_code_of_methods_and_properties_is_followed(way):
    alone = type("Alone", (), {way: vars(InManyWays)[way], "__module__": __name__})
    found = {"a class's": alone()} if way == "asked" else {"a class's": alone(), "held": [getattr(InManyWays(), way)]}
    for value in found.values():
        assert ("mpiter.datasets.plain", "DEEPEST") in reached(value, __name__, "mpiter.datasets.plain").named


def test_what_stays_at_home_is_asked_for_nothing():
    class Lazy:
        def __getattr__(self, name):
            raise AssertionError(f"asked for {name}")

    assert plain.opaque(Lazy()) == plain.opaque(Lazy())
    assert plain.opaque(Lazy()).kind == parts.kind_of(Lazy())


# -- what has been broken once ---------------------------------------------------------------------------------------

THINGS = """
import array, collections, dataclasses, datetime, functools, operator, os, pathlib, random, sqlite3, threading, typing
import numpy as np

class Point(typing.NamedTuple):
    x: int

class Named(str):
    pass

@dataclasses.dataclass(frozen=True)
class Keys:
    x: int

SIZE, LATER, TABLE, LUT, names, __scale__ = 1, 1, {}, np.zeros(300_000), [], 1

class Two:
    def __len__(self):
        return 2

class SetsInInit(Two):
    def __init__(self):
        global SIZE
        SIZE = 7

    def __getitem__(self, index):
        return SIZE

class SetsInMethod(Two):
    def set(self):
        global LATER
        LATER = 7

    def __getitem__(self, index):
        return LATER

@dataclasses.dataclass
class Stage:
    size: int = 1

@dataclasses.dataclass
class Box:
    items: list

class Tree:
    def __init__(self, parent=None):
        self.parent, self.kids, self.size = parent, [], 1

class Single:
    _it = None

    def __new__(cls):
        if cls._it is None:
            cls._it = super().__new__(cls)
            cls._it.size = 1
        return cls._it

class Scales:
    def __init__(self, by):
        self.by = by

    def apply(self, number):
        return number * self.by

def scaled(number, by):
    return number * by

STAGES, STAGE, BOX, ROOT = [Stage(), Stage()], (Stage(),), Box([Stage()]), Tree()
ROOT.kids.append(Tree(ROOT))
numbers, method, part = array.array("i", [1]), Scales(1).apply, functools.partial(scaled, by=1)

KEYED = {np.int64(1): 1, pathlib.Path("a"): 1, Point(1): 1, frozenset("a"): 1, Named("a"): 1, Keys(1): 1}
STAMP, BY, ZERO, CONFIG = datetime.timezone.utc, operator.itemgetter(0), 0.0, collections.UserDict(size=1, log=print)
LIMIT = None

def limit():
    global LIMIT
    if LIMIT is None:
        LIMIT = 10
    return LIMIT

class Nested(Two):
    def __getitem__(self, index):
        kid = ROOT.kids[0]
        held = [STAGES[0].size, STAGE[0].size, BOX.items[0].size, kid.size, kid.parent.size, Single().size]
        return [
            *(*held, numbers[0], method(1), part(1), __scale__, *KEYED.values(), limit()),
            *(STAMP, BY([0, 7]), ZERO, CONFIG["size"]),
        ]

def makes(by):
    return lambda number: number * by

def by_default(number, by=1):
    return number * by

def written(number):
    return number

made, calls = makes(1), [lambda number: number]

class Called(Two):
    def __call__(self):
        return 1

    def __getitem__(self, index):
        return [made(1), by_default(1), written(1), calls[0](1), self()]

class Other:
    pass

class Kept:
    one = staticmethod(written)

    def two(self):
        return 1

    three = property(two)

class Members(Two, Other):
    def __getitem__(self, index):
        return [Kept.one(1), Kept().two(), Kept().three]

class Settings:
    def __init__(self):
        self.lock, self.size = threading.Lock(), 1

settings = None

def of_settings():
    global settings
    if settings is None:
        settings = Settings()
    return settings

class Locked(Two):
    def __getitem__(self, index):
        return of_settings().size

class Drawn:
    def __init__(self):
        self.dice, self.size = random.Random(1), 1

drawn = number = None

def of_drawn():
    global drawn
    if drawn is None:
        drawn = Drawn()
    return drawn

def of_number():
    global number
    if number is None:
        number = os.open(__file__, os.O_RDONLY)
    return number

SHUFFLED = [(number, [str(number)]) for number in range(12_000)]

class Draws(Two):
    def __getitem__(self, index):
        return [of_drawn().size, os.pread(of_number(), 2, 0), SHUFFLED[0]]

class Fills(Two):
    def __init__(self):
        for number in range(20_000):
            TABLE[number] = names.append((number, "x"))
        LUT[:] = 7

    def __getitem__(self, index):
        return [TABLE.get(index, "nothing"), len(names), LUT[index]]

class Opens(Two):
    _connection = _file = None

    @classmethod
    def connection(cls):
        if cls._connection is None:
            cls._connection = sqlite3.connect(":memory:")
        return cls._connection

    @classmethod
    def file(cls):
        if cls._file is None:
            cls._file = open(__file__)
        return cls._file

    def __getitem__(self, index):
        read.read()
        first = [self.file().name, self.connection().execute("select 1").fetchone(), pool().read(0)]
        return [*first, read.position if index else 4, read.way, cached(index) is not None]

class Reads:
    def __init__(self):
        self.handle, self.position, self.way = None, 0, "this"

    def read(self):
        if self.handle is None:
            self.handle = open(__file__, "rb")
        self.handle.read(4)
        self.position = self.handle.tell()

read, _pool, _cache = Reads(), [], {}

def pool():
    if not _pool:
        _pool.append(open(__file__, "rb"))
    return _pool[0]

def cached(key):
    return _cache.setdefault(key, object())

class Memo:
    def __init__(self):
        self.index, self.items = {}, []

    def get(self, key):
        if key not in self.index:
            self.index[key] = len(self.items)
            self.items.append(Stage(key))
        return self.items[self.index[key]].size

memo = Memo()

class Remembers(Two):
    def __getitem__(self, index):
        return memo.get(index)
"""

SEES = """
    import json, sys, threading, warnings
    import things as t
    import mpiter

    def mine(*args):
        return 7

    def change():
        t.STAGES[0].size = t.STAGE[0].size = t.BOX.items[0].size = t.ROOT.kids[0].size = t.ROOT.size = 7
        t.Single().size = t.numbers[0] = t.__scale__ = 7
        t.KEYED.update(dict.fromkeys(t.KEYED, 7))
        t.LIMIT, t.of_settings().size, t.of_drawn().size = 7, 7, 7
        t.number = t.os.open(t.__file__, t.os.O_RDONLY)
        t.STAMP, t.BY, t.ZERO = t.datetime.timezone(t.datetime.timedelta(hours=7)), t.operator.itemgetter(1), -0.0
        t.CONFIG["size"] = 7
        t.SHUFFLED.reverse()
        t.method, t.part = t.Scales(7).apply, t.functools.partial(t.scaled, by=7)
        t.made, t.by_default.__defaults__, t.written.__code__ = t.makes(7), (7,), mine.__code__
        t.calls[0], t.Called.__call__ = mine, mine
        t.Kept.one, t.Kept.two, t.Kept.three, t.Members.__bases__ = staticmethod(mine), mine, property(mine), (t.Two,)
        t.memo.get(1), t.memo.get(0)
        t.read.way = "that"

    def seen(name):
        dataset = getattr(t, name)()
        if name == "SetsInMethod":
            dataset.set()
        if name == "Opens":
            dataset[0]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = mpiter.DataLoader(
                dataset, 2, num_workers=1, collate_fn=list, multiprocessing_context=sys.argv[1]
            )
            with loader:
                ((first, second),) = loader
        differing = [str(one.message).partition("workers: ")[2].partition(".  They")[0] for one in caught]
        here = [dataset[0], dataset[1]]
        return [repr(first) == repr(here[0]) and (name == "Opens" or repr(second) == repr(here[1])), differing]

    if __name__ == "__main__":
        change()
        print(json.dumps({name: seen(name) for name in sys.argv[2:]}))
"""

TRAVELS = ["SetsInInit", "SetsInMethod", "Nested", "Remembers"]
TOLD = {
    "Opens": ["read.position"],
    "Draws": ["drawn", "number", "SHUFFLED"],
    "Called": ["made", "by_default.__defaults__", "written.__code__", "calls[0]", "Called.__call__"],
    "Members": ["Members.__bases__", "Kept.one", "Kept.two", "Kept.three"],
    "Locked": ["settings"],
    "Fills": ["TABLE", "LUT", "names"],
}


def test_what_the_datasets_code_sets_and_what_others_hold_travels_or_is_told_by_its_name(tmp_path):
    (tmp_path / "things.py").write_text(THINGS)
    outcome = run(tmp_path, SEES, "forkserver", *TRAVELS, *TOLD)
    assert (outcome.code, outcome.left_running) == (0, []), outcome
    found = json.loads(outcome.lines[-1])
    assert {name: found[name] for name in TRAVELS} == {name: [True, []] for name in TRAVELS}
    assert found["Opens"][0]
    for name, parts_of_it in TOLD.items():
        _, (told,) = found[name]
        assert all(f"things.{part} (" in told for part in parts_of_it), told
        assert "things.memo" not in told


SHARED = """
CONFIG, LIST = {"size": 1}, [1]

class Two:
    def __init__(self):
        self.list = LIST

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return CONFIG["size"], LIST[0], self.list is LIST
"""

SHARES = """
    import sys, mpiter
    from shared import CONFIG, LIST, Two

    def init(info):
        CONFIG["size"] = LIST[0] = 7

    if __name__ == "__main__":
        with mpiter.batches(Two(), 2, n_processes=1, worker_init=init, backend=mpiter.Process(sys.argv[1])) as stream:
            print(*(column.tolist() for column in next(stream)))
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_the_script_shares_with_a_module_it_shares_in_workers_too(tmp_path, method):
    (tmp_path / "shared.py").write_text(SHARED)
    assert run(tmp_path, SHARES, method).ended_well().lines == ["[7, 7] [7, 7] [True, True]"]


LEADS = """
import functools, config
FACTOR = 1

def scale(number, by=1):
    return number * FACTOR

class Helper:
    def run(self, number):
        return self.inner(number)

    def inner(self, number):
        return number * FACTOR

    __call__ = run

pipeline, REGISTRY = [Helper()], {"x": scale}

class Base:
    config = config

    def __init__(self, transform=None):
        self.transform, self.also = transform, config

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.transform(1)

class ByList(Base):
    def __getitem__(self, index):
        return pipeline[0](1)

class ByDict(Base):
    def __getitem__(self, index):
        return REGISTRY["x"](1)

class ByClass(Base):
    def __getitem__(self, index):
        return self.config.SIZE

class ByAttribute(Base):
    def __getitem__(self, index):
        return self.also.SIZE

class ByName(Base):
    def __getitem__(self, index):
        return getattr(config, "SIZE")

class ByDictionary(Base):
    def __getitem__(self, index):
        return vars(config)["SIZE"]

class ByImport(Base):
    def __getitem__(self, index):
        import importlib
        return importlib.import_module("config").SIZE
"""

NEXT_EPOCH = """
    import functools
    import config, leads
    import mpiter

    def epochs(dataset):
        config.SIZE = leads.FACTOR = 1
        with mpiter.DataLoader(dataset, 1, num_workers=1, collate_fn=list) as loader:
            first = list(loader)
            config.SIZE = leads.FACTOR = 7
            return [first, list(loader)]

    if __name__ == "__main__":
        deep = leads.Base(leads.scale)
        deep.annotations = [[{"a": [1], "b": [2]} for _ in range(10)] for _ in range(200)]
        transforms = [functools.partial(leads.scale, by=1), leads.Helper().run, [leads.Helper()]]
        datasets = [deep, *map(leads.Base, transforms[:2])]
        for name in ("List", "Dict", "Class", "Attribute", "Name", "Dictionary", "Import"):
            datasets.append(getattr(leads, "By" + name)())
        print(*(epochs(dataset) == [[[1]], [[7]]] for dataset in datasets))
"""


def test_whatever_way_a_datasets_code_comes_upon_a_variable_its_next_epoch_sees_it(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "leads.py").write_text(LEADS)
    assert run(tmp_path, NEXT_EPOCH).ended_well().lines == [" ".join(["True"] * 10)]


PLUGGED = """
    import importlib.util, sys
    import config, other
    import mpiter

    if __name__ == "__main__":
        spec = importlib.util.spec_from_file_location("plugged", "hidden/plugin.py")
        sys.modules["plugged"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        config.OPTIONS["plugged"], config.SIZE = module.called, 3
        with mpiter.DataLoader(other.Sizes(), 2, num_workers=1) as loader:
            print(*(batch.tolist() for batch in loader))
"""


def test_what_workers_cannot_import_keeps_nothing_else_of_its_module_at_home(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "plugin.py").write_text("def called():\n    return 1\n")
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "other.py").write_text(OTHER)
    assert run(tmp_path, PLUGGED).ended_well().lines == ["[3, 3]"]


def test_modules_that_nothing_leads_to_cost_nothing_and_all_variables_have_a_limit():
    own = dict.fromkeys([__name__, *(f"unrelated{number}" for number in range(300))], types.ModuleType("unrelated"))
    modules = reach.Modules({**own, __name__: sys.modules[__name__]})
    assert list(program._variables(reach.Roots({__name__}), modules)) == [__name__]
    module = types.ModuleType("theirs")
    vars(module).update({f"x{number}": np.zeros(120_000) for number in range(30)})
    assert sum(map(len, variables.packed(variables.read(module, plain.Reader())).values())) < 17 << 20
