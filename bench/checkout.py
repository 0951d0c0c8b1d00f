"""Put the checkout that the experiments stand in at the front of sys.path.

It is imported before mpiter, so that the experiments measure this checkout.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT))
