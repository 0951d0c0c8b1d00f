"""The contract of iterators holds with a backend and a hook of another package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contract import CONSUMERS, contract
from outside import Counted, Futures

globals().update(contract(without=CONSUMERS))


@pytest.mark.slow
class TestInTheConsumer:
    """Tests for which any workers do, and these take long to start."""

    locals().update(
        {
            name: staticmethod(test)
            for name, test in contract().items()
            if name in CONSUMERS
        }
    )


@pytest.fixture
def default() -> Iterator[dict[str, Any]]:
    counted = Counted()
    yield {"n_processes": 1, "backend": Futures(), "hooks": counted}
    assert counted.fetched >= counted.handed


any_way = any_start = default
