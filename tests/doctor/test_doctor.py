"""``mpiter doctor`` examines this machine and leaves no trace.

Each of its checks is tried on machines of every kind.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from mpiter import doctor, machine
from mpiter.__main__ import main
from mpiter.doctor import BAD, GOOD, WARN

GB = 1 << 30
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="the limits and files are Linux's"
)


def ram(available, total, host):
    says = {"memory_available": available, "memory_total": total, "meminfo": host}
    return {
        f"mpiter.machine.{name}": lambda *_, value=value: value
        for name, value in says.items()
    }


def cpus(present, affinity, quota):
    says = {
        "os.cpu_count": lambda: present,
        "os.sched_getaffinity": lambda _: set(range(affinity)),
    }
    says["mpiter.machine.cores"] = lambda: max(1, int(min(affinity, quota or affinity)))
    return says | {"mpiter.machine.quota": lambda: quota}


def installed(**versions):
    def version(name):
        if name.replace("-", "_") not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    return {"importlib.metadata.version": version}


def forbidden(*_):
    raise PermissionError(1, "Operation not permitted")


NEW = {
    "numpy": "2.4.6",
    "msgpack": "1.2.4",
    "cloudpickle": "3.1.2",
    "threadpoolctl": "3.8.0",
}


def methods(*names):
    """Replace the start methods: "odd" fails, and "late" doesn't answer."""

    def run(command, **_):
        if "'late'" in command[-1]:
            raise subprocess.TimeoutExpired(command, 60)
        if "'odd'" in command[-1]:
            error = "Traceback\nOptionError: odd\n"
            return subprocess.CompletedProcess(command, 1, "", error)
        return subprocess.CompletedProcess(command, 0, "0.1 s\n", "")

    return {
        "multiprocessing.get_all_start_methods": lambda: names,
        "subprocess.run": run,
    }


# Each row has a check, what it finds in place of this machine, its status, and parts of
# its finding and of its remedy.
VERDICTS = [
    (
        "software",
        installed(**NEW, torch="2.13.0+cpu"),
        GOOD,
        "threadpoolctl 3.8.0, torch 2.13.0+cpu",
        "",
    ),
    (
        "start_methods",
        methods("fork"),
        BAD,
        "to the first batch: fork ",
        "pass backend=mpiter.Process('fork')",
    ),
    (
        "start_methods",
        methods("forkserver", "odd"),
        GOOD,
        "odd fails (OptionError: odd)",
        "",
    ),
    (
        "start_methods",
        methods("late", "spawn"),
        BAD,
        "late fails (no answer within 60 s)",
        "mpiter.Process('spawn')",
    ),
    ("start_methods", methods("odd"), BAD, "odd fails", "backend='thread'"),
    (
        "memory",
        ram(30 * GB, 32 * GB, 32 * GB),
        GOOD,
        "30.0 GB of 32.0 GB available",
        "",
    ),
    (
        "memory",
        ram(3 * GB, 4 * GB, 64 * GB),
        GOOD,
        "by control group; the machine has 64.0 GB",
        "",
    ),
    ("memory", ram(GB // 2, GB, GB), WARN, "0.5 GB of 1.0 GB", "end other programs"),
    ("cores", cpus(8, 8, None), GOOD, "8; n_processes=None takes 8", ""),
    (
        "cores",
        cpus(64, 4, 1.5),
        GOOD,
        "takes 1; affinity allows 4; the control group allows 1.5",
        "",
    ),
    (
        "cores",
        cpus(8, 8, 0.5),
        WARN,
        "n_processes=None takes 1; the control group allows 0.5",
        "docker run --cpus=2",
    ),
]


@LINUX
@pytest.mark.parametrize(("check", "found", "status", "told", "remedy"), VERDICTS)
def test_what_is_found_is_judged_and_a_warning_has_a_remedy(
    monkeypatch, check, found, status, told, remedy
):
    with monkeypatch.context() as patch:
        for name, value in found.items():
            if value:
                patch.setattr(name, value)
            else:
                patch.delattr(name)
        finding = getattr(doctor, check)()
    assert finding.status is status
    assert told in finding.found
    assert remedy in finding.remedy
    assert bool(finding.remedy) == (status is not GOOD)


@pytest.mark.parametrize(("status", "code"), [(GOOD, 0), (WARN, 0), (BAD, 1)])
def test_only_what_is_bad_fails_the_command_and_a_check_that_fails_does_not(
    monkeypatch, capsys, status, code
):
    def cores():
        return doctor.Finding(status, "few " * 60, "more")

    monkeypatch.setattr(doctor, "CHECKS", (cores, forbidden))
    assert main(["doctor"]) == code
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 118
    assert text.startswith(f"{status:6}cores")
    assert "→ more" in text
    assert "WARN  forbidden       could not be examined (PermissionError" in text


@pytest.mark.timeout(200)
def test_this_machine_is_fit(capsys):
    assert {name for name, *_ in VERDICTS} == {
        check.__name__ for check in doctor.CHECKS
    }
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert f"n_processes=None takes {machine.cores()}" in told
    assert "could not be examined" not in told
