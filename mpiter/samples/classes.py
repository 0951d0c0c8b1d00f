"""A class by value: its own namespace, and how another process makes it again.

``reduced`` runs where ``byvalue`` pickles a class that the other process can't import,
``_make`` and ``_fill`` where the pickle is read.  Guarantees that every attribute of
the class's own namespace arrives, also one that a base has too, whichever of them a
look-up finds first; and that none of the script's code runs for a class a second time:
what ``__init_subclass__``, a metaclass or an Enum's ``__init__`` made of it arrives.
Those of imported modules do run, since they may note their subclasses; but the keywords
of the class statement aren't known, so a method that requires some has no effect.

cloudpickle does otherwise: it leaves out what it takes for inherited, and runs these
methods on a class without attributes.
"""

from __future__ import annotations

import abc
import contextlib
import inspect
import typing
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, member
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

# Both sides know a class by the identifiers in here.  The module is private, so the
# versions of cloudpickle that we allow are bounded.
from cloudpickle import cloudpickle as identifiers

# What making a class gives it anyway, or what is Python's own and can't be set.
_MADE_ANEW = {"__module__", "__annotate_func__", "_abc_impl"}
_OF_ENUMS = {"_member_names_", "_member_map_", "_member_type_", "_value2member_map_"}


class Contents(NamedTuple):
    """What a class gets once it exists, since it may refer to the class itself."""

    # The metaclass that makes the class and sets its attributes.
    maker: type
    attributes: dict[str, Any]
    # Classes that were registered with ``ABCMeta.register``.
    registered: list[type]
    # The members of an Enum, with the attributes of each.
    members: dict[str, dict[str, Any]]


def reduced(cls: type, goes_by_name: Callable[[Any], bool]) -> tuple[Any, ...]:
    """Return a class's reduction for a pickler.

    ``goes_by_name`` tells whether the other side imports something.
    """
    kind: Any = type(cls)
    # A metaclass of the program's isn't run again.  Neither is TypedDict's, which
    # refuses the bases that it has given.
    makers: Sequence[type] = kind.__mro__
    if typing.is_typeddict(cls):
        makers = [type]
    usable = (one for one in makers if goes_by_name(one) and not _wants_keywords(one))
    maker = next(usable)
    own = vars(cls)
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    for name in ("__slots__", "__orig_bases__"):
        if name in own:
            namespace[name] = own[name]
    if isinstance(own.get("__dict__"), property):
        namespace["__dict__"] = own["__dict__"]
    without = _MADE_ANEW | namespace.keys()
    values: dict[str, Any] = {}
    members: dict[str, dict[str, Any]] = {}
    if issubclass(cls, Enum):
        _check_values(cls)
        values = {name: one._value_ for name, one in cls.__members__.items()}
        members = {name: vars(one) for name, one in cls.__members__.items()}
        without = without | _OF_ENUMS | members.keys()
    # They are in the order of the definition, which programs look at.  The names are
    # copies, as cloudpickle makes them: whether two names are one object would show in
    # the pickle.
    attributes = {}
    for name, value in own.items():
        if name not in without and not _is_own_descriptor(cls, name, value):
            attributes["".join(name)] = value
    registered = list[type]()
    if isinstance(cls, abc.ABCMeta):
        references = abc._get_dump(cls)[0]  # type: ignore[attr-defined]
        found = [reference() for reference in references]
        registered = [one for one in found if one is not None]
    tracker = identifiers._get_or_create_tracker_id(cls)
    arguments = (
        kind,
        maker,
        cls.__name__,
        cls.__bases__,
        namespace,
        values,
        tracker,
    )
    contents = Contents(maker, attributes, registered, members)
    return _make, arguments, contents, None, None, _fill


def _wants_keywords(kind: Any) -> bool:
    """Return True if a metaclass needs keywords of the class statement.

    No class remembers them, so such a metaclass can't make it again.
    """
    try:
        for method in (kind.__new__, kind.__init__):
            inspect.signature(method).bind(kind, "name", (), {})
    except TypeError:
        return True
    except ValueError:
        # Its methods are written in C and have no signature to look at.
        return False
    return False


