"""Epochs in torch's manner: ``DataLoader``, its samplers, streams and states.

::

    loader ───────────► loading
    torch's arguments   epoch after epoch, each iter() one, over a pump that rests in between
                        ├── drawing: what comes next and from where, what a sampler draws from, the state
                        ├── batched: a batch made by one worker
                        └── streams, shards: what can only be iterated over

``ragged`` pads and buckets samples of different lengths.
"""
