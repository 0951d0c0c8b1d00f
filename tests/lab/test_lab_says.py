"""What the lab says of its figures: conclusions, models and rules, comparisons; and what it measures with."""

from __future__ import annotations

import argparse
import json
import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_results import HEADING, everything, result_of

import mpiter
from mpiter.__main__ import _parser
from mpiter.datasets.access import reader_of
from mpiter.lab import carriers, compare, hide, laboratory, overhead, peers, results
from mpiter.lab.capacity import Capacity
from mpiter.lab.command import _options_of
from mpiter.lab.experiments import EXPERIMENTS
from mpiter.lab.historical import DataLoader, DataLoaderPar
from mpiter.lab.limit import Limit
from mpiter.lab.payloads import PAYLOADS, same
from mpiter.lab.report.page import page
from mpiter.lab.results import ResultError, Row
from mpiter.lab.text import Telling
from mpiter.lab.views import Lines, Table
from mpiter.lab.watched import Watched, watch, watched

positive = st.floats(1e-3, 1e6)


@pytest.fixture(params=[made.experiment for made in everything()])
def made(request):
    return next(each for each in everything() if each.experiment == request.param)


@pytest.mark.slow
def test_steady_figures_lead_to_conclusions_and_the_page_tells_them(made):
    experiment = EXPERIMENTS[made.experiment]
    telling = experiment.tell(made)
    assert telling.says
    assert not telling.warnings
    text = page([laboratory._section(experiment, made)], "made up")
    assert "mpiter lab overhead --seed 0" in text
    assert "a processor, 2 cores usable" in text


def test_a_single_round_leads_to_no_conclusion_and_no_ratio(made):
    experiment = EXPERIMENTS[made.experiment]
    once = [Row(r.row, r.case, r.at, {f: {0: v[0]} for f, v in r.by_round.items()}) for r in made.rows]
    made.rows = once
    assert experiment.tell(made).says == []
    for view in experiment.views(made):
        if isinstance(view, Table) and "ublished" not in view.title:
            assert not [cell for row in view.rows for cell in row if cell.endswith(("×", "%"))]
        if isinstance(view, Lines) and ("against" in view.y or "times" in view.y):
            assert all(each.published or not each.points for each in view.series)
    assert "a single round" in made.warnings()[0]


def test_figures_that_jump_lead_to_warnings(made):
    rng = np.random.default_rng(0)
    made.rows = [
        Row(r.row, r.case, r.at, {f: {at: v * rng.lognormal(sigma=1) for at, v in found.items()}
                                  for f, found in r.by_round.items()})
        for r in made.rows
    ]  # fmt: skip
    said = EXPERIMENTS[made.experiment].tell(made).says
    assert not [sentence for sentence in said if "×" in sentence]
    assert any("marked ~" in warning for warning in made.warnings())


def hiding(waits, batch_ms=(111, 111, 111)):
    """A result of `hide` whose steps waited so long, by number of workers and round; in one process a batch took…"""
    made = next(each for each in everything() if each.experiment == "hide")
    kept = [row for row in made.rows if row.row != hide.TRAINING]
    for row in kept:
        if row.row == hide.SPLIT:
            row.by_round["batch_ms"].update(enumerate(batch_ms))
            row.by_round["cpu_ms"].update(enumerate([10.0] * len(batch_ms)))
    made.rows = kept + [
        Row(
            hide.TRAINING,
            "store",
            {"workers": w},
            {"step_ms": dict(enumerate(found)), "wait_ms": dict(enumerate(found))},
        )
        for w, found in enumerate(waits, 1)
    ]
    return hide.tell(made)


def test_rounds_that_disagree_on_who_hides_loading_lead_to_no_conclusion():
    assert "measured: 2 did" in hiding([[60, 60, 60], [0, 1, 0]]).says[-1]
    assert "measured: none of the 2 numbers tried did" in hiding([[60, 60, 60], [9, 9, 9]]).says[-1]
    assert "rounds differ (predicted 3; measured 2, 3)" in hiding([[60, 60, 60], [0, 9, 0], [0, 0, 0]]).warnings[-1]
    apart = hiding([[60, 60, 60], [0, 1, 0]], batch_ms=[111, 111, 130])
    assert "rounds differ (predicted 3, 4; measured 2)" in apart.warnings[-1]