def _check_values(cls: Any) -> None:
    """Refuse an Enum whose members can't be made again.

    They can't be if they hold more than their values and their attributes tell.
    """
    mixed = cls._member_type_
    if mixed is object:
        return
    is_known = mixed.__module__ == "builtins"
    is_same = is_known and all(mixed.__eq__(one, one._value_) is True for one in cls)
    if not is_same:
        raise TypeError(
            f"the {mixed.__name__} that each of its members is cannot be made again "
            "from its value"
        )


def _is_own_descriptor(cls: type, name: str, value: object) -> bool:
    """Return True for a descriptor that making the class makes.

    That is a slot, ``__dict__`` or ``__weakref__``, under its own name.
    """
    if not isinstance(value, (MemberDescriptorType, GetSetDescriptorType)):
        return False
    return value.__objclass__ is cls and value.__name__ == name


# CPython's flag of types whose attributes can't be set.
_IMMUTABLE = 1 << 8
# Classes that ``_make`` has made and ``_fill`` has not filled yet.
_empty: weakref.WeakSet[type] = weakref.WeakSet()


def _make(
    kind: type,
    maker: Any,
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    values: dict[str, Any],
    tracker: str,
) -> type:
    """Return the class that has this tracker here, or make one without attributes."""
    known: type | None = identifiers._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
    if known is not None:
        return known
    space = maker.__prepare__(name, bases)
    for key, value in namespace.items():
        space[key] = value
    for key, value in values.items():
        # Without ``member`` a function would count as a method.
        space[key] = member(value)
    with _running_nothing(bases):
        made: type = maker.__new__(kind, name, bases, space)
        maker.__init__(made, name, bases, space)
    _empty.add(made)
    identifiers._lookup_class_or_track(tracker, made)
    return made


@contextlib.contextmanager
def _running_nothing(bases: tuple[type, ...]) -> Iterator[None]:
    """Keep the program's code from running that Python runs to make a class.

    It has run for the class that was sent.
    """
    theirs = {}
    for one in {one for base in bases for one in base.__mro__}:
        for name in _names_that_run(one) & vars(one).keys():
            theirs[one, name] = vars(one)[name]
    for (one, name), original in theirs.items():
        is_imported = one not in identifiers._DYNAMIC_CLASS_TRACKER_BY_CLASS
        if name == "__init_subclass__" and is_imported:
            instead = _tried(original)
        else:
            instead = _INSTEAD[name]
        type.__setattr__(one, name, instead)
    try:
        yield
    finally:
        for (one, name), original in theirs.items():
            type.__setattr__(one, name, original)


def _names_that_run(cls: type) -> set[str]:
    """Return the methods of a class that would run for a class derived from it.

    Only those that needn't run are returned.
    """
    if cls.__flags__ & _IMMUTABLE:
        found = set()
    else:
        found = {"__init_subclass__"}
    if issubclass(cls, Enum) and cls.__module__ != Enum.__module__:
        # These make the members, whose attributes are part of what arrives.
        found |= {"__new_member__", "__init__"}
    return found


def _nothing(cls: object, /, **keywords: object) -> None:
    """Do nothing, for a class that is whole."""


def _tried(original: Any) -> object:
    """Return an ``__init_subclass__`` that may fail.

    It is of a class that was imported, whose module may note subclasses.  It is called
    without the keywords of the class statement, which no class remembers, and may
    require them.
    """

    def init_subclass(cls: Any, /, **keywords: Any) -> None:
        with contextlib.suppress(Exception):
            original.__get__(None, cls)(**keywords)

    return classmethod(init_subclass)


def _new_member(cls: Any, *value: Any) -> Any:
    """Make an Enum's member of its value, as an Enum that has no ``__new__`` does."""
    mixed = cls._member_type_
    if mixed is object:
        return object.__new__(cls)
    return mixed.__new__(cls, *value)


_INSTEAD = {
    "__init_subclass__": classmethod(_nothing),
    "__init__": lambda one, *value: None,
    "__new_member__": _new_member,
}


def _fill(cls: Any, contents: Contents) -> None:
    """Give a class that ``_make`` has made its attributes.

    A class that was whole before is left alone.
    """
    if cls not in _empty:
        return
    _empty.discard(cls)
    maker: Any = contents.maker
    for name, value in contents.attributes.items():
        maker.__setattr__(cls, name, value)
    for one in contents.registered:
        abc.ABCMeta.register(cls, one)
    for name, attributes in contents.members.items():
        vars(cls.__members__[name]).update(attributes)
