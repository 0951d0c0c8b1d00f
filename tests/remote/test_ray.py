"""Workers on Ray: the dataset's way to them, deaths of actors, and needs of a cluster.

They are actors of Ray, on one machine here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray_here
import reference
from datasets import Built, Squares, plain, plain_batch
from ways import iterator

import mpiter
from mpiter.remote import Ray

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def ordered(dataset: Any, **options: Any) -> mpiter.MultiprocessIterator:
    options = {
        "n_processes": 1,
        "backend": "ray",
        "repeat": False,
        "shuffle": False,
        **options,
    }
    return mpiter.MultiprocessIterator(dataset, options.pop("batch_size", 6), **options)


def labels_of(it: mpiter.MultiprocessIterator) -> list[int]:
    return [label for batch in it for _, label in batch]


# -- batches and the dataset -----------------------------------------------------------


class Told(Squares):
    """Samples are a picture, its index, and the process that made it."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), index, os.getpid()


def test_pieces_of_a_dear_batch_are_put_together(ray: Any) -> None:
    backend = Ray()
    large = Told(30, (64, 64, 3))
    backend.dear_s = 1e-6
    with ordered(
        large, backend=backend, batch_size=10, n_processes=2, repeat=True
    ) as it:
        # Ray may take its time to place the second worker.
        for number in range(600):
            batch = next(it)
            expected = [
                Squares.__getitem__(large, (10 * number + row) % 30)
                for row in range(10)
            ]
            pictures = [picture for picture, *_ in batch]
            assert plain_batch(pictures) == plain_batch(expected)
            if len({pid for _, _, pid in batch}) == 2:
                return
    raise AssertionError("no batch has come from two workers")


class Telling:
    """Samples say whether the array is writeable and lies in the object store."""

    def __init__(self) -> None:
        self.array = np.arange(1 << 18, dtype=np.float64)
        self.names = mpiter.Packed([f"sample {number}" for number in range(12)])

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return (
            index,
            self.array.flags.writeable,
            lies_in_the_store(self.array),
            self.names[index],
            self.array[index],
        )


def lies_in_the_store(array: np.ndarray) -> bool:
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, rest = line.partition(" ")
        start, stop = (int(end, 16) for end in span.split("-"))
        if start <= address < stop:
            return "/dev/shm" in rest
    return False


def test_workers_read_arrays_from_their_nodes_store_and_see_a_changed_one_there(
    ray: Any,
) -> None:
    dataset = Telling()
    with ordered(dataset) as it:
        assert [*it] == [
            [
                (at, False, True, f"sample {at}", float(at))
                for at in range(start, start + 6)
            ]
            for start in (0, 6)
        ]
        assert it._pump.loop.carries((dataset, None))
        dataset.array[:] = 5
        assert not it._pump.loop.carries((dataset, None))


def test_a_dataset_that_cannot_be_pickled_is_named(ray: Any) -> None:
    dataset: Any = Squares()
    dataset.lock = threading.Lock()
    with (
        ordered(dataset) as it,
        pytest.raises(
            mpiter.errors.DatasetNotPicklable, match=r"dataset\.lock .*worker_init"
        ),
    ):
        next(it)


def test_a_dataset_that_cannot_be_opened_there_ends_with_the_workers_traceback(
    ray: Any,
) -> None:
    def fails(info: Any) -> None:
        raise ValueError(f"{info.backend} worker of {info.num_workers}")

    with (
        ordered(Squares(), worker_init=fails) as it,
        pytest.raises(mpiter.errors.WorkerStartError, match="ray worker of 1"),
    ):
        next(it)


def test_loaders_have_the_same_batches(ray: Any) -> None:
    def epochs(**options: Any) -> list[Any]:
        with mpiter.DataLoader(
            Squares(), 6, shuffle=True, seed=3, collate_fn=list, **options
        ) as loader:
            return [plain(batch) for _ in range(2) for batch in loader]

    assert epochs(num_workers=1, backend="ray") == epochs()


@pytest.mark.torch
def test_batches_are_those_of_torchs_loader_in_tensors_of_ones_own(ray: Any) -> None:
    torch = pytest.importorskip("torch")
    import mpiter.torch

    dataset = Built(
        lambda i: {"x": torch.full((64, 64), float(i)), "y": f"sample {i}"}, 12
    )
    with mpiter.torch.DataLoader(dataset, 4, num_workers=1, backend="ray") as loader:
        for mine, expected in zip(
            loader, torch.utils.data.DataLoader(dataset, 4), strict=True
        ):
            assert (mine["y"], type(mine["x"])) == (expected["y"], torch.Tensor)
            assert torch.equal(mine["x"], expected["x"])
            mine["x"] += 1


def test_an_epoch_goes_on_elsewhere_after_ray(ray: Any) -> None:
    whole = [
        plain_batch(batch)
        for batch in mpiter.SerialIterator(Squares(50), 6, repeat=False, seed=4)
    ]
    with iterator(Squares(50), 6, repeat=False, seed=4, n_processes=0) as it:
        first = [plain_batch(next(it)) for _ in range(3)]
        state = json.dumps(it.state_dict())
    with mpiter.MultiprocessIterator(
        Squares(50), 6, repeat=False, n_processes=1, backend="ray"
    ) as it:
        it.load_state_dict(json.loads(state))
        second = [plain_batch(next(it)) for _ in range(2)]
        state = json.dumps(it.state_dict())
    with iterator(Squares(50), 6, repeat=False, n_processes=0) as it:
        it.load_state_dict(json.loads(state))
        assert first + second + [plain_batch(batch) for batch in it] == whole


# -- deaths ----------------------------------------------------------------------------


