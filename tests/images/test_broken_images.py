"""Files that are broken, gone or too large: an error that names path and cause, or a sample that is left out."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import stat
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import image_files
import numpy as np
import pytest
from PIL import Image

import mpiter
from mpiter.images import BrokenImage, ImageList

SUPPORT = Path(__file__).resolve().parents[1] / "support"
HERE = {"simplejpeg": "simplejpeg", "opencv": "cv2"}
DECODERS = ["pillow", *(name for name in HERE if importlib.util.find_spec(HERE[name])), "auto"]
JPEG, PNG = image_files.kinds()["jpeg"], image_files.kinds()["png"]


def jpeg_of_size(height: int, width: int) -> bytes:
    """Which only says that it has so many pixels."""
    at = JPEG.index(b"\xff\xc0")
    return JPEG[: at + 5] + struct.pack(">HH", height, width) + JPEG[at + 9 :]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", ["picture.png", "picture.eps"])
def test_no_program_is_started_for_what_a_file_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str, name: str
) -> None:
    """Pillow has Ghostscript run PostScript, which can do more than draw."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch '{tmp_path.name}-ran'\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    Image.new("RGB", (8, 8)).save(tmp_path / name, "EPS")
    with pytest.raises(BrokenImage, match="is no picture that Pillow knows"):
        ImageList([name], root=tmp_path, decoder=decoder)[0]
    assert not list(tmp_path.glob("*-ran"))


def png_of_size(height: int, width: int) -> bytes:
    header = b"IHDR" + struct.pack(">II", width, height) + PNG[24:29]
    return PNG[:12] + header + struct.pack(">I", zlib.crc32(header)) + PNG[33:]


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


BOMB = b"title\0\0" + zlib.compress(bytes(10_000_000))


