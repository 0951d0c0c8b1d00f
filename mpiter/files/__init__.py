"""Datasets that read files.

``Parquet``: the rows of Parquet files.  ``Tokens``: documents in a flat file of tokens.
"""

from .parquet import Parquet
from .tokens import Tokens

__all__ = ["Parquet", "Tokens"]
