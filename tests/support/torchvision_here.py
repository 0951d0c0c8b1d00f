"""torchvision, also where its compiled operators don't fit torch: the transforms need none of them.

The wheels on PyPI are made for torch with CUDA.  Beside a torch for the processor alone their operators aren't found,
and importing torchvision fails for the two that it asks for by name; these are declared here, and nothing else is
changed.  A ``Folder`` is an ``ImageFolder`` whose workers come by here before they open torchvision's transforms.
"""

from __future__ import annotations

import torch

from mpiter.images import ImageFolder
from mpiter.pool import starting

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    try:
        getattr(torch.ops.torchvision, _name)
    except AttributeError:
        _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision  # noqa: E402, F401

starting.preload(__name__)  # once, and not in each worker


class Folder(ImageFolder):
    """Of this module."""
