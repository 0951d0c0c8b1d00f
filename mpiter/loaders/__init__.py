"""Epochs in torch's manner: ``DataLoader``, its samplers, streams and states.

::

    loader ───────────► loading
    torch's arguments   each iter() begins an epoch; the pump, which has the workers, is kept between epochs
                        ├── drawing: which keys come next, the generators that a sampler draws from, the state
                        ├── batched: a batch made by one worker
                        └── streams, shards: datasets that can only be iterated over
"""
