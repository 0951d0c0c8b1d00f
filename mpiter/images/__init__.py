"""Datasets of picture files, with a choice of decoders, and transforms whose random draws don't depend on workers.

::

    dataset, pack ─────────────────► decoding ───────────────────────► transforms
    which files and labels,          reads the header, then the first  region → apply on pixels;
    source, fetch, read, transform   of simplejpeg, …, Pillow to fit   Albumentations', torchvision's

mpiter's core doesn't import this package.  Needs Pillow; the extra ``images`` installs simplejpeg too.
"""

from .dataset import ImageFolder, ImageList
from .decoding import BrokenImage
from .pack import BadArchive, PackedFolder
from .transforms import Compose, Crop, Flip, Normalize, RandomResizedCrop, Region, Resize

__all__ = [
    "BadArchive",
    "BrokenImage",
    "Compose",
    "Crop",
    "Flip",
    "ImageFolder",
    "ImageList",
    "Normalize",
    "PackedFolder",
    "RandomResizedCrop",
    "Region",
    "Resize",
]
