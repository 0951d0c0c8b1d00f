"""The command `mpiter`, and `python -m mpiter`."""

from __future__ import annotations

import sys

from .lab.command import main

if __name__ == "__main__":
    sys.exit(main())
