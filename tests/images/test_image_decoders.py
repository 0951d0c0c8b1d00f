"""Decoders: the same pixels from all of them, for every kind of file; Pillow where one can't."""

from __future__ import annotations

import importlib.util
import io
import itertools
import sys
import types
import zlib

import image_files
import numpy as np
import pytest
from PIL import Image, ImageOps

import mpiter
from mpiter.images import ImageList
from mpiter.images.decoding import Decoding
from mpiter.images.transforms import Region, plain

KINDS = image_files.kinds()
ROUNDING = 3  # of 255


WITHOUT_SIMPLEJPEG = pytest.mark.skipif(
    not importlib.util.find_spec("simplejpeg"), reason="simplejpeg is not installed"
)
each_decoder = pytest.mark.parametrize(
    "decoder", ["pillow", pytest.param("simplejpeg", marks=WITHOUT_SIMPLEJPEG), "auto"]
)


def pillows(data: bytes, mode: str, upright: bool = False) -> np.ndarray:
    """What Pillow makes of it, asked in the plainest way; grey of 16 bits is the one exception."""
    image = Image.open(io.BytesIO(data))
    image = ImageOps.exif_transpose(image) if upright else image
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


def decoded(decoder: str, data: bytes, mode: str = "RGB", upright: bool = False) -> np.ndarray:
    return plain(Decoding(decoder, mode, upright).open(data, "a file")[0])


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


@each_decoder
def test_exif_turns_a_picture_upright_where_that_is_asked_for_only(decoder):
    for kind in (kind for kind in KINDS if "turned" in kind):
        assert not differs(decoded(decoder, KINDS[kind], upright=True), pillows(KINDS[kind], "RGB", upright=True)), kind
        assert decoded(decoder, KINDS[kind]).shape == (61, 47, 3), kind


def test_exif_turns_pictures_of_every_mode():
    wide = Image.fromarray(np.arange(61 * 47, dtype=np.uint16).reshape(61, 47) * 20)
    wide = image_files.encoded(wide, "PNG", exif=image_files.turned(6), transparency=20)
    for data, mode in itertools.product((KINDS["png, turned"], wide), ("RGB", "L", "RGBA", "I;16")):
        assert (decoded("auto", data, mode, upright=True) == pillows(data, mode, upright=True)).all(), mode


@pytest.mark.parametrize("kind", ["png, turned", "webp, turned", "jpeg, turned 6"])
def test_exif_that_cannot_be_read_turns_nothing(kind):
    data = KINDS[kind].replace(b"MM\0*", b"garb")
    if data.startswith(b"\x89PNG"):
        at = data.index(b"eXIf")
        end = at + 4 + int.from_bytes(data[at - 4 : at], "big")
        data = data[:end] + zlib.crc32(data[at:end]).to_bytes(4, "big") + data[end + 4 :]
    assert data != KINDS[kind]
    assert decoded("auto", data, upright=True).shape == (61, 47, 3)


@each_decoder
def test_scaled_decoding_gives_so_many_times_fewer_pixels_of_the_same_picture(decoder):
    kinds = ("jpeg", "jpeg, odd sides", "jpeg, progressive", "jpeg, grey", "jpeg, CMYK")
    for factor, kind in itertools.product((2, 4, 8), kinds):
        full = pillows(KINDS[kind], "RGB").astype(float)
        height, width = full.shape[:2]
        asked = []

        def wish(h, w, asked=asked, factor=factor):
            asked.append((h, w))
            return Region(0, 0, h, w, (h, w), (h // factor, w // factor))

        image, region = Decoding(decoder, "RGB", True).open(KINDS[kind], "a file", wish)
        small = plain(image)
        assert asked == [(height, width)]
        assert region.factor == factor
        assert small.shape == (-(-height // factor), -(-width // factor), 3)
        full = np.pad(full, ((0, -height % factor), (0, -width % factor), (0, 0)), mode="edge")
        box = full.reshape(small.shape[0], factor, small.shape[1], factor, 3).mean((1, 3))
        assert np.abs(small - box).mean() < 6, (factor, kind)


@each_decoder
def test_what_is_wanted_of_a_turned_picture_is_wanted_of_it_upright(decoder):
    wish = lambda h, w: Region(0, 0, h, w, (h, w), (h // 2, w // 2))  # noqa: E731
    lying, _ = Decoding(decoder, "RGB", False).open(KINDS["jpeg, turned 6"], "a file", wish)
    upright, region = Decoding(decoder, "RGB", True).open(KINDS["jpeg, turned 6"], "a file", wish)
    assert region.of == (47, 61)
    assert (plain(upright) == np.rot90(plain(lying), -1)).all()


def fast(decoder="auto"):
    """The name of the function that is asked before Pillow."""
    return getattr(Decoding(decoder, "RGB", False).fast, "__name__", None)


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
