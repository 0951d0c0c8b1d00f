"""The iterators with Chainer's interface, and ``batches()``."""
