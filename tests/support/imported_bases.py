"""Bases that ``class_kinds`` imports, and whose subclasses take keywords."""

from __future__ import annotations

from typing import Any


class Keyed:
    def __init_subclass__(cls, *, key: str) -> None:
        cls.key = key


class Popping:
    def __init_subclass__(cls, **options: Any) -> None:
        cls.key = options.pop("key")
        super().__init_subclass__(**options)


class Meta(type):
    def __new__(mcs, name: str, bases: Any, namespace: Any, *, scale: int) -> Any:
        cls = super().__new__(mcs, name, bases, namespace)
        cls.scale = scale
        return cls

    def __init__(cls, name: str, bases: Any, namespace: Any, *, scale: int) -> None:
        super().__init__(name, bases, namespace)


class Scaled(metaclass=Meta, scale=1):
    pass
