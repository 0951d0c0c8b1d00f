"""Images: folders and lists of files, decoders to choose from, transforms whose draws don't depend on workers.

::

    dataset, pack ─────────────────► decoding ───────────────────────► transforms
    which files and labels,          header, then the decoder that     region → apply on pixels;
    source, fetch, read, transform   takes it: simplejpeg, …, Pillow   other people's

The core knows datasets only.  Needs Pillow; the extra ``images`` has simplejpeg too.
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
