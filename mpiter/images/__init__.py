"""Datasets of picture files, and transforms whose draws don't depend on workers.

::

    dataset, pack ───────────────► decoding ──────────────► transforms
    which files and labels;        reads the header; then   on pixels; adapters for
    source, fetch, read,           simplejpeg or Pillow     Albumentations' and
    transform                      makes the pixels         torchvision's

mpiter's core doesn't import this package.  Needs Pillow; the extra ``images`` installs
simplejpeg too.
"""

from .dataset import ImageFolder, ImageList
from .decoding import BrokenImage
from .pack import PackedFolder
from .transforms import Compose, Crop, Flip, Normalize, RandomResizedCrop, Resize

__all__ = [
    "BrokenImage",
    "Compose",
    "Crop",
    "Flip",
    "ImageFolder",
    "ImageList",
    "Normalize",
    "PackedFolder",
    "RandomResizedCrop",
    "Resize",
]
