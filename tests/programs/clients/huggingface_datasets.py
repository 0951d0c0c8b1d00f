"""Hugging Face's datasets come as from torch's loader.

They are also resumed in mid-epoch.
"""

import json

import datasets
import torch
from datasets import Dataset, load_dataset
from datasets.distributed import split_dataset_by_node

from mpiter.torch import DataLoader

TheirLoader = torch.utils.data.DataLoader
LENGTH = 41
BATCH = 4


def doubled(sample):
    return {"twice": sample["number"] * 2}


def made():
    """Return map-style datasets by name."""
    plain = Dataset.from_dict(
        {
            "number": list(range(LENGTH)),
            "vector": [[number, number + 1.0] for number in range(LENGTH)],
            "name": list(map(str, range(LENGTH))),
        }
    )
    node = split_dataset_by_node(plain, rank=1, world_size=2)
    return {
        "mapped": plain.map(doubled).with_format("torch"),
        "transformed": plain.with_transform(
            lambda rows: {"half": [number / 2 for number in rows["number"]]}
        ),
        "of a node": node.with_format("torch"),
    }


def streams():
    """Return iterable datasets by name, each with four shards."""
    plain = made()["mapped"].to_iterable_dataset(num_shards=4)
    files = [f"part{part}.jsonl" for part in range(4)]
    for part, name in enumerate(files):
        with open(name, "w") as file:
            for number in range(part, LENGTH, 4):
                file.write(json.dumps({"number": number}) + "\n")
    from_disk = load_dataset("json", data_files=files, split="train", streaming=True)
    filtered = from_disk.filter(lambda sample: sample["number"] % 3 > 0)
    return {
        "shuffled": plain.shuffle(seed=1, buffer_size=8).map(doubled),
        "of a node": split_dataset_by_node(plain, rank=1, world_size=2),
        "from files": filtered.map(doubled).with_format("torch"),
    }


def listed(batches):
    """Return each batch as text, in which 1 isn't 1.0."""
    texts = []
    for batch in batches:
        parts = dict(batch)
        for name, part in parts.items():
            if torch.is_tensor(part):
                parts[name] = part.tolist()
        texts.append(repr(parts))
    return texts


def check(name, dataset, workers, **options):
    torch.manual_seed(1)
    wanted = listed(TheirLoader(dataset, BATCH, num_workers=workers, **options))
    torch.manual_seed(1)
    with DataLoader(dataset, BATCH, num_workers=2, **options) as loader:
        under_way = iter(loader)
        begun = listed(next(under_way) for _ in range(3))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = listed(under_way)
        assert begun + rest == wanted, name
    with DataLoader(dataset, BATCH, num_workers=2, **options) as loader:
        loader.load_state_dict(state)
        assert listed(loader) == rest, name


def check_epochs():
    """set_epoch() reaches workers that stay."""
    orders = []
    for loader_class in (TheirLoader, DataLoader):
        stream = made()["mapped"].to_iterable_dataset(num_shards=4)
        stream = stream.shuffle(seed=1, buffer_size=8)
        loader = loader_class(stream, BATCH, num_workers=2)
        orders.append(listed(loader))
        stream.set_epoch(1)
        orders.append(listed(loader))
    assert orders[0] == orders[2] != orders[1] == orders[3]


if __name__ == "__main__":
    datasets.disable_progress_bars()
    for name, dataset in made().items():
        check(name, dataset, workers=0, shuffle=True)
    for name, dataset in streams().items():
        check(name, dataset, workers=2)
    check_epochs()
