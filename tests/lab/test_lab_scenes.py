"""The scenes of images and of echoing: what they measure at their smallest, what they say, what their plots hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lab_results import drawn, everything, having, parsed, result_of, text_of

import mpiter
from mpiter.__main__ import _parser
from mpiter.lab import compare, echo, images, photographs
from mpiter.lab.turns import Absent, Turn

ROOT = Path(mpiter.__file__).parents[1]


def lab(*words, folder):
    command = [sys.executable, "-m", "mpiter", "lab", *words]
    ran = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def found(folder, name):
    document = json.loads((folder / "r" / f"{name}.json").read_text())
    assert document["problems"] == []
    return document


def made(name):
    return next(result for result in everything() if result.experiment == name)


def section_of(folder, name):
    lab("report", "r", folder=folder)
    root = parsed((folder / "r" / "report.html").read_text(encoding="utf-8"))
    (section,) = having(root, id=name)
    return section


# -- decoders --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_decoders_are_measured_in_one_process_and_through_batches_and_the_report_shows_them(tmp_path):
    pytest.importorskip("PIL")
    rows = ["pillow", "pillow, scaled", "accimage"]
    words = ["--small", "--rounds", "2", "--seconds", "0.05", "--photographs", "2", "--workers", "1"]
    told = lab("images", *words, "--out", "r", "--rows", *rows, folder=tmp_path)
    assert "Photographs of 500×375, 80 kB, batches of 32" in told
    document = found(tmp_path, "images")
    measured = {row["row"] for row in document["rows"]}
    assert measured | set(document["absent"]) == set(rows)
    assert {(row["row"], row["at"]["workers"]) for row in document["rows"]} == {
        (m, w) for m in measured for w in (0, 1)
    }
    for row in document["rows"]:
        assert set(row["figures"]) == {"images_per_s", "cpu_ms", "parent_cpu_ms", "workers_cpu_ms"}
        assert row["figures"]["images_per_s"]["median"] > 0
        assert (row["figures"]["workers_cpu_ms"]["median"] > 0) == (row["at"]["workers"] > 0)
    section = section_of(tmp_path, "images")
    assert "Photographs of 500×375, 80 kB, cropped to 224×224: images a second" in text_of(section)
    assert {"one process", "1 worker"} <= {text_of(cell) for cell in section.iter("td")}
    assert list((tmp_path).iterdir()) == [tmp_path / "r"]


@pytest.mark.parametrize("row", ["pillow", "pillow, scaled"])
def test_a_turn_without_workers_counts_single_pictures_and_looks_at_them(tmp_path, row):
    pytest.importorskip("PIL")
    paths = photographs.write_files(tmp_path, photographs.SMALL, 1)
    turn = Turn("images", row, "500x375", {"workers": 0}, 0.01, 0.0, 0, {"paths": paths})
    answer = images.take(turn)
    assert answer["problems"] == []
    assert answer["figures"]["images_per_s"] > 0
    assert answer["figures"]["workers_cpu_ms"] == 0


def test_pictures_of_another_shape_or_without_content_are_problems():
    good = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), np.uint8)
    assert list(images._wrong(good)) == list(images._wrong(good[0])) == []
    assert list(images._wrong(good * np.uint8([[[[0]]], [[[1]]]]))) == ["a picture is empty"]
    (problem,) = images._wrong(good[:, :100])
    assert problem == "pictures are uint8 (2, 100, 224, 3), not uint8 (224, 224, 3)"


@pytest.mark.parametrize("name", ["simplejpeg", "cv2", "accimage"])
def test_a_decoder_that_is_not_installed_is_absent_with_a_remedy(monkeypatch, name):
    pytest.importorskip("PIL")
    monkeypatch.setitem(sys.modules, name, None)
    row = {"cv2": "opencv"}.get(name, name)
    with pytest.raises(Absent, match=f"not installed: .* install .*{row}"):
        images.take(Turn("images", row, "500x375", {"workers": 0}, 0.01, 0.0, 0, {"paths": ["1.jpg"]}))


def test_without_pillow_there_are_no_photographs(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Absent, match="pip install Pillow"):
        photographs.write_files(tmp_path, photographs.SMALL, 1)


def test_photographs_depend_on_seed_and_number_and_are_made_once(tmp_path):
    pytest.importorskip("PIL")
    one = photographs.write_files(tmp_path / "one", photographs.SMALL, 2, seed=1)
    same, other = (photographs.write_files(tmp_path / str(seed), photographs.SMALL, 1, seed) for seed in (1, 2))
    first = Path(one[0]).read_bytes()
    assert first == Path(same[0]).read_bytes() != Path(other[0]).read_bytes()
    assert first != Path(one[1]).read_bytes()
    Path(one[0]).write_bytes(b"mine")
    assert photographs.write_files(tmp_path / "one", photographs.SMALL, 2, seed=1) == one
    assert Path(one[0]).read_bytes() == b"mine"


def test_the_fastest_decoder_is_named_in_full_size_and_scaled():
    says = images.tell(made("images")).says
    assert says[:2] == [
        "500x375, one process: accimage decodes fastest in full size, 1.30× the images of pillow in full size.",
        "500x375, one process: opencv decodes fastest no larger than needed, 1.60× the images of pillow in full size.",
    ]
    assert len(says) == 2 * 2 * len(images.CASES)


def test_where_pillow_is_the_fastest_nothing_is_said():
    steady = {images.FIGURE: [10.0, 10.1, 10.2], "cpu_ms": [1.0, 1.0, 1.0]}
    alone = result_of([("pillow", "500x375", {"workers": 0}, steady)], "images")
    assert images.tell(alone).says == []
    bars, table = images.views(alone)
    assert [name for name, _ in bars.groups] == ["one process"]
    assert [row[:2] for row in table.rows] == [("pillow", "0")]


# -- echoing ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@drawn
def test_echoing_is_measured_by_factor_and_drawn_beside_what_arithmetic_predicts(tmp_path):
    words = ["--small", "--rounds", "2", "--seconds", "0.05", "--workers", "1", "--factors", "1", "4"]
    told = lab("echo", *words, "--batch-size", "4", "--buffer", "8", "--out", "r", folder=tmp_path)
    assert "Steps of 5 ms, batches of 4, repeated: augmented" in told
    rows = {row["at"]["factor"]: row["figures"] for row in found(tmp_path, "echo")["rows"]}
    assert set(rows) == {1, 4}
    assert rows[1]["fresh"]["median"] == 1
    assert 0.1 < rows[4]["fresh"]["median"] < 0.6  # a quarter, over a few steps
    for figures in rows.values():
        assert 0 < figures["steps_per_s"]["median"] <= 200  # a step of 5 ms sleeps no shorter
    section = section_of(tmp_path, "echo")
    labels = [picture.get("aria-label") for picture in section.iter("svg")]
    assert len(labels) == 2
    assert all("predicted, from 100 at 1 to 200 at 4" in label for label in labels)


@pytest.mark.parametrize("at", echo.AT)
def test_each_kind_of_repeat_can_be_measured(at):
    options = {"batch_size": 2, "buffer": 4, "step_ms": 1.0}
    numbers = {"workers": 1, "ratio": 1.0, "factor": 2.0}
    figures = echo.take(Turn("echo", at, echo.CASE, numbers, 0.02, 0.0, 0, options))["figures"]
    assert set(figures) == {"steps_per_s", "fresh"}
    assert 0.2 < figures["fresh"] < 0.8


@pytest.mark.parametrize(
    ("ratio", "factor", "steps_per_s"), [(1, 1, 50), (1, 4, 50), (2, 1.5, 37.5), (2, 4, 50), (4, 1, 12.5), (0.5, 1, 50)]
)
def test_arithmetic_predicts_factor_times_the_rate_of_fetching_up_to_the_rate_of_steps(ratio, factor, steps_per_s):
    assert echo.predicted(ratio, factor, 20e-3) == steps_per_s


def test_what_echoing_brings_is_told_for_each_ratio():
    assert echo.tell(made("echo")).says == [
        f"ratio {ratio}: with factor {factor} there are {times}× the steps a second of factor 1, where arithmetic says "
        f"{times}×."
        for ratio, factor, times in ((1, 1.5, 1), (2, 2, 2), (4, 4, 4))
    ]


def test_more_steps_a_second_are_better():
    at = {"workers": 2, "ratio": 2.0, "factor": 2.0}
    results = [
        {"echo": result_of([("augmented", echo.CASE, at, {echo.FIGURE: [rate] * 3})], "echo")} for rate in (40.0, 48.0)
    ]
    (table,) = compare.compared(*results).tables
    assert [row[-2:] for row in table.rows] == [("+20%", "better")]


def test_the_curve_that_is_predicted_has_its_corner_where_the_factor_is_the_ratio():
    result = made("echo")
    result.rows = [row for row in result.rows if row.at["factor"] in (1, 4)]
    *curves, table = echo.views(result)
    assert [view.title.partition(":")[0] for view in curves] == ["Ratio 1", "Ratio 2", "Ratio 4"]
    assert [[(series.name, series.predicted) for series in view.series] for view in curves] == 3 * [
        [("measured", False), ("predicted", True)]
    ]
    lines = [[(point.x, point.y) for point in view.series[1].points] for view in curves]
    assert lines == [[(1, 50), (4, 50)], [(1, 25), (2, 50), (4, 50)], [(1, 12.5), (4, 50)]]
    assert [row[:2] for row in table.rows] == [(ratio, factor) for ratio in "124" for factor in "14"]


@pytest.mark.parametrize("factor", ["0.5", "1001", "often"])
def test_a_factor_that_is_none_is_refused_before_anything_is_measured(factor, capsys):
    with pytest.raises(SystemExit):
        _parser([]).parse_args(["lab", "echo", "--factors", factor])
    assert "--factors" in capsys.readouterr().err
