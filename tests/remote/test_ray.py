"""Workers on Ray: where the batches lie, how the dataset travels, and what becomes of actors that die."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chaos
import numpy as np
import pytest
import ray_here
from chaos import Differences, Run
from datasets import Squares, plain, plain_batch

import mpiter
from mpiter.remote import Ray, actors, ray_errors
from mpiter.remote.actors import Actors

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_here.started() as ray:
        yield ray


def ordered(dataset: Any, **options: Any) -> mpiter.MultiprocessIterator:
    options = {"n_processes": 2, "backend": ray_here.unhurried(), "repeat": False, "shuffle": False, **options}
    return mpiter.MultiprocessIterator(dataset, options.pop("batch_size", 6), **options)


def lies_in_the_store(array: np.ndarray) -> bool:
    """Is its memory mapped from a file in /dev/shm?"""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, rest = line.partition(" ")
        start, stop = (int(end, 16) for end in span.split("-"))
        if start <= address < stop:
            return "/dev/shm" in rest
    return False


class Large(Squares):
    """What is too large for Ray to send by itself."""

    def __init__(self, length: int = 24) -> None:
        super().__init__(length, (64, 64, 3))


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_read_only_view_of_the_object_store(ray: Any) -> None:
    with ordered(Large()) as it:
        next(it)  # the first is put together: its first sample came alone
        images, labels = next(it).columns
        assert lies_in_the_store(images)
        assert not any(column.flags.writeable for column in (images, labels))
        assert labels.tolist() == [*range(6, 12)]


def test_batches_that_were_put_together_are_read_only_as_well(ray: Any) -> None:
    with ordered(Large()) as it:
        assert not any(column.flags.writeable for column in next(it).columns)


def test_copies_are_writable_and_private(ray: Any) -> None:
    with ordered(Large(), copy=True) as it:
        for batch in it:
            images, _ = batch.columns
            assert images.flags.writeable
            assert not lies_in_the_store(images)
            images[:] = 7


def test_pieces_of_a_dear_batch_are_put_together(ray: Any) -> None:
    backend = Ray()
    backend.dear_s = 1e-6
    with ordered(Large(30), backend=backend, batch_size=10) as it:
        batches = [plain_batch(batch) for batch in it]
        assert it.stats().tasks > 3 + 1
    assert batches == [plain_batch([Large(30)[at] for at in range(start, start + 10)]) for start in (0, 10, 20)]


def test_cheap_batches_stay_whole(ray: Any) -> None:
    with ordered(Large(60)) as it:
        list(it)
        assert it.stats().tasks <= 10 + 1


def test_who_keeps_more_than_the_store_can_spare_gets_copies(ray: Any) -> None:
    many = 2 * ray_here.STORE_BYTES // Large()[0][0].nbytes // 4
    with pytest.warns(RuntimeWarning, match="batches are kept alive, .* of the object store"):  # noqa: SIM117
        with ordered(Large(many), batch_size=16) as it:
            kept = [batch.columns for batch in it]
    in_store = [lies_in_the_store(images) for images, _ in kept]
    assert in_store[1:5] == 4 * [True]
    assert not all(in_store)
    assert not any(images.flags.writeable for images, _ in kept)
    assert [label for _, labels in kept for label in labels.tolist()] == [*range(many)]


def test_a_batch_that_is_too_much_by_itself_is_told_of_as_that(ray: Any) -> None:
    many = ray_here.STORE_BYTES // 3 // Large()[0][0].nbytes
    with pytest.warns(RuntimeWarning, match=r"a batch of \d+ MB is more of the object store"):  # noqa: SIM117
        with ordered(Large(2 * many), batch_size=many) as it:  # the first is put together: its first row came alone
            assert [label for batch in it for _, label in batch] == [*range(2 * many)]


# -- the dataset -----------------------------------------------------------------------------------------------------


class Telling:
    """Tells where its array lies."""

    def __init__(self) -> None:
        self.array = np.arange(1 << 18, dtype=np.float64)
        self.names = mpiter.Packed([f"sample {number}" for number in range(12)])

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, self.array.flags.writeable, lies_in_the_store(self.array), self.names[index], self.array[index]


@pytest.mark.parametrize("writable", [False, True])
def test_workers_read_arrays_from_the_store_of_their_node(ray: Any, writable: bool) -> None:
    with ordered(Telling(), backend=Ray(writable=writable)) as it:
        samples = [sample for batch in it for sample in batch]
    assert samples == [(at, writable, not writable, f"sample {at}", float(at)) for at in range(12)]


def test_whether_a_dataset_has_changed_is_seen_in_the_store(ray: Any) -> None:
    dataset = np.zeros((12, 3))
    with ordered(dataset) as it:
        assert not next(it).columns.any()
        assert it._pump.loop.carries((dataset, None))
        dataset[:] = 5
        assert not it._pump.loop.carries((dataset, None))


def test_a_dataset_that_cannot_be_pickled_is_named(ray: Any) -> None:
    dataset: Any = Squares()
    dataset.lock = threading.Lock()
    with ordered(dataset) as it, pytest.raises(mpiter.DatasetNotPicklable, match=r"dataset\.lock .*worker_init"):
        next(it)


def test_a_dataset_that_cannot_be_opened_there_ends_with_the_workers_traceback(ray: Any) -> None:
    def fails(info: Any) -> None:
        raise ValueError(f"{info.backend} worker of {info.num_workers}")

    with ordered(Squares(), worker_init=fails) as it, pytest.raises(mpiter.WorkerStartError, match="ray worker of 2"):
        next(it)


# -- deaths ----------------------------------------------------------------------------------------------------------


class Deadly(Squares):
    """One sample ends its worker, another one stands still."""

    def __init__(self, ends: int = -1, stands: int = -1) -> None:
        super().__init__(24)
        self.ends, self.stands = ends, stands

    def __getitem__(self, index: int) -> Any:
        if index == self.ends:
            os._exit(3)
        while index == self.stands:
            time.sleep(1)
        return super().__getitem__(index)


@pytest.mark.death
def test_a_sample_that_ends_its_actor_twice_is_named(ray: Any) -> None:
    with ordered(Deadly(ends=8)) as it:
        next(it)
        with pytest.raises(mpiter.WorkerCrashed, match=r"sample 8 has ended its worker twice: .* was lost by Ray"):
            next(it)
        assert [label for batch in it for _, label in batch] == [*range(12, 24)]


@pytest.mark.death
def test_so_is_the_very_first_sample_or_it_is_left_out(ray: Any) -> None:
    """Nobody has looked yet at what the actor does."""
    with (
        ordered(Deadly(ends=0)) as it,
        pytest.raises(mpiter.WorkerCrashed, match="sample 0 has ended its worker twice"),
    ):
        next(it)
    with ordered(Deadly(ends=0), on_error="skip") as it:
        assert [label for batch in it for _, label in batch] == [*range(1, 24)]


@pytest.mark.death
def test_a_suspect_has_its_actor_to_itself(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the answer before it may be lost with it, and an innocent sample be blamed."""
    out: list[list[bool]] = []
    then = Actors._then
    monkeypatch.setattr(
        Actors,
        "_then",
        lambda self, answer, member, do: (
            out.append([asked.is_suspect for asked in member.out.values()]),
            then(self, answer, member, do),
        ),
    )
    with ordered(Deadly(ends=8), on_error="skip") as it:
        assert [label for batch in it for _, label in batch] == [index for index in range(24) if index != 8]
    assert [True] in out
    assert not any(True in asked and len(asked) > 1 for asked in out)


