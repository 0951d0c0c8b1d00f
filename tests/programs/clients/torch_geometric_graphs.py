"""PyTorch Geometric: batches of graphs by its own collating.

It trains as with its own loader, and is resumed.
"""

import json

import torch
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader as TheirLoader
from torch_geometric.loader.dataloader import Collater
from torch_geometric.nn import GCNConv, global_mean_pool

from mpiter.torch import DataLoader

LENGTH = 30
BATCH = 4
EPOCHS = 2


class Rings(Dataset):
    """Rings of several sizes; what is asked for is their size."""

    def len(self):
        return LENGTH

    def get(self, idx):
        size = 3 + idx % 5
        nodes = torch.arange(size)
        edges = torch.stack([nodes, (nodes + 1) % size])
        return Data(
            x=torch.full((size, 1), size / 8),
            edge_index=edges,
            y=torch.tensor([size / 8]),
            number=idx,
        )


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(1, 4)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, batch):
        nodes = self.conv(batch.x, batch.edge_index).relu()
        return self.out(global_mean_pool(nodes, batch.batch))[:, 0]


def trained(make, save_at=None, resume=False):
    torch.manual_seed(0)
    net = Net()
    loader = make()
    seen = []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    epochs = EPOCHS
    if resume:
        saved = torch.load("saved")
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["loader"]))
        epochs = saved["epochs"]
    for epoch in range(epochs):
        for batch in loader:
            seen.append(batch.number.tolist())
            loss = torch.nn.functional.mse_loss(net(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if len(seen) == save_at:
                place = json.dumps(loader.state_dict())
                states = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(
                    {**states, "loader": place, "epochs": EPOCHS - epoch}, "saved"
                )
    return seen, [weight.tolist() for weight in net.parameters()]


def theirs():
    return TheirLoader(
        Rings(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(1)
    )


def ours():
    generator = torch.Generator().manual_seed(1)
    return DataLoader(
        Rings(),
        BATCH,
        shuffle=True,
        generator=generator,
        num_workers=2,
        collate_fn=Collater(Rings()),
    )


if __name__ == "__main__":
    seen, weights = trained(theirs)
    # An epoch has 8 steps, so it is saved in the second one.
    assert trained(ours, save_at=11) == (seen, weights)
    assert trained(ours, resume=True) == (seen[11:], weights)
