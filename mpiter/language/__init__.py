"""Order for language models: exact mixtures, packed rows, even ranks.

``mpiter.Mix`` makes one dataset of several, ``mpiter.Pack`` rows of documents.  Both
bring their order, so that every iterator and loader takes them like other datasets.
"""

from .balanced import Balanced
from .components import Source
from .flat import flat
from .lengths import measure_lengths
from .mix import Ending

__all__ = ["Balanced", "Ending", "Source", "flat", "measure_lengths"]
