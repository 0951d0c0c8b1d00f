"""Packed rows of a mixture come from Ray's actors as they come without workers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from documents import Documents, lognormal

import mpiter

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def test_actors_give_what_is_given_without(ray: Any) -> None:
    parts = {"web": Documents(lognormal(90)), "code": Documents(lognormal(40, 1), 91)}
    mix = mpiter.Mix(parts, {"web": 3, "code": 2})
    options: dict[str, Any] = {"shuffle": True, "seed": 2}
    for dataset in (
        mpiter.Pack(mix, 64, window=30),
        mpiter.Mix(
            {name: mpiter.Pack(part, 64) for name, part in parts.items()},
            {"web": 1, "code": 1},
        ),
    ):
        here = mpiter.SerialIterator(dataset, 4, **options)
        with mpiter.MultiprocessIterator(
            dataset, 4, n_processes=1, backend="ray", **options
        ) as there:
            for one, other in itertools.islice(zip(here, there, strict=False), 25):
                for name, column in one.columns.items():
                    assert (column == other.columns[name]).all()
                assert here.step_tokens == there.step_tokens
