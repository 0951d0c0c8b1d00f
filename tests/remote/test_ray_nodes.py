"""Two Ray nodes on one machine: the consumer on one, the workers on the other, which is then killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray_here

import mpiter

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.death]

CPUS, STORE_BYTES = 2, 80 << 20
QUICK = {  # how soon Ray sees that a node is gone: by itself it takes half a minute
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Placed:
    """Noise that depends on the place in the order; says on which node it was fetched."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> Any:
        import ray

        time.sleep(0.002)  # the epoch outlasts the node
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        return mpiter.get_rng().random((64, 64), np.float32), index, node


@pytest.fixture
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason=ray_here.REASON)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        with ray_here.connected(cluster.address):
            yield cluster
    finally:
        cluster.shutdown()


def test_an_epoch_is_completed_when_the_node_of_all_workers_is_killed(cluster: Any) -> None:
    import ray

    class Blocker:
        """Takes processors that workers would have."""

        def there(self) -> None: ...

    here = ray.get_runtime_context().get_node_id()
    blocker = ray.remote(num_cpus=CPUS)(Blocker).remote()
    ray.get(blocker.there.remote())
    other = cluster.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES)
    labels: list[int] = []
    nodes: list[str] = []
    arrays: list[Any] = []
    options: dict[str, Any] = {"repeat": False, "seed": 5}
    with mpiter.MultiprocessIterator(Placed(), 20, n_processes=2, backend="ray", **options) as it:
        for number, batch in enumerate(it):
            images, indices, places = batch.columns
            arrays.append(images)
            labels += indices.tolist()
            nodes += places
            if number == 2:
                ray.kill(blocker)
                cluster.remove_node(other, allow_graceful=False)
        restarts = it.stats().restarts
    assert sorted(labels) == [*range(600)]
    assert nodes[0] not in (here, "")
    assert set(nodes[:60]) == {nodes[0]}
    assert nodes[-1] == here
    assert restarts == 2
    with mpiter.MultiprocessIterator(Placed(), 20, n_processes=0, **options) as quiet:
        assert all(np.array_equal(images, batch.columns[0]) for images, batch in zip(arrays, quiet, strict=True))


class Mapped:
    """Says who has its array where: the process, and the place in the store of its node."""

    def __init__(self) -> None:
        self.values = np.arange(1 << 19)

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[str, str, int, int]:
        import ray

        time.sleep(0.002)  # so that every worker has some
        address = self.values.__array_interface__["data"][0]
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, begins, _, file, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= address < last:
                return ray.get_runtime_context().get_node_id(), file, address - first + int(begins, 16), os.getpid()
        raise AssertionError("it lies nowhere")


def test_the_dataset_lies_once_on_each_node(cluster: Any) -> None:
    cluster.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES)
    seen: set[tuple[str, str, int, int]] = set()
    with mpiter.batches(Mapped(), 4, n_processes=4, backend="ray", epochs=None) as stream:
        end = time.monotonic() + 60  # against hanging: two more workers join when they have a place
        while len({pid for *_, pid in seen}) < 4 and time.monotonic() < end:
            seen |= set(zip(*next(stream), strict=True))
    assert len({pid for *_, pid in seen}) == 4
    assert len({node for node, *_ in seen}) == 2
    assert len({(node, file, place) for node, file, place, _ in seen}) == 2
    assert all(file != "0" for _, file, *_ in seen), "it is mapped from the store"


class Standing(Placed):
    """Gives some samples, and then no more."""

    def __getitem__(self, index: int) -> Any:
        while index > 7:
            time.sleep(1)
        return index


def test_after_the_end_of_ray_there_is_an_error_and_no_hang() -> None:
    with (
        ray_here.started() as ray,
        mpiter.batches(Standing(), 6, n_processes=1, backend=ray_here.unhurried(), shuffle=False) as stream,
    ):
        next(stream)
        ray.shutdown()
        with pytest.raises(mpiter.WorkerCrashed, match="Ray was shut down"):
            next(stream)
