"""The loaders of the benchmark of orders for language models, ours and others.

A loader's package is imported by its class only.
"""

from __future__ import annotations

from orders_datasets import Datasets
from orders_grain import Grain
from orders_job import Loader
from orders_litdata import Litdata
from orders_mosaic import Mosaic
from orders_ours import Loop, Ours, OursUnpacked
from orders_torchdata import TorchdataNodes

LOADERS: dict[str, type[Loader]] = {
    "ours": Ours,
    "ours, not packed": OursUnpacked,
    "loop": Loop,
    "grain": Grain,
    "mosaicml-streaming": Mosaic,
    "litdata": Litdata,
    "torchdata": TorchdataNodes,
    "datasets": Datasets,
}
