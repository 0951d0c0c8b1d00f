"""What a terminal of 80 columns is shown: nothing is wider, and others' figures are left to the report."""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lab_results import everything, result_of
from test_lab_quick import looked

from mpiter.__main__ import _parser
from mpiter.bar import Bar
from mpiter.lab import bench, compare, laboratory, results, speedup, verdict, workers
from mpiter.lab.experiments import EXPERIMENTS
from mpiter.lab.report.page import page
from mpiter.lab.results import Row
from mpiter.lab.spreads import spread
from mpiter.lab.text import WIDTH, drawn, wrapped
from mpiter.lab.views import Table

KEPT = Path(__file__).resolve().parents[2] / "bench" / "results"
LONG = "photographs.of.mountains:AugmentedAndNormalisedPhotographs"


def long_named(made):
    """The same of a dataset with a long name, by loud figures of many digits, and with much to say of it."""
    noise = (0.9, 1.3, 1.0, 1.7, 0.8)
    made.rows = [
        Row(row.row, LONG if made.experiment in ("quick", "workers", "hide") else row.case, row.at,
            {name: {at: 1234.5 * value * noise[at] for at, value in found.items()}
             for name, found in row.by_round.items()})
        for row in made.rows
    ]  # fmt: skip
    made.ended_by = "the budget of 3 min was spent"
    made.absent = (
        {}
        if made.experiment == "quick"
        else {"grain": "not installed (No module named grain): pip install grain, and then once more " * 2}
    )
    made.problems = [f"process, {LONG}, {count} workers: ValueError: {'nothing came of it ' * 5}" for count in (1, 2)]
    return made


def all_made_up():
    yield from everything()
    yield looked([10.0] * 3, [11.0] * 3, w1=[9.9] * 3, w2=[5.0, 12.0, 5.0], w32=[4.9] * 3, w64=[5.5] * 3)


def shown():
    """Everything there may be to show, by name."""
    for made in all_made_up():
        yield f"{made.experiment}, made up", made
    for made in all_made_up():
        yield f"{made.experiment}, long", long_named(made)
    for folder in sorted(KEPT.glob("lab*")):
        for name, made in results.folder_of(folder).items():
            yield f"{name}, {folder.name}", made


SHOWN = dict(shown())


@pytest.fixture(params=SHOWN)
def made(request):
    return SHOWN[request.param]


def printed(made, capsys):
    experiment = EXPERIMENTS[made.experiment]
    laboratory._print(experiment, made, experiment.tell(made))
    return capsys.readouterr().out


def widest(text):
    return max(map(len, text.splitlines()), default=0)


def test_no_line_of_a_result_is_wider_than_a_terminal(made, capsys):
    shown = printed(made, capsys)
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
    assert all(sentence.split()[0] in shown for sentence in EXPERIMENTS[made.experiment].tell(made).says)


@pytest.mark.parametrize("name", ["quick, made up", "quick, long"])
def test_a_quick_look_is_one_screen(name, capsys):
    made = SHOWN[name]
    lines = printed(made, capsys).splitlines()
    what_comes = 1
    assert len(lines) + what_comes <= 24
    (advice,) = (at for at, line in enumerate(lines) if line.startswith("says     "))
    assert all(line.startswith("         ") for line in lines[advice + 1 :])


def test_figures_of_others_are_in_the_report_and_not_on_the_terminal(made, capsys):
    shown = printed(made, capsys)
    assert not re.search("published|Chien|order of magnitude|theirs", shown, re.IGNORECASE)
    experiment = EXPERIMENTS[made.experiment]
    views = experiment.views(made)
    assert [view.title for view in views if isinstance(view, Table) and view.published] == [
        view.title for view in views if view.title.startswith("Published")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("workers, made up", [workers.THREADS_PUBLISHED, "14.2", "1.41"]),
        ("hide, made up", ["1,700", "their measurement"]),
        ("speedup, made up", [str(speedup.PUBLISHED[2][4]), str(speedup.PUBLISHED_BY_BATCH[50])]),
        ("overhead, made up", ["an order of magnitude"]),
    ],
)
def test_the_report_has_what_the_terminal_leaves_out(name, figures):
    made = SHOWN[name]
    text = page([laboratory._section(EXPERIMENTS[made.experiment], made)], "made up")
    assert [figure for figure in figures if figure not in text] == []


def test_a_single_rounds_quick_look_gives_no_advice():
    once = looked([10.0], [11.0], w2=[5.0])
    assert EXPERIMENTS["quick"].tell(once).says == ["No advice: it takes 2 whole rounds, and there was one."]


words = st.text("abcdefgh -×~:,.", max_size=40)


@example([[*[""] * 8, "::", ":" * 16, "", ""], [":" * 27 + " aa-aa", *[""] * 9, ":", ":" * 7]])
@given(st.integers(1, 14).flatmap(lambda wide: st.lists(st.lists(words, min_size=wide, max_size=wide), min_size=1)))
def test_a_table_of_any_cells_loses_none_and_is_as_wide_as_a_terminal_where_it_can_be(rows):
    heads, *cells = rows
    table = Table("t", tuple(heads), tuple(map(tuple, cells)))
    lines = list(drawn(table))
    text = "".join("".join(lines).split())
    for row in cells:
        assert all("".join(cell.split()) in text for cell in row[1:])
        assert all(word in text for word in row[0].split() if len(word) < 20)
    assert max(map(len, lines)) <= max(WIDTH, 50 + 2 + 40)  # names, and a cell


