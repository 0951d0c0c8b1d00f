"""Datasets that read files: ``Tokens``, documents in a flat file of tokens."""

from .tokens import Tokens

__all__ = ["Tokens"]
