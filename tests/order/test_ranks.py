"""The rank of this process comes from the user, or from what started the process.

It is determined late, and logged.
"""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

import mpiter
from mpiter import OptionError, Shard
from mpiter.order import ranks
from mpiter.order.cursor import Share
from mpiter.order.ranks import ranks_here, shard_for


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in [name for pair in ranks._BY_VARIABLES for name in pair] + [
        *ranks._HERE,
        "SLURM_JOB_NAME",
    ]:
        monkeypatch.delenv(name, raising=False)
    for module in ("torch", "jax", "mpi4py.MPI"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(ranks, "_told", set())


def torch_like(is_initialized, rank=3, size=4):
    of = {
        "is_available": True,
        "is_initialized": is_initialized,
        "get_rank": rank,
        "get_world_size": size,
    }
    return SimpleNamespace(
        distributed=SimpleNamespace(
            **{name: lambda value=value: value for name, value in of.items()}
        )
    )


def mpi_like(rank, size):
    world = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: size)
    return SimpleNamespace(
        Is_initialized=lambda: True, Is_finalized=lambda: False, COMM_WORLD=world
    )


def jax_like(rank, size):
    return SimpleNamespace(
        distributed=SimpleNamespace(is_initialized=lambda: True),
        process_index=lambda: rank,
        process_count=lambda: size,
    )


def test_without_a_launcher_this_process_is_the_only_rank(caplog):
    with caplog.at_level(logging.INFO, "mpiter"):
        assert Shard().share() == Share(0, 1)
    assert "rank 0 of 1, by default" in caplog.text


def test_each_answer_is_logged_once_however_often_it_is_looked_up(
    caplog, monkeypatch, tmp_path
):
    def go_through() -> None:
        loader = mpiter.DataLoader(range(8), 2, shard="auto")
        path = tmp_path / "training.npz"
        with loader, mpiter.Checkpoint(path, loader, alone=True) as checkpoint:
            for _ in checkpoint.steps(loader):
                loader.state_dict()

    with caplog.at_level(logging.INFO, "mpiter"):
        go_through()
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        Shard().share()
    told = [line for line in caplog.messages if line.startswith("shard:")]
    assert [line.split(",")[0] for line in told] == [
        "shard: rank 0 of 1",
        "shard: rank 1 of 2",
    ]


@pytest.mark.parametrize("names", ranks._BY_VARIABLES, ids=lambda names: names[0])
def test_launchers_leave_word_in_the_environment(names, monkeypatch):
    monkeypatch.setenv(names[0], "2")
    monkeypatch.setenv(names[1], "5")
    assert Shard().share() == Share(2, 5)


def test_torchs_launcher_within_slurm_goes_before(monkeypatch):
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert Shard().share() == Share(1, 2)


@pytest.mark.parametrize("names", ranks._BY_VARIABLES[:3], ids=lambda names: names[0])
def test_ranks_that_another_launcher_starts_in_a_job_of_slurms_are_that_launchers(
    names, monkeypatch
):
    """Each rank inherits the variables of the job's script, which is task 0."""
    for name, value in zip(
        (*names, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), "1404", strict=True
    ):
        monkeypatch.setenv(name, value)
    assert Shard().share() == Share(1, 4)


def test_in_an_interactive_job_slurms_variables_mean_nothing(monkeypatch):
    for name, value in {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_JOB_NAME": "bash",
    }.items():
        monkeypatch.setenv(name, value)
    assert Shard().share() == Share(0, 1)


def test_a_script_of_slurms_that_starts_no_step_is_the_only_process(monkeypatch):
    """`sbatch --ntasks=4` runs Python without srun.

    As a rank, it would read a quarter of the data, and the rest would be lost.
    """
    for name, value in {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "train",
    }.items():
        monkeypatch.setenv(name, value)
    assert Shard().share() == Share(0, 1)


@pytest.mark.parametrize(
    "values",
    [("4", "4"), ("", "4"), ("x", "4"), ("-1", "4"), ("1", ""), ("1", "9" * 10)],
)
def test_variables_that_make_no_sense_say_nothing(values, monkeypatch):
    monkeypatch.setenv("RANK", values[0])
    monkeypatch.setenv("WORLD_SIZE", values[1])
    assert Shard().share() == Share(0, 1)


def test_a_process_group_goes_before_variables_but_only_when_it_is_there(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    shard = Shard()
    monkeypatch.setitem(sys.modules, "torch", torch_like(False))
    assert shard.share() == Share(0, 2)
    monkeypatch.setitem(sys.modules, "torch", torch_like(True))
    assert shard.share() == Share(3, 4), (
        "it is asked at each beginning, not once for all"
    )


def test_mpi_and_jax_are_asked_where_they_are_at_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi_like(1, 1))
    assert Shard().share() == Share(0, 1), "one rank alone may have other company"
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi_like(2, 3))
    assert Shard().share() == Share(2, 3)
    monkeypatch.setitem(sys.modules, "jax", jax_like(4, 6))
    assert Shard().share() == Share(4, 6)


def test_a_torch_that_was_built_without_process_groups_says_nothing(monkeypatch):
    built = SimpleNamespace(distributed=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", built)
    assert Shard().share() == Share(0, 1)


def test_an_mpi_that_has_ended_is_not_asked(monkeypatch):
    ended = mpi_like(2, 3)
    ended.Is_finalized = lambda: True
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", ended)
    assert Shard().share() == Share(0, 1)


def test_a_rank_that_is_passed_is_used(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert shard_for((2, 7)).share() == Share(2, 7)
    assert Shard(0, 1, exact=True).share() == Share(0, 1, True)
    assert shard_for("auto").share() == Share(1, 2)
    assert shard_for(None) is None


@pytest.mark.parametrize(
    "shard", ["yes", 3, (1, 2, 3), (2, 2), (-1, 2), (0, 0), (0.5, 2), [0, 2]]
)
def test_what_is_no_shard_is_refused(shard):
    with pytest.raises(OptionError, match=r"rank|shard"):
        shard_for(shard)


def test_how_many_share_the_machine_is_the_launchers_word(monkeypatch):
    assert ranks_here() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert ranks_here() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "0")
    assert ranks_here() == 1, "this process is one"
