"""Makes files of every kind that a decoder meets, with smooth pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

HEIGHT = 93
WIDTH = 124


def smooth(height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> Any:
    """Return slowly changing colours with some noise, up to the ends of the scale."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 20.0
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0.3, 3, (3, 3))]
    pixels = 128 + 150 * np.stack(waves, 2) + rng.normal(0, 6, (height, width, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def encoded(image: Any, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def kinds() -> dict[str, bytes]:
    """Return a file of each kind, by name."""
    rgb = Image.fromarray(smooth())
    odd = Image.fromarray(smooth(61, 47, 1))
    wide = (smooth()[:, :, 0].astype(np.uint16) << 8) | smooth(seed=3)[:, :, 1]
    alpha = Image.fromarray(np.dstack([smooth(), smooth(seed=2)[:, :, :1]]))
    return {
        "jpeg": encoded(rgb, "JPEG", quality=88),
        "jpeg, odd sides": encoded(odd, "JPEG", quality=75),
        "jpeg, not subsampled": encoded(rgb, "JPEG", quality=95, subsampling=0),
        "jpeg, 4:2:2": encoded(rgb, "JPEG", quality=90, subsampling=1),
        "jpeg, progressive": encoded(rgb, "JPEG", quality=80, progressive=True),
        "jpeg, restarts": encoded(rgb, "JPEG", quality=80, restart_marker_rows=1),
        "jpeg, grey": encoded(rgb.convert("L"), "JPEG"),
        "jpeg, CMYK": encoded(rgb.convert("CMYK"), "JPEG"),
        "jpeg, RGB": encoded(rgb, "JPEG", keep_rgb=True),
        "jpeg, more behind it": encoded(rgb, "JPEG") + b"and more" * 20,
        "png": encoded(rgb, "PNG"),
        "png, grey": encoded(rgb.convert("L"), "PNG"),
        "png, palette": encoded(
            rgb.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"
        ),
        "png, palette with transparency": encoded(
            rgb.convert("P", palette=Image.Palette.ADAPTIVE),
            "PNG",
            transparency=bytes(range(256)),
        ),
        "png, alpha": encoded(alpha, "PNG"),
        "png, transparent colour": encoded(rgb, "PNG", transparency=(0, 0, 0)),
        "png, black and white": encoded(rgb.convert("1"), "PNG"),
        "png, 16 bits": encoded(Image.fromarray(wide), "PNG"),
        "pgm, 16 bits": b"P5 %d %d 65535\n" % wide.shape[::-1]
        + wide.astype(">u2").tobytes(),
        "gif": encoded(rgb, "GIF"),
        "bmp": encoded(rgb, "BMP"),
        "tiff": encoded(rgb, "TIFF"),
        "webp": encoded(rgb, "WEBP", lossless=True),
        "ppm": encoded(rgb, "PPM"),
    }
