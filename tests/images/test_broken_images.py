"""A file that is broken, gone or too large is an error with its path and its cause.

With ``on_error="skip"`` its sample is left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import image_files
import pytest
from PIL import Image

from mpiter.images import BrokenImage, ImageList

SUPPORT = Path(__file__).resolve().parents[1] / "support"
DECODERS = [
    "pillow",
    *(["simplejpeg"] if importlib.util.find_spec("simplejpeg") else []),
    "auto",
]
KINDS = image_files.kinds()
JPEG = KINDS["jpeg"]
PNG = KINDS["png"]


def jpeg_of_size(height: int, width: int) -> bytes:
    """Return a JPEG whose header says that it has this size."""
    at = JPEG.index(b"\xff\xc0")
    return JPEG[: at + 5] + struct.pack(">HH", height, width) + JPEG[at + 9 :]


@pytest.mark.parametrize("name", ["picture.png", "picture.eps"])
def test_no_program_is_started_for_what_a_file_may_hold(
    tmp_path: Path, monkeypatch: Any, name: str
) -> None:
    """Pillow would let Ghostscript run PostScript, which can do more than draw."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch '{tmp_path.name}-ran'\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    Image.new("RGB", (8, 8)).save(tmp_path / name, "EPS")
    with pytest.raises(BrokenImage, match="Pillow can't identify it"):
        ImageList([name], root=tmp_path)[0]
    assert not list(tmp_path.glob("*-ran"))


def png_of_size(height: int, width: int) -> bytes:
    header = b"IHDR" + struct.pack(">II", width, height) + PNG[24:29]
    return PNG[:12] + header + struct.pack(">I", zlib.crc32(header)) + PNG[33:]


def gif_of_size(height: int, width: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + KINDS["gif"][10:]


BROKEN = {
    "empty": (b"", "the file is empty"),
    "truncated jpeg": (JPEG[: len(JPEG) // 2], "OSError: image file is truncated"),
    "truncated png": (PNG[: len(PNG) // 2], "OSError"),
    "nothing but a header": (JPEG[:20], "Pillow can't identify it|Truncated File Read"),
    "text": (
        b"<html>404 Not Found</html>",
        "Pillow can't identify it .*; it begins with b'<html>40'",
    ),
    "zeros": (bytes(1000), "Pillow can't identify it"),
    "giant jpeg": (
        jpeg_of_size(20_000, 20_000),
        "DecompressionBombError: .*MAX_IMAGE_PIXELS may be raised",
    ),
    "giant png": (
        png_of_size(20_000, 20_000),
        "PIL.Image.MAX_IMAGE_PIXELS may be raised",
    ),
    "giant gif": (
        gif_of_size(20_000, 20_000),
        "PIL.Image.MAX_IMAGE_PIXELS may be raised",
    ),
    "jpeg of no rows": (jpeg_of_size(0, 100), "."),
}


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_broken_file_is_an_error_that_names_path_and_cause(decoder, tmp_path):
    path = tmp_path / "file.jpg"
    for data, reason in BROKEN.values():
        path.write_bytes(data)
        with pytest.raises(BrokenImage, match=reason) as error:
            ImageList(["file.jpg"], root=tmp_path, decoder=decoder)[0]
        assert error.value.path == str(path)
        assert str(error.value).startswith(f"{path} cannot be decoded: ")
        assert isinstance(error.value, OSError)


@pytest.mark.filterwarnings("ignore:Image size")
def test_the_limit_is_the_same_for_every_kind_of_file(tmp_path, monkeypatch):
    for kind in ("gif", "tiff", "webp", "png", "jpeg"):
        (tmp_path / "file").write_bytes(KINDS[kind])
        # For files of up to twice this size, Pillow itself only warns.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 93 * 124 - 1)
        with pytest.raises(
            BrokenImage,
            match=r"it has 124 × 93 pixels; PIL\.Image\.MAX_IMAGE_PIXELS may",
        ):
            ImageList(["file"], root=tmp_path)[0]
        for most in (93 * 124, None):
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
            assert ImageList(["file"], root=tmp_path)[0].shape == (93, 124, 3)


def test_what_the_system_refuses_keeps_its_type_and_names_the_path(tmp_path):
    os.mkdir(tmp_path / "folder.jpg")
    # Whatever opens this one waits for its other end.
    os.mkfifo(tmp_path / "pipe.jpg")
    files = ImageList(["gone.jpg", "folder.jpg", "pipe.jpg"], root=tmp_path)
    for index, kind in enumerate((FileNotFoundError, IsADirectoryError, OSError)):
        with pytest.raises(kind) as error:
            files[index]
        assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 100), pytest.param(100, 1500, marks=pytest.mark.slow)]
)
def test_damaged_files_are_refused_or_decoded_alike_by_all_decoders(first, last):
    """They run in a process of their own, which neither crashes nor hangs."""
    command = [
        sys.executable,
        str(SUPPORT / "damaged.py"),
        str(first),
        str(last),
        *DECODERS,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    refused = sum(isinstance(each, str) for each in found["pillow"])
    assert 0.5 < refused / (last - first) < 0.9, "some are whole enough"
    for told in found.values():
        assert told == found["pillow"]
    for number, became in enumerate(found["pillow"], first):
        assert isinstance(became, list) or became.startswith(f"file {number}: ")
