"""A stream of records from compressed files: sharded by the library, resumed where it
was, under other workers.

python examples/stream.py
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mpiter


class Records:
    """JSON records from a folder of `.jsonl.gz` files, one after the other; it knows
    its place.
    """

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jsonl.gz"))
        self.file = self.line = 0

    def state_dict(self) -> dict[str, int]:
        return {"file": self.file, "line": self.line}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.file, self.line = state["file"], state["line"]

    def __iter__(self) -> Iterator[dict[str, object]]:
        while self.file < len(self.files):
            with gzip.open(self.files[self.file], "rt") as lines:
                for number, line in enumerate(lines):
                    if number >= self.line:
                        self.line = number + 1
                        yield json.loads(line)
            self.file = self.file + 1
            self.line = 0
        self.file = 0


def write_some(folder: Path, files: int = 4, lines: int = 250) -> None:
    for file in range(files):
        with gzip.open(folder / f"{file:02}.jsonl.gz", "wt") as out:
            for line in range(lines):
                out.write(
                    json.dumps(
                        {
                            "id": file * lines + line,
                            "text": f"record {line} of file {file}",
                        }
                    )
                    + "\n"
                )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_some(Path(folder))
        with mpiter.DataLoader(
            Records(Path(folder)), batch_size=32, num_workers=2
        ) as loader:
            epoch = iter(loader)
            for _ in range(10):
                batch = next(epoch)
            state = json.dumps(loader.state_dict())
            rest = [batch["id"].tolist() for batch in epoch]
        print(
            "10 batches read by 2 workers; the last one ends with "
            f"{batch['text'][-1]!r}"
        )
        print(f"the state: {state}")
        with mpiter.DataLoader(
            Records(Path(folder)), batch_size=32, num_workers=3
        ) as loader:
            loader.load_state_dict(json.loads(state))
            found = [batch["id"].tolist() for batch in loader]
        print(
            f"resumed with 3 workers: {len(found)} batches, "
            f"{'identical' if found == rest else 'DIFFERENT'}"
        )


if __name__ == "__main__":
    main()