def gif_of_size(height: int, width: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + image_files.kinds()["gif"][10:]


BROKEN = {
    "empty": (b"", "the file is empty"),
    "truncated jpeg": (JPEG[: len(JPEG) // 2], "OSError: image file is truncated"),
    "truncated png": (PNG[: len(PNG) // 2], "OSError"),
    "nothing but a header": (JPEG[:20], "no picture that Pillow knows|Truncated File Read"),
    "text": (b"<html>404 Not Found</html>", "it is no picture that Pillow knows, and begins with b'<html>40'"),
    "zeros": (bytes(1000), "it is no picture that Pillow knows"),
    "giant jpeg": (
        jpeg_of_size(20_000, 20_000),
        "DecompressionBombError: .*MAX_IMAGE_PIXELS may be raised",
    ),
    "giant png": (png_of_size(20_000, 20_000), "PIL.Image.MAX_IMAGE_PIXELS may be raised"),
    "giant gif": (gif_of_size(20_000, 20_000), "PIL.Image.MAX_IMAGE_PIXELS may be raised"),
    "jpeg of no rows": (jpeg_of_size(0, 100), "."),
    "png with a damaged chunk": (PNG[:33] + png_chunk(b"gAMA", bytes(4))[:-1] + b"x" + PNG[33:], "no picture that"),
    "png with a short chunk": (PNG[:33] + png_chunk(b"sRGB", b"") + PNG[33:], "Truncated sRGB chunk"),
    "png with a bomb of a text": (PNG[:33] + png_chunk(b"zTXt", BOMB) + PNG[33:], "MAX_TEXT_CHUNK"),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_an_error_that_names_path_and_cause(kind, decoder, tmp_path):
    data, reason = BROKEN[kind]
    (tmp_path / "file.jpg").write_bytes(data)
    with pytest.raises(BrokenImage, match=reason) as error:
        ImageList(["file.jpg"], root=tmp_path, decoder=decoder)[0]
    assert error.value.path == str(tmp_path / "file.jpg")
    assert str(error.value).startswith(f"{tmp_path / 'file.jpg'} cannot be decoded: ")
    assert isinstance(error.value, OSError)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_giant_is_decoded_where_pillow_has_been_told_so(decoder, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    (tmp_path / "file.jpg").write_bytes(JPEG)
    files = ImageList(["file.jpg"], root=tmp_path, decoder=decoder)
    with pytest.raises(BrokenImage, match="MAX_IMAGE_PIXELS may be raised"):
        files[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert files[0].shape == (93, 124, 3)


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize("kind", ["gif", "tiff", "webp", "png", "jpeg"])
def test_the_limit_is_the_same_for_every_kind_of_file(kind, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(image_files.kinds()[kind])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 93 * 124 - 1)  # Pillow itself warns up to twice as many
    with pytest.raises(BrokenImage, match="it has 124 × 93 pixels"):
        ImageList(["file"], root=tmp_path)[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 93 * 124)
    assert ImageList(["file"], root=tmp_path)[0].shape == (93, 124, 3)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_of_more_bytes_than_any_picture_has_is_not_read(tmp_path, scheme):
    (tmp_path / "disk.jpg").touch()
    os.truncate(tmp_path / "disk.jpg", 200 << 30)  # a hole, which is nothing on the disk
    if scheme:
        pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(BrokenImage, match=r"disk\.jpg cannot be decoded: it has 214,748,364,800 bytes, and no more"):
        ImageList(["disk.jpg"], root=f"{scheme}{tmp_path}")[0]


def test_what_the_system_refuses_keeps_its_type_and_names_the_path(tmp_path):
    os.mkdir(tmp_path / "folder.jpg")
    files = ImageList(["gone.jpg", "folder.jpg"], root=tmp_path)
    for index, kind in enumerate((FileNotFoundError, IsADirectoryError)):
        with pytest.raises(kind) as error:
            files[index]
        assert str(tmp_path) in str(error.value)


@pytest.mark.timeout(20)
def test_a_pipe_or_a_device_is_an_error_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    os.symlink("/dev/null", tmp_path / "device.jpg")
    files = ImageList(["pipe.jpg", "device.jpg"], root=tmp_path)
    for index in (0, 1):
        with pytest.raises(OSError, match=rf"Not a regular file: .*{files.paths[index]}"):
            files[index]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_permission_error(tmp_path):
    (tmp_path / "secret.jpg").write_bytes(JPEG)
    (tmp_path / "secret.jpg").chmod(stat.S_IWUSR)
    with pytest.raises(PermissionError, match=r"secret\.jpg"):
        ImageList(["secret.jpg"], root=tmp_path)[0]


def test_permission_denied_is_raised_as_it_is(tmp_path, monkeypatch):
    def refuse(path, mode, **options):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: ['\"].*secret\.jpg['\"]"):
        ImageList(["secret.jpg"], root=tmp_path)[0]


def test_the_error_travels():
    error = BrokenImage("a.jpg", "the file is empty")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path, again.reason) == (str(error), "a.jpg", "the file is empty")


@pytest.fixture
def night(tmp_path):
    """Forty files, of which four are broken and one is gone."""
    for number in range(40):
        (tmp_path / f"{number:02}.jpg").write_bytes(JPEG if number % 10 != 3 else JPEG[: 100 * number])
    (tmp_path / "20.jpg").unlink()
    return ImageList([(f"{number:02}.jpg", number) for number in range(40)], root=tmp_path)


@pytest.mark.parametrize("n_processes", [0, 2])
def test_a_nights_run_leaves_broken_files_out_and_lists_them(night, n_processes):
    with mpiter.batches(night, 8, shuffle=False, n_processes=n_processes, on_error="skip") as stream:
        labels = np.concatenate([labels for _, labels in stream])
        stats = stream.stats()
    broken = [3, 13, 20, 23, 33]
    assert labels.tolist() == [number for number in range(40) if number not in broken]
    assert stats.skipped == 5
    assert [index for index, _ in stats.skips] == broken
    assert stats.skips[0][1].startswith("BrokenImage: ")
    assert "03.jpg cannot be decoded" in stats.skips[0][1]
    assert stats.skips[2][1].startswith("FileNotFoundError: ")


def test_a_nights_run_ends_when_too_many_files_are_broken(night):
    with (
        mpiter.batches(night, 8, shuffle=False, n_processes=1, on_error=mpiter.Skip(most=3)) as stream,
        pytest.raises(mpiter.SampleError, match=r"more samples have failed; .* The last: BrokenImage: .*23\.jpg"),
    ):
        list(stream)


def test_an_error_from_a_worker_names_the_file(night):
    with (
        mpiter.batches(night, 8, shuffle=False, n_processes=1) as stream,
        pytest.raises(BrokenImage, match=r"03\.jpg cannot be decoded"),
    ):
        next(stream)


def damage(decoder: str, first: int, last: int) -> list:
    """What became of these files, in a process of its own: it neither crashes nor hangs."""
    command = [sys.executable, str(SUPPORT / "damaged.py"), decoder, str(first), str(last)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


TEN_THOUSAND = [pytest.param(first, first + 2000, marks=pytest.mark.slow) for first in range(0, 10_000, 2000)]


@pytest.mark.parametrize(("first", "last"), [(0, 100), *TEN_THOUSAND])
def test_damaged_files_are_refused_or_decoded_alike_by_all_decoders(first, last):
    found = {decoder: damage(decoder, first, last) for decoder in DECODERS}
    refused = sum(isinstance(each, str) for each in found["pillow"])
    assert 0.5 < refused / len(found["pillow"]) < 0.9, "some are whole enough"
    for told in found.values():
        assert told == found["pillow"]
    for number, became in enumerate(found["pillow"], first):
        assert isinstance(became, list) or became.startswith(f"file {number}: ")
