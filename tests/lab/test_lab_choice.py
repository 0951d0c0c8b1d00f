"""The rule: which number of workers is taken, by which threshold, and what is said of the others."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_results import result_of

from mpiter.lab import workers
from mpiter.lab.choice import Rule, choose, reason, whole_rounds
from mpiter.lab.results import Row

positive = st.floats(1e-3, 1e6)
rules = st.builds(Rule, st.floats(0.001, 1)) | st.builds(Rule, st.just(0.05), st.floats(0.001, 10))
rounds_ = st.sets(st.integers(0, 64), min_size=1, max_size=6).flatmap(
    lambda numbers: st.lists(st.fixed_dictionaries(dict.fromkeys(numbers, positive)), min_size=1, max_size=5)
)


def test_the_tuner_chooses_what_its_authors_table_says():
    published = [{count: seconds for count, (seconds, _) in workers.PUBLISHED.items()}]
    theirs = Rule(alpha=0.5)
    assert choose(published, theirs) == 14
    assert reason(published, 14, theirs).text == "16 gains 0.0800 s, and only more than 0.500 s counts"


def gains(rounds, rule, one, other):
    return [rule.gained(each[one], each[other]) for each in rounds]


@given(rounds_, rules)
def test_what_is_taken_is_slower_than_the_fewest_in_no_round(rounds, rule):
    taken, fewest = choose(rounds, rule), min(rounds[0])
    found = gains(rounds, rule, taken, fewest)
    assert min(found) >= 0
    assert taken == fewest or rule.is_enough(statistics.median(found))


@given(rounds_, rules)
def test_no_number_is_given_away_that_gains_enough_and_is_slower_in_no_round(rounds, rule):
    taken = choose(rounds, rule)
    for other in set(rounds[0]) - {taken}:
        found = gains(rounds, rule, other, taken)
        assert min(found) < 1e-12 or not rule.is_enough(statistics.median(found) * (1 - 1e-9))


@given(rounds_, rules)
def test_what_looks_faster_and_is_not_taken_is_named_with_the_threshold(rounds, rule):
    taken = choose(rounds, rule)
    told = reason(rounds, taken, rule)
    others = {other: gains(rounds, rule, other, taken) for other in set(rounds[0]) - {taken}}
    doubtful = [other for other, found in others.items() if rule.is_enough(max(found))]
    faster = [other for other, found in others.items() if statistics.median(found) > 0]
    assert told.is_doubtful == bool(doubtful)
    if doubtful:
        assert any(told.text.startswith((f"{other} workers ranged", f"{other} worker ranged")) for other in doubtful)
        assert ("slower to " in told.text) == (": noise, so " in told.text)
        assert ": noise" in told.text or f"only more than {rule.told(rule.threshold)} counts" in told.text
    elif faster:
        assert all(str(other) in told.text for other in faster)
        assert f"only more than {rule.told(rule.threshold)} counts" in told.text
    else:
        assert told.text == "no other number is faster"


def test_the_threshold_is_a_share_whatever_is_timed():
    short = [{0: 4.0, 2: 2.0, 3: 1.95}]
    long = [{count: 100 * seconds for count, seconds in short[0].items()}]
    assert choose(short, Rule()) == choose(long, Rule()) == 2
    assert choose(short, Rule(0.02)) == 3
    assert (choose(short, Rule(alpha=0.5)), choose(long, Rule(alpha=0.5))) == (2, 3)


def test_a_round_that_was_cut_short_does_not_count():
    found = {0: [4, 4], 2: [2]}
    rows = [Row("process", "store", {"workers": count}, {"s": dict(enumerate(s))}) for count, s in found.items()]
    assert whole_rounds(rows, "s") == [{0: 4, 2: 2}]


@pytest.mark.parametrize(
    ("one", "two", "settings", "said"),
    [
        (
            [8.0, 8.1, 8.2],
            [4.0, 4.1, 4.2],
            {},
            "the rule takes 2 workers (6 batches in 4.10 s, 1.98 times as fast as without): no other number is faster.",
        ),
        ([4.0, 4.0], [4.1, 4.1], {}, "no workers (6 batches in 4 s): no other number is faster."),
        ([4.0, 4.0], [3.9, 4.0], {}, "(6 batches in 4 s): 2 gains 1.28%, and only more than 5% counts."),
        (
            [4.0, 4.0, 4.0],
            [3.4, 4.2, 3.4],
            {},
            "no workers (6 batches in 4 s): 2 workers ranged from 4.76% slower to 17.6% faster than none: "
            "noise, so none are taken.",
        ),
        ([4.0, 4.0], [3.6, 3.7], {"alpha": 0.5}, "2 gains 0.350 s, and only more than 0.500 s counts."),
        ([8.0, 4.0], [2.0, 2.0], {}, "takes 2 workers (6 batches in 2 s, 2 to 4 times as fast as without)"),
        ([4.0], [1.0], {}, None),
    ],
)
def test_the_rule_is_told_with_its_threshold_and_what_it_left(one, two, settings, said):
    rows = [("process", "store", {"workers": count}, {"seconds": found}) for count, found in ((0, one), (2, two))]
    telling = workers.tell(result_of(rows, "workers", iterations=6, **settings))
    assert [said in sentence for sentence in telling.says] == [True] * bool(said)
    assert telling.warnings == []
