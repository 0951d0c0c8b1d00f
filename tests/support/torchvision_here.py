"""torchvision, also where its compiled operators don't fit torch: the transforms need
none of them.

The wheels on PyPI are made for torch with CUDA.  Beside a torch for the processor alone
their operators aren't found, and importing torchvision fails for the two that it asks
for by name; these are declared here, and nothing else is changed.  A ``Folder`` is an
``ImageFolder`` whose workers come by here before they open torchvision's transforms.
"""

from __future__ import annotations

import torch

from mpiter.images import ImageFolder
from mpiter.pool import starting

try:
    import torchvision
except RuntimeError:
    # Operator torchvision::nms does not exist.
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        LIBRARY.define(
            f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    import torchvision  # noqa: F401

# Once, and not in each worker.
starting.preloaded.append(__name__)


class Folder(ImageFolder):
    """A dataset folder whose class lies in this module."""
