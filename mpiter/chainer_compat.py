"""Makes Chainer 7.8.1 work on NumPy 2, and on Python 3.12 and later.

Import this module before ``chainer``.  In a few of Chainer's modules, names that no
longer exist are replaced as the modules are imported; no name is added to NumPy or
``sys.modules``.  Worker processes import this module before anything else if the
process that starts them has. Assumes Chainer 7.8.1, its last release; harmless if
Chainer needs no help, or isn't installed.

>>> import mpiter.chainer_compat
>>> import chainer
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from .datasets import ship

_STAND_IN = "from mpiter.chainer_compat import _PkgResources as pkg_resources"
_EDITS = {
    "chainer._environment_check": {
        "import numpy.distutils.system_info": "import numpy",
        "import pkg_resources": _STAND_IN,
        "numpy.distutils.system_info.get_info('blas_opt')": "{}",
    },
    "chainer.dataset.convert": {
        "numpy.maximum(shape, array.shape, shape)": (
            "numpy.maximum(shape, array.shape, out=shape)"
        ),
    },
    "chainer.distributions.categorical": {"[mg + [": "[list(mg) + ["},
    "chainer.functions.array.as_strided": {
        "np.sctypes['int']": "(np.int8, np.int16, np.int32, np.int64)",
        "np.sctypes['float']": "(np.float16, np.float32, np.float64)",
    },
    "chainer.functions.array.resize_images": {"numpy.float)": "float)"},
    "chainer.testing.doctest_helper": {"import pkg_resources": _STAND_IN},
    "chainer.testing.helper": {"import pkg_resources": _STAND_IN},
    "chainermn.iterators.multi_node_iterator": {"int(_size)": "int(_size[0])"},
}


class _PkgResources:
    """Stands in for ``pkg_resources``, by which Chainer checks what is installed.

    Versions aren't compared.
    """

    ResolutionError = metadata.PackageNotFoundError
    DistributionNotFound = metadata.PackageNotFoundError
    VersionConflict = metadata.PackageNotFoundError

    @classmethod
    def require(cls, *requirements: str) -> None:
        """Raise a PackageNotFoundError unless each requirement is installed.

        One of them is "ideep4py<2.1".
        """
        for requirement in requirements:
            metadata.distribution(re.split("[<>=!~, ]", requirement)[0])


# Chainer's helpers for tests make a WorkingSet, and call its `require()`.
_PkgResources.WorkingSet = lambda: _PkgResources  # type: ignore[attr-defined]


class _Edited(SourceFileLoader):
    """Loads a module of Chainer with the replacements of ``_EDITS``."""

    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_source(fullname)
        assert source is not None
        for old, new in _EDITS[fullname].items():
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the modules of ``_EDITS``, before Python's own finders do."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if name not in _EDITS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Edited(name, spec.origin)
        return spec


# An import of Chainer that has failed leaves modules behind, which would not be loaded
# again with the replacements.
if "chainer" not in sys.modules:
    for name in [name for name in sys.modules if name.startswith("chainer.")]:
        del sys.modules[name]
sys.meta_path.insert(0, _Finder())
ship.import_first(__name__)
