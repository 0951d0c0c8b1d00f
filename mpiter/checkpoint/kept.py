"""Kept files of a training: beside ``run.npz``, the latest, ``run-000002000.npz`` is
that of step 2,000.

A kept file is a second name of what was the latest, so it takes no time to write; where
the file system knows no second names, it is a copy.
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
    """Which files are kept: the ``last`` ones, and for ever those whose step is a
    multiple of ``every``.
    """

    path: Path
    last: int = 0
    every: int | None = None

    def name_of(self, step: int) -> Path:
        return self.path.with_name(
            f"{self.path.stem}-{step:0{_DIGITS}d}{self.path.suffix}"
        )

    def there(self) -> dict[int, Path]:
        """Return the kept files by their steps, the first ones first."""
        named = re.compile(
            rf"{re.escape(self.path.stem)}-(\d{{{_DIGITS},}}){re.escape(self.path.suffix)}"
        )
        found = dict[int, Path]()
        for path in self.path.parent.iterdir():
            if match := named.fullmatch(path.name):
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def keep(self, step: int) -> None:
        """Keep what was saved just now, after ``step``, and delete what needn't be kept
        any longer.

        Files of later steps are left alone: they are of a training that was begun again
        from an earlier file.
        """
        if not self.last and not self._is_for_ever(step):
            return
        self._name_once_more(self.name_of(step))
        before = [
            one for one in self.there() if one <= step and not self._is_for_ever(one)
        ]
        for one in before[: max(0, len(before) - self.last)]:
            self.name_of(one).unlink(missing_ok=True)

    def _is_for_ever(self, step: int) -> bool:
        return self.every is not None and step > 0 and step % self.every == 0

    def _name_once_more(self, name: Path) -> None:
        new = self.path.with_name(f".{self.path.name}-kept")
        new.unlink(missing_ok=True)
        try:
            try:
                os.link(self.path, new)
            except OSError:
                shutil.copyfile(self.path, new)
            os.replace(new, name)
        finally:
            # Two names of one file that are renamed one to the other both stay.
            with contextlib.suppress(FileNotFoundError):
                new.unlink()
