"""Decoders: the same pixels from all of them, for every kind of file; Pillow where one can't."""

from __future__ import annotations

import importlib.util
import io
import itertools
import sys
import types

import image_files
import numpy as np
import pytest
from PIL import Image

import mpiter
from mpiter.images import ImageList
from mpiter.images.decoding import Decoding
from mpiter.images.transforms import plain

KINDS = image_files.kinds()
ROUNDING = 3  # of 255


WITHOUT_SIMPLEJPEG = pytest.mark.skipif(
    not importlib.util.find_spec("simplejpeg"), reason="simplejpeg is not installed"
)
each_decoder = pytest.mark.parametrize(
    "decoder", ["pillow", pytest.param("simplejpeg", marks=WITHOUT_SIMPLEJPEG), "auto"]
)


def pillows(data: bytes, mode: str) -> np.ndarray:
    """What Pillow makes of it, asked in the plainest way; grey of 16 bits is the one exception."""
    image = Image.open(io.BytesIO(data))
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.uint16)
        image = Image.fromarray(wide) if mode == "I;16" else Image.fromarray((wide >> 8).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if mode == "I;16":
        array = np.asarray(image if image.mode == mode else image.convert("L")).astype(np.uint16)
        return (array if image.mode == mode else array * 257)[:, :, None]
    array = np.asarray(image.convert(mode))
    return array if array.ndim == 3 else array[:, :, None]


def decoded(decoder: str, data: bytes, mode: str = "RGB") -> np.ndarray:
    return plain(Decoding(decoder, mode).open(data, "a file"))


def differs(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.shape != wanted.shape or np.abs(found.astype(int) - wanted.astype(int)).max() > ROUNDING


@each_decoder
def test_pixels_are_pillows_whoever_decodes(decoder):
    for mode, (kind, data) in itertools.product(("RGB", "L", "RGBA", "I;16"), KINDS.items()):
        wanted, found = pillows(data, mode), decoded(decoder, data, mode)
        assert not differs(found, wanted), (mode, kind)
        assert found.dtype == wanted.dtype, (mode, kind)
        assert found.flags.writeable, (mode, kind)
        assert found.flags.c_contiguous, (mode, kind)


def fast(decoder="auto"):
    """The name of the function that is asked before Pillow."""
    return getattr(Decoding(decoder, "RGB").fast, "__name__", None)


def test_auto_is_simplejpeg_where_it_is_installed(monkeypatch):
    assert fast() == ("_simplejpeg" if importlib.util.find_spec("simplejpeg") else None)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert fast() is None
    with pytest.raises(mpiter.OptionError, match="cannot be imported; pip install"):
        fast("simplejpeg")


def test_pillow_simd_is_known_by_its_version(monkeypatch):
    with pytest.raises(mpiter.OptionError, match="what is installed is pillow"):
        ImageList([], decoder="pillow-simd")
    monkeypatch.setattr("PIL.__version__", "9.5.0.post2")
    assert fast("pillow-simd") == fast("pillow") is None


def test_accimage_is_given_files_and_gives_planes(monkeypatch):
    class FakeImage:
        """As the library's: opened by a path, JPEG only, copied out plane by plane."""

        def __init__(self, path):
            with Image.open(path) as image:
                self._pixels = np.asarray(image.convert("RGB"))
            (self.height, self.width, self.channels) = self._pixels.shape

        def copyto(self, buffer):
            buffer[:] = self._pixels.transpose(2, 0, 1)

    monkeypatch.setitem(sys.modules, "accimage", types.SimpleNamespace(Image=FakeImage))
    assert fast("accimage") == "_accimage"
    for kind in ("jpeg", "jpeg, CMYK", "png"):
        assert (decoded("accimage", KINDS[kind]) == pillows(KINDS[kind], "RGB")).all()


def test_an_unknown_decoder_or_mode_is_refused():
    with pytest.raises(mpiter.OptionError, match="decoder='turbo' is unknown; use one of 'auto'"):
        ImageList([], decoder="turbo")
    with pytest.raises(mpiter.OptionError, match="mode='BGR' is unknown"):
        ImageList([], mode="BGR")
