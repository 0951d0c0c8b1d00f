"""Two Ray nodes run on one machine, and an epoch survives the end of one.

Each node has the dataset in its memory once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray_here
from ways import iterator

import mpiter

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.death]

CPUS = 2
STORE_BYTES = 80 << 20
# With these Ray soon sees that a node is gone.  Otherwise it takes half a minute.
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Standing:
    """A dataset whose samples come only up to the eighth."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> Any:
        while index > 7:
            time.sleep(1)
        return index


def test_after_the_end_of_ray_there_is_an_error_and_no_hang(ray: Any) -> None:
    """This test comes before the next one, which has a cluster of its own."""
    with mpiter.batches(
        Standing(), 6, n_processes=1, backend="ray", shuffle=False
    ) as stream:
        next(stream)
        ray.shutdown()
        with pytest.raises(mpiter.WorkerCrashed, match="Ray was shut down"):
            next(stream)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of the test's own, in which the program is on the head node."""
    ray = pytest.importorskip("ray", reason=ray_here.REASON)
    from ray.cluster_utils import Cluster

    # Other tests may have left a Ray.
    ray.shutdown()
    head = {
        "num_cpus": CPUS,
        "object_store_memory": STORE_BYTES,
        "_system_config": QUICK,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray_here.connect(address=cluster.address)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


class Placed:
    """Samples are noise that depends on the place in the order, and where it was made.

    The latter is a node, a process, and a place in the node's store.
    """

    def __init__(self) -> None:
        self.values = np.arange(1 << 17)

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> Any:
        import ray

        # The epoch must outlast the node.
        time.sleep(0.002)
        node = ""
        if ray.is_initialized():
            node = ray.get_runtime_context().get_node_id()
        return (
            mpiter.get_rng().random((64, 64), np.float32),
            index,
            node,
            os.getpid(),
            self._place(),
        )

    def _place(self) -> str:
        """Return the file that the array lies in, and its place there."""
        address = self.values.__array_interface__["data"][0]
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, begins, _, file, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= address < last:
                return f"{file} {address - first + int(begins, 16)}"
        raise AssertionError("it lies nowhere")


def test_nodes_have_the_dataset_once_and_an_epoch_is_completed_when_one_is_killed(
    cluster: Any,
) -> None:
    import ray

    here = ray.get_runtime_context().get_node_id()
    other = cluster.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES)
    options: dict[str, Any] = {"seed": 5}
    with mpiter.MultiprocessIterator(
        Placed(), 20, n_processes=2 * CPUS, backend="ray", **options
    ) as it:
        workers: set[tuple[str, int, str]] = set()
        batches: list[Any] = []
        for batch in it:
            batches.append(batch.columns)
            _, _, nodes, pids, places = batch.columns
            workers |= set(zip(nodes, pids.tolist(), places, strict=True))
            if len(workers) == 2 * CPUS:
                break
            assert len(batches) < 600, "workers join when they have a place"
        assert len({node for node, *_ in workers}) == 2
        assert len({(node, place) for node, _, place in workers}) == 2
        assert not any(place.startswith("0 ") for *_, place in workers), (
            "it is mapped from the store"
        )
        cluster.remove_node(other, allow_graceful=False)
        batches += [next(it).columns for _ in range(40)]
        assert it.stats().restarts == CPUS
    assert set(batches[-1][2]) == {here}
    with iterator(Placed(), 20, n_processes=0, **options) as quiet:
        for images, labels, *_ in batches:
            expected = next(quiet).columns
            assert np.array_equal(images, expected[0])
            assert np.array_equal(labels, expected[1])
