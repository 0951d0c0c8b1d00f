"""Imports torchvision, also where its compiled operators don't fit torch.

Wheels of torchvision are usually made for torch with CUDA.  Beside a torch without it
their operators aren't found, and importing torchvision fails at the two that it names.
These are declared here, since the transforms need no operator.  The workers of a
``Folder`` import this module before they open torchvision's transforms.
"""

from __future__ import annotations

import torch

from mpiter.images import ImageFolder
from mpiter.pool import starting

try:
    import torchvision
except RuntimeError:
    # The error says that the operator torchvision::nms doesn't exist.
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        LIBRARY.define(
            f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    import torchvision  # noqa: F401

# The fork server imports this module once, so that no worker has to.
starting.preloaded.append(__name__)


class Folder(ImageFolder):
    """A dataset folder whose class lies in this module."""
