"""The browser that pages are looked at in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from scripts import wait_until

# `.ci/run` installs Chromium beside other work, and writes this file when that is over.
_IS_THERE = os.environ.get("MPITER_CHROMIUM_IS_THERE")


def chromium() -> str:
    """Return the path of Chromium; skip the test if there is none."""
    if _IS_THERE:
        wait_until(Path(_IS_THERE).exists, "Chromium is installed")
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("the page was not opened: install chromium")
    return found
