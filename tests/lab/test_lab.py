"""The lab's pure parts: statistics, order of turns, budgets, results, text, progress, the command line."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shlex
import signal
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_results import HEADING, turn

from mpiter.__main__ import _parser
from mpiter.bar import Bar
from mpiter.lab import laboratory, overhead, results, series
from mpiter.lab.asked import command_again
from mpiter.lab.experiments import EXPERIMENTS
from mpiter.lab.results import ResultError
from mpiter.lab.series import Series, interleaved
from mpiter.lab.spreads import Spread, ratio, spread
from mpiter.lab.text import Telling, drawn, number, times
from mpiter.lab.views import Table

positive = st.floats(1e-3, 1e6)

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


def test_a_turn_that_the_budget_cut_short_is_no_problem_of_the_datasets():
    clock = Clock()

    def ask(each):
        clock.ask(each)
        return {"error": "gave no answer"} if clock.now > 15 else {"figures": {"batches_per_s": 1.0}}

    found = series.run("overhead", [turn("slots")], 3, ask, budget_s=20, clock=clock)
    assert [answer for _, _, answer in found.answers] == [{"figures": {"batches_per_s": 1.0}}]
    assert "budget" in found.ended_by


def test_a_budget_counts_from_when_preparing_began():
    clock = Clock()
    found = series.run("overhead", [turn("slots")], 3, clock.ask, budget_s=25, clock=clock, began=-10.0)
    assert len(found.answers) == 1
    assert "budget" in found.ended_by


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


def test_what_went_wrong_in_many_turns_is_told_once():
    made = measured()
    made.problems = [f"pickle, mine:Own, {count} workers: ValueError: no: never" for count in (1, 1, 2, 4)]
    assert made.warnings()[-1] == "pickle, mine:Own, 1 workers (and 2 more): ValueError: no: never"


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


def test_a_log_gets_a_line_now_and_then():
    log = io.StringIO()
    with Bar("lab", 1000, log) as bar:
        for done in range(1000):
            bar.at(done, "x")
    assert log.getvalue() == "lab 0/1000  x\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_how_far_it_is_and_what_is_under_way():
    pytest.importorskip("rich", reason="bars are drawn by rich: pip install 'mpiter[lab]'")
    with Bar("lab", 4, screen := Terminal()) as bar:
        bar.at(3, "[28x28] slots")
    shown = screen.getvalue()
    assert all(text in shown for text in ("lab", "3/4", "[28x28]"))
    assert shown.endswith("\x1b[2K")  # nothing is left of it


def test_a_terminal_without_rich_gets_lines(monkeypatch):
    for name in ("rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with Bar("lab", 4, screen := Terminal()) as bar:
        bar.at(3, "slots")
    assert screen.getvalue() == "lab 3/4  slots\n"


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
