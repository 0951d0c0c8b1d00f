"""A state of a mixture goes on exactly in any form of it, or is refused in words."""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections import Counter
from typing import Any

import pytest
from documents import Documents, Named, lognormal

import mpiter
from mpiter.language import Balanced

LENGTHS = {"web": 90, "code": 40, "books": 70}
EQUAL = {"web": 1, "code": 1}
EACH = Counter(f"{name} {at}" for name in LENGTHS for at in range(LENGTHS[name]))


def mixture(names: str, short: Any = "renormalise", **weights: float) -> Any:
    """Return a mixture of such components, all with the weight 1 if not told."""
    datasets = {name: Named(name, LENGTHS[name]) for name in names.split()}
    return mpiter.Mix(datasets, {**dict.fromkeys(datasets, 1), **weights}, short)


def stream_of(dataset: Any, state: Any = None) -> Any:
    stream = mpiter.batches(dataset, 4, n_processes=0, seed=3)
    if state is not None:
        stream.load_state_dict(json.loads(state))
    return stream


def given_by(stream: Any, batches: int | None = None) -> list[str]:
    return [one for batch in itertools.islice(stream, batches) for one in batch]


# -- names -----------------------------------------------------------------------------


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("weight", [1, 0.3])
def test_a_state_whose_names_were_sorted_goes_on_alike(
    packs: bool, weight: float
) -> None:
    def dataset(weight: float) -> Any:
        parts: dict[str, Any] = {
            "web": Documents(lognormal(90)),
            "code": Documents(lognormal(40, 1), 91),
        }
        mix = mpiter.Mix(parts, {"web": 1, "code": weight}, "renormalise")
        return mpiter.Pack(mix, 64, window=16) if packs else mix

    def rest(*, sort_keys: bool) -> list[Any]:
        options: dict[str, Any] = {"n_processes": 0, "seed": 3}
        if not packs:
            options["ragged"] = "list"
        with mpiter.batches(dataset(1), 3, **options) as stream:
            for _ in range(3):
                next(stream)
            state = json.dumps(stream.state_dict(), sort_keys=sort_keys)
        with mpiter.batches(dataset(weight), 3, **options) as stream:
            stream.load_state_dict(json.loads(state))
            batches = list(stream)
        if packs:
            return [batch["tokens"].tolist() for batch in batches]
        return [one.tolist() for batch in batches for one in batch]

    assert rest(sort_keys=True) == rest(sort_keys=False)


def test_the_order_in_which_components_are_named_does_not_matter() -> None:
    there = mixture("web code books", code=0.5)
    back = mixture("books code web", code=0.5)
    assert given_by(stream_of(there)) == given_by(stream_of(back))
    assert [*there.share(50)] == ["web", "code", "books"]
    stream = stream_of(there)
    first = given_by(stream, 9)
    state = json.dumps(stream.state_dict())
    rest = given_by(stream_of(back, state))
    assert rest == given_by(stream)
    assert Counter(first + rest) == EACH


# -- components that go and come -------------------------------------------------------


