"""Random choices that follow from a key: the same in every process.

Pure.  A key is made from the words that name a choice, such as a seed, a component's
name and the number of an epoch.
"""

from __future__ import annotations

import hashlib

import numpy as np

from .order import GOLDEN, Indices, Words, mix


def key_of(*words: int | str) -> np.uint64:
    """Return the key that ``words`` determine."""
    return np.uint64(seed_of(*words) & (1 << 64) - 1)


def seed_of(*words: int | str) -> int:
    """Return a seed of 120 bits that ``words`` determine."""
    told = repr(words).encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=15).digest(), "little")


def lots(numbers: Indices, key: np.uint64) -> Words:
    """Return a random word for each number."""
    return mix(mix(numbers.view(np.uint64) * GOLDEN + key))


def permutation(length: int, key: np.uint64) -> Indices:
    """Return the numbers below ``length`` in random order."""
    return np.argsort(lots(np.arange(length, dtype=np.int64), key), kind="stable")
