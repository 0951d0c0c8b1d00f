"""A torch training loop: `DataLoader` by one changed import, the way to the GPU, and a state that is saved as it goes.

python examples/torch_training.py            # needs torch; uses a GPU if there is one
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import mpiter
from mpiter.torch import DataLoader, DevicePrefetcher

EPOCHS, STATE = 3, Path("torch_training.json")


class Blobs(torch.utils.data.Dataset):
    """Pictures of a bright spot; the label is the quarter that it lies in.  Stands for your files."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng(index)
        y, x = rng.integers(4, 28, 2)
        picture = rng.integers(0, 60, (3, 32, 32), dtype=np.uint8)
        picture[:, y - 3 : y + 3, x - 3 : x + 3] += 150
        if mpiter.get_rng().random() < 0.5:  # an augmentation that is the same in any worker, and after resuming
            picture, x = picture[:, :, ::-1], 31 - x
        return np.ascontiguousarray(picture), int(2 * (y > 15) + (x > 15))


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(16 * 5 * 5, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    loader = DataLoader(Blobs(), batch_size=50, shuffle=True, num_workers=2)
    batches = DevicePrefetcher(loader, device, normalize=([127.5] * 3, [127.5] * 3))  # bytes travel, floats arrive
    for epoch in range(EPOCHS):
        began, right, seen = time.perf_counter(), 0, 0
        for x, y in batches:
            scores = model(x)
            loss = nn.functional.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right, seen = right + int((scores.argmax(1) == y).sum()), seen + len(y)
        STATE.write_text(json.dumps(batches.state_dict()))
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1}: {right / seen:.0%} right, {seen / seconds:.0f} pictures/s on {device}")
    loader.close()
    print(f"the loader's place is in {STATE}: {STATE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
