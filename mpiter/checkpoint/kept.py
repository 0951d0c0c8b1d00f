"""Kept files of a training, which stay when a later step is saved.

Beside ``run.npz``, the latest, ``run-000002000.npz`` is the file of step 2,000.  A kept
file is a second name of what was the latest, so it takes no time to write; where the
file system knows no second names, it is a copy.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Keeping:
    """Keeps the ``last`` files, and for ever those of steps that ``every`` divides."""

    path: Path
    last: int = 0
    every: int | None = None

    def name_of(self, step: int) -> Path:
        number = f"{step:0{_DIGITS}d}"
        return self.path.with_name(f"{self.path.stem}-{number}{self.path.suffix}")

    def there(self) -> dict[int, Path]:
        """Return the kept files by their steps, the first ones first."""
        stem = re.escape(self.path.stem)
        suffix = re.escape(self.path.suffix)
        named = re.compile(rf"{stem}-(\d{{{_DIGITS},}}){suffix}")
        found = dict[int, Path]()
        for path in self.path.parent.iterdir():
            match = named.fullmatch(path.name)
            if match is not None:
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def keep(self, step: int) -> None:
        """Keep what was saved just now, after ``step``; delete what needn't be kept.

        Files of later steps are left alone: they are of a training that was begun again
        from an earlier file.
        """
        if not self.last and not self._is_for_ever(step):
            return
        self._name_once_more(self.name_of(step))
        passing = []
        for one in self.there():
            if one <= step and not self._is_for_ever(one):
                passing.append(one)
        too_many = max(0, len(passing) - self.last)
        for one in passing[:too_many]:
            self.name_of(one).unlink(missing_ok=True)

    def _is_for_ever(self, step: int) -> bool:
        return self.every is not None and step > 0 and step % self.every == 0

    def _name_once_more(self, name: Path) -> None:
        # The name may be that of a file from before the training was begun again.  It
        # is replaced in one go, so that a kill never leaves a part of a copy there.
        new = self.path.with_name(f".{self.path.name}-kept")
        new.unlink(missing_ok=True)
        try:
            try:
                os.link(self.path, new)
            except OSError:
                shutil.copyfile(self.path, new)
            os.replace(new, name)
        finally:
            # If ``name`` is a second name of the same file already, os.replace() does
            # nothing, and ``new`` is still there.
            with contextlib.suppress(FileNotFoundError):
                new.unlink()
