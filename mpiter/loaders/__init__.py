"""Epochs in torch's manner: ``DataLoader``, its samplers, streams and states."""
