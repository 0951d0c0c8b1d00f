"""All decoders give the same pixels for every kind of file.

Pillow decodes what another one can't.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import sys

import image_files
import numpy as np
import pytest
from PIL import Image

import mpiter
from mpiter.images import ImageList
from mpiter.images.decoding import Decoding
from mpiter.images.transforms import plain

KINDS = image_files.kinds()
ROUNDING = 3  # steps of 255


WITHOUT_SIMPLEJPEG = pytest.mark.skipif(
    not importlib.util.find_spec("simplejpeg"), reason="simplejpeg is not installed"
)
each_decoder = pytest.mark.parametrize(
    "decoder", ["pillow", pytest.param("simplejpeg", marks=WITHOUT_SIMPLEJPEG), "auto"]
)


def pillows(data: bytes, mode: str) -> np.ndarray:
    """Return what Pillow's ``convert`` gives.

    Only 16 bits of grey take more than that.
    """
    image = Image.open(io.BytesIO(data))
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.uint16)
        if mode != "I;16":
            wide = (wide >> 8).astype(np.uint8)
        image = Image.fromarray(wide)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if mode == "I;16":
        if image.mode == mode:
            array = np.asarray(image).astype(np.uint16)
        else:
            array = np.asarray(image.convert("L")).astype(np.uint16) * 257
        return array[:, :, None]
    array = np.asarray(image.convert(mode))
    return array if array.ndim == 3 else array[:, :, None]


def decoded(decoder: str, data: bytes, mode: str = "RGB") -> np.ndarray:
    return plain(Decoding(decoder, mode).open(data, "a file"))


def differs(found: np.ndarray, wanted: np.ndarray) -> bool:
    return (
        found.shape != wanted.shape
        or np.abs(found.astype(int) - wanted.astype(int)).max() > ROUNDING
    )


@each_decoder
def test_pixels_are_pillows_with_any_decoder(decoder):
    for mode, (kind, data) in itertools.product(
        ("RGB", "L", "RGBA", "I;16"), KINDS.items()
    ):
        wanted = pillows(data, mode)
        found = decoded(decoder, data, mode)
        assert not differs(found, wanted), (mode, kind)
        assert found.dtype == wanted.dtype, (mode, kind)
        assert found.flags.writeable, (mode, kind)
        assert found.flags.c_contiguous, (mode, kind)


def test_auto_is_simplejpeg_where_it_is_installed(monkeypatch):
    assert Decoding("auto", "RGB").has_simplejpeg == bool(
        importlib.util.find_spec("simplejpeg")
    )
    assert not Decoding("pillow", "RGB").has_simplejpeg
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert not Decoding("auto", "RGB").has_simplejpeg
    with pytest.raises(mpiter.OptionError, match="cannot be imported; pip install"):
        Decoding("simplejpeg", "RGB")


def test_an_unknown_decoder_or_mode_is_refused():
    with pytest.raises(
        mpiter.OptionError, match="decoder='turbo' is unknown; use one of 'auto'"
    ):
        ImageList([], decoder="turbo")
    with pytest.raises(mpiter.OptionError, match="mode='BGR' is unknown"):
        ImageList([], mode="BGR")
