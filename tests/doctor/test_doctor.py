"""The doctor examines this machine without leaving a trace, and says of a poorer one what is wrong and what to do."""

from __future__ import annotations

import json
import os
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpiter import doctor, machine
from mpiter.__main__ import main
from mpiter.doctor import BAD, GOOD, NOTE, WARN, Finding

MB, GB = 1 << 20, 1 << 30
Patch = pytest.MonkeyPatch


def test_this_machine_is_fit_and_each_check_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == doctor.SCHEMA
    assert [one["subject"].replace(" ", "_") for one in told["findings"]] == [check.__name__ for check in doctor.CHECKS]
    assert all(one["status"] in (GOOD, NOTE, WARN) and one["found"] for one in told["findings"])
    assert all(one["remedy"] for one in told["findings"] if one["status"] == WARN)


def test_the_screen_has_a_line_for_each_finding_and_the_exit_status_is_1_where_something_is_bad(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ill() -> Finding:
        return Finding(BAD, "no memory at all " * 12, "buy some.")

    def odd() -> Finding:
        raise ValueError("who knows")

    monkeypatch.setattr(doctor, "CHECKS", (ill, odd))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("BAD   ill             no memory")
    assert all(len(line) <= 118 for line in lines)
    assert lines[-1] == "note  odd             could not be examined (ValueError: who knows)"
    assert any(line.endswith("→ buy some.") for line in lines)


def test_what_is_needed_is_what_the_package_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [f"{name}>={least}" for name, least in doctor.NEEDED.items()]


def with_versions(**versions: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(doctor, "_version", lambda name: versions.get(name.replace("-", "_"), "9"))


def with_answers(**answers: Any) -> Callable[[Patch], None]:
    """What another Python says to code that has a word in it; an error is raised."""

    def ask(code: str, seconds: float) -> str:
        found = next((answer for word, answer in answers.items() if word in code), "0.1")
        if isinstance(found, Exception):
            raise found
        return str(found)

    return lambda patch: patch.setattr(doctor, "ask", ask)


def with_machine(**answers: Any) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        for name, answer in answers.items():
            patch.setattr(machine, name, lambda *_, answer=answer: answer)

    return apply


NO = RuntimeError("PermissionError: no")
VERDICTS: list[tuple[Callable[[], Finding], Callable[[Patch], None], str, str, str]] = [
    (doctor.software, with_versions(), GOOD, "numpy 9, msgpack 9", ""),
    (doctor.software, with_versions(numpy="1.22.4"), BAD, "numpy 1.22.4", "pip install 'numpy>=1.23'"),
    (doctor.software, with_versions(msgpack=""), BAD, "msgpack missing", "pip install 'msgpack>=1'"),
    (doctor.start_methods, with_answers(), GOOD, "fork 0.1 s", ""),
    (doctor.start_methods, with_answers(spawn=NO), WARN, "spawn fails (PermissionError: no)", "leave backend="),
    (doctor.start_methods, with_answers(forkserver=NO), BAD, "forkserver fails", "Process('fork')"),
    (doctor.start_methods, with_answers(mpiter=NO), BAD, "spawn fails", "backend='thread'"),
    (doctor.memory, with_machine(memory_available=30 * GB, memory_total=32 * GB, meminfo=32 * GB), GOOD, "30 GB", ""),
    (doctor.memory, with_machine(memory_available=3 * GB, memory_total=4 * GB), NOTE, "by control group", ""),
    (doctor.memory, with_machine(memory_available=512 * MB, memory_total=GB), WARN, "512 MB of 1 GB", "docker run"),
    (doctor.memory, with_machine(memory_available=100 * MB), BAD, "100 MB", "n_processes"),
    (doctor.limits, with_machine(limit=(GB, GB), address_space=1 << 50), WARN, "to be mapped", "ulimit -f"),
    (doctor.limits, with_machine(limit=(20, 20), address_space=1 << 50), BAD, "20 open files", "ulimit -n 1024"),
    (doctor.limits, with_machine(address_space=2 * GB), WARN, "2 GB to be mapped", "ulimit -v unlimited"),
    (doctor.cores, with_machine(quota=0.5, cores=1), WARN, "the control group allows 0.5", "n_processes=0"),
    (doctor.image_decoders, with_versions(**dict.fromkeys((name.replace("-", "_") for name in doctor._DECODERS), "")),
     NOTE, "none", "pip install 'mpiter[images]'"),
    (doctor.image_decoders, with_answers(cv2=NO), WARN, "opencv", "opencv-python-headless"),
    (doctor.clock, with_machine(text_of="hpet\n"), NOTE, "hpet: to read the time takes a system call", ""),
    (doctor.clock, with_machine(text_of="tsc\n"), GOOD, "tsc", ""),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "status", "found", "remedy"), VERDICTS)
def test_a_verdict_says_what_was_found_and_what_to_do(
    check: Callable[[], Finding], given: Any, status: str, found: str, remedy: str, monkeypatch: Patch
) -> None:
    given(monkeypatch)
    finding = check()
    assert finding.status == status, finding
    assert found in finding.found
    assert remedy in finding.remedy
    assert bool(finding.remedy) or status in (GOOD, NOTE)


def test_without_a_memfd_an_unlinked_file_serves_and_without_either_it_is_bad(monkeypatch: Patch) -> None:
    def refused(*_: Any, **__: Any) -> int:
        raise PermissionError("not permitted")

    monkeypatch.setattr("mpiter.doctor.shared.memfd", refused)
    assert doctor.shared_memory().status == WARN
    assert "seccomp" in doctor.shared_memory().remedy
    monkeypatch.setattr("mpiter.doctor.shared.unnamed_file", refused)
    assert doctor.shared_memory().status == BAD


def test_a_question_has_an_answer_an_error_in_a_line_or_no_time_left() -> None:
    assert doctor.ask("print(6 * 7)", 60) == "42"
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError: division by zero$"):
        doctor.ask("1 / 0", 60)
    with pytest.raises(RuntimeError, match=r"no answer within 0\.2 s"):
        doctor.ask("import time; time.sleep(60)", 0.2)


def test_a_question_leaves_no_process_behind() -> None:
    """Not its children either."""
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'input()']); time.sleep(60)"
    with pytest.raises(RuntimeError, match="no answer"):
        doctor.ask(code, 0.5)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    assert not children.exists() or str(os.getpid()) not in children.read_text().split()
    assert sys.executable
