"""The tiers by themselves: who copies what, the bound, and what killed processes leave behind."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from scripts import wait_until
from stores import Store, bytes_below

import mpiter
from mpiter.staging import Staging
from mpiter.staging.claims import Claims
from mpiter.staging.folder import Folder, FolderShelf, _Presence
from mpiter.staging.ledger import BYTES, Ledger
from mpiter.staging.memory import Memory, MemoryShelf
from mpiter.staging.sheet import Sheet

TAIL = 16
FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["folder", "memory"])
def shelf(request, tmp_path):
    if request.param == "folder":
        return FolderShelf(Folder(str(tmp_path), 10_000), "/store")
    return MemoryShelf(Memory(10_000), 100)


def in_a_child(function, *args):
    """Whether it is true there."""
    child = FORK.Process(target=lambda: os._exit(0 if function(*args) else 1))
    child.start()
    child.join()
    return child.exitcode == 0


def test_what_is_put_is_there_for_everybody(shelf):
    key = shelf.key(3, "/store/3")
    assert shelf.get(key) is None
    assert not shelf.has(key)
    with shelf.claim(key) as is_ours:
        assert is_ours
        assert shelf.put(key, b"three")
    assert shelf.get(key) == b"three"
    assert shelf.held() == {key}
    assert in_a_child(lambda: shelf.get(key) == b"three")
    other = shelf.key(4, "/store/4")
    assert in_a_child(lambda: shelf.put(other, b"four"))
    assert shelf.get(other) == b"four"
    assert shelf.held() == {key, other}


def test_what_does_not_fit_is_not_kept_and_something_smaller_is(shelf):
    assert not shelf.put(shelf.key(0, "/0"), bytes(10_001))
    assert shelf.put(shelf.key(1, "/1"), bytes(9_000))
    assert not shelf.put(shelf.key(2, "/2"), bytes(2_000))
    assert shelf.put(shelf.key(3, "/3"), bytes(500))
    assert len(shelf.held()) == 2
    assert shelf.ledger.used[0] <= 10_000


def test_a_claim_is_one_threads_and_one_processes(shelf):
    key = shelf.key(5, "/5")
    with shelf.claim(key):
        with shelf.claim(key) as is_ours:
            assert not is_ours, "this process has it"

        def is_free(number):
            with shelf.claim(shelf.key(number, f"/{number}")) as is_ours:
                return is_ours

        assert not in_a_child(is_free, 5)
        assert in_a_child(is_free, 6)
    assert in_a_child(is_free, 5)


def test_who_waits_for_a_claim_gets_it_when_its_owner_is_killed(shelf):
    key = shelf.key(5, "/5")
    here, there = FORK.Pipe()

    def hold():
        with shelf.claim(key):
            there.send("mine")
            signal.pause()

    child = FORK.Process(target=hold)
    child.start()
    assert here.recv() == "mine"
    got = threading.Event()

    def wait():
        with shelf.claim(key, 60.0) as is_ours:
            if is_ours:
                got.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not got.is_set()
    child.kill()
    child.join()
    waiting.join(20)
    assert got.is_set()


def test_who_waits_for_a_claim_gives_up_when_his_patience_is_at_an_end(shelf):
    """Be the owner a thread or another process; somebody else of this process, too, who waits for him."""
    key = shelf.key(5, "/5")

    def gives_up():
        with shelf.claim(key, 0.01) as is_ours:
            return not is_ours

    with shelf.claim(key):
        assert gives_up()
        assert in_a_child(gives_up)
    assert not gives_up()


def test_two_tiers_of_one_process_do_not_give_up_each_others_claims(tmp_path):
    path = str(tmp_path / "claims")
    one, other = Claims(path), Claims(path)
    with one.claim(7):
        with other.claim(7) as is_ours:
            assert not is_ours
        del other, is_ours  # closed
        with Claims(path).claim(7) as is_ours:
            assert not is_ours


def test_reservations_of_many_never_exceed_the_bound(tmp_path):
    for where in (str(tmp_path / "ledger"), Sheet(BYTES)):
        ledger = Ledger(1000, where)

        def take(ledger=ledger):
            rng = random.Random(os.getpid())
            for _ in range(300):
                if ledger.reserve(size := rng.randrange(1, 90)) and rng.random() < 0.5:
                    ledger.reserve(-size, -1)
            return True

        children = [FORK.Process(target=take) for _ in range(3)]
        for child in children:
            child.start()
        while any(child.is_alive() for child in children):
            assert 0 <= ledger.used[0] <= 1000
        for child in children:
            child.join()
            assert child.exitcode == 0
        assert ledger.reserve(1000 - ledger.used[0])
        assert not ledger.reserve(1)


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_ledger_is_one_processes_while_it_is_changed(in_memory, tmp_path):
    ledger = Ledger(1000, Sheet(BYTES) if in_memory else str(tmp_path / "ledger"))

    def is_locked():
        try:
            fcntl.flock(ledger._here()._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    with ledger._here().locked():
        assert in_a_child(is_locked)
    assert not in_a_child(is_locked)


def test_who_comes_alone_clears_away_what_is_unfinished_and_counts_anew(tmp_path):
    folder = Folder(str(tmp_path), 10_000)
    shelf = FolderShelf(folder, "/store")
    key = shelf.key(0, "/0")
    assert shelf.put(key, bytes(100))
    assert folder.ledger.reserve(5000), "somebody was killed before he wrote"
    part = Path(folder.path, shelf._store, shelf.key(0, "/0") + ".part")
    part.write_bytes(b"half")
    foreign = Path(folder.path, "notes.txt")
    foreign.write_text("mine")
    within = part.with_name("not a copy.part")
    within.write_text("mine too")
    other = Folder(str(tmp_path), 10_000)
    assert part.exists(), "somebody is here, who may be writing it"
    assert other.ledger.used[0] == 5116
    del folder, shelf, other
    alone = Folder(str(tmp_path), 10_000)
    assert not part.exists()
    assert alone.ledger.used == (100 + TAIL, 1)
    assert foreign.read_text() == "mine"
    assert within.read_text() == "mine too"


def test_the_folder_is_the_users_alone(tmp_path):
    folder = Folder(str(tmp_path), 1000)
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    shelf = FolderShelf(folder, "/store")
    key = shelf.key(0, "/0")
    assert shelf.put(key, b"x")
    assert os.stat(Path(folder.path, shelf._store, key)).st_mode & 0o777 == 0o600
    os.chmod(folder.path, 0o755)
    with pytest.raises(mpiter.OptionError, match="is not a folder of your own"):
        Folder(str(tmp_path), 1000)
    os.rename(folder.path, tmp_path / "elsewhere")
    os.chmod(tmp_path / "elsewhere", 0o700)
    os.symlink(tmp_path / "elsewhere", folder.path)
    with pytest.raises(mpiter.OptionError, match="is not a folder of your own"):
        Folder(str(tmp_path), 1000)


def test_copies_are_told_apart_by_where_they_come_from(tmp_path, monkeypatch):
    shelf = FolderShelf(Folder(str(tmp_path), 1000), "/store")
    monkeypatch.chdir(tmp_path)
    assert shelf.key(0, "a") == shelf.key(9, str(tmp_path / "a")) != shelf.key(0, "/a")
    assert shelf.key(0, "s3://bucket/a") == shelf.key(1, "s3://bucket/a") != shelf.key(0, "s3://other/a")


def test_a_sheet_that_nobody_has_any_more_is_an_empty_one():
    sheet = Sheet(8)
    os.pwrite(sheet.fd, b"12345678", 0)
    pickled = pickle.dumps(sheet)
    again = pickle.loads(pickled)
    assert os.pread(again.fd, 8, 0) == b"12345678"
    assert in_a_child(lambda sheet: os.pread(sheet.fd, 8, 0) == b"12345678", sheet)
    del sheet, again
    anew = pickle.loads(pickled)
    assert os.pread(anew.fd, 8, 0) == bytes(8)


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import mpiter
from mpiter.staging import Staging
from stores import Store

store = Store(Path(sys.argv[1]), 120, 20_000)
staging = Staging(sys.argv[2], 60 * 20_016)
with mpiter.batches(staging.of(store), 4, n_processes=2, epochs=None, seed=0) as stream:
    print("begun", flush=True)
    for indices, totals in stream:
        assert all(map(store.is_right, indices.tolist(), totals.tolist())), "a torn copy"
"""


