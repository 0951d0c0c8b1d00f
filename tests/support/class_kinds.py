"""A script with a class of every kind, which prints what differs in its workers.

The functions in the table ``ROWS`` use classes of this script, and what decorators
make.  What they return is compared.  So are the classes themselves: their own
attributes, their order of look-up and their layout.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import pickle
import re
import sys
import typing

import imported_bases

import mpiter
from mpiter.datasets.ship import by_value

ROWS: dict[str, typing.Any] = {}


def row(function):
    ROWS[function.__name__] = function
    return function


# -- an attribute that a base has too --------------------------------------------------


class Base:
    augment = True


class Images(Base):
    pass


class Evaluation:
    augment = False


class Validation(Images, Evaluation):
    augment = False


class Unset(Base, Evaluation):
    augment = True


class Root:
    def __iter__(self):
        raise NotImplementedError


class Stream(Root):
    pass


class Reads:
    def __iter__(self):
        return iter([1, 2])


class Rows(Stream, Reads):
    __iter__ = Reads.__iter__


class Ordered:
    def __init__(self, value=1):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


class Hashed(Ordered, Base):
    __hash__ = Base.__hash__


class Documented:
    """A text."""


class Undocumented(Documented, Base):
    __doc__ = Base.__doc__


class Sized(abc.ABC):
    @abc.abstractmethod
    def size(self):
        """Return the size."""


class Whole(abc.ABC):  # noqa: B024
    pass


class Three(Whole, Sized):
    def size(self):
        return 3


Made = type("Made", (Images, Evaluation), {"augment": False})


@row
def the_second_bases_attribute():
    return Validation().augment, Unset().augment, Made().augment


@row
def the_second_bases_iter():
    return list(Rows())


@row
def the_second_bases_hash_and_doc():
    return isinstance(hash(Hashed()), int), Undocumented.__doc__


@row
def abstract_methods():
    return Three().size(), Sized.__abstractmethods__, issubclass(Three, Sized)


# -- what making a class does ----------------------------------------------------------


class Plugin:
    known: typing.ClassVar = []

    def __init_subclass__(cls, name):
        cls.name = name
        Plugin.known.append(name)


class Decoder(Plugin, name="decoder"):
    pass


class Fast(Decoder, name="fast"):
    pass


class Defaulted:
    kind = "a"

    def __init_subclass__(cls, kind="b"):
        cls.kind = kind


class Alike(Defaulted, kind="a"):
    pass


class Meta(type):
    made: typing.ClassVar = []

    def __new__(mcs, name, bases, namespace, scale=1):
        cls = super().__new__(mcs, name, bases, namespace)
        cls.scale = scale
        Meta.made.append((name, namespace["width"]))
        return cls

    def __init__(cls, name, bases, namespace, scale=1):
        super().__init__(name, bases, namespace)

    def __setattr__(cls, name, value):
        if "scale" in vars(cls):
            raise AttributeError("it cannot change")
        super().__setattr__(name, value)


class Wide(metaclass=Meta, scale=3):
    width = 5


class Registered(imported_bases.Keyed, key="registered"):
    pass


class Deeper(Registered, key="deeper"):
    pass


class Popped(imported_bases.Popping, key="popped"):
    pass


class Scaled(imported_bases.Scaled, scale=3):
    pass


class Owned:
    def __set_name__(self, owner, name):
        self.owner = owner
        self.name = name

    def __get__(self, instance, owner):
        return self.name


class Owner:
    field = Owned()


@row
def init_subclass():
    return Decoder.name, Fast.name, Plugin.known, Alike.kind


@row
def init_subclass_works_on():
    class Later(Plugin, name="later"):
        pass

    return Later.name, Plugin.known[-1], Plugin.known.pop()


@row
def init_subclass_of_an_imported_base_that_wants_a_keyword():
    class Later(Registered, key="later"):
        pass

    names = [one.__name__ for one in imported_bases.Keyed.__subclasses__()]
    return Registered.key, Deeper.key, Popped.key, Later.key, names


@row
def an_imported_metaclass_that_wants_a_keyword():
    return Scaled.scale, type(Scaled).__name__


@row
def a_metaclass():
    return Wide.scale, Wide.width, Meta.made


@row
def set_name():
    return Owner().field, vars(Owner)["field"].owner is Owner


# -- the kinds of the standard library -------------------------------------------------


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796
    BLUE = 2

    def shade(self):
        return self.name.lower()


class Planet(enum.Enum):
    EARTH = (1, 2)
    MARS = (3, 4)

    def __init__(self, mass, radius):
        self.mass = mass
        self.radius = radius


class Shown(enum.Enum):
    ONE = 1

    @property
    def value(self):
        return "one"


class Point(enum.Enum):
    X = ("x", 1)

    def __new__(cls, value, place):
        made = object.__new__(cls)
        made._value_ = value
        made.place = place
        return made


class Coded(enum.Enum):
    def __new__(cls, value, place):
        made = object.__new__(cls)
        made._value_ = value
        made.place = place
        return made

    def __init__(self, value, place):
        self.total = value + place


class Code(Coded):
    A = (1, 2)


class CodedNumber(int, enum.Enum):
    def __new__(cls, value, place):
        made = int.__new__(cls, value)
        made._value_ = value
        made.place = place
        return made


class CodeNumber(CodedNumber):
    A = (1, 2)


class Ways(enum.Enum):
    LENGTH = enum.member(len)
    TWICE = enum.member(lambda value: 2 * value)


class Text(str, enum.Enum):  # noqa: UP042
    A = "a"
    __str__ = str.__str__


class Word(enum.StrEnum):
    ONE = enum.auto()


class Number(enum.IntEnum):
    A = 1
    B = 2


class Rights(enum.Flag, boundary=enum.STRICT):
    READ = 1
    WRITE = 2
    BOTH = 3


class Unhashable(enum.Enum):
    A = [1]  # noqa: RUF012

    @classmethod
    def _missing_(cls, value):
        return cls.A


@dataclasses.dataclass
class Plain:
    a: int
    b: list = dataclasses.field(default_factory=list)
    c: dataclasses.InitVar[int] = 3
    d: typing.ClassVar[int] = 4

    def __post_init__(self, c):
        self.e = c


@dataclasses.dataclass(kw_only=True)
class Further(Plain):
    z: int = 1


@dataclasses.dataclass(slots=True, frozen=True, order=True)
class Frozen:
    a: int
    b: int = 2


class Pair(typing.NamedTuple):
    a: int
    b: int = 2

    def total(self):
        return self.a + self.b


class Twice(Pair):
    __slots__ = ()

    def total(self):
        return 2 * super().total()


Couple = collections.namedtuple("Couple", "a b", defaults=[1])
T = typing.TypeVar("T")


class Holder(typing.Generic[T]):
    def first(self, value: T) -> T:
        return value


class OfInts(Holder[int], typing.Sized):
    def __len__(self):
        return 2


@typing.runtime_checkable
class Firsts(typing.Protocol):
    def first(self, value): ...


class Fields(typing.TypedDict, total=False):
    a: int


class More(Fields):
    b: str


@row
def enums():
    crimson = (
        Color.CRIMSON is Color.RED,
        Color["CRIMSON"],
        list(Color.__members__),
        list(Color),
        Color(2).shade(),
    )
    crimson += Shown(1).value, Shown.ONE.name
    return (
        crimson,
        Planet.EARTH.mass,
        Planet((3, 4)).radius,
        Point("x").place,
        Unhashable("any"),
        Unhashable([1]),
    )


@row
def enums_of_functions():
    return (
        Ways.LENGTH.value("ab"),
        Ways.TWICE.value(3),
        Ways(len).name,
        list(Ways.__members__),
    )


@row
def enums_of_enums():
    return (
        Code(1).place,
        Code.A.total,
        CodeNumber(1).place,
        CodeNumber.A + 1,
        Coded.__new__,
        list(Code),
    )


@row
def enums_of_other_types():
    return (
        str(Text.A),
        Text("a") is Text.A,
        str(Word.ONE),
        Number.A + Number.B,
        Number(1).name,
    )


@row
def flags():
    refused = False
    try:
        Rights(8)
    except ValueError:
        refused = True
    return (
        refused,
        Rights.BOTH,
        Rights.READ | Rights.WRITE,
        list(Rights),
        ~Rights.READ,
        Rights(0),
    )


@row
def data_classes():
    fields = [field.name for field in dataclasses.fields(Plain)]
    frozen = (
        Frozen(1) < Frozen(2),
        hash(Frozen(1)) == hash(Frozen(1)),
        hasattr(Frozen(1), "__dict__"),
    )
    return Plain(1), Plain(1).e, fields, Further(1, z=2), Further.__match_args__, frozen


@row
def data_classes_derived_later():
    @dataclasses.dataclass
    class Later(Plain):
        f: int = 5

    fields = [
        field.default is dataclasses.MISSING for field in dataclasses.fields(Frozen)
    ]
    return (
        Later(1).c,
        Later(1).b,
        fields,
        dataclasses.fields(Frozen)[1].default_factory is dataclasses.MISSING,
    )


@row
def named_tuples():
    without = hasattr(Twice(1), "__dict__"), hasattr(Couple(1), "__dict__")
    return (
        Pair(1).total(),
        Twice(1).total(),
        Couple(2),
        Pair(1)._asdict(),
        Pair._field_defaults,
        without,
    )


@row
def generics_protocols_and_typed_dicts():
    generic = (
        Holder[int],
        OfInts().first(3),
        OfInts.__orig_bases__,
        len(OfInts()),
        Holder.__parameters__,
    )
    typed = More(a=1, b="b"), sorted(More.__optional_keys__)
    return generic, isinstance(Holder(), Firsts), isinstance(Base(), Firsts), typed


# -- what stands in a class ------------------------------------------------------------


class Decorated:
    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, value):
        self._size = value

    @functools.cached_property
    def cached(self):
        return [2]

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def remembered(self, value):
        return [value]

    @classmethod
    def called(cls):
        return cls.__name__

    @staticmethod
    def still():
        return 3

    @functools.singledispatchmethod
    def dispatched(self, value):
        return "any"

    @dispatched.register
    def _(self, value: int):
        return "int"

    part = functools.partialmethod(lambda self, value: value, 7)

    def __class_getitem__(cls, item):
        return item


class Derived(Decorated):
    @classmethod
    def called(cls):
        return "derived " + super().called()

    def own(self):
        return __class__.__qualname__


class Outer:
    class Inner:
        class Innermost:
            depth = 3


Outer.itself = Outer
Outer.late = lambda self: 5


class Slots:
    __slots__ = ("__hidden", "a")

    def __init__(self):
        self.a = self.__hidden = 1

    def hidden(self):
        return self.__hidden


class OneSlot:
    __slots__ = "__one"

    def __init__(self):
        self.__one = 1

    def one(self):
        return self.__one


NONE = ()


class NoSlots:
    __slots__ = NONE


class NoMore(NoSlots, Slots):
    __slots__ = NONE


class Described:
    __slots__ = {"a": "what it is"}


class Renamed:
    __slots__ = ("_size",)


Renamed.size = Renamed._size


class InOrder:
    width = 1
    depth = 2
    height = 3


class Private:
    __x = 1

    def x(self):
        return self.__x


class Table(dict):
    def __missing__(self, key):
        return key


class Counted(int):
    def __new__(cls, value):
        return super().__new__(cls, value + 1)


class Refused(ValueError):
    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


class Anything:
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class Elsewhere:
    pass


Elsewhere.__qualname__ = "Outer.Elsewhere"


def local():
    free = 3

    class Local(Base):
        augment = free

        def get(self):
            return free

    return Local


Local = local()


@row
def decorators():
    one = Decorated()
    cached = Decorated().cached
    one.size = 1
    calls = (
        one.dispatched(3),
        one.dispatched("a"),
        one.part(),
        Decorated[3],
        one.called(),
        one.still(),
    )
    again = one.cached is one.cached, one.remembered(1) is one.remembered(1)
    return one.size, cached, again, Decorated.remembered.cache_parameters(), calls


@functools.singledispatch
def flat(value):
    return [value]


@flat.register(list)
def _(value):
    return [leaf for part in value for leaf in flat(part)]


@row
def a_dispatching_function():
    return flat([1, [2, [3]]])


@functools.cache
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


fibonacci.title = "those of rabbits"
Name = typing.NewType("Name", str)


def named(name: Name) -> Name:
    return name


@row
def a_cached_function():
    return (
        fibonacci(90),
        fibonacci.title,
        fibonacci.cache_parameters(),
        fibonacci.__name__,
    )


@row
def a_type_of_another_name():
    return named(Name("a")), named.__annotations__


@row
def super_and_class_cells():
    return Derived.called(), Derived().own(), Derived().cached


@row
def classes_in_classes():
    return (
        Outer.Inner.Innermost.depth,
        Outer.Inner.__qualname__,
        Outer.itself is Outer,
        Outer().late(),
    )


@row
def slots():
    without = [
        hasattr(made, "__dict__")
        for made in (Slots(), OneSlot(), NoSlots(), NoMore(), Described())
    ]
    return (
        without,
        Slots().hidden(),
        NoMore().hidden(),
        OneSlot().one(),
        Described.__slots__,
    )


@row
def a_slot_by_another_name():
    made = Renamed()
    made._size = 3
    return made.size


@row
def the_order_of_attributes():
    return [name for name in vars(InOrder) if not name.startswith("_")]


@row
def private_names_builtin_bases_and_getattr():
    return (
        Private().x(),
        Table()[4],
        Counted(3),
        Refused(1, 2).args,
        Refused(1, 2).second,
        Anything().any,
    )


@row
def names():
    return Elsewhere.__qualname__, Local.__qualname__, Local().get(), Local().augment


# -- the comparison --------------------------------------------------------------------


def portrait(cls):
    """Describe a class: its own attributes, their values if plain, and its layout."""
    plain = (int, str, bool, type(None), tuple, list, dict, frozenset)
    own = {
        name: value if isinstance(value, plain) else type(value)
        for name, value in vars(cls).items()
    }
    own = {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in own.items()
    }
    layout = cls.__dictoffset__, cls.__weakrefoffset__, cls.__basicsize__
    return cls.__qualname__, cls.__module__, cls.__mro__, layout, sorted(own.items())


def shown(use):
    used = [
        use.__globals__[name]
        for name in use.__code__.co_names
        if name in use.__globals__
    ]
    portraits = [portrait(one) for one in used if isinstance(one, type)]
    return re.sub("0x[0-9a-f]+", "", repr((use(), *portraits)))


class Each:
    """A dataset of what each row returns in a worker, or the error that it raises."""

    def __init__(self, uses):
        self.uses = uses

    def __len__(self):
        return len(self.uses)

    def __getitem__(self, index):
        name, use = self.uses[index]
        if not isinstance(use, bytes):
            return name, shown(use)
        try:
            return name, shown(pickle.loads(use))
        except Exception as error:
            return name, f"{type(error).__name__}: {error}"


def packed(use):
    """Pickle a row by itself, so that one that can't be pickled fails alone."""
    try:
        return by_value(use)
    except Exception as error:
        return pickle.dumps(error)


def in_workers(method, uses):
    backend = mpiter.Process(method)
    with mpiter.MultiprocessIterator(
        Each(uses), 8, repeat=False, shuffle=False, n_processes=1, backend=backend
    ) as it:
        return dict(sample for batch in it for sample in batch)


if __name__ == "__main__":
    alike = in_workers("fork", list(ROWS.items()))
    other = in_workers(sys.argv[1], [(name, packed(use)) for name, use in ROWS.items()])
    for name, value in alike.items():
        if (found := other[name]) != value:
            letters = enumerate(zip(value, found, strict=False))
            differing = [at for at, (one, two) in letters if one != two]
            # Print the texts around their first difference.
            at = min(differing, default=0)
            place = slice(max(0, at - 40), at + 80)
            print(
                f"{name}: {value[place]} in a forked worker, {found[place]} in another"
            )