@pytest.mark.death
def test_another_ray_is_not_taken_for_the_one_that_there_was(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ordered(Large(), repeat=True) as it:
        next(it)
        monkeypatch.setattr(it._pump.loop._crew._pool, "_cluster", "another")
        with pytest.raises(mpiter.WorkerCrashed, match="Ray was shut down"):
            for _ in range(1000):
                next(it)


@pytest.mark.death
def test_a_sample_that_stands_still_is_given_up(ray: Any) -> None:
    with ordered(Deadly(stands=8), sample_timeout=0.5, on_error="skip") as it:
        labels = [label for batch in it for _, label in batch]
        assert it.stats().restarts == 2
    assert labels == [at for at in range(24) if at != 8]


def strike(pids: set[int], dice: random.Random) -> None:
    with contextlib.suppress(ProcessLookupError):  # Ray has ended it meanwhile
        os.kill(dice.choice(sorted(pids)), signal.SIGKILL)


def through(batches: int, kills: int = 0, **options: Any) -> Run:
    """Batches of the chaos run, with so many actors killed in between, at random."""
    found, dice = Run(), random.Random(7)
    due = sorted(dice.sample(range(batches // 8, batches - batches // 8), kills))
    with mpiter.MultiprocessIterator(chaos.Noisy(), chaos.BATCH, **{"seed": 1, "n_prefetch": 2, **options}) as it:
        fetchers: set[int] = set()
        for number in range(batches):
            if number in due:
                strike(fetchers, dice)
            batch = next(it)
            found.read(batch)
            fetchers = set(batch.columns[-1].tolist())
        found.stats = it.stats()
    return found


@pytest.mark.death
def test_among_deaths_every_sample_comes_once_bit_by_bit(ray: Any) -> None:
    struck = through(320, kills=6, n_processes=2, backend="ray", run_ahead=8)
    quiet = through(320, n_processes=0)
    assert Differences.between(quiet, struck) == Differences(lost=0, repeated=0, different_batches=0)
    assert struck.checksums == quiet.checksums
    assert 1 <= struck.stats.restarts <= 6


@pytest.mark.death
def test_a_worker_that_has_fetched_enough_is_replaced(ray: Any) -> None:
    with ordered(Squares(60), maxtasksperchild=20) as it:
        assert [label for batch in it for _, label in batch] == [*range(60)]
        assert it.stats().renewals >= 1
        assert it.stats().restarts == 0


# -- the cluster -----------------------------------------------------------------------------------------------------


def test_a_cluster_without_room_is_an_error_that_says_so(ray: Any) -> None:
    backend = Ray(cpus_per_worker=ray_here.CPUS + 1, start_timeout=1.0)
    says = r"no place .* each wants 9 CPU \(8 of 8 free\).* Where there is room, .* the logs of that node"
    with ordered(Squares(), backend=backend) as it:
        for _ in range(2):
            with pytest.raises(mpiter.WorkerStartError, match=says):
                next(it)


def test_a_program_within_a_placement_group_has_its_workers_there(ray: Any) -> None:
    """As Ray Train and Tune start programs, which are actors; outside of the group there may be no room."""
    group = ray.util.placement_group([{"CPU": 1}] * int(ray.cluster_resources()["CPU"]))
    within = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )

    @ray.remote(scheduling_strategy=within, num_cpus=1)
    class Program:
        def run(self) -> list[list[int]]:
            backend = Ray(start_timeout=20)
            with mpiter.batches(range(6), 4, n_processes=1, shuffle=False, backend=backend) as stream:
                return [batch.tolist() for batch in stream]

    program = Program.remote()
    try:
        assert ray.get(program.run.remote()) == [[0, 1, 2, 3], [4, 5]]
    finally:
        ray.kill(program)
        ray.util.remove_placement_group(group)


def test_of_what_ray_says_at_length_the_end_is_kept_as_well() -> None:
    said = f"The actor died because of an error in its task, {'frame ' * 200}\x1b[36m^^^^^\x1b[39m KeyError: 'why'."
    told = ray_errors.why(RuntimeError(said))
    assert told.startswith("The actor died because")
    assert told.endswith("frame KeyError: 'why'")
    assert len(told) < 700


def test_the_ray_that_there_is_has_to_be_the_one_at_the_address(ray: Any) -> None:
    there = ray.get_runtime_context().gcs_address
    port = there.rpartition(":")[2]
    for address in (None, "auto", there, f"localhost:{port}"):
        with ordered(Squares(6), n_processes=1, backend=Ray(address)) as it:
            assert [label for _, label in next(it)] == [*range(6)]
    for address in (f"203.0.113.1:{port}", f"localhost:{int(port) + 1}"):
        with ordered(Squares(), backend=Ray(address)) as it:  # noqa: SIM117
            with pytest.raises(mpiter.WorkerStartError, match=f"uses the Ray at {there} already, .* is another"):
                next(it)


def test_workers_for_whom_there_is_no_room_yet_are_not_waited_for(ray: Any) -> None:
    with ordered(Squares(), backend=Ray(cpus_per_worker=ray_here.CPUS - 1), sample_timeout=1.0) as it:
        assert [label for batch in it for _, label in batch] == [*range(20)]


def test_a_store_without_room_for_an_answer_is_named(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(actors._Actor):
        def work(self, *asked: Any) -> Any:
            raise ray.exceptions.ObjectStoreFullError

    monkeypatch.setattr(actors, "_Actor", Full)
    with ordered(Squares()) as it, pytest.raises(mpiter.SharedMemoryFull, match="larger object_store_memory"):
        next(it)


def test_nothing_stays_in_the_cluster(ray: Any) -> None:
    assert ray_here.is_free_again(ray)
    worker = ray._private.worker.global_worker.core_worker
    before = set(worker.get_all_reference_counts())
    it = ordered(Large())
    next(it)
    assert ray_here.free_cpus(ray) < ray_here.CPUS
    it.close()
    assert ray_here.is_free_again(ray)
    del it
    ray_here.wait_until(lambda: set(worker.get_all_reference_counts()) <= before, "no object is left")


def test_an_epoch_goes_on_elsewhere_after_ray(ray: Any) -> None:
    whole = [plain_batch(batch) for batch in mpiter.SerialIterator(Squares(50), 6, repeat=False, seed=4)]
    with mpiter.MultiprocessIterator(Squares(50), 6, repeat=False, seed=4, n_processes=2, backend="ray") as it:
        first = [plain_batch(next(it)) for _ in range(3)]
        state = json.dumps(it.state_dict())
    with mpiter.MultiprocessIterator(Squares(50), 6, repeat=False, n_processes=1) as it:
        it.load_state_dict(json.loads(state))
        second = [plain_batch(next(it)) for _ in range(2)]
        state = json.dumps(it.state_dict())
    with mpiter.MultiprocessIterator(Squares(50), 6, repeat=False, n_processes=3, backend="ray") as it:
        it.load_state_dict(json.loads(state))
        assert first + second + [plain_batch(batch) for batch in it] == whole


def test_ranks_share_an_epoch(ray: Any) -> None:
    seen: list[int] = []
    for rank in range(2):
        with mpiter.MultiprocessIterator(
            Squares(40), 5, repeat=False, n_processes=2, backend="ray", shard=(rank, 2)
        ) as it:
            seen += [label for batch in it for _, label in batch]
    assert sorted(seen) == [*range(40)]


def test_two_ways_of_asking_are_one(ray: Any) -> None:
    with mpiter.batches(Squares(8), 4, shuffle=False, n_processes=1, backend=Ray("auto")) as stream:
        assert [labels.tolist() for _, labels in stream] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("own", [None, list], ids=["columns", "collate_fn"])
def test_loaders_have_the_same_batches(ray: Any, own: Any) -> None:
    def epochs(**options: Any) -> list[Any]:
        with mpiter.DataLoader(Squares(), 6, shuffle=True, seed=3, collate_fn=own, **options) as loader:
            return [plain(batch) for _ in range(2) for batch in loader]

    assert epochs(num_workers=2, backend="ray") == epochs()


EXAMPLES = """
import re
import ray_here
import reference

known = {}
with ray_here.started():
    reference.run("mpiter.remote.Ray")
    page = (reference.ROOT / "docs" / "remote.md").read_text().partition("## Ray")[2].partition("\\n## ")[0]
    for block in re.findall(r"^```py\\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, known)
"""


def test_the_examples_of_the_docs_run() -> None:
    """Under short plain paths: Ray puts Python's into a line for the shell, unquoted, where there is a runtime_env."""
    pytest.importorskip("ray", reason=ray_here.REASON)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        python = Path(folder, "env", "bin", Path(sys.executable).name)
        python.parents[1].symlink_to(sys.prefix)
        around = {**os.environ, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ran = subprocess.run([python, "-c", EXAMPLES], env=around, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[0 1 2 3] [4 5 6 7]\n" * 2


class Slow(Squares):
    """Worth another worker."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(index)


def test_as_many_workers_as_are_of_use_lose_nothing(ray: Any) -> None:
    with ordered(Slow(1200), batch_size=10, n_processes=mpiter.Auto(1, 3)) as it:
        assert [label for batch in it for _, label in batch] == [*range(1200)]
        assert 1 <= it.stats().workers <= 3
        assert it.stats().restarts == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(mpiter.OptionError, match=r"pip install 'mpiter\[ray\]'"):
        mpiter.batches(Squares(), 4, backend="ray")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"address": "ray://here:1"}, "with address='auto'"),
        ({"address": 6379}, "must be a string"),
        ({"cpus_per_worker": -1}, "from 0 on"),
        ({"start_timeout": None}, "above 0"),
        ({"start_timeout": 0}, "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    pytest.importorskip("ray", reason=ray_here.REASON)
    with pytest.raises(mpiter.OptionError, match=text):
        Ray(**options)


def test_packed_rows_may_be_asked_for_instead(ray: Any) -> None:
    with ordered(Large(), serializer="packed") as it:
        assert all(batch.columns[0].flags.writeable for batch in it)
