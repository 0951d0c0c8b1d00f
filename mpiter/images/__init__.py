"""Images: folders and lists of files, decoders to choose from, transforms whose draws don't depend on workers.

::

    folders ───────► dataset ─────────► decoding ──────────► decoders_*        transforms
    which files      source, fetch,     header, then whoever Pillow,           Region → apply;
    and labels       read, transform    takes it; Pillow     simplejpeg, …     other people's: adapt

A wing: the core knows datasets only, and nothing here is imported unless it is asked for.  Needs Pillow; the extra
``images`` has simplejpeg too.
"""

from .broken import BrokenImage
from .folders import ImageFolder, ImageList
from .packed import PackedFolder
from .transforms import Compose, Crop, Flip, Normalize, RandomResizedCrop, Region, Resize
from .zipped import BadArchive

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
