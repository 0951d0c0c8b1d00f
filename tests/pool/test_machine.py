"""Affinity and the quota of control groups limit how many cores we may use."""

import os

import pytest
from scripts import run

import mpiter
from mpiter import machine


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no affinity"
)
def test_the_number_of_workers_respects_affinity(tmp_path):
    script = """
    import os
    from mpiter import MultiprocessIterator, machine
    before = machine.cores()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    print(machine.cores(), MultiprocessIterator(range(3), 1).n_processes, before >= 1)
    """
    assert run(tmp_path, script).ended_well().lines == ["1 1 True"]


def groups(folder, monkeypatch, **files):
    """Put this process into the control group /job/step, on 64 cores.

    The files of the group lie in ``folder``.
    """
    membership = "0::/job/step\n"
    for name, text in files.items():
        name = name.replace("__", "/").replace("_max", ".max").replace("_cfs", ".cfs")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    genuine = machine.text_of
    monkeypatch.setattr(machine, "_CGROUPS", folder)
    monkeypatch.setattr(
        machine,
        "text_of",
        lambda path: membership if str(path) == "/proc/self/cgroup" else genuine(path),
    )
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: set(range(64)), raising=False
    )


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("rubbish", 64)],
)
def test_the_quota_of_our_own_group_counts(tmp_path, monkeypatch, quota, cores):
    groups(tmp_path, monkeypatch, job__step__cpu_max=quota)
    assert machine.cores() == cores
    assert mpiter.MultiprocessIterator(range(3), 1).n_processes == cores


def test_the_quota_of_a_group_above_counts_too(tmp_path, monkeypatch):
    groups(
        tmp_path,
        monkeypatch,
        job__cpu_max="300000 100000",
        job__step__cpu_max="max 100000",
    )
    assert machine.cores() == 3


def test_without_any_group_affinity_alone_counts(tmp_path, monkeypatch):
    groups(tmp_path, monkeypatch)
    assert machine.cores() == 64