@pytest.mark.slow
@pytest.mark.death
def test_whoever_is_killed_leaves_nothing_that_is_served_torn_and_the_bound_holds(tmp_path):
    """At any moment: the next one goes on with what is whole."""
    tier, here = tmp_path / "tier", Path(__file__).resolve().parents
    paths = [str(here[2]), str(here[1] / "support")]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(tier), *paths]
    rng, store = random.Random(0), Store(tmp_path, 120, 20_000)
    for _ in range(6):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            assert program.stdout.readline() == "begun\n"
            until = time.monotonic() + rng.uniform(0.05, 0.6)
            while time.monotonic() < until:
                assert bytes_below(tier) <= 60 * 20_016
            assert program.poll() is None, program.stderr.read()
            program.kill()
    presence = _Presence(os.path.join(tier, f"mpiter-staged-{os.getuid()}", "open"))
    wait_until(presence.is_alone, "the last one's workers are gone")
    del presence
    staging = Staging(tier, 60 * 20_016)
    staged = staging.of(store)
    with mpiter.batches(staged, 4, n_processes=2, epochs=2) as stream:
        for indices, totals in stream:
            assert all(map(store.is_right, indices.tolist(), totals.tolist()))
    assert staging.stats().damaged == 0
    assert staged.fetch.held().sum() == 60, "what was reserved in vain is free again"
    assert bytes_below(tier) <= 60 * 20_016
