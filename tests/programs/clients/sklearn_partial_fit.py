"""scikit-learn's partial_fit on batches from workers.

It learns as without them, and is resumed with the model's own pickle.
"""

import json
import pickle

import numpy as np
from sklearn.linear_model import SGDClassifier

import mpiter

LENGTH = 300
BATCH = 32
EPOCHS = 3


class Rows:
    """Two classes of points, noisy: the noise belongs to the place in the order."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        label = index % 2
        return mpiter.get_rng().normal(3 * label, 1, 4), label


def fitted(model, batches, save_at=None):
    for done, (x, labels) in enumerate(batches, 1):
        model.partial_fit(x, labels, classes=[0, 1])
        if done == save_at:
            with open("model", "wb") as file:
                pickle.dump(model, file)
            with open("place", "w") as file:
                json.dump(batches.state_dict(), file)
    return model


def batches(n_processes):
    return mpiter.batches(Rows(), BATCH, epochs=EPOCHS, seed=1, n_processes=n_processes)


if __name__ == "__main__":
    with batches(n_processes=0) as alone, batches(n_processes=2) as given:
        wanted = fitted(SGDClassifier(random_state=0), alone)
        trained = fitted(SGDClassifier(random_state=0), given, save_at=13)
    assert np.array_equal(trained.coef_, wanted.coef_)

    with (
        batches(n_processes=1) as rest,
        open("place") as place,
        open("model", "rb") as model,
    ):
        rest.load_state_dict(json.load(place))
        again = fitted(pickle.load(model), rest)
    assert np.array_equal(again.coef_, wanted.coef_)

    clean = np.concatenate([np.zeros((50, 4)), np.full((50, 4), 3.0)])
    assert again.score(clean, [0] * 50 + [1] * 50) > 0.95
