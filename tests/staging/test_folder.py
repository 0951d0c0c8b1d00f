"""A tier is filled by several processes, and keeps within its bound.

What killed processes leave behind is removed.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts import wait_until
from stores import Store, bytes_below

import mpiter
from mpiter.staging import Staging
from mpiter.staging.folder import Folder

TAIL = 16
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path), 10_000)


def is_free(folder, key, patience=0.0):
    with folder.claim(key, patience) as is_ours:
        return is_ours


def test_what_does_not_fit_is_not_kept_and_something_smaller_is(folder):
    assert not folder.keep(folder.key("/0"), bytes(10_001))
    assert folder.keep(folder.key("/1"), bytes(9_000))
    assert not folder.keep(folder.key("/2"), bytes(2_000))
    assert folder.keep(folder.key("/3"), bytes(500))
    assert len(folder.held()) == 2
    assert folder.used()[0] == 9_500 + 2 * TAIL


def test_a_copy_that_cannot_be_made_leaves_no_descriptor_and_no_count(folder):
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.keep(folder.key("/1"), bytes(9_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder.used(), len(os.listdir("/proc/self/fd"))) == ((0, 0), before)
    assert folder.keep(folder.key("/1"), bytes(9_000))


def test_a_process_that_was_forked_meanwhile_holds_no_claim_on(folder):
    key = folder.key("/5")
    with folder.claim(key):
        child = FORK.Process(target=signal.pause)
        child.start()
    assert is_free(folder, key)
    child.kill()
    child.join()


def test_copies_of_many_processes_never_exceed_the_bound(folder, tmp_path):
    def fill():
        rng = random.Random(os.getpid())
        for number in range(40):
            key = folder.key(f"/{rng.randrange(40)}")
            with folder.claim(key, 60.0) as is_ours:
                if is_ours and (number % 2 or not folder.has(key)):
                    folder.keep(key, bytes(rng.randrange(900)))
        os._exit(0)

    children = [FORK.Process(target=fill) for _ in range(3)]
    for child in children:
        child.start()
    while any(child.is_alive() for child in children):
        # Without this lock a copy could be counted under two names, one after the
        # other.
        with folder._changing():
            assert bytes_below(tmp_path) <= 10_000
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert folder.used()[0] == bytes_below(tmp_path)


def test_what_killed_processes_have_left_unfinished_is_cleared_away(folder, tmp_path):
    key, unfinished, live = map(folder.key, ("/0", "/1", "/2"))
    assert folder.keep(key, bytes(100))
    copies = Path(folder.path, "copies")
    for name in (unfinished, live):
        (copies / name).parent.mkdir(exist_ok=True)
        (copies / f"{name}.part").write_bytes(bytes(5_000))
    foreign = [
        Path(folder.path, "notes.txt"),
        (copies / key).with_name("not a copy.part"),
    ]
    for file in foreign:
        file.write_text("mine")
    with folder.claim(live):
        again = Folder(str(tmp_path), 10_000)
        assert not (copies / f"{unfinished}.part").exists()
        assert (copies / f"{live}.part").exists(), "another process may be writing it"
        assert again.used()[0] == 5_100 + TAIL
    assert folder.keep(live, bytes(9_000)), "in the place of the one that was left"
    assert folder.used()[0] == bytes_below(tmp_path) - len("mine") == 9_100 + 2 * TAIL
    assert [file.read_text() for file in foreign] == ["mine", "mine"]


def test_a_copy_that_cannot_be_written_leaves_nothing(folder, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        folder.keep(folder.key("/0"), bytes(100))
    assert folder.used()[0] == bytes_below(tmp_path) == 0


def test_the_folder_is_the_users_alone(folder, tmp_path):
    key = folder.key("/0")
    assert folder.keep(key, b"x")
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    assert os.stat(Path(folder.path, "copies", key)).st_mode & 0o777 == 0o600
    os.chmod(folder.path, 0o755)
    with pytest.raises(
        mpiter.OptionError, match="is not a folder that only you may use"
    ):
        Folder(str(tmp_path), 1000)
    os.rename(folder.path, tmp_path / "elsewhere")
    os.chmod(tmp_path / "elsewhere", 0o700)
    os.symlink(tmp_path / "elsewhere", folder.path)
    with pytest.raises(
        mpiter.OptionError, match="is not a folder that only you may use"
    ):
        Folder(str(tmp_path), 1000)


def test_copies_are_told_apart_by_where_they_come_from(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder.key("a") == folder.key(str(tmp_path / "a")) != folder.key("/a")
    assert folder.key("s3://bucket/a") != folder.key("s3://other/a")


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import mpiter
from mpiter.staging import Staging
from stores import Store

store = Store(Path(sys.argv[1]), 120, 20_000)
staging = Staging(sys.argv[2], 60 * 20_016)
with mpiter.batches(staging.of(store), 4, n_processes=1, epochs=None, seed=0) as stream:
    print("begun", flush=True)
    for indices, totals in stream:
        is_right = map(store.is_right, indices.tolist(), totals.tolist())
        assert all(is_right), "a torn copy"
"""


def program(tmp_path):
    here = Path(__file__).resolve().parents
    paths = [str(here[2]), str(here[1] / "support")]
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        str(tmp_path),
        str(tmp_path / "tier"),
        *paths,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.death
def test_programs_that_are_killed_leave_nothing_that_is_served_torn_and_the_bound_holds(
    tmp_path,
):
    tier = tmp_path / "tier"
    rng = random.Random(0)
    store = Store(tmp_path, 120, 20_000)
    # Both programs share the folder.
    with program(tmp_path) as one, program(tmp_path) as other:
        for killed in (one, other):
            assert killed.stdout.readline() == "begun\n"
        for killed in (one, other):
            until = time.monotonic() + rng.uniform(0.05, 0.4)
            while time.monotonic() < until:
                assert bytes_below(tier) <= 60 * 20_016
            assert killed.poll() is None, killed.stderr.read()
            killed.kill()

    def is_clear():
        Folder(str(tier), 60 * 20_016)
        return not list(tier.glob("mpiter-staged-*/*/*/*.part"))

    wait_until(is_clear, "the last one's workers are gone")
    staging = Staging(tier, 60 * 20_016)
    staged = staging.of(store)
    with mpiter.batches(staged, 4, n_processes=0, epochs=2) as stream:
        for indices, totals in stream:
            assert all(map(store.is_right, indices.tolist(), totals.tolist()))
    assert staged.fetch.held().sum() == 60, "what was reserved in vain is free again"
    assert bytes_below(tier) == staging.stats().held_bytes == 60 * 20_016
