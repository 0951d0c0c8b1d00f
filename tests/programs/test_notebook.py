"""A notebook is executed by a real kernel.

Its cells define and iterate, run again, are interrupted, and shut down.
"""

import os
import queue
import sys
import time
from pathlib import Path

import psutil
import pytest
from scripts import LIMIT_S, METHODS, lives, wait_until

import mpiter

manager = pytest.importorskip(
    "jupyter_client.manager", reason="jupyter_client is not installed"
)
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
jupyter_core_utils = pytest.importorskip(
    "jupyter_core.utils", reason="jupyter_core is not installed"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

DEFINE = """
import time
from collections import namedtuple
import numpy as np
import mpiter

Item = namedtuple("Item", "image label")

class Numbers:
    def __init__(self, transform, slow=""):
        self.transform = transform
        self.slow = slow
    def __len__(self):
        return 12
    def __getitem__(self, i):
        if self.slow and i >= 4:
            open(self.slow, "w").close()
            time.sleep(600)
        return Item(self.transform(np.full(3, i)), i)
"""

ITERATE = """
rows = []
with mpiter.MultiprocessIterator(
    Numbers(lambda x: x * 10),
    4,
    repeat=False,
    shuffle=False,
    n_processes=2,
    backend=mpiter.Process(method),
) as it:
    for batch in it:
        for item in batch:
            rows.append((int(item.image.sum()), item.label, isinstance(item, Item)))
print(rows == [(30 * i, i, True) for i in range(12)])
"""

BLOCK = """
open_one = mpiter.MultiprocessIterator(
    Numbers(lambda x: x, slow=method),
    4,
    shuffle=False,
    n_processes=2,
    backend=mpiter.Process(method),
    run_ahead=0,
)
for batch in open_one:
    print("batch", batch.columns.label.tolist())
"""


class Kernel:
    """A kernel in a folder of its own, and what the cells print."""

    def __init__(self, folder):
        root = str(Path(mpiter.__file__).parents[1])
        self.manager = manager.KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        environment = {**os.environ, "PYTHONPATH": root, "IPYTHONDIR": str(folder)}
        self.manager.start_kernel(cwd=str(folder), env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT_S)
        self.process = psutil.Process(self.manager.provisioner.pid)

    def begin(self, cell, until):
        """Start a cell, and come back when it has printed ``until``."""
        self.cell = self.client.execute(cell)
        printed, errors = self.finish(until)
        assert until in printed, errors

    def finish(self, until=None):
        """(what the cell printed, the names of its errors)"""
        printed = ""
        errors = []
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if until is not None and until in printed:
                return printed, errors
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != self.cell:
                continue
            kind = message["msg_type"]
            content = message["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                errors.append(content["ename"])
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, errors
        raise AssertionError(f"the cell did not end; it printed {printed!r}")

    def run(self, cell):
        self.cell = self.client.execute(cell)
        return self.finish()

    def descendants(self):
        return self.process.children(recursive=True)

    def shut_down(self):
        if not self.process.is_running():
            return
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()
        self.client.context.destroy(linger=0)


@pytest.fixture(scope="module", autouse=True)
def event_loop():
    """jupyter_client makes an event loop for the thread that uses it, and keeps it."""
    loop = jupyter_core_utils.ensure_event_loop()
    yield
    loop.close()


@pytest.fixture
def kernel(tmp_path):
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.shut_down()


def iterates(kernel):
    printed, errors = kernel.run(ITERATE)
    assert (printed.splitlines()[-1:], errors) == (["True"], [])


def test_cells_may_be_run_again_and_interrupted_and_nothing_outlives_the_kernel(
    kernel, tmp_path
):
    # Spawned workers are left out: a kernel sees of them what a script sees.
    for method in METHODS[:2]:
        for _ in range(2):
            assert kernel.run(f"{DEFINE}method = {method!r}") == ("", [])
            iterates(kernel)
        iterates(kernel)
        kernel.begin(BLOCK, until="batch [0, 1, 2, 3]")
        wait_until((tmp_path / method).exists, "a worker is in the slow sample")
        kernel.manager.interrupt_kernel()
        assert kernel.finish()[1] == ["KeyboardInterrupt"]
        iterates(kernel)
    descendants = kernel.descendants()
    assert len(descendants) >= 2
    kernel.shut_down()
    wait_until(lambda: not [p for p in descendants if lives(p)], "they are gone")
