"""The bytes at a place: a path, or a URL of a store that fsspec knows ("s3://…", "gs://…", "https://…").

Runs wherever a dataset does.  fsspec is imported where a URL is asked for; it keeps one connection for each process.
"""

from __future__ import annotations

from ..errors import OptionError


def bytes_at(source: str) -> bytes:
    """All of them."""
    if "://" not in source:
        with open(source, "rb") as file:
            return file.read()
    try:
        import fsspec
    except ImportError as error:
        raise OptionError(f"{source:.200} is a URL, which takes fsspec: pip install 'mpiter[staging]'.") from error
    system, path = fsspec.core.url_to_fs(source)
    data: bytes = system.cat_file(path)
    return data
