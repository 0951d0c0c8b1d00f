"""JAX with Flax and optax on batches from workers.

It trains as without them, and is resumed in mid-epoch.
"""

import json

import flax.linen as nn
import flax.serialization
import jax
import numpy as np
import optax

import mpiter

LENGTH = 200
BATCH = 16
EPOCHS = 3


class Points:
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        x = np.array([index / LENGTH, 1 - index / LENGTH], np.float32)
        noise = mpiter.get_rng().normal(0, 0.01, 1)
        return {"x": x, "y": (2 * x[:1] + noise).astype(np.float32)}


net = nn.Dense(1)
optimizer = optax.adam(0.05)


@jax.jit
def step(parameters, state, batch):
    def loss(parameters):
        return ((net.apply(parameters, batch["x"]) - batch["y"]) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(parameters)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(parameters, updates), state, value


def trained(n_processes, save_at=None, resume=False):
    parameters = net.init(jax.random.key(0), np.zeros((1, 2), np.float32))
    state = optimizer.init(parameters)
    with mpiter.batches(
        Points(), BATCH, epochs=EPOCHS, seed=1, n_processes=n_processes
    ) as batches:
        if resume:
            with open("model", "rb") as model, open("place") as place:
                parameters, state = flax.serialization.from_bytes(
                    (parameters, state), model.read()
                )
                batches.load_state_dict(json.load(place))
        for done, batch in enumerate(batches, 1):
            parameters, state, loss = step(parameters, state, batch)
            if done == save_at:
                with open("model", "wb") as model, open("place", "w") as place:
                    model.write(flax.serialization.to_bytes((parameters, state)))
                    json.dump(batches.state_dict(), place)
    return jax.tree.map(np.asarray, parameters), float(loss)


def same(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


if __name__ == "__main__":
    wanted, loss = trained(n_processes=0)
    assert loss < 0.1
    # An epoch has 13 steps, so it is saved in the second one.
    assert same(trained(n_processes=2, save_at=17)[0], wanted)
    assert same(trained(n_processes=1, resume=True)[0], wanted)