@pytest.mark.parametrize("short", ["renormalise", "repeat"])
def test_a_component_that_is_added_again_goes_on_where_it_was(
    short: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mpiter")
    given = list[str]()
    state: str | None = None
    for names in ("web code books", "web code", "code web", "books web code"):
        stream = stream_of(mixture(names, short), state)
        given += given_by(stream, 8)
        state = json.dumps(stream.state_dict(), sort_keys=True)
    had = sum(one.startswith("books") for one in given[:32])
    told = f"component 'books' is back, and goes on behind the {had} samples"
    assert told in caplog.text
    if short == "renormalise":
        assert Counter(given + given_by(stream)) == EACH
    books = [one for one in given if one.startswith("books")]
    assert len({*books}) == len(books) > had > 0


def test_a_component_that_has_become_another_is_refused_when_it_is_back() -> None:
    stream = stream_of(mixture("web code"))
    given_by(stream, 8)
    without = stream_of(mixture("web"), json.dumps(stream.state_dict()))
    given_by(without, 2)
    parts = {"web": Named("web", 90), "code": Named("code", 41)}
    other = mpiter.Mix(parts, EQUAL, "renormalise")
    text = "component 'code' had 40 samples when the state was saved, and has 41 now"
    with pytest.raises(mpiter.StateError, match=text):
        stream_of(other, json.dumps(without.state_dict()))


def test_a_state_knows_a_hundred_dropped_components_at_most() -> None:
    many = {f"c{at}": Named(f"c{at}", 9) for at in range(120)}
    stream = stream_of(mpiter.Mix(many, dict.fromkeys(many, 1)))
    given_by(stream, 200)
    few = {"c7": many["c7"]}
    stream = stream_of(mpiter.Mix(few, {"c7": 1}), json.dumps(stream.state_dict()))
    told = json.dumps(stream.state_dict())
    assert len({*re.findall(r'"c\d+"', told)}) == 101


def test_a_component_that_is_dropped_before_it_has_begun_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = stream_of(mixture("web code", code=0))
    given_by(stream, 5)
    stream_of(mixture("web"), json.dumps(stream.state_dict()))
    assert "component 'code' was dropped before it had begun" in caplog.text


def test_changed_weights_are_told_as_they_were_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mpiter")
    stream = stream_of(mixture("web code"))
    given_by(stream, 5)
    state = json.dumps(stream.state_dict())
    stream_of(mixture("web code", web=0.3, code=0.7), state)
    assert "mix: web 0.3, code 0.7 from document 20 on" in caplog.text
    parts = {name: Named(name, LENGTHS[name]) for name in EQUAL}
    thirds = {"web": "1/3", "code": "2/3"}
    stages = [
        (0, {"web": 1, "code": 9}),
        (10, thirds),
        (1500, {"web": 2.50, "code": 1}),
    ]
    stream_of(mpiter.Mix(parts, stages, "renormalise"), state)
    told = "mix: web 1/3, code 2/3 from document 20 on; web 2.5, code 1 from document "
    assert told + "1,500 on" in caplog.text


# -- components that bring their order -------------------------------------------------


def nested(web: float, wrap: Any = None) -> Any:
    inner = mixture("web code", web=web)
    if wrap is not None:
        inner = wrap(inner)
    return mpiter.Mix({"both": inner}, {"both": 1}, short="renormalise")


def balanced(inner: Any) -> Any:
    return Balanced(inner, lengths=[5] * len(inner))


class Wrapped:
    """A dataset of the user's around another one, with its order."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.mpiter_order = inner.mpiter_order

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: Any) -> Any:
        return self.inner[key]


class Indirect(mpiter.Order):
    """An order of the user's around another one."""

    def __init__(self, inner: mpiter.Order, has_state: bool) -> None:
        self.inner = inner
        self.has_state = has_state

    def __len__(self) -> int:
        return len(self.inner)

    def take(self, start: int, stop: int) -> Any:
        return self.inner.take(start, stop)

    def later(self, epochs: int) -> Indirect:
        return Indirect(self.inner.later(epochs), self.has_state)

    def state(self, position: int) -> Any:
        return self.inner.state(position) if self.has_state else None


class Ordered(Wrapped):
    """A dataset with such an order."""

    def __init__(self, inner: Any, has_state: bool) -> None:
        super().__init__(inner)

        def mpiter_order(seed: int, shuffle: bool | None) -> Any:
            return Indirect(inner.mpiter_order(seed, shuffle), has_state)

        self.mpiter_order = mpiter_order


WRAPS = {
    "mix": None,
    "balanced": balanced,
    "wrapped": Wrapped,
    "state": lambda inner: Ordered(inner, True),
    "no state": lambda inner: Ordered(inner, False),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_a_mixture_in_a_mixture_must_stay_as_it_was(kind: str) -> None:
    wrap = WRAPS[kind]
    stream = stream_of(nested(1, wrap))
    given = given_by(stream, 9)
    state = json.dumps(stream.state_dict(), sort_keys=True)
    given += given_by(stream_of(nested(1, wrap), state))
    assert Counter(given) == Counter(
        {one: n for one, n in EACH.items() if one.split()[0] in EQUAL}
    )
    with pytest.raises(mpiter.StateError, match=r"component 'both' .*had ") as caught:
        stream_of(nested(0.25, wrap), state)
    if kind in ("mix", "balanced", "wrapped"):
        assert "'web': '1'" in str(caught.value)
        assert "'web': '0.25'" in str(caught.value)


def test_a_pack_in_a_mixture_must_stay_as_it_was() -> None:
    documents = Documents([4] * 40)

    def rows(window: int) -> Any:
        return mpiter.Mix({"a": mpiter.Pack(documents, 8, window=window)}, {"a": 1})

    stream = stream_of(rows(16))
    next(stream)
    with pytest.raises(mpiter.StateError, match=r"'a' .* had window 16, and 8 now"):
        stream_of(rows(8), json.dumps(stream.state_dict()))


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [1.5, "8", None, True])
def test_a_place_must_be_a_whole_number(wrong: Any) -> None:
    with pytest.raises(mpiter.OptionError, match=r"place=.* must be a whole number"):
        mixture("web code").share(wrong)


def test_a_field_must_be_text_and_new() -> None:
    parts = {"a": [{"tokens": 1}]}
    with pytest.raises(mpiter.OptionError, match=r"field=5 must be text: .* 'source'"):
        mpiter.Mix(parts, {"a": 1}, field=5)  # type: ignore[arg-type]
    text = "field='tokens' would replace a field .* component 'a' have: pass a name"
    with pytest.raises(mpiter.OptionError, match=text):
        mpiter.Mix(parts, {"a": 1}, field="tokens")[0]
