"""JAX in two processes, saved by Orbax with the loader's state.

It is killed, and goes on from what was saved last.

The program starts itself twice, and tells each process its number.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

import mpiter

STEPS = 30
SAVED_EVERY = 7


def train(rank, address, folder, kill_at):
    jax.distributed.initialize(address, 2, rank)
    mesh = jax.make_mesh((2,), ("ranks",))
    shared = NamedSharding(mesh, PartitionSpec("ranks"))
    points = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    model = jax.device_put(
        {"w": np.zeros(8, np.float32)}, NamedSharding(mesh, PartitionSpec())
    )
    loader = mpiter.batches(
        points, 20, epochs=None, shard="auto", seed=0, n_processes=1
    )

    @jax.jit
    def train_step(model, x):
        gradient = jax.grad(lambda w: ((x @ w - x.sum(1)) ** 2).mean())
        return {"w": model["w"] - 0.1 * gradient(model["w"])}

    options = ocp.CheckpointManagerOptions(
        save_interval_steps=SAVED_EVERY, max_to_keep=2
    )
    with (
        loader,
        ocp.CheckpointManager(Path(folder).absolute(), options=options) as manager,
    ):
        step = began_at = manager.latest_step() or 0
        if step:
            wanted = {
                "model": ocp.args.StandardRestore(model),
                "loader": ocp.args.JsonRestore(),
            }
            saved = manager.restore(step, args=ocp.args.Composite(**wanted))
            model = saved.model
            loader.load_state_dict(saved.loader)
        while step < STEPS:
            x = jax.make_array_from_process_local_data(shared, next(loader))
            model = train_step(model, x)
            step = step + 1
            state = ocp.args.JsonSave(loader.state_dict())
            parts = {"model": ocp.args.StandardSave(model), "loader": state}
            manager.save(step, args=ocp.args.Composite(**parts))
            if step == kill_at:
                manager.wait_until_finished()
                os.kill(os.getpid(), signal.SIGKILL)
    print(began_at, np.asarray(model["w"]).tolist())


def ran(folder, kill_at=-1):
    """Return what process 0 has printed last: where it began, and its model."""
    # No other program is given a port that stays bound here.  JAX's server can take it,
    # since it sets the same option.
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("", 0))
    address = f"localhost:{bound.getsockname()[1]}"
    processes = []
    for rank in range(2):
        command = [sys.executable, __file__, str(rank), address, folder, str(kill_at)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        processes.append(process)
    told = [process.communicate()[0].splitlines() for process in processes]
    bound.close()
    codes = {process.returncode for process in processes}
    assert codes == ({0} if kill_at < 0 else {-signal.SIGKILL})
    return told[0][-1]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        began_at, weights = ran("whole").split(" ", 1)
        assert began_at == "0"
        ran("killed", kill_at=17)
        assert ran("killed") == f"14 {weights}"