def test_a_table_that_is_too_wide_is_drawn_as_several_that_say_which_row_is_which():
    rows = tuple((name, str(count), *["1,234,567"] * 9) for name in ("slots", "pickle") for count in (1, 2))
    parts = "\n".join(drawn(Table("t", ("transport", "workers", *(f"figure {at}" for at in range(9))), rows, "n")))
    first, second = parts.split("\n\n")
    assert [line.split()[:2] for line in first.splitlines()[2:]] == [
        ["slots", "1"],
        ["slots", "2"],
        ["pickle", "1"],
        ["pickle", "2"],
    ]
    assert [line.split()[:2] for line in second.splitlines()[1:-1]] == [
        line.split()[:2] for line in first.splitlines()[2:]
    ]
    assert widest(parts) <= WIDTH


def test_a_long_name_of_a_row_gives_way_before_the_table_is_parted():
    name = "mpiter, augmented by the workers, 8 workers, 4 cost, 300 batch size on by workers"
    lines = list(drawn(Table("t", ("row", "figure", "before", "after"), ((name, "images_per_s", "1,234", "2,345"),))))
    assert lines[2].split()[-3:] == ["images_per_s", "1,234", "2,345"]
    assert "".join(line[:46].strip() + " " for line in lines[2:]).split() == name.split()


def test_sentences_stand_beside_what_they_are():
    first, *others = wrapped("word " * 40, "says").splitlines()
    assert first.startswith("says     word")
    assert all(line.startswith(" " * 9 + "word") for line in others)


def test_a_word_that_is_too_long_is_left_whole_to_be_copied():
    assert "/a/" + "long/" * 30 in wrapped("kept: /a/" + "long/" * 30)


# -- what is not a result ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["lab"], *(["lab", name] for name in [*EXPERIMENTS, "all", "report", "compare"])])
def test_help_fits(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit):
        _parser([]).parse_args([*words, "--help"])
    shown = capsys.readouterr().out
    assert widest(shown) <= WIDTH
    assert "None" not in shown


def test_the_first_experiment_that_help_names_is_the_quick_one(capsys):
    with pytest.raises(SystemExit):
        _parser([]).parse_args(["lab", "--help"])
    shown = capsys.readouterr().out
    listed = re.findall(r"^    (\w+) ", shown, re.MULTILINE)
    assert listed[:2] == ["quick", "overhead"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize("columns", ["80", "200"])
def test_how_far_it_is_takes_one_line(monkeypatch, stream, columns):
    monkeypatch.setenv("COLUMNS", columns)
    with Bar("overhead", 1000, screen := stream()) as bar:
        bar.at(123, f"round 1: mpiter, augmented by the workers, {LONG}, 8 workers, 300 batch size")
    visible = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split("[\r\n]", screen.getvalue())]
    assert max(map(len, visible)) <= WIDTH
    assert any("round 1: mpiter" in line for line in visible)


def test_what_comes_and_why_it_will_end_early_fits(capsys):
    for experiment in EXPERIMENTS.values():
        laboratory._say_what_comes(experiment, 4000.0, 90.0)
    shown = capsys.readouterr().err
    assert widest(shown) <= WIDTH
    assert "1.5 at most" in shown


def test_a_comparison_fits():
    at = {"workers": 8, "cost": 4, "batch_size": 300}
    one, other = (
        {
            "speedup": result_of(
                [(speedup.IN_WORKERS, speedup.BY_WORKERS, at, {"images_per_s": [rate, rate, rate]})], "speedup"
            )
        }
        for rate in (1234.0, 2345.0)
    )
    (table,) = compare.compared(one, other).tables
    lines = list(drawn(table))
    assert widest("\n".join(lines)) <= WIDTH
    assert lines[2].split()[-2:] == ["+90%", "better"]


def test_a_benchmark_fits(capsys):
    words = "batches of 32 x 3x224x224 float32 and an int64 label; 200 us of CPU a sample, one in 50 takes 50x"
    figures = {
        name: f"{name} of all that there is" for name in ("rate", "cpu", "memory", "wait", "first", "more", "less")
    }
    told = bench.Bench(
        "s", "script.py", "d", {"case": words}, {LONG: "", "other": ""}, figures, take=dict, against="other"
    )
    summary = {("case", row): dict.fromkeys(figures, spread([1234.5, 2345.6, 999.0])) for row in (LONG, "other")}
    options = argparse.Namespace(cases=["case"], rounds=3, seconds=1.0, warmup=0.5)
    remarks = [f"{LONG} on case: the IQR of rate is 40% of the median; the machine was not quiet"]
    claim = verdict.at_least(
        "straggler_heavy", "mpiter: seconds from the first batch to full flow", 1.2345, 1.0, " x torch's"
    )
    judged = [verdict.judge(claim, rounds) for rounds in (1, 3)]
    bench._print(told, options, summary, {"absent": {LONG: words}, "problems": remarks, "warnings": remarks}, judged)
    shown = capsys.readouterr().out
    assert widest(shown) <= WIDTH
    assert "PASS" in shown
    assert "1.23" in shown
