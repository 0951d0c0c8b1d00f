"""The checkout that the benchmarks stand in: imported before mpiter, it is what they measure, whatever is installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT))
