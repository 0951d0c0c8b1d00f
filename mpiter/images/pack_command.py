"""`mpiter pack folder/ out.zip`: one large file of many small ones, which `mpiter.images.PackedFolder` reads."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time

from ..bar import Bar
from ..errors import MpiterError, OptionError
from .pack import Report, pack

_ABOUT = (
    "Write the files below a folder into one uncompressed ZIP archive, which PackedFolder reads at random, and so do "
    "Chainer's ZippedImageDataset and unzip. Interrupted or killed, the same command goes on where it was. Exit status "
    "1 if a file had to be left out."
)
_TOLD = 20  # files left out, by name
_LOOK_S = 0.2


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    parser = commands.add_parser("pack", help="make one large file of a folder of small ones", description=_ABOUT)
    parser.add_argument("folder", help="with the files, and folders of files")
    parser.add_argument("out", help="the archive; OUT.part while it is written")
    parser.add_argument("--force", action="store_true", help="over an archive that is there")
    parser.add_argument("--follow", action="store_true", help="links that lead out of the folder too")
    only = "files whose name matches, as '*.jpg' does; may be given again, for others too"
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help=only)
    parser.set_defaults(run=lambda options: run(options, parser))


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        report = _packed(options)
    except OptionError as error:
        parser.error(str(error))
    except OSError as error:
        kept = " What is packed is kept; the same command goes on." if _has_begun(options.out) else ""
        raise MpiterError(f"{options.out}.part cannot be written: {error}.{kept}") from error
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {options.out}.part", file=sys.stderr)
        raise
    for name, why in report.left_out[:_TOLD]:
        print(f"left out: {name}: {why}", file=sys.stderr)
    if len(report.left_out) > _TOLD:
        print(f"left out: {len(report.left_out) - _TOLD} more", file=sys.stderr)
    print(f"{options.out}: {_told(report)}")
    return int(bool(report.left_out))


def _packed(options: argparse.Namespace) -> Report:
    with _Progress() as progress:
        return pack(
            options.folder,
            options.out,
            force=options.force,
            follow=options.follow,
            only=options.only,
            progress=progress.at,
        )


def _has_begun(out: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.getsize(f"{out}.part") > 0
    return False


def _told(report: Report) -> str:
    parts = [f"{report.files:,} files in {report.size:,} bytes"]
    if report.resumed:
        parts.append(f"{report.resumed:,} of them packed before")
    if report.unwanted:
        parts.append(f"{report.unwanted:,} files not wanted")
    if report.left_out:
        parts.append(f"{len(report.left_out):,} left out")
    return ", ".join(parts)


class _Progress(contextlib.ExitStack):
    """A bar, once it is known how long; drawn now and then."""

    _bar: Bar | None = None
    _drawn = 0.0

    def at(self, done: int, files: int, name: str) -> None:
        now = time.monotonic()
        if self._bar is None:
            self._bar = self.enter_context(Bar("pack", files))
        elif now - self._drawn < _LOOK_S:
            return
        self._drawn = now
        self._bar.at(done, name)
