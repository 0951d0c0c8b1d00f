"""A program that decodes damaged files: `python damaged.py FIRST LAST DECODER…`.

It prints JSON: for each decoder and file, the error's reason, or the picture's shape
and sum.  Any other error ends the program.
"""

from __future__ import annotations

import json
import random
import sys
import warnings

import image_files

from mpiter.images import BrokenImage
from mpiter.images.decoding import Decoding
from mpiter.images.transforms import plain


def damaged(number: int, files: list[bytes]) -> bytes:
    """Return the file of this number.

    Its bytes are changed, its end is cut off, or two halves are joined, often several
    of these.
    """
    rng = random.Random(number)
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 2, 3))):
        how = rng.randrange(6)
        if how <= 1:
            for _ in range(rng.choice((1, 3, 30))):
                data[rng.randrange(len(data))] = rng.randrange(256)
        elif how == 2:
            # The headers lie in the first bytes.
            for _ in range(rng.choice((1, 3))):
                data[rng.randrange(min(200, len(data)))] = rng.randrange(256)
        elif how == 3:
            del data[rng.randrange(1, len(data)) :]
        elif how == 4:
            other = rng.choice(files)
            start = data[: rng.randrange(1, len(data) + 1)]
            data = start + other[rng.randrange(len(other)) :]
        else:
            at = rng.randrange(len(data))
            del data[at : at + rng.randrange(1, 50)]
        data = data or bytearray(b"\xff")
    return bytes(data)


def became(data: bytes, path: str, decoding: Decoding) -> str | list[int]:
    try:
        picture = plain(decoding.open(data, path))
    except BrokenImage as error:
        return f"{error.path}: {error.reason}"
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    return [*picture.shape, int(picture.sum())]


def main(first: int, last: int, *decoders: str) -> None:
    # Pillow warns of what is strange in a file.
    warnings.simplefilter("ignore")
    files = list(image_files.kinds().values())
    broken = {f"file {number}": damaged(number, files) for number in range(first, last)}
    found = {}
    for decoder in decoders:
        decoding = Decoding(decoder, "RGB")
        found[decoder] = [became(data, path, decoding) for path, data in broken.items()]
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
