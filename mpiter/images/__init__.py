"""Datasets of picture files, with a choice of decoders, and transforms whose random draws don't depend on workers.

::

    dataset, pack ─────────────────► decoding ────────────────────────► transforms
    which files and labels,          reads the header, then simplejpeg  on pixels; and those of
    source, fetch, read, transform   or Pillow makes the pixels         Albumentations, torchvision

mpiter's core doesn't import this package.  Needs Pillow; the extra ``images`` installs simplejpeg too.
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
