"""The lab's pure parts: statistics, order of turns, budgets, results, conclusions, models, comparisons."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shlex
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpiter
from mpiter.__main__ import _parser
from mpiter.access import reader_of
from mpiter.lab import carriers, compare, hide, laboratory, overhead, peers, results, series, speedup, workers
from mpiter.lab.asked import command_again
from mpiter.lab.bar import Bar, line
from mpiter.lab.capacity import Capacity
from mpiter.lab.command import _options_of
from mpiter.lab.experiments import EXPERIMENTS
from mpiter.lab.historical import DataLoader, DataLoaderPar
from mpiter.lab.limit import Limit
from mpiter.lab.payloads import PAYLOADS, same
from mpiter.lab.report.page import page
from mpiter.lab.results import Result, ResultError, Row
from mpiter.lab.series import Series, interleaved
from mpiter.lab.spreads import Spread, ratio, spread
from mpiter.lab.text import Telling, drawn, number, times
from mpiter.lab.turns import Turn
from mpiter.lab.views import Lines, Table
from mpiter.lab.watched import Watched, watch, watched

HEADING = {
    "schema": results.SCHEMA,
    "command": "python -m mpiter lab overhead",
    "again": "mpiter lab overhead --seed 0",
    "started": "2026-11-21T12:00:00+0000",
    "took_s": 12.0,
    "machine": {"cpu": "a processor", "cores_usable": 2, "memory_bytes": 24e9, "system": "Linux"},
    "commit": {"id": None, "dirty": None},
    "versions": {"python": "3.11", "mpiter": "0.1.0"},
}
positive = st.floats(1e-3, 1e6)


def turn(row, case="28x28", **at):
    return Turn("overhead", row, case, at or {"workers": 2}, 0.1, 0.1, seed=0)


def result_of(rows, experiment="overhead", **settings):
    """A result from (row, case, at, {figure: a value for each round})."""
    made = [
        Row(row, case, at, {name: dict(enumerate(values)) for name, values in figures.items()})
        for row, case, at, figures in rows
    ]
    return Result(experiment, dict(HEADING), {**EXPERIMENTS[experiment].FULL, **settings}, made)


# -- statistics ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(positive, st.floats(0.1, 10)), min_size=2), st.floats(0.5, 20))
def test_a_machine_that_grows_slower_from_round_to_round_leaves_the_ratio_as_it_is(rounds, faster):
    one = {at: value * drift * faster for at, (value, drift) in enumerate(rounds)}
    other = {at: value * drift for at, (value, drift) in enumerate(rounds)}
    found = ratio(one, other)
    assert math.isclose(found.median, faster, rel_tol=1e-9)
    assert not found.is_noisy


def test_no_ratio_is_taken_from_a_single_round_nor_from_rounds_that_do_not_meet():
    assert ratio({0: 2.0}, {0: 1.0}) is None
    assert ratio({0: 2.0, 1: 2.0}, {2: 1.0, 3: 1.0}) is None
    assert ratio({0: 2.0, 1: 2.0}, {0: 0.0, 1: 1.0}) is None


def test_rounds_that_differ_by_more_than_fifteen_percent_are_noisy():
    assert not spread([100, 110, 105]).is_noisy
    assert spread([100, 125, 112]).is_noisy
    assert not spread([100, 125, 112, 113, 111, 112]).is_noisy
    assert spread([7.0]).edges is None
    assert spread([0, 0, 9, 0, 9]).is_noisy  # of nothing, anything is much
    assert not spread([0, 0, 0]).is_noisy


@given(st.lists(st.floats(1, 100), min_size=2, max_size=4))
def test_of_few_values_the_spread_is_estimated_from_all_of_them(values):
    found = spread(values)
    assert found.edges == (min(values), max(values))
    assert 0.6 * (max(values) - min(values)) <= found.iqr <= 1.21 * (max(values) - min(values))


# -- the order of turns ----------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_every_row_has_its_turn_in_each_round_and_each_round_begins_with_another(rows, cases, rounds):
    turns = [turn(f"row {row}", f"case {case}", workers=row, cost=case) for case in range(cases) for row in range(rows)]
    planned = list(interleaved(turns, rounds))
    assert len(planned) == rows * cases * rounds
    for number_ in range(rounds):
        here = [each for round_, each in planned if round_ == number_]
        assert sorted(map(str, here)) == sorted(map(str, turns))
        assert here[0].row == f"row {number_ % rows}"
    assert [round_ for round_, _ in planned] == sorted(round_ for round_, _ in planned)


class Clock:
    """Every turn takes ten seconds."""

    now = 0.0

    def __call__(self):
        return self.now

    def ask(self, asked):
        self.now += 10
        return {"figures": {"batches_per_s": self.now}}


def test_nothing_begins_that_the_budget_has_no_room_for():
    clock = Clock()
    found = series.run("overhead", [turn("slots"), turn("pickle")], 3, clock.ask, budget_s=45, clock=clock)
    assert len(found.answers) == 4
    assert "budget" in found.ended_by
    assert clock.now <= 45


def test_a_first_turn_that_is_longer_than_the_budget_does_not_begin():
    long = replace(turn("slots"), seconds=50.0)
    clock = Clock()
    found = series.run("overhead", [long], 1, clock.ask, budget_s=45, clock=clock)
    assert not found.answers
    assert found.ended_by == "the budget of 0.75 min was spent"


def test_ctrl_c_leaves_what_was_measured_before():
    asked = []

    def ask(each):
        asked.append(each)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"figures": {"batches_per_s": 1.0}}

    found = series.run("overhead", [turn("slots"), turn("pickle")], 2, ask)
    assert len(found.answers) == 2
    assert found.ended_by == series.INTERRUPTED


def test_whoever_wants_to_end_us_waits_while_results_are_kept():
    kept = False
    with pytest.raises(KeyboardInterrupt), series.held_back():
        signal.raise_signal(signal.SIGINT)
        kept = True
    assert kept


def test_ctrl_c_once_more_while_things_are_put_away_costs_nothing_that_was_measured(monkeypatch, tmp_path):
    @contextlib.contextmanager
    def preparing(options):
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(overhead, "preparing", preparing)
    monkeypatch.setattr(laboratory, "ask", lambda turn, timeout: {"figures": {"batches_per_s": 1.0}})
    monkeypatch.setattr(overhead, "tell", lambda result: Telling())
    monkeypatch.setattr(overhead, "views", lambda result: ())
    words = ["lab", "overhead", "--small", "--out", str(tmp_path)]
    options = _parser(words).parse_args(words)
    assert laboratory.measure([(overhead, options)], None) == 130
    kept = results.folder_of(tmp_path)["overhead"]
    assert kept.ended_by == series.INTERRUPTED
    assert len(kept.turns) > 1


def test_what_is_not_installed_is_asked_for_once_and_is_a_line_in_the_result():
    asked = []

    def ask(each):
        asked.append(each.row)
        return {"absent": "pip install grain"} if each.row == "grain" else {"figures": {"batches_per_s": 1.0}}

    found = series.run("peers", [turn("grain"), turn("torch")], 3, ask)
    assert asked.count("grain") == 1
    assert asked.count("torch") == 3
    assert results.gathered("peers", HEADING, {}, found).absent == {"grain": "pip install grain"}


# -- results ---------------------------------------------------------------------------------------------------------


def measured():
    answers = [
        (0, turn("slots"), {"figures": {"batches_per_s": 10.0, "cpu_ms": 1.0}, "extra": {"a": 1}}),
        (0, turn("pickle"), {"error": "gave no answer within 3 s"}),
        (1, turn("slots"), {"figures": {"batches_per_s": 30.0, "cpu_ms": 1.0}, "problems": ["sample 3 changed"]}),
    ]
    return results.gathered("overhead", dict(HEADING), dict(overhead.FULL), Series(answers, 4, "it was interrupted"))


def test_a_result_comes_back_from_its_json_as_it_was():
    before = measured()
    document = json.loads(json.dumps(results.document(before, ["said"], ["warned"])))
    after = results.from_document(document)
    assert after == before
    assert document["schema"] == "mpiter.lab/1"
    assert document["complete"] is False
    assert document["says"] == ["said"]


def test_what_went_wrong_is_told_by_the_result():
    warnings = measured().warnings()
    assert "ended early: it was interrupted" in warnings
    assert any("gave no answer" in warning for warning in warnings)
    assert any("sample 3 changed" in warning for warning in warnings)
    assert any("1 of 2 figures (marked ~) differ" in warning for warning in warnings)


def test_the_csv_has_a_line_for_each_figure_of_each_row():
    header, *lines = results.as_csv(measured()).splitlines()
    assert header == "schema,experiment,row,case,workers,figure,median,iqr,rounds"
    assert lines[0] == "mpiter.lab/1,overhead,slots,28x28,2,batches_per_s,20.0,24.0,2"
    assert len(lines) == 2


def test_results_are_not_written_over(tmp_path):
    file = tmp_path / "overhead.json"
    file.write_text("mine")
    with pytest.raises(ResultError, match=r"--out.*--force"):
        results.refuse_what_cannot_be_kept(file, force=False)
    results.refuse_what_cannot_be_kept(file, force=True)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "new" / "overhead.csv"
    results.keep(file, "first")
    with pytest.raises(UnicodeEncodeError):
        results.keep(file, "half \ud800")
    assert file.read_text() == "first"
    assert [path.name for path in file.parent.iterdir()] == ["overhead.csv"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": "mpiter.lab/0"}', "measure again"),
        ('{"schema": "mpiter.lab/1"}', "lacks started"),
        ("{", "can't be read"),
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path, text, why):
    (tmp_path / "overhead.json").write_text(text)
    with pytest.raises(ResultError, match=f"overhead.json.*{why}"):
        results.folder_of(tmp_path)


def test_a_folder_may_hold_other_things_but_not_nothing(tmp_path):
    (tmp_path / "chaos.json").write_text('{"schema": "mpiter.bench.chaos/1"}')
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ResultError, match="holds no results"):
        results.folder_of(tmp_path)
    with pytest.raises(ResultError, match="is no folder"):
        results.folder_of(tmp_path / "nowhere")
    results.keep(tmp_path / "overhead.json", json.dumps(results.document(measured(), [], [])))
    assert list(results.folder_of(tmp_path)) == ["overhead"]


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


# -- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.01234, "0.0123"), (9.996, "10.0"), (12.34, "12.3"), (1234.5, "1,234"), (2.0, "2"), (0, "0"), (None, "–"),
     (math.nan, "–"), (math.inf, "–"), (-0.5, "\u22120.500"), (-0.0, "0"), (1.5e-7, "1.5e-7"), (3e12, "3e12")],
)  # fmt: skip
def test_numbers_have_three_digits(value, said):
    assert number(value) == said


def test_a_sentence_is_said_only_if_its_figures_bear_it():
    telling = Telling()
    steady, loud = Spread(3.0, 0.1, (2.9, 3.0)), Spread(3.0, 1.0, (2.5, 3.5))
    telling.conclude("three times.", steady)
    telling.conclude("perhaps.", steady, loud)
    telling.conclude("who knows.", steady, None)
    assert telling.says == ["three times."]
    assert telling.warnings == ["no conclusion, since rounds differ by 33%: perhaps."]
    assert (times(steady), times(loud), times(None)) == ("3×", "~3×", "–")


def test_a_table_of_text_is_aligned():
    lines = list(drawn(Table("title", ("a", "figure"), (("row", "1"), ("longer row", "22")), "note")))
    assert lines == ["title", "a           figure", "row              1", "longer row      22", "note"]


def test_the_bar_fills_and_says_how_long_it_will_take():
    assert line("lab", 0, 4, 0.0, "x") == f"lab [{' ' * 24}] 0/4 …  x"
    assert line("lab", 1, 4, 10.0, "x") == f"lab [{'=' * 6}{' ' * 18}] 1/4 30 s left  x"


def test_a_log_gets_a_line_now_and_then():
    log = io.StringIO()
    with Bar("lab", 1000, log) as bar:
        for done in range(1000):
            bar.at(done, "x")
    assert log.getvalue().count("\n") == 1


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_command_that_a_result_names_asks_for_the_same_again(name, small):
    asked = _parser(["--small"] if small else []).parse_args(["lab", name, *(["--small"] if small else [])])
    settings = {key: value for key, value in vars(asked).items() if key not in laboratory._NO_SETTINGS}
    program, *words = shlex.split(command_again(name, settings))
    again = _parser(words).parse_args(words)
    assert program == "mpiter"
    assert {key: value for key, value in vars(again).items() if key in settings} == settings


@pytest.mark.parametrize(
    "words",
    [
        ["lab", "overhead", "--rounds", "0"],
        ["lab", "overhead", "--seconds", "-1"],
        ["lab", "overhead", "--seconds", "nan"],
        ["lab", "overhead", "--minutes", "soon"],
        ["lab", "overhead", "--payloads", "elephants"],
        ["lab", "workers", "--workers", "2"],
        ["lab", "speedup", "--costs", "5"],
        ["lab"],
        [],
        ["lab", "compare", "one"],
        ["lab", "overhead", "--smal"],
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(words, capsys):
    with pytest.raises(SystemExit) as refused:
        _parser(words).parse_args(words)
    assert refused.value.code == 2
    assert "usage: mpiter" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["doctor"], ["lab"], *(["lab", name] for name in [*EXPERIMENTS, "all", "report"])]
)
def test_everything_explains_itself(words, capsys):
    with pytest.raises(SystemExit) as ended:
        _parser([]).parse_args([*words, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


# -- what the experiments say ----------------------------------------------------------------------------------------


def everything():
    """A result of each experiment, made up."""
    steady = [10.0, 10.1, 10.2]
    cpu = {"cpu_ms": steady, "parent_cpu_ms": steady, "workers_cpu_ms": steady}
    moved = {
        "batches_per_s": steady,
        "mb_per_s": steady,
        "copied_mb": steady,
        "piped_mb": steady,
        "peak_mb": steady,
        "fetch_ms": steady,
    }
    moved |= cpu | {"first_batch_s": steady, "payload_mb": steady}
    dear = moved | {"cpu_ms": [100.0, 101.0, 102.0]}
    yield result_of(
        [
            (row, "28x28", {"workers": w}, dear if row == "pickle" else moved)
            for w in (1, 2)
            for row in overhead.TRANSPORTS
        ]
    )
    step = {"images_per_s": steady, "batch_s": steady, "parent_cpu_ms": steady, "workers_cpu_ms": steady}
    fast = step | {"images_per_s": [20.0, 20.2, 20.4]}
    rows = [
        (speedup.SEQUENTIAL, 0, step),
        *((r, 2, fast) for r in (speedup.PARALLEL, speedup.OURS, speedup.IN_WORKERS)),
    ]
    yield result_of(
        [(row, case, {"workers": w, "cost": 2, "batch_size": 300}, figures)
         for case in (speedup.BY_WORKERS, speedup.BY_BATCH) for row, w, figures in rows],
        "speedup",
    )  # fmt: skip
    loading = cpu | {"batches_per_s": steady, "tracemalloc_mb": steady, "tree_mb": steady}
    yield result_of(
        [(row, "store", {"workers": w}, loading | {"seconds": [9.0 / max(1, w)] * 3})
         for row in ("process", "thread") for w in (0, 1, 2) if w or row == "process"],
        "workers", dataset=["store"],
    )  # fmt: skip
    split = {"batch_ms": [100.0] * 3, "cpu_ms": [10.0] * 3, "read_ms": [90.0] * 3, "transform_ms": [8.0] * 3}
    made = result_of(
        [
            (hide.SPLIT, "store", {"workers": 0}, split | {"collate_ms": [2.0] * 3}),
            *((hide.LOADING, "store", {"workers": w}, {"batch_ms": [99 / w] * 3, "cpu_ms": steady}) for w in (1, 2, 3)),
            *((hide.TRAINING, "store", {"workers": w}, {"step_ms": [40.0] * 3, "wait_ms": [60.0 if w < 3 else 0.1] * 3})
              for w in (1, 2, 3)),
        ],
        "hide", dataset="store",
    )  # fmt: skip
    lane = ["consumer", [[0.0, 0.5, "wait", ""], [0.5, 1.0, "step", ""]]]
    made.extra = {hide.TRAINING: {"store": {"1": [lane], "3": [lane, ["worker 0", [[0.0, 0.9, "fetch", "batch 3"]]]]}}}
    yield made
    loaded = cpu | {"batches_per_s": steady, "first_batch_s": steady}
    yield result_of([(row, "28x28", {"workers": 2}, loaded) for row in peers.ROWS], "peers")


@pytest.fixture(params=[made.experiment for made in everything()])
def made(request):
    return next(each for each in everything() if each.experiment == request.param)


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


def test_the_claim_of_the_article_is_answered_in_a_sentence():
    made = next(iter(everything()))
    sentence = overhead.tell(made).says[0]
    assert sentence == (
        "plain pickling costs 10× the CPU of packing as Chainer does it, and 10× that of packing into slots (a 28×28 "
        "uint8 image and a label, batches of 128, 2 workers); the article on Chainer says: an order of magnitude."
    )


def test_a_curve_of_published_figures_says_so():
    for made in everything():
        for view in EXPERIMENTS[made.experiment].views(made):
            for each in view.series if isinstance(view, Lines) else ():
                theirs = any(name in each.name for name in ("course project", "Num Worker Tuner"))
                assert each.published == theirs


# -- models and rules ------------------------------------------------------------------------------------------------


def test_the_tuner_chooses_what_its_authors_table_says():
    choice = workers.choose({w: seconds for w, (seconds, _) in workers.PUBLISHED.items()}, alpha=0.5)
    assert (choice.workers, choice.fastest) == (14, 16)
    assert choice.reason == "16 would gain 0.0800 s, which is not more than 0.5 s"


@given(st.dictionaries(st.integers(0, 64), positive, min_size=1), st.floats(0, 10))
def test_the_tuner_never_gives_away_more_than_alpha_for_each_step(seconds, alpha):
    choice = workers.choose(seconds, alpha)
    assert choice.workers <= max(seconds)
    assert seconds[choice.workers] <= seconds[min(seconds)]
    assert seconds[choice.workers] - min(seconds[w] for w in seconds if w >= choice.workers) <= alpha + 1e-9


@pytest.mark.parametrize(
    ("one", "two", "said", "warned"),
    [
        ([8.0, 8.1, 8.2], [4.0, 4.1, 4.2], "takes 2 in every round", None),
        ([4.0, 4.0, 4.0], [4.1, 4.1, 4.1], "takes none in every round (6 batches in 4 s).", None),
        ([4.0, 4.0, 4.0], [3.4, 3.6, 3.4], None, "rounds disagree: store, worker processes: the rule takes 2, 0, 2"),
        ([4.0], [1.0], None, None),
    ],
)
def test_the_rules_choice_is_told_if_all_rounds_agree(one, two, said, warned):
    rows = [("process", "store", {"workers": w}, {"seconds": found}) for w, found in ((0, one), (2, two))]
    telling = workers.tell(result_of(rows, "workers", alpha=0.5, iterations=6))
    assert [said in sentence for sentence in telling.says] == [True] * (said is not None)
    assert [warned in sentence for sentence in telling.warnings] == [True] * (warned is not None)


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
