"""What is to be known of classes: who wrote them, and where their objects keep things.

Pure.  Of a class written in Python all that an object holds can be seen.
"""

from __future__ import annotations

import functools
from types import MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

_MADE_AT_RUN_TIME, _NOT_TO_BE_MADE = 1 << 9, 1 << 7  # flags of classes; C code may set the first, too


def is_static(cls: Any) -> bool:
    """Is it part of a C program as it was compiled, and not made at run time?"""
    return not cls.__flags__ & _MADE_AT_RUN_TIME


@functools.lru_cache(maxsize=1024)
def slots_in(cls: Any) -> list[tuple[str, MemberDescriptorType]]:
    """The slots that this very class gives its objects, private ones under the names that they have inside."""
    return [(name, slot) for name, slot in vars(cls).items() if isinstance(slot, MemberDescriptorType)]


@functools.lru_cache(maxsize=1024)
def is_written_in_c(cls: Any) -> bool:
    """Has C code defined this very class?"""
    if cls.__flags__ & (_MADE_AT_RUN_TIME | _NOT_TO_BE_MADE) != _MADE_AT_RUN_TIME:
        return True
    kinds = (
        MethodDescriptorType,
        WrapperDescriptorType,
        *(() if "__slots__" in vars(cls) else (MemberDescriptorType,)),
    )
    return any(isinstance(part, kinds) and part.__objclass__ is cls for part in vars(cls).values())


@functools.lru_cache(maxsize=1024)
def is_written_in_python(cls: Any) -> bool:
    """Has no C code defined the class or any that it is derived from, but for ``object``?"""
    return not any(map(is_written_in_c, cls.__mro__[:-1]))
