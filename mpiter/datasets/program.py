"""What the caller's program has set, on its way to the workers: settings, and the variables of the program's modules.

``Program`` is taken down in the consumer process when workers are to start, and adopted in each worker before the
dataset is opened.  Guarantees that no module is imported to be given its variables: they are put there as soon as the
worker has imported it (what they are made of is imported for them).  What differs all the same is told, if the
dataset's code can come upon it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Collection
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from .. import script
from . import settings, variables
from .plain import Reader
from .putting import Putting
from .reach import Modules, Roots, mentioned, reached_from

_TOLD = 20  # differences in one warning


class Program:
    """What has been set, by module."""

    def __init__(self, with_main: bool, roots: Roots) -> None:
        """Take down what code of these ``roots`` may come upon; ``with_main`` if workers import the script."""
        self._settings, self._with_main = _settings(), with_main
        modules = _modules(with_main)
        self._variables, self._reached = _variables(roots, modules), reached_from(roots, modules)
        self._files = _open_files()

    def differs(self, roots: Roots) -> bool:
        """Is a setting another one now, or a variable that code of these roots reads?"""
        if _settings() != self._settings:
            return True
        modules = _modules(self._with_main)
        before, now = self._variables, _variables(roots, modules)
        changed = {
            (module, name)
            for module, variables in now.items()
            for name, value in variables.items()
            if before.get(module, {}).get(name) != value
        }
        if not changed:
            return False
        reached = reached_from(roots, modules)
        return not reached.is_all or not changed.isdisjoint(reached.named)

    def modules(self, named: Collection[str]) -> list[str]:
        """Which modules of these names are the program's own, in the order in which it has imported them."""
        return [name for name in list(sys.modules) if name in named and name in self._variables and name != script.NAME]

    def adopt(self) -> Adopted:
        """Make it so in this worker, as its modules are imported."""
        reached = self._reached
        putting = Putting(reached.opened, reached.beside, self._files)
        adopted = Adopted(self._settings, self._variables, self._reached.named, putting)
        for name in self._settings:
            if name in sys.modules or name in settings.IN_FORCE_ANYWAY:
                adopted.put(name, importlib.import_module(name))
        sys.meta_path.insert(0, _Finder(adopted))
        return adopted


def _settings() -> dict[str, dict[str, bytes]]:
    """Those of the process and of known libraries, as they are now."""
    read = {name: found for name in settings.SETTINGS if (found := settings.read(name))}
    return {name: variables.packed(found) for name, found in read.items()}


def _modules(with_main: bool) -> Modules:
    """The program's."""
    return Modules(variables.own_modules() | ({script.NAME: sys.modules[script.NAME]} if with_main else {}))


def _variables(roots: Roots, modules: Modules) -> dict[str, dict[str, bytes]]:
    """Those of all of these modules that the roots lead to, as they are now."""
    reader, found = Reader(modules), dict[str, dict[str, bytes]]()
    left = [*roots.modules, *modules.among({name for code in roots.code.values() for name in mentioned(code)})]
    while left:
        name = script.home(str(left.pop()))
        left += [name.rpartition(".")[0]] * ("." in name)
        if name in modules and name not in found:
            module = modules[name]
            reader.modules = set()
            found[name] = variables.packed(variables.read(module, reader))
            code = [value for value in vars(module).values() if isinstance(value, (type, FunctionType))]
            left += reader.modules | modules.among({name for one in code for name in mentioned(one)})
    return found


def _open_files() -> frozenset[int]:
    """The numbers that files have which are open in this process."""
    found, places = set[int](), "/proc/self/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(places):
            with contextlib.suppress(OSError):  # what the list itself was read from
                if os.path.isfile(os.readlink(f"{places}/{number}")):
                    found.add(int(number))
    return frozenset(found - {0, 1, 2})


class Adopted:
    """A worker's side: what has been put where, and what differs all the same."""

    def __init__(
        self,
        given: dict[str, dict[str, bytes]],
        held: dict[str, dict[str, bytes]],
        reached: Collection[tuple[str, str]],
        putting: Putting,
    ) -> None:
        self._settings, self._variables, self._own = dict(given), dict(held), set(held)
        self._reached, self._putting = reached, putting
        self._differing: list[str] = []  # as far as the dataset's code can come upon it
        self._is_settled = self._is_open = False

    def awaits(self, name: str) -> bool:
        """Is there something to be put into this module?"""
        return name in self._settings or name in self._variables

    def settle(self) -> None:
        """Put the variables of what has been imported: not sooner, since modules begin with each other's first values.

        What is imported later has them at once.
        """
        self._is_settled = True
        for name in self._own & sys.modules.keys():
            self.put(name, sys.modules[name])

    def put(self, name: str, module: ModuleType) -> None:
        """Put into a module what the caller has there."""
        try:
            if name in self._settings:
                given = {what: pickle.loads(value) for what, value in self._settings.pop(name).items()}
                self._tell([f"{name}.{what} ({problem})" for what, problem in settings.put(name, module, given)])
            if name in self._variables and self._is_settled:
                held = self._variables.pop(name)
                for space in script.spaces(module) if name == script.NAME else [vars(module)]:
                    self._differing += [
                        f"{name}.{difference.where} ({difference.how})"
                        for variable, difference in self._putting.into(space, held)
                        if (name, variable) in self._reached
                    ]
        except Exception as problem:  # whoever imports the module must not get to feel it
            self._tell([f"{name} ({type(problem).__name__}: {problem})"])
        if self._is_open:
            self.tell()

    def share(self, held: list[tuple[str, str, Any]]) -> None:
        """Have variables hold what the dataset holds, as they did in the caller: module, name and value of each."""
        for module, name, value in held:
            if module in sys.modules:
                vars(sys.modules[module])[name] = value

    def tell(self) -> None:
        """Tell what differs, once the dataset is there; from now on at once."""
        self._is_open = True
        differing, self._differing = self._differing, []
        self._tell(list(dict.fromkeys(differing)))

    def _tell(self, differences: list[str]) -> None:
        if differences:
            some = differences[:_TOLD] + [f"and {len(differences) - _TOLD} more"] * (len(differences) > _TOLD)
            warnings.warn(
                f"what the program has set differs in its workers: {', '.join(some)}.  They import its modules "
                f"anew, and an object that holds such a thing stays as it was made there.  Hand such things to the "
                f"dataset, set them in worker_init, or pass backend=mpiter.Process(start_method='fork').",
                RuntimeWarning,
                stacklevel=2,
            )


class _Finder(MetaPathFinder):
    """Finds a module as everybody does, and has it looked after once it is imported."""

    def __init__(self, adopted: Adopted) -> None:
        self._adopted = adopted

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not self._adopted.awaits(name):
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if not isinstance(finder, _Finder))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._adopted.put)
        return spec


class _Loader(Loader):
    """Loads as another loader does, which then has its place again."""

    def __init__(self, loader: Any, loaded: Callable[[str, ModuleType], None]) -> None:
        self._loader, self._loaded = loader, loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._loaded(module.__spec__.name, module)
