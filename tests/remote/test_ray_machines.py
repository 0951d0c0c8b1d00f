"""Two Ray nodes as if on two machines: each in a network of its own, with a cable between, which is then cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray_here

import mpiter

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.death]

HERE, THERE = "10.231.77.1", "10.231.77.2"
CPUS, STORE_BYTES = 2, 80 << 20
QUICK = {  # how soon Ray sees that a node is gone: by itself it takes half a minute
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Machine:
    """A network of its own at the other end of a cable."""

    def __init__(self) -> None:
        self._cable = f"mpiter{os.getpid()}"[:14]
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        mine = os.readlink("/proc/self/ns/net")
        ray_here.wait_until(lambda: os.readlink(f"/proc/{self._holder.pid}/ns/net") != mine, "there is a network")
        ip(f"link add {self._cable} type veth peer name eth0 netns {self._holder.pid}")
        ip(f"address add {HERE}/30 dev {self._cable}")
        ip(f"link set {self._cable} up")
        for command in (f"address add {THERE}/30 dev eth0", "link set eth0 up", "link set lo up"):
            subprocess.run([*self.inside, "ip", *command.split()], check=True)

    @property
    def inside(self) -> list[str]:
        """What a command that runs there begins with."""
        return ["nsenter", "--target", str(self._holder.pid), "--net"]

    def cut_the_cable(self) -> None:
        ip(f"link set {self._cable} down")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        subprocess.run(["ip", "link", "delete", self._cable], stderr=subprocess.DEVNULL, check=False)


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def is_permitted() -> bool:
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    return subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.fixture
def machine() -> Iterator[Machine]:
    if not is_permitted():
        pytest.skip("no network of one's own is permitted here: run as root, with iproute2 and util-linux")
    made = Machine()
    try:
        yield made
    finally:
        made.close()


class Placed:
    """Noise that depends on the place in the order; says on which machine it was fetched."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)  # the epoch outlasts the cable
        return mpiter.get_rng().random((64, 64), np.float32), index, os.readlink("/proc/self/ns/net")


def test_an_epoch_is_completed_when_the_other_machine_is_no_longer_heard_of(machine: Machine, tmp_path: Path) -> None:
    options: dict[str, Any] = {"repeat": False, "seed": 5}
    head = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES, "_system_config": QUICK}
    with ray_here.started(_node_ip_address=HERE, **head) as ray:

        class Blocker:
            """Takes processors that workers would have."""

            def there(self) -> None: ...

        blocker = ray.remote(num_cpus=CPUS)(Blocker).remote()
        ray.get(blocker.there.remote())
        address = ray.get_runtime_context().gcs_address
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
        command += [f"--address={address}", f"--node-ip-address={THERE}", f"--num-cpus={CPUS}"]
        with (tmp_path / "node.txt").open("w") as said:
            node = subprocess.Popen(
                [*machine.inside, *command, f"--object-store-memory={STORE_BYTES}"], stdout=said, stderr=said
            )
        try:
            with mpiter.MultiprocessIterator(Placed(), 20, n_processes=2, backend="ray", **options) as it:
                batches = []
                for number, batch in enumerate(it):
                    batches.append([part.copy() if isinstance(part, np.ndarray) else part for part in batch.columns])
                    if number == 2:
                        ray.kill(blocker)
                        machine.cut_the_cable()
                restarts = it.stats().restarts
        finally:
            node.terminate()
            node.wait()
    networks = [network for _, _, there in batches for network in there]
    assert set(networks[:60]) == {networks[0]} != {os.readlink("/proc/self/ns/net")}
    assert networks[-1] == os.readlink("/proc/self/ns/net")
    assert restarts == 2
    with mpiter.MultiprocessIterator(Placed(), 20, n_processes=0, **options) as quiet:
        for (images, labels, _), expected in zip(batches, quiet, strict=True):
            assert np.array_equal(images, expected.columns[0])
            assert np.array_equal(labels, expected.columns[1])