class Deadly(Squares):
    """One sample ends its worker, and another one never comes."""

    def __init__(self, ends: int = -1, stands: int = -1) -> None:
        super().__init__(24)
        self.ends = ends
        self.stands = stands

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
        with pytest.raises(
            mpiter.WorkerCrashed,
            match=r"sample 8 has ended its worker twice: .* was lost by Ray",
        ):
            next(it)
        assert labels_of(it) == [*range(12, 24)]


@pytest.mark.death
def test_the_first_sample_is_left_out_if_it_ends_its_actor_and_a_later_one_if_stuck(
    ray: Any,
) -> None:
    """At the first sample, the loop hasn't asked the actor yet what it is fetching."""
    with ordered(
        Deadly(ends=0, stands=8), sample_timeout=0.5, on_error="skip", n_processes=2
    ) as it:
        assert labels_of(it) == [at for at in range(24) if at not in (0, 8)]


@pytest.mark.death
def test_a_worker_that_has_fetched_enough_is_replaced(ray: Any) -> None:
    with ordered(Told(60), maxtasksperchild=30) as it:
        found = [(index, pid) for batch in it for _, index, pid in batch]
        assert it.stats().restarts == 0
    assert [index for index, _ in found] == [*range(60)]
    assert len({pid for _, pid in found}) >= 2


# -- the cluster -----------------------------------------------------------------------


def test_a_cluster_without_room_is_an_error_that_says_so(ray: Any) -> None:
    ray_here.wait_until(
        lambda: ray_here.free_cpus(ray) == ray_here.CPUS, "all processors are free"
    )
    backend = Ray(cpus_per_worker=ray_here.CPUS + 1, start_timeout=1.0)
    says = (
        r"no place .* each wants 5 CPU \(4 of 4 free\).* "
        r"If a node has as much free, .* its logs, in"
    )
    with ordered(Squares(), backend=backend) as it:
        for _ in range(2):
            with pytest.raises(mpiter.errors.WorkerStartError, match=says):
                next(it)


def test_workers_for_whom_there_is_no_room_yet_are_not_waited_for(ray: Any) -> None:
    backend = Ray(cpus_per_worker=ray_here.CPUS - 1)
    with ordered(Squares(), backend=backend, n_processes=2, sample_timeout=1.0) as it:
        assert labels_of(it) == [*range(20)]


def test_a_program_within_a_placement_group_has_its_workers_there(ray: Any) -> None:
    """Ray Train and Tune start programs like this, as actors of a group.

    Outside of the group there may be no room.
    """
    ray_here.wait_until(
        lambda: ray_here.free_cpus(ray) == ray_here.CPUS, "all processors are free"
    )
    group = ray.util.placement_group([{"CPU": 1}] * ray_here.CPUS)
    within = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )

    @ray.remote(scheduling_strategy=within, num_cpus=1)
    class Program:
        def run(self) -> list[list[int]]:
            backend = Ray(start_timeout=60)
            with mpiter.batches(
                range(6), 4, n_processes=1, shuffle=False, backend=backend
            ) as stream:
                return [batch.tolist() for batch in stream]

    program = Program.remote()
    try:
        assert ray.get(program.run.remote()) == [[0, 1, 2, 3], [4, 5]]
    finally:
        ray.kill(program)
        ray.util.remove_placement_group(group)


def test_the_ray_that_there_is_has_to_be_the_one_at_the_address(ray: Any) -> None:
    there = ray.get_runtime_context().gcs_address
    with ordered(Squares(6), backend=Ray(there)) as it:
        assert labels_of(it) == [*range(6)]
    for address in ("203.0.113.1:nowhere", f"127.0.0.1:{there.rpartition(':')[2]}"):
        with ordered(Squares(), backend=Ray(address)) as it:  # noqa: SIM117
            with pytest.raises(
                mpiter.errors.WorkerStartError,
                match=f"there is no Ray to be had at {address}: .*",
            ):
                next(it)


def test_nothing_stays_in_the_cluster(ray: Any) -> None:
    ray_here.wait_until(
        lambda: ray_here.free_cpus(ray) == ray_here.CPUS, "all processors are free"
    )
    worker = ray._private.worker.global_worker.core_worker
    before = set(worker.get_all_reference_counts())
    with ordered(Squares(20, (64, 64, 3))) as it:
        next(it)
        assert ray_here.free_cpus(ray) < ray_here.CPUS
    ray_here.wait_until(
        lambda: ray_here.free_cpus(ray) == ray_here.CPUS, "all processors are free"
    )
    del it
    ray_here.wait_until(
        lambda: set(worker.get_all_reference_counts()) <= before, "no object is left"
    )


def test_the_examples_of_the_docs_run(
    ray: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    reference.run("mpiter.remote.Ray")
    page = (
        (reference.ROOT / "docs" / "remote.md")
        .read_text()
        .partition("## Ray")[2]
        .partition("\n## ")[0]
    )
    exec("".join(re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)), {})
    assert capsys.readouterr().out == "[0 1 2 3] [4 5 6 7]\n" * 2


# -- what is refused -------------------------------------------------------------------


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(mpiter.OptionError, match=r"pip install 'mpiter\[ray\]'"):
        mpiter.batches(Squares(), 4, backend="ray")


def test_the_address_of_rays_client_and_a_timeout_below_zero_are_refused() -> None:
    pytest.importorskip("ray", reason=ray_here.REASON)
    with pytest.raises(mpiter.OptionError, match="with address='auto'"):
        Ray("ray://here:1")
    with pytest.raises(
        mpiter.OptionError, match="start_timeout=-3 must be a number of seconds"
    ):
        Ray(start_timeout=-3)
