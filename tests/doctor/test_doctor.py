"""What the doctor says of every kind of machine, by values; and that it examines this one without leaving a trace."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import tomllib
from pathlib import Path

import pytest

from mpiter import machine
from mpiter.doctor import examine as doctor
from mpiter.doctor import probes
from mpiter.doctor import software_checks as software
from mpiter.doctor import system_checks as system
from mpiter.doctor.finding import Decoder, Finding, Status, Trial

GOOD, NOTE, WARN, BAD = Status
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
FINE = Trial("0.4")
BROKEN = Trial(error="PermissionError: no")
BUILD = "CPython on Linux"
PILLOW = Decoder("Pillow", "12.0", Trial("True"))
NEWEST = {"numpy": "2.4.6", "msgpack": "1.2.4", "cloudpickle": "3.1.2", "threadpoolctl": "3.8.0"}

# what was seen -> the status, a part of what is said, a part of the remedy
VERDICTS = [
    (software.python((3, 11), BUILD, False, True, 64), GOOD, "with the GIL", ""),
    (software.python((3, 13), BUILD, True, False, 64), GOOD, "free-threaded", "backend='thread'"),
    (software.python((3, 13), BUILD, True, True, 64), NOTE, "GIL is in use", "PYTHON_GIL=0"),
    (software.python((3, 15), BUILD, False, True, 64), NOTE, "tested up to 3.13", ""),
    (software.python((3, 11), BUILD, False, True, 32), WARN, "32 bits", "64-bit Python"),
    (software.packages(NEWEST), GOOD, "numpy 2.4.6, msgpack 1.2.4", ""),
    (software.packages(NEWEST | {"numpy": "1.22.4"}), BAD, "numpy 1.22.4", "pip install 'numpy>=1.23'"),
    (software.packages(NEWEST | {"msgpack": None}), BAD, "msgpack missing", "pip install 'msgpack>=1'"),
    (
        software.start_methods({"fork": FINE, "spawn": FINE}, "spawn"),
        GOOD,
        "fork 0.4 s, spawn 0.4 s to the first batch; spawn is the default",
        "",
    ),
    (software.start_methods({"spawn": Trial("31.0")}, "spawn"), NOTE, "spawn 31.0 s", "-X importtime"),
    (software.start_methods({"fork": BROKEN, "spawn": FINE}, "spawn"), WARN, "batch; fork: Perm", "Process('fork')"),
    (
        software.start_methods({"fork": FINE, "spawn": BROKEN}, "spawn"),
        BAD,
        "spawn: PermissionError",
        "mpiter.Process('fork')",
    ),
    (
        software.start_methods({"fork": BROKEN, "spawn": BROKEN}, "spawn"),
        BAD,
        "fork, spawn: PermissionError: no; spawn is",
        "backend='thread'",
    ),
    (software.numerical_threads({"openblas": 2}, {}, 2), GOOD, "here openblas 2; in each worker 1", ""),
    (software.numerical_threads({}, {}, 2), GOOD, "no such library", ""),
    (software.numerical_threads({"openblas": 64}, {}, 2), NOTE, "openblas 64", "threadpool_limits(2)"),
    (software.numerical_threads({}, {"OMP_NUM_THREADS": "1"}, 8), GOOD, "OMP_NUM_THREADS=1", ""),
    (software.numerical_threads({}, {"OMP_NUM_THREADS": "4"}, 1), NOTE, "4 threads on each of 1", "unset OMP_NUM"),
    (software.numerical_threads({}, {"OMP_NUM_THREADS": "4,2"}, 8), WARN, "4 threads on each of 8", "unset OMP_NUM"),
    (software.numerical_threads({}, {"OMP_NUM_THREADS": "many"}, 8), GOOD, "OMP_NUM_THREADS=many", ""),
    (software.image_decoders([]), NOTE, "none", "pip install 'mpiter[images]'"),
    (software.image_decoders([PILLOW]), GOOD, "Pillow 12.0", ""),
    (
        software.image_decoders([Decoder("Pillow", "12", Trial("False"))]),
        WARN,
        "without libjpeg-turbo",
        "--only-binary",
    ),
    (software.image_decoders([Decoder("opencv-python", "4", BROKEN)]), WARN, "does not load", "opencv-python-headless"),
    (software.image_decoders([PILLOW, Decoder("PyTurboJPEG", "1", BROKEN)]), WARN, "does not load", "libturbojpeg"),
    (software.image_decoders([Decoder("simplejpeg", "1", BROKEN)]), WARN, "does not load", "--force-reinstall simple"),
    (software.image_decoders([PILLOW, Decoder("Pillow-SIMD", "9", Trial("True"))]), WARN, "overwritten", "uninstall"),
    (software.chainer(None, "2.1", (3, 13), False), GOOD, "not installed", ""),
    (software.chainer("7.8.1", "1.23.5", (3, 11), True), GOOD, "imports unaided", ""),
    (software.chainer("7.8.1", "2.1", (3, 11), True), WARN, "NumPy 2.1", "import mpiter.chainer_compat"),
    (software.chainer("7.8.1", "1.24", (3, 11), True), WARN, "NumPy 1.24", "import mpiter.chainer_compat"),
    (software.chainer("7.8.1", "1.23.5", (3, 12), True), WARN, "Python 3.12", "import mpiter.chainer_compat"),
    (software.chainer("7.8.1", "1.23.5", (3, 11), False), WARN, "pkg_resources", "import mpiter.chainer_compat"),
    (software.chainer("7.8.0", "2.1", (3, 11), True), WARN, "7.8.0", "pip install chainer==7.8.1"),
    (software.frameworks({"torch": None, "jax": None}, "2.1"), GOOD, "not installed", ""),
    (software.frameworks({"torch": "2.13.0+cpu", "jax": "0.10"}, "2.1"), GOOD, "torch 2.13.0+cpu, jax 0.10", ""),
    (software.frameworks({"torch": "2.2.2", "jax": None}, "1.26"), GOOD, "torch 2.2.2", ""),
    (software.frameworks({"torch": "2.2.2", "jax": None}, "2.1"), WARN, "built for NumPy 1", "'torch>=2.3'"),
    (software.gpu([], "", None, None, False), GOOD, "none found", ""),
    (software.gpu(["H200"], "", None, None, False), GOOD, "1 (H200)", ""),
    (software.gpu(["H200", "H200"], "", "2.13", Trial("2"), False), GOOD, "2 (H200); torch 2.13 sees 2", ""),
    (software.gpu(["H200"], "", "2.13+cpu", None, True), NOTE, "hidden", "unset CUDA_VISIBLE_DEVICES"),
    (software.gpu(["H200"], "", "2.13+cpu", Trial("0"), False), WARN, "sees none", "torch built for CUDA"),
    (software.gpu(["H200"], "", "2.13", BROKEN, False), WARN, "fails: PermissionError", "torch built for CUDA"),
    (software.gpu(["/dev/nvidia0"], "version mismatch", None, None, False), WARN, "mismatch", "restart the machine"),
    (system.shared_memory(Trial(), Trial(), "/tmp"), GOOD, "memfd works", ""),
    (system.shared_memory(None, Trial(), "/tmp"), NOTE, "unlinked files in /tmp", "TMPDIR"),
    (system.shared_memory(None, BROKEN, "/tmp"), BAD, "nor does an unlinked file in /tmp", "TMPDIR"),
    (system.shared_memory(BROKEN, Trial(), "/tmp"), WARN, "memfd fails", "seccomp"),
    (system.shared_memory(BROKEN, BROKEN, "/tmp"), BAD, "memfd fails", "seccomp"),
    (system.dev_shm(8 * GB, 8 * GB), GOOD, "8 GB of 8 GB free", ""),
    (system.dev_shm(None, 0, linux=False), GOOD, "unknown", ""),
    (system.dev_shm(64 * MB, 64 * MB), NOTE, "64 MB of 64 MB free: mpiter doesn't need it", "--shm-size=2g"),
    (system.dev_shm(8 * GB, 0), NOTE, "0 KB of 8 GB free", "ls -l /dev/shm"),
    (system.dev_shm(None, 0), NOTE, "missing or not writable", "--shm-size=2g"),
    (system.memory(30 * GB, 32 * GB, 32 * GB, 0), GOOD, "30 GB of 32 GB available", ""),
    (system.memory(3 * GB, 4 * GB, 64 * GB, 0), NOTE, "by control group; the machine has 64 GB", ""),
    (system.memory(30 * GB, 32 * GB, 32 * GB, 3), NOTE, "3 processes", "n_prefetch"),
    (system.memory(512 * MB, 1 * GB, 64 * GB, 0), WARN, "512 MB of 1 GB", "docker run --memory"),
    (system.memory(512 * MB, 1 * GB, 1 * GB, 0), WARN, "512 MB of 1 GB", "end other programs"),
    (system.memory(100 * MB, 1 * GB, 1 * GB, 0), BAD, "100 MB of 1 GB", "n_processes=0"),
    (system.address_space(None, None), GOOD, "unlimited", ""),
    (system.address_space(100 * GB, None), NOTE, "ulimit -v leaves 100 GB", "ulimit -v unlimited"),
    (system.address_space(2 * GB, None), WARN, "2 GB", "ulimit -v unlimited"),
    (system.address_space(None, 200 * KB), BAD, "ulimit -f leaves 200 KB", "ulimit -f unlimited"),
    (system.overcommit(0, 0), GOOD, "is 0", ""),
    (system.overcommit(2, 20 * GB), NOTE, "20 GB are left", "vm.overcommit_memory=0"),
    (system.overcommit(2, 200 * MB), WARN, "200 MB are left", "vm.overcommit_memory=0"),
    (system.open_files(1024, 1 << 20, 16), GOOD, "1024 allowed", ""),
    (system.open_files(None, None, 16), GOOD, "unlimited", ""),
    (system.open_files(64, 4096, 8), WARN, "64 allowed, 8 workers want 80", "ulimit -n 1024"),
    (system.open_files(64, 64, 8), WARN, "64 allowed", "--ulimit nofile=1024"),
    (system.open_files(32, 4096, 8), BAD, "32 allowed", "ulimit -n 1024"),
    (system.processes(None, 0, None, 8), GOOD, "unlimited", ""),
    (system.processes(96365, 300, 4000, 8), GOOD, "allows 4000 more", ""),
    (system.processes(96365, 300, 20, 8), WARN, "20 more; 8 workers want about 48", "docker run --pids-limit=4096;"),
    (system.processes(40, 5, 1000, 8), WARN, "allows the user 40, who runs 5", "ulimit -u 4096;"),
    (system.processes(200, 190, None, 8), WARN, "who runs 190; 8 workers want about 48", "ulimit -u 4096;"),
    (system.processes(200, 199, None, 8), BAD, "who runs 199", "ulimit -u 4096;"),
    (system.processes(5000, 4990, None, 8), WARN, "who runs 4990", "ulimit -u 5038;"),
    (system.processes(None, 0, 3, 8), BAD, "3 more", "--pids-limit"),
    (system.cores(8, 8, None), GOOD, "8, all ours; n_processes=None takes 8", ""),
    (system.cores(8, 8, 16.0), GOOD, "8, all ours", ""),
    (system.cores(8, 8, 1.5), NOTE, "group allows 1.5; n_processes=None takes 1, os.cpu_count() says 8", "to use 1"),
    (system.cores(64, 4, None), NOTE, "affinity allows 4", "PYTHON_CPU_COUNT=4"),
    (system.cores(64, 4, 2.0), NOTE, "affinity allows 4 and the control group allows 2", "to use 2"),
    (system.cores(8, 8, 0.5), WARN, "allows 0.5; n_processes=None takes 1", "docker run --cpus=2"),
    (system.temporary_files("/tmp", True), GOOD, "in /tmp", ""),
    (system.temporary_files("/" + "t" * 80, True), NOTE, "too long", ""),
    (system.temporary_files("/" + "t" * 80, False), BAD, "cannot be written", "TMPDIR"),
    (system.temporary_files(None, False), BAD, "no folder", "TMPDIR"),
    (system.first_process(4711, 0), GOOD, "no dead", ""),
    (system.first_process(1, 0), NOTE, "that is us", "docker run --init"),
    (system.first_process(4711, 12), WARN, "12 dead processes", "docker run --init"),
    (system.clock("tsc", ["tsc", "hpet"]), GOOD, "tsc", ""),
    (system.clock("", []), GOOD, "the system's", ""),
    (system.clock("hpet", ["tsc", "hpet"]), NOTE, "hpet", "echo tsc > /sys/"),
    (system.clock("acpi_pm", ["acpi_pm"]), NOTE, "acpi_pm", ""),
]


@pytest.mark.parametrize(
    ("finding", "status", "found", "remedy"),
    VERDICTS,
    ids=[f"{finding.subject}: {finding.found}"[:70] for finding, *_ in VERDICTS],
)
def test_what_was_seen_is_judged(finding, status, found, remedy):
    assert finding.status is status
    assert found in finding.found
    assert remedy in finding.remedy


def test_what_is_as_it_should_be_needs_no_remedy_but_may_have_a_tip():
    tips = {finding.subject for finding, *_ in VERDICTS if finding.status is GOOD and finding.remedy}
    assert tips == {"Python"}  # threads run in parallel there


@pytest.mark.parametrize("status", [WARN, BAD])
def test_a_warning_without_a_remedy_is_refused(status):
    with pytest.raises(ValueError, match="remedy"):
        Finding("cores", status, "none")


def test_the_needed_versions_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [f"{name}>={version}" for name, version in software.NEEDED.items()]


def test_an_examination_that_fails_is_a_finding():
    def examine():
        raise PermissionError("not for you")

    finding = doctor.examined("cores", examine)
    assert (finding.subject, finding.status) == ("cores", NOTE)
    assert finding.found == "could not be examined (PermissionError: not for you)"


def test_the_text_shows_every_finding_its_remedy_and_a_count():
    found = [
        Finding("Python", GOOD, "3.13"),
        Finding("cores", WARN, "too few " * 30, "more"),
        Finding("x", BAD, "y", "z"),
    ]
    text = doctor.as_text(iter(found))
    assert max(map(len, text.splitlines())) <= 120
    assert text.splitlines()[0] == "good  Python  3.13"
    assert "WARN  cores" in text
    assert "→ more" in text
    assert text.endswith("1 good, 1 warn, 1 bad.")


def test_the_json_says_what_it_is_and_survives_the_journey():
    answer = json.loads(json.dumps(doctor.as_json([Finding("cores", WARN, "few", "more")])))
    assert answer == {
        "schema": "mpiter.doctor/1",
        "findings": [{"subject": "cores", "status": "warn", "found": "few", "remedy": "more"}],
    }


@pytest.mark.parametrize(("status", "code"), [(GOOD, 0), (NOTE, 0), (WARN, 0), (BAD, 1)])
def test_only_what_is_bad_fails_the_command(status, code):
    assert doctor.exit_code(iter([Finding("Python", GOOD, "3.13"), Finding("cores", status, "few", "more")])) == code


@pytest.mark.timeout(200)
def test_this_machine_is_examined_and_every_subject_is_announced():
    announced = []
    loaded = {"torch", "jax", "cv2", "chainer"} & sys.modules.keys()
    found = list(doctor.findings(announced.append))
    assert announced == [finding.subject for finding in found]
    assert {finding.subject for finding, *_ in VERDICTS} == set(announced)
    assert not [finding for finding in found if "could not be examined" in finding.found]
    assert doctor.exit_code(found) == 0, doctor.as_text(found)
    assert {"torch", "jax", "cv2", "chainer"} & sys.modules.keys() == loaded


def test_the_cores_that_the_doctor_tells_are_those_that_the_engine_takes():
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert f"n_processes=None takes {machine.cores()}" in system.cores(os.cpu_count(), affinity, machine.quota()).found


def test_another_python_answers_with_its_last_line():
    assert probes.ask("print(1); print(2)", 60) == Trial("2")


def test_another_python_that_fails_says_why_in_one_line():
    assert probes.ask("raise KeyError('x')", 60) == Trial(error="KeyError: 'x'")
    assert probes.ask("raise SystemExit(3)", 60) == Trial(error="ended with exit code 3")


def test_another_python_that_hangs_is_ended_with_all_its_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    assert probes.ask(code, 0.5) == Trial(error="no answer within 0.5 s")  # the clean house shows that nobody is left


def test_a_command_that_is_not_there_is_an_error_and_no_exception():
    assert "No such file" in probes.run(["/nowhere/at-all"], 10).error


def test_a_worker_that_cannot_start_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(probes, "_TRY_START", probes._TRY_START.replace("n_processes=1", "n_processes=-1"))
    assert probes.try_start("fork").error.startswith("OptionError: n_processes")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd on this system")
def test_a_memfd_that_is_forbidden_is_told(monkeypatch):
    def forbidden(name, flags):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert "Operation not permitted" in probes.memfd().error
    monkeypatch.delattr(os, "memfd_create")
    assert probes.memfd() is None


def test_what_takes_a_memfds_place_is_tried_too(monkeypatch):
    assert not probes.unlinked_file().error
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert "No such file" in probes.unlinked_file().error


def test_all_that_the_user_runs_is_counted_with_its_threads():
    event = threading.Event()
    before, waiting = probes.tasks_of_the_user(), [threading.Thread(target=event.wait) for _ in range(50)]
    for thread in waiting:
        thread.start()
    counted = probes.tasks_of_the_user()
    event.set()
    for thread in waiting:
        thread.join()
    assert counted > before + 25  # others come and go


def test_limits_that_do_not_exist_are_none():
    assert machine.limit("RLIMIT_OF_NOTHING") == (None, None)


def test_what_the_environment_says_of_threads_is_seen(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert probes.thread_variables()["OMP_NUM_THREADS"] == "4"


def test_nobody_waits_for_the_dead_of_process_1_where_there_are_none(monkeypatch):
    monkeypatch.setattr(probes, "_dead_children_of_1", lambda: iter(()))
    assert probes.uncollected(patience=1e9) == 0


def test_dead_that_process_1_collects_late_are_no_finding(monkeypatch):
    looks = iter([[7, 8], [8], []])
    monkeypatch.setattr(probes, "_dead_children_of_1", lambda: next(looks))
    assert probes.uncollected(patience=1e9) == 0


def test_dead_that_process_1_never_collects_are_counted(monkeypatch):
    monkeypatch.setattr(probes, "_dead_children_of_1", lambda: [7, 8])
    assert probes.uncollected(patience=0) == 2
