"""Datasets that read files.

``Parquet``: the rows of Parquet files.  ``Tar``: the samples of tar shards.
``Tokens``: documents in a flat file of tokens.
"""

from .parquet import Parquet
from .tar import Tar
from .tokens import Tokens

__all__ = ["Parquet", "Tar", "Tokens"]
