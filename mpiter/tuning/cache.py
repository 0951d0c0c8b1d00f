"""What was found before: a file for each machine and sample size, in it a result for each dataset and question.

Guarantees that a file is there whole or not at all, and that a damaged one, or one that cannot be written, is as none.
The fingerprint of a dataset is made of its length, its classes with their code, and the plain values in it; the data
themselves are not looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from .. import machine

_DEPTH, _MANY, _FEW = 8, 100, 10  # levels, attributes, elements of a list that are looked at
_PLAIN = (str, int, float, bool, bytes, type(None), Path)


def folder() -> Path | None:
    """Where it is, unless told otherwise; None: whoever runs this has no home."""
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpiter"
    return None


class Cache:
    """The results for samples of one size on this machine."""

    def __init__(self, where: Path, sample_bytes: int) -> None:
        about = (platform.node(), platform.machine(), machine.cores(), machine.memory_total() >> 28)
        self._file = where / f"tune-{_hashed(about)[:12]}-{sample_bytes}.json"

    def find(self, key: str) -> dict[str, Any] | None:
        """What was kept under this key."""
        found = self._read().get(key)
        return found if isinstance(found, dict) else None

    def find_other(self, question: str) -> dict[str, Any] | None:
        """The newest answer to the same question about another dataset, whose samples are as large."""
        kept = [one for key, one in self._read().items() if key.startswith(f"{question}-") and isinstance(one, dict)]
        return max(kept, key=lambda one: str(one.get("date")), default=None)

    def keep(self, key: str, result: Mapping[str, Any]) -> None:
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = machine.new_name(self._file.with_name(f".{self._file.name}."))
            try:
                with open(part, "xb") as file:
                    file.write(json.dumps(self._read() | {key: dict(result)}, indent=1).encode())
                part.replace(self._file)
            finally:
                part.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        return {}


def key_of(question: Mapping[str, Any], dataset: Any) -> tuple[str, str]:
    """The question, and the same about this dataset."""
    asked = _hashed(_print(question, _DEPTH))[:16]
    return asked, f"{asked}-{_hashed((len(dataset), _print(dataset, _DEPTH)))[:16]}"


def _hashed(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _print(value: Any, depth: int, seen: dict[int, Any] | None = None) -> Any:
    """What tells one value from another without looking at much: types, code, shapes, plain values."""
    if isinstance(value, _PLAIN):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    seen = {} if seen is None else seen
    if not depth or id(value) in seen:
        return kind
    seen[id(value)] = value  # which keeps it, so that no other is taken for it

    def inner(part: Any) -> Any:
        return _print(part, depth - 1, seen)

    if isinstance(value, Mapping):
        return kind, len(value), [(str(name), inner(part)) for name, part in list(value.items())[:_MANY]]
    if isinstance(value, (list, tuple)):
        return kind, len(value), [inner(part) for part in value[:_FEW]]
    if isinstance(value, MethodType):
        return inner(value.__func__), inner(value.__self__)
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return value.__qualname__, _code(value.__code__), inner([held, value.__defaults__, value.__kwdefaults__])
    if isinstance(value, (type, BuiltinFunctionType)):
        return value.__module__, value.__qualname__
    shape = [str(getattr(value, name)) for name in ("shape", "dtype", "mode", "filename") if hasattr(value, name)]
    code = [_code(part.__code__) for base in type(value).__mro__ for part in vars(base).values() if _is_code(part)]
    if isinstance(value, partial):
        return kind, inner([value.func, value.args, value.keywords])
    slots = {name: getattr(value, name) for name in _slots_of(type(value)) if hasattr(value, name)}
    if not (shape or slots or hasattr(value, "__dict__")):
        return kind, inner(_pickled(value))
    return kind, shape, code, inner(getattr(value, "__dict__", {})), inner(slots)


def _slots_of(kind: type) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        found += [names] if isinstance(names, str) else names
    return [name for name in found if not name.startswith("__")]


def _pickled(value: Any) -> Any:
    """What a value without attributes says of itself; a lock or an open file says nothing."""
    try:
        return value.__reduce_ex__(2)
    except Exception:
        return None


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType)


def _is_filled(cell: Any) -> bool:
    with suppress(ValueError):
        return cell.cell_contents is not cell
    return False


def _code(code: CodeType) -> Any:
    """The instructions and constants of a function, and of those in it."""
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return code.co_code.hex(), code.co_names, constants


def _constant(value: Any) -> str:
    """As text that is the same in every process."""
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
