"""The checkout that the experiments stand in: imported before mpiter, it is what
they measure.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT))