def test_without_every_number_tried_twice_nobody_is_called_the_fewest():
    assert not [sentence for sentence in hiding([]).says if "should hide" in sentence]
    assert not [sentence for sentence in hiding([[60], [0]]).says if "should hide" in sentence]


def test_nothing_at_all_is_told_as_nothing(made):
    made.rows = []
    experiment = EXPERIMENTS[made.experiment]
    assert experiment.tell(made) == Telling()
    assert page([laboratory._section(experiment, made)], "nothing")


def test_the_claim_of_the_article_is_answered_in_a_sentence_and_stands_in_the_report():
    made = next(iter(everything()))
    sentence = overhead.tell(made).says[0]
    assert sentence == (
        "plain pickling costs 10× the CPU of packing as Chainer does it, and 10× that of packing into slots (a 28×28 "
        "uint8 image and a label, batches of 128, 2 workers)."
    )
    assert "an order of magnitude" in overhead.views(made)[0].note


def test_a_curve_of_published_figures_says_so():
    for made in everything():
        for view in EXPERIMENTS[made.experiment].views(made):
            for each in view.series if isinstance(view, Lines) else ():
                theirs = any(name in each.name for name in ("course project", "Num Worker Tuner"))
                assert each.published == theirs


# -- models ------------------------------------------------------------------------------------------------


def test_the_model_predicts_what_the_article_predicts():
    article = Capacity(batch_ms=1700, cpu_ms=300, cores=8)
    assert [round(article.predicted_ms(w)) for w in (1, 3, 4)] == [1700, 567, 425]
    assert article.fewest(654) == 3


@given(st.floats(1, 1e4), st.floats(0, 1), st.integers(1, 64), st.floats(1, 1e4))
def test_the_fewest_workers_hide_loading_and_one_less_does_not(batch_ms, share, cores, step_ms):
    model = Capacity(batch_ms, share * batch_ms, cores)
    fewest = model.fewest(step_ms)
    if fewest is None:
        assert model.predicted_ms(10**6) > step_ms
    else:
        assert model.predicted_ms(fewest) <= step_ms * (1 + 1e-9)
        assert fewest == 1 or model.predicted_ms(fewest - 1) > step_ms * (1 - 1e-9)


# -- comparing -------------------------------------------------------------------------------------------------------


def compared(before, after):
    at = {"workers": 2}
    one = result_of([("slots", "28x28", at, {"batches_per_s": before})])
    other = result_of([("slots", "28x28", at, {"batches_per_s": after})])
    return compare.compared({"overhead": one}, {"overhead": other})


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([100, 101, 102], [150, 151, 152], "+50% better"),
        ([100, 101, 102], [50, 51, 52], "-50% worse"),
        ([100, 101, 102], [103, 104, 105], None),  # less than five percent
        ([100, 150, 200], [190, 210, 260], None),  # within the noise
        ([100], [200], None),  # one round each
    ],
)
def test_only_what_goes_beyond_the_noise_is_called_a_change(before, after, told):
    found = compared(before, after)
    rows = [" ".join(row[-2:]) for table in found.tables for row in table.rows]
    assert rows == ([told] if told else [])
    assert found.says.startswith(f"{int(bool(told))} of 1 figures")


def test_of_noise_alone_hardly_anything_is_called_a_change():
    rng = np.random.default_rng(0)
    for rounds, noise in ((3, 0.05), (3, 0.2), (5, 0.1)):
        told = [bool(compared(*rng.normal(100, 100 * noise, (2, rounds)).tolist()).tables) for _ in range(1000)]
        assert sum(told) < 10


def test_what_else_differs_between_two_folders_is_told_first():
    one, other = result_of([], workers=[1]), result_of([], workers=[2])
    other.heading = HEADING | {"versions": {"python": "3.12"}, "machine": {**HEADING["machine"], "cpu": "another"}}
    remarks = compare.compared({"overhead": one, "peers": one}, {"overhead": other}).remarks
    assert "overhead: another machine: cpu a processor / another" in remarks
    assert "overhead: version of python: 3.11 / 3.12" in remarks
    assert "overhead: setting workers: [1] / [2]" in remarks
    assert "peers: only in the first folder" in remarks


