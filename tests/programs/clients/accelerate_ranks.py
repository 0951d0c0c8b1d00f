"""``shard="auto"`` under Accelerate's launcher: each sample once an epoch, by nobody's sampler.

Accelerate shares out what it prepares once more, so our loader isn't handed to it.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

EPOCHS, LENGTH = 2, 42


class Points:
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return np.float32([index % 7, index % 3, 1]), np.float32(index % 5), index


def train():
    import torch
    from accelerate import Accelerator

    from mpiter.torch import DataLoader

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(3, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))  # and not the loader
    batches, seen = DataLoader(Points(), 5, shuffle=True, seed=0, shard="auto", num_workers=1), []
    for _ in range(EPOCHS):
        for x, y, index in batches:
            accelerator.backward((model(x)[:, 0] - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            seen += index.tolist()
    # DDP first, the process group after it: the other way round its destructor, in torch 2.13 with gloo, waits under
    # the GIL for a thread that may want the GIL.
    model, optimizer = accelerator.free_memory(model, optimizer)
    Path(f"{accelerator.process_index}.json").write_text(json.dumps(seen))
    accelerator.end_training()


def main():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run([*launcher, __file__, "train"], check=True)
    one, other = (json.loads(Path(f"{rank}.json").read_text()) for rank in range(2))
    half = LENGTH // 2
    for epoch in range(EPOCHS):
        part = slice(half * epoch, half * (epoch + 1))
        assert sorted(one[part] + other[part]) == list(range(LENGTH)), (one, other)


if __name__ == "__main__":
    train() if sys.argv[1:] else main()
