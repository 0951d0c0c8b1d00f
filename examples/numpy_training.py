"""A training loop in JAX, or in NumPy where JAX is not installed, fed by `mpiter.batches`.

python examples/numpy_training.py
"""

from __future__ import annotations

import numpy as np

import mpiter

try:
    import jax
    import jax.numpy as jnp

    import mpiter.jax
except ImportError:
    jax = None


class Lines:
    """Points near a line, with some noise that is drawn anew for each."""

    def __init__(self, length: int) -> None:
        self.x = np.random.default_rng(0).uniform(-1, 1, (length, 8)).astype("float32")
        self.w = np.arange(8, dtype="float32")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.float32]:
        noise = mpiter.get_rng().normal(0, 0.01)
        return self.x[index], np.float32(self.x[index] @ self.w + noise)


def numpys_step(w, x, y, rate=0.1):
    """One step downhill."""
    return w - rate * 2 * x.T @ (x @ w - y) / len(y)


def main() -> None:
    w, step = np.zeros(8, "float32"), numpys_step
    if jax is not None:
        w = jnp.zeros(8)
        step = jax.jit(lambda w, x, y: w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))
    with mpiter.batches(Lines(4000), 100, n_processes=2, seed=1, epochs=8) as batches:
        for x, y in batches if jax is None else mpiter.jax.each(batches):
            w = step(w, x, y)
        waited = batches.stats().wait_s
    print(f"{'NumPy' if jax is None else 'JAX'}: w = {np.round(np.asarray(w), 1).tolist()}, waited {waited:.2f} s")


if __name__ == "__main__":
    main()
