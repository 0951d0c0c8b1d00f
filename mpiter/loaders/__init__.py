"""Epochs in torch's manner: ``DataLoader``, its samplers, streams and states.

::

    loader ───────────► loading ───────────► epochs
    torch's arguments   epoch after epoch,   each iter(), over a pump
                        and exact resume     that rests in between
                        ├── drawing: what a sampler gives; batched: a batch made by one worker
                        ├── streams, shards, walk: what can only be iterated over
                        └── place, generators: what a state says

``ragged`` pads and buckets samples of different lengths.
"""
