"""``mpiter doctor`` examines this machine and leaves no trace; each of its checks judges machines of every kind."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mpiter import doctor, machine
from mpiter.doctor import BAD, GOOD, NOTE, WARN

MB, GB = 1 << 20, 1 << 30
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the limits and files are Linux's")


def ram(available, total, host, kills=0):
    says = {"memory_available": available, "memory_total": total, "meminfo": host, "out_of_memory_kills": kills}
    return {f"mpiter.machine.{name}": lambda *_, value=value: value for name, value in says.items()}


def bounds(files=1024, processes=machine.BEYOND_REACH, space=machine.BEYOND_REACH, **pids):
    """What ulimit and a control group allow, for a user who runs nothing yet."""
    limits = {"RLIMIT_NOFILE": files, "RLIMIT_FSIZE": machine.BEYOND_REACH, "RLIMIT_NPROC": processes}
    says = {"cores": lambda: 8, "address_space": lambda: space, "limit": limits.__getitem__}
    says |= {"control_groups": lambda: [Path()], "text_of": lambda path: pids.get(path.suffix[1:], "")}
    return {f"mpiter.machine.{name}": value for name, value in says.items()} | {"os.getuid": lambda: 987654}


def cpus(present, affinity, quota):
    says = {"os.cpu_count": lambda: present, "os.sched_getaffinity": lambda _: set(range(affinity))}
    says["mpiter.machine.cores"] = lambda: max(1, int(min(affinity, quota or affinity)))
    return says | {"mpiter.machine.quota": lambda: quota}


def installed(**versions):
    def version(name):
        if name.replace("-", "_") not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    return {"importlib.metadata.version": version}


def methods(*names):
    """The start methods that there are, of which one fails."""

    def ask(code, _):
        if "'odd'" in code:
            raise RuntimeError("OptionError: odd")
        return "0.1"

    return {"multiprocessing.get_all_start_methods": lambda: names, "mpiter.doctor.ask": ask}


def forbidden(*_):
    raise PermissionError(1, "Operation not permitted")


NEW = {"numpy": "2.4.6", "msgpack": "1.2.4", "cloudpickle": "3.1.2", "threadpoolctl": "3.8.0"}
NO_MEMFD, NO_TMP = {"os.memfd_create": forbidden}, {"tempfile.tempdir": "/nowhere"}

# a check, what it finds in place of this machine -> the status, a part of what is said, a part of the remedy
VERDICTS = [
    ("software", installed(**NEW, torch="2.13.0+cpu"), GOOD, "threadpoolctl 3.8.0, torch 2.13.0+cpu", ""),
    ("software", installed(**NEW) | {"sys.version_info": (3, 99, 0)}, NOTE, "tested up to Python 3.13", ""),
    ("start_methods", methods("fork"), BAD, "to the first batch: fork ", "pass backend=mpiter.Process('fork')"),
    ("start_methods", methods("forkserver", "odd"), WARN, "odd fails (OptionError", "leave backend= as it is"),
    ("start_methods", methods("odd"), BAD, "odd fails", "backend='thread'"),
    ("shared_memory", {}, GOOD, "memfd works", ""),
    ("shared_memory", NO_MEMFD, WARN, "Operation not permitted", "seccomp"),
    ("shared_memory", {"os.memfd_create": None}, NOTE, "none on this system", "TMPDIR"),
    ("shared_memory", NO_MEMFD | NO_TMP, BAD, "no unlinked file in /nowhere", "seccomp"),
    ("memory", ram(30 * GB, 32 * GB, 32 * GB), GOOD, "30 GB of 32 GB available", ""),
    ("memory", ram(3 * GB, 4 * GB, 64 * GB), NOTE, "by control group; the machine has 64 GB", ""),
    ("memory", ram(30 * GB, 32 * GB, 32 * GB, kills=3), NOTE, "3 processes", "n_prefetch"),
    ("memory", ram(512 * MB, GB, GB), WARN, "512 MB of 1 GB", "end other programs, or lower batch_size"),
    ("memory", ram(100 * MB, GB, GB), BAD, "100 MB of 1 GB", "n_processes"),
    ("limits", bounds(), GOOD, "enough for 8 workers", ""),
    ("limits", bounds(files=64), WARN, "64 open files allowed, 80 wanted", "--ulimit nofile=1024"),
    ("limits", bounds(files=32), BAD, "32 open files", "ulimit -n 1024"),
    ("limits", bounds(processes=20), WARN, "20 more processes and threads allowed, 48 wanted", "ulimit -u 4096"),
    ("limits", bounds(processes=3), BAD, "3 more", "--pids-limit=4096"),
    ("limits", bounds(max="100", current="95"), BAD, "5 more", "docker run --pids-limit=4096"),
    ("limits", bounds(space=2 * GB), WARN, "2 GB to be mapped", "ulimit -v unlimited"),
    ("cores", cpus(8, 8, None), GOOD, "8, all ours; n_processes=None takes 8", ""),
    ("cores", cpus(8, 8, 1.5), NOTE, "group allows 1.5; n_processes=None takes 1, os.cpu_count() says 8", "use 1"),
    ("cores", cpus(64, 4, None), NOTE, "affinity allows 4", "PYTHON_CPU_COUNT=4"),
    ("cores", cpus(8, 8, 0.5), WARN, "allows 0.5; n_processes=None takes 1", "docker run --cpus=2"),
]


@LINUX
@pytest.mark.parametrize(("check", "found", "status", "told", "remedy"), VERDICTS)
def test_what_is_found_is_judged_and_a_warning_has_a_remedy(monkeypatch, check, found, status, told, remedy):
    with monkeypatch.context() as patch:
        for name, value in found.items():
            patch.setattr(name, value) if value else patch.delattr(name)
        finding = getattr(doctor, check)()
    assert finding.status is status
    assert told in finding.found
    assert remedy in finding.remedy
    assert finding.remedy or status in (GOOD, NOTE)


@pytest.mark.parametrize(("status", "code"), [(GOOD, 0), (NOTE, 0), (WARN, 0), (BAD, 1)])
def test_only_what_is_bad_fails_the_command_and_a_check_that_fails_does_not(monkeypatch, capsys, status, code):
    def cores():
        return doctor.Finding(status, "few " * 60, "more")

    monkeypatch.setattr(doctor, "CHECKS", (cores, forbidden))
    assert doctor.run(doctor.argparse.Namespace(json=False)) == code
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 118
    assert text.startswith(f"{status:6}cores")
    assert "→ more" in text
    assert "note  forbidden       could not be examined (PermissionError" in text


@pytest.mark.timeout(200)
def test_this_machine_is_fit():
    command = [sys.executable, "-m", "mpiter", "doctor", "--json"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)
    found = {finding["subject"]: finding["found"] for finding in answer["findings"]}
    assert answer["schema"] == "mpiter.doctor/1"
    assert [*found] == [check.__name__.replace("_", " ") for check in doctor.CHECKS]
    assert {name for name, *_ in VERDICTS} == {check.__name__ for check in doctor.CHECKS}
    assert f"n_processes=None takes {machine.cores()}" in found["cores"]
    assert not any("could not be examined" in words for words in found.values())


def test_another_python_that_fails_or_hangs_says_why_in_one_line():
    failures = {
        "raise KeyError('x')": "KeyError: 'x'",
        "raise SystemExit(3)": "ended with exit code 3",
        "import subprocess; subprocess.run(['sleep', '99'])": "no answer within 0.5 s",
    }
    for code, told in failures.items():
        with pytest.raises(RuntimeError) as raised:  # the clean house shows that a child of its own is ended too
            doctor.ask(code, 0.5 if "sleep" in code else 60)
        assert str(raised.value) == told
    assert doctor.ask("print(7)", 60) == "7"