def test_figures_that_mean_something_else_are_not_compared():
    rows = [("process", "store", {"workers": 2}, {"seconds": [1.0, 1.0, 1.0]})]
    one, other = (result_of(rows, "workers", iterations=count) for count in (50, 100))
    found = compare.compared({"workers": one}, {"workers": other})
    assert "workers: not compared, since its figures are about another iterations" in found.remarks
    assert found.says.startswith("nothing could be compared")


@pytest.mark.parametrize("damage", [{"heading": HEADING | {"machine": None}}, {"settings": []}])
def test_a_document_that_makes_no_sense_is_named(damage):
    one, other = result_of([]), replace(result_of([]), **damage)
    with pytest.raises(ResultError, match=r"overhead\.json of one of the two holds something that makes no sense"):
        compare.compared({"overhead": one}, {"overhead": other})


@pytest.mark.parametrize("value", [math.nan, math.inf, "fast"])
def test_what_was_never_measured_is_refused(tmp_path, value):
    document = results.document(result_of([("slots", "28x28", {}, {"cpu_ms": [1.0]})]), [], [])
    document["rows"][0]["figures"]["cpu_ms"]["values"] = [value]
    (tmp_path / "overhead.json").write_text(json.dumps(document))
    with pytest.raises(ResultError, match="can't be read as a result of the lab"):
        results.folder_of(tmp_path)


def test_a_result_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResultError, match=r"folder cannot be written"):
        results.keep(tmp_path / "folder", "{}")


# -- who did what when -----------------------------------------------------------------------------------------------


class Together:
    """Read many at once, as torch's fetchers do."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return 10 * index

    def __getitems__(self, indices):
        return [10 * index for index in indices]


@pytest.mark.parametrize(
    "dataset", [list(range(0, 80, 10)), np.arange(0, 80, 10), Together()], ids=["list", "array", "together"]
)
def test_a_dataset_that_is_watched_is_read_as_it_was(tmp_path, dataset):
    seen = watch(dataset, str(tmp_path))
    assert (reader_of(seen) is None) == (reader_of(dataset) is None)
    with mpiter.SerialIterator(seen, 4, repeat=False, shuffle=False) as it:
        assert list(map(list, it)) == [[0, 10, 20, 30], [40, 50, 60, 70]]
    (file,) = tmp_path.iterdir()
    assert [index for index, begin, end in Watched.entries(file)] == list(range(8))
    assert list(dict.fromkeys(label for *_, label in watched(str(tmp_path), 4)[0])) == ["batch 0", "batch 1"]


# -- the historical loaders, and what is loaded ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_the_parallel_loader_of_the_course_project_gives_what_its_sequential_one_gives(count):
    dataset = [f"sample {number}" for number in range(23)]
    parallel = DataLoaderPar(dataset, 5, count)
    try:
        batches = list(parallel)
    finally:
        parallel.close()
    assert batches == list(DataLoader(dataset, 5))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("carrier", [carriers.Pickle, carriers.RawArray])  # pickle5 pickles everything
def test_a_first_sample_that_cannot_be_pickled_is_held_where_nobody_leaves_the_process(carrier):
    locks = [threading.Lock() for _ in range(4)]
    with mpiter.MultithreadIterator(locks, 2, repeat=False, shuffle=False, n_threads=1, serializer=carrier) as it:
        assert next(it)[0] is locks[0]


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_is_the_same_for_the_same_seed_and_made_anew_each_time(name):
    one, other, different = (PAYLOADS[name].dataset(seed) for seed in (1, 1, 2))
    assert same(one[7], other[7])
    assert not same(one[7], different[7])
    assert one[7] is not one[7]


def test_the_limit_is_filled_with_the_same_bytes_as_the_loop_brings():
    case = peers.CASES["28x28"]
    assert Limit.digest(case) == peers.expected_digest(case)


def test_what_is_said_of_all_experiments_reaches_each_with_its_own_defaults():
    common = _parser(["--small"]).parse_args(["lab", "all", "--small", "--seed", "3"])
    own = {name: _options_of(experiment, common) for name, experiment in EXPERIMENTS.items()}
    assert {options.seed for options in own.values()} == {3}
    assert (own["hide"].dataset, own["hide"].seconds) == ("store", hide.SMALL_SECONDS)
    assert own["workers"].dataset == ["store"]


def test_what_is_asked_for_twice_is_measured_once():
    options = argparse.Namespace(workers=[2, 1, 2], seed=0)
    laboratory._drop_repetitions(options)
    assert options.workers == [2, 1]
